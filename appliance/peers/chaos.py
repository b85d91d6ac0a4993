# SPDX-License-Identifier: Apache-2.0
"""The two ends of chaos: long-lived connections that carry checked byte streams both ways, in bursts and pauses.

    python -m appliance.peers.chaos server --listen 10.3.0.2 9000
    python -m appliance.peers.chaos client

Each direction is a stream of its own (appliance.peers.stream), so that every byte is compared at its place. Chunks are
1 byte to 64 KiB, mostly small, with pauses of 0 to --pause-ms between them; some receivers now and then stop reading
for a while, to close windows. `stop` ends the sending: each end shuts its direction down after its last byte and reads
on to the end of the other's. Totals travel beside the connections (stdout), never through them.

Commands of the client
  connect  server [ip, port], count, first (number of the first connection), addresses [ip...], mss (0 = as it is),
           timestamps, sack, window_scaling (true/false: sysctls of the client's namespace while the group connects),
           silent (true: say nothing before `introduce`)
           -> connected, failed {reason: n}
  introduce                -> connections
Commands of the server
  reach    proxy [ip, port], targets ["address:port" of a silent client...]: with HTTP CONNECT -> reached
Commands of both
  start    pause_ms, lazy (share of connections whose receiver pauses, 0..1)   -> connections
  stats    -> connections, sent_bytes, received_bytes, sends, mismatched_bytes, resets {reason: n}
  stop     timeout_s, after (true: our direction ends after the other's)
           -> connections {number: {sent, received, lost, duplicated, reordered, corrupted, ended}}
           (`ended`: "EOF", "open" = not within the timeout, or the name of an error)
  settle   sent {number: bytes the other end sent} -> lost_bytes, duplicated_bytes, reordered, corrupted_bytes,
           unexpected_resets {reason: n}, received_bytes
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import select
import socket
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from appliance.peers.lines import Command, Loop, begin_connect, errno_name, error_of, listen
from appliance.peers.stream import MAX_CHUNK, Receiver, start_of, window

_HEADER: Final = struct.Struct("!4sI")  # magic, connection number: the first bytes from the client
_MAGIC: Final = b"RCH1"
_SYSCTLS: Final = {"timestamps": "tcp_timestamps", "sack": "tcp_sack", "window_scaling": "tcp_window_scaling"}
_SEND, _READ = 0, 1


class Link:
    """One connection, as one end sees it."""

    __slots__ = (
        "blocked",
        "chunk",
        "ended",
        "fd",
        "header",
        "lazy",
        "napping",
        "number",
        "out_start",
        "receiver",
        "sent",
        "shut",
    )  # fmt: skip

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.number = -1
        self.receiver: Receiver | None = None
        self.out_start = 0
        self.sent = 0  # bytes of the stream; the header does not count
        self.chunk = 0  # bytes of the present chunk still to be sent
        self.blocked = False
        self.napping = False
        self.lazy = False
        self.header = b""
        self.shut = False
        self.ended = ""

    def name(self, number: int, is_client: bool) -> Receiver:
        self.number = number
        self.out_start = start_of(number, to_server=is_client)
        self.receiver = Receiver(start_of(number, to_server=not is_client))
        return self.receiver


class End:
    """What the client's and the server's end have in common."""

    is_client = False

    def __init__(self) -> None:
        self.loop = Loop()
        self.links: dict[int, Link] = {}  # by descriptor; ended ones leave
        self.known: dict[int, Link] = {}  # by connection number; all there ever were
        self.due: list[tuple[float, int, int, int]] = []  # when, tie-break, fd, _SEND or _READ
        self.ticks = 0
        self.sending = False
        self.stopping: tuple[Command, float] | None = None
        self.after = False
        self.pause_s = 0.1
        self.lazy_share = 0.0
        self.sends = self.received = self.sent = 0
        for name in ("start", "stats", "stop", "settle"):
            self.loop.command(name, getattr(self, "do_" + name))

    # Commands

    def do_start(self, command: Command) -> None:
        self.pause_s = float(command.get("pause_ms", 100)) / 1000
        self.lazy_share = float(command.get("lazy", 0.05))
        self.sending = True
        for link in self.links.values():
            self.begin(link)
        self.loop.reply(command, connections=len(self.links))

    def begin(self, link: Link) -> None:
        if link.receiver is not None and self.sending:
            link.lazy = random.random() < self.lazy_share
            self.later(random.random() * self.pause_s, link.fd, _SEND)

    def do_stats(self, command: Command) -> None:
        receivers = [link.receiver for link in self.known.values() if link.receiver is not None]
        mismatched = sum(r.lost + r.duplicated + r.reordered + r.corrupted for r in receivers)
        self.loop.reply(command, connections=len(self.links), sent_bytes=self.sent, received_bytes=self.received,
                        sends=self.sends, mismatched_bytes=mismatched, resets=self.resets())  # fmt: skip

    def resets(self) -> dict[str, int]:
        return dict(Counter(link.ended for link in self.known.values() if link.ended not in ("", "EOF")))

    def do_stop(self, command: Command) -> None:
        if self.stopping is not None:
            raise ValueError("another stop is under way")
        self.sending = False
        self.stopping = (command, time.monotonic() + float(command.get("timeout_s", 30)))
        self.after = bool(command.get("after"))
        for link in list(self.links.values()):
            if link.receiver is None:
                self.end(link, "no header")
            elif not link.chunk and not self.after:
                self.shut(link)
        if self.stopping is not None:  # else the last one failed in the loop above, and that has been answered
            self.check_stopped()

    def do_settle(self, command: Command) -> None:
        totals = Counter[str]()
        for number, sent in command["sent"].items():
            link = self.known.get(int(number))
            if link is None or link.receiver is None:
                totals["lost_bytes"] += int(sent)  # the other end's connection never got through to us
                continue
            receiver = link.receiver
            receiver.finish(int(sent))
            totals["lost_bytes"] += receiver.lost
            totals["duplicated_bytes"] += receiver.duplicated
            totals["reordered"] += receiver.reordered
            totals["corrupted_bytes"] += receiver.corrupted
        keys = ("lost_bytes", "duplicated_bytes", "reordered", "corrupted_bytes")
        self.loop.reply(command, **{key: totals[key] for key in keys}, received_bytes=self.received,
                        unexpected_resets=self.resets())  # fmt: skip

    # The connections

    def later(self, delay_s: float, fd: int, what: int) -> None:
        self.ticks += 1
        heapq.heappush(self.due, (time.monotonic() + delay_s, self.ticks, fd, what))

    def end(self, link: Link, reason: str) -> None:
        link.ended = reason
        del self.links[link.fd]
        os.close(link.fd)
        if self.stopping is not None:
            self.check_stopped()

    def check_stopped(self, give_up: bool = False) -> None:
        """Answer `stop` once every connection has ended, or when its time is over."""
        assert self.stopping is not None
        if self.links and not give_up:
            return
        command, self.stopping = self.stopping[0], None
        for link in list(self.links.values()):
            self.end(link, "open")
        report: dict[int, dict[str, Any]] = {}
        for number, link in self.known.items():
            assert link.receiver is not None
            r = link.receiver
            report[number] = {"sent": link.sent, "received": r.position, "lost": r.lost, "duplicated": r.duplicated,
                              "reordered": r.reordered, "corrupted": r.corrupted, "ended": link.ended}  # fmt: skip
        self.loop.reply(command, connections=report)

    def shut(self, link: Link) -> None:
        """Our direction ends here."""
        if link.shut or link.receiver is None:
            return
        link.shut = True
        sock = socket.socket(fileno=link.fd)
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError as problem:
            sock.detach()
            self.end(link, errno_name(problem.errno or 0))
        else:
            sock.detach()

    def send(self, link: Link) -> None:
        """Go on with the present chunk; when it is out, plan the next one."""
        try:
            while link.chunk:
                count = os.write(link.fd, window(link.out_start, link.sent, min(link.chunk, MAX_CHUNK)))
                link.sent += count
                self.sent += count
                link.chunk -= count
        except BlockingIOError:
            link.blocked = True  # the edge-triggered EPOLLOUT goes on from here
            return
        except OSError as problem:
            self.end(link, errno_name(problem.errno or 0))
            return
        self.sends += 1
        if self.sending:
            self.later(random.random() * self.pause_s, link.fd, _SEND)
        elif not self.after:
            self.shut(link)

    def read(self, link: Link) -> None:
        while not link.napping and not link.ended:
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
            receiver = link.receiver
            if receiver is None:
                introduced = self.introduced(link, data)
                if introduced is None:
                    continue
                receiver, data = introduced
            self.received += len(data)
            receiver.receive(data)
            if link.lazy and random.random() < 0.2 and self.stopping is None:
                link.napping = True
                self.later(random.random() * 0.05, link.fd, _READ)
                return

    def introduced(self, link: Link, data: bytes) -> tuple[Receiver, bytes] | None:
        """The first bytes of a connection: what of them belongs to its stream, or None if it has no number yet."""
        raise ValueError("bytes on a connection that has no number")

    def finished(self, link: Link) -> None:
        """The other end has sent its last byte. That is expected once it was told to stop, and never before."""
        if self.stopping is not None:
            if link.chunk:
                link.lazy = False  # our own direction goes on; the end of theirs is remembered by the kernel
                self.later(0.01, link.fd, _READ)
                return
            self.shut(link)
            if link.fd in self.links and self.links[link.fd] is link:
                self.end(link, "EOF")
        else:
            # Both ends are told to stop a moment apart: look again when we have been told, too.
            link.napping = True
            self.later(0.05, link.fd, _READ)

    def run(self) -> None:
        epoll, loop = self.loop.epoll, self.loop
        while loop.running:
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                _, _, fd, what = heapq.heappop(self.due)
                link = self.links.get(fd)
                if link is None:
                    continue  # ended since
                if what == _READ:
                    link.napping = False
                    self.read(link)
                elif self.sending and not link.chunk:
                    link.chunk = chunk_size()
                    self.send(link)
            if self.stopping is not None and now >= self.stopping[1]:
                self.check_stopped(give_up=True)
            wait = min(1.0, max(0.0, self.due[0][0] - now)) if self.due else 1.0
            # epoll_wait counts in ms: waiting for a fraction of one would spin
            for fd, events in epoll.poll(wait and max(wait, 0.001), 1024):
                if fd == 0:
                    loop.read_commands()
                elif fd in self.links:
                    self.ready(self.links[fd], events)
                else:
                    self.other(fd)

    def ready(self, link: Link, events: int) -> None:
        if link.blocked and events & select.EPOLLOUT:
            link.blocked = False
            self.send(link)
            if self.links.get(link.fd) is not link:
                return
        if events & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP):
            self.read(link)

    def other(self, fd: int) -> None:
        """An event on a descriptor that is no link: nothing, or the server's listener."""


