# SPDX-License-Identifier: Apache-2.0
"""Who may do what by the API, the tokens by which it is known who asks, and how the daemon is told."""

from __future__ import annotations

import hashlib
import re
import secrets
from enum import StrEnum
from typing import Final, NamedTuple

WHO: Final = "Roost-Who"
"""A header of requests to the local API: a name, percent-encoded."""

FROM: Final = "Roost-From"
"""The address that the request came from by the network, percent-encoded."""

SERVICES: Final = "Roost-Services"
"""Names of services, percent-encoded, between commas; without it: all."""

REFUSED: Final = "Roost-Refused"
"""The request was refused before it came: a status, a space, and the sentence that was said, percent-encoded. It is for
the record of changes alone."""

BODY_MAX: Final = 8 << 20
"""Bytes of a request: as many rules as there may be, in a file."""


class Role(StrEnum):
    """viewer: reads. operator: changes what connections, names and rules are. admin: and makes tokens, and reads the
    record of changes. server: reads and changes the connections of its own services alone."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    SERVER = "server"


ID_LENGTH: Final = 8
_ID: Final = "abcdefghijkmnpqrstuvwxyz23456789"  # none that is taken for another when it is read aloud
_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(rf"roost_([{_ID}]{{{ID_LENGTH}}})_([A-Za-z0-9_-]{{43}})")


class Credential(NamedTuple):
    """What a token says: which one it is, and the SHA-256 of its secret, which has 256 random bits."""

    id: str
    digest: bytes


SOCKET: Final = "ROOST_API_SOCKET"
DATABASE: Final = "ROOST_API_DATABASE"
LOG: Final = "ROOST_API_LOG"
"""In the environment of the API's process: the daemon's; LOG is its [log] as JSON."""


def new_token() -> tuple[str, Credential]:
    """The text of a token that nobody has, and what is kept of it."""
    number = "".join(secrets.choice(_ID) for _ in range(ID_LENGTH))
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    return f"roost_{number}_{secret}", Credential(number, _digest(secret))


def read_token(text: str) -> Credential | None:
    """None: it is no token."""
    found = _TOKEN.fullmatch(text)
    return Credential(found[1], _digest(found[2])) if found else None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
