# SPDX-License-Identifier: Apache-2.0
"""What is done for a server whose client is not connected, by the policy: `when_absent`, which rules give by the
client's name, its tags, and what is known of its last connection: its address, and the service that it came in by.

The cascade is that of control/policy/cascade.py. A rule for what is not known of a client is not for it."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from errno import EIO
from typing import Final, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from appliance.wire import Key, unpack_address
from control.clients.registry import PATIENCE_S, Named, Registry, RegistryError
from control.clients.rules import Configured, Rules
from control.config import Service, parse_endpoint
from control.policy.rules import Rule, RuleSet, listens_at
from control.store.database import StoreError

KEY: Final = "when_absent"


class Known(NamedTuple):
    """Of a client that is not connected; empty, None: it is not known. address, local: texts."""

    name: str = ""
    tags: frozenset[str] = frozenset()
    address: str = ""
    local: str = ""
    service: Service | None = None

    def is_of(self, rule: Rule) -> bool:
        """Whether the rule is for it."""
        if rule.by_name and not (self.name and rule.is_for(self.name, self.tags)):
            return False
        if rule.network is not None and (
            not self.address or ipaddress.ip_address(self.address) not in ipaddress.ip_network(rule.network)
        ):
            return False
        return rule.service in (None, self.service and self.service.name) and rule.server in (None, self.local)


class Absence:
    """names: whose tags count."""

    def __init__(self, rules: Rules, names: Registry, configured: Configured) -> None:
        self._rules = rules
        self._names = names
        self._configured = configured
        self._looked_at: tuple[RuleSet | None, list[Rule]] = (None, [])

    def of_address(self, address: str) -> frozenset[str]:
        """What may be done for a client that is asked for by its address: by rules for networks alone."""
        return self._steps(Known(address=address))

    async def of_name(self, name: str, named: Callable[[], Awaitable[Named | None]]) -> frozenset[str]:
        """The same of a name. named: what it stands for, asked for where that matters. Raises OSError, EIO, when that,
        or its tags, cannot be read."""
        if not self._is_said_of_some():
            return self._steps(Known())
        tags: list[str] = []
        if any(rule.tag is not None for rule in self._of_some()):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    tags = (await asyncio.to_thread(self._names.tags_of, [name])).get(name, [])
            except (RegistryError, StoreError, SQLAlchemyError, TimeoutError) as error:
                raise OSError(EIO, f"its tags cannot be read: {error}") from error
        found = await named()
        key = Key.unpack(found.key) if found is not None else None
        address, local = (unpack_address(key.client), unpack_address(key.local)) if key is not None else ("", "")
        service = self._service(key, found.service if found is not None else 0)
        return self._steps(Known(name, frozenset(tags), address, local, service))

    def _of_some(self) -> list[Rule]:
        """The rules that say it, the least specific first."""
        rules = self._rules.state.rules
        if self._looked_at[0] is not rules:
            some = [rule for rule in rules.rules.values() if KEY in rules.values[rule.name]]
            self._looked_at = rules, sorted(some, key=_precision)
        return self._looked_at[1]

    def _is_said_of_some(self) -> bool:
        services, _ = self._configured()
        return bool(self._of_some()) or any(KEY in one.model_fields_set for one in services.values())

    def _steps(self, known: Known) -> frozenset[str]:
        for rule in reversed(self._of_some()):
            if known.is_of(rule):
                return frozenset(rule.when_absent)
        policy = self._configured()[1].policy
        return frozenset((known.service.policy(policy) if known.service is not None else policy).when_absent)

    def _service(self, key: Key | None, number: int) -> Service | None:
        """number: of the one that an agent's client connects by."""
        services, _ = self._configured()
        if number or key is None:
            return services.get(number)
        local = unpack_address(key.local)
        here = [
            one
            for one in services.values()
            if parse_endpoint(one.listen)[1] == key.local_port and listens_at(one, local)
        ]
        its_own = [one for one in here if parse_endpoint(one.listen)[0] == local]  # before one for every address
        return next(iter(its_own + here), None)


def _precision(rule: Rule) -> tuple[object, ...]:
    bits = ipaddress.ip_network(rule.network).prefixlen if rule.network is not None else -1
    return rule.rank, bits, rule.precision, rule.name
