# SPDX-License-Identifier: Apache-2.0
"""Active checks of a server: does it take a connection, does it answer HTTP? Its caller says how long that may take."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from errno import EADDRNOTAVAIL, EMFILE, ENFILE, ENOBUFS, ENOMEM
from typing import Final

from appliance.wire import ServerAddress, endpoint_text

LINE_MAX: Final = 1024
_OURS: Final = {EADDRNOTAVAIL, EMFILE, ENFILE, ENOBUFS, ENOMEM}
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
"""RFC 9112 section 4."""


class CheckFailed(Exception):
    """The server did not pass; the message says why."""


async def check(server: ServerAddress, kind: str, path: str, timeout_s: float) -> None:
    """A check of the kind "tcp" or "http"; raises CheckFailed, or OSError where it is this machine that cannot."""
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, server)
                if kind == "http":
                    await _get(sock, server, path)
    except TimeoutError:
        raise CheckFailed(f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        if error.errno in _OURS:
            raise
        raise CheckFailed(failure(error.errno or 0)) from None


def failure(error: int) -> str:
    """ "connection refused" """
    return os.strerror(error).lower() if error else "no connection"


async def _get(sock: socket.socket, server: ServerAddress, path: str) -> None:
    loop = asyncio.get_running_loop()
    request = f"GET {path} HTTP/1.1\r\nHost: {endpoint_text(server)}\r\nUser-Agent: roost\r\nConnection: close\r\n\r\n"
    await loop.sock_sendall(sock, request.encode("ascii"))
    answer = b""
    while b"\n" not in answer and len(answer) < LINE_MAX:
        data = await loop.sock_recv(sock, LINE_MAX - len(answer))
        if not data:
            break
        answer += data
    status = _STATUS.match(answer)
    if status is None:
        raise CheckFailed("no HTTP answer")
    if status[1][:1] not in b"23":
        raise CheckFailed(f"GET {path} is answered {status[1].decode()}")
