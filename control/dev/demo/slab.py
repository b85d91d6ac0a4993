# SPDX-License-Identifier: Apache-2.0
"""What an idle kernel TCP socket costs on this machine, from the growth of the kernel's slab caches."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

SOCKETS: Final = 1500
"""In a round: a hundred times what SLUB's lists for each processor can hide."""

ROUNDS: Final = 3
SLABINFO: Final = Path("/proc/slabinfo")


def objects(text: str) -> dict[str, tuple[int, int]]:
    """Cache name -> (objects in use, bytes of one) out of /proc/slabinfo, version 2.1; slabinfo(5)."""
    found: dict[str, tuple[int, int]] = {}
    for line in text.splitlines()[2:]:
        name, active, _, size, *_ = line.split()
        found[name] = (int(active), int(size))
    return found


def bytes_each(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], sockets: int) -> float:
    """Bytes for each socket in the caches that grew by one object a socket.

    Only in those: the rest of the machine goes on living, and what it takes meanwhile is no socket's. SLUB counts a
    processor's whole current slab as in use, hence the tolerance."""
    total = 0.0
    for name, (active, size) in after.items():
        each = (active - before.get(name, (0, size))[0]) / sockets
        if each > 0.75:
            total += max(round(each), 1) * size
    return total


def kernel_socket_bytes() -> float:
    """Measured with connected idle TCP sockets on this thread's loopback; the median of some rounds. Needs root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = SOCKETS * ROUNDS + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, needed)), hard))
    try:
        # All stay open to the end: what is freed comes back by and by (RCU), and would hide the next round's growth.
        with ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=SOCKETS))
            return median(_round(stack, listener) for _ in range(ROUNDS))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _round(stack: ExitStack, listener: socket.socket) -> float:
    before = objects(SLABINFO.read_text(encoding="ascii"))
    for _ in range(SOCKETS // 2):
        for end in (stack.enter_context(socket.create_connection(listener.getsockname())), listener.accept()[0]):
            stack.enter_context(end)
            # An RST at the end: no byte is unread, and no socket stays in TIME-WAIT.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    after = objects(SLABINFO.read_text(encoding="ascii"))
    return bytes_each(before, after, SOCKETS)
