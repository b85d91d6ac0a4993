# SPDX-License-Identifier: Apache-2.0
"""Joining two sockets in the daemon, for a connection that the engine does not have: splice(2) through a pipe.

The bytes stay in the kernel; Python runs once for each 64 KB or each wait. Ends are passed on one by one, so each side
may go on speaking after the other has finished. Costs two sockets and two pipes: six descriptors."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

CHUNK: Final = 64 * 1024
_FLAGS: Final = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


async def join(one: socket.socket, other: socket.socket) -> None:
    """Move bytes both ways until both have ended, or one of them breaks; closes both. They must not be blocking."""
    ways = [asyncio.ensure_future(_move(one, other)), asyncio.ensure_future(_move(other, one))]
    try:
        await asyncio.gather(*ways)
    except OSError:
        for sock in (one, other):  # the other side learns it by a reset, too: what it sent is lost
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        one.close()
        other.close()


async def _move(source: socket.socket, sink: socket.socket) -> None:
    """Until the source ends. Raises OSError."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            taken = await _spliced(source.fileno(), writer, CHUNK, source)
            if not taken:
                sink.shutdown(socket.SHUT_WR)
                return
            while taken:
                taken -= await _spliced(reader, sink.fileno(), taken, sink, writing=True)
    finally:
        os.close(reader)
        os.close(writer)


async def _spliced(source: int, sink: int, size: int, waited_for: socket.socket, writing: bool = False) -> int:
    while True:
        try:
            return os.splice(source, sink, size, flags=_FLAGS)
        except BlockingIOError:
            await ready(waited_for, writing)


async def ready(sock: socket.socket, writing: bool = False) -> None:
    """Wait until a socket can be read, or written; may be cancelled."""
    loop = asyncio.get_running_loop()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    is_ready = asyncio.Event()
    add(sock, is_ready.set)
    try:
        await is_ready.wait()
    finally:
        remove(sock)
