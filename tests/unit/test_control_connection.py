# SPDX-License-Identifier: Apache-2.0
"""What one control connection is told, message by message: answers once, and events from where it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from control.api import control as control_module
from control.api import stream as stream_module
from control.api.answers import Relayed
from control.api.control import ANSWER_BYTES, Control
from control.api.own import events
from control.api.stream import Stream
from control.core.access import Role
from control.store.tokens import TokenRow
from tests.unit.test_api_stream import Source

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


class Server:
    """A control connection after another, of a token for one service."""

    def __init__(self, source: Source) -> None:
        self._stream = Stream(source)
        self._row = TokenRow("", "server", Role.SERVER, ("alarms",), b"", 0, "root")

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await events(self._stream, Request(scope, receive), cast(Any, None), self._row, ExitStack())
        await Relayed(answer.status, answer.headers, cast(Any, answer.body), never(), ExitStack())(scope, receive, send)

    @asynccontextmanager
    async def listening(self, after: int | None) -> AsyncIterator[tuple[Peer, int]]:
        """The connection, and where it begins."""
        async with connected(self.app) as peer:
            peer.ask("e", "/v1/events" if after is None else f"/v1/events?after={after}")
            answer = await peer.heard()
            assert (answer["id"], answer["status"], answer["body"]) == ("e", 200, None)
            yield peer, answer["seq"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "POLL_S", 0.001)
    monkeypatch.setattr(stream_module, "HEARTBEAT_S", 0.05)


def test_who_is_cut_off_before_an_event_resumes_and_has_each_once() -> None:
    source = Source()
    source.last = 8

    async def scene() -> None:
        server = Server(source)
        async with server.listening(None) as (_, at):
            assert at == 8
        source.last = 20  # meanwhile
        async with server.listening(at) as (peer, again):
            assert again == at
            told = [await peer.heard() for _ in range(4)]
            assert [(one["id"], one["event"], one["seq"]) for one in told] == [
                ("e", "transition", number) for number in (10, 13, 16, 19)]  # fmt: skip
            assert {one["data"]["service"] for one in told} == {"alarms"}
            source.last = 22
            assert (await peer.heard())["seq"] == 22

    asyncio.run(scene())


def comments(*numbers: int) -> ASGIApp:
    """A stream of events without any: up to where there is none."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in numbers:
            await send({"type": "http.response.body", "body": b": still here\nid: %d\n\n" % number, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


@pytest.mark.parametrize(("rows", "seconds", "told"), [(10, 1000.0, [15, 25]), (1000, 0.0, [5, 14, 15, 24, 25])])
def test_where_there_is_no_event_for_long_the_position_is_told(
    rows: int, seconds: float, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "POSITION_ROWS", rows)
    monkeypatch.setattr(control_module, "POSITION_S", seconds)

    async def scene() -> None:
        async with connected(comments(5, 5, 14, 15, 24, 25)) as peer:
            peer.ask(1, "/v1/events")
            assert await peer.heard() == {"id": 1, "status": 200, "body": None, "seq": 5}
            for number in told:
                assert await peer.heard() == {"id": 1, "event": "position", "seq": number, "data": {}}
            assert await peer.all_heard()

    asyncio.run(scene())
