# SPDX-License-Identifier: Apache-2.0
"""The control connection: requests of the API, and what happens, over one WebSocket at /v1/control (RFC 6455).

    {"id": 1, "method": "POST", "path": "/v1/connections/4711/wake"}        as by HTTP; a body goes in "body"
    {"id": 1, "status": 200, "body": {…}}
    {"id": 2, "method": "GET", "path": "/v1/events?service=alarms"}         goes on until {"id": 2, "method": "CANCEL"}
    {"id": 2, "status": 200, "body": null, "seq": 814}                      the number of the row that it begins behind
    {"id": 2, "event": "transition", "seq": 815, "data": {…}}
    {"id": 2, "event": "position", "seq": 100815, "data": {}}               none up to there; seldom

Each message is a request like any other, by the token of the handshake. Nothing is said while nothing happens, but a
position after long, so that a server's control connection may sleep like every other connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

AT_ONCE: Final = 20
"""Requests of one connection that are not answered, or go on."""

WRONG_MAX: Final = 20
"""Messages of one connection that are no requests; then it is closed."""

MESSAGE_BYTES: Final = 64 * 1024
"""Of a request."""

ANSWER_BYTES: Final = 1 << 20
"""Of an answer; a longer one is to be had by HTTP, or in pages."""

POSITION_ROWS: Final = 100_000
POSITION_S: Final = 86_400.0
"""After so many rows of others, which are read in seconds, or so long without an event its position is told. Sooner it
would keep connections awake, whose waking makes rows by itself."""

_METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE", "CANCEL"})
_KEYS: Final = frozenset({"id", "method", "path", "body"})


class WrongError(ValueError):
    """A message that is no request: a sentence."""


class TooLongError(Exception):
    """An answer that has been refused for its length."""


class Control:
    """One connection. app: what answers by HTTP."""

    def __init__(self, app: ASGIApp, socket: WebSocket) -> None:
        self._app = app
        self._socket = socket
        self._tasks: dict[int | str, asyncio.Task[None]] = {}
        self._wrong = 0

    async def run(self) -> None:
        """Until it ends."""
        try:
            while (message := await self._socket.receive())["type"] != "websocket.disconnect":
                try:
                    refused = self._begin(message.get("text"))
                except WrongError as error:
                    self._wrong += 1
                    refused = {"id": None, "status": 400, "body": {"error": str(error)}}
                if refused is not None:
                    await self._say(refused)
                if self._wrong > WRONG_MAX:
                    await self._socket.close(1008, "too many messages that are no requests")
                    return
                await asyncio.sleep(0)  # a peer that sends without end would keep the others from their turn
        except WebSocketDisconnect:
            pass
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _begin(self, text: str | None) -> dict[str, Any] | None:
        """The answer, where it is refused here."""
        number, method, path, body = _read(text)
        if method == "CANCEL":
            if number in self._tasks:
                self._tasks[number].cancel()
            return None
        if number in self._tasks:
            raise WrongError(f"id: {json.dumps(number)} is of a request that is not answered yet")
        if len(self._tasks) >= AT_ONCE:
            why = f"{AT_ONCE} requests of this connection are not answered yet, or go on"
            return {"id": number, "status": 429, "body": {"error": why}}
        task = self._tasks[number] = asyncio.create_task(self._answer(number, method, path, body))
        task.add_done_callback(lambda _: self._tasks.pop(number))
        return None

    async def _answer(self, number: int | str, method: str, path: str, body: Any) -> None:
        """Ask the application, and say what it answers as it comes."""
        answer = _Answer(number, self._socket.send_text)
        asked, never = asyncio.Event(), asyncio.Event()

        async def receive() -> Message:
            if not asked.is_set():
                asked.set()
                data = b"" if body is None else json.dumps(body).encode()
                return {"type": "http.request", "body": data, "more_body": False}
            await never.wait()  # the end of the connection cancels the task
            return {"type": "http.disconnect"}

        with suppress(WebSocketDisconnect, TooLongError):
            await self._app(self._scope(method, path), receive, answer.send)
            if not answer.over:
                await self._say({"id": number, "status": 503, "body": {"error": "the answer broke off; ask again"}})

    def _scope(self, method: str, path: str) -> Scope:
        raw, _, query = path.partition("?")
        own = self._socket.scope
        headers = [pair for pair in own["headers"] if pair[0] == b"authorization"]
        return {
            **{key: own[key] for key in ("asgi", "client", "server", "root_path", "state")},
            "type": "http", "http_version": "1.1", "scheme": "http", "method": method, "path": unquote(raw),
            "raw_path": raw.encode(), "query_string": query.encode(),
            "headers": [*headers, (b"content-type", b"application/json")],
        }  # fmt: skip

    async def _say(self, message: dict[str, Any]) -> None:
        await self._socket.send_text(json.dumps(message))


class _Answer:
    """What the application answers, to a message or several."""

    def __init__(self, number: int | str, say: Callable[[str], Awaitable[None]]) -> None:
        self._number = number
        self._say = say
        self._status = 0
        self._kind = ""
        self._body = bytearray()
        self._position = -1
        """The number that was told last, of events; when: `_position_at`."""

        self._position_at = 0.0
        self.over = False
        """Nothing more is said for this id."""

    async def send(self, message: Message) -> None:
        """As ASGI has it."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._kind = next((value.decode() for name, value in message["headers"] if name == b"content-type"), "")
            return
        self._body += message.get("body", b"")
        self.over = not message.get("more_body")
        if self._kind.startswith("text/event-stream"):
            await self._events()
        elif len(self._body) > ANSWER_BYTES:
            self._status, self.over = 413, True
            said = "the answer is too long here: take it by HTTP, or, with a token for all services, in pages"
            await self._tell({"error": said})
            raise TooLongError(said)
        elif self.over:
            await self._tell(_decoded(self._kind, bytes(self._body)))

    async def _tell(self, body: Any, **more: int) -> None:
        await self._say(json.dumps({"id": self._number, "status": self._status, "body": body, **more}))

    async def _events(self) -> None:
        *whole, rest = bytes(self._body).split(b"\n\n")
        self._body = bytearray(rest)
        for block in whole:
            lines = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
            seq, now = int(lines["id"]), time.monotonic()
            if "data" in lines:
                await self._event(lines["event"], seq, lines["data"])
            elif self._position < 0:
                await self._tell(None, seq=seq)
            elif seq - self._position >= POSITION_ROWS or now - self._position_at >= POSITION_S:
                await self._event("position", seq, "{}")
            else:
                continue
            self._position, self._position_at = seq, now

    async def _event(self, kind: str, seq: int, data: str) -> None:
        """data: JSON, which is the same for all who listen."""
        await self._say(f'{{"id": {json.dumps(self._number)}, "event": "{kind}", "seq": {seq}, "data": {data}}}')


