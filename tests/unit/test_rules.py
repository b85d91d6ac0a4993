# SPDX-License-Identifier: Apache-2.0
"""Rules: what is refused and in which words, and that what the engine is told is the cascade."""

from __future__ import annotations

import fnmatch
import ipaddress
import itertools
import json
import sys
import time
from types import FrameType
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire import ANY_LOCAL, OnServerClose, Own, RuleEntry, ServiceSpec, pack_address
from control.config import Config, Policy, Service, parse
from control.core.names import NAME_LENGTH, is_like, may_both_be_like
from control.policy import cascade
from control.policy.cascade import TooManyError, compile_rules, explain
from control.policy.rules import NOBODY, OF_THE_SERVICE, VALUES, Rule, RuleError, RuleSet, read_rule
from control.policy.services import service_spec

CONFIG: Final = """
[table]
filter = 5
[policy]
standby_quiet = 77
[[service]]
name = "line"
listen = "10.0.0.1:7000"
server = "10.0.0.9:7000"
idle_quiet = 99
[[service]]
name = "web"
listen = "0.0.0.0:7001"
server = "10.0.0.9:7001"
[[service]]
name = "six"
listen = "[::]:7002"
server = "[2001:db8::9]:7002"
[[service]]
name = "session"
listen = "10.0.0.1:7003"
server = "10.0.0.9:7003"
interface = "persistent"
[[service]]
name = "held"
listen = "10.0.0.1:7004"
kind = "held"
connect_timeout = 20
"""


def services_of(config: Config) -> dict[int, Service]:
    return dict(enumerate(config.service, 1))


CONFIGURED: Final = parse(CONFIG)
SERVICES: Final = services_of(CONFIGURED)
NUMBERS: Final = {service.name: number for number, service in SERVICES.items()}


def rule(name: str = "r", **keys: Any) -> Rule:
    return read_rule({"name": name, **keys})


def refused(**keys: Any) -> str:
    with pytest.raises(RuleError) as told:
        rule(**keys)
    return str(told.value)


def problems(*rules: Rule, config: Config = CONFIGURED) -> str:
    made = RuleSet(rules)
    return "\n".join(one.text for one in made.problems(config.service))


# -- one rule ---------------------------------------------------------------------------------------------------------


def test_a_rule_gives_what_belongs_to_a_connection_and_the_rest_of_policy_is_the_services() -> None:
    """VALUES and OF_THE_SERVICE are all of [policy]: a key that comes to it must be put on one side."""
    assert set(VALUES) | set(OF_THE_SERVICE) == set(Policy.model_fields)
    assert len(VALUES) == 21


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"activ_quiet": 5}, "unknown key `activ_quiet`; did you mean `active_quiet`?"),
        ({"listen": "x", "active_quiet": 5}, "unknown key `listen`; it belongs in [attach] or [api] or [[service]]"),
        ({}, "it gives no value; there are active_quiet, standby_quiet,"),
        ({"network": "10.0.0.0/8"}, "it gives no value"),
        ({"active_quiet": "fast"}, '`active_quiet` "fast" is no duration; write "90s"'),
        ({"active_quiet": -1}, "`active_quiet` a duration lies between 0 and 50 days (it is -1)"),
        ({"active_quiet": 10**400}, "`active_quiet` a duration lies between"),
        ({"active_quiet": float("nan")}, "`active_quiet` a duration lies between"),
        ({"active_quiet": "x" * 10**6}, "`active_quiet`"),
        ({"probe_interval": 2.5}, "`probe_interval` this duration is counted in whole seconds"),
        ({"probe_count": 16}, "`probe_count` Input should be less than or equal to 15 (it is 16)"),
        ({"probe_retry": "never"}, '`probe_retry` must not be 0 or "never"'),
        ({"most_probe_interval": "1h"}, "`most_probe_interval` needs a `probe_interval` beside it"),
        ({"most_probe_interval": "1h", "probe_interval": "1h"}, "`most_probe_interval` must be longer than"),
        ({"most_probe_interval": "1h", "probe_interval": "never"}, "`most_probe_interval` must be longer than"),
        ({"priority": "urgent"}, "`priority` Input should be 'low', 'normal' or 'high'"),
        ({"connect_timeout": 5}, "`connect_timeout` is the service's, and the same for all of its clients"),
        ({"on_second_server": "share"}, "`on_second_server`"),
        ({"second_server_wait": "2h"}, "`second_server_wait`"),
        ({"network": "10.1.2.3/9", "active_quiet": 5},
         '"10.1.2.3/9" has host bits set: "10.0.0.0/9" is the network, and "10.1.2.3/32" that address alone'),
        ({"network": "ten", "active_quiet": 5}, '`network` "ten" is no network; write "192.0.2.0/24"'),
        ({"network": 10, "active_quiet": 5}, "`network` a network is text"),
        ({"network": "224.0.0.0/4", "active_quiet": 5}, "has multicast addresses, from which no client connects"),
        ({"server": "db.example", "active_quiet": 5}, '"db.example" is no address; write "192.0.2.1" or "2001:db8::1"'),
        ({"server": 10, "active_quiet": 5}, "`server` an address is text"),
        *(({"server": odd, "active_quiet": 5}, f'"{odd}" is not the address of one host')
          for odd in ("::", "0.0.0.0", "224.0.0.1", "fe80::1%eth0")),
        ({"order": "first", "active_quiet": 5}, "`order` must be a whole number (it is 'first')"),
        ({"name": "Upper", "active_quiet": 5}, "`name` String should match pattern"),
        ({"name": "x" * 64, "active_quiet": 5}, "`name` String should match pattern"),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_the_keys_name(keys: dict[str, Any], said: str) -> None:
    told = refused(**keys)
    assert said in told
    assert len(told) < 1000


