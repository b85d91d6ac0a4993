# SPDX-License-Identifier: Apache-2.0
"""What one control connection is told, message by message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, cast

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from control.api.answers import Relayed
from control.api.control import ANSWER_BYTES, Control

WITHIN_S = 60.0


class Peer:
    """The other end, in the place of a WebSocket."""

    def __init__(self, app: ASGIApp) -> None:
        others = dict.fromkeys(("asgi", "server", "root_path", "state"))
        self.scope: Scope = {**others, "client": ("192.0.2.1", 9), "headers": []}
        self._asked = asyncio.Queue[dict[str, Any]]()
        self._told = asyncio.Queue[str]()
        self.control = Control(app, cast(Any, self))

    async def receive(self) -> dict[str, Any]:
        return await self._asked.get()

    async def send_text(self, text: str) -> None:
        self._told.put_nowait(text)

    def ask(self, number: int | str, path: str, method: str = "GET") -> None:
        text = json.dumps({"id": number, "method": method, "path": path})
        self._asked.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self) -> None:
        self._asked.put_nowait({"type": "websocket.disconnect"})

    async def heard(self) -> dict[str, Any]:
        async with asyncio.timeout(WITHIN_S):
            message: dict[str, Any] = json.loads(await self._told.get())
        return message

    async def all_heard(self) -> bool:
        """Once no request goes on: nothing has been told but what was heard."""
        await asyncio.gather(*self.control._tasks.values())
        return self._told.empty()


@asynccontextmanager
async def connected(app: ASGIApp) -> AsyncIterator[Peer]:
    peer = Peer(app)
    running = asyncio.ensure_future(peer.control.run())
    yield peer
    peer.leave()
    await running


async def never() -> None:
    await asyncio.Event().wait()


async def lists(scope: Scope, receive: Receive, send: Send) -> None:
    """As many bytes as the path says, in parts."""

    async def parts(count: int) -> AsyncGenerator[bytes]:
        yield b'"'
        for at in range(0, count - 2, 65536):
            yield b"x" * min(65536, count - 2 - at)
        yield b'"'

    answer = Relayed(200, {"Content-Type": "application/json"}, parts(int(scope["path"][1:])), never(), ExitStack())
    await answer(scope, receive, send)


@pytest.mark.parametrize("count", [ANSWER_BYTES, ANSWER_BYTES + 1, 5 * ANSWER_BYTES])
def test_an_answer_is_told_once_whole_or_as_too_long(count: int) -> None:
    async def scene() -> None:
        async with connected(lists) as peer:
            peer.ask(1, f"/{count}")
            answer = await peer.heard()
            assert (answer["id"], answer["status"]) == (1, 413 if count > ANSWER_BYTES else 200)
            assert await peer.all_heard()

    asyncio.run(scene())
