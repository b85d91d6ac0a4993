# SPDX-License-Identifier: Apache-2.0
"""Rules by client network: which policy a client gets (cext/table/rules.c), the classes that they give
(cext/table/interned.c), and the round of the sweep that gives what exists its class."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from errno import EINVAL, ENOSPC
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final

import pytest

from appliance.wire import Key, pack_address
from tests.inner import ffi, lib
from tests.unit.records import IDLE, SLEEP, Ka
from tests.unit.test_classes import CLASSES, OWN, SERVICES, Classes, Own, Policy, classes  # noqa: F401
from tests.unit.test_turns import START_MS, Still

NO_RULE: Final = 0xFFFFFFFF
RULED: Final = CLASSES - SERVICES - OWN


@dataclass(frozen=True)
class Rule:
    service: int
    network: IPv4Network | IPv6Network
    policy: int
    group: int = 0
    local: str = ""

    def fill(self, place: Any) -> None:
        ffi.memmove(place.network, pack_address(str(self.network.network_address)), 16)
        place.bits = self.network.prefixlen + (96 if self.network.version == 4 else 0)
        place.service, place.policy, place.group = self.service, self.policy, self.group
        ffi.memmove(place.local, pack_address(self.local) if self.local else bytes(16), 16)


def rule(network: str, policy: int = 0, service: int = 1) -> Rule:
    return Rule(service, ip_network(network), policy)


def c_rules(rules: Sequence[Rule]) -> Any:
    raw = ffi.new("struct roost_rule[]", len(rules))
    for place, each in zip(raw, rules, strict=True):
        each.fill(place)
    return raw


def found(
    rules: Sequence[Rule], clients: Sequence[str], service: int = 1, group: int = 0, local: str = "192.0.2.1"
) -> list[int]:
    numbers = ffi.new("uint32_t[]", len(clients))
    packed = b"".join(pack_address(client) for client in clients)
    error = lib.roost_testing_rules_find(
        c_rules(rules), len(rules), service, pack_address(local), group, packed, len(clients), numbers
    )
    assert error == 0
    return list(numbers)


def by_reading(rules: Sequence[Rule], client: str, service: int) -> int:
    address = ip_address(client)
    fit = [r for r in rules if r.service == service and r.network.version == address.version and address in r.network]
    return max(fit, key=lambda r: r.network.prefixlen).policy if fit else NO_RULE


def test_the_longest_network_counts_and_outside_of_all_none_does() -> None:
    rules = [rule("10.0.0.0/8", 1), rule("10.1.0.0/16", 2), rule("10.1.2.3/32", 3), rule("2001:db8::/32", 4)]
    clients = ["9.255.255.255", "10.0.0.0", "10.0.255.255", "10.1.0.0", "10.1.2.2", "10.1.2.3", "10.1.2.4",
               "10.1.255.255", "10.2.0.0", "10.255.255.255", "11.0.0.0", "2001:db8::", "2001:db9::", "::"]  # fmt: skip
    assert found(rules, clients) == [
        NO_RULE, 1, 1, 2, 2, 3, 2, 2, 1, 1, NO_RULE, 4, NO_RULE, NO_RULE,
    ]  # fmt: skip
    assert found(rules, clients, service=2) == [NO_RULE] * len(clients)


def test_a_group_has_the_rules_of_its_own_and_without_any_those_of_no_group() -> None:
    rules = [rule("10.0.0.0/8", 1), Rule(1, ip_network("10.1.0.0/16"), 2, 7), Rule(2, ip_network("0.0.0.0/0"), 3, 7),
             Rule(1, ip_network("10.0.0.0/8"), 4, 255)]  # fmt: skip
    clients = ["10.1.2.3", "10.2.0.0", "11.0.0.0"]
    assert found(rules, clients) == [1, 1, NO_RULE]
    assert found(rules, clients, group=7) == [2, NO_RULE, NO_RULE]
    assert found(rules, clients, group=255) == [4, 4, NO_RULE]
    assert found(rules, clients, group=8) == [1, 1, NO_RULE]
    assert found(rules, clients, service=2, group=7) == [3, 3, 3]
    assert found(rules, clients, service=2) == found(rules, clients, service=2, group=8) == [NO_RULE] * 3


def test_an_address_has_the_rules_of_its_own_and_without_any_those_of_no_address() -> None:
    everywhere = ip_network("0.0.0.0/0")
    rules = [
        rule("10.0.0.0/8", 1), Rule(1, everywhere, 2, 0, "10.9.0.1"),
        Rule(1, ip_network("10.1.0.0/16"), 3, 7, "10.9.0.1"),
        Rule(1, everywhere, 4, 0, "10.9.0.2"), Rule(2, everywhere, 5, 7, "10.9.0.1"), Rule(1, everywhere, 6, 8),
        Rule(1, ip_network("::/0"), 7, 0, "2001:db8::1"),
    ]  # fmt: skip
    clients = ["10.1.2.3", "11.0.0.0"]
    assert found(rules, clients) == found(rules, clients, group=7) == [1, NO_RULE]
    assert found(rules, clients, group=8) == [6, 6]
    assert found(rules, clients, local="10.9.0.1") == found(rules, clients, local="10.9.0.1", group=8) == [2, 2]
    assert found(rules, clients, local="10.9.0.1", group=7) == [3, NO_RULE]
    assert found(rules, clients, local="10.9.0.2", group=7) == [4, 4]
    assert found(rules, clients, service=2, local="10.9.0.1") == [NO_RULE] * 2
    assert found(rules, clients, service=2, local="10.9.0.1", group=7) == [5, 5]
    assert found(rules, clients, service=2, local="10.9.0.2", group=7) == [NO_RULE] * 2
    assert found(rules, ["2001:db8:5::1"], local="2001:db8::1") == [7]


def test_all_addresses_of_a_family_are_a_network() -> None:
    rules = [rule("0.0.0.0/0", 1), rule("255.255.255.255/32", 2), rule("0.0.0.0/32", 3)]
    clients = ["0.0.0.0", "0.0.0.1", "255.255.255.254", "255.255.255.255", "::1"]
    assert found(rules, clients) == [3, 1, 1, 2, NO_RULE]
    everywhere = [rule("::/0", 5), rule("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", 6)]
    assert found(everywhere, ["::", "10.0.0.1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"]) == [5, 5, 5]
    assert found(everywhere, ["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]) == [6]


def test_networks_that_begin_or_end_together_do_not_hide_each_other() -> None:
    rules = [rule("10.0.0.0/8", 1), rule("10.0.0.0/24", 2), rule("10.0.0.0/32", 3), rule("10.255.255.255/32", 4)]
    rules += [rule("10.0.1.0/24", 1), rule("10.0.2.0/24", 5)]
    clients = ["10.0.0.0", "10.0.0.1", "10.0.1.0", "10.0.2.9", "10.0.3.0", "10.255.255.254", "10.255.255.255"]
    assert found(rules, clients) == [3, 2, 1, 5, 1, 1, 4]


@pytest.mark.parametrize("wrong", [
    [rule("10.0.0.0/8"), rule("10.0.0.0/8", 1)],
    [rule("10.0.0.0/8", service=0)],
    [rule("10.0.0.0/8", service=SERVICES)],
], ids=["twice", "no service", "no number of a service"])  # fmt: skip
def test_what_is_no_set_of_rules_is_refused(wrong: list[Rule]) -> None:
    assert lib.roost_testing_rules_find(c_rules(wrong), len(wrong), 1, bytes(16), 0, b"", 0, ffi.NULL) == -EINVAL


@pytest.mark.parametrize("bits", [103, 129])
def test_a_network_with_bits_of_a_host_or_too_many_is_refused(bits: int) -> None:
    raw = c_rules([rule("10.1.0.0/16")])
    raw[0].bits = bits
    assert lib.roost_testing_rules_find(raw, 1, 1, bytes(16), 0, b"", 0, ffi.NULL) == -EINVAL


def some_network(rng: random.Random) -> IPv4Network | IPv6Network:
    """Of a few, so that they nest and touch."""
    if rng.random() < 0.6:
        bits = rng.choice([0, 1, 8, 9, 15, 16, 24, 30, 31, 32])
        return ip_network((rng.choice([0, 10 << 24, (10 << 24) + 256, 2**32 - 1, rng.getrandbits(32)]), bits), False)
    bits = rng.choice([0, 1, 32, 33, 64, 127, 128])
    return ip_network((rng.choice([1, 0x20010DB8 << 96, 2**128 - 1, rng.getrandbits(128)]), bits), False)


@pytest.mark.parametrize("seed", range(60))
def test_any_set_of_networks_gives_what_reading_them_gives(seed: int) -> None:
    rng = random.Random(seed)
    unique = {(rng.choice([1, 2, 7]), some_network(rng)): rng.randrange(5) for _ in range(rng.choice([1, 3, 60]))}
    rules = [Rule(service, network, policy) for (service, network), policy in unique.items()]
    rng.shuffle(rules)
    edges = [address for each in rules for address in (int(each.network[0]), int(each.network[-1]))]
    clients = []
    for each, edge in zip([r for r in rules for _ in range(2)], edges, strict=True):
        top = 2**each.network.max_prefixlen - 1
        for number in (edge - 1, edge, edge + 1):
            address = ip_address(max(0, min(top, number)))
            clients.append(str(type(each.network[0])(int(address))))
    for service in (1, 2, 3, 7):
        assert found(rules, clients, service) == [
            by_reading(rules, client, service)
            if by_reading(rules, client, service) != NO_RULE
            else mapped(rules, client, service)
            for client in clients
        ]


def mapped(rules: Sequence[Rule], client: str, service: int) -> int:
    """An IPv4 client is in networks of IPv6 that have all mapped addresses: ::/0 and the like."""
    if ip_address(client).version == 6:
        return NO_RULE
    return by_reading(rules, f"::ffff:{client}", service)


# Classes that rules give


def c_policies(policies: Sequence[tuple[int, Policy]]) -> Any:
    """Each with the number of its service."""
    raw = ffi.new("struct roost_class[]", len(policies))
    for place, (service, policy) in zip(raw, policies, strict=True):
        ffi.memmove(ffi.addressof(place), policy.c(), 64)
        place.service = service
    return raw


def give(classes: Classes, policies: Sequence[tuple[int, Policy]]) -> list[int]:  # noqa: F811
    raw, numbers = c_policies(policies), ffi.new("uint32_t[]", len(policies))
    error = lib.roost_testing_classes_rule(classes.raw, raw, len(policies), numbers)
    if error:
        raise OSError(-error, "no room")
    return list(numbers)


QUICK: Final = Policy((1, 2, 3))
SLOW: Final = Policy((7, 8, 9))
SET: Final = Own((5, None, None), 7)


def test_the_same_policy_of_a_service_is_one_class(classes: Classes) -> None:  # noqa: F811
    first, again, other, elsewhere = give(classes, [(1, QUICK), (1, QUICK), (1, SLOW), (2, QUICK)])
    assert first == again
    assert len({first, other, elsewhere}) == classes.interned == 3
    assert [classes.at(class_) for class_ in (first, other)] == [QUICK, SLOW]
    assert classes.service_of(elsewhere) == 2


def test_what_rules_give_stays_whatever_its_holders_do(classes: Classes) -> None:  # noqa: F811
    """XDP gives it to newborn slots, which nothing counts."""
    [class_] = give(classes, [(1, QUICK)])
    for _ in range(3):
        classes.drop(class_)
    assert classes.at(class_) == QUICK
    lib.roost_testing_classes_hold(classes.raw, class_)
    assert give(classes, []) == []
    assert classes.at(class_) == QUICK, "slots may have it until they are looked at"
    lib.roost_testing_classes_retired_end(classes.raw)
    assert classes.interned == 0


def test_what_is_given_again_is_the_same_class(classes: Classes) -> None:  # noqa: F811
    [before] = give(classes, [(1, QUICK)])
    give(classes, [])
    assert give(classes, [(1, SLOW), (1, QUICK)])[1] == before
    lib.roost_testing_classes_retired_end(classes.raw)
    assert classes.at(before) == QUICK


def test_what_is_set_in_band_stands_in_place_of_what_rules_give(classes: Classes) -> None:  # noqa: F811
    classes.change(SLOW)
    [ruled] = give(classes, [(1, QUICK)])
    set_, of_service = classes.take(SET, ruled), classes.take(SET, 1)
    assert classes.at(set_) == QUICK.but(SET)
    assert classes.at(of_service) == SLOW.but(SET)
    assert classes.change(Policy((70, 80, 90)))
    assert classes.at(set_) == QUICK.but(SET), "the default of the service is not what it stands in place of"
    give(classes, [])
    lib.roost_testing_classes_retired_end(classes.raw)
    assert (classes.at(set_), classes.at(ruled)) == (QUICK.but(SET), QUICK), "it is held"
    classes.drop(set_)
    assert classes.interned == 1, "and goes with the last that stands in its place"


def test_without_room_nothing_changes(classes: Classes) -> None:  # noqa: F811
    """What connections have set for themselves, as much as there may be of it, leaves rules theirs."""
    taken = [classes.take(Own((i + 10, None, None), by_command=True)) for i in range(OWN)]
    assert len(set(taken)) == OWN
    many = [(1, Policy((i + 10, 20, 30))) for i in range(RULED - 2)]
    ruled = give(classes, many)
    with pytest.raises(OSError, match="no room") as refused:
        give(classes, [*many, (1, SLOW), (2, SLOW), (3, SLOW)])
    assert refused.value.errno == ENOSPC
    assert classes.interned == OWN + RULED - 2
    lib.roost_testing_classes_retired_end(classes.raw)
    assert classes.at(ruled[0]) == many[0][1], "it is not retired"
    classes.drop(taken[0])
    assert len(set(give(classes, [*many, (1, SLOW), (2, SLOW), (3, SLOW)]))) == RULED + 1


def test_a_successor_keeps_what_rules_gave_until_it_has_rules(classes: Classes) -> None:  # noqa: F811
    classes.change(SLOW)
    [ruled] = give(classes, [(1, QUICK)])
    set_ = classes.take(SET, ruled)
    lib.roost_testing_classes_adopt(classes.raw, [set_, set_, ruled], 3)
    assert [classes.at(class_) for class_ in (ruled, set_)] == [QUICK, QUICK.but(SET)]
    assert give(classes, [(1, QUICK)]) == [ruled]
    lib.roost_testing_classes_retired_end(classes.raw)
    give(classes, [])
    lib.roost_testing_classes_retired_end(classes.raw)
    classes.drop(set_)
    assert classes.at(set_) == QUICK.but(SET)
    classes.drop(set_)
    assert classes.interned == 0


# Every connection obeys


def key(client: str, port: int = 1) -> Key:
    return Key.of(client, port, "192.0.2.9", 80)


class Ruled(Still):
    """With rules. classes: the number of each policy of the last ones."""

    classes: Any = ffi.new("uint32_t[1024]")

    def rule(self, rules: Sequence[Rule], policies: Sequence[Policy] = ()) -> None:
        raw, why = c_policies([(1, policy) for policy in policies]), ffi.new("struct roost_reason *")
        error = lib.roost_rules_set(self.raw, c_rules(rules), len(rules), raw, len(policies), self.classes, why)
        assert error == 0, ffi.string(why.text)

    def count(self, rules: Sequence[Rule], policies: Sequence[Policy]) -> list[int]:
        raw = c_policies([(1, policy) for policy in policies])
        counts, why = ffi.new("uint64_t[]", 2 * (len(policies) + 1)), ffi.new("struct roost_reason *")
        assert lib.roost_rules_count(self.raw, c_rules(rules), len(rules), raw, len(policies), counts, why) == 0
        return list(counts)

    def values(self, slot: Any) -> Policy:
        raw = lib.roost_testing_class(self.raw, getattr(slot, "class"))
        return Policy(tuple(raw.quiet_ms), raw.probe_interval_s, raw.probe_retry_s, raw.probe_count, raw.priority,
                      raw.on_server_close)  # fmt: skip

    def round(self) -> None:
        self.sweep(self.now_ms + 1100)


@pytest.fixture
def still() -> Ruled:
    still = Ruled(slots=2000, rests=1000)
    still.governed(idle_quiet_ms=3_600_000)
    return still


HOUR: Final = Policy((0, 0, 3_600_000), 0, 0, 4, 0)
MINUTE: Final = Policy((0, 0, 60_000), 0, 0, 4, 0)


def test_one_round_gives_every_slot_its_class_and_takes_it_back(still: Ruled) -> None:
    inside = [still.insert(key(f"10.0.{i >> 8}.{i & 255}"), Ka(IDLE), active_ms=START_MS) for i in range(500)]
    outside = [still.insert(key(f"11.0.{i >> 8}.{i & 255}"), Ka(SLEEP)) for i in range(500)]
    still.round()
    still.rule([rule("10.0.0.0/9")], [MINUTE])
    still.round()
    assert {still.values(slot) for slot in inside} == {MINUTE}
    assert {still.values(slot) for slot in outside} == {HOUR}
    assert sorted(still.sweep(START_MS + 61_500)) == list(range(1, 501)), "they obey"
    still.rule([])
    still.round()
    assert {getattr(slot, "class") for slot in (*inside, *outside)} == {1}
    assert lib.roost_testing_class_uses(still.raw, SERVICES) == 0, "the class of the rule is given away"


def test_what_was_set_in_band_stays_when_rules_change(still: Ruled) -> None:
    slot = still.insert(key("10.0.0.1"), Ka(IDLE), active_ms=START_MS)
    lib.roost_testing_set_own(still.raw, slot, Own((None, None, 5000)).c())
    still.rule([rule("10.0.0.0/9")], [Policy((0, 0, 60_000), 30, 5, 4, 0)])
    still.round()
    assert still.values(slot) == Policy((0, 0, 5000), 30, 5, 4, 0)
    still.rule([])
    still.round()
    assert still.values(slot) == Policy((0, 0, 5000), 0, 0, 4, 0)


def test_no_rule_is_for_servers_legs(still: Ruled) -> None:
    leg = still.insert(key("10.0.0.1"), Ka(SLEEP, flags=lib.ROOST_F_SERVER))
    still.rule([rule("10.0.0.0/9")], [MINUTE])
    still.round()
    assert getattr(leg, "class") == 1


def test_a_changed_default_and_rules_go_side_by_side(still: Ruled) -> None:
    inside, outside = (still.insert(key(client), Ka(SLEEP)) for client in ("10.0.0.1", "11.0.0.1"))
    still.rule([rule("10.0.0.0/9")], [MINUTE])
    still.change(idle_quiet_ms=5000)
    still.round()
    assert (still.values(inside).quiet_ms[2], still.values(outside).quiet_ms[2]) == (60_000, 5000)


def test_rules_that_change_in_the_midst_of_a_round_begin_another() -> None:
    still = Ruled(slots=56_000, rests=1000)
    still.governed(idle_quiet_ms=3_600_000)
    slots = [still.insert(key(f"10.0.{i >> 8}.{i & 255}"), Ka(SLEEP)) for i in range(1000)]
    still.rule([rule("10.0.0.0/9")], [MINUTE])
    still.sweep(still.now_ms + 200)
    assert {still.values(slot) for slot in slots} == {MINUTE, HOUR}
    still.rule([rule("10.0.0.0/9")], [QUICK])
    still.sweep(still.now_ms + 300)
    assert MINUTE in {still.values(slot) for slot in slots}, (
        "nothing that a slot has is given away before it is renewed"
    )
    still.round()
    assert {still.values(slot) for slot in slots} == {QUICK}


def test_what_would_change_is_counted_and_nothing_changes(still: Ruled) -> None:
    slots = [still.insert(key(f"10.{i}.0.1"), Ka(SLEEP)) for i in range(20)]
    slots += [still.insert(key(f"11.{i}.0.1"), Ka(IDLE), active_ms=START_MS) for i in range(7)]
    rules, policies = [rule("10.0.0.0/13", 0), rule("10.8.0.0/13", 1)], [MINUTE, HOUR]
    assert still.count(rules, policies) == [8, 8, 8, 0, 11, 0]
    still.round()
    assert {getattr(slot, "class") for slot in slots} == {1}
    still.rule(rules, policies)
    still.round()
    assert still.count(rules, policies) == [8, 0, 8, 0, 11, 0]
    assert still.count([], []) == [27, 8]


def test_more_policies_than_there_is_room_for_are_refused(still: Ruled) -> None:
    raw, why = ffi.new("struct roost_class[1025]"), ffi.new("struct roost_reason *")
    assert lib.roost_rules_set(still.raw, c_rules([]), 0, raw, 1025, still.classes, why) == -ENOSPC
    assert b"1025 policies: there is room for 262144 and 1024" in ffi.string(why.text)


@pytest.mark.parametrize("wrong", [rule("10.0.0.0/8", 1), rule("10.0.0.0/8", service=2)], ids=["policy", "service"])
def test_a_network_without_a_policy_of_its_service_is_refused(still: Ruled, wrong: Rule) -> None:
    raw, why = ffi.new("struct roost_class[1]"), ffi.new("struct roost_reason *")
    raw[0].service = 1
    assert lib.roost_rules_set(still.raw, c_rules([wrong]), 1, raw, 1, still.classes, why) == -EINVAL
