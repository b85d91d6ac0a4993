# SPDX-License-Identifier: Apache-2.0
"""What is done for a server that asks for a client which is not connected: the steps of [absent], one after another.

A step that cannot apply (no agent speaks for the client, the policy forbids to dial it) is passed over; what the
server is told in the end is what the last step that did apply came to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from errno import EIO, ENOENT, ENOTCONN, ETIMEDOUT
from functools import partial

from appliance.frontends.target import Address, Name, Target, parse_address, target_text
from appliance.wire import Key, pack_address
from control.clients.absence import Absence
from control.clients.locate import Locator
from control.clients.registry import Registry, RegistryError
from control.config import Absent as Policy
from control.core.logs import about
from control.reach.agents import Agents
from control.reach.arrivals import Arrivals, What
from control.reach.attach_request import AttachRequest
from control.reach.dialling import Dialler
from control.reach.linker import Linker

log = logging.getLogger("roost.reach")

ABSENT = (ENOENT, ENOTCONN)
"""The errnos that say so."""


class Absent:
    """All of it runs in one event loop. absence: what may be done for whom."""

    def __init__(self, policy: Policy, absence: Absence, locator: Locator, names: Registry, spoken_for: Registry,
                 arrivals: Arrivals, linker: Linker, agents: Agents, dialler: Dialler | None) -> None:  # fmt: skip
        self._policy = policy
        self._absence = absence
        self._spoken_for = spoken_for
        self._locator = locator
        self._names = names
        self._arrivals = arrivals
        self._linker = linker
        self._agents = agents
        self._dialler = dialler

    async def reach(self, target: Target, error: int, server: AttachRequest) -> int:
        """0, or an errno. error: as found already; the answer when it is none of ABSENT."""
        if error not in ABSENT:
            return error
        steps = {"agent": self._agent, "dial": self._dial, "wait": self._wait}
        try:
            may = await self._may_be_tried(target)
        except OSError as why:
            log.warning("%s is not reached: %s", target_text(target), why.strerror or why)
            return why.errno or EIO
        for step in filter(may.__contains__, self._policy.steps):
            try:
                outcome = await steps[step](target, server)
            except OSError as why:
                return why.errno or EIO
            if outcome == 0:
                server.step = step
                return 0
            error = error if outcome is None else outcome
        return error

    async def _may_be_tried(self, target: Target) -> Collection[str]:
        """Raises OSError, EIO, when that cannot be read."""
        if isinstance(target, Address):
            return self._absence.of_address(target.host)
        if (name := self._locator.local_name(target)) is None:
            return ()

        return await self._absence.of_name(
            name, partial(self._locator.named, target), partial(self._spoken_for.look_up, name)
        )

    async def _agent(self, target: Target, server: AttachRequest) -> int | None:
        name = self._locator.local_name(target) if isinstance(target, Name) else None
        if name is None:
            return None
        outcome = await self._agents.reach(name, server, self._policy.agent_timeout)
        return None if outcome == ENOTCONN else outcome

    async def _dial(self, target: Target, server: AttachRequest) -> int | None:
        client, where = await self._whereabouts(target)
        if self._dialler is None or where is None or not self._dialler.may(where):
            return None
        dialling = await self._dialler.dial(client, where, server.peer, partial(self._linker.link_adopted, server))
        if dialling.error:
            return dialling.error
        if dialling.linked is not None:
            if not dialling.linked and isinstance(target, Name):
                await self._name(target, client, dialling.key, server.id)
            return dialling.linked
        if server.gone:
            return ENOTCONN
        deadline = asyncio.get_running_loop().time() + server.timeout_s
        return await self._linker.link_when_free(Key.unpack(dialling.key), server, deadline)

    async def _name(self, target: Name, name: str, key: bytes, number: int) -> None:
        """Until this connection ends, servers that ask for the name get it; unless the client has come by itself."""
        try:
            named = await self._locator.named(target)
            if named is None or not named.connected:
                await asyncio.to_thread(self._names.give, name, key, number)
        except (OSError, RegistryError) as why:
            log.warning("%s: %s", name, why, extra=about(connection=number, client=Key.unpack(key), name=name))

    async def _whereabouts(self, target: Target) -> tuple[str, Address | None]:
        """How the client is called, and where it is, or was when it was last heard of."""
        if isinstance(target, Address):
            return target.host, Address(target.host, self._policy.dial_port or target.port)
        name, named = self._locator.local_name(target), await self._locator.named(target)
        if name is None or named is None:
            return "", None
        host = parse_address(Key.unpack(named.key).client_text).host
        return name, Address(host, self._policy.dial_port or target.port)

    async def _wait(self, target: Target, server: AttachRequest) -> int | None:
        if isinstance(target, Address):
            what: What = ("address", pack_address(target.host), target.port.to_bytes(2, "big"))
        elif (name := self._locator.local_name(target)) is not None:
            what = ("name", name)
        else:
            return None
        deadline = asyncio.get_running_loop().time() + self._policy.wait
        while True:
            with self._arrivals.expect(what) as arrival:
                try:
                    found = await self._locator.wanted(target)
                except OSError as error:
                    if error.errno not in ABSENT:
                        return error.errno
                    found = []
                for event in found:
                    if server.gone:
                        return ENOTCONN
                    outcome = await self._linker.link_when_free(event.record.key, server, deadline)
                    if outcome not in ABSENT:
                        return outcome
                in_time = asyncio.get_running_loop().time() < deadline
                if in_time and any(not event.candidate for event in found):
                    continue  # it has ended meanwhile, and there may be another one
                try:
                    async with asyncio.timeout_at(deadline):
                        await server.wait(arrival)
                except TimeoutError:
                    return ETIMEDOUT
