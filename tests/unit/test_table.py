# SPDX-License-Identifier: Apache-2.0
"""cext/table/table.c: the inactive table and its rest slots, against a dict."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.wire import NO_REST, ROW_BITS, Key
from tests.inner import ffi, lib
from tests.unit.records import FREE, FREEZING, IDLE, PAIRED, SERVER, SLEEP, THAWED, WAKING, Ka, c_key

SLOTS: int = lib.roost_testing_bucket_slots()
SAME_TAG_MAX: int = lib.roost_testing_same_tag_max()
HOME_SLOTS = 3
FIRST_BUCKET = 44  # slots taken there from which on the emptier bucket is chosen
RESTS = 64
FAR6 = 20  # bytes of an IPv6 slot before its record: the far end, and the near end's number


def row_of(number: int) -> int:
    """ROOST_ROW."""
    return 1 << ROW_BITS | number


class Table:
    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def insert(self, key: Key, ka: Ka | None = None, service: int = 1) -> Any:
        return lib.roost_testing_insert(self.raw, c_key(key), (ka or Ka()).c(), service)

    def find(self, key: Key) -> Any:
        return lib.roost_testing_find(self.raw, c_key(key))

    def remove(self, key: Key) -> None:
        lib.roost_testing_remove(self.raw, self.find(key))

    def place(self, key: Key) -> tuple[int, int, int, int]:
        """Its two buckets, its tag, and the first slot of its home."""
        buckets, tag, home = ffi.new("uint32_t[2]"), ffi.new("uint8_t *"), ffi.new("uint8_t *")
        lib.roost_testing_place(self.raw, c_key(key), buckets, tag, home)
        return buckets[0], buckets[1], tag[0], home[0]

    def is_at_home(self, key: Key) -> bool:
        first, _, _, home = self.place(key)
        position = lib.roost_testing_name(self.raw, self.find(key)) % (1 << 29)
        return bool(0 <= position - first * SLOTS - home < HOME_SLOTS)

    def rest(self, number: int) -> int:
        """A rest slot with that number (not 0), or NO_REST."""
        index: int = lib.roost_testing_rest_alloc(self.raw, False)
        if index != NO_REST:
            lib.roost_testing_rest(self.raw, index).id = number
        return index

    def free_rests(self, to_wake: bool = True) -> set[int]:
        """Takes every rest slot that is free; to_wake=False: to freeze, which leaves some."""
        taken = []
        while (index := lib.roost_testing_rest_alloc(self.raw, to_wake)) != NO_REST:
            taken.append(index)
        assert len(taken) == len(set(taken))
        return set(taken)

    def adopt(self) -> tuple[int, int]:
        """(removed, largest id)"""
        largest = ffi.new("uint64_t *")
        return int(lib.roost_testing_adopt(self.raw, largest)), int(largest[0])

    def used(self) -> dict[str, int]:
        values = ffi.new("uint64_t[3]")
        used4 = lib.roost_testing_used(self.raw, values, values + 1, values + 2)
        return {"ipv4": used4, "ipv6": values[0], "rest": values[1], "refused": values[2]}


@contextmanager
def table(slots4: int = 560, slots6: int = 560, rests: int = RESTS, endpoints: int = 1024) -> Iterator[Table]:
    raw = lib.roost_testing_table(slots4, slots6, rests, endpoints)
    try:
        yield Table(raw)
    finally:
        lib.roost_testing_table_free(raw)


def random_key(source: random.Random, family: int) -> Key:
    """A client anywhere, at one of 64 endpoints."""
    prefix = bytes(10) + b"\xff\xff" if family == 4 else b""
    client = prefix + source.randbytes(16 - len(prefix))
    local = prefix + bytes(15 - len(prefix)) + bytes([source.randrange(8)])
    return Key(client, source.randrange(65536), local, source.randrange(8))


def key_of(number: int) -> Key:
    """A few keys that differ in one field each, so that a comparison that skips a field is found."""
    family, field, value = number % 2, number // 2 % 4, number // 8
    client, port, local, local_port = value if field == 0 else 0, field == 1 and value, field == 2 and value, 0
    if field == 3:
        local_port = value
    if family:
        return Key.of(f"10.0.0.{client}", int(port), f"10.1.0.{int(local)}", local_port)
    return Key.of(f"fd00::{client:x}", int(port), f"fd01::{int(local):x}", local_port)


@settings(max_examples=300, deadline=None)
@given(script=st.lists(st.tuples(st.sampled_from(["insert", "remove", "find"]), st.integers(0, 8 * 12 - 1)),
                       max_size=150))  # fmt: skip
def test_insert_find_and_remove_do_what_a_dict_does(script: list[tuple[str, int]]) -> None:
    model: dict[Key, int] = {}
    with table() as t:
        for step, (what, number) in enumerate(script):
            key = key_of(number)
            if what == "insert" and key not in model:
                assert t.insert(key, Ka(snd_nxt=step))
                model[key] = step
            elif what == "remove" and key in model:
                t.remove(key)
                del model[key]
            for known in (key, key_of(number ^ 1), key_of((number + 8) % 96)):
                slot = t.find(known)
                assert bool(slot) == (known in model)
                if slot:
                    assert slot.snd_nxt == model[known]
        families = [key.client[:12] == bytes(10) + b"\xff\xff" for key in model]
        assert (t.used()["ipv4"], t.used()["ipv6"]) == (sum(families), len(families) - sum(families))


@pytest.mark.parametrize("family", [4, 6])
def test_an_insert_is_refused_only_when_both_buckets_are_full_or_crowded_with_its_tag(family: int) -> None:
    source = random.Random(family)
    with table(448, 448) as t:
        tags: defaultdict[int, list[int]] = defaultdict(list)  # bucket -> tags, as the model has them
        refused = 0
        for _ in range(1200):
            key = random_key(source, family)
            first, second, tag, _ = t.place(key)
            room = [len(tags[b]) < SLOTS and tags[b].count(tag) < SAME_TAG_MAX for b in (first, second)]
            assert bool(t.insert(key)) == any(room)
            if not any(room):
                refused += 1
                assert not t.find(key)
            elif not room[0] or (room[1] and FIRST_BUCKET <= len(tags[first]) > len(tags[second])):
                tags[second].append(tag)
            else:
                tags[first].append(tag)
        assert refused == t.used()["refused"] >= 600
        assert t.used()[f"ipv{family}"] == 1200 - refused


@pytest.mark.parametrize("family", [4, 6])
def test_at_90_percent_load_two_of_three_are_at_home(family: int) -> None:
    source = random.Random(90)
    slots = 20_000
    with table(slots if family == 4 else 0, slots if family == 6 else 0) as t:
        keys = [key for _ in range(slots * 9 // 10) if t.insert(key := random_key(source, family))]
        at_home = sum(map(t.is_at_home, keys))
        assert 0.66 < at_home / len(keys) < 0.75


@pytest.mark.parametrize("family", [4, 6])
def test_at_94_percent_load_fewer_than_one_in_ten_thousand_is_refused(family: int) -> None:
    keys = 100_000
    source = random.Random(94)
    slots = keys * 100 // 94
    with table(slots if family == 4 else 0, slots if family == 6 else 0) as t:
        ka = Ka().c()
        for _ in range(keys):
            lib.roost_testing_insert(t.raw, c_key(random_key(source, family)), ka, 1)
        used = t.used()
        assert used["refused"] < keys / 10_000
        assert used[f"ipv{family}"] + used["refused"] == keys


def test_each_owner_of_a_slot_has_another_version_than_the_last() -> None:
    key = Key.of("192.0.2.1", 5, "192.0.2.2", 6)
    with table() as t:
        versions = []
        for _ in range(4):
            versions.append(t.insert(key).ctl >> 8 & 0xFF)
            t.remove(key)
        assert all(a != b for a, b in pairwise(versions))


def test_a_removed_slot_holds_packets_for_a_reader_that_still_looks_at_it() -> None:
    key = Key.of("192.0.2.1", 5, "192.0.2.2", 6)
    with table() as t:
        slot = t.insert(key, Ka(phase=IDLE))
        t.remove(key)
        assert lib.roost_testing_judge(slot, 2000, 1000, 5, 16, 1) == 0  # HOLD


def test_rest_slots_are_given_until_all_are_used_and_again_when_released() -> None:
    with table(rests=8) as t:
        key = Key.of("192.0.2.1", 5, "192.0.2.2", 6)
        assert t.insert(key, Ka(rest=t.rest(1)))
        assert len(t.free_rests()) == 7
        assert t.rest(9) == NO_REST
        held = t.find(key).rest
        t.remove(key)
        assert t.free_rests() == {held}
        assert t.used()["rest"] == 8


def test_the_last_rest_slots_are_for_those_that_wake() -> None:
    with table(rests=100) as t:
        assert len(t.free_rests(to_wake=False)) == 97
        assert t.rest(1) == NO_REST
        assert len(t.free_rests()) == 3


phases = st.sampled_from([FREEZING, IDLE, SLEEP, WAKING, THAWED])


@settings(max_examples=300, deadline=None)
@given(slots=st.lists(st.tuples(phases, st.booleans(), st.integers(4, 6).filter(lambda f: f != 5)), max_size=40),
       orphans=st.integers(0, 10), seed=st.integers(0, 1000))  # fmt: skip
def test_adoption_keeps_what_sleeps_and_frees_what_no_process_can_own(
    slots: list[tuple[int, bool, int]], orphans: int, seed: int
) -> None:
    """A predecessor died at any moment: each slot in any phase, with a rest, or a row, or neither; rests that no slot
    names."""
    source = random.Random(seed)
    with table() as t:
        kept: dict[Key, tuple[int, int]] = {}  # key -> phase, id (0 = no rest)
        gone = []
        for number, (phase, has_rest, family) in enumerate(slots, start=1):
            key = random_key(source, family)
            for _ in range(source.randrange(2)):
                t.rest(0)  # taken, never filled
            rest = t.rest(number * 7) if has_rest else source.choice([NO_REST, row_of(number * 7)])
            assert t.insert(key, Ka(phase=phase, rest=rest))
            if phase == SLEEP or (phase == WAKING and not has_rest):
                kept[key] = (SLEEP, row_of(number * 7) if has_rest else rest)
            elif phase in (IDLE, WAKING) and has_rest:
                kept[key] = (IDLE, number * 7)
            else:
                gone.append(key)
        for _ in range(orphans):
            t.rest(10_000)
        removed, largest = t.adopt()
        assert removed == len(gone)
        assert largest == max((number for phase, number in kept.values() if phase == IDLE), default=0)
        assert not any(t.find(key) for key in gone)
        named = set()
        for key, (phase, number) in kept.items():
            slot = t.find(key)
            assert slot.ctl & 0xFF == phase
            if phase == SLEEP:
                assert slot.rest == number
            else:
                named.add(int(slot.rest))
                assert lib.roost_testing_rest(t.raw, slot.rest).id == number
        used = t.used()
        assert used["ipv4"] + used["ipv6"] == len(kept)
        assert used["rest"] == len(named)
        assert t.free_rests() == set(range(RESTS)) - named


def test_adoption_counts_by_table_and_removes_what_no_look_up_finds() -> None:
    """An earlier version put IPv4-mapped addresses of IPv6 packets into the table of IPv6: counted as IPv4, each that
    went took one from the count of IPv6."""
    with table() as t:
        kept = Key.of("fd00::1", 5, "fd01::1", 6)
        mapped = Key(kept.client, 7, Key.of("192.0.2.1", 0, "192.0.2.2", 0).local, 6)
        for key in (kept, mapped):
            assert t.insert(key, Ka(phase=SLEEP))
        assert t.used() == {"ipv4": 0, "ipv6": 2, "rest": 0, "refused": 0}
        far = ffi.buffer(ffi.cast("char *", t.find(mapped)) - FAR6, 16)
        far[:] = Key.of("192.0.2.9", 0, "192.0.2.2", 0).client
        assert t.adopt() == (1, 0)
        assert t.used() == {"ipv4": 0, "ipv6": 1, "rest": 0, "refused": 0}
        t.remove(kept)
        assert t.adopt() == (0, 0)
        assert t.used() == {"ipv4": 0, "ipv6": 0, "rest": 0, "refused": 0}


def test_adoption_twice_changes_nothing_more() -> None:
    with table() as t:
        key = Key.of("192.0.2.1", 5, "192.0.2.2", 6)
        assert t.insert(key, Ka(phase=WAKING, rest=t.rest(77)))
        assert t.adopt() == (0, 77)
        assert t.adopt() == (0, 77)
        assert len(t.free_rests()) == RESTS - 1


def pair(t: Table, client: Key, server: Key, phases: tuple[int, int], number: int = 77) -> None:
    """Both legs of a connection that sleeps with its server."""
    asleep = phases[0] == SLEEP
    legs = [t.insert(key, Ka(phase=phase, flags=flags, rest=NO_REST if asleep and key is client else t.rest(number)))
            for key, phase, flags in ((client, phases[0], PAIRED), (server, phases[1], PAIRED | SERVER))]  # fmt: skip
    for leg, other in (legs, reversed(legs)):
        if leg.rest != NO_REST:
            lib.roost_testing_pair(t.raw, leg.rest, other)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(
    ("phases", "left"),
    [((IDLE, IDLE), 2), ((SLEEP, IDLE), 2), ((WAKING, WAKING), 2), ((WAKING, IDLE), 2),
     ((FREEZING, FREEZING), 0), ((FREEZING, IDLE), 0), ((THAWED, WAKING), 0), ((THAWED, THAWED), 0),
     ((IDLE, FREEZING), 1), ((WAKING, THAWED), 1)],
)  # fmt: skip
def test_adoption_leaves_no_servers_leg_without_its_client(family: int, phases: tuple[int, int], left: int) -> None:
    """A client without its server's leg stays: it is told when it speaks."""
    source = random.Random(3)
    client, server, stranger = (random_key(source, family) for _ in range(3))
    with table() as t:
        pair(t, client, server, phases)
        assert t.insert(stranger, Ka(phase=IDLE, rest=t.rest(5)))
        t.adopt()
        assert bool(t.find(client)) == (left > 0)
        assert bool(t.find(server)) == (left > 1)
        assert t.find(stranger), "nothing else is touched"
        rests = 1 + left - (phases[0] == SLEEP and left > 0)
        assert t.used()["rest"] == rests
        assert len(t.free_rests()) == RESTS - rests


