# SPDX-License-Identifier: Apache-2.0
"""The services of a daemon and the policies in force for them, by number; a SIGHUP changes them."""

from __future__ import annotations

import logging
from typing import Protocol

from appliance.engine import EngineError
from appliance.wire import ServiceSpec
from control import config as configuration
from control.config import Config, ConfigError, Policy, Service
from control.policy.reload import needs_restart, reloaded
from control.policy.services import service_spec

log = logging.getLogger("roost.daemon")


class UpdatesPort(Protocol):
    """The engine, as far as services change."""

    def update_service(self, spec: ServiceSpec) -> None: ...


class Services:
    """numbers: by name, as the store gives them."""

    def __init__(self, path: str, config: Config, numbers: dict[str, int]) -> None:
        self.path = path
        self._config = config
        self.by_number: dict[int, Service] = {numbers[service.name]: service for service in config.service}
        self.policies: dict[int, Policy] = {n: one.policy(config.policy) for n, one in self.by_number.items()}

    def specs(self) -> list[tuple[Service, ServiceSpec]]:
        """Each service, and what the engine is told of it at start."""
        return [(one, service_spec(one, n, self._config)) for n, one in self.by_number.items()]

    def reload(self, engine: UpdatesPort) -> bool:
        """Read the configuration again, and take over the policy and the servers; False: it cannot be used."""
        try:
            new = configuration.load(self.path)
        except ConfigError as error:
            log.error("SIGHUP: the configuration stays as it is: %s", error)
            return False
        if waiting := needs_restart(self._config, new):
            log.warning("SIGHUP: these wait for a restart: %s", ", ".join(waiting))
        in_force = new.model_copy(update={"router": self._config.router})
        by_name = {service.name: service for service in new.service}
        for number, old in list(self.by_number.items()):
            if (service := by_name.get(old.name)) is None:
                continue
            kept = reloaded(old, service)
            try:
                engine.update_service(service_spec(kept, number, in_force))
            except EngineError as error:
                log.error("SIGHUP: %s", error)
                continue
            self.by_number[number], self.policies[number] = kept, kept.policy(new.policy)
        return True
