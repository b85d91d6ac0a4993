# SPDX-License-Identifier: Apache-2.0
"""A server's reach for its clients: through HTTP CONNECT at the appliance's attach address, or by their own address.

For each target: connect, `CONNECT target HTTP/1.1`, wait for 200, `ASK nonce`, wait for `TELL name nonce`, close. What
the client itself asks meanwhile (`ECHO x`) is answered as appliance.peers.server does.
Without a proxy: connect to the target itself, and `ASK nonce`.

Commands
  ask  proxy [ip, port] (none: directly), targets ["addr:port" or ["addr:port", name]...], concurrency, timeout_s
       -> answered, latency_us [...] (from connect() to the first byte of the answer), failed {reason: n},
          failures [[target, reason]...]
"""

from __future__ import annotations

import os
import random
import select
import socket
import time
from collections import Counter
from dataclasses import dataclass

from appliance.peers.lines import Command, Loop, begin_connect, errno_name, error_of

_NODELAY = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)


@dataclass(slots=True)
class Call:
    target: str
    name: str | None
    nonce: str
    since: int
    phase: int = 0  # 0 connecting, 1 CONNECT sent, 2 ASK sent
    answer_us: int = 0
    data: bytes = b""


def _split(target: str) -> tuple[str, int]:
    """Address and port of "192.0.2.7:40123" or "[2001:db8::7]:40123"."""
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)


class Asking:
    """One `ask` under way."""

    def __init__(self, asker: Asker, command: Command) -> None:
        self.asker, self.command = asker, command
        proxy = command.get("proxy")
        self.proxy = (str(proxy[0]), int(proxy[1])) if proxy else None
        self.targets = [(t, None) if isinstance(t, str) else (str(t[0]), str(t[1])) for t in command["targets"]]
        self.targets.reverse()
        self.concurrency = int(command.get("concurrency", 16))
        self.timeout_ns = int(float(command.get("timeout_s", 30)) * 1e9)
        self.calls: dict[int, Call] = {}
        self.latency_us: list[int] = []
        self.failed: Counter[str] = Counter()
        self.failures: list[tuple[str, str]] = []

    def fill(self) -> None:
        while self.targets and len(self.calls) < self.concurrency:
            target, name = self.targets.pop()
            call = Call(target, name, random.randbytes(8).hex(), time.perf_counter_ns())
            try:
                fd = begin_connect(self.proxy or _split(target), None, _NODELAY)
            except OSError as problem:
                self.fail(call, errno_name(problem.errno or 0))
                continue
            self.calls[fd] = call
            self.asker.loop.epoll.register(fd, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        if not self.targets and not self.calls:
            self.asker.asking = None
            self.asker.loop.reply(self.command, answered=len(self.latency_us), latency_us=self.latency_us,
                                  failed=dict(self.failed), failures=self.failures[:50])  # fmt: skip

    def fail(self, call: Call, reason: str) -> None:
        self.failed[reason] += 1
        self.failures.append((call.target, reason))

    def drop(self, fd: int, reason: str) -> None:
        self.fail(self.calls.pop(fd), reason)
        os.close(fd)

    def ready(self, fd: int, events: int) -> None:
        call = self.calls.get(fd)
        if call is None:
            return
        try:
            if call.phase == 0:
                code = error_of(fd)
                if code:
                    self.drop(fd, errno_name(code))
                    return
                if self.proxy:
                    call.phase = 1
                    os.write(fd, f"CONNECT {call.target} HTTP/1.1\r\nHost: {call.target}\r\n\r\n".encode())
                else:
                    call.phase = 2
                    os.write(fd, f"ASK {call.nonce}\n".encode())
            if events & (select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP):
                while True:
                    data = os.read(fd, 4096)
                    if not data:
                        self.drop(fd, "EOF")
                        return
                    self.heard(fd, call, data)
                    if fd not in self.calls:
                        return
        except BlockingIOError:
            return
        except OSError as problem:
            self.drop(fd, errno_name(problem.errno or 0))

    def heard(self, fd: int, call: Call, data: bytes) -> None:
        now_us = (time.perf_counter_ns() - call.since) // 1000
        call.data += data
        if call.phase == 1:
            head, found, rest = call.data.partition(b"\r\n\r\n")
            if not found:
                return
            status = head.split(b" ", 2)[1:2]
            if status != [b"200"]:
                self.drop(fd, "HTTP " + b"".join(status).decode("ascii", "replace"))
                return
            call.phase, call.data = 2, rest
            os.write(fd, f"ASK {call.nonce}\n".encode())
        while call.phase == 2 and call.data:
            line, found, rest = call.data.partition(b"\n")
            if found and line.startswith(b"ECHO "):
                os.write(fd, line + b"\n")
                call.data = rest
                continue
            call.answer_us = call.answer_us or now_us
            if not found:
                return
            words = line.decode("ascii", "replace").split(" ")
            if len(words) != 3 or words[0] != "TELL" or words[2] != call.nonce or call.name not in (None, words[1]):
                self.drop(fd, "wrong answer")
                return
            self.latency_us.append(call.answer_us)
            del self.calls[fd]
            os.close(fd)
            return

    def expire(self) -> None:
        now = time.perf_counter_ns()
        for fd, call in list(self.calls.items()):
            if now - call.since > self.timeout_ns:
                self.drop(fd, f"no answer in time (phase {call.phase})")


class Asker:
    def __init__(self) -> None:
        self.loop = Loop()
        self.asking: Asking | None = None
        self.loop.command("ask", self.do_ask)

    def do_ask(self, command: Command) -> None:
        if self.asking is not None:
            raise ValueError("another ask is under way")
        self.asking = Asking(self, command)

    def run(self) -> None:
        next_check = time.monotonic() + 1
        while self.loop.running:
            if self.asking is not None:
                self.asking.fill()
            for fd, events in self.loop.epoll.poll(1.0, 256):
                if fd == 0:
                    self.loop.read_commands()
                elif self.asking is not None:
                    self.asking.ready(fd, events)
            if self.asking is not None and time.monotonic() >= next_check:
                self.asking.expire()
                next_check = time.monotonic() + 1


if __name__ == "__main__":
    Asker().run()
