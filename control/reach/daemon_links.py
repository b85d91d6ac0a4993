# SPDX-License-Identifier: Apache-2.0
"""The daemon as a server: links of the engine to it, for services of the kinds `agents` and `held`.

The engine links such a client to one end of a socketpair and hands over the other, with the client's 4-tuple and number
(ROOST_EV_LINK). There is no address, so nothing else on this machine can pass for a link. Nothing here holds a client
awake: links come and go with activity.

A link is handed over to a server in this order, so that no byte of the client is lost or overtaken:

    1. the engine is told to end the link, and to link the server next (it waits for the link's end with that)
    2. what the engine had moved into the link already is read to its end
    3. the server gets the preamble, and those bytes; then the link is closed
    4. the engine links the server
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import queue
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Final

from appliance.wire import Command, Event, Key, Op
from control.core.logs import about
from control.core.ports import EnginePort
from control.core.states import Cause
from control.reach.arrivals import Arrivals

log = logging.getLogger("roost.daemon_links")

MAX_HELD: Final = 1024
MAX_STRANGERS: Final = 256
"""Clients of `held`, and of `agents` those that have not said who they are: the oldest goes when there are more, so
that those who only connect keep others out for a moment."""

MAX_UNKNOWN: Final = 4096
"""Clients of `agents` whose names are being looked up, which says whether they have said hello before: the oldest goes
when there are more. Agents that speak at once take no stranger's place meanwhile."""

MAX_INTRODUCED: Final = 1024
"""Agents that are served at a time; those beyond wait, with no more than a descriptor each."""

CHUNK: Final = 64 * 1024

MOST_REST: Final = 1 << 20
"""Bytes of a client that may be on their way through a link when it is handed over."""


NONCE_LENGTH: Final = 22
"""Characters of what a client that was told to connect says first, before a line feed: 128 bits in base64url."""


