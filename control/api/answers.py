# SPDX-License-Identifier: Apache-2.0
"""What is answered: as a whole, as it comes, or by a connection that is no HTTP any more."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack, aclosing
from typing import Any, Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from control.api.access import Access
from control.api.upgrade import RefusedError, Upgrading, attached
from control.api.upgrade import relay as relay_bytes
from control.store.tokens import TokenRow

log = logging.getLogger("roost.api")

NOT_GOOD: Final = "the token is not good (any more)"


Work = Callable[[Request, Access, TokenRow, ExitStack], Awaitable["Answered"]]
"""Answers; what is to be done when the answer is over, however it ended, goes into the stack."""


RETRY: Final[Mapping[int, Mapping[str, str]]] = {429: {"Retry-After": "1"}, 503: {"Retry-After": "2"}}
"""Headers of every answer of these, be it the daemon's, where no better time is known."""


def too_many(what: str, wait_s: float) -> HTTPException:
    return HTTPException(429, what, {"Retry-After": str(int(wait_s) + 1)})


def refusal_of(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    # What was not read of the request must not be taken for the next one, nor waited for.
    told = {**RETRY.get(status, {}), **(headers or {}), "Connection": "close"}
    return Response(json.dumps({"error": message}), status, told, "application/json")


class Switch(NamedTuple):
    """A connection is to become the byte stream to a client, by the daemon's ticket. ending: what is done then."""

    ticket: Mapping[str, Any]
    connection: Upgrading
    ending: ExitStack


class Answered(NamedTuple):
    """body: as it comes, where it is not there as a whole."""

    status: int
    headers: dict[str, str]
    body: bytes | AsyncGenerator[bytes] | Switch


async def until_any(*work: Awaitable[None]) -> None:
    """Until one has ended; then none goes on. How a task among them ended, it can be asked."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class Relayed(Response):
    """An answer as it comes, to its end, or until whoever asked has left, or `over`, or the daemon ends. ending: what
    is done then."""

    def __init__(self, status: int, headers: Mapping[str, str], parts: AsyncGenerator[bytes],
                 over: Coroutine[Any, Any, None], ending: ExitStack) -> None:  # fmt: skip
        super().__init__(status_code=status, headers=dict(headers))
        if "Content-Length" not in headers:
            del self.headers["Content-Length"]  # Starlette's, of no body at all
        self._parts = parts
        self._over = over
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        with self._ending:
            sending = asyncio.ensure_future(self._send(send))
            await until_any(sending, _has_left(receive), self._over)
            if not sending.cancelled() and (error := sending.exception()) is not None:
                log.warning("%s: the answer to %s broke off: %s", scope["path"], scope["client"], error)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._parts) as parts:
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Switched(Response):
    """The byte stream to a client, until it ends, or `over` does; or an error. ending: of what goes before it."""

    def __init__(self, switch: Switch, over: Coroutine[Any, Any, None], ending: ExitStack) -> None:
        super().__init__(status_code=101)
        self._switch = switch
        self._over = over
        self._ending = ending
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it, but for the success, which is behind its back."""
        lost = self._switch.connection.lost
        stream, over = asyncio.ensure_future(self._stream()), asyncio.ensure_future(self._over)
        with self._ending, self._switch.ending:
            try:
                await asyncio.wait({stream, over, lost}, return_when=asyncio.FIRST_COMPLETED)
                if self._begun:  # it has the connection, and ends with it
                    await asyncio.wait({stream, over}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # What waits in buffers is not for one that may not ask any more, nor of it: nothing is flushed.
                was_over = not over.cancel()
                stream.cancel()
                await asyncio.wait({stream, over})
            failed = None if stream.cancelled() else stream.exception()
            if was_over and not self._begun:
                await refusal_of(401, NOT_GOOD)(scope, receive, send)
            elif isinstance(failed, RefusedError):
                await refusal_of(failed.status, str(failed))(scope, receive, send)
            elif failed is not None and not isinstance(failed, OSError):
                raise failed

    async def _stream(self) -> None:
        async with attached(self._switch.ticket) as server, self._switch.connection.take_over() as client:
            self._begun = True
            self._ending.close()
            client[1].write(self._switch.connection.switching)
            await relay_bytes(client, server)


async def _has_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