def test_words_that_are_said_twice_are_kept_once_and_no_list_of_them_is_long() -> None:
    assert rule("a", in_band_clients=["done", "quiet"] * 400_000).values == {"in_band_clients": ("done", "quiet")}
    assert rule("a", in_band_servers="done, quiet, done").values == {"in_band_servers": ("done", "quiet")}
    for many in ([f"w{n}" for n in range(33)], [0] * 33):
        with pytest.raises(RuleError, match="`in_band_clients` has 33 words, and there are fewer"):
            rule("a", in_band_clients=many)


def test_of_many_keys_that_are_not_known_some_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(Rule, "model_validate", lambda data: looked.append(len(data)))
    read_rule(dict.fromkeys(map(str, range(1000)), 1))
    assert looked[0] < 100
    monkeypatch.undo()
    with pytest.raises(RuleError, match="unknown key `0`"):
        read_rule({"name": "a", "active_quiet": 1} | dict.fromkeys(map(str, range(1000)), 1))


def test_the_longest_rule_is_short() -> None:
    """Each of 100,000 changes that are kept has it."""
    most = {
        key: ["done", "quiet", "keepalive", "always-active", "name", "sleep", "status"] if "in_band" in key
        else field.default for key, field in Policy.model_fields.items() if key not in OF_THE_SERVICE
    }  # fmt: skip
    most |= {"active_quiet": 1234567.123456789, "probe_interval": 1, "most_probe_interval": 65535}
    del most["sleep_keepalive"], most["new_clients"]
    long = "x" * 63
    text = json.dumps(rule(long, **most, client=long, tag=long, service=long, server="2001:db8::1", network="::/0",
                           order=-1_000_000).content)  # fmt: skip
    assert len(text) < 2048


def test_a_rule_is_read_again_from_its_content() -> None:
    made = rule("cell", network="10.0.0.0/9", service="line", order=3, active_quiet="1m 30s", priority="low")
    assert made.content == {"name": "cell", "network": "10.0.0.0/9", "service": "line", "order": 3,
                            "active_quiet": 90.0, "priority": "low"}  # fmt: skip
    assert read_rule(made.content) == made


def test_an_ipv4_network_may_be_written_as_a_mapped_one() -> None:
    assert rule(network="::ffff:10.0.0.0/104", active_quiet=1).network == "10.0.0.0/8"
    assert rule(network="10.0.0.7", active_quiet=1).network == "10.0.0.7/32"
    assert rule(server="::ffff:10.0.0.7", active_quiet=1).server == "10.0.0.7"