def test_adoption_removes_a_servers_leg_whose_client_has_another() -> None:
    source = random.Random(4)
    client, first, second = (random_key(source, 4) for _ in range(3))
    with table() as t:
        pair(t, client, first, (IDLE, IDLE))
        pair(t, client, second, (IDLE, IDLE))  # the client's slot is there twice: the first is what is found
        assert t.adopt()[0] == 0
        t.remove(client)
        assert t.adopt()[0] == 1, "that leg's client is gone"


def test_a_leg_does_not_take_the_next_owner_of_a_slot_for_its_other_leg() -> None:
    """The client's slot is given away while the server's leg still names it."""
    source = random.Random(6)
    client, server = (random_key(source, 4) for _ in range(2))
    with table(slots4=SLOTS) as t:  # one bucket
        pair(t, client, server, (SLEEP, IDLE))
        position = lib.roost_testing_name(t.raw, t.find(client))
        t.remove(client)
        stranger = next(key for _ in range(10_000) if t.place(key := random_key(source, 4))[3] == t.place(client)[3])
        assert t.insert(stranger, Ka(phase=SLEEP, flags=PAIRED))
        assert lib.roost_testing_name(t.raw, t.find(stranger)) == position
        assert t.adopt()[0] == 1
        assert not t.find(server)


