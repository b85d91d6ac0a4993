# SPDX-License-Identifier: Apache-2.0
"""What a server asked for by the proxy: its socket, while a way to the client is looked for."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass


@dataclass(slots=True)
class AttachRequest:
    """fd: its socket, ours until `close`. preamble: what it is told before the client's first byte. early: its bytes
    for the client that came with the request. timeout_s: how long the client may take to wake."""

    fd: int
    preamble: bytes
    early: bytes
    timeout_s: float

    def dup(self) -> int:
        """A descriptor for the engine, which owns it from the command on and closes it when it refuses."""
        return os.dup(self.fd)

    def socket(self) -> socket.socket:
        """A socket of its own, not blocking."""
        made = socket.socket(fileno=self.dup())
        made.setblocking(False)
        return made

    @property
    def gone(self) -> bool:
        """Whether it has ended, which is not noticed while it waits. One that has closed its sending side alone counts
        as gone, too: the two cannot be told apart."""
        with self.socket() as sock:
            try:
                return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True

    def close(self) -> None:
        os.close(self.fd)