def _decoded(kind: str, body: bytes) -> Any:
    if kind.startswith("application/x-ndjson"):
        return [json.loads(line) for line in body.splitlines()]
    return json.loads(body) if kind.startswith("application/json") else body.decode(errors="replace")


def _read(text: str | None) -> tuple[int | str, str, str, Any]:
    """id, method, path, body. Raises WrongError."""
    try:
        message = json.loads(text or "")
    except (ValueError, RecursionError):
        raise WrongError("a message is an object of JSON, as text") from None
    if not isinstance(message, dict):
        raise WrongError("a message is an object of JSON")
    if unknown := message.keys() - _KEYS:
        raise WrongError(f"{min(unknown)}: there is no such key; there are: id, method, path, body")
    number, method, path = message.get("id"), message.get("method"), message.get("path", "/")
    if not isinstance(number, int | str) or isinstance(number, bool) or len(str(number)) > 100:
        raise WrongError("id: a number or a text, which the answer will have")
    if not isinstance(method, str) or method not in _METHODS:
        raise WrongError(f"method: one of {', '.join(sorted(_METHODS))}")
    if not isinstance(path, str) or not path.startswith("/") or not path.isascii() or not path.isprintable():
        raise WrongError("path: a path with its query, in ASCII, as by HTTP")
    return number, method, path, message.get("body")
