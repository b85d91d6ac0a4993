# SPDX-License-Identifier: Apache-2.0
"""What a line of the log is about, as fields of the line (control/cli/logs.py writes them).

log.info("%s is turned away: %s", link.key.client_text, why, extra=about(connection=link.number, client=link.key))
"""

from __future__ import annotations

from typing import Any, Final, TypedDict, Unpack

from appliance.wire import Key

ABOUT: Final = "about"
"""The attribute of a LogRecord."""


class About(TypedDict, total=False):
    """connection: its number, 0: it has none (yet). client: its key, or its address as text. name: the client's.
    token: a token's name, never its text. server: an address and port. agent: the name of an [[agent]]. job: its
    number. who: who asked for what was done."""

    connection: int
    client: Key | str
    service: str
    name: str
    server: str
    agent: str
    job: int
    token: str
    who: str


def about(**fields: Unpack[About]) -> dict[str, dict[str, Any]]:
    """`extra` of a call that logs: fields without a value are left out."""
    texts = {key: value.client_text if isinstance(value, Key) else value for key, value in fields.items()}
    return {ABOUT: {key: value for key, value in texts.items() if value}}
