# SPDX-License-Identifier: Apache-2.0
"""Rules: which clients each is for, the values that it gives them, and what is wrong with one, or several together.

A rule's conditions are keys beside its values: another one is a field of Rule, in CONDITIONS, `is_of` or
`is_for`, and `precision`.

Which rules with `client` or `tag` are for a connection is known by its name, which the engine does not have: those
rules are its *group*, a number there (control/clients/grouping.py).
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from control.config import Policy, Service, hint, parse_endpoint, problem
from control.config.values import Address, AddressRange
from control.core.names import is_like, is_name, is_pattern, literals, may_both_be_like

RULES_MAX: Final = 10_000
GROUPS_MAX: Final = 255
"""Sets of rules with `client` or `tag` that some client has, all of a set (struct roost_overrides, group)."""

SERVERS_MAX: Final = 255
"""Addresses that rules with `server` name: each has entries of its own, of all rules that are for it."""

BY_NAME_MAX: Final = 255
"""Rules with `client` or `tag`: each is compared with each name, and with each other one."""

NAME: Final = r"^[a-z0-9][a-z0-9._-]{0,62}$"

OF_THE_SERVICE: Final = ("connect_timeout",)
"""Keys of [policy] that hold for a service as a whole."""

OF_SERVERS: Final = ("on_server_close", "on_second_server")
"""Those that hold for clients of servers alone, and not where the daemon itself answers them (kind)."""

VALUES: Final = tuple(key for key in Policy.model_fields if key not in OF_THE_SERVICE)
"""Those that hold for a connection, and that a rule may give."""

FOR_ALL_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sleep_keepalive": "a connection that has no slot has no name's values, either",
        "new_clients": "a client that connects has no name yet",
    }
)
"""Those that no rule with `client` or `tag` gives, and why."""

NOBODY: Final[frozenset[str]] = frozenset()
_MAPPED: Final = 0xFFFF << 32
_TOLD: Final = 5
_LENGTH: Final = 300


CONDITIONS: Final = ("client", "tag", "network", "service", "server")


class RuleError(ValueError):
    """It is no rule; the message says why, with the key's name."""


class Rule(Policy):
    """One for each set of clients that is to have values of its own; any key of `[policy]` that is not the service's
    may stand here too."""

    # Those that are not given have the defaults of Policy here: `values` has what is given.

    name: str = Field(pattern=NAME, description="its name: lower-case letters, digits, `.`, `_`, `-`")
    client: str | None = Field(
        None,
        description="for clients whose name is as this pattern says alone (`*`: any text, `?`: one character); none: "
        "for all",
    )
    tag: str | None = Field(None, description="for clients whose name has this tag alone; none: for all")
    network: AddressRange | None = Field(None, description="for clients in this network alone; none: for all")
    service: str | None = Field(None, max_length=63, description="for clients of this service alone; none: of all")
    server: Address | None = Field(
        None,
        description="for clients that connect to this address alone, where the service is transparent their server's; "
        "none: to any",
    )
    order: int = Field(
        0,
        ge=-1_000_000,
        le=1_000_000,
        description="of rules for the same clients, the one with the larger number wins",
    )

    @field_validator("client")
    @classmethod
    def _like_names(cls, value: str | None) -> str | None:
        if value is not None and not is_pattern(value.lower()):
            raise ValueError("is a client's name without the domain, with `?` and at most 4 `*` in it")
        return value.lower() if value is not None else None

    @field_validator("tag")
    @classmethod
    def _of_names(cls, value: str | None) -> str | None:
        if value is not None and not is_name(value.lower()):
            raise ValueError("is a tag of names, in full: letters, digits, `.`, `_` and `-`, a letter or digit first")
        return value.lower() if value is not None else None

    @field_validator("network")
    @classmethod
    def _of_clients(cls, value: str | None) -> str | None:
        if value is None:
            return None
        network = ipaddress.ip_network(value)
        ipv4 = network.network_address.ipv4_mapped if network.version == 6 and network.prefixlen >= 96 else None
        if ipv4 is not None:
            network = ipaddress.IPv4Network((ipv4, network.prefixlen - 96))
        if network.is_multicast:
            raise ValueError(f'"{value}" has multicast addresses, from which no client connects')
        return str(network)

    @model_validator(mode="after")
    def _gives_something(self) -> Rule:
        if wrong := [key for key in OF_THE_SERVICE if key in self.model_fields_set]:
            raise ValueError(f"`{wrong[0]}` is the service's, and the same for all of its clients: it belongs in "
                             "[[service]] or [policy] of the configuration")  # fmt: skip
        if self.by_name and (wrong := [key for key in FOR_ALL_NAMES if key in self.model_fields_set]):
            raise ValueError(f"`{wrong[0]}` is not given by rules with `client` or `tag`: {FOR_ALL_NAMES[wrong[0]]}; "
                             "give it to a service or a network")  # fmt: skip
        if not self.values:
            raise ValueError(f"it gives no value; there are {', '.join(VALUES)}")
        return self

    @property
    def values(self) -> dict[str, Any]:
        """What it gives, by the key of [policy]."""
        given = set(self.model_fields_set)
        if "probe_interval" in given:  # in place of both bounds of an experiment
            given.add("most_probe_interval")
        return {key: getattr(self, key) for key in VALUES if key in given}

    @property
    def by_name(self) -> bool:
        """Whether it is for clients by their names."""
        return self.client is not None or self.tag is not None

    @property
    def rank(self) -> tuple[bool, bool]:
        """What is compared before networks are: whether it names clients, and a tag."""
        return self.client is not None, self.tag is not None

    @property
    def precision(self) -> tuple[bool, int, bool, bool, int]:
        """What is compared after networks: how much of a name it says, whether it names a server, and a service, its
        order."""
        client = self.client or ""
        said = literals(client)
        return said == len(client), said, self.server is not None, self.service is not None, self.order

    @property
    def selector(self) -> str:
        """What it is in a group: the same for as long as it is for the same names."""
        conditions = (f"{key}={one}" for key, one in (("client", self.client), ("tag", self.tag)) if one is not None)
        return " ".join((self.name, *conditions))

    def is_of(self, service: Service, local: str) -> bool:
        """Whether it is for some who connect to this address of the service; "": one that no rule names."""
        return self.service in (None, service.name) and self.server in (None, local)

    def is_for(self, name: str, tags: frozenset[str]) -> bool:
        """Whether it is for a client with this name and these tags, as far as they tell."""
        return (self.client is None or is_like(name, self.client)) and (self.tag is None or self.tag in tags)

    @property
    def content(self) -> dict[str, Any]:
        """What `read_rule` makes the same rule of."""
        conditions = {key: getattr(self, key) for key in CONDITIONS} | {"order": self.order or None}
        said = {key: one for key, one in self.values.items() if key in self.model_fields_set}
        return {"name": self.name, **{key: one for key, one in conditions.items() if one is not None}, **said}