def test_names_tell_slots_of_both_families_apart() -> None:
    source = random.Random(5)
    with table() as t:
        seen = set()
        for family in (4, 6) * 40:
            key = random_key(source, family)
            name = lib.roost_testing_name(t.raw, t.insert(key))
            assert name == lib.roost_testing_name(t.raw, t.find(key))
            seen.add(name)
        assert len(seen) == 80


def test_connections_of_one_endpoint_share_it_and_the_last_gives_it_back() -> None:
    with table(endpoints=2) as t:
        first, second, other = (Key.of("192.0.2.1", n, "192.0.2.9", 80 + n // 3) for n in (1, 2, 3))
        assert t.insert(first)
        assert t.insert(second)
        assert t.insert(other)
        assert lib.roost_testing_endpoints_used(t.raw) == 2
        third = Key.of("192.0.2.1", 1, "192.0.2.9", 82)
        assert not t.insert(third), "there are no more endpoints"
        assert t.used()["refused"] == 1
        t.remove(first)
        assert not t.insert(third)
        t.remove(second)
        assert t.insert(third)
        assert t.find(third)
        assert t.find(other)


def test_a_key_is_found_at_its_own_near_end_only() -> None:
    """Far ends are alike where many clients of one address connect to many services; roles must not be mixed up."""
    with table() as t:
        client = Key.of("192.0.2.1", 5, "192.0.2.2", 6)
        assert t.insert(client, service=3)
        leg = Key.of("192.0.2.2", 6, "192.0.2.1", 5)
        assert not t.find(leg), "the other direction is another connection"
        assert t.insert(leg, Ka(flags=PAIRED | SERVER), service=4)
        assert [lib.roost_testing_service(t.raw, t.find(key)) for key in (client, leg)] == [3, 4]
        t.remove(client)
        assert not t.find(client)
        assert t.find(leg)


def test_adoption_knows_which_endpoints_are_in_use() -> None:
    source = random.Random(7)
    with table(endpoints=64) as t:
        keys = [random_key(source, family) for family in (4, 6) * 30]
        for key in keys:
            assert t.insert(key, Ka(phase=SLEEP))
        used = lib.roost_testing_endpoints_used(t.raw)
        assert t.adopt()[0] == 0
        assert lib.roost_testing_endpoints_used(t.raw) == used
        for key in keys:
            t.remove(key)
        assert lib.roost_testing_endpoints_used(t.raw) == 0


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("moved", [0, 1, 70, 200])
def test_whoever_takes_over_a_table_that_was_growing_finds_each_slot_where_it_is(family: int, moved: int) -> None:
    """The predecessor was killed when it had moved so many."""
    source = random.Random(moved)
    with table(slots4=224, slots6=224, endpoints=256) as t:
        keys = [random_key(source, family) for _ in range(200)]
        for number, key in enumerate(keys):
            assert t.insert(key, Ka(phase=SLEEP, snd_nxt=number), service=number % 3)
        assert lib.roost_testing_grow(t.raw, family == 4, 448)
        for key in keys[:moved]:
            assert lib.roost_testing_move(t.raw, c_key(key))
            assert not lib.roost_testing_move(t.raw, c_key(key)), "it is there now"
        fresh = random_key(source, family)
        assert t.insert(fresh, Ka(phase=SLEEP))
        assert not lib.roost_testing_move(t.raw, c_key(fresh)), "what comes meanwhile comes into the larger one"
        assert t.adopt() == (0, 0)
        assert t.used()[f"ipv{family}"] == 201
        for number, key in enumerate(keys):
            assert (t.find(key).snd_nxt, lib.roost_testing_service(t.raw, t.find(key))) == (number, number % 3)
        for key in [*keys, fresh]:
            t.remove(key)
            assert not t.find(key), "it is in one of them only"
        assert t.used()[f"ipv{family}"] == 0
        assert lib.roost_testing_endpoints_used(t.raw) == 0


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("growths", range(4))
@pytest.mark.parametrize("left", [SLEEP, FREE])
def test_adoption_keeps_one_of_a_slot_and_its_copy(family: int, growths: int, left: int) -> None:
    """The predecessor was killed when it had copied a slot, or had begun to remove it where it was before. The larger
    table's generation may have the lower number."""
    key = Key.of("192.0.2.1" if family == 4 else "2001:db8::1", 1, "192.0.2.9" if family == 4 else "2001:db8::9", 80)
    with table() as t:
        for _ in range(growths):
            assert lib.roost_testing_grow(t.raw, family == 4, 560)
            lib.roost_testing_end_growth(t.raw, family == 4)
        original = t.insert(key, Ka(phase=SLEEP, snd_nxt=7))
        assert lib.roost_testing_grow(t.raw, family == 4, 1120)
        assert t.insert(key, Ka(phase=SLEEP, snd_nxt=7))
        lib.roost_testing_set_phase(original, left)
        t.adopt()
        assert t.used()[f"ipv{family}"] == 1
        assert (t.find(key).snd_nxt, t.find(key) == original) == (7, left == SLEEP)


def test_the_near_end_of_those_born_asleep_is_not_given_away() -> None:
    """XDP puts slots under it and counts no use: the last one that this process knows of is not the last."""
    born = 1 << 31 | 1460 << 16 | 500
    with table(endpoints=1) as t:
        first, other = Key.of("192.0.2.1", 1, "192.0.2.9", 80), Key.of("192.0.2.1", 1, "192.0.2.9", 81)
        assert t.insert(first, Ka(phase=IDLE, rest=born))
        t.adopt()
        t.remove(first)
        assert not t.insert(other), "its number was given to another near end"
