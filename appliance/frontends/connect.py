# SPDX-License-Identifier: Apache-2.0
"""Attach by HTTP CONNECT: a server asks for ``CONNECT client-address:client-port`` and gets the client's connection.

    server                               appliance                          client (asleep)
      | CONNECT 192.0.2.7:40123 HTTP/1.1 ->|                                   |
      |                                    | find the 4-tuple, wake it, link   |
      |<- HTTP/1.1 200 Connection established                                  |
      |<============================ bytes, both ways ========================>|

Two parts. `Handshake` is sans-I/O (RFC 9110 section 9.3.6; h11 does the parsing): bytes in, a target or a refusal out.
`ConnectFrontend` owns the sockets up to the moment of the attach; then the socket itself is handed to the engine, which
writes the 200 and moves the bytes. No byte may be lost on the way: so plain sockets are used, not streams with buffers
of their own, and what the server sent behind its request goes along as `early`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable
from dataclasses import dataclass
from errno import (
    EBUSY,
    ECONNABORTED,
    ECONNREFUSED,
    ECONNRESET,
    EHOSTUNREACH,
    EIO,
    EMFILE,
    ENFILE,
    ENOENT,
    ENOMEM,
    ENOSPC,
    EPIPE,
    ESHUTDOWN,
    ETIMEDOUT,
)
from typing import Final, Generic, Protocol, TypeVar

import h11

log = logging.getLogger("roost.attach")

HEADER_LIMIT: Final = 16 * 1024
"""Bytes of request line and header fields; more is answered with 431."""

HEADER_TIMEOUT_S: Final = 10.0
MAX_HANDSHAKES: Final = 1024
"""Requests being read or waiting for their client; more are answered with 503 at once."""

PREAMBLE: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"

STATUS: Final[dict[int, tuple[int, str]]] = {
    ENOENT: (404, "no such client connection"),
    EBUSY: (409, "the client is linked to another server"),
    ETIMEDOUT: (504, "the client could not be woken in time"),
    ECONNRESET: (502, "the client's connection ended while it was being woken"),
    ECONNABORTED: (502, "the client's connection ended while it was being woken"),
    ECONNREFUSED: (502, "the client's connection ended while it was being woken"),
    EPIPE: (502, "the client's connection ended while it was being woken"),
    EHOSTUNREACH: (502, "the client's network is unreachable"),
    EIO: (503, "the client's record could not be read"),
    ENOMEM: (503, "the appliance is out of memory"),
    ENOSPC: (503, "a table of the appliance is full"),
    EMFILE: (503, "the appliance is out of descriptors"),
    ENFILE: (503, "the appliance is out of descriptors"),
    ESHUTDOWN: (503, "the appliance is shutting down"),
}
"""errno of a refused attach -> what the server is told. Any other: 502 with the system's word for it."""


@dataclass(frozen=True, slots=True)
class Target:
    """The request is complete: the client's address and port, and the bytes that came behind the request."""

    address: str
    port: int
    early: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request cannot be served."""

    status: int
    reason: str


def parse_target(text: str) -> tuple[str, int]:
    """(address, port) out of the authority form; raises ValueError with a sentence."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError("the target is not client-address:client-port")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        raise ValueError("the target is not client-address:client-port") from None
    if bracketed != (address.version == 6):
        raise ValueError("the target is not client-address:client-port (IPv6 goes in brackets)")
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        raise ValueError("the target is not client-address:client-port (no zone here)")
    return str(address), int(port)


class Handshake:
    """The server's request, from its first byte to its last. Feed it bytes until it returns something."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_LIMIT)
        self._target: tuple[str, int] | None = None

    def receive(self, data: bytes) -> Target | Refusal | None:
        """None: more is needed. Empty data: the server closed its side."""
        try:
            self._http.receive_data(data)
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    return None
                if isinstance(event, h11.Request):
                    if (refusal := self._judge(event)) is not None:
                        return refusal
                elif isinstance(event, h11.ConnectionClosed):
                    return Refusal(400, "the connection ended before the request")
                elif event is h11.PAUSED or isinstance(event, h11.EndOfMessage):
                    break
                else:
                    return Refusal(400, "CONNECT takes no content")
        except h11.RemoteProtocolError as error:
            return Refusal(error.error_status_hint, str(error))
        if self._target is None:
            return Refusal(400, "no request")
        return Target(*self._target, early=bytes(self._http.trailing_data[0]))

    def _judge(self, request: h11.Request) -> Refusal | None:
        if request.method != b"CONNECT":
            return Refusal(405, "only CONNECT client-address:client-port is served here")
        for name, value in request.headers:
            # RFC 9110 9.3.6: content of a CONNECT has no meaning. Read as a body, it would not reach the client.
            if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
                return Refusal(400, "CONNECT takes no content")
        try:
            self._target = parse_target(request.target.decode("ascii"))
        except ValueError as error:
            return Refusal(400, str(error))
        return None


def error_response(status: int, reason: str) -> bytes:
    """A whole response that ends the connection."""
    phrase = {400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 409: "Conflict"}
    phrase |= {
        500: "Internal Server Error",
        431: "Request Header Fields Too Large",
        502: "Bad Gateway",
        503: "Service Unavailable",
    }
    phrase |= {504: "Gateway Timeout"}
    body = f"{reason}\n".encode()
    allow = "Allow: CONNECT\r\n" if status == 405 else ""
    head = (
        f"HTTP/1.1 {status} {phrase.get(status, 'Error')}\r\n{allow}Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def refusal_for(error: int) -> Refusal:
    """What an errno from the engine means to the server."""
    status, reason = STATUS.get(error, (502, os.strerror(error)))
    return Refusal(status, reason)


def bind(address: str, port: int) -> socket.socket:
    """A listening socket for `ConnectFrontend.serve`. Raises OSError with a sentence."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {address} port {port} for attach: {error.strerror}") from None
    return listener


