# SPDX-License-Identifier: Apache-2.0
"""The ways to the clients of one daemon, put together: what its parts are made of, when they begin and end."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping

from appliance.frontends.target import Target
from appliance.wire import Key
from control.clients.registry import Registry
from control.config import Config, Service
from control.dispatch.dispatcher import EnginePort, Monitor
from control.reach.absent import Absent
from control.reach.agents import Agents, Settings
from control.reach.arrivals import Arrivals
from control.reach.daemon_links import Links
from control.reach.dialled import Dialled
from control.reach.dialling import Dialler
from control.reach.linker import Linker
from control.reach.telling import Telling
from control.store.store import Store


class Reach:
    """services: by number, as the daemon keeps them. tls: of agents, None: none."""

    def __init__(self, config: Config, engine: EnginePort, monitor: Monitor, store: Store, names: Registry,
                 services: Mapping[int, Service], tls: ssl.SSLContext | None = None) -> None:  # fmt: skip
        self._config = config
        self._names = names
        kinds = {index: service.kind for index, service in services.items() if service.kind != "server"}
        self.arrivals = Arrivals()
        self.spoken_for = Registry(store, engine, "agents")
        self.dialled = Dialled(store, names, config.absent.stay_after)
        self.links = Links(engine, kinds, lambda index: services[index].policy(config.policy).connect_timeout)
        self.linker = Linker(monitor, self.arrivals, self.links)
        settings = Settings(
            agents=config.agent,
            services={service.name: index for index, service in services.items() if service.kind != "agents"},
            hello_s=config.agents.hello_timeout,
            domain=config.attach.domain,
            tls=tls,
            tls_sessions=config.agents.tls_sessions,
        )
        self.agents = Agents(
            settings, engine, monitor, self.spoken_for, names, self.arrivals, self.dialled, self.links, self.linker
        )
        self.links.agents = self.agents
        self.telling = Telling(engine, monitor, names, self.dialled, services)
        names.listen(lambda name: self.arrivals.named("name", name))
        names.listen(self.telling.named)
        self.spoken_for.listen(lambda name: self.arrivals.named("agent", name))
        for hear in (self.spoken_for.hear, self.agents.hear, self.arrivals.hear, self.telling.hear):
            monitor.listen(hear)
        self.absent: Absent | None = None
        self._dialler: Dialler | None = None

    def load(self) -> bool:
        """Read what the store has of it; whether that succeeded. Once."""
        if self.spoken_for.loaded:
            return True
        self.dialled.load()
        return self.spoken_for.load()

    def begin(
        self, find: Callable[[Target], Key], is_own: Callable[[str], bool], listener: socket.socket | None
    ) -> None:
        """Begin, in the running event loop. find: the connection of a target, or OSError. is_own: whether the appliance
        has an address. listener: where the engine links agents and held clients to; it is closed by `close`."""
        policy = self._config.absent
        self.arrivals.begin()
        self.agents.begin()
        if listener is not None:
            self.links.serve(listener)
        if "dial" in policy.steps:
            self._dialler = Dialler(policy.dial_networks, policy.dial_timeout, policy.dial_limit, self.dialled, is_own)
        self.absent = Absent(
            policy,
            self._config.attach.domain,
            self._names,
            self.arrivals,
            self.linker,
            find,
            self.agents,
            self._dialler,
        )

    async def close(self) -> None:
        """End what goes through the daemon."""
        await self.links.close()
        if self._dialler is not None:
            await self._dialler.close()

    def counts(self) -> dict[str, int]:
        """Since the start; dialled: connections that live."""
        return {**self.agents.counts, "dialled": self._dialler.open if self._dialler else 0}