def read_rule(data: Mapping[str, Any]) -> Rule:
    """The rule that has these keys; raises RuleError. Of more keys than there are some are looked at: each that is not
    known is a mistake of its own, and takes a kilobyte."""
    some = dict(islice(data.items(), len(Rule.model_fields) + _TOLD))
    try:
        return Rule.model_validate(some)
    except ValidationError as error:
        raise RuleError("; ".join(map(_sentence, error.errors()[:_TOLD]))) from None


def _sentence(detail: ErrorDetails) -> str:
    key = str(detail["loc"][-1])[:_LENGTH] if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        return f"unknown key `{key}`; {hint(key, Rule, OF_THE_SERVICE)}"
    if detail["type"] == "missing":
        return f"the key `{key}` is missing"
    said, given = problem(detail)[:_LENGTH], detail.get("input")
    shown = f" (it is {given!r})" if key and isinstance(given, str | int | float) and str(given) not in said else ""
    return f"`{key}` {said}{shown[:_LENGTH]}" if key else said


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, a sentence, and with which rules."""

    rules: tuple[str, ...]
    text: str


class Place(NamedTuple):
    """A network: its first address as a number of 128 bits, IPv4-mapped, and how many of them count."""

    address: int
    bits: int

    def has(self, other: Place) -> bool:
        """Whether the other network lies in this one."""
        return other.bits >= self.bits and (other.address ^ self.address) >> (128 - self.bits) == 0


EVERYWHERE: Final = Place(0, 0)


def ip_version(service: Service) -> int:
    """Of its clients' addresses: it listens for one kind (IPV6_V6ONLY)."""
    return ipaddress.ip_address(parse_endpoint(service.listen)[0]).version


def local_of(service: Service, address: str) -> str:
    """The one address that clients of the service connect to, or, where it listens at every address, this one."""
    listen = parse_endpoint(service.listen)[0]
    return address if ipaddress.ip_address(listen).is_unspecified else listen


def listens_at(service: Service, address: str) -> bool:
    """Whether clients of the service may connect to this address."""
    listen, meant = ipaddress.ip_address(parse_endpoint(service.listen)[0]), ipaddress.ip_address(address)
    return listen.version == meant.version if listen.is_unspecified else listen == meant


