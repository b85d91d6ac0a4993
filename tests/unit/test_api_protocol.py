# SPDX-License-Identifier: Apache-2.0
"""Connections to the API whose other end takes nothing, says nothing, or says too much at once."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from http.client import HTTPResponse
from typing import Any, Final

import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from control.api import protocol, upgrade
from control.api.access import EVENTS, ME, METRICS
from control.api.answers import Switch, Switched
from control.api.protocol import PIPELINED, Bounded, Listener, Socket, bind
from tests.unit.test_api_access import Box

Scene = Callable[[int], Awaitable[None]]


async def endless(_scope: Any, receive: Any, send: Any) -> None:
    """Sends until whoever asked has left."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(1000):
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})


async def speaks(_scope: Any, receive: Any, send: Any) -> None:
    """As `endless`, by a WebSocket."""
    await receive()
    await send({"type": "websocket.accept"})
    for _ in range(1000):
        await send({"type": "websocket.send", "text": "x" * 1000})


async def long(_scope: Any, receive: Any, send: Any) -> None:
    """Less than what makes the sender wait, and that was all."""
    headers = [(b"content-length", b"60000"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * 60_000})


async def short(_scope: Any, _receive: Any, send: Any) -> None:
    """Whatever is asked, whatever is still to come of it."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


@asynccontextmanager
async def served(app: Any, rate: float = 1000.0) -> AsyncIterator[tuple[int, Listener]]:
    """On loopback; its port."""
    (listening,) = bind([("127.0.0.1", 0)])
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    config = uvicorn.Config(app, http=Bounded, ws=Socket, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    listener = Listener(server, None, 100, 100, rate)
    tasks = [asyncio.ensure_future(one) for one in (listener.run(listening), listener.look())]
    try:
        yield listening.getsockname()[1], listener
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listening.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "TAKE_S", "CLOSE_S"):
        monkeypatch.setattr(protocol, name, 0.3)


HANDSHAKE: Final = (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n")  # fmt: skip


def asks(port: int, said: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    sock.sendall(said)
    return sock


async def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("app", [endless, long])
def test_who_takes_nothing_is_left_in_time(app: Any, caplog: pytest.LogCaptureFixture,
                                          monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(protocol, "_left", protocol._Seldom("left"))

    async def scene() -> None:
        async with served(app) as (port, listener):
            with asks(port):
                await until(lambda: len(listener._open) == 1)
                began = time.monotonic()
                await until(lambda: not listener._open)
                assert 0.2 < time.monotonic() - began < 5

    asyncio.run(scene())
    said = "1 connections left since this was last said; this one from 127.0.0.1: what fills the buffer was not"
    assert (said in caplog.text) == (app is endless), "the other one's answer has ended"


@pytest.mark.parametrize("takes", [True, False])
def test_who_took_nothing_from_a_websocket_and_takes_again_is_told_why_it_is_left(
    takes: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_left", protocol._Seldom("left"))
    if takes:
        monkeypatch.setattr(protocol, "CLOSE_S", 60)
    reason = b"what fills the buffer was not taken for 0 s; events go on where they stopped"

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        async with served(speaks) as (port, listener):
            with asks(port, HANDSHAKE) as sock:
                await until(lambda: reason.decode() in caplog.text)
                if takes:
                    sock.setblocking(False)
                    taken = b""
                    while part := await loop.sock_recv(sock, 65536):
                        taken += part
                    assert taken.endswith(b"\x88" + bytes([2 + len(reason)]) + (1013).to_bytes(2, "big") + reason)
                await until(lambda: not listener._open)

    asyncio.run(scene())


def test_who_takes_it_slowly_gets_all() -> None:
    async def scene() -> None:
        async with served(long) as (port, listener):
            with asks(port) as sock:
                sock.setblocking(False)
                got = 0
                while part := await asyncio.get_running_loop().sock_recv(sock, 8192):
                    got += len(part)
                    await asyncio.sleep(0.01)
                assert got > 60_000
                await until(lambda: not listener._open)

    asyncio.run(scene())


def test_who_says_nothing_is_left_in_time() -> None:
    async def scene() -> None:
        async with served(long) as (port, listener):
            for begin in (b"", b"GET", b"GET / HTTP/1.1\r\nHost:"):
                with socket.create_connection(("127.0.0.1", port)) as sock:
                    sock.sendall(begin)
                    await until(lambda: len(listener._open) == 1)
                    await until(lambda: not listener._open)
                    said = sock.recv(1000)
                    assert said.startswith(b"HTTP/1.1 408 ") == bool(begin)

    asyncio.run(scene())


@pytest.mark.parametrize(("fields", "then"), [
    (b"", b"\r\n"),
    (b"", b"G"),
    (b"Content-Length: 1000000000000\r\n", b"x"),
    (b"Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n"),
])  # fmt: skip
@pytest.mark.parametrize("goes_on", [False, True], ids=["once", "again and again"])
def test_an_answered_connection_is_left_in_time_whatever_comes_but_a_request(
    fields: bytes, then: bytes, goes_on: bool
) -> None:
    async def scene() -> None:
        async with served(short) as (port, listener):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
            assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 ")
            writer.write(then)

            def is_left() -> bool:
                if goes_on:
                    writer.write(then)
                return not listener._open

            await until(is_left)
            writer.transport.abort()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "fields", [b"X: " + b"x" * 9000 + b"\r\n", b"X: x\r\n" * 200, b""], ids=["a long field", "many fields", "no key"]
)
def test_what_is_no_handshake_of_a_websocket_is_refused(fields: bytes) -> None:
    async def scene() -> None:
        async with served(short) as (port, listener), asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            ask = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            writer.write(ask + fields + b"\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
            await until(lambda: not listener._open)
            writer.transport.abort()

    asyncio.run(scene())


@pytest.mark.parametrize("path", ["/", "/console/icon.svg", ME, METRICS, EVENTS])
@pytest.mark.parametrize("said", [
    b"Content-Length: 1000000000000\r\n\r\n",
    b"Content-Length: 1000000000000\r\n\r\nx",
    b"Transfer-Encoding: chunked\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
])  # fmt: skip
def test_what_the_api_answers_itself_takes_no_body_and_waits_for_none(path: str, said: bytes) -> None:
    box = Box()

    async def scene() -> None:
        async with served(box.app) as (port, listener), asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {box.texts['viewer']}\r\n"
            writer.write(head.encode() + said)
            assert (await reader.readline()).startswith(b"HTTP/1.1 422 ")
            await until(lambda: not listener._open)
            writer.transport.abort()

    asyncio.run(scene())


def test_the_control_connection_has_no_parameters_and_brings_no_body_where_none_is_taken() -> None:
    box = Box()

    async def scene() -> None:
        headers = {"Authorization": f"Bearer {box.texts['viewer']}"}
        async with served(box.app) as (port, _), asyncio.timeout(10):
            url = f"ws://127.0.0.1:{port}/v1/control"
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{url}?nonsense=1", additional_headers=headers)
            answer = refused.value.response
            assert answer.status_code == 422
            assert json.loads(answer.body) == {"error": "nonsense: there is no such parameter; there are: none"}
            async with connect(url, additional_headers=headers) as control:
                for path in (ME, METRICS, EVENTS, "/", "/console/icon.svg"):
                    await control.send(json.dumps({"id": 1, "method": "GET", "path": path, "body": {}}))
                    said = json.loads(await control.recv())
                    assert said == {"id": 1, "status": 422, "body": {"error": "body: this request has none"}}, path

    asyncio.run(scene())


def told(port: int, said: bytes) -> tuple[int, dict[str, str]]:
    """Status and JSON of the answer."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(said)
        answer = HTTPResponse(sock)
        answer.begin()
        assert answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(answer.read())


