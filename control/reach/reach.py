# SPDX-License-Identifier: Apache-2.0
"""The ways to the clients of one daemon, put together: what its parts are made of, when they begin and end."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from appliance.wire import Event, Limited
from control.clients.absence import Absence
from control.clients.locate import Locator
from control.clients.registry import Registry, RegistryError
from control.config import Config, Service
from control.core.ports import DispatcherPort, EnginePort
from control.reach.absent import Absent
from control.reach.agent_hello import Settings
from control.reach.agents import Agents
from control.reach.arrivals import Arrivals
from control.reach.attaches import Attaches
from control.reach.attaching import Attaching
from control.reach.daemon_links import DaemonLinks
from control.reach.dialled import Dialled
from control.reach.dialling import Dialler
from control.reach.linker import Linker
from control.reach.telling import Telling
from control.reach.tickets import Tickets
from control.store.store import Store

log = logging.getLogger("roost.reach")


class Reach:
    """services: by number, as the daemon keeps them. tls: of agents, None: none."""

    def __init__(self, config: Config, engine: EnginePort, dispatcher: DispatcherPort, store: Store, names: Registry,
                 services: Mapping[int, Service], locator: Locator, absence: Absence,
                 tls: ssl.SSLContext | None = None) -> None:  # fmt: skip
        kinds = {index: service.kind for index, service in services.items() if service.kind != "server"}
        policy, domain = config.absent, config.attach.domain
        self.arrivals = Arrivals()
        self.spoken_for = Registry(store, engine, "agents")
        self.dialled = Dialled(store, names, policy.stay_after)
        self.links = DaemonLinks(
            engine, self.arrivals, kinds, lambda index: services[index].policy(config.policy).connect_timeout
        )
        self.linker = Linker(dispatcher, self.arrivals, self.links)
        self._may_come = config.agent
        settings = Settings(
            agents=lambda: self._may_come,
            services=lambda: {one.name: index for index, one in tuple(services.items()) if one.kind != "agents"},
            says_nonce=lambda index: services[index].kind == "held" and not services[index].trust_address,
            hello_s=config.agents.hello_timeout,
            domain=domain,
            tls=tls,
            tls_sessions=config.agents.tls_sessions,
        )
        self.agents = Agents(
            settings, engine, dispatcher, self.spoken_for, names, self.arrivals, self.dialled, self.links, self.linker
        )
        self.links.serve_agent = self.agents.serve
        thread = ThreadPoolExecutor(1, "roost-telling")
        self.telling = Telling(engine, dispatcher, names, self.dialled, services,
                               lambda work: thread.submit(work).add_done_callback(_log_defect))  # fmt: skip
        names.listen(lambda name: self.arrivals.named("name", name))
        names.listen(self.telling.named)
        self.spoken_for.listen(lambda name: self.arrivals.named("agent", name))
        for hear in (self.agents.hear, self.arrivals.hear, self.telling.hear):
            dispatcher.listen(hear)
        self._dialler: Dialler | None = None
        if "dial" in policy.steps:
            numbers = {service.name: index for index, service in services.items()}
            dialled_by = {version: numbers[name] for version, name in config.dial_services.items()}
            self._dialler = Dialler(policy, engine, dispatcher, dialled_by, self.dialled, locator.addresses.has,
                                    lambda host: "dial" in absence.of_address(host))  # fmt: skip
        absent = Absent(policy, absence, locator, names, self.spoken_for, self.arrivals, self.linker, self.agents,
                        self._dialler)  # fmt: skip
        self.attaches = Attaches(store)
        self.may_attach = partial(engine.within_limit, Limited.ATTACHES)
        self.attaching = Attaching(locator, engine, self.linker, absent, self.attaches)
        self.tickets = Tickets(self.attaching, locator, config.attach)

    def begin(self) -> None:
        """Begin, in the running event loop."""
        self.arrivals.begin()
        if self._dialler is not None:
            self._dialler.begin()
        self.links.serve()

    async def take_over(self, config: Config) -> None:
        """Agents that may come, and for which clients, as they are configured now."""
        self._may_come = config.agent
        await asyncio.to_thread(self.forget_withdrawn)

    def forget_withdrawn(self) -> bool:
        """Agents.forget_withdrawn; whether the database could be read. Blocks for as long as it takes."""
        try:
            closed = self.agents.forget_withdrawn()
        except RegistryError as error:
            log.error("agents whose tokens are withdrawn are not looked for now, and closed when they speak: %s", error)
            return False
        if closed:
            log.info("closed the connections of %d agents that may not speak for their clients any more", closed)
        return True

    def wanted(self, event: Event) -> None:
        """An event of type WANTED, which there is none of unless clients are dialled; in the dispatcher's thread."""
        if self._dialler is not None:
            self._dialler.wanted(event)

    async def close(self) -> None:
        """End what goes through the daemon."""
        await self.tickets.close()
        await self.links.close()
        self.agents.close()
        if self._dialler is not None:
            await self._dialler.close()

    def counts(self) -> dict[str, int]:
        """Since the start."""
        dialled = self._dialler.made if self._dialler else 0
        return {**self.agents.counts, "crowded_out": self.links.crowded_out, "dialled": dialled}


def _log_defect(work: Future[None]) -> None:
    if (error := work.exception()) is not None:
        log.error("clients were not told to stay connected", exc_info=error)
