# SPDX-License-Identifier: Apache-2.0
"""Dialling a client: the appliance connects to it, as the server would if it could (seed figure 23).

The connection is made from where the client would find the service itself, and is the engine's from then on: it sleeps,
wakes and is found like one that the client has made. Clients are dialled only in the networks that the configuration
names, and at its ports, since whoever may ask the proxy could otherwise reach whatever the appliance can."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from errno import (
    EACCES,
    EADDRINUSE,
    EADDRNOTAVAIL,
    EAFNOSUPPORT,
    ECANCELED,
    ECONNRESET,
    EEXIST,
    EIO,
    EMFILE,
    ENFILE,
    ENOBUFS,
    ENOENT,
    ENOMEM,
    ETIMEDOUT,
)
from typing import Final, NamedTuple

from appliance.frontends.target import Address
from appliance.wire import Command, Event, Key, Op, unpack_address
from control.config import Absent, parse_ports
from control.core.logs import about
from control.core.ports import CommandsPort, EnginePort
from control.core.states import Cause, State
from control.reach.dialled import Dialled

log = logging.getLogger("roost.reach")

ADOPT_S: Final = 5.0
"""How long the engine may take to adopt a connection."""


OURS: Final = (EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EMFILE, ENFILE, ENOBUFS, ENOENT, ENOMEM)
"""Errnos that say nothing about the client."""


class Dialling(NamedTuple):
    """What came of it: an errno, or 0 and the connection's packed key. linked: of who has dialled, an errno or 0; None:
    the connection was there already, or it is another one's who wanted it at once."""

    error: int
    key: bytes = b""
    linked: int | None = None


Link = Callable[[Key, Command], Awaitable[int]]
"""Links a server to the connection with this key, which the command adopts; 0 or an errno. OSError: the server has
gone, and nothing was done."""


class Dialler:
    """All of it runs in one event loop, but for `wanted`. services: the number of the one whose clients are dialled, by
    version of IP. is_own: whether the appliance itself has this address. may_for_doors: whether the policy lets a
    client with this address be dialled for a server that connects to it by a router."""

    def __init__(self, policy: Absent, engine: EnginePort, dispatcher: CommandsPort, services: Mapping[int, int],
                 dialled: Dialled, is_own: Callable[[str], bool],
                 may_for_doors: Callable[[str], bool] = lambda _: True) -> None:  # fmt: skip
        self._policy = policy
        self._engine = engine
        self._dispatcher = dispatcher
        self._services = services
        self._networks = [ipaddress.ip_network(network) for network in policy.dial_networks]
        ports = [(policy.dial_port, policy.dial_port)] if policy.dial_port else map(parse_ports, policy.dial_ports)
        self._ports = [range(first, last + 1) for first, last in ports]
        self._dialled = dialled
        self._is_own = is_own
        self._may_for_doors = may_for_doors
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
        """Whether the policy lets this be dialled. The log says so when it is the port."""
        ip = ipaddress.ip_address(where.host)
        special = ip.is_loopback or ip.is_unspecified or ip.is_multicast
        allowed = any(ip in network for network in self._networks if network.version == ip.version)
        if not allowed or special or ip.version not in self._services or self._is_own(where.host):
            return False
        if any(where.port in ports for ports in self._ports):
            return True
        log.info("%s is not dialled: port %d is none of [absent] dial_ports", where.host, where.port,
                 extra=about(client=where.host))  # fmt: skip
        return False

    async def dial(self, client: str, where: Address, server: bytes, link: Link | None = None) -> Dialling:
        """Connect to the client; those who want the same one at once get the same connection, unless it has ended
        before the first of them was told. client: how failures are counted. server: the packed address of who wants it;
        link: how it gets the client before that can say anything to its service's server."""
        while (task := self._under_way.get(where)) is not None:
            if error := (await asyncio.shield(task)).error:
                return Dialling(error)
        if len(self._under_way) >= self._policy.dial_limit:
            log.warning("%s is not dialled: %d clients are being dialled already ([absent] dial_limit)",
                        client, len(self._under_way), extra=about(client=client))  # fmt: skip
            return Dialling(EMFILE)
        task = self._under_way[where] = asyncio.ensure_future(self._dial_alone(client, where, server, link))
        return await asyncio.shield(task)

    async def _dial_alone(self, client: str, where: Address, server: bytes, link: Link | None) -> Dialling:
        try:
            return await self._dial(client, where, server, link)
        finally:
            del self._under_way[where]  # here: a task's callbacks come later, and until then it would be joined in vain

    async def _dial(self, client: str, where: Address, server: bytes, link: Link | None) -> Dialling:
        service = self._services[ipaddress.ip_address(where.host).version]
        fd, key = self._engine.dial(service, (where.host, where.port), server)
        if fd == -EEXIST:
            return Dialling(0, key)
        error = -fd if fd < 0 else 0
        if not error:
            sock = socket.socket(fileno=fd)
            sock.setblocking(False)
            error = await self._connected(sock, where)
        if error:
            log.info("%s cannot be dialled at %s port %d: %s", client, where.host, where.port, os.strerror(error),
                     extra=about(client=client))  # fmt: skip
            if error not in OURS:
                self._dialled.failed(client)
            return Dialling(error)
        self._dialled.succeeded(client)
        self.made += 1
        # The engine's from the command on, which closes it when it refuses.
        adopt = Command(Op.ADOPT, Cause.SERVER_ATTACH, key=key, fd=sock.detach(), count=service)
        if link is not None:
            with suppress(OSError):
                return Dialling(0, key, await link(Key.unpack(key), adopt))
        outcome = await asyncio.wrap_future(self._dispatcher.command(adopt, [State.STANDBY], ADOPT_S))
        lost = outcome.error or (0 if outcome.state == State.STANDBY else ECONNRESET)
        return Dialling(lost, key)

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
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._begin_for_door, event)

    def _begin_for_door(self, event: Event) -> None:
        task = asyncio.ensure_future(self._dial_for_door(event))
        self._for_doors.add(task)
        task.add_done_callback(self._for_doors.discard)

    async def _dial_for_door(self, event: Event) -> None:
        key = event.record.key
        where = Address(unpack_address(key.client), self._policy.dial_port or key.client_port)
        error = EACCES
        try:
            if self.may(where) and self._may_for_doors(where.host):
                error = (await self.dial(where.host, where, event.served.server)).error
        except Exception:  # the server that waits is told, whatever the defect
            log.exception("%s was not dialled", key.client_text, extra=about(client=key))
            error = EIO
        if error:
            self._engine.submit([Command(Op.ADOPT, key=key, error=error)])

    async def close(self) -> None:
        """End what is under way."""
        tasks = [*self._for_doors, *self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
