# SPDX-License-Identifier: Apache-2.0
"""Which value is in force for a connection, and whence.

A cascade, for each value by itself: what the connection has of its own, by command or set in band; else of the rules
that match and give it, the most specific (one with `client`, then one with `tag`; then the longer network; then what
Rule.precision compares); else the service's own key; else [policy]. The engine takes the longest network of an entry
of the connection's address and group alone, so each entry has all values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from appliance.wire import ANY_LOCAL, Own, RuleEntry, ServiceSpec, pack_address
from control.config import Config, Policy, Service
from control.policy.rules import (
    BY_NAME_MAX,
    EVERYWHERE,
    NOBODY,
    OF_SERVERS,
    RULES_MAX,
    SERVERS_MAX,
    VALUES,
    Place,
    Problem,
    Rule,
    RuleSet,
    ip_version,
)
from control.policy.services import policy_of, service_spec

ENTRIES_MAX: Final = 262_144
POLICIES_MAX: Final = 1_024
"""As many as the engine has room for."""

_FIELDS: Final = tuple(one.name for one in fields(ServiceSpec))

NO_GROUPS: Final[Mapping[frozenset[str], int]] = MappingProxyType({})

Given = Mapping[str, tuple[Any, str]]
"""A key of [policy] -> its value, and the name of the rule that gives it."""


class TooManyError(ValueError):
    """More than the engine has room for."""


@dataclass(slots=True)
class Compiled:
    """What the engine is told (ports.RulesPort), and where a rule cannot have what it wants."""

    entries: list[RuleEntry] = field(default_factory=list)
    policies: list[ServiceSpec] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    """Of each policy what rules give, in the first network that has it."""

    rules: list[set[str]] = field(default_factory=list)
    """Of each policy those that give something of it, in any network that has it."""

    problems: list[Problem] = field(default_factory=list)


def compile_rules(
    rules: RuleSet, services: Mapping[int, Service], config: Config, groups: Mapping[frozenset[str], int] = NO_GROUPS
) -> Compiled:
    """services: by number. groups: sets of rules with `client` or `tag`, by their selectors, and the number of each.
    Raises TooManyError."""
    servers = {rule.server for rule in rules.rules.values() if rule.server is not None}
    for several, most, what in (
        (rules.rules, RULES_MAX, "rules"),
        (rules.by_name, BY_NAME_MAX, "rules with `client` or `tag`"),
        (servers, SERVERS_MAX, "servers that rules name"),
    ):
        if len(several) > most:
            raise TooManyError(f"{len(several):,} {what}: {most:,} at most")
    made = Compiled()
    problems: dict[Problem, None] = {}
    for number, service in services.items():
        known: dict[tuple[Any, ...], int] = {}  # by what the rules give
        policies: dict[tuple[Any, ...], int] = {}  # by what comes of it
        for local, group, place, given in _of_all(rules, service, groups):
            wanted = tuple(given[key][0] if key in given else None for key in VALUES)
            if (index := known.get(wanted)) is None:
                changed, kept, problem = _changed(service, given, config)
                if problem is not None:
                    problems[problem] = None
                spec = service_spec(changed, number, config)
                index = policies.setdefault(tuple(getattr(spec, name) for name in _FIELDS), len(made.policies))
                known[wanted] = index
                if index == len(made.policies):
                    made.policies.append(spec)
                    made.given.append(kept)
                    made.rules.append(set())
                    if index == POLICIES_MAX:
                        raise TooManyError(f"the rules make more than {POLICIES_MAX:,} different sets of values, which "
                                           "is what the engine has room for: let networks share theirs")  # fmt: skip
            made.rules[index].update(rule for _, rule in given.values())
            network = place.address.to_bytes(16, "big")
            made.entries.append(RuleEntry(number, network, place.bits, index, group, local))
            if len(made.entries) > ENTRIES_MAX:
                raise TooManyError(
                    f"the rules' networks are more than {ENTRIES_MAX:,} over all services and servers, which is what "
                    "the engine has room for: name the services that they are for, or join networks"
                )
    made.problems = list(problems)
    return made


def _of_all(
    rules: RuleSet, service: Service, groups: Mapping[frozenset[str], int]
) -> Iterator[tuple[bytes, int, Place, Given]]:
    """For each local address that the engine must tell apart, packed: what `_entries` has of those without a group (0),
    and of each group that there is a rule for."""
    several_locals = rules.locals_of(service)
    for local in several_locals:
        packed = pack_address(local) if local and len(several_locals) > 1 else ANY_LOCAL
        ours = {rule.selector for rule in rules.by_name if rule.is_of(service, local)}
        numbers: dict[frozenset[str], list[int]] = {NOBODY: [0]}
        for names, number in groups.items():
            if here := names & ours:
                numbers.setdefault(frozenset(here), []).append(number)
        for here, several in numbers.items():
            for place, given in _entries(rules, service, local, here):
                yield from ((packed, number, place, given) for number in several)


def _entries(rules: RuleSet, service: Service, local: str, group: frozenset[str]) -> Iterator[tuple[Place, Given]]:
    """Each network of a rule for this address of the service, and what all rules that match there give a connection of
    this group."""

    def ours(several: Iterable[Rule]) -> list[Rule]:
        return [rule for rule in several if rule.is_of(service, local) and (not rule.by_name or rule.selector in group)]

    here = {place: found for place, at in rules.places[ip_version(service)].items() if (found := ours(at))}
    if anywhere := ours(rules.anywhere):
        here[EVERYWHERE] = anywhere + here.get(EVERYWHERE, [])
    above: list[tuple[Place, dict[tuple[bool, bool], Given]]] = []
    for place in sorted(here):  # a network comes before those that lie in it
        while above and not above[-1][0].has(place):
            above.pop()
        ranks = dict(above[-1][1]) if above else {}
        for rank, several in groupby(sorted(here[place], key=_rank), key=_rank):
            ranks[rank] = _give(rules, several, service, ranks.get(rank, {}))
        above.append((place, ranks))
        yield place, {key: one for rank in sorted(ranks) for key, one in ranks[rank].items()}


def _rank(rule: Rule) -> tuple[bool, bool]:
    return rule.rank


def _give(rules: RuleSet, several: Iterable[Rule], service: Service, before: Given) -> Given:
    """What these rules, the least specific first, give over what was given before."""
    given = dict(before)
    for rule in several:
        for key, value in rules.values[rule.name].items():
            if key in OF_SERVERS and service.kind != "server":
                continue
            if key == "on_server_close" and not _may_say_what_follows_a_close(rule, service):
                continue
            given[key] = value, rule.name
    return given


def _may_say_what_follows_a_close(rule: Rule, service: Service) -> bool:
    """As [policy] does not, a rule for all services does not change what a session needs."""
    return service.interface != "persistent" or rule.service is not None


def _changed(service: Service, given: Given, config: Config) -> tuple[Service, Given, Problem | None]:
    """The service with what it is given, and what of that it can have: what sleeps may need its slot."""
    found: Problem | None = None
    for key in ("sleep_keepalive", "probe_interval", ""):
        changed = service.model_copy(update={name: value for name, (value, _) in given.items()})
        why = changed.problem_of_sleep(config.policy, config.table, config.by_address)
        if not why:
            break
        names = {given[name][1]: None for name in ("sleep_keepalive", "probe_interval") if name in given}
        told = " and ".join(f'"{name}"' for name in names)
        found = found or Problem(tuple(names), f'rule {told}, service "{service.name}": sleep_keepalive = "none" {why}')
        dropped = {key, "most_probe_interval"} if key == "probe_interval" else {key}
        given = {name: one for name, one in given.items() if name not in dropped}
    return changed, given, found or _of_absent(given, config)


def _of_absent(given: Given, config: Config) -> Problem | None:
    steps, rule = given.get("when_absent", ((), ""))
    if not steps or set(steps) & set(config.absent.steps):
        return None
    said, there = ", ".join(steps), ", ".join(config.absent.steps) or "none"
    return Problem((rule,), f'rule "{rule}": when_absent is {said}, and [absent] steps has {there}: nothing is done')


@dataclass(frozen=True, slots=True)
class InForce:
    """A value that is in force, under its key of [policy]; source: what gave it, in words. rule: the rule's name, if
    one did."""

    key: str
    value: Any
    source: str
    rule: str = ""


def explain(
    rules: RuleSet,
    service: Service,
    config: Config,
    address: bytes,
    own: Own,
    group: frozenset[str] = NOBODY,
    local: str = "",
) -> list[InForce]:
    """What is in force for a client of this service at this packed address, which connects to a local one, and whose
    connection is in this group and has these values of its own."""
    matching = rules.matching(service, int.from_bytes(address, "big"), group, local)
    changed, given, _ = _changed(service, _give(rules, matching, service, {}), config)
    policy = policy_of(changed, config)
    always: dict[str, Any] = {"active_quiet": 0.0, "standby_quiet": 0.0} if own.in_band.get("always_active") else {}
    asked = {key: _at_least(key, value, policy) for key, value in _by_key(own.in_band).items()}
    mine = {key: InForce(key, value, "in band") for key, value in (asked | always).items()}
    mine |= {key: InForce(key, value, "by command") for key, value in _by_key(own.by_command).items()}
    if alone := mine.get("probe_interval"):  # in place of both bounds of an experiment
        mine["most_probe_interval"] = InForce("most_probe_interval", 0.0, alone.source)
    return [
        mine[key] if key in mine else _in_force(key, getattr(policy, key), service, given, config) for key in VALUES
    ]


def _at_least(key: str, value: float, policy: Policy) -> float:
    """What was set in band may lie below a bound that came later."""
    least = policy.least_probe_interval if key == "probe_interval" else policy.least_quiet
    return max(value, least) if value else value


def givers(rules: RuleSet, matching: Iterable[Rule], service: Service, config: Config) -> frozenset[str]:
    """The rules that give a client of this service a value that is in force, of those that match it."""
    _, kept, _ = _changed(service, _give(rules, matching, service, {}), config)
    return frozenset(rule for _, rule in kept.values())


def _by_key(own: Mapping[str, int]) -> dict[str, Any]:
    scales = {"_ms": 1000, "_s": 1}
    return {key: own[key + unit] / scale for key in VALUES for unit, scale in scales.items() if key + unit in own}


def _in_force(key: str, value: Any, service: Service, given: Given, config: Config) -> InForce:
    if key in given and given[key][0] == value:
        return InForce(key, value, f"rule {given[key][1]}", given[key][1])
    if key == "on_server_close" and service.kind != "server":
        return InForce(key, value, f'kind = "{service.kind}" of service {service.name}')
    if key in service.model_fields_set and getattr(service, key) == value:
        return InForce(key, value, f"service {service.name}")
    if key in config.policy.model_fields_set and getattr(config.policy, key) == value:
        return InForce(key, value, "[policy]")
    if value == Policy.model_fields[key].default:
        return InForce(key, value, "default")
    why = {
        "on_server_close": f'interface = "{service.interface}"',
        "probe_interval": 'sleep_keepalive = "none"',
        "active_quiet": "connect_timeout, for a held client that has spoken is reset after it,",
    }.get(key, "what else")
    return InForce(key, value, f"{why} of service {service.name}")
