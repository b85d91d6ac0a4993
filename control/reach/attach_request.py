# SPDX-License-Identifier: Apache-2.0
"""What a server asked for by the proxy: its socket, while a way to the client is looked for."""

from __future__ import annotations

import socket
from dataclasses import dataclass


@dataclass(slots=True)
class AttachRequest:
    """sock: its socket, not blocking; its owner closes it when an answer is found. preamble: what it is told before the
    client's first byte. early: its bytes for the client that came with the request. timeout_s: how long the client may
    take to wake."""

    sock: socket.socket
    preamble: bytes
    early: bytes
    timeout_s: float

    @property
    def gone(self) -> bool:
        """Whether it has ended, which is not noticed while it waits. One that has closed its sending side alone counts
        as gone, too: the two cannot be told apart."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
