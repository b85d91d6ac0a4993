# SPDX-License-Identifier: Apache-2.0
"""A swarm of quiet clients: thousands of real TCP connections in one process.

Each client says `HELLO name`, checks that `WELCOME name` comes back, and falls quiet, but for its kernel's keep-alives.
When a server asks it (`ASK nonce`) it answers `TELL name nonce`. Whatever ends a client's connection is counted with
its reason; nothing may, unless a command did.

Commands
  connect  count, server [ip, port], addresses [ip...], first (number in the first name), keepidle_s, keepintvl_s,
           keepcnt, in_flight, rate (clients/s, 0 = as fast as possible), timeout_s
           -> connected, failed {reason: n}, seconds; once all have been welcomed or have failed
  say      n, concurrency, size (bytes of the nonce), timeout_s, twice (speak again as soon as answered),
           apart_ms (with concurrency 1: how long after an answer the next one speaks)
           -> answered, rtt_us [...], again_us [...] (of the second time, in the same order), failed {reason: n}
  stats    -> open, dead {reason: n}, answers
  hearing  silence_ms -> open, silent (clients that have heard no ACK for longer than that), unanswered_probes (clients
           with one outstanding), max_silence_ms, retransmits; from TCP_INFO
  clients  n -> [[name, local address]...] of n random open ones
"""

from __future__ import annotations

import os
import random
import select
import socket
import time
from array import array
from collections import Counter
from typing import Any

from appliance.peers.lines import (
    Command,
    Loop,
    begin_connect,
    errno_name,
    error_of,
    local_name,
    tcp_info,
)

_FREE, _CONNECTING, _GREETING, _QUIET, _SPEAKING = range(5)
_EDGES = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET  # one registration for the whole life of a client


