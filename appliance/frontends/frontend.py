# SPDX-License-Identifier: Apache-2.0
"""The attach addresses: sockets of servers, from accept to the attach.

The first byte tells the protocol: 05 is SOCKS5, all else is read as HTTP. What the bytes mean is decided sans-I/O (see
handshake.py); here they are moved, under bounds of time and number. At the attach the socket itself is handed to the
engine, which writes the preamble and moves the bytes. No byte may be lost on the way: so plain sockets are used, not
streams with buffers of their own, and what the server sent behind its request goes along as `early`.

Nothing that a server does or leaves undone holds anything of ours for longer than

    HANDSHAKE_S    for the whole handshake, however it is dripped, the checking of a password in it
    timeout_s      more, for the client to wake, and second_server_wait if it is linked to another server
    what [absent] says, more, when the client is not connected
    LINGER_S       more, for a refusal to be read
    released_s     for a server that has released its client, until it asks for another one
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from appliance.bounds import AtOnce, CrowdedError, source_of
from appliance.frontends.connect import ConnectHandshake
from appliance.frontends.handshake import (
    BEYOND,
    BY_SOURCE,
    CROWDED,
    ENDED,
    FAILED,
    LATE,
    MANY,
    MANY_WAIT,
    OVERLOADED,
    UNLISTED,
    Answer,
    Handshake,
    Refusal,
    Reply,
    Request,
    refusal_for,
)
from appliance.frontends.passwords import Users
from appliance.frontends.socks5 import VERSION, Socks5Handshake
from appliance.frontends.target import Target

log = logging.getLogger("roost.attach")

HANDSHAKE_S: Final = 10.0
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 64 * 1024

MAX_HANDSHAKES: Final = 1024
"""Servers whose request is being read or whose client is being woken."""

MAX_OF_SOURCE: Final = 128
"""Of those, of one IPv4 address or /64 of IPv6, whose request is being read."""

MAX_PLACES_OF_SOURCE: Final = MAX_HANDSHAKES // 4
"""The same of all of them, until they are answered."""

MAX_TURNED_AWAY: Final = 256
"""Servers beyond them that are heard out, to be refused in the protocol they speak; what comes then is closed."""

MAX_RELEASED: Final = 1024
"""Servers that have released their clients, and ask for none at present; what comes then is closed."""

TURN_AWAY_S: Final = 2.0
CHUNK: Final = 4096


class Attacher(Protocol):
    """What the front end needs of the control plane."""

    async def attach(self, target: Target, sock: socket.socket, preamble: bytes, early: bytes, timeout_s: float,
                     protocol: str) -> int:  # fmt: skip
        """Link the server's socket to the client, waking it; 0 or an errno of handshake.ANSWERS: ENOENT no client has
        this address or name, ENOTCONN the client of the name is away, ELOOP the target is the appliance itself. The
        socket stays the caller's, who closes it afterwards: what is to last needs a descriptor of its own."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How attach is served; users None: without credentials. Times in seconds."""

    timeout_s: float
    protocols: Collection[str] = ("connect", "socks5")
    users: Users | None = None
    handshake_s: float = HANDSHAKE_S
    max_handshakes: int = MAX_HANDSHAKES
    max_turned_away: int = MAX_TURNED_AWAY
    released_s: float = 300.0
    max_released: int = MAX_RELEASED
    max_of_source: int = MAX_OF_SOURCE
    max_places_of_source: int = MAX_PLACES_OF_SOURCE
    may_attach: Callable[[str], bool] = lambda address: True
    """Whether one more connection from this address is within the limits."""
    networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = ()
    """Servers come from these alone; none: from anywhere."""
    makes_room: bool = False
    """When all places are taken, the oldest server that waits for no client goes, and not the one that comes."""


def bind(address: str, port: int) -> socket.socket:
    """A listening socket for `Frontend.serve`. Raises OSError with a sentence."""
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


