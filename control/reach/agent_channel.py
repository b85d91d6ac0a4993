# SPDX-License-Identifier: Apache-2.0
"""The messages on one link of an agent's control connection: lines of JSON, inside of TLS where that is used."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

from appliance.agent.roost_agent import Lines, ProtocolError, encode
from control.reach.daemon_links import Link
from control.reach.tls import TlsState


class AgentChannel:
    """tls: None: none."""

    def __init__(self, link: Link, tls: TlsState | None = None) -> None:
        self.link = link
        self.tls = tls
        self.lines = Lines()
        self.lines.feed(self._opened(link.waiting))
        link.waiting = b""

    def _opened(self, data: bytes) -> bytes:
        return self.tls.receive(data) if self.tls and data else data

    async def next(self) -> dict[str, Any] | None:
        """The next message; None: the link ended. Raises ProtocolError, ssl.SSLError or OSError."""
        while True:
            if self.tls and (answer := self.tls.outgoing()):
                await self.link.write(answer)
            if (message := self.lines.next_message()) is not None:
                return message
            data = await self.link.read()
            if not data:
                if self.lines.unfinished:
                    raise ProtocolError("half a line")
                return None
            self.lines.feed(self._opened(data))

    async def write(self, message: Mapping[str, object]) -> None:
        """Raises OSError."""
        data = encode(dict(message))
        if self.tls:
            self.tls.seal(data)
            data = self.tls.outgoing()
        await self.link.write(data)

    def finish(self) -> None:
        """Nothing more will be said on this link."""
        with contextlib.suppress(OSError):
            self.link.sock.shutdown(socket.SHUT_WR)
