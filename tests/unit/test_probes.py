# SPDX-License-Identifier: Apache-2.0
"""cext/life/sweep.c and cext/path/probes.c: when the appliance probes, and which probes wait to be sent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.wire import SILENCES_S, Key
from appliance.wire.record import HEARD_SHIFT
from tests.inner import ffi, lib
from tests.unit.records import Ka, c_key

ROUNDS = 5  # four for half an interval in steps of an eighth, and one for what an eighth in whole seconds falls short

salts = st.integers(0, 65535)
whens = st.integers(0, 2**31)
intervals = st.integers(1, 65535)


def first_probe_s(salt: int, heard_s: int, interval_s: int) -> int:
    return int(lib.roost_testing_first_probe_s(salt, heard_s, interval_s))


@settings(max_examples=500, deadline=None)
@given(salts, whens, intervals)
def test_a_probe_is_early_or_late_by_an_eighth_at_most(salt: int, heard_s: int, interval_s: int) -> None:
    assert abs(first_probe_s(salt, heard_s, interval_s) - interval_s) <= interval_s // 8


@settings(max_examples=200, deadline=None)
@given(salts, st.lists(whens, min_size=2, max_size=8), st.integers(64, 65535))
def test_after_some_rounds_all_clients_of_a_bucket_are_probed_at_once(salt: int, heard: list[int],
                                                                      interval_s: int) -> None:  # fmt: skip
    for _ in range(ROUNDS):
        heard = [at_s + first_probe_s(salt, at_s, interval_s) for at_s in heard]
    assert {(at_s + salt) % interval_s for at_s in heard} == {0}
    assert {first_probe_s(salt, at_s, interval_s) for at_s in heard} == {interval_s}


def test_clients_that_came_in_the_same_second_are_probed_all_through_the_interval() -> None:
    interval_s, heard = 60, dict.fromkeys(range(6000), 1000)
    for _ in range(ROUNDS):
        heard = {salt: at_s + first_probe_s(salt, at_s, interval_s) for salt, at_s in heard.items()}
    probed = [sum(at_s % interval_s == second for at_s in heard.values()) for second in range(interval_s)]
    assert set(probed) == {100}


def test_an_interval_of_a_few_seconds_is_kept_exactly() -> None:
    assert [first_probe_s(3, 1001, interval_s) for interval_s in range(1, 8)] == list(range(1, 8))


def interval_s(least_s: int, most_s: int, lot: int, heard_s: int) -> int:
    return int(lib.roost_testing_probe_interval_s(least_s, most_s, lot, heard_s))


@settings(max_examples=500, deadline=None)
@given(intervals, intervals, st.integers(0, 2**32 - 1), whens)
def test_the_interval_of_a_silence_lies_between_its_bounds_and_stays_the_same(
    least_s: int, most_s: int, lot: int, heard_s: int
) -> None:
    found = interval_s(least_s, most_s, lot, heard_s)
    assert least_s <= found <= max(least_s, most_s)
    assert found == interval_s(least_s, most_s, lot, heard_s)


def test_there_is_no_experiment_without_two_bounds() -> None:
    assert {interval_s(600, most_s, 7, heard_s) for most_s in (0, 1, 600) for heard_s in range(100)} == {600}
    assert {interval_s(0, 600, 7, heard_s) for heard_s in range(100)} == {0}


def test_the_silences_of_an_experiment_lie_evenly_over_its_octaves() -> None:
    """Of one client as of many: a bound of 0.02 is more than five standard deviations of a share of 20,000."""
    of_one = [interval_s(300, 4800, 4711, heard_s) for heard_s in range(20_000)]
    of_many = [interval_s(300, 4800, lot, 1000) for lot in range(20_000)]
    for found in (of_one, of_many):
        for octave in range(4):
            share = sum(300 << octave <= one < 600 << octave for one in found) / len(found)
            assert abs(share - 0.25) < 0.02


@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.integers(0, 2**20 - 1), st.sampled_from(SILENCES_S["answered"])))
def test_a_silence_is_counted_in_its_place(silence_s: int) -> None:
    index = ffi.new("uint32_t[2]")
    lib.roost_testing_silence_indexes(silence_s, index)
    assert index[0] == bisect_right(SILENCES_S["spoke"], silence_s) - 1
    assert index[1] == bisect_right(SILENCES_S["answered"], silence_s) - 1


@pytest.mark.parametrize(
    ("now_s", "silence_s"), [(1000, 0), (1007, 7), (1000 + (1 << 19), 1 << 19), (999, 0), (940, 0)]
)
def test_a_client_that_was_heard_ahead_of_an_older_clock_is_not_silent(now_s: int, silence_s: int) -> None:
    """XDP notes the time with each segment, the engine's clock is of the beginning of its turn."""
    assert lib.roost_testing_silence_s(1000 << HEARD_SHIFT, now_s) == silence_s