class _Call:
    """One server's connection during its handshake."""

    def __init__(self, server: socket.socket, source: str, turned_away: Refusal | None) -> None:
        self.server = server
        self.source = source
        self.turned_away = turned_away
        self.asks = turned_away is None
        """It counts as one of its source that may ask for something."""
        self.handshake: Handshake | None = None
        self.protocol = ""
        """One of Settings.protocols."""
        self.waits = False
        """For a client."""

    async def negotiate(self, settings: Settings) -> Request | Refusal:
        """What the server wants, or why it cannot be had. Raises OSError when it went away."""
        loop = asyncio.get_running_loop()
        data = await loop.sock_recv(self.server, CHUNK)
        if not data:
            return ENDED
        protocol = self.protocol = "socks5" if data[0] == VERSION else "connect"
        password = settings.users is not None
        handshake: Handshake = Socks5Handshake(password) if protocol == "socks5" else ConnectHandshake(password)
        self.handshake = handshake
        if protocol not in settings.protocols:
            return Refusal(501, Reply.GENERAL_FAILURE, f"only {' and '.join(settings.protocols)} is served here")
        handshake.receive(data)
        while True:
            event = handshake.next_event()
            if event is None:
                handshake.receive(await loop.sock_recv(self.server, CHUNK))
            elif isinstance(event, Answer):
                await loop.sock_sendall(self.server, event.data)
            elif isinstance(event, Refusal):
                return event
            elif self.turned_away:
                return self.turned_away
            elif isinstance(event, Request):
                return event
            else:
                assert settings.users is not None, "no credentials are asked for"
                try:
                    handshake.authenticated(await settings.users.check(event, self.source))
                except CrowdedError:
                    return CROWDED

    async def refuse(self, refusal: Refusal) -> None:
        """Say it, if there is a way to; the connection is at its end."""
        answer = self.handshake.refusal(refusal) if self.handshake else b""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LINGER_S):
                await loop.sock_sendall(self.server, answer)
                # Unread bytes would make close() send an RST, which may overtake the answer. But one that was too slow
                # already has no more time.
                self.server.shutdown(socket.SHUT_WR)
                left = 0 if refusal is LATE else LINGER_BYTES
                while left > 0 and (data := await loop.sock_recv(self.server, CHUNK)):
                    left -= len(data)
        except (OSError, TimeoutError):
            pass  # it is gone, or does not listen


