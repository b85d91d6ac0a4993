# SPDX-License-Identifier: Apache-2.0
"""Connections to the API, and how many, how slow and how large they may be, before anything of a request is looked at.

uvicorn bounds neither how long the head of a request takes nor its size, and asyncio not how many connections there are
from where.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NoReturn
from urllib.parse import quote

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from appliance.bounds import AtOnce, Rates, source_of
from appliance.frontends.target import parse_authority, target_text
from control.api.access import ATTACH
from control.api.answers import RETRY
from control.api.upgrade import CONNECTED, EXTENSION, PART, PROTOCOL, SWITCHING, Ends, flushed

log = logging.getLogger("roost.api")

HEAD_S: Final = 10.0
"""For the head of a request, from its first byte, or from where nothing is being answered: the connection was made, or
the last answer has ended."""

HEAD_BYTES: Final = 16 * 1024
"""Of a request's line and headers, looked at whenever some have come."""

TAKE_S: Final = 30.0
"""For taking what fills the buffer of a connection (64 KiB), down to a quarter."""

PIPELINED: Final = 8
"""Requests of a connection that wait for the answers before theirs (RFC 9112 9.3.2)."""

FRAMES: Final = 64
"""Of a message of a WebSocket; they may be empty."""

CLOSE_S: Final = 10.0
"""For taking what is left when a connection is to be closed, at least."""

_OF_PROXIES: Final = (b"proxy-authorization", b"authorization", b"connection", b"upgrade", b"sec-websocket-key")
"""Fields of a CONNECT that are not those of the request that it stands for."""

_BODY: Final = (b"content-length", b"transfer-encoding")

KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""An end that has gone without a word is noticed in two minutes. While a connection sleeps the appliance answers."""

BURST_S: Final = 4.0
"""So many seconds' new connections of one source at once."""

HANDSHAKE_S: Final = 10.0
SHUTDOWN_S: Final = CLOSE_S
"""Of TLS, from its end: what is in the buffers goes out meanwhile."""

SAY_S: Final = 10.0
"""How often it is said that connections are refused, or left, at most."""