_EDGES: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET


class ServerEnd(End):
    def __init__(self, listens: list[tuple[str, int]]) -> None:
        super().__init__()
        self.listeners = {sock.fileno(): sock for sock in (listen(address, port) for address, port in listens)}
        for fd in self.listeners:
            self.loop.epoll.register(fd, select.EPOLLIN)
        self.loop.command("reach", self.do_reach)
        self.loop.tell(ready=True)

    def other(self, fd: int) -> None:
        listener = self.listeners.get(fd)
        if listener is None:
            return
        while True:
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            self.take(sock)

    def take(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(sock.detach())
        self.links[link.fd] = link
        self.loop.epoll.register(link.fd, _EDGES)

    def do_reach(self, command: Command) -> None:
        """Blocks the loop until every client is reached."""
        address, port = command["proxy"]
        for target in command["targets"]:
            sock = socket.create_connection((str(address), int(port)), 10)
            sock.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows it is the stream
                byte = sock.recv(1)
                if not byte:
                    raise ValueError(f"{target} was not reached: {head!r}")
                head += byte
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise ValueError(f"{target} was not reached: {head!r}")
            self.take(sock)
        self.loop.reply(command, reached=len(command["targets"]))

    def introduced(self, link: Link, data: bytes) -> tuple[Receiver, bytes] | None:
        link.header += data
        if len(link.header) < _HEADER.size:
            return None
        magic, number = _HEADER.unpack_from(link.header)
        rest, link.header = link.header[_HEADER.size :], b""
        if magic != _MAGIC or number in self.known:
            # The very first bytes are wrong: no stream can be compared. Report the connection as broken, under a
            # number that no client has.
            link.name(-len(self.known) - 1, is_client=False)
            self.known[link.number] = link
            self.end(link, "bad header")
            return None
        receiver = link.name(number, is_client=False)
        self.known[number] = link
        self.begin(link)
        return receiver, rest


class ClientEnd(End):
    is_client = True

    def __init__(self) -> None:
        super().__init__()
        self.silent: list[Link] = []
        self.loop.command("connect", self.do_connect)
        self.loop.command("introduce", self.do_introduce)

    def do_connect(self, command: Command) -> None:
        """Blocks the loop until the group is connected: the sysctls hold for this group only."""
        server = (str(command["server"][0]), int(command["server"][1]))
        addresses: list[str | None] = list(command.get("addresses") or [None])
        mss = int(command.get("mss", 0))
        options: tuple[tuple[int, int, int], ...] = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
        if mss:
            options += ((socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss),)
        sysctls = {name: int(bool(command[key])) for key, name in _SYSCTLS.items() if key in command}
        before = {name: _sysctl(name) for name in sysctls}
        failed = Counter[str]()
        poll = select.poll()
        pending: dict[int, int] = {}
        for name, value in sysctls.items():
            _set_sysctl(name, value)
        try:
            for index in range(int(command["count"])):
                try:
                    fd = begin_connect(server, addresses[index % len(addresses)], options)
                except OSError as problem:
                    failed[errno_name(problem.errno or 0)] += 1
                    continue
                pending[fd] = int(command.get("first", 0)) + index
                poll.register(fd, select.POLLOUT)
            deadline = time.monotonic() + float(command.get("timeout_s", 30))
            connected = 0
            while pending and time.monotonic() < deadline:
                for fd, _ in poll.poll(100):
                    number = pending.pop(fd)
                    poll.unregister(fd)
                    code = error_of(fd)
                    if code:
                        failed[errno_name(code)] += 1
                        os.close(fd)
                        continue
                    connected += 1
                    self.begin_with(fd, number, bool(command.get("silent")))
        finally:
            for name, value in before.items():
                _set_sysctl(name, value)
        for fd in pending:
            failed["ETIMEDOUT"] += 1
            os.close(fd)
        self.loop.reply(command, connected=connected, failed=dict(failed))

    def begin_with(self, fd: int, number: int, silent: bool) -> None:
        link = Link(fd)
        link.name(number, is_client=True)
        self.links[fd] = self.known[number] = link
        if silent:
            self.silent.append(link)
        else:
            self.introduce(link)
        self.loop.epoll.register(fd, _EDGES)
        self.begin(link)

    def introduce(self, link: Link) -> None:
        os.write(link.fd, _HEADER.pack(_MAGIC, link.number))  # 8 bytes into an empty buffer: always whole

    def do_introduce(self, command: Command) -> None:
        for link in self.silent:
            self.introduce(link)
        self.loop.reply(command, connections=len(self.silent))
        self.silent.clear()


def chunk_size() -> int:
    """1 byte to 64 KiB, mostly small: mean some 1.3 KB."""
    kind = random.random()
    if kind < 0.85:
        return random.randint(1, 200)
    if kind < 0.98:
        return random.randint(200, 4000)
    return random.randint(4000, MAX_CHUNK)


def _sysctl(name: str) -> int:
    return int(Path(f"/proc/sys/net/ipv4/{name}").read_text())


def _set_sysctl(name: str, value: int) -> None:
    Path(f"/proc/sys/net/ipv4/{name}").write_text(str(value))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m appliance.peers.chaos")
    parser.add_argument("end", choices=("client", "server"))
    parser.add_argument("--listen", nargs=2, action="append", default=[], metavar=("ADDRESS", "PORT"))
    options = parser.parse_args()
    if options.end == "server":
        ServerEnd([(address, int(port)) for address, port in options.listen]).run()
    else:
        ClientEnd().run()


if __name__ == "__main__":
    main()
