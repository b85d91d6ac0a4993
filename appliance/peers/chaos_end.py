# SPDX-License-Identifier: Apache-2.0
"""What both ends of chaos have in common: sessions, the links that carry them, what is sent when, and what is checked.

A session is one client's two streams. A link is one TCP connection; the client has one for all of its session, the
server may have many, one after the other. The session's first link speaks; one that is behind it waits its turn, so
that the order of the bytes is the order of the links.
"""

from __future__ import annotations

import heapq
import os
import random
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any, Final

from appliance.peers.lines import Command, Loop, errno_name
from appliance.peers.stream import MAX_CHUNK, Receiver, start_of, window

HELLO: Final = struct.Struct("!4sI")  # magic, session's number: the first bytes from the client
MAGIC: Final = b"RCH1"
EDGES: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET


@dataclass(slots=True, eq=False)
class Link:
    """One connection. `preface` reads what comes before the stream, and says what of `head` is behind it (None: it is
    not whole); it is None where all is stream."""

    fd: int
    session: Session | None = None
    preface: Callable[[Link], bytes | None] | None = None
    head: bytes = b""
    blocked: bool = False  # the kernel takes no more for now
    napping: bool = False  # a slow reader reads on later
    heard: bool = False  # the other end is known to be at this link
    over: bool = False  # the other end has sent its last byte
    visit: bool = False  # the server came by itself
    connecting: bool = False


@dataclass(slots=True, eq=False)
class Session:
    """One client's two streams, as one end sees them."""

    target: tuple[str, int] = ("", 0)  # the client's address and port
    receiver: Receiver | None = None  # there is none before the number is known
    out_start: int = 0
    links: list[Link] = field(default_factory=list)
    sent: int = 0  # bytes of the stream; what comes before it does not count
    chunk: int = 0  # bytes of the present chunk still to be sent
    planned: bool = False  # a time is set at which the next chunk begins
    owes: bool = False  # it was time for one, and there was no link
    visit: Link | None = None
    lazy: bool = False
    shut: bool = False

    def name(self, number: int, is_client: bool) -> None:
        self.out_start = start_of(number, to_server=is_client)
        self.receiver = Receiver(start_of(number, to_server=not is_client))


@dataclass(slots=True, eq=False)
class Waiting:
    """A command that is answered later; times in seconds."""

    command: Command
    done: Callable[[], bool]
    answer: Callable[[], dict[str, Any]]
    time_s: float
    until: float
    latest: float
    moved: tuple[int, int, int]