def _refusal(status: HTTPStatus, why: str, fields: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole answer, of the form that all refusals have."""
    body = json.dumps({"error": why})
    others = [f"{name}: {value}" for name, value in RETRY.get(status, {}).items()]
    others += [f"{name.decode()}: {value.decode()}" for name, value in fields]
    head = (f"HTTP/1.1 {status} {status.phrase}", "connection: close", "content-type: application/json", *others,
            f"content-length: {len(body)}", "", "")  # fmt: skip
    return "\r\n".join(head).encode() + body.encode()


TOO_LARGE: Final = _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                            f"the head of a request has {HEAD_BYTES:,} bytes at most")  # fmt: skip
TOO_SLOW: Final = _refusal(HTTPStatus.REQUEST_TIMEOUT, f"the head of the request did not come within {HEAD_S:.0f} s")
NO_UPGRADE: Final = _refusal(HTTPStatus.BAD_REQUEST,
                             "a request for an upgrade has no body, and waits for the answers before it")  # fmt: skip
TOO_MANY: Final = _refusal(HTTPStatus.TOO_MANY_REQUESTS,
                           f"{PIPELINED} requests of this connection wait already: wait for an answer")  # fmt: skip
NO_HANDSHAKE: Final = _refusal(HTTPStatus.BAD_REQUEST,
                               "a handshake of a WebSocket has 128 fields at most, of 8 KiB each")  # fmt: skip
NO_HTTP: Final = _refusal(HTTPStatus.BAD_REQUEST, "this is no HTTP")
WANTED_OF_PROXIES: Final = ((b"proxy-authenticate", b"Bearer"), (b"proxy-authenticate", b'Basic realm="roost"'))
TOKEN_WANTED: Final = _refusal(
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
    "a token is needed, once: Proxy-Authorization: Bearer …, or Basic with it as the password",
    WANTED_OF_PROXIES,
)
"""To a CONNECT. Programs that know proxies ask for it: it is no failure, and no change that was refused."""


def _token(value: bytes) -> bytes:
    """Credentials for a proxy as the API has them: a token may be the password of any user (RFC 7617)."""
    scheme, _, text = value.partition(b" ")
    if scheme.lower() != b"basic":
        return value
    try:
        return b"Bearer " + base64.b64decode(text.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return value


async def _as_proxy(app: Any, scope: Any, receive: Any, send: Any) -> None:
    """What asks for credentials says so as a proxy does (RFC 9110 11.7)."""

    async def tell(message: Any) -> None:
        if message.get("status") == HTTPStatus.UNAUTHORIZED:
            headers = [field for field in message["headers"] if field[0].lower() != b"www-authenticate"]
            status, headers = HTTPStatus.PROXY_AUTHENTICATION_REQUIRED, [*headers, *WANTED_OF_PROXIES]
            message = {**message, "status": status, "headers": headers}
        await send(message)

    await app(scope, receive, tell)


class _OverError(Exception):
    """Of a callback: the parser is to look at no more."""


class _Seldom:
    """A line of the log every SAY_S, at most; what: of the connections that it counts."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._at = 0.0

    def say(self, source: str, why: str) -> None:
        self._count += 1
        if time.monotonic() >= self._at:
            self._at = time.monotonic() + SAY_S
            log.warning("%d connections %s since this was last said; this one from %s: %s", self._count, self._what,
                        source, why)  # fmt: skip
            self._count = 0


_left: Final = _Seldom("left")


class _Taking:
    """A protocol whose peer must take what fills the buffer, or is left."""

    transport: asyncio.Transport
    _full: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._full = asyncio.get_running_loop().call_later(TAKE_S, self._late)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._room()

    def _late(self) -> None:
        why = f"what fills the buffer was not taken for {TAKE_S:.0f} s; events go on where they stopped"
        self._leave(why)
        _left.say(source_of((self.transport.get_extra_info("peername") or ("0.0.0.0",))[0]), why)

    def _leave(self, _why: str) -> None:
        self.transport.abort()

    def _room(self) -> None:
        if self._full is not None:
            self._full.cancel()
            self._full = None


class Socket(_Taking, WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket. was: what it was before."""

    def __init__(self, was: Bounded, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._was = was

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()  # of what is answered at once: pings

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def _leave(self, why: str) -> None:
        """The reason, behind what fills the buffer, for an end that takes that before `Bounded.look` ends all."""
        self.conn.fail(CloseCode.TRY_AGAIN_LATER, why)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated:  # the head, which is whole: for one that it cannot read it says nothing
            self._was._refuse(NO_HANDSHAKE)

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < FRAMES:
            super().handle_cont(event)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._room()
        self._was.connection_lost(exc)


class Bounded(_Taking, HttpToolsProtocol):
    """A connection."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.lost = asyncio.get_running_loop().create_future()
        self._head: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._closing = False
        self._upgrades = False
        self._early = bytearray()
        self._early_end = False
        self._answered: RequestResponseCycle | None = None
        self.switching = SWITCHING

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:  # uvicorn tells the last one alone
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._end_of_head()
        self._room()
        if not self.lost.done():
            self.lost.set_result(None)

    def look(self) -> None:
        """From time to time: one that was to be closed at the last look, and is not yet, is taken away."""
        if self._closing:
            self.transport.abort()
        self._closing = self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """It may be 256 KiB, which are looked at in pieces: no more, once it is refused."""
        for at in range(0, len(data), HEAD_BYTES):
            if self.transport.is_closing():
                return
            if self._upgrades:
                self._behind(data[at:])
                return
            piece = data[at : at + HEAD_BYTES]
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self.ws_protocol_class = partial(Socket, self)  # type: ignore[assignment]
                    self.handle_websocket_upgrade()
                    return
                self._upgrades = True
                self.cycle.keep_alive = False
                self._behind(data[at + upgrade.args[0] :])
                return
            except httptools.HttpParserError:
                self._refuse(NO_HTTP)  # where a callback has refused it, that was the answer
                return
            if self._head is not None:
                self._head_bytes += len(piece)
                if self._head_bytes > HEAD_BYTES:
                    self._refuse(TOO_LARGE)

    def _behind(self, data: bytes) -> None:
        """What comes behind a request that wants an upgrade is no HTTP."""
        self._early += data
        if len(self._early) > PART:
            self.transport.pause_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Who wants an upgrade may have said all; the answer is still wanted."""
        self._early_end = self._upgrades
        return self._upgrades and self.scheme != "https"  # TLS ends both ways at once

    def on_message_begin(self) -> None:
        if self.transport.is_closing():
            raise _OverError
        super().on_message_begin()
        if self._head is None:
            self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is None:  # behind a body in chunks (RFC 9112 7.1.2): nothing bounds them
            self._end(TOO_LARGE)
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_of_head()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES:
            self._end(TOO_LARGE)  # it came in one piece
        if len(self.pipeline) >= PIPELINED:
            self._end(TOO_MANY)
        connects = self.parser.get_method() == b"CONNECT"
        if self.parser.should_upgrade():
            if any(name in _BODY and value != b"0" for name, value in self.headers) or self._is_busy():
                self._end(NO_UPGRADE)
            if connects:
                self._ask_to_attach()
            if self._get_upgrade() == PROTOCOL:
                extensions = {EXTENSION: self}
                self.scope["extensions"] = extensions  # type: ignore[typeddict-item]
        super().on_headers_complete()
        if connects:
            self.scope["method"] = "POST"

    def _ask_to_attach(self) -> None:
        """A CONNECT (RFC 9110 9.3.6) asks for an attach, with the credentials that it has for a proxy."""
        try:
            target = parse_authority(self.url.decode())
        except ValueError as error:
            self._end(_refusal(HTTPStatus.BAD_REQUEST, str(error)))
        given = [(b"authorization", _token(value)) for name, value in self.headers if name == b"proxy-authorization"]
        if len(given) != 1:
            self._end(TOKEN_WANTED)
        self.url = ATTACH.format(name=quote(target_text(target), safe="")).encode()
        others = [field for field in self.headers if field[0] not in _OF_PROXIES]
        self.headers[:] = [*others, *given, (b"connection", b"upgrade"), (b"upgrade", PROTOCOL)]
        self.switching = CONNECTED

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @asynccontextmanager
    async def take_over(self) -> AsyncIterator[Ends]:
        """The connection, without HTTP from now on, within a `with`. Raises ConnectionError: it is lost."""
        if self.transport.is_closing():
            raise ConnectionAbortedError
        reader = asyncio.StreamReader(PART)
        protocol = asyncio.StreamReaderProtocol(reader)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self.transport.set_write_buffer_limits(PART)  # TLS's are 512 KiB
        if not self._early_end:
            self.transport.resume_reading()
        reader.feed_data(bytes(self._early))  # which may pause it
        if self._early_end:
            reader.feed_eof()
        writer = asyncio.StreamWriter(self.transport, protocol, reader, self.loop)
        try:
            yield reader, writer
            await flushed(writer)
        finally:
            self.transport.abort()
            self.connection_lost(None)

    def on_response_complete(self) -> None:
        """uvicorn's own timer ends with any byte, be it of a body that was not waited for, and begins no more."""
        super().on_response_complete()
        self._unset_keepalive_if_required()
        if self._head is None and not self._is_busy():
            self._expect_head()

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._head = self.loop.call_later(HEAD_S, self._too_slow)

    def _end_of_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _too_slow(self) -> None:
        self._refuse(TOO_SLOW if self._head_bytes else b"")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app if self.switching is SWITCHING else partial(_as_proxy, app))

    def _end(self, answer: bytes) -> NoReturn:
        """Refuse it, within a callback of the parser's."""
        self._refuse(answer)
        raise _OverError

    def _refuse(self, answer: bytes) -> None:
        self._end_of_head()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()


class Listener:
    """Takes connections. each: at once from one source, see bounds.source_of; rate: new ones a second from one. tls:
    None: none is spoken."""

    def __init__(self, server: uvicorn.Server, tls: ssl.SSLContext | None, most: int, each: int, rate: float) -> None:
        self._server = server
        self._tls = tls
        self._all = AtOnce(most)
        self._each = AtOnce(each)
        self._rates = Rates(rate, max(rate * BURST_S, 1.0))
        self._tasks = set[asyncio.Task[None]]()
        self._open = set[Bounded]()
        self._refused = _Seldom("refused")

    async def run(self, listener: socket.socket) -> None:
        """For ever."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            await asyncio.sleep(0)  # while some wait, nothing below lets others have their turn
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:  # no descriptor is left, or memory
                log.warning("no connection can be taken now: %s", error.strerror)
                await asyncio.sleep(1)
                continue
            source = source_of(address[0])
            if self._rates.wait_s(source):
                self._refuse(connection, source, "it connects more often than [api] connections_rate allows")
            elif not self._all.begin(""):
                self._refuse(connection, source, "there are as many connections as [api] connections allows")
            elif not self._each.begin(source):
                self._all.end("")
                self._refuse(connection, source, "it has as many connections as [api] connections_each allows")
            else:
                self._rates.take(source)
                task = loop.create_task(self._serve(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                task.add_done_callback(lambda _, source=source: self._ended(source))  # type: ignore[misc]

    def _ended(self, source: str) -> None:
        self._all.end("")
        self._each.end(source)

    def _refuse(self, connection: socket.socket, source: str, why: str) -> None:
        connection.close()
        self._refused.say(source, why)

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        limits = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": SHUTDOWN_S} if self._tls else {}
        try:
            _, protocol = await loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls, **limits)
        except OSError as error:  # ssl.SSLError and TimeoutError are, too
            log.debug("a handshake failed: %s", error)
            connection.close()
            return
        self._open.add(protocol)
        try:
            await protocol.lost
        finally:
            self._open.discard(protocol)

    async def look(self) -> None:
        """At those that are to be closed, for ever."""
        while True:
            await asyncio.sleep(CLOSE_S)
            for protocol in tuple(self._open):
                protocol.look()

    def _protocol(self) -> Bounded:
        return Bounded(config=self._server.config, server_state=self._server.server_state,
                       app_state=self._server.lifespan.state)  # fmt: skip


def bind(endpoints: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """Raises OSError with the address in its text."""
    found: list[socket.socket] = []
    for host, port in endpoints:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            found.append(socket.create_server((host, port), family=family, backlog=1024))
        except OSError as error:
            for one in found:
                one.close()
            raise OSError(error.errno, f"cannot listen at {host} port {port}: {error.strerror}") from None
    return found
