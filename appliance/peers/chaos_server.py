# SPDX-License-Identifier: Apache-2.0
"""The server's end of chaos: it knows which client a link belongs to, and goes on where that client's streams stood.

By "stream", each link is a session of its own. By "header" (a PROXY header, version 1 or 2) and by "address" (that of
the link's other end: each client has one of its own, and its port may differ from link to link) a session goes on over
one link after the other. There

- the first bytes of a session are its number, the first bytes of every later link the stream where it stood;
- when the other end of a link has said its last, the chunk that is begun is finished, every fourth time one more
  follows, and the link is closed;
- a chunk that is due while there is no link is the first thing said on the next one; or, once `visit` was told, the
  server comes for the client itself;
- two links of a client at a time are a fault, unless one is a visit that has not been heard yet: it waits in the
  appliance until the other link has ended.
"""

from __future__ import annotations

import ipaddress
import os
import random
import select
import socket
from typing import Any, Final

from appliance.peers.chaos_end import EDGES, HELLO, MAGIC, End, Link, Session
from appliance.peers.lines import Command, begin_connect, errno_name, error_of, listen

BY: Final = ("stream", "header", "address")
MOST_VISITS: Final = 32  # at a time
LAST_WORDS: Final = 0.25
_NODELAY: Final = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"  # of the PROXY protocol's version 2


