#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client that stays connected: reference code for clients that can be changed (Python 3.9, standard library alone).

    python3 persistent_client.py HOST PORT

    power up -> connect -> serve requests until the connection ends -> wait a little -> connect -> ...

It answers a line "ping" with "pong", and stands for whatever your client does. Three things matter:

- It connects by itself and stays connected: servers reach it by the connection that it made, through any firewall.
- It sends nothing to stay connected. TCP keep-alives do that; the appliance answers them for a connection that sleeps.
- When the connection ends it comes again, after a time that grows with each failure and differs from client to client.
"""

from __future__ import annotations

import random
import socket
import sys
import time

KEEPALIVE_S = 60  # shorter than what the networks on the way take to forget a quiet connection
BACKOFF_FIRST_S = 0.5
BACKOFF_MOST_S = 60.0


def connect(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    sock = socket.create_connection((host, port), timeout=15)
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    return sock


def serve(sock: socket.socket) -> None:
    """Answer requests until the connection ends. Raises OSError."""
    with sock, sock.makefile("rb") as lines:
        for line in lines:
            if line.strip() == b"ping":
                sock.sendall(b"pong\n")


def main(host: str, port: int) -> None:
    failures = 0
    while True:
        try:
            sock = connect(host, port)
            failures = 0
            serve(sock)
        except OSError as error:
            print(f"{host} port {port}: {error}", file=sys.stderr)
            failures += 1
        time.sleep(random.random() * min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(failures, 16)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
