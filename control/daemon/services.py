# SPDX-License-Identifier: Apache-2.0
"""The services of a daemon and the policies in force for them, by number; a SIGHUP changes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from appliance.engine import EngineError
from appliance.wire import ServiceSpec
from control import config as configuration
from control.config import Config, ConfigError, Conflict, Service
from control.core.logs import about
from control.daemon.waiting import NotYetError
from control.policy.reload import needs_restart, reloaded
from control.policy.services import service_spec

log = logging.getLogger("roost.daemon")


class UpdatesPort(Protocol):
    """The engine, as far as services change."""

    def update(self, service: Service, spec: ServiceSpec) -> None: ...


class Services:
    """numbers: by name, as the store gives them. addresses: those of the names of servers, by name, as they change.
    by_number has addresses alone."""

    def __init__(self, path: str, config: Config, numbers: Mapping[str, int],
                 addresses: Mapping[str, Sequence[str]]) -> None:  # fmt: skip
        self.path = path
        self._config = self._in_force = config
        self._addresses = addresses
        self._configured: dict[int, Service] = {numbers[service.name]: service for service in config.service}
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

    def reload(self, engine: UpdatesPort) -> bool:
        """Read the configuration again, and take over the policy and the servers; False: it cannot be used."""
        try:
            new = configuration.load(self.path, self._wait_for_a_restart)
        except ConfigError as error:
            log.error("SIGHUP: the configuration stays as it is: %s", error)
            return False
        if waiting := needs_restart(self._config, new):
            log.warning("SIGHUP: these wait for a restart: %s", ", ".join(waiting))
        self._in_force = new.model_copy(update={"router": self._config.router, "attach": self._config.attach})
        by_name = {service.name: service for service in new.service}
        for number, old in list(self._configured.items()):
            if (service := by_name.get(old.name)) is None:
                continue
            self._configured[number] = reloaded(old, service)
            if not self._update(engine, number):
                self._configured[number] = old
        return True