# -- several ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"service": "lien"}, 'rule "r": there is no service "lien"; did you mean "line"?'),
        ({"service": "line", "network": "2001:db8::/32"},
         'nothing can match: its network 2001:db8::/32 is IPv6, and the service "line" listens at 10.0.0.1:7000'),
        ({"service": "six", "network": "10.0.0.0/8"}, "is IPv4, and the service"),
        ({"service": "line", "server": "10.0.0.2"},
         'its server is 10.0.0.2, and the service "line" listens at 10.0.0.1:7000'),
        ({"service": "six", "server": "10.0.0.2"},
         'its server is 10.0.0.2, and the service "six" listens at [::]:7002'),
        ({"network": "2001:db8::/32", "server": "10.0.0.2"},
         "its network 2001:db8::/32 is IPv6, and its server is 10.0.0.2"),
        ({"service": "held", "on_server_close": "close"}, '`on_server_close` does not hold for service "held"'),
    ],
)  # fmt: skip
def test_a_rule_that_nothing_can_match_is_a_problem(keys: dict[str, Any], said: str) -> None:
    assert said in problems(rule(**{"active_quiet": 5, **keys}))
    assert problems(rule(active_quiet=5, network="10.0.0.0/8"), rule("b", active_quiet=5, service="line")) == ""


def test_a_network_that_no_service_listens_for_is_a_problem() -> None:
    config = parse(CONFIG.partition('[[service]]\nname = "six"')[0])
    assert "is IPv6, and no service listens so" in problems(rule(network="::/0", active_quiet=1), config=config)


def test_rules_for_the_same_clients_that_give_the_same_need_an_order() -> None:
    a, b = rule("a", network="10.0.0.0/8", active_quiet=1), rule("b", network="10.0.0.0/8", active_quiet=2)
    told = problems(a, b)
    assert told.startswith('overlaps without order: the rules "a" and "b" both give `active_quiet`')
    assert problems(a, rule("b", network="10.0.0.0/8", active_quiet=2, order=1)) == ""
    assert problems(a, rule("b", network="10.0.0.0/8", idle_quiet=2)) == ""
    assert problems(a, rule("b", network="10.0.0.0/8", service="line", active_quiet=2)) == ""
    assert problems(a, rule("b", network="10.0.0.0/9", active_quiet=2)) == ""
    of_one = {"server": "10.0.0.1", "network": "10.0.0.0/8"}
    assert problems(a, rule("b", **of_one, active_quiet=2)) == ""
    assert problems(rule("a", server="10.0.0.2", active_quiet=1), rule("b", server="10.0.0.1", active_quiet=2)) == ""
    assert "overlaps" in problems(rule("a", **of_one, active_quiet=1), rule("b", **of_one, active_quiet=2))
    assert "overlaps" in problems(rule("a", active_quiet=1), rule("b", active_quiet=1))


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ({"client": "meter-*"}, {"client": "*-meter"}, True),  # meter-meter
        ({"client": "meter-*"}, {"client": "??????*"}, False),  # the first one says more
        ({"client": "a*c"}, {"client": "a*d"}, False),
        ({"client": "a*c"}, {"client": "*ac"}, True),
        ({"client": "a?c"}, {"client": "ab?"}, True),
        ({"client": "a?c"}, {"client": "ab??"}, False),
        ({"client": "meter-1"}, {"client": "meter-2"}, False),
        ({"client": "meter-1"}, {"client": "meter-1"}, True),
        ({"client": "meter-*"}, {"client": "meter-*", "tag": "winter"}, False),
        ({"tag": "winter"}, {"tag": "winter"}, True),
        ({"tag": "winter"}, {"tag": "summer"}, False),  # unless a name has both
        ({"tag": "winter"}, {}, False),
    ],
)
def test_rules_overlap_where_a_name_may_be_as_both_say(one: Any, other: Any, overlap: bool) -> None:
    said = problems(rule("a", active_quiet=1, **one), rule("b", active_quiet=2, **other))
    assert ("overlaps without order" in said) == overlap


@given(st.text("ab*?", min_size=1, max_size=5), st.text("ab*?", min_size=1, max_size=5))
def test_two_patterns_meet_where_there_is_a_text_that_is_as_both(one: str, other: str) -> None:
    texts = ("".join(letters) for length in range(9) for letters in itertools.product("ab", repeat=length))
    meet = any(is_like(text, one) and is_like(text, other) for text in texts)
    assert may_both_be_like(one, other) == meet


def test_a_name_is_compared_with_the_dearest_pattern_at_once() -> None:
    """Whenever a client is named or wakes. It took 0.8 ms when all that a `*` may stand for was tried."""
    began = time.thread_time()
    assert not any(is_like("a" * NAME_LENGTH, "*?*?*?*" + letter) for letter in "bcdefghijklmnopqrstuvwxyz" * 40)
    assert time.thread_time() - began < 0.1


