# SPDX-License-Identifier: Apache-2.0
"""TLS with an agent, apart from any socket: the state outlives the links of a control connection that sleeps.

The engine closes its link to the daemon when an agent falls quiet, and the agent does not notice; so the TLS session
must be the connection's, not the link's. It is kept in the daemon's memory, 17 KB each, and dies with the daemon:
the agents are then reset when they are next needed, and come again. Freezing both legs (the persistent interface) would
not help: the other leg ends in this very process.
"""

from __future__ import annotations

import ssl
from typing import Final

HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection (RFC 8446 section 5.1: a record of type handshake)."""

CHUNK: Final = 64 * 1024


def server_context(certificate: str, private_key: str) -> ssl.SSLContext:
    """Raises OSError (ssl.SSLError is one) when the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # an agent begins anew; tickets would be sent to it for nothing
    context.load_cert_chain(certificate, private_key)
    return context


class TlsState:
    """The server's side of one TLS connection, sans-I/O. number: of the control connection that it belongs to. shaken:
    whether the handshake is through; until then `receive` takes milliseconds, without the GIL."""

    def __init__(self, context: ssl.SSLContext, number: int) -> None:
        self.number = number
        self.shaken = False
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, server_side=True)

    def receive(self, data: bytes) -> bytes:
        """What the agent said in these bytes, as far as it is whole. Raises ssl.SSLError."""
        self._in.write(data)
        said = b""
        try:
            if not self.shaken:
                self._ssl.do_handshake()
                self.shaken = True
            while part := self._ssl.read(CHUNK):
                said += part
        except ssl.SSLWantReadError:
            pass
        return said

    def seal(self, data: bytes) -> None:
        """Put data for the agent into `outgoing`. Raises ssl.SSLError before the handshake is through."""
        self._ssl.write(data)

    def outgoing(self) -> bytes:
        """Bytes to be sent to the agent."""
        return self._out.read()
