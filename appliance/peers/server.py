# SPDX-License-Identifier: Apache-2.0
"""The LAN's server: answers `HELLO x` with `WELCOME x`, `ECHO x` with the same line, and `ASK x` with `TELL - x` as a
client would that can be reached directly; on any number of connections.

    python -m appliance.peers.server --listen 10.3.0.2 8000 [--listen fd00:3::2 8000] [--idle-close S]

It closes a connection when the other end has, and by itself only after --idle-close seconds without a line.

Commands
  stats -> accepted, open, ended_by_peer {reason: n}, closed_idle, hellos, echoes, unknown
"""

from __future__ import annotations

import argparse
import os
import select
import time
from array import array
from collections import Counter

from appliance.peers.lines import Command, Loop, errno_name, listen


class LanServer:
    def __init__(self, listens: list[tuple[str, int]], idle_close_s: float | None) -> None:
        self.loop = Loop()
        self.idle_close_s = idle_close_s
        self.listeners = {sock.fileno(): sock for sock in (listen(address, port) for address, port in listens)}
        for fd in self.listeners:
            self.loop.epoll.register(fd, select.EPOLLIN)
        self.heard_at = array("d", [0.0]) * self.loop.descriptors  # 0 = no connection
        self.partial: dict[int, bytes] = {}
        self.unsent: dict[int, bytes] = {}
        self.accepted = self.open = self.hellos = self.echoes = self.unknown = self.closed_idle = 0
        self.ended: Counter[str] = Counter()
        self.loop.command("stats", self.do_stats)

    def do_stats(self, command: Command) -> None:
        self.loop.reply(command, accepted=self.accepted, open=self.open, ended_by_peer=dict(self.ended),
                        closed_idle=self.closed_idle, hellos=self.hellos, echoes=self.echoes,
                        unknown=self.unknown)  # fmt: skip

    def accept(self, listener: int) -> None:
        for _ in range(256):  # then let the others have their turn
            try:
                sock, _ = self.listeners[listener].accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            fd = sock.detach()
            self.accepted += 1
            self.open += 1
            self.heard_at[fd] = time.monotonic()
            self.loop.epoll.register(fd, select.EPOLLIN)
            self.ready(fd, select.EPOLLIN)  # what came with the connection is answered before the next is accepted

    def close(self, fd: int) -> None:
        self.heard_at[fd] = 0.0
        self.partial.pop(fd, None)
        self.unsent.pop(fd, None)
        self.open -= 1
        os.close(fd)

    def end(self, fd: int, reason: str) -> None:
        self.ended[reason] += 1
        self.close(fd)

    def ready(self, fd: int, events: int) -> None:
        if self.heard_at[fd] == 0.0:
            return  # closed earlier in this batch of events
        if events & select.EPOLLOUT:
            self.flush(fd)
            if self.heard_at[fd] == 0.0:
                return
        if not events & ~select.EPOLLOUT:
            return
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError as problem:
            self.end(fd, errno_name(problem.errno or 0))
            return
        if not data:
            self.end(fd, "EOF")
            return
        self.heard_at[fd] = time.monotonic()
        if fd in self.partial:
            data = self.partial.pop(fd) + data
        *lines, rest = data.split(b"\n")
        if rest:
            self.partial[fd] = rest
        answers = b"".join(map(self.answer, lines))
        if answers:
            if fd in self.unsent:
                self.unsent[fd] += answers
            else:
                self.unsent[fd] = answers
                self.flush(fd)

    def answer(self, line: bytes) -> bytes:
        if line.startswith(b"ECHO "):
            self.echoes += 1
            return line + b"\n"
        if line.startswith(b"HELLO "):
            self.hellos += 1
            return b"WELCOME " + line[6:] + b"\n"
        if line.startswith(b"ASK "):
            return b"TELL - " + line[4:] + b"\n"
        self.unknown += 1
        return b"WHAT " + line + b"\n"

    def flush(self, fd: int) -> None:
        data = self.unsent.pop(fd, b"")
        try:
            sent = os.write(fd, data)
        except BlockingIOError:
            sent = 0
        except OSError as problem:
            self.end(fd, errno_name(problem.errno or 0))
            return
        if sent < len(data):
            # Stop reading until the answers are taken, or a slow client would make us hold any number of them.
            self.unsent[fd] = data[sent:]
            self.loop.epoll.modify(fd, select.EPOLLOUT)
        else:
            self.loop.epoll.modify(fd, select.EPOLLIN)

    def close_idle(self, idle_close_s: float) -> None:
        limit = time.monotonic() - idle_close_s
        for fd, heard_at in enumerate(self.heard_at):
            if heard_at and heard_at < limit:
                self.closed_idle += 1
                self.close(fd)

    def run(self) -> None:
        self.loop.tell(ready=True)
        next_check = time.monotonic() + 1
        while self.loop.running:
            for fd, events in self.loop.epoll.poll(1.0, 1024):
                if fd == 0:
                    self.loop.read_commands()
                elif fd in self.listeners:
                    self.accept(fd)
                else:
                    self.ready(fd, events)
            if self.idle_close_s is not None and time.monotonic() >= next_check:
                self.close_idle(self.idle_close_s)
                next_check = time.monotonic() + min(1.0, self.idle_close_s / 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m appliance.peers.server")
    parser.add_argument("--listen", nargs=2, action="append", required=True, metavar=("ADDRESS", "PORT"))
    parser.add_argument("--idle-close", type=float, metavar="SECONDS")
    options = parser.parse_args()
    LanServer([(address, int(port)) for address, port in options.listen], options.idle_close).run()


if __name__ == "__main__":
    main()