K = TypeVar("K")


class Attacher(Protocol[K]):
    """What the frontend needs of the control plane. K names a client connection (a 4-tuple)."""

    def find(self, address: str, port: int) -> K | None:
        """The connection of the client with this address and port."""

    def attach(self, key: K, fd: int, preamble: bytes, early: bytes, timeout_s: float) -> Awaitable[int]:
        """Link the server's socket to the client, waking it; 0 or an errno. The callee owns fd from the call on."""


class ConnectFrontend(Generic[K]):
    """Listens on the attach addresses. All of it runs in one event loop."""

    def __init__(self, attacher: Attacher[K], timeout_s: float, header_timeout_s: float = HEADER_TIMEOUT_S) -> None:
        self._attacher = attacher
        self._timeout_s = timeout_s
        self._header_timeout_s = header_timeout_s
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.attached = 0
        self.refused = 0

    def serve(self, listener: socket.socket) -> tuple[str, int]:
        """Begin to accept on a socket of `bind`, which is this object's from now on; returns its address and port."""
        self._listeners.append(listener)
        self._keep(asyncio.get_running_loop().create_task(self._accept(listener)))
        bound = listener.getsockname()
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        """Stop accepting and drop the requests that are not handed over yet."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                server, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Out of descriptors, or the peer is gone already; either way the listener lives.
                log.warning("attach: accept: %s", error.strerror)
                await asyncio.sleep(0.1)
                continue
            server.setblocking(False)
            if len(self._tasks) > MAX_HANDSHAKES:
                self._keep(loop.create_task(self._answer(server, Refusal(503, "too many requests at once"))))
            else:
                self._keep(loop.create_task(self._serve(server)))

    async def _serve(self, server: socket.socket) -> None:
        try:
            try:
                async with asyncio.timeout(self._header_timeout_s):
                    outcome = await self._read_request(server)
            except TimeoutError:
                outcome = Refusal(408, "the request did not come in time")
            if isinstance(outcome, Target):
                refusal = await self._attach(server, outcome)
                if refusal is None:
                    self.attached += 1
                    server.close()
                    return
                outcome = refusal
            await self._answer(server, outcome)
        except OSError as error:
            log.info("attach: the server went away: %s", error.strerror)
            server.close()
        except asyncio.CancelledError:
            server.close()
            raise
        except Exception:
            log.exception("attach failed")
            await self._answer(server, Refusal(500, "the appliance failed; its log says how"))

    async def _read_request(self, server: socket.socket) -> Target | Refusal:
        loop = asyncio.get_running_loop()
        handshake = Handshake()
        while True:
            outcome = handshake.receive(await loop.sock_recv(server, 4096))
            if outcome is not None:
                return outcome

    async def _attach(self, server: socket.socket, target: Target) -> Refusal | None:
        key = self._attacher.find(target.address, target.port)
        if key is None:
            return refusal_for(ENOENT)
        # The engine owns the descriptor it is given, and closes it when it refuses. `server` is ours to answer on; on
        # success it is closed without a shutdown, which the engine's connection does not notice.
        fd = os.dup(server.fileno())
        error = await self._attacher.attach(key, fd, PREAMBLE, target.early, self._timeout_s)
        return refusal_for(error) if error else None

    async def _answer(self, server: socket.socket, refusal: Refusal) -> None:
        self.refused += 1
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(5):
                await loop.sock_sendall(server, error_response(refusal.status, refusal.reason))
                # Unread bytes would make close() send an RST, which may overtake the answer.
                server.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(server, 4096):
                    pass
        except (OSError, TimeoutError):
            pass  # it is gone, or does not listen: there is nobody to tell
        finally:
            server.close()