class End:
    """One of the two programs; a session has one link unless a subclass says otherwise."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.links: dict[int, Link] = {}  # by descriptor; ended ones leave
        self.sessions: dict[int, Session] = {}  # by number; all there ever were
        self.faults = Counter[str]()  # links that ended by anything but a FIN that was due
        self.due: list[tuple[float, int, Session | Link]] = []  # when, tie-break, which link speaks or reads then
        self.ticks = 0
        self.sending = self.stopping = False
        self.waiting: Waiting | None = None
        self.pause_s = 0.1
        self.lazy_share = 0.0
        self.received = 0
        for name in ("start", "stop", "settle"):
            self.loop.command(name, getattr(self, "do_" + name))

    # Commands

    def do_start(self, command: Command) -> None:
        self.pause_s = float(command.get("pause_ms", 100)) / 1000
        self.lazy_share = float(command.get("lazy", 0.05))
        self.sending = True
        for session in self.sessions.values():
            self.begin(session)
        self.loop.reply(command, connections=len(self.sessions))

    def do_stop(self, command: Command) -> None:
        self.sending, self.stopping = False, True
        self.wait(command, self.silent, lambda: {"sent": {n: s.sent for n, s in self.sessions.items()}})
        for session in list(self.sessions.values()):
            self.hush(session)

    def do_settle(self, command: Command) -> None:
        self.wait(command, lambda: not self.links, lambda: self.totals(command["sent"]))

    def totals(self, sent: dict[str, int]) -> dict[str, Any]:
        """What became of the bytes that the other end sent, by the session's number."""
        totals = Counter[str]()
        for number, count in sent.items():
            session = self.sessions.get(int(number))
            if session is None or session.receiver is None:
                totals["lost_bytes"] += count  # the session never got through to us
                continue
            receiver = session.receiver
            receiver.finish(count)
            totals["lost_bytes"] += receiver.lost
            totals["duplicated_bytes"] += receiver.duplicated
            totals["reordered"] += receiver.reordered
            totals["corrupted_bytes"] += receiver.corrupted
        keys = ("lost_bytes", "duplicated_bytes", "reordered", "corrupted_bytes")
        return {**{key: totals[key] for key in keys}, "received_bytes": self.received, "faults": dict(self.faults)}

    def wait(self, command: Command, done: Callable[[], bool], answer: Callable[[], dict[str, Any]]) -> None:
        """Answer once it is done, or when nothing has moved for timeout_s, at the latest after most_s. A client whose
        window is smaller than a segment may get no more than half a kilobyte each 200 ms of the sender's kernel."""
        if self.waiting is not None:
            raise ValueError("another command is waited for")
        time_s, now = float(command.get("timeout_s", 30)), time.monotonic()
        latest = now + float(command.get("most_s", time_s))
        self.waiting = Waiting(command, done, answer, time_s, now + time_s, latest, self.moved())

    def check_waiting(self) -> None:
        waiting, now = self.waiting, time.monotonic()
        if waiting is None:
            return
        if not waiting.done():
            if now < waiting.until:
                return
            moved = self.moved()
            if moved != waiting.moved and now < waiting.latest:
                waiting.moved, waiting.until = moved, now + waiting.time_s
                return
            for link in list(self.links.values()):
                self.end(link, "open")
        self.waiting = None
        self.loop.reply(waiting.command, **waiting.answer())

    def moved(self) -> tuple[int, int, int]:
        """What changes as long as bytes get through: those read, written, and written but not acknowledged."""
        unacknowledged = (ioctl(fd, TIOCOUTQ, bytes(4)) for fd in self.links)
        written = sum(session.sent for session in self.sessions.values())
        return self.received, written, sum(int.from_bytes(one, sys.byteorder) for one in unacknowledged)

    def hush(self, session: Session) -> None:
        """Nothing is said any more but what has been begun."""
        if not session.chunk:
            self.shut(session)

    def silent(self) -> bool:
        """Whether all is said, now that `stop` was told."""
        return not self.links

    # Sessions and links

    def later(self, delay_s: float, what: Session | Link) -> None:
        """A session speaks then, a link is read."""
        self.ticks += 1
        heapq.heappush(self.due, (time.monotonic() + delay_s, self.ticks, what))

    def begin(self, session: Session) -> None:
        if session.receiver is not None and self.sending:
            session.lazy = random.random() < self.lazy_share
            self.plan(session)

    def plan(self, session: Session) -> None:
        if self.sending and not session.planned:
            session.planned = True
            self.later(random.random() * self.pause_s, session)

    def speak(self, session: Session) -> None:
        """Begin a chunk, if there is a link for it."""
        if not self.sending or session.chunk:
            return
        if not session.links:
            self.without_link(session)
            return
        session.owes = False
        session.chunk = chunk_size()
        self.send(session)

    def without_link(self, session: Session) -> None:
        """It is time for a chunk, and there is no link."""

    def send(self, session: Session) -> None:
        """Go on with the present chunk; when it is out, plan the next one."""
        link = session.links[0]
        try:
            while session.chunk:
                count = os.write(link.fd, window(session.out_start, session.sent, min(session.chunk, MAX_CHUNK)))
                session.sent += count
                session.chunk -= count
        except BlockingIOError:
            link.blocked = True  # the edge-triggered EPOLLOUT goes on from here
            return
        except OSError as problem:
            self.end(link, errno_name(problem.errno or 0))
            return
        self.plan(session)
        self.said(link)

    def said(self, link: Link) -> None:
        """A chunk is out."""
        assert link.session is not None
        if self.stopping:
            self.shut(link.session)

    def shut(self, session: Session) -> None:
        """Our direction of a session that has one link ends here."""
        if session.shut or session.receiver is None or not session.links:
            return
        session.shut = True
        link = session.links[0]
        sock = socket.socket(fileno=link.fd)
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError as problem:
            sock.detach()
            self.end(link, errno_name(problem.errno or 0))
        else:
            sock.detach()

    def read(self, link: Link) -> None:
        while not link.napping and self.links.get(link.fd) is link:
            try:
                data = os.read(link.fd, MAX_CHUNK)
            except BlockingIOError:
                return
            except OSError as problem:
                self.end(link, errno_name(problem.errno or 0))
                return
            if not data:
                self.finished(link)
                return
            if link.preface is not None:
                data = self.behind_preface(link, data)
            if not data:
                continue
            session = link.session
            assert session is not None
            assert session.receiver is not None
            link.heard = True
            self.received += len(data)
            session.receiver.receive(data)
            if session.lazy and not self.stopping and random.random() < 0.2:
                link.napping = True
                self.later(random.random() * 0.05, link)

    def behind_preface(self, link: Link, data: bytes) -> bytes:
        """What of the bytes belongs to the stream."""
        link.head += data
        while link.preface is not None and self.links.get(link.fd) is link:
            rest = link.preface(link)
            if rest is None:
                return b""
            link.head = rest
        rest, link.head = link.head, b""
        return rest

    def finished(self, link: Link) -> None:
        """The other end has sent its last byte. That is expected once it was told to stop, and never before."""
        session = link.session
        if link.preface is not None or session is None:
            self.end(link, "no number")
        elif not self.stopping:
            # Both ends are told to stop a moment apart: look again when we have been told, too.
            link.napping = True
            self.later(0.05, link)
        elif session.chunk:
            session.lazy = False  # our own direction goes on; the end of theirs is remembered by the kernel
            self.later(0.01, link)
        else:
            self.shut(session)
            if self.links.get(link.fd) is link:
                self.end(link, "EOF")

    def end(self, link: Link, reason: str) -> None:
        """The link is closed; any reason but "EOF" is a fault."""
        if reason != "EOF":
            self.faults[reason] += 1
        del self.links[link.fd]
        os.close(link.fd)
        session = link.session
        if session is not None and link in session.links:
            if session.links[0] is link:
                session.chunk = 0
            session.links.remove(link)

    def ready(self, link: Link, events: int) -> None:
        if link.blocked and events & select.EPOLLOUT:
            link.blocked = False
            assert link.session is not None
            self.send(link.session)
        if events & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP):
            self.read(link)

    def other(self, fd: int) -> None:
        """An event on a descriptor that is no link: nothing, or the server's listener."""

    def run(self) -> None:
        epoll, loop = self.loop.epoll, self.loop
        while loop.running:
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                _, _, what = heapq.heappop(self.due)
                if isinstance(what, Session):
                    what.planned = False
                    self.speak(what)
                elif self.links.get(what.fd) is what:  # else it has ended since
                    what.napping = False
                    self.read(what)
            self.check_waiting()
            wait = min(0.01 if self.waiting else 1.0, max(0.0, self.due[0][0] - now) if self.due else 1.0)
            # epoll_wait counts in ms: waiting for a fraction of one would spin
            for fd, events in epoll.poll(wait and max(wait, 0.001), 1024):
                if fd == 0:
                    loop.read_commands()
                elif fd in self.links:
                    self.ready(self.links[fd], events)
                else:
                    self.other(fd)


def chunk_size() -> int:
    """1 byte to 64 KiB, mostly small: mean some 1.3 KB."""
    kind = random.random()
    if kind < 0.85:
        return random.randint(1, 200)
    if kind < 0.98:
        return random.randint(200, 4000)
    return random.randint(4000, MAX_CHUNK)
