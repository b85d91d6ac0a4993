# SPDX-License-Identifier: Apache-2.0
"""The two ends of chaos: long-lived sessions that carry checked byte streams both ways, in bursts and pauses.

    python -m appliance.peers.chaos server --listen 10.3.0.2 9000 --by header
    python -m appliance.peers.chaos client

Each direction is a stream of its own (appliance.peers.stream), so that every byte is compared at its place. Chunks are
1 byte to 64 KiB, mostly small, with pauses of 0 to --pause-ms between them; some receivers now and then stop reading
for a while, to close windows. A client's session is one connection; a server's is one too (by "stream": `stop` ends
the sending, and each end shuts its direction down after its last byte and reads on to the end of the other's), or as
many as the appliance makes, one after the other (by "header", "address": see chaos_server.py; there the server is
stopped first, and each client ends its session after its last byte). Totals travel beside the connections (stdout),
never through them.

Commands of the client
  connect  server [ip, port], count, first (number of the first session), addresses [ip...: session i has the i-th],
           mss, window (bytes, 0 = as it is; the window varies a little), mark (SO_MARK), timestamps, sack,
           window_scaling (true/false: sysctls of the client's namespace while the group connects)
           -> connected, failed {reason: n}
Commands of the server
  visit    proxy [ip, port] or null: from now on, come for clients to speak to, by HTTP CONNECT or by their own address
Commands of both
  start    pause_ms, lazy (share of sessions whose receiver pauses, 0..1)   -> connections
  stop     timeout_s, most_s -> sent {number: bytes}, once all is said; where a session has one link, once that has
           ended
  settle   sent {number: bytes the other end sent}, timeout_s, most_s -> lost_bytes, duplicated_bytes, reordered,
           corrupted_bytes, received_bytes, faults {reason: n}; of the server also made, came (links by the appliance,
           visits); once no link is left
A fault is a link that ended by anything but a FIN that was due ("open": nothing moved for timeout_s, or all of it took
most_s), or that came while another one of the same client was open.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Final

from appliance.peers.chaos_end import EDGES, HELLO, MAGIC, End, Link, Session
from appliance.peers.chaos_server import BY, ServerEnd
from appliance.peers.lines import Command, begin_connect, errno_name, error_of

_SYSCTLS: Final = {"timestamps": "tcp_timestamps", "sack": "tcp_sack", "window_scaling": "tcp_window_scaling"}


class ClientEnd(End):
    def __init__(self) -> None:
        super().__init__()
        self.loop.command("connect", self.do_connect)

    def do_connect(self, command: Command) -> None:
        """Blocks the loop until the group is connected: the sysctls hold for this group only."""
        first = int(command.get("first", 0))
        server = (str(command["server"][0]), int(command["server"][1]))
        addresses: list[str | None] = list(command.get("addresses") or [None])
        window = int(command.get("window", 0))
        asked = ((socket.IPPROTO_TCP, socket.TCP_MAXSEG, int(command.get("mss", 0))),
                 (socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window),
                 (socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * window),
                 (socket.SOL_SOCKET, socket.SO_MARK, int(command.get("mark", 0))))  # fmt: skip
        options = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), *(option for option in asked if option[2]))
        sysctls = {name: int(bool(command[key])) for key, name in _SYSCTLS.items() if key in command}
        before = {name: _sysctl(name) for name in sysctls}
        failed = Counter[str]()
        poll = select.poll()
        pending: dict[int, int] = {}
        for name, value in sysctls.items():
            _set_sysctl(name, value)
        try:
            for number in range(first, first + int(command["count"])):
                try:
                    fd = begin_connect(server, addresses[number % len(addresses)], options)
                except OSError as problem:
                    failed[errno_name(problem.errno or 0)] += 1
                    continue
                pending[fd] = number
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
                    self.introduce(fd, number)
        finally:
            for name, value in before.items():
                _set_sysctl(name, value)
        for fd in pending:
            failed["ETIMEDOUT"] += 1
            os.close(fd)
        self.loop.reply(command, connected=connected, failed=dict(failed))

    def introduce(self, fd: int, number: int) -> None:
        session = self.sessions[number] = Session()
        session.name(number, is_client=True)
        link = self.links[fd] = Link(fd, session)
        session.links.append(link)
        os.write(fd, HELLO.pack(MAGIC, number))  # 8 bytes into an empty buffer: always whole
        self.loop.epoll.register(fd, EDGES)
        self.begin(session)


def _sysctl(name: str) -> int:
    return int(Path(f"/proc/sys/net/ipv4/{name}").read_text())


def _set_sysctl(name: str, value: int) -> None:
    Path(f"/proc/sys/net/ipv4/{name}").write_text(str(value))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m appliance.peers.chaos")
    parser.add_argument("end", choices=("client", "server"))
    parser.add_argument("--listen", nargs=2, action="append", default=[], metavar=("ADDRESS", "PORT"))
    parser.add_argument("--by", choices=BY, default=BY[0], help="what says whose a link is")
    options = parser.parse_args()
    if options.end == "server":
        ServerEnd([(address, int(port)) for address, port in options.listen], options.by).run()
    else:
        ClientEnd().run()


if __name__ == "__main__":
    main()
