# SPDX-License-Identifier: Apache-2.0
"""Dialling a client: the appliance connects to it, as the server would if it could (seed figure 23).

The connection is made from where the client would find the service itself, and is the engine's from then on: it sleeps,
wakes and is found like one that the client has made. Clients are dialled only in the networks that the configuration
names, since whoever may ask the proxy could otherwise reach whatever the appliance can."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from errno import (
    EACCES,
    EADDRINUSE,
    EADDRNOTAVAIL,
    EAFNOSUPPORT,
    ECANCELED,
    ECONNRESET,
    EEXIST,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOENT,
    ENOMEM,
    ETIMEDOUT,
)
from typing import Final, NamedTuple

from appliance.frontends.target import Address
from appliance.wire import Command, Event, Op, unpack_address
from control.config import Absent
from control.core.ports import CommandsPort, EnginePort
from control.core.states import Cause, State
from control.reach.dialled import Dialled

log = logging.getLogger("roost.reach")

ADOPT_S: Final = 5.0
"""How long the engine may take to adopt a connection."""


OURS: Final = (EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EMFILE, ENFILE, ENOBUFS, ENOENT, ENOMEM)
"""Errnos that say nothing about the client."""


class Dialling(NamedTuple):
    """What came of it: an errno, or 0 and the connection's packed key; id: its number, 0 where it was there already."""

    error: int
    key: bytes = b""
    id: int = 0


class Dialler:
    """All of it runs in one event loop, but for `wanted`. service: the number of the one whose clients are dialled.
    is_own: whether the appliance itself has this address."""

    def __init__(self, policy: Absent, engine: EnginePort, dispatcher: CommandsPort, service: int, dialled: Dialled,
                 is_own: Callable[[str], bool]) -> None:  # fmt: skip
        self._policy = policy
        self._engine = engine
        self._dispatcher = dispatcher
        self._service = service
        self._networks = [ipaddress.ip_network(network) for network in policy.dial_networks]
        self._dialled = dialled
        self._is_own = is_own
        self._under_way: dict[Address, asyncio.Task[Dialling]] = {}
        self._for_doors: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.made = 0
        """Connections since the start."""

    def begin(self) -> None:
        """Servers that come through a router's doors are heard in the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    @property
    def busy(self) -> bool:
        """Whether clients are being dialled."""
        return bool(self._under_way or self._for_doors)

    def may(self, where: Address) -> bool:
        """Whether the policy lets this be dialled."""
        ip = ipaddress.ip_address(where.host)
        special = ip.is_loopback or ip.is_unspecified or ip.is_multicast
        allowed = any(ip in network for network in self._networks if network.version == ip.version)
        return where.port > 0 and allowed and not special and not self._is_own(where.host)

    async def dial(self, client: str, where: Address, server: bytes) -> Dialling:
        """Connect to the client; those who want the same one at once get the same connection. client: how failures are
        counted. server: the packed address of who wants it."""
        task = self._under_way.get(where)
        if task is None:
            if len(self._under_way) >= self._policy.dial_limit:
                log.warning("%s is not dialled: %d clients are being dialled already ([absent] dial_limit)",
                            client, len(self._under_way))  # fmt: skip
                return Dialling(EMFILE)
            task = self._under_way[where] = asyncio.ensure_future(self._dial(client, where, server))
            task.add_done_callback(lambda _: self._under_way.pop(where))
        return await asyncio.shield(task)

    async def _dial(self, client: str, where: Address, server: bytes) -> Dialling:
        fd, key = self._engine.dial(self._service, (where.host, where.port), server)
        if fd == -EEXIST:
            return Dialling(0, key)
        error = -fd if fd < 0 else 0
        if not error:
            sock = socket.socket(fileno=fd)
            error = await self._connected(sock, where)
        if error:
            log.info("%s cannot be dialled at %s port %d: %s", client, where.host, where.port, os.strerror(error))
            if error not in OURS:
                self._dialled.failed(client)
            return Dialling(error)
        self._dialled.succeeded(client)
        # The engine's from the command on, which closes it when it refuses.
        command = Command(Op.ADOPT, Cause.SERVER_ATTACH, key=key, fd=sock.detach(), count=self._service)
        outcome = await asyncio.wrap_future(self._dispatcher.command(command, [State.STANDBY], ADOPT_S))
        if outcome.error or outcome.state != State.STANDBY:
            return Dialling(outcome.error or ECONNRESET)
        self.made += 1
        return Dialling(0, key, outcome.id)

    async def _connected(self, sock: socket.socket, where: Address) -> int:
        """0, or an errno and it is closed."""
        error = ECANCELED
        try:
            async with asyncio.timeout(self._policy.dial_timeout):
                await asyncio.get_running_loop().sock_connect(sock, (where.host, where.port))
            error = 0
        except TimeoutError:
            error = ETIMEDOUT
        except OSError as why:
            error = why.errno or ECONNRESET
        finally:
            if error:
                sock.close()
        return error

    # -- for servers that come through a router's doors ---------------------------------------------------------------

    def wanted(self, event: Event) -> None:
        """An event of type WANTED, in the dispatcher's thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_for_door, event)

    def _begin_for_door(self, event: Event) -> None:
        task = asyncio.ensure_future(self._dial_for_door(event))
        self._for_doors.add(task)
        task.add_done_callback(self._for_doors.discard)

    async def _dial_for_door(self, event: Event) -> None:
        key = event.record.key
        where = Address(unpack_address(key.client), self._policy.dial_port or key.client_port)
        error = EACCES
        if self.may(where):
            error = (await self.dial(where.host, where, event.served.server)).error
        if error:
            self._engine.submit([Command(Op.ADOPT, key=key, error=error)])

    async def close(self) -> None:
        """End what is under way."""
        tasks = [*self._for_doors, *self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
