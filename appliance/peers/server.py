# SPDX-License-Identifier: Apache-2.0
"""The LAN's server: answers `HELLO x` with `WELCOME x`, `ECHO x` with the same line, and `ASK x` with `TELL - x` as a
client would that can be reached directly; on any number of connections.

    python -m appliance.peers.server --listen 10.3.0.2 8000 [--listen fd00:3::2 8000]

It closes a connection when the other end has, and never by itself.

Commands
  stats -> open, hellos, echoes
"""

from __future__ import annotations

import argparse
import os
import select

from appliance.peers.lines import Command, Loop, listen


class LanServer:
    def __init__(self, listens: list[tuple[str, int]]) -> None:
        self.loop = Loop()
        self.listeners = {sock.fileno(): sock for sock in (listen(address, port) for address, port in listens)}
        for fd in self.listeners:
            self.loop.epoll.register(fd, select.EPOLLIN)
        self.open: set[int] = set()
        self.partial: dict[int, bytes] = {}
        self.unsent: dict[int, bytes] = {}
        self.hellos = self.echoes = 0
        self.loop.command("stats", self.do_stats)

    def do_stats(self, command: Command) -> None:
        self.loop.reply(command, open=len(self.open), hellos=self.hellos, echoes=self.echoes)

    def accept(self, listener: int) -> None:
        for _ in range(256):  # then let the others have their turn
            try:
                sock, _ = self.listeners[listener].accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            fd = sock.detach()
            self.open.add(fd)
            self.loop.epoll.register(fd, select.EPOLLIN)
            self.ready(fd, select.EPOLLIN)  # what came with the connection is answered before the next is accepted

    def close(self, fd: int) -> None:
        self.open.remove(fd)
        self.partial.pop(fd, None)
        self.unsent.pop(fd, None)
        os.close(fd)

    def ready(self, fd: int, events: int) -> None:
        if fd not in self.open:
            return  # closed earlier in this batch of events
        if events & select.EPOLLOUT:
            self.flush(fd)
            if fd not in self.open:
                return
        if not events & ~select.EPOLLOUT:
            return
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # an RST is an end, too
        if not data:
            self.close(fd)
            return
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
        return b"WHAT " + line + b"\n"

    def flush(self, fd: int) -> None:
        data = self.unsent.pop(fd, b"")
        try:
            sent = os.write(fd, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close(fd)
            return
        if sent < len(data):
            # Stop reading until the answers are taken, or a slow client would make us hold any number of them.
            self.unsent[fd] = data[sent:]
            self.loop.epoll.modify(fd, select.EPOLLOUT)
        else:
            self.loop.epoll.modify(fd, select.EPOLLIN)

    def run(self) -> None:
        while self.loop.running:
            for fd, events in self.loop.epoll.poll(None, 1024):
                if fd == 0:
                    self.loop.read_commands()
                elif fd in self.listeners:
                    self.accept(fd)
                else:
                    self.ready(fd, events)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m appliance.peers.server")
    parser.add_argument("--listen", nargs=2, action="append", required=True, metavar=("ADDRESS", "PORT"))
    options = parser.parse_args()
    LanServer([(address, int(port)) for address, port in options.listen]).run()


if __name__ == "__main__":
    main()
