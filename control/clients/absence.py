# SPDX-License-Identifier: Apache-2.0
"""What is done for a server whose client is not connected, by the policy: `when_absent`, of what would be in force for
the client by its name, its tags, and where it was when it was last heard of."""

from __future__ import annotations

import ipaddress
from itertools import chain
from typing import Final

from appliance.wire import Key, Own, unpack_address
from control.clients.registry import Registry
from control.clients.rules import Configured, Rules
from control.config import Config, Service, parse_endpoint
from control.policy.cascade import explain
from control.policy.rules import NOBODY, RuleSet, ip_version, listens_at

KEY: Final = "when_absent"
NOWHERE: Final = bytes(16)
"""An address that lies in no rule's network."""


class Absence:
    """names: whose tags count."""

    def __init__(self, rules: Rules, names: Registry, configured: Configured) -> None:
        self._rules = rules
        self._names = names
        self._configured = configured
        self._looked_at: tuple[RuleSet | None, bool] = (None, False)

    @property
    def is_of_some(self) -> bool:
        """Whether it is said of some clients what may be done: else `steps` are all, and nothing needs to be read."""
        services, config = self._configured()
        rules = self._rules.state.rules
        if self._looked_at[0] is not rules:
            self._looked_at = rules, any(KEY in one for one in rules.values.values())
        return self._looked_at[1] or any(KEY in one.model_fields_set for one in (config.policy, *services.values()))

    def steps(self, name: str, key: Key | None) -> frozenset[str]:
        """Those that may be tried. name: "": it has none. key: of its last connection; None: it had none. Blocks while
        tags are read; raises RegistryError, StoreError."""
        services, config = self._configured()
        service = _service(list(services.values()), config, key)
        if service is None:
            return frozenset(config.policy.when_absent)
        rules, group = self._rules.state.rules, NOBODY
        if name and rules.by_name:
            tags = frozenset(self._names.tags_of([name]).get(name, ()))
            group = frozenset(rule.selector for rule in rules.by_name if rule.is_for(name, tags))
        client, local = (key.client, unpack_address(key.local)) if key is not None else (NOWHERE, "")
        found = explain(rules, service, config, client, Own(), group, local)
        return frozenset(next(one.value for one in found if one.key == KEY))


def _service(services: list[Service], config: Config, key: Key | None) -> Service | None:
    """By which it was connected; else that by which clients of its version of IP are dialled, else the first one."""
    if key is None:
        return next(iter(services), None)
    local, version = unpack_address(key.local), ipaddress.ip_address(unpack_address(key.client)).version
    like_it = [one for one in services if ip_version(one) == version]
    its_own = (one for one in like_it if parse_endpoint(one.listen)[1] == key.local_port and listens_at(one, local))
    dialled = (one for one in like_it if one.name == config.dial_services.get(version))
    return next(chain(its_own, dialled, like_it), None)
