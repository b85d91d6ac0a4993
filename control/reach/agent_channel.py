# SPDX-License-Identifier: Apache-2.0
"""The messages on one link of an agent's control connection: lines of JSON, inside of TLS where that is used.

A TLS handshake is worked out in a thread, so that those who begin one after another do not hold up the event loop.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any

from appliance.agent.roost_agent import Lines, ProtocolError, encode
from appliance.bounds import CrowdedError, Turns, source_of
from appliance.wire import unpack_address
from control.reach.daemon_links import Link
from control.reach.tls import TlsState


class AgentChannel:
    """turns: of handshakes. tls: None: none."""

    def __init__(self, link: Link, turns: Turns, tls: TlsState | None = None) -> None:
        self.link = link
        self.tls = tls
        self.lines = Lines()
        self._turns = turns

    async def _opened(self, data: bytes) -> bytes:
        if self.tls is None:
            return data
        if self.tls.shaken:
            return self.tls.receive(data)
        try:
            async with self._turns.of(source_of(unpack_address(self.link.key.client))):
                return await self._turns.work(partial(self.tls.receive, data))
        except CrowdedError:
            raise ProtocolError("too many TLS handshakes from its address at once") from None

    async def next(self) -> dict[str, Any] | None:
        """The next message; None: the link ended. Raises ProtocolError, ssl.SSLError or OSError. Cancelled during a TLS
        handshake, it has lost bytes; otherwise none."""
        while True:
            if self.tls and (answer := self.tls.outgoing()):
                await self.link.write(answer)
            if (message := self.lines.next_message()) is not None:
                return message
            data, self.link.waiting = self.link.waiting or await self.link.read(), b""
            if not data:
                if self.lines.unfinished:
                    raise ProtocolError("half a line")
                return None
            self.lines.feed(await self._opened(data))

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
