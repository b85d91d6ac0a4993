# SPDX-License-Identifier: Apache-2.0
"""A request that becomes the byte stream to a client: POST /v1/connections/ID/attach with `Upgrade: roost`, or CONNECT.

The daemon gives a ticket (control/reach/tickets.py), with which this process connects to it like any server; from then
on it moves bytes between the two connections, some 256 KiB of each way at most waiting here.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, Protocol

PROTOCOL: Final = b"roost"
"""Of the header field Upgrade (RFC 9110 7.8)."""

EXTENSION: Final = "roost.upgrade"
"""Of an ASGI scope: the connection, where the request asks for PROTOCOL."""

SWITCHING: Final = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: roost\r\n\r\n"
CONNECTED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
PART: Final = 64 * 1024
CONNECT_S: Final = 5.0
CLOSE_S: Final = 10.0
RESETS: Final = struct.pack("ii", 1, 0)
"""SO_LINGER, by which close() resets the connection."""

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Upgrading(Protocol):
    """A connection whose request wants an upgrade (protocol.py). lost: is done when it is. switching: the answer if it
    is granted."""

    lost: asyncio.Future[None]
    switching: bytes

    def take_over(self) -> AbstractAsyncContextManager[Ends]: ...


class RefusedError(Exception):
    """There is no way to the client: a status, and a sentence."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


@asynccontextmanager
async def attached(ticket: Mapping[str, Any]) -> AsyncIterator[Ends]:
    """The connection to a client that the daemon's ticket is for, within a `with`. The client may take a while to wake,
    which the daemon bounds. Raises RefusedError."""
    host, _, port = ticket["address"].rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, int(port), limit=PART)
    except (OSError, TimeoutError):
        raise RefusedError(503, "the daemon takes no attach now") from None
    try:
        writer.write(f"CONNECT {ticket['authority']} HTTP/1.1\r\nHost: {ticket['authority']}\r\n\r\n".encode())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if (status := int(head.split(b" ", 2)[1])) != 200:
                why = (await reader.read(1000)).decode(errors="replace").strip()
                raise RefusedError(status, why)
        except (OSError, EOFError, ValueError, IndexError):
            raise RefusedError(503, "the daemon ended the attach") from None
        yield reader, writer
        await flushed(writer)
    finally:
        writer.transport.abort()


async def flushed(writer: asyncio.StreamWriter) -> None:
    """Close it; what is in its buffer goes out first, within CLOSE_S."""
    writer.transport.set_write_buffer_limits(0)  # of TLS, closing leaves out what the socket has not taken
    with suppress(OSError):  # TimeoutError is one
        async with asyncio.timeout(CLOSE_S):
            await writer.drain()
            writer.close()
            await writer.wait_closed()


async def relay(client: Ends, server: Ends) -> None:
    """Bytes both ways, until both ends have ended. What one has said to its end the other is told. Raises OSError: one
    end is gone, and the other is not to take that for its end."""
    pairs = ((client[0], server[1]), (server[0], client[1]))
    ways = [asyncio.create_task(_copy(*pair)) for pair in pairs]
    both = all(writer.can_write_eof() for _, writer in pairs)  # else TLS is spoken, which ends both ways at once
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION if both else asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
    for way in ways:
        if not way.cancelled() and (error := way.exception()) is not None:
            for _, writer in pairs:
                with suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
            raise error


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PART):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
