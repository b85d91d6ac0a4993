# SPDX-License-Identifier: Apache-2.0
"""What a shell may complete: connections, names and tags, where the daemon tells them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from control.cli.client import Client, daemon_of

PATIENCE_S: Final = 0.2
MOST: Final = 50
DOMAIN: Final = "roost"
"""Of names, where the configuration does not say another."""

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _asked(ask: Callable[[Client, str], list[str]]) -> Complete:
    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        try:
            return [one for one in ask(daemon_of(context, PATIENCE_S), begun) if one.startswith(begun)]
        except Exception:  # whatever it is: who types is not to be told now
            return []

    return complete


def _page(daemon: Client, **wanted: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = daemon.get("/v1/connections", after="first", limit=MOST, **wanted)["connections"]
    return rows


def _names(daemon: Client, begun: str) -> list[str]:
    return [row["name"] for row in _page(daemon, name=f"{begun}*")]


def _connections(daemon: Client, begun: str) -> list[str]:
    if begun[:1].isdecimal() or begun.startswith("["):
        return [row["client"] for row in _page(daemon, client=begun)]
    return [f"{name}.{DOMAIN}" for name in _names(daemon, begun.removesuffix(f".{DOMAIN}"))]


def _tags(daemon: Client, _begun: str) -> list[str]:
    return [one["tag"] for one in daemon.get("/v1/tags")]


connections: Final = _asked(_connections)
"""A client-address:port, or a name with the usual domain."""

names: Final = _asked(_names)
"""Without the domain, of those that are connected."""

tags: Final = _asked(_tags)