class Frontend:
    """Listens on the attach addresses. All of it runs in one event loop."""

    def __init__(self, attacher: Attacher, settings: Settings) -> None:
        self._attacher = attacher
        self._settings = settings
        self._listeners: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._calls: dict[_Call, asyncio.Task[None]] = {}
        self._turned_away: set[asyncio.Task[None]] = set()
        self._released: set[asyncio.Task[None]] = set()
        self._asking = AtOnce(settings.max_of_source)
        self._places = AtOnce(settings.max_places_of_source)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.counts = {"attached": 0, "refused": 0, "dropped": 0, "released": 0}
        """Servers since the start; dropped: those that were too many even to be told so, or made room; released: those
        that have released a client."""

    def serve(self, listener: socket.socket) -> tuple[str, int]:
        """Begin to accept on a socket of `bind`, which is this object's from now on; returns its address and port."""
        self._loop = asyncio.get_running_loop()
        self._listeners.append(listener)
        self._begin(self._accept(listener), self._accepting)
        bound = listener.getsockname()
        return str(bound[0]), int(bound[1])

    def take_back(self, fd: int) -> None:
        """The socket of a server that has released its client, and may ask for another one. From any thread."""
        server = socket.socket(fileno=fd)
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._take_back, server)
                return
        except RuntimeError:
            pass  # the loop has ended
        server.close()

    def _take_back(self, server: socket.socket) -> None:
        self.counts["released"] += 1
        server.setblocking(False)
        if len(self._released) < self._settings.max_released:
            self._begin(self._expect(server), self._released)
        else:
            self.counts["dropped"] += 1
            server.close()

    async def _expect(self, server: socket.socket) -> None:
        """Its next request is served like that of one that has just connected."""
        loop, readable, asks = asyncio.get_running_loop(), asyncio.Event(), False
        loop.add_reader(server, readable.set)
        try:
            async with asyncio.timeout(self._settings.released_s):
                await readable.wait()
            asks = bool(server.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            log.info("attach: a server that released its client asked for none in %g s", self._settings.released_s)
        except OSError:
            pass  # it has gone, as one that has ended
        finally:
            loop.remove_reader(server)
            if not asks:
                server.close()
        if asks:
            self._begin_serving(server)

    async def close(self) -> None:
        """Stop accepting and drop the requests that are not handed over yet."""
        tasks = [*self._accepting, *self._handshakes, *self._turned_away, *self._released]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._settings.users is not None:
            self._settings.users.close()

    def _begin(self, work: Coroutine[None, None, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)
        return task

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
            self._begin_serving(server)

    def _begin_serving(self, server: socket.socket) -> None:
        try:
            address = server.getpeername()[0]
        except OSError:  # it has gone
            server.close()
            return
        source, refusal = source_of(address), None
        full = len(self._calls) >= self._settings.max_handshakes
        if not self._is_of_its_networks(address):
            refusal = UNLISTED
        elif not self._settings.may_attach(address):
            refusal = BEYOND
        elif full and not (self._settings.makes_room and self._make_room()):
            refusal = OVERLOADED
        elif not self._asking.begin(source):
            refusal = MANY
        elif not self._places.begin(source):
            self._asking.end(source)
            refusal = MANY_WAIT
        call = _Call(server, source, refusal)
        if refusal is None:
            task = self._calls[call] = self._begin(self._serve(call), self._handshakes)
            task.add_done_callback(lambda _: self._ended(call))  # it may be cancelled before it begins
        elif len(self._turned_away) < self._settings.max_turned_away:
            self._begin(self._serve(call), self._turned_away)
        else:
            self.counts["dropped"] += 1
            server.close()

    def _is_of_its_networks(self, address: str) -> bool:
        networks = self._settings.networks
        return not networks or any(ipaddress.ip_address(address) in network for network in networks)

    def _has_asked(self, call: _Call) -> None:
        """It is none of those any more that its source may have without a request."""
        if call.asks:
            call.asks = False
            self._asking.end(call.source)

    def _ended(self, call: _Call) -> None:
        self._calls.pop(call, None)
        self._has_asked(call)
        self._places.end(call.source)

    def _make_room(self) -> bool:
        """Whether there was one to go."""
        oldest = next((call for call in self._calls if not call.waits), None)
        if oldest is not None:
            log.info("attach: the oldest of %d servers that had not asked for a client goes", len(self._calls))
            self.counts["dropped"] += 1
            self._calls.pop(oldest).cancel()
        return oldest is not None

    async def _serve(self, call: _Call) -> None:
        try:
            refusal = await self._outcome(call)
            if refusal is None:
                self.counts["attached"] += 1
                return
            self.counts["refused"] += 1
            level = logging.WARNING if refusal in BY_SOURCE else logging.DEBUG
            log.log(level, "attach: %s is refused: %s", call.source, refusal.reason)
            await call.refuse(refusal)
        except OSError as error:
            log.info("attach: the server went away: %s", error.strerror)
        except Exception:
            log.exception("attach failed")
            await call.refuse(FAILED)
        finally:
            call.server.close()

    async def _outcome(self, call: _Call) -> Refusal | None:
        try:
            async with asyncio.timeout(TURN_AWAY_S if call.turned_away else self._settings.handshake_s):
                asked = await call.negotiate(self._settings)
        except TimeoutError:
            return LATE
        finally:
            self._has_asked(call)
        if isinstance(asked, Refusal):
            return asked
        assert call.handshake is not None, "it has asked for something"
        call.waits = True
        # On success it is closed without a shutdown, which the engine, with its own descriptor, does not notice.
        error = await self._attacher.attach(
            asked.target, call.server, call.handshake.preamble, asked.early, self._settings.timeout_s, call.protocol
        )
        call.waits = False
        return refusal_for(error) if error else None