@pytest.mark.parametrize(("said", "status"), [
    (b"GET / HTTP/1.1\r\nX: " + b"x" * 17_000, 431),
    (b"GET / HTTP/1.1\r\nX: " + b"x" * 17_000 + b"\r\n\r\n", 431),
    (b"PUT /" + b"x" * 17_000 + b" HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 431),
    (b"GET /", 408),
    (b"\x16\x03\x01\x02\x00", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
])  # fmt: skip
def test_what_is_refused_before_it_is_a_request_is_refused_as_all_else_is(said: bytes, status: int) -> None:
    async def scene() -> None:
        async with served(long) as (port, _listener):
            found, body = await asyncio.to_thread(told, port, said)
            assert (found, list(body)) == (status, ["error"])

    asyncio.run(scene())


def test_one_source_makes_so_many_connections_a_second_and_others_make_theirs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handshake of TLS takes the processor, which is all that a host without a token wants."""
    monkeypatch.setattr(protocol, "BURST_S", 300_000.0)

    def answered(port: int, source: str) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), 10, (source, 0)) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                return sock.recv(12) == b"HTTP/1.1 200"
        except ConnectionError:
            return False

    async def scene() -> None:
        async with served(long, 0.00001) as (port, listener):
            sources = ["127.0.0.1"] * 5 + ["127.0.0.2"]
            answers = [await asyncio.to_thread(answered, port, source) for source in sources]
            assert answers == [True] * 3 + [False] * 2 + [True]
            await until(lambda: not listener._open and not listener._tasks)

    asyncio.run(scene())
    assert "1 connections refused since this was last said; this one from 127.0.0.1: it connects" in caplog.text


@pytest.mark.parametrize("blocked", ["the server", "the client"])
def test_a_stream_whose_token_is_revoked_ends_whoever_does_not_read(
    monkeypatch: pytest.MonkeyPatch, blocked: str
) -> None:
    for room in (protocol, upgrade):
        monkeypatch.setattr(room, "CLOSE_S", 600.0)

    async def scene() -> None:
        revoked, full, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def daemon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            with suppress(ConnectionError):
                if blocked == "the server":
                    await fill(writer, full)
                await over.wait()
                while await reader.read(65536):
                    pass
            over.set()
            writer.transport.abort()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            host, port = attaches.sockets[0].getsockname()
            ticket = {"address": f"{host}:{port}", "authority": "x:1"}
            switch = Switch(ticket, scope["extensions"][upgrade.EXTENSION], ExitStack())
            await Switched(switch, revoked.wait(), ExitStack())(scope, receive, send)  # type: ignore[arg-type]
            over.set()

        attaches = await asyncio.start_server(daemon, "127.0.0.1", 0, limit=1024)
        async with attaches, served(app) as (port, listener):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: roost\r\n\r\n")
            if blocked == "the client":
                await fill(writer, full)
            await full.wait()
            revoked.set()
            await until(lambda: over.is_set() and not listener._open)
            writer.transport.abort()

    asyncio.run(scene())


def test_a_token_that_is_revoked_while_its_client_is_waited_for_has_no_client() -> None:
    async def scene() -> None:
        asked, revoked, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def daemon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            assert await reader.read() == b"", "the client has what was said behind the request"
            gone.set()
            writer.close()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            host, port = attaches.sockets[0].getsockname()
            ticket = {"address": f"{host}:{port}", "authority": "x:1"}
            switch = Switch(ticket, scope["extensions"][upgrade.EXTENSION], ExitStack())
            await Switched(switch, revoked.wait(), ExitStack())(scope, receive, send)  # type: ignore[arg-type]

        attaches = await asyncio.start_server(daemon, "127.0.0.1", 0)
        async with attaches, served(app) as (port, _), asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: roost\r\n\r\nopen")
            await asked.wait()
            revoked.set()
            assert b" 401 " in await reader.readline()
            await gone.wait()
            writer.transport.abort()

    asyncio.run(scene())


@pytest.mark.parametrize(("status", "after"), [(429, b"1"), (503, b"2"), (502, None)])
def test_an_upgrade_that_is_refused_for_now_says_when_it_may_be_asked_for_again(
    status: int, after: bytes | None
) -> None:
    async def scene() -> None:
        async def daemon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 %d Not Now\r\n\r\na sentence" % status)
            writer.close()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            host, port = attaches.sockets[0].getsockname()
            ticket = {"address": f"{host}:{port}", "authority": "x:1"}
            switch = Switch(ticket, scope["extensions"][upgrade.EXTENSION], ExitStack())
            await Switched(switch, asyncio.Event().wait(), ExitStack())(scope, receive, send)  # type: ignore[arg-type]

        attaches = await asyncio.start_server(daemon, "127.0.0.1", 0)
        async with attaches, served(app) as (port, _), asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: roost\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            assert head[0].startswith(b"HTTP/1.1 %d " % status)
            found = dict(line.lower().split(b": ", 1) for line in head[1:] if line)
            assert found.get(b"retry-after") == after
            writer.transport.abort()

    asyncio.run(scene())


async def fill(writer: asyncio.StreamWriter, full: asyncio.Event) -> None:
    """Until nothing of it is taken for a while, or the connection is gone."""
    with suppress(ConnectionError):
        while not full.is_set():
            writer.write(bytes(65536))
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                full.set()


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1), "sockname": ("192.0.2.2", 2)})
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


def made(app: Any, kind: type[Bounded] = Bounded) -> tuple[Bounded, Wire]:
    """A connection, within the event loop."""
    config = uvicorn.Config(app, http=Bounded, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    protocol, wire = kind(config=config, server_state=uvicorn.Server(config).server_state, app_state={}), Wire()
    protocol.connection_made(wire)
    return protocol, wire


def test_of_what_comes_in_one_piece_little_is_looked_at_once_it_is_refused() -> None:
    """asyncio hands over 256 KiB at once."""

    async def scene() -> None:
        begun = 0

        class Counting(Bounded):
            def on_message_begin(self) -> None:
                nonlocal begun
                begun += 1
                super().on_message_begin()

        protocol, wire = made(long, Counting)
        head = b"GET / HTTP/1.1\r\n\r\n"
        protocol.data_received(head * (262_144 // len(head)))
        protocol.data_received(head)
        assert wire.closed
        assert wire.written.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nRetry-After: 1\r\n" in wire.written
        assert len(protocol.pipeline) == PIPELINED
        assert begun < 20
        protocol.connection_lost(None)

    asyncio.run(scene())


def test_of_a_head_in_one_piece_little_is_looked_at_once_it_is_too_large() -> None:
    async def scene() -> None:
        fields = 0

        class Counting(Bounded):
            def on_header(self, name: bytes, value: bytes) -> None:
                nonlocal fields
                fields += 1
                super().on_header(name, value)

        protocol, wire = made(long, Counting)
        protocol.data_received(b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 50_000 + b"\r\n")
        assert wire.closed
        assert wire.written.startswith(b"HTTP/1.1 431 ")
        assert fields < 8000
        protocol.connection_lost(None)

    asyncio.run(scene())


def test_some_requests_may_wait_behind_one_and_are_answered_in_their_order() -> None:
    async def number(scope: Any, _receive: Any, send: Any) -> None:
        body = scope["path"].encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": body})

    async def scene() -> None:
        async with served(number) as (port, _listener):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % at for at in range(9)))
                got = []
                for _ in range(9):
                    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                    got.append(await reader.readexactly(2))
                assert got == [b"/%d" % at for at in range(9)]
            writer.close()

    asyncio.run(scene())


def test_an_answer_that_goes_on_ends_with_its_connection_whatever_waits_behind_it() -> None:
    async def scene() -> None:
        ended = asyncio.Event()

        async def listens(_scope: Any, receive: Any, _send: Any) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            ended.set()

        protocol, _wire = made(listens)
        protocol.data_received(b"GET / HTTP/1.1\r\n\r\n" * 3)
        await asyncio.sleep(0)
        protocol.connection_lost(None)
        async with asyncio.timeout(10):
            await ended.wait()

    asyncio.run(scene())


def test_a_head_behind_a_large_body_is_bounded_by_itself() -> None:
    async def scene() -> None:
        protocol, wire = made(long)
        head = b"PUT / HTTP/1.1\r\nContent-Length: 200000\r\n\r\n"
        protocol.data_received(head + b"x" * 200_000 + b"GET / HTTP/1.1\r\n")
        assert not wire.closed
        protocol.data_received(b"\r\n")
        assert (wire.closed, len(protocol.pipeline)) == (False, 1)
        protocol.connection_lost(None)

    asyncio.run(scene())


def test_nothing_is_counted_any_more_when_all_have_left() -> None:
    async def scene() -> None:
        async with served(long) as (port, listener):
            for _ in range(20):
                with asks(port), suppress(ConnectionError):
                    await asyncio.sleep(0.005)
            await until(lambda: not listener._open and not listener._tasks)
            assert not listener._all._count + listener._each._count

    asyncio.run(scene())
