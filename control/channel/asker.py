# SPDX-License-Identifier: Apache-2.0
"""Who asks, from where, and whose connections are for them: headers of a request to the local API
(control/core/access.py).

Whoever may open the socket is believed. The API's process (control/api/) says what it knows of the one who asked it.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple
from urllib.parse import unquote

from fastapi import Depends, Header
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from control.clients.scope import SCOPE
from control.core.access import FROM, SERVICES, WHO
from control.core.errors import OperationError

NOBODY_SAID: Final = "root"
"""Who may open the socket."""

LOCAL: Final = "local"
"""Where the socket is."""

WHO_LENGTH: Final = 255
FROM_LENGTH: Final = 47


class Asker(NamedTuple):
    """by_token: it is known who it is."""

    who: str
    origin: str
    by_token: bool

    @classmethod
    def of(cls, who: str, origin: str) -> Asker:
        """By the headers; empty: there is none."""
        told = plain(unquote(who) or NOBODY_SAID, WHO_LENGTH)
        return cls(told, plain(unquote(origin) or LOCAL, FROM_LENGTH), bool(origin))

    def named(self, said: str | None) -> str:
        """Who it is. said: by the request itself, which must say it where there is no token. Raises OperationError."""
        if self.by_token:
            return self.who
        if said is None:
            raise OperationError(422, "who: Field required")
        return said


async def _asker(
    who: Annotated[str, Header(alias=WHO, include_in_schema=False)] = "",
    origin: Annotated[str, Header(alias=FROM, include_in_schema=False)] = "",
) -> Asker:
    """async: a thread would be asked for it otherwise."""
    return Asker.of(who, origin)


AskedBy = Annotated[Asker, Depends(_asker)]


class Scoped:
    """The application, for which SCOPE says whose connections may be seen."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        said = Headers(scope=scope).get(SERVICES) if scope["type"] == "http" else None
        # Also where it is for all: what reads of a connection was resumed within an earlier request goes on in that
        # one's context.
        token = SCOPE.set(frozenset(map(unquote, said.split(","))) if said is not None else None)
        try:
            await self._app(scope, receive, send)
        finally:
            SCOPE.reset(token)


def plain(text: str, most: int) -> str:
    """What every database takes, and every terminal."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)[:most]