def test_the_dearest_patterns_are_compared_in_steps_of_the_one_alone() -> None:
    """Each rule by name is compared with each other one, at each start. The steps are counted: lines that are run."""
    one, other = ("*?*?*?*" + "?" * 54 + end for end in ("ab", "ac"))
    steps = 0

    def step(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        meet = may_both_be_like.__wrapped__(one, other)
    finally:
        sys.settrace(before)
    assert (meet, steps < 20 * len(one + other)) == (False, True), steps


# -- the cascade ------------------------------------------------------------------------------------------------------


def in_engine(
    compiled: cascade.Compiled, number: int, client: str, group: int = 0, local: str = "10.0.0.1"
) -> ServiceSpec | None:
    """What the engine makes of it: the longest network of its address and group that has the client."""
    address = int.from_bytes(pack_address(client), "big")
    found: RuleEntry | None = None
    of_all = [entry for entry in compiled.entries if entry.service == number]
    ours = [entry for entry in of_all if entry.local == pack_address(local)]
    ours = ours or [entry for entry in of_all if entry.local == ANY_LOCAL]
    group = group if any(entry.group == group for entry in ours) else 0
    for entry in ours:
        inside = (int.from_bytes(entry.network, "big") ^ address) >> (128 - entry.bits) == 0
        if entry.group == group and inside and (found is None or entry.bits > found.bits):
            found = entry
    return compiled.policies[found.policy] if found else None


def by_hand(
    rules: list[Rule], service: Service, client: str, called: str, tags: frozenset[str], local: str
) -> dict[str, Any]:
    """The cascade as it is told to people."""
    address = ipaddress.ip_address(client)
    values: dict[str, Any] = {}
    for key in VALUES:
        best: tuple[tuple[Any, ...], Any] | None = None
        for one in rules:
            network = ipaddress.ip_network(one.network) if one.network else None
            if one.service not in (None, service.name) or key not in one.values:
                continue
            if network is not None and (network.version != address.version or address not in network):
                continue
            if one.client and not (called and fnmatch.fnmatchcase(called, one.client)):
                continue
            if one.tag and one.tag not in tags:
                continue
            if one.server not in (None, local):
                continue
            pattern = one.client or ""
            written = len(pattern.replace("*", "").replace("?", ""))
            rank = (
                bool(one.client), bool(one.tag), network.prefixlen if network else -1, written == len(pattern), written,
                one.server is not None, one.service is not None, one.order,
            )  # fmt: skip
            if best is None or rank > best[0]:
                best = rank, one.values[key]
        if best is not None:
            values[key] = best[1]
    return values


NETWORKS: Final = ["10.0.0.0/8", "10.0.0.0/9", "10.64.0.0/10", "10.64.1.0/24", "10.64.1.7/32", "0.0.0.0/0",
                   "192.0.2.0/24", "::/0", "2001:db8::/32", "2001:db8:1::/48", "2001:db8:1::7/128", "::/8"]  # fmt: skip
CLIENTS: Final = ["10.0.0.1", "10.64.1.7", "10.64.1.8", "10.65.0.1", "10.200.0.1", "192.0.2.5", "198.51.100.1",
                  "2001:db8::1", "2001:db8:1::7", "2001:db8:1::8", "2001:dead::1", "::5"]  # fmt: skip
GIVEN: Final = st.dictionaries(
    st.sampled_from(["active_quiet", "standby_quiet", "idle_quiet", "probe_count", "priority"]), st.integers(0, 2),
    min_size=1,
)  # fmt: skip
PATTERNS: Final = ["meter-*", "*-7", "meter-7", "meter-?", "*", "door-*"]
LOCALS: Final = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1", "2001:db8::2"]
NAMES: Final = ["", "meter-7", "meter-70", "door-7", "gate"]
RULES: Final = st.lists(
    st.tuples(
        st.sampled_from([None, *NETWORKS]), st.sampled_from([None, "line", "web", "six"]), GIVEN,
        st.sampled_from([None, None, None, *PATTERNS]), st.sampled_from([None, None, None, "winter", "east"]),
        st.sampled_from([None, None, None, *LOCALS]),
    ),
    max_size=14,
)  # fmt: skip


def made_of(
    drawn: list[tuple[str | None, str | None, dict[str, int], str | None, str | None, str | None]],
) -> list[Rule]:
    rules = []
    for order, (network, service, numbers, client, tag, server) in enumerate(drawn):
        values: dict[str, Any] = dict(numbers)
        if "priority" in values:
            values["priority"] = ("low", "normal", "high")[values["priority"]]
        if "probe_count" in values:
            values["probe_count"] += 1
        conditions = {"network": network, "service": service, "client": client, "tag": tag, "server": server}
        rules.append(rule(f"r{order}", order=order, **{k: v for k, v in conditions.items() if v}, **values))
    return rules


@given(RULES, st.sampled_from(["line", "web", "six"]), st.sampled_from(CLIENTS), st.sampled_from(NAMES),
       st.frozensets(st.sampled_from(["winter", "east"])), st.sampled_from(LOCALS))  # fmt: skip
def test_the_longest_network_of_what_is_compiled_is_the_cascade(
    drawn: Any, name: str, client: str, called: str, tags: frozenset[str], local: str
) -> None:
    number = NUMBERS[name]
    service = SERVICES[number]
    if {ipaddress.ip_address(one).version == 6 for one in (client, local)} != {name == "six"}:
        return
    if name == "line":  # it listens at one address
        local = "10.0.0.1"
    rules, tags = made_of(drawn), tags if called else frozenset()
    values = by_hand(rules, service, client, called, tags, local)
    every = RuleSet(rules)
    groups = {every.group_of(one, some): number
              for number, (one, some) in enumerate([("gate", frozenset({"east"})), (called, tags)], 1)}  # fmt: skip
    groups.pop(frozenset(), None)
    group = every.group_of(called, tags) if called else NOBODY
    wanted = service_spec(service.model_copy(update=values), number, CONFIGURED)
    found = in_engine(compile_rules(every, SERVICES, CONFIGURED, groups), number, client, groups.get(group, 0), local)
    assert (found or service_spec(service, number, CONFIGURED)) == wanted
    told = explain(every, service, CONFIGURED, pack_address(client), Own(), group, local)
    for one in told:
        assert bool(one.rule) == (one.key in values)
        assert one.key not in values or one.value == values[one.key]


def test_the_same_values_are_one_policy_and_all_that_is_not_given_is_the_services() -> None:
    compiled = compile_rules(
        RuleSet([rule("a", network="10.0.0.0/8", active_quiet=5), rule("b", network="11.0.0.0/8", active_quiet="5s")]),
        SERVICES, CONFIGURED,
    )  # fmt: skip
    assert sorted({(entry.service, entry.policy) for entry in compiled.entries}) == [(1, 0), (2, 1), (4, 2), (5, 3)]
    assert len(compiled.policies) == 4
    line = compiled.policies[0]
    assert (line.standby_quiet_ms, line.idle_quiet_ms, line.sleep_quiet_ms) == (5_000, 77_000, 99_000)
    assert compiled.entries[0].network == bytes(10) + b"\xff\xff\x0a\0\0\0"
    assert compiled.entries[0].bits == 104


def test_a_rule_without_a_network_is_for_both_kinds_of_clients() -> None:
    compiled = compile_rules(RuleSet([rule(active_quiet=5)]), SERVICES, CONFIGURED)
    assert {(entry.service, entry.network, entry.bits) for entry in compiled.entries} == {
        (number, bytes(16), 0) for number in SERVICES
    }


def test_an_address_has_entries_of_its_own_where_the_service_has_several_and_a_rule_names_it() -> None:
    compiled = compile_rules(
        RuleSet([rule("all", network="10.0.0.0/8", active_quiet=5), rule("one", server="10.0.0.1", idle_quiet=6)]),
        SERVICES, CONFIGURED,
    )  # fmt: skip
    by_service: dict[int, list[tuple[bytes, int]]] = {}
    for entry in compiled.entries:
        by_service.setdefault(entry.service, []).append((entry.local, entry.bits))
    one = [(ANY_LOCAL, 0), (ANY_LOCAL, 104)]  # line, session and held listen at it alone
    assert by_service == {1: one, 2: [(ANY_LOCAL, 104), (pack_address("10.0.0.1"), 0), (pack_address("10.0.0.1"), 104)],
                          4: one, 5: one}  # fmt: skip


def test_a_rule_of_a_service_that_is_gone_applies_to_nothing() -> None:
    assert compile_rules(RuleSet([rule(service="gone", active_quiet=5)]), SERVICES, CONFIGURED).entries == []


# -- values that a service cannot have --------------------------------------------------------------------------------


def test_sleep_without_keepalives_is_refused_where_a_service_needs_them_and_answered_there() -> None:
    rules = RuleSet([rule("bare", network="10.0.0.0/8", sleep_keepalive="none")])
    compiled = compile_rules(rules, SERVICES, CONFIGURED)
    told = [one.text for one in compiled.problems]
    assert 'rule "bare", service "session": sleep_keepalive = "none" is for transient services' in told[0]
    assert 'service "held": sleep_keepalive = "none" is not for kind = "held"' in told[1]
    assert len(told) == 2
    by_service = {entry.service: compiled.policies[entry.policy] for entry in compiled.entries}
    assert {n: spec.no_keepalives for n, spec in by_service.items()} == {1: True, 2: True, 4: False, 5: False}
    assert by_service[1].probe_interval_s == 0, "its default"
    assert by_service[4].probe_interval_s == 64800


def test_probes_of_sleepers_without_a_slot_are_a_problem_of_both_rules() -> None:
    bare = rule("bare", service="line", sleep_keepalive="none")
    often = rule("often", service="line", network="10.0.0.0/8", probe_interval=60)
    (one,) = compile_rules(RuleSet([bare, often]), SERVICES, CONFIGURED).problems
    assert one.rules == ("bare", "often")
    assert "and probe_interval: to probe a client takes its slot" in one.text
    config = parse(CONFIG.replace("idle_quiet = 99", 'sleep_keepalive = "none"'))
    compiled = compile_rules(RuleSet([often]), services_of(config), config)
    assert [one.rules for one in compiled.problems] == [("often",)]
    assert (compiled.policies[0].no_keepalives, compiled.policies[0].probe_interval_s) == (True, 0)


def test_a_session_ends_with_its_servers_connection_unless_a_rule_names_the_service() -> None:
    general = rule("general", on_server_close="standby")
    named = rule("named", service="session", on_server_close="standby")
    for rules, closes in (([general], True), ([general, named], False)):
        compiled = compile_rules(RuleSet(rules), SERVICES, CONFIGURED)
        spec = in_engine(compiled, NUMBERS["session"], "10.0.0.5")
        assert spec is None or (spec.on_server_close == OnServerClose.CLIENT) == closes
        told = {one.key: one for one in explain(RuleSet(rules), SERVICES[NUMBERS["session"]], CONFIGURED,
                                                pack_address("10.0.0.5"), Own())}  # fmt: skip
        said = 'interface = "persistent" of service session' if closes else "rule named"
        assert told["on_server_close"].source == said


def test_a_value_that_a_kind_does_not_have_is_not_claimed_for_a_rule() -> None:
    rules = RuleSet([rule(on_server_close="close", active_quiet=1)])
    told = explain(rules, SERVICES[NUMBERS["held"]], CONFIGURED, pack_address("10.0.0.5"), Own())
    found = {one.key: (one.value, one.source) for one in told}
    assert found["on_server_close"] == ("standby", 'kind = "held" of service held')
    assert found["active_quiet"][0] == 25.0
    assert found["active_quiet"][1].startswith("connect_timeout, for a held client")


def test_what_a_connection_set_in_band_stands_above_all() -> None:
    rules = RuleSet([rule("r", active_quiet=1, idle_quiet=2, probe_interval=3)])

    def told(in_band: dict[str, int]) -> dict[str, tuple[Any, str]]:
        found = explain(rules, SERVICES[1], CONFIGURED, pack_address("10.0.0.5"), Own(in_band))
        return {one.key: (one.value, one.source) for one in found}

    found = told({"idle_quiet_ms": 5500, "probe_interval_s": 7})
    assert found["idle_quiet"] == (5.5, "in band")
    assert found["probe_interval"] == (7, "in band")
    assert found["active_quiet"] == (1, "rule r")
    assert found["standby_quiet"] == (77, "[policy]")
    assert found["write_timeout"] == (180, "default")
    assert told({})["idle_quiet"] == (2, "rule r")
    always = told({"always_active": 1})
    assert always["active_quiet"] == always["standby_quiet"] == (0, "in band")


def test_a_bound_that_came_later_holds_for_what_was_set_in_band_before() -> None:
    rules = RuleSet([rule("bounds", least_quiet=60, least_probe_interval=90)])
    own = Own({"active_quiet_ms": 5000, "idle_quiet_ms": 0, "probe_interval_s": 1}, {"standby_quiet_ms": 1000})
    told = explain(rules, SERVICES[1], CONFIGURED, pack_address("10.0.0.5"), own)
    found = {one.key: (one.value, one.source) for one in told}
    assert found["active_quiet"] == (60, "in band")
    assert found["idle_quiet"] == (0, "in band"), "never may always be asked for"
    assert found["probe_interval"] == (90, "in band")
    assert found["standby_quiet"] == (1, "by command")


def test_a_probe_interval_of_its_own_ends_an_experiment_of_all() -> None:
    rules = RuleSet([
        rule("try", network="10.0.0.0/8", probe_interval=600, most_probe_interval=3600),
        rule("vip", network="10.1.0.0/16", probe_interval=300),
    ])  # fmt: skip
    number, service = next(iter(SERVICES.items()))
    compiled = compile_rules(rules, {number: service}, CONFIGURED)
    assert [(one.probe_interval_s, one.most_probe_s) for one in compiled.policies] == [(600, 3600), (300, 0)]

    def told(address: str, own: Own) -> dict[str, tuple[Any, str]]:
        found = explain(rules, service, CONFIGURED, pack_address(address), own)
        return {one.key: (one.value, one.source) for one in found}

    assert told("10.2.0.1", Own())["most_probe_interval"] == (3600, "rule try")
    assert told("10.1.0.1", Own())["most_probe_interval"] == (0, "rule vip")
    given = told("10.2.0.1", Own({}, {"probe_interval_s": 7}))
    assert given["probe_interval"] == (7, "by command")
    assert given["most_probe_interval"] == (0, "by command")
    assert rules.rules["vip"].content == {"name": "vip", "network": "10.1.0.0/16", "probe_interval": 300}


# -- many -------------------------------------------------------------------------------------------------------------


def many(count: int, values: int) -> RuleSet:
    return RuleSet(
        rule(f"n{i}", network=str(ipaddress.ip_network((0x0A000000 + i * 256, 24))), active_quiet=1 + i % values)
        for i in range(count)
    )


def test_ten_thousand_networks_take_little_more_each_than_a_thousand() -> None:
    """Of a processor's time, whose speed is not asked: 0.25 s (docs/architecture.md)."""
    config = parse(CONFIG.partition('[[service]]\nname = "six"')[0] + "".join(
        f'[[service]]\nname = "s{n}"\nlisten = "10.0.0.1:{n}"\nserver = "10.0.0.9:{n}"\n' for n in (80, 81)
    ))  # fmt: skip
    took: dict[int, float] = {}
    for networks in (1000, 10_000):
        rules = many(networks, 200)
        began = time.process_time()
        compiled = compile_rules(rules, services_of(config), config)
        took[networks] = time.process_time() - began
        assert (len(compiled.entries), len(compiled.policies)) == (4 * networks, 800)
    assert took[10_000] < 3 * 10 * took[1000]


@pytest.mark.parametrize(
    ("bound", "count", "values", "said"),
    [
        ("ENTRIES_MAX", 30, 1, "the rules' networks are more than 100 over all services"),
        ("POLICIES_MAX", 300, 300, "the rules make more than 100 different sets of values"),
        ("RULES_MAX", 101, 1, "101 rules: 100 at most"),
    ],
)
def test_more_than_the_engine_has_room_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, bound: str, count: int, values: int, said: str
) -> None:
    monkeypatch.setattr(cascade, bound, 100)
    with pytest.raises(TooManyError, match=said):
        compile_rules(many(count, values), SERVICES, CONFIGURED)


def test_servers_that_rules_name_are_counted_and_the_entries_they_make_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cascade, "SERVERS_MAX", 20)
    monkeypatch.setattr(cascade, "ENTRIES_MAX", 300)
    of_servers = [rule(f"s{i}", server=f"10.0.0.{i + 1}", active_quiet=1) for i in range(21)]
    with pytest.raises(TooManyError, match="21 servers that rules name: 20 at most"):
        compile_rules(RuleSet(of_servers), SERVICES, CONFIGURED)
    networks = [*many(20, 1).rules.values()]
    with pytest.raises(TooManyError, match="more than 300 over all services and servers"):
        compile_rules(RuleSet([*of_servers[:20], *networks]), SERVICES, CONFIGURED)
