# SPDX-License-Identifier: Apache-2.0
"""Dialling a client: the appliance connects to it, as the server would if it could.

Such a connection is not the engine's: it is joined to the server's by splice.py, within a bound, and never sleeps. It
is made only towards the networks that the configuration names, since whoever may ask the proxy could otherwise reach
whatever the appliance can."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence
from errno import ECONNRESET, EMFILE, ETIMEDOUT
from typing import Final

from appliance.frontends.splice import join
from appliance.frontends.target import Address
from control.reach.attach_request import AttachRequest
from control.reach.dialled import Dialled

log = logging.getLogger("roost.reach")

KEEPALIVE_S: Final = 60


class Dialler:
    """All of it runs in one event loop. is_own: whether the appliance itself has this address."""

    def __init__(self, networks: Sequence[str], timeout_s: float, limit: int, dialled: Dialled,
                 is_own: Callable[[str], bool]) -> None:  # fmt: skip
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._timeout_s = timeout_s
        self._limit = limit
        self._dialled = dialled
        self._is_own = is_own
        self._joined: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        """Connections that were dialled and live."""
        return len(self._joined)

    def may(self, where: Address) -> bool:
        """Whether the policy lets this be dialled."""
        ip = ipaddress.ip_address(where.host)
        special = ip.is_loopback or ip.is_unspecified or ip.is_multicast
        allowed = any(ip in network for network in self._networks if network.version == ip.version)
        return where.port > 0 and allowed and not special and not self._is_own(where.host)

    async def dial(self, client: str, where: Address, server: AttachRequest) -> int:
        """Connect to the client and join it to the server; 0 or an errno. client: how failures are counted."""
        if len(self._joined) >= self._limit:
            log.warning("%s is not dialled: %d connections were dialled already", client, len(self._joined))
            return EMFILE
        sock = socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET)
        error = await self._connected(sock, where)
        if error:
            sock.close()
            log.info("%s cannot be dialled at %s port %d: errno %d", client, where.host, where.port, error)
            self._dialled.failed(client)
            return error
        self._dialled.succeeded(client)
        task = asyncio.ensure_future(self._join(sock, server.sock.dup(), server.preamble, server.early))
        self._joined.add(task)
        task.add_done_callback(self._joined.discard)
        return 0

    async def _connected(self, sock: socket.socket, where: Address) -> int:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, (where.host, where.port))
        except TimeoutError:
            return ETIMEDOUT
        except OSError as error:
            return error.errno or ECONNRESET
        return 0

    @staticmethod
    async def _join(client: socket.socket, server: socket.socket, preamble: bytes, early: bytes) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(server, preamble)
            await loop.sock_sendall(client, early)
            await join(client, server)
        except OSError as error:
            log.info("a connection that was dialled ended before it began: %s", error.strerror)
        finally:
            client.close()
            server.close()

    async def close(self) -> None:
        """End what was dialled."""
        tasks = list(self._joined)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