class RuleSet:
    """Several rules, found by the addresses that they are for."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules: dict[str, Rule] = {rule.name: rule for rule in rules}
        self.values: dict[str, dict[str, Any]] = {name: rule.values for name, rule in self.rules.items()}
        self.anywhere: list[Rule] = []
        """Those without a network."""
        self.places: dict[int, dict[Place, list[Rule]]] = {4: {}, 6: {}}
        """The others, by version of IP and network. Each list begins with the least specific."""
        self.by_name = [rule for rule in self.rules.values() if rule.by_name]
        self.selectors = {rule.selector for rule in self.by_name}
        for rule in sorted(self.rules.values(), key=lambda one: (one.rank, one.precision, one.name)):
            if rule.network is None:
                self.anywhere.append(rule)
                continue
            network = ipaddress.ip_network(rule.network)
            address, bits = int(network.network_address), network.prefixlen
            place = Place(_MAPPED | address, 96 + bits) if network.version == 4 else Place(address, bits)
            self.places[network.version].setdefault(place, []).append(rule)
        self._lengths = {version: sorted({place.bits for place in at}) for version, at in self.places.items()}

    def group_of(self, name: str, tags: frozenset[str]) -> frozenset[str]:
        """The selectors of the rules with `client` or `tag` that are for a client with this name."""
        return frozenset(rule.selector for rule in self.by_name if rule.is_for(name, tags))

    def locals_of(self, service: Service) -> list[str]:
        """The addresses that clients of the service connect to, as far as rules tell them apart; "": the others."""
        if (only := local_of(service, "")) != "":
            return [only]
        ours = {rule.server for rule in self.rules.values() if rule.service in (None, service.name) and rule.server}
        return ["", *sorted(server for server in ours if listens_at(service, server))]

    def around(self, version: int, address: int) -> Iterator[Rule]:
        """Those for a client at this address (as of Place), whatever else they are for, those for longer networks last.
        version: of IP; 0: the address is not known."""
        yield from self.anywhere
        for bits in self._lengths.get(version, ()):
            yield from self.places[version].get(Place(address >> (128 - bits) << (128 - bits), bits), ())

    def matching(self, service: Service, address: int, group: frozenset[str] = NOBODY, local: str = "") -> list[Rule]:
        """The rules for a client of this service at this address (as of Place) that is in this group and connects to a
        local address, the least specific first."""
        version, local = ip_version(service), local_of(service, local)
        found = [
            rule
            for rule in self.around(version, address)
            if rule.is_of(service, local) and (not rule.by_name or rule.selector in group)
        ]
        return sorted(found, key=lambda rule: rule.rank)

    def problems(self, services: Collection[Service], groups: Collection[frozenset[str]] = ()) -> list[Problem]:
        """What is wrong with them where these are the services, and some clients are in each of these groups, apart
        from single values in single places (which cascade.py finds)."""
        by_name = {service.name: service for service in services}
        found = [problem for rule in self.rules.values() for problem in _problems_of(rule, by_name)]
        for at in (self.anywhere, *(rules for places in self.places.values() for rules in places.values())):
            found += self._contradictions(at, groups)
        return found

    def _contradictions(self, rules: list[Rule], groups: Collection[frozenset[str]]) -> Iterator[Problem]:
        """Of rules for the same network."""
        equal: dict[tuple[Any, ...], list[Rule]] = {}
        for rule in rules if len(rules) > 1 else ():
            others = equal.setdefault((rule.rank, rule.precision, rule.service, rule.server), [])
            for other in others:
                key = next((key for key in self.values[rule.name] if key in self.values[other.name]), None)
                if key is not None and _share_clients(rule, other, groups):
                    yield Problem(
                        (other.name, rule.name),
                        f'overlaps without order: the rules "{other.name}" and "{rule.name}" both give `{key}` to the '
                        f"same clients; give one of them another `order`, the larger one wins",
                    )
                    break
            others.append(rule)


def _share_clients(one: Rule, other: Rule, groups: Collection[frozenset[str]]) -> bool:
    """Whether two rules of the same rank may be for the same client, or one has the tags of both."""
    if one.tag != other.tag:
        return any(one.selector in group and other.selector in group for group in groups)
    exact = one.precision[0]
    return one.client == other.client or (not exact and may_both_be_like(one.client or "", other.client or ""))


def _problems_of(rule: Rule, services: Mapping[str, Service]) -> Iterator[Problem]:
    def told(text: str) -> Problem:
        return Problem((rule.name,), f'rule "{rule.name}": {text}')

    service = services.get(rule.service) if rule.service is not None else None
    if rule.service is not None and service is None:
        close = difflib.get_close_matches(rule.service, services, n=1, cutoff=0.5)
        known = f'did you mean "{close[0]}"?' if close else f"there are: {', '.join(services) or 'none'}"
        yield told(f'there is no service "{rule.service}"; {known}')
    ours = [service] if service else [] if rule.service is not None else list(services.values())
    there = [one for one in ours if rule.server is None or listens_at(one, rule.server)]
    if ours and not there:
        who = f'the service "{service.name}" listens at {service.listen}' if service else "no service listens there"
        yield told(f"nothing can match: its server is {rule.server}, and {who}")
    elif rule.network is not None and there:
        version = ipaddress.ip_network(rule.network).version
        if all(ip_version(one) != version for one in there):
            who = f"its server is {rule.server}" if rule.server else "no service listens so"
            who = f'the service "{service.name}" listens at {service.listen}' if service else who
            yield told(f"nothing can match: its network {rule.network} is IPv{version}, and {who}")
    if service is not None and service.kind != "server":
        for key in rule.model_fields_set.intersection(OF_SERVERS):
            yield told(f'`{key}` does not hold for service "{service.name}": kind = "{service.kind}"')
