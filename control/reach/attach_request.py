# SPDX-License-Identifier: Apache-2.0
"""What a server asked for by the proxy: its socket, while a way to the client is looked for."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from errno import ECANCELED, ENOTCONN
from typing import Any, Final

from appliance.wire import pack_address

LOOK_S: Final = 1.0
"""How often it is looked whether a server that waits has gone."""


@dataclass(slots=True)
class AttachRequest:
    """sock: its socket, not blocking; its owner closes it when an answer is found. preamble: what it is told before the
    client's first byte. early: its bytes for the client that came with the request. timeout_s: how long the client may
    take to wake. What is found on the way is noted here for the record of it (attaches.py)."""

    sock: socket.socket
    preamble: bytes
    early: bytes
    timeout_s: float
    step: str = ""
    """Of [absent], by which the client came."""
    key: bytes = b""
    """Of the connection that was tried last, packed."""
    id: int = 0
    service: int = 0
    token: int = 0
    """Of the engine's command that linked it; 0: the daemon linked it by itself."""
    spoken: bool = False
    """The client had said something already."""
    error: int = ECANCELED
    """What the server is told; 0: it has its client. ECANCELED: the daemon ended, or failed, before it was known."""

    @property
    def peer(self) -> bytes:
        """The server's packed address; zeros: it has gone, or has none."""
        with suppress(OSError, ValueError, IndexError):
            return pack_address(self.sock.getpeername()[0])
        return bytes(16)

    @property
    def gone(self) -> bool:
        """Whether it has ended. One that has closed its sending side alone counts as gone, too: the two cannot be told
        apart."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    async def wait(self, *comes: asyncio.Future[Any]) -> None:
        """Until one of these is done. Raises OSError, ENOTCONN, when the server has gone before."""
        while not (await asyncio.wait(comes, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED))[0]:
            if self.gone:
                raise OSError(ENOTCONN, "the server has gone")
