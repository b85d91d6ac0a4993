# SPDX-License-Identifier: Apache-2.0
"""The services of a daemon and the policies in force for them, by number; a SIGHUP changes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from appliance.engine import EngineError
from appliance.wire import ServiceSpec
from control import config as configuration
from control.config import Config, Conflict, Service
from control.core.logs import about
from control.daemon.waiting import NotYetError
from control.policy.reload import needs_restart, reloaded, waits_for_a_restart
from control.policy.services import service_spec

log = logging.getLogger("roost.daemon")


class UpdatesPort(Protocol):
    """The engine, as far as services change while it runs."""

    def bound(self, config: Config) -> None: ...

    def update(self, service: Service, spec: ServiceSpec) -> None: ...

    def take_in(self, number: int, spec: Callable[[], tuple[Service, ServiceSpec]]) -> None: ...

    def take_out(self, number: int, name: str) -> None: ...


class Services:
    """numbers: by name, as the store gives them. addresses: those of the names of servers, by name, as they change.
    by_number has addresses alone; a service that is there stays in it until the daemon ends."""

    def __init__(self, path: str, config: Config, numbers: Mapping[str, int],
                 addresses: Mapping[str, Sequence[str]]) -> None:  # fmt: skip
        self.path = path
        self._config = self._in_force = config
        self._addresses = addresses
        self._configured: dict[int, Service] = {numbers[service.name]: service for service in config.service}
        self.persistent = {number for number, one in self._configured.items() if one.interface == "persistent"}
        self.leaving: set[int] = set()
        """Those that the configuration has no more: they take no new clients, and serve those that they have."""
        self.by_number: dict[int, Service] = dict(self._configured)

    def hostnames(self) -> set[str]:
        """The names of servers."""
        return {name for service in self._configured.values() for name in service.hostnames}

    def configured(self) -> tuple[Mapping[int, Service], Config]:
        """The services by number, and the configuration that is in force."""
        return dict(self.by_number), self._in_force

    def spec(self, number: int) -> tuple[Service, ServiceSpec]:
        """A service with the addresses that its servers have now, and what the engine is told of it."""
        service = self.by_number[number] = self._configured[number].with_addresses(self._addresses)
        return service, service_spec(service, number, self._in_force)

    def readdress(self, engine: UpdatesPort) -> bool:
        """Tell the engine of servers whose names have other addresses now; whether there are any."""
        changed = False
        for number, before in list(self.by_number.items()):
            if self._configured[number].with_addresses(self._addresses) != before:
                changed |= self._update(engine, number)
        return changed

    def _update(self, engine: UpdatesPort, number: int) -> bool:
        before = self.by_number[number]
        try:
            engine.update(*self.spec(number))
        except (EngineError, NotYetError) as error:
            self.by_number[number] = before
            log.error('service "%s": %s', before.name, error, extra=about(service=before.name))
            return False
        return True

    def _wait_for_a_restart(self, new: Config) -> Iterator[Conflict]:
        for index, one in enumerate(new.service):
            if problem := one.problem_of_sleep(new.policy, new.table, self._config.by_address):
                sentence = f'until a restart, [[service]] "{one.name}": sleep_keepalive = "none" {problem}'
                yield sentence, ("service", index)

    def read(self) -> Config:
        """The configuration as it is written now. Raises ConfigError."""
        return configuration.load(self.path, self._wait_for_a_restart)

    def coming(self, new: Config) -> list[str]:
        """The names of services that are new, as far as a running daemon takes them in."""
        known = {service.name for service in self._configured.values()}
        return [one.name for one in new.service if one.name not in known and not waits_for_a_restart(one, self._config)]

    def take_over(self, new: Config, numbers: Mapping[str, int], engine: UpdatesPort) -> None:
        """The policy, the servers, and which services there are. numbers: of those that are `coming`; one without a
        number stays out."""
        running = self._config.model_copy(update={"service": tuple(self._configured.values())})
        if waiting := needs_restart(running, new):
            log.warning("SIGHUP: these wait for a restart: %s", ", ".join(waiting))
        kept = {key: getattr(self._config, key) for key in ("instance", "router", "attach", "absent")}
        self._in_force = new.model_copy(update={**kept, "service": running.service})
        engine.bound(new)
        by_name = {service.name: service for service in new.service}
        for number, old in self._configured.items():  # first: another one may have its address
            if old.name not in by_name and number not in self.leaving:
                self.leaving.add(number)
                engine.take_out(number, old.name)
        for number, old in list(self._configured.items()):
            wanted = by_name.get(old.name)
            if wanted is not None:
                self._configured[number] = reloaded(old, wanted)
            if wanted is not None and number in self.leaving:
                self._take_in(number, engine)
            elif not self._update(engine, number):
                self._configured[number] = old
        for name in filter(numbers.__contains__, self.coming(new)):
            number = numbers[name]
            self._configured[number] = by_name[name]
            if by_name[name].interface == "persistent":
                self.persistent.add(number)
            self._take_in(number, engine)
        self._in_force = self._in_force.model_copy(update={"service": tuple(self._configured.values())})

    def _take_in(self, number: int, engine: UpdatesPort) -> None:
        self.leaving.discard(number)
        engine.take_in(number, partial(self.spec, number))
