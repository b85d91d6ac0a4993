# SPDX-License-Identifier: Apache-2.0
"""The event loop of a daemon that runs: attach, the local API, the links of agents and held clients, checks, signals.

SIGTERM, SIGINT   freeze what can be frozen, flush, exit; a second one exits at once
SIGUSR1           the same, and write all to the database: for another machine (`roost drain`)
SIGHUP            read the configuration again, take over the policy, the servers, agents that may come, and
                  services that come and go
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from sqlalchemy.exc import SQLAlchemyError

from appliance.box.memory import give_back
from appliance.frontends.frontend import Frontend, Settings
from appliance.frontends.passwords import PasswordHash, Users
from appliance.wire import Event, ServerAddress, endpoint_text
from control.channel.api import make_app, make_server
from control.channel.audit import of_signal
from control.channel.operations import Operations
from control.clients.rules import Rules
from control.config import Attach, Config, ConfigError, Service
from control.core.ports import TransitionsPort
from control.core.signals import on_signal
from control.daemon.end import DRAIN_S, End
from control.daemon.health import Health
from control.daemon.hostnames import Hostnames
from control.daemon.listeners import Listeners, bind_attach, open_to_clients
from control.daemon.manager import Manager
from control.daemon.services import Services, UpdatesPort
from control.daemon.waiting import NotYetError, Waiting
from control.reach.attaching import Attaching
from control.reach.reach import Reach
from control.store.database import StoreError, reason

log = logging.getLogger("roost.daemon")

SPARE_S: Final = 60.0
"""Of the time that the manager is told a drain may take."""

GIVE_BACK_S: Final = 60.0
"""How often memory that was freed is given back."""

AGAIN_S: Final = 2.0
"""After which a part that has failed is begun again."""


class Repeated(Protocol):
    """Something that is done again and again."""

    async def run(self) -> None: ...


class Serving:
    """facts: of the status; where attach listens is added. engine: is told of services that change. numbered: services
    that come, by their names; may block; raises StoreError, SQLAlchemyError. repeated: run until the end."""

    def __init__(self, config: Config, operations: Operations, transitions: TransitionsPort, reach: Reach,
                 health: Health, services: Services, rules: Rules, repeated: Iterable[Repeated], engine: UpdatesPort,
                 numbered: Callable[[Sequence[str]], Mapping[str, int]], listeners: Listeners, waiting: Waiting,
                 hostnames: Hostnames, facts: dict[str, Any], end: End, manager: Manager) -> None:  # fmt: skip
        self._config = config
        self._operations = operations
        self._transitions = transitions
        self._reach = reach
        self._health = health
        self._services = services
        self._rules = rules
        self._repeated = repeated
        self._reloads: set[asyncio.Task[None]] = set()
        self._one_reload = asyncio.Lock()
        self._engine = engine
        self._numbered = numbered
        self._listeners = listeners
        self._waiting = waiting
        self._hostnames = hostnames
        self._facts = facts
        self._end = end
        self._manager = manager
        self._frontend: Frontend | None = None

    def released(self, event: Event) -> None:
        """An event of type RELEASED."""
        if self._reach.tickets.is_of(event.count):
            self._reach.tickets.take_back(event.count)
        elif self._frontend is not None:
            self._frontend.take_back(event.count)
        else:
            os.close(event.count)

    async def run(self) -> None:
        """Serve until the end."""
        loop = asyncio.get_running_loop()
        self._end.begin()
        for number in (signal.SIGTERM, signal.SIGINT):
            on_signal(loop, number, self._on_terminate, number)
        on_signal(loop, signal.SIGHUP, self._reload)
        on_signal(loop, signal.SIGUSR1, self._on_drain)
        if self._end.reason or self._end.has_come:
            return
        self._watch()
        frontend = self._frontend = make_frontend(self._reach.attaching, self._config.attach, self._reach.may_attach)
        self._reach.begin()
        listening = self._facts["attach"] = self._reach.tickets.listening
        listening += (list(frontend.serve(one)) for one in self._listeners.attach)
        self._facts["attach_protocols"] = list(self._config.attach.protocols)
        self._facts["attach_counts"] = frontend.counts
        for address in self._listeners.away:
            self._waiting.attempt(f"attach at {endpoint_text(address)}", partial(self._serve_late, frontend, address))
        server = make_server(make_app(self._operations, self._transitions))
        gc.freeze()  # as before: what was made since then is there to the end, too
        assert self._listeners.control is not None, "it is bound before anything moves"
        api = loop.create_task(server.serve(sockets=[self._listeners.control]))
        log.info("ready: %s", ", ".join(map(told, self._services.by_number.values())))
        self._tell_ready()
        parts: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self._manager.run,
            self._operations.status.watch,
            partial(self._waiting.run, self._arrived),
            partial(self._hostnames.run, self._config.network.resolve_interval, self._readdress),
            *(one.run for one in self._repeated),
            _give_back_memory,
        )
        tasks = [loop.create_task(always(part)) for part in parts]
        try:
            ended = loop.create_task(self._end.wait())
            await asyncio.wait({api, ended}, return_when=asyncio.FIRST_COMPLETED)
            if api.done() and not self._end.has_come:
                self._end.fail(f"the local API ended: {api.exception()}")
        finally:
            for task in (*tasks, *self._reloads):
                task.cancel()
            self._health.close()
            await frontend.close()
            await self._reach.close()
            server.should_exit = True
            await asyncio.wait({api}, timeout=3)

    def _serve_late(self, frontend: Frontend, address: ServerAddress) -> None:
        listener = bind_attach(*address)
        if problem := open_to_clients(self._config, [address]):
            listener.close()
            raise NotYetError(problem)
        self._facts["attach"].append(list(frontend.serve(listener)))

    def _watch(self) -> None:
        self._health.watch(self._services.by_number)

    def _arrived(self) -> None:
        self._watch()
        self._health.repeat()

    def _readdress(self) -> None:
        if self._services.readdress(self._engine):
            self._watch()

    def _tell_ready(self) -> None:
        services = len(self._services.by_number) - len(self._services.leaving)
        self._manager.ready(f"serves {services} {'service' if services == 1 else 'services'}; roost status tells more")

    def _on_terminate(self, number: int) -> None:
        self._manager.stopping()
        self._end.anew = False
        log.info("%s: freezing what can be frozen; once more ends at once", signal.Signals(number).name)
        self._end.come()
        for again in (signal.SIGTERM, signal.SIGINT):
            signal.signal(again, signal.SIG_DFL)

    def _on_drain(self) -> None:
        log.info("SIGUSR1: every connection gets its row, for another machine to take over")
        self._operations.record(of_signal("SIGUSR1", "drain"))
        self._manager.stopping(DRAIN_S + SPARE_S)
        self._end.drain()

    def _reload(self) -> None:
        self._manager.reloading()
        reload = asyncio.get_running_loop().create_task(self._take_over())
        self._reloads.add(reload)
        reload.add_done_callback(self._reloads.discard)
        reload.add_done_callback(_tell_of_defect)

    async def _take_over(self) -> None:
        async with self._one_reload:
            wrong = "it was cut off"
            try:
                new, problem = self._read()
                if new is None:
                    wrong = problem
                else:
                    coming = self._services.coming(new)
                    numbers = await self._number(coming)
                    self._services.take_over(new, numbers, self._engine)
                    wrong = "" if len(numbers) == len(coming) else "services that are new have no number; see the log"
                    self._watch()
                    self._hostnames.hurry()
                    log.info("SIGHUP: policy taken over from %s", self._services.path)
            except Exception as error:
                wrong = repr(error)
                raise
            finally:
                self._operations.record(of_signal("SIGHUP", str(self._services.path), wrong))
                if not self._end.has_come:
                    self._tell_ready()
            if new is not None:
                await self._reach.take_over(new)
                await asyncio.to_thread(self._rules.apply)

    def _read(self) -> tuple[Config | None, str]:
        try:
            return self._services.read(), ""
        except ConfigError as error:
            log.error("SIGHUP: the configuration stays as it is: %s", error)
            return None, str(error)

    async def _number(self, names: Sequence[str]) -> Mapping[str, int]:
        try:
            return await asyncio.to_thread(self._numbered, names) if names else {}
        except (StoreError, SQLAlchemyError) as error:
            log.error("SIGHUP: not taken in, since the database gives no number now: %s; reload again when it can be "
                      "used: %s", ", ".join(f'service "{name}"' for name in names), reason(error))  # fmt: skip
            return {}


async def _give_back_memory() -> None:
    """What connections took while they were awake; of 100,000 that joined at 2,000 a second, 16 bytes each."""
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        await asyncio.to_thread(give_back)


async def always(part: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it, and again when it has failed: what it needs of the machine (descriptors, memory) may be there later."""
    name = getattr(part, "func", part).__qualname__
    while True:
        try:
            return await part()
        except OSError as error:
            log.error("%s of the daemon failed, and is begun again in %g s: %s", name, AGAIN_S, error)
        except Exception:
            log.exception("%s of the daemon failed, and is begun again in %g s", name, AGAIN_S)
        await asyncio.sleep(AGAIN_S)


def _tell_of_defect(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a part of the daemon ended", exc_info=error)


def make_frontend(attaching: Attaching, attach: Attach, may_attach: Callable[[str], bool]) -> Frontend:
    """The front end that serves `[attach]`."""
    hashes = {name: PasswordHash.parse(text) for name, text in attach.users.items()}
    users = Users(hashes) if attach.auth == "password" else None
    networks = tuple(map(ipaddress.ip_network, attach.networks))
    settings = Settings(attach.timeout, attach.protocols, users, released_s=attach.released_for, may_attach=may_attach,
                        networks=networks)  # fmt: skip
    return Frontend(attaching, settings)


def told(service: Service) -> str:
    """Where its clients connect to, and who answers them."""
    nothing = "the same" if service.transparent else "no server yet" if service.kind == "server" else service.kind
    return f"{service.name} {service.listen} -> {' '.join(service.every_server) or nothing}"