class ServerEnd(End):
    def __init__(self, listens: list[tuple[str, int]], by: str) -> None:
        super().__init__()
        self.by = by
        self.listeners = {sock.fileno(): sock for sock in (listen(address, port) for address, port in listens)}
        for fd in self.listeners:
            self.loop.epoll.register(fd, select.EPOLLIN)
        self.clients: dict[object, Session] = {}  # by what says whose a link is
        self.proxy: tuple[str, int] | None = None
        self.visiting = False
        self.visits = self.made = self.came = 0  # open visits; links that were made to us, and by us
        self.loop.command("visit", self.do_visit)

    def do_visit(self, command: Command) -> None:
        self.visiting = True
        if command["proxy"]:
            self.proxy = str(command["proxy"][0]), int(command["proxy"][1])
        self.loop.reply(command)

    # Links that are made to us

    def other(self, fd: int) -> None:
        listener = self.listeners.get(fd)
        while listener is not None:
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(*_NODELAY[0])
            link = Link(sock.detach())
            self.made += 1
            self.watch(link)
            if self.by == "header":
                link.preface = self.header
            elif self.by == "address":
                self.join(link, (str(address[0]), int(address[1])), address[0])
            else:
                link.preface = self.hello
                self.enter(link, Session())

    def watch(self, link: Link) -> None:
        self.links[link.fd] = link
        self.loop.epoll.register(link.fd, EDGES)

    def header(self, link: Link) -> bytes | None:
        """The PROXY header."""
        try:
            read = read_header(link.head)
        except ValueError:
            self.end(link, "bad header")
            return None
        if read is None:
            return None
        target, length = read
        rest = link.head[length:]
        self.join(link, target, target)
        return rest

    def join(self, link: Link, target: tuple[str, int], name: object) -> None:
        """A link of the client with this address and port, known by this name."""
        session = self.clients.get(name)
        if session is None:
            session = self.clients[name] = Session(target)
        link.preface = self.hello if session.receiver is None else None
        self.enter(link, session)

    def hello(self, link: Link) -> bytes | None:
        """A session's number."""
        if len(link.head) < HELLO.size:
            return None
        magic, number = HELLO.unpack_from(link.head)
        session = link.session
        assert session is not None
        if magic != MAGIC or number in self.sessions:
            self.end(link, "bad number")  # the very first bytes are wrong: no stream can be compared
            return None
        link.preface = None
        session.name(number, is_client=False)
        self.sessions[number] = session
        self.begin(session)
        return link.head[HELLO.size :]

    def enter(self, link: Link, session: Session) -> None:
        link.session = session
        for other in list(session.links):
            other.napping = False
            self.read(other)  # what came by it came before
            if other in session.links and not waits(other) and not waits(link):
                self.faults["two links at a time"] += 1
        session.links.append(link)
        self.linked(session)

    def linked(self, session: Session) -> None:
        """Another link may be the one to speak on."""
        if session.owes:
            self.speak(session)

    # Links that we make

    def without_link(self, session: Session) -> None:
        session.owes = True
        if not self.visiting or session.visit is not None or self.visits >= MOST_VISITS:
            return
        try:
            link = Link(begin_connect(self.proxy or session.target, None, _NODELAY), session)
        except OSError as problem:
            self.faults[f"visit: {errno_name(problem.errno or 0)}"] += 1
            return
        link.visit = link.connecting = True
        session.visit = link
        self.visits += 1
        self.watch(link)

    def connected(self, link: Link) -> None:
        session = link.session
        assert session is not None
        link.connecting = False
        code = error_of(link.fd)
        if code:
            self.end(link, f"visit: {errno_name(code)}")
        elif self.proxy:
            host, port = session.target
            target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            link.preface = self.answer
            os.write(link.fd, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        else:
            self.came += 1
            self.enter(link, session)

    def answer(self, link: Link) -> bytes | None:
        """The proxy's, to CONNECT."""
        head, found, rest = link.head.partition(b"\r\n\r\n")
        if not found:
            return None
        status = head.partition(b"\r\n")[0].decode(errors="replace")
        if not status.startswith("HTTP/1.1 200 "):
            self.end(link, f"visit: {status}")
            return None
        assert link.session is not None
        link.preface = None
        link.heard = True
        self.came += 1
        self.enter(link, link.session)
        return rest

    def ready(self, link: Link, events: int) -> None:
        if link.connecting:
            self.connected(link)
        if self.links.get(link.fd) is link:
            super().ready(link, events)

    # Ends

    def finished(self, link: Link) -> None:
        session = link.session
        if self.by == "stream":
            super().finished(link)
        elif link.head or (link.visit and link.preface is not None):
            self.end(link, "cut short")
        elif session is None:
            self.end(link, "EOF")  # given up before anything was said
        else:
            link.over = True
            if session.receiver is not None and session.links[0] is link and random.random() < LAST_WORDS:
                self.speak(session)
            if self.links.get(link.fd) is link:
                self.part(link, session)

    def said(self, link: Link) -> None:
        if self.by == "stream":
            super().said(link)
        elif link.over and link.session is not None:
            self.part(link, link.session)

    def part(self, link: Link, session: Session) -> None:
        """The other end has said its last: close, unless a chunk is on its way."""
        if not (session.chunk and session.links[0] is link):
            self.end(link, "EOF")

    def end(self, link: Link, reason: str) -> None:
        super().end(link, reason)
        session = link.session
        if session is None:
            return
        if session.visit is link:
            session.visit = None
            self.visits -= 1
        if reason != "EOF" and session.receiver is not None:
            self.plan(session)
        if session.links:
            self.linked(session)

    def hush(self, session: Session) -> None:
        session.owes = False
        if self.by == "stream":
            super().hush(session)

    def silent(self) -> bool:
        if self.by == "stream":
            return super().silent()
        return not self.visits and not any(session.chunk for session in self.sessions.values())

    def totals(self, sent: dict[str, int]) -> dict[str, Any]:
        return {**super().totals(sent), "made": self.made, "came": self.came}


def waits(link: Link) -> bool:
    """Whether the link may be a visit that the appliance has not linked yet."""
    return link.visit and not link.heard


def read_header(data: bytes) -> tuple[tuple[str, int], int] | None:
    """The client out of a PROXY header of version 1 or 2, and the header's length; None: it is not whole. ValueError:
    it is none (haproxy.org/download/3.0/doc/proxy-protocol.txt)."""
    if data[:12] == _SIGNATURE[: len(data)]:
        if len(data) < 16:
            return None
        length = 16 + int.from_bytes(data[14:16], "big")
        size = {b"\x21\x11": 4, b"\x21\x21": 16}.get(data[12:14])
        if size is None or length != 16 + 2 * size + 4:
            raise ValueError("no PROXY header of TCP")
        if len(data) < length:
            return None
        port = int.from_bytes(data[16 + 2 * size : 18 + 2 * size], "big")
        return (str(ipaddress.ip_address(data[16 : 16 + size])), port), length
    line, found, _ = data.partition(b"\r\n")
    if not found and len(data) < 108:
        return None
    words = line.decode("ascii").split(" ")
    if len(words) != 6 or words[0] != "PROXY" or words[1] not in ("TCP4", "TCP6"):
        raise ValueError("no PROXY header")
    return (str(ipaddress.ip_address(words[2])), int(words[4])), len(line) + 2