class Swarm:
    def __init__(self) -> None:
        self.loop = Loop()
        self.state = bytearray(self.loop.descriptors)  # by descriptor
        self.number = array("L", [0]) * self.loop.descriptors
        self.partial: dict[int, bytes] = {}  # an incomplete line, rare
        self.waiting: dict[int, tuple[bytes, int]] = {}  # fd -> expected answer, ns when asked; oldest first
        self.open: dict[int, int] = {}  # client number -> fd
        self.dead: Counter[str] = Counter()
        self.answers = 0
        self.connecting: Connecting | None = None
        self.saying: Saying | None = None
        for name in ("connect", "say", "stats", "hearing", "clients"):
            self.loop.command(name, getattr(self, "do_" + name))

    # Commands

    def do_connect(self, command: Command) -> None:
        if self.connecting is not None:
            raise ValueError("another connect is under way")
        self.connecting = Connecting(self, command)

    def do_say(self, command: Command) -> None:
        if self.saying is not None:
            raise ValueError("another say is under way")
        self.saying = Saying(self, command)

    def do_stats(self, command: Command) -> None:
        self.loop.reply(command, open=len(self.open), dead=dict(self.dead), answers=self.answers)

    def do_hearing(self, command: Command) -> None:
        limit_ms = int(command.get("silence_ms", 1 << 32))
        silent = unanswered = retransmits = max_silence_ms = 0
        for fd in self.open.values():
            info = tcp_info(fd)
            unanswered += info[3] > 0  # tcpi_probes
            silence_ms = int.from_bytes(info[56:60], "little")  # tcpi_last_ack_recv
            silent += silence_ms > limit_ms
            max_silence_ms = max(max_silence_ms, silence_ms)
            retransmits += int.from_bytes(info[100:104], "little")  # tcpi_total_retrans
        self.loop.reply(command, open=len(self.open), silent=silent, unanswered_probes=unanswered,
                        max_silence_ms=max_silence_ms, retransmits=retransmits)  # fmt: skip

    def do_clients(self, command: Command) -> None:
        numbers = random.sample(list(self.open), min(int(command["n"]), len(self.open)))
        self.loop.reply(command, clients=[[name_of(n), local_name(self.open[n])] for n in numbers])

    # Clients

    def lose(self, fd: int, reason: str) -> None:
        """The connection ended, and no command wanted that."""
        state, self.state[fd] = self.state[fd], _FREE
        self.partial.pop(fd, None)
        self.waiting.pop(fd, None)
        self.open.pop(self.number[fd], None)
        os.close(fd)  # leaves the epoll by this as well
        if state in (_CONNECTING, _GREETING):
            if self.connecting is not None:
                self.connecting.failed[reason] += 1
                self.connecting.settled()
            return
        self.dead[reason] += 1
        if state == _SPEAKING and self.saying is not None:
            self.saying.failed[reason] += 1
            self.saying.settled()

    def write(self, fd: int, line: bytes) -> None:
        # A line is shorter than any socket buffer: if it does not go in whole, the other end has stalled for long.
        try:
            if os.write(fd, line) != len(line):
                self.lose(fd, "send buffer full")
        except OSError as problem:
            self.lose(fd, errno_name(problem.errno or 0))

    def ready(self, fd: int, events: int) -> None:
        if self.state[fd] == _FREE:
            return  # closed earlier in this batch of events
        if self.state[fd] == _CONNECTING and events & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
            code = error_of(fd)
            if code:
                self.lose(fd, errno_name(code))
                return
            self.state[fd] = _GREETING
            name = name_of(self.number[fd])
            self.waiting[fd] = (f"WELCOME {name}".encode(), time.perf_counter_ns())
            self.write(fd, f"HELLO {name}\n".encode())
        if events & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP):
            self.read(fd)

    def read(self, fd: int) -> None:
        while self.state[fd] != _FREE:
            try:
                data = os.read(fd, 4096)
            except BlockingIOError:
                return
            except OSError as problem:
                self.lose(fd, errno_name(problem.errno or 0))
                return
            if not data:
                self.lose(fd, "EOF")
                return
            now = time.perf_counter_ns()
            if fd in self.partial:
                data = self.partial.pop(fd) + data
            *lines, rest = data.split(b"\n")
            if rest:
                self.partial[fd] = rest
            for line in lines:
                self.heard(fd, line, now)
                if self.state[fd] == _FREE:
                    return
            if len(data) < 4096:
                return  # the queue was drained: what comes later makes a new edge

    def wrong(self, _line: bytes, expected: bytes | None) -> str:
        """What such an answer is called. expected: None, the client has asked nothing."""
        return "wrong answer" if expected is not None else "answer to nothing"

    def heard(self, fd: int, line: bytes, now: int) -> None:
        if line.startswith(b"ASK "):
            self.write(fd, b"TELL %s %s\n" % (name_of(self.number[fd]).encode(), line[4:]))
            return
        expected = self.waiting.pop(fd, None)
        if expected is None or line != expected[0]:
            self.lose(fd, self.wrong(line, expected[0] if expected is not None else None))
            return
        self.answers += 1
        state, self.state[fd] = self.state[fd], _QUIET
        if state == _GREETING and self.connecting is not None:
            self.open[self.number[fd]] = fd
            self.connecting.connected += 1
            self.connecting.settled()
        elif self.saying is not None:
            self.saying.heard(fd, (now - expected[1]) // 1000)

    def expire(self) -> None:
        """Answers that did not come in time. Both tasks append at the end, but with timeouts of their own."""
        now = time.perf_counter_ns()
        for fd, (_, since) in list(self.waiting.items()):
            task: Connecting | Saying | None = self.connecting if self.state[fd] == _GREETING else self.saying
            if task is not None and now - since > task.timeout_ns:
                self.lose(fd, "no answer in time")

    def run(self) -> None:
        next_check = time.monotonic() + 1
        epoll, loop = self.loop.epoll, self.loop
        while loop.running:
            for fd, events in epoll.poll(0.05 if self.connecting is not None else 1.0, 1024):
                if fd == 0:
                    loop.read_commands()
                else:
                    self.ready(fd, events)
            if self.connecting is not None:
                self.connecting.fill()
            if time.monotonic() >= next_check:
                self.expire()
                next_check = time.monotonic() + 1


class Connecting:
    """One `connect` under way: keeps a bounded number of clients between SYN and WELCOME."""

    def __init__(self, swarm: Swarm, command: Command) -> None:
        self.swarm, self.command = swarm, command
        self.count = int(command["count"])
        self.server = (str(command["server"][0]), int(command["server"][1]))
        self.addresses: list[str | None] = list(command.get("addresses") or [None])
        self.first = int(command.get("first", 0))
        self.in_flight = int(command.get("in_flight", 512))
        self.rate = float(command.get("rate", 0))
        self.timeout_ns = int(float(command.get("timeout_s", 60)) * 1e9)
        # After an answered probe Linux looks again keepintvl later: one longer than keepidle is the real period.
        idle = int(command.get("keepidle_s", 30))
        interval = int(command.get("keepintvl_s", min(5, idle)))
        probes = int(command.get("keepcnt", 5))
        # A client's kernel gives its peer up neither earlier nor much later than its keep-alives do: TCP_USER_TIMEOUT
        # overrides TCP_KEEPCNT.
        user_timeout_ms = (idle + interval * (probes + 1)) * 1000
        self.options = (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        )
        if self.count + len(swarm.open) + 50 > swarm.loop.descriptors:
            raise ValueError(f"{self.count} more clients do not fit into {swarm.loop.descriptors} descriptors")
        if self.count < 1:
            raise ValueError("count must be at least 1")
        self.begun = self.connected = 0
        self.failed: Counter[str] = Counter()
        self.since = time.monotonic()

    def fill(self) -> None:
        swarm = self.swarm
        under_way = self.begun - self.connected - sum(self.failed.values())
        todo = min(self.in_flight - under_way, self.count - self.begun)
        if self.rate:
            todo = min(todo, int((time.monotonic() - self.since) * self.rate) - self.begun)
        for _ in range(todo):
            number = self.first + self.begun
            self.begun += 1
            try:
                fd = begin_connect(self.server, self.addresses[number % len(self.addresses)], self.options)
            except OSError as problem:
                self.failed[errno_name(problem.errno or 0)] += 1
                self.settled()
                continue
            swarm.state[fd] = _CONNECTING
            swarm.number[fd] = number
            swarm.loop.epoll.register(fd, _EDGES)

    def settled(self) -> None:
        if self.connected + sum(self.failed.values()) >= self.count:
            self.swarm.connecting = None
            self.swarm.loop.reply(self.command, connected=self.connected, failed=dict(self.failed),
                                  seconds=time.monotonic() - self.since)  # fmt: skip


class Saying:
    """One `say` under way: a bounded number of clients between question and answer."""

    def __init__(self, swarm: Swarm, command: Command) -> None:
        self.swarm, self.command = swarm, command
        self.timeout_ns = int(float(command.get("timeout_s", 30)) * 1e9)
        self.concurrency = int(command.get("concurrency", 64))
        self.size = int(command.get("size", 16))
        self.twice = bool(command.get("twice", False))
        self.apart_s = float(command.get("apart_ms", 0)) / 1000
        quiet = [fd for fd in swarm.open.values() if swarm.state[fd] == _QUIET]
        self.chosen = random.sample(quiet, min(int(command["n"]), len(quiet)))
        self.under_way = 0
        self.rtt_us: list[int] = []
        self.again_us: list[int] = []
        self.first_us: dict[int, int] = {}  # of those that speak for the second time
        self.failed: Counter[str] = Counter()
        self.filling = False
        swarm.saying = self
        self.fill()

    def heard(self, fd: int, rtt_us: int) -> None:
        """A client's answer is there."""
        if not self.twice:
            self.rtt_us.append(rtt_us)
        elif fd in self.first_us:
            self.rtt_us.append(self.first_us.pop(fd))
            self.again_us.append(rtt_us)
        else:
            self.first_us[fd] = rtt_us
            self.speak(fd)
            return
        self.settled()

    def speak(self, fd: int) -> None:
        swarm = self.swarm
        swarm.state[fd] = _SPEAKING
        line = b"ECHO %s %s" % (name_of(swarm.number[fd]).encode(), random.randbytes(self.size).hex().encode())
        swarm.waiting[fd] = (line, time.perf_counter_ns())
        swarm.write(fd, line + b"\n")

    def settled(self) -> None:
        """One of those under way has its answer, or will never have one."""
        self.under_way -= 1
        if not self.filling:  # else a write failed at once: the loop in fill() goes on by itself
            self.fill()

    def fill(self) -> None:
        swarm = self.swarm
        self.filling = True
        while self.chosen and self.under_way < self.concurrency:
            fd = self.chosen.pop()
            if swarm.state[fd] != _QUIET:
                self.failed["gone before it spoke"] += 1
                continue
            self.under_way += 1
            if self.apart_s:  # a sleep of no length takes microseconds that the next answer seems to have taken
                time.sleep(self.apart_s)
            self.speak(fd)
        self.filling = False
        if not self.chosen and self.under_way == 0 and swarm.saying is self:
            swarm.saying = None
            fields: dict[str, Any] = {"answered": len(self.rtt_us), "rtt_us": self.rtt_us, "again_us": self.again_us,
                                      "failed": dict(self.failed)}  # fmt: skip
            swarm.loop.reply(self.command, **fields)


def name_of(number: int) -> str:
    return f"c{number:06d}"


if __name__ == "__main__":
    Swarm().run()
