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

from appliance.wire import Key, pack_address, unpack_address
from control.clients.registry import PATIENCE_S, Named, Registry, RegistryError
from control.clients.rules import Configured, Rules
from control.config import Service, parse_endpoint
from control.policy.rules import NOBODY, RuleSet, listens_at, local_of
from control.store.database import StoreError

KEY: Final = "when_absent"
Asked = Callable[[], Awaitable[Named | None]]


class Known(NamedTuple):
    """Of a client that is not connected; empty, None: it is not known. address: packed."""

    name: str = ""
    tags: frozenset[str] = frozenset()
    address: bytes = b""
    local: str = ""
    service: Service | None = None


class Absence:
    """names: whose tags count. All of it raises OSError, EIO, when what is in force cannot be read."""

    def __init__(self, rules: Rules, names: Registry, configured: Configured) -> None:
        self._rules = rules
        self._names = names
        self._configured = configured
        self._looked_at: tuple[RuleSet | None, RuleSet] = (None, RuleSet())

    def of_address(self, address: str) -> frozenset[str]:
        """What may be done for a client that is asked for by its address: by rules for networks alone."""
        return self._steps(Known(address=pack_address(address)))

    async def of_name(self, name: str, last: Asked, by_agent: Asked) -> frozenset[str]:
        """The same of a name. last: its connection; by_agent: what an agent that speaks for it says. Both are asked
        where they matter, and raise OSError, EIO."""
        rules, services = self._said(), self._configured()[0]
        if not rules.rules and not any(KEY in one.model_fields_set for one in services.values()):
            return self._steps(Known())
        tags: list[str] = []
        if any(rule.tag is not None for rule in rules.by_name):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    tags = (await asyncio.to_thread(self._names.tags_of, [name])).get(name, [])
            except (RegistryError, StoreError, SQLAlchemyError, TimeoutError) as error:
                raise OSError(EIO, f"its tags cannot be read: {error}") from error
        known = Known(name, frozenset(tags))
        if (named := await last()) is not None:
            key = Key.unpack(named.key)
            local = unpack_address(key.local)
            known = known._replace(address=key.client, local=local, service=self._service(local, key.local_port))
        elif (named := await by_agent()) is not None and (service := services.get(named.service)) is not None:
            known = known._replace(local=local_of(service, ""), service=service)  # the address is the agent's
        return self._steps(known)

    def _said(self) -> RuleSet:
        """The rules that say it."""
        if not self._rules.loaded:
            raise OSError(EIO, "the rules cannot be read yet")
        rules = self._rules.state.rules
        if self._looked_at[0] is not rules:
            self._looked_at = rules, RuleSet(one for one in rules.rules.values() if KEY in rules.values[one.name])
        return self._looked_at[1]

    def _steps(self, known: Known) -> frozenset[str]:
        rules, service, version = self._said(), known.service, 0
        if known.address:
            version = ipaddress.ip_address(unpack_address(known.address)).version
        group = rules.group_of(known.name, known.tags) if known.name else NOBODY
        found = [
            rule
            for rule in rules.around(version, int.from_bytes(known.address, "big"))
            if rule.service in (None, service and service.name)
            and rule.server in (None, known.local)
            and (not rule.by_name or rule.selector in group)
        ]
        if found:
            return frozenset(max(reversed(found), key=lambda rule: rule.rank).when_absent)
        policy = self._configured()[1].policy
        return frozenset((service.policy(policy) if service is not None else policy).when_absent)

    def _service(self, local: str, port: int) -> Service | None:
        """By which a client came that had connected to this."""
        here = [
            one
            for one in reversed(
                list(self._configured()[0].values())
            )  # one that leaves comes before the one in its place
            if parse_endpoint(one.listen)[1] == port and listens_at(one, local)
        ]
        its_own = (one for one in here if parse_endpoint(one.listen)[0] == local)  # before one for every address
        return next(its_own, here[0] if here else None)