class Probes:
    """Nothing that is put here can be sent: it waits until it is taken, retracted or given up."""

    def __init__(self) -> None:
        self.raw: Any = ffi.gc(lib.roost_testing_probes(), lib.roost_testing_probes_free)

    def put(self, keys: Sequence[Key]) -> int:
        return sum(lib.roost_testing_put_probe(self.raw, c_key(key), Ka().c()) for key in keys)

    def retract(self, key: Key) -> None:
        lib.roost_testing_retract_probe(self.raw, c_key(key))

    def take(self, n: int) -> None:
        lib.roost_testing_take_probe(self.raw, n)

    def next_slice(self) -> tuple[int, int]:
        """Of those before: (how many wait still, how many were given up)."""
        unsent = int(lib.roost_testing_begin_probes(self.raw))
        return int(lib.roost_testing_probes_put(self.raw)), unsent


V4 = [Key.of("192.0.2.1", 1000 + n, "192.0.2.9", 80) for n in range(3)]
V6 = [Key.of("2001:db8::1", 1000 + n, "2001:db8::9", 80) for n in range(3)]


@pytest.mark.parametrize("keys", [V4, V6, [V4[0], V6[0], V4[1]]], ids=["IPv4", "IPv6", "both"])
def test_whoever_wakes_takes_its_probe_back_and_no_others(keys: list[Key]) -> None:
    probes = Probes()
    probes.put(keys)
    probes.retract(keys[1])
    assert probes.next_slice() == (2, 0)
    probes.retract(keys[1])
    probes.retract(keys[2])
    assert probes.next_slice() == (1, 0)


@pytest.mark.parametrize("other", [
    Key.of("192.0.2.2", 1000, "192.0.2.9", 80), Key.of("192.0.2.1", 1009, "192.0.2.9", 80),
    Key.of("192.0.2.1", 1000, "192.0.2.8", 80), Key.of("192.0.2.1", 1000, "192.0.2.9", 81),
    Key.of("2001:db8::1", 1000, "2001:db8::9", 80)])  # fmt: skip
def test_a_connection_with_another_4_tuple_takes_nothing_back(other: Key) -> None:
    probes = Probes()
    probes.put(V4[:1])
    probes.retract(other)
    assert probes.next_slice() == (1, 0)


def test_a_probe_that_was_taken_is_not_sent_again() -> None:
    probes = Probes()
    probes.put(V4)
    probes.take(1)
    assert probes.next_slice() == (2, 0)


def test_a_probe_waits_until_it_is_taken() -> None:
    probes = Probes()
    probes.put(V4[:1])
    assert probes.next_slice() == (1, 0)
    probes.put(V4[1:])
    assert probes.next_slice() == (3, 0)
    for n in range(3):
        probes.take(n)
    assert probes.next_slice() == (0, 0)


def test_there_is_room_again_for_as_many_as_were_taken() -> None:
    probes, room = Probes(), lib.roost_testing_probes_room()
    assert probes.put([V4[0]] * (room + 1)) == room
    probes.take(7)
    assert probes.next_slice() == (room - 1, 0)
    assert probes.put(V4) == 1