class Link:
    """One link. `waiting`: bytes of the client that were read, for the next owner of the link."""

    def __init__(self, sock: socket.socket, key: Key, number: int, service: int) -> None:
        self.sock = sock
        self.key = key
        self.packed = key.pack()
        self.number = number
        self.service = service
        self.waiting = b""
        self.taken = self.introduced = False

    async def read(self, most: int = CHUNK) -> bytes:
        """Some bytes, so many at most; none: the end. A link that breaks has ended. May be cancelled: bytes are taken
        when nothing can come in between, unlike with the loop's sock_recv."""
        with contextlib.suppress(OSError):
            if await self.readable():
                return self.sock.recv(most)
        return b""

    async def read_all(self) -> bytes:
        """The rest, when the engine is about to end the link. Raises OSError when that is more than MOST_REST."""
        found, self.waiting = bytearray(self.waiting), b""
        while data := await self.read():
            found += data
            if len(found) > MOST_REST:
                raise OSError(errno.EMSGSIZE, f"more than {MOST_REST} bytes are on their way")
        return bytes(found)

    async def ended(self) -> None:
        """What the client still says is read, and dropped, until the link ends."""
        self.waiting = b""
        while await self.read():
            pass

    async def write(self, data: bytes) -> None:
        """Raises OSError."""
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def readable(self) -> bool:
        """Wait until there is something to read or the end; True: bytes. Takes nothing; may be cancelled."""
        is_ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self.sock, is_ready.set)
        try:
            await is_ready.wait()
        finally:
            loop.remove_reader(self.sock)
        with contextlib.suppress(OSError):
            return bool(self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return False


class DaemonLinks:
    """All of it runs in one event loop, but for `linked`. kinds: of the services that are ours, by number.
    hold_s: how long a held client that has spoken waits for a server."""

    def __init__(
        self, engine: EnginePort, arrivals: Arrivals, kinds: Mapping[int, str], hold_s: Callable[[int], float]
    ) -> None:
        self._engine = engine
        self._arrivals = arrivals
        self.kinds = kinds
        self._hold_s = hold_s
        self._waiting: queue.SimpleQueue[Link] = queue.SimpleQueue()
        self._closed = False
        self._introduced = asyncio.Semaphore(MAX_INTRODUCED)
        self._held: dict[Link, asyncio.Task[None]] = {}
        self._unknown: dict[Link, asyncio.Task[None]] = {}
        self._strangers: dict[Link, asyncio.Task[None]] = {}
        self.crowded_out = 0
        """Held clients, unknown ones and strangers that went since others came."""
        self._links: dict[bytes, Link] = {}
        self._holds: dict[bytes, asyncio.Task[bool]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.serve_agent: Callable[[Link], Awaitable[None]] | None = None
        """Hears out what comes on a link of a service of agents."""

    def linked(self, event: Event) -> None:
        """An event of type LINK. From any thread, also before `serve`."""
        sock = socket.socket(fileno=event.count)
        sock.setblocking(False)
        self._waiting.put(Link(sock, event.record.key, event.id, event.service))
        self._arrivals.call(self._serve_waiting)

    def serve(self) -> None:
        """Begin, in the loop in which `Arrivals` has begun."""
        self._serve_waiting()

    def begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something of a link's until it ends, or until `close`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End everything."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not self._waiting.empty():
            self._waiting.get_nowait().sock.close()

    def kind(self, service: int) -> str:
        """The kind of a service by its number; "server" when it is not ours."""
        return self.kinds.get(service, "server")

    def at(self, key: bytes) -> Link | None:
        """The link that a connection has to the daemon now."""
        return self._links.get(key)

    async def wait_for(self, key: bytes) -> Link:
        """The link that a connection is about to have. Cancel it when that lasts too long."""
        while (link := self._links.get(key)) is None:
            with self._arrivals.expect(("link", key)) as linked:
                await linked
        return link

    def take(self, link: Link) -> None:
        """The link is the caller's from now on, to be read and closed."""
        link.taken = True
        self._leave_place(link)
        if (hold := self._holds.pop(link.packed, None)) is not None:
            hold.cancel()
        self._forget(link)

    async def introduce(self, link: Link) -> None:
        """It is known who this is: no stranger takes its place, once there is one."""
        if self._leave_place(link):
            await self._introduced.acquire()
            link.introduced = True

    def keep_stranger(self, link: Link) -> None:
        """Its agent is not known: it has a place until as many others come, or until it is introduced."""
        if (task := self._unknown.pop(link, None)) is not None:
            self._place(link, task, self._strangers, MAX_STRANGERS)

    def reject(self, link: Link) -> None:
        """Close the client's connection, whatever it wanted: it gets a reset, and no reason."""
        self._engine.submit([Command(op=Op.CLOSE, cause=Cause.COMMAND, id=link.number, key=link.key)])

    # -- one link -----------------------------------------------------------------------------------------------------

    def _serve_waiting(self) -> None:
        while not self._closed and not self._waiting.empty():
            link = self._waiting.get_nowait()
            held = self.kind(link.service) == "held"
            task = self.begin(self._serve(link))
            self._place(link, task, *((self._held, MAX_HELD) if held else (self._unknown, MAX_UNKNOWN)))
            task.add_done_callback(partial(self._ended, link))  # not in the task: it may be cancelled before it begins

    def _place(self, link: Link, task: asyncio.Task[None], places: dict[Link, asyncio.Task[None]], most: int) -> None:
        """Keep it among these; the oldest of them goes where there are as many."""
        if len(places) >= most:
            oldest = next(iter(places))
            self.crowded_out += 1
            log.warning("%s goes, the oldest of %d %s: more have come", oldest.key.client_text, most,
                        "held clients" if places is self._held else "that have not said which agent they are",
                        extra=about(connection=oldest.number, client=oldest.key))  # fmt: skip
            places.pop(oldest).cancel()
            self.reject(oldest)
        places[link] = task

    def _leave_place(self, link: Link) -> bool:
        """Whether it had one."""
        return any(places.pop(link, None) for places in (self._held, self._unknown, self._strangers))

    async def _serve(self, link: Link) -> None:
        try:
            self._links[link.packed] = link  # an earlier one has ended: the engine closes a link before the next begins
            self._arrivals.happened(("link", link.packed), link.packed)
            if self.kind(link.service) == "held":
                await self._hold(link)
            elif self.serve_agent is not None:
                await self.serve_agent(link)
        except Exception:
            log.exception("a link failed", extra=about(connection=link.number, client=link.key))

    def _ended(self, link: Link, _: asyncio.Task[None]) -> None:
        if not link.taken:
            self._forget(link)
            link.sock.close()
        self._leave_place(link)
        if link.introduced:
            self._introduced.release()

    def _forget(self, link: Link) -> None:
        if self._links.get(link.packed) is link:
            del self._links[link.packed]

    async def _hold(self, link: Link) -> None:
        """A client that says nothing may fall asleep; one that spoke is reset when no server comes for it in time."""
        hold = self._holds[link.packed] = asyncio.ensure_future(self._has_spoken(link))
        try:
            spoke = await hold
        except asyncio.CancelledError:
            if link.taken:
                return
            raise
        finally:
            if self._holds.get(link.packed) is hold:
                del self._holds[link.packed]
        if spoke:
            self.reject(link)

    async def _has_spoken(self, link: Link) -> bool:
        if not link.waiting and not await link.readable():
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._hold_s(link.service)):
                await self._hear_nonce(link)
                await asyncio.get_running_loop().create_future()
        return True

    async def _hear_nonce(self, link: Link) -> None:
        """Whether this is a client that was told to connect (Agents._told_to_connect): it says its nonce first, which
        is taken out of what it says. What another one says waits as it came."""
        size = NONCE_LENGTH + 1
        while len(link.waiting) < size and (data := await link.read(size - len(link.waiting))):
            link.waiting += data
        what = ("said", link.waiting[:size])
        if self._arrivals.waits(what):
            link.waiting = link.waiting[size:]
            self._arrivals.happened(what, link.packed)
