# SPDX-License-Identifier: Apache-2.0
"""cext/table/filter.c and ebpf/shared/filter.h: the filter of those that sleep without a slot."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inner import ffi, lib

MILLION = 1_000_000
STRANGERS = 1 << 40
"""Keys from here on are no client's."""


@dataclass(frozen=True)
class Reading:
    members: int
    refused: int
    moves: int
    gate_buckets: int
    gate_moved: int
    gate_ports: int


class Filter:
    """Keys are numbers."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def insert(self, first: int, count: int = 1) -> int:
        return int(lib.roost_testing_filter_insert(self.raw, first, count))

    def remove(self, first: int, count: int = 1) -> int:
        return int(lib.roost_testing_filter_remove(self.raw, first, count))

    def has(self, first: int, count: int = 1) -> int:
        return int(lib.roost_testing_filter_has(self.raw, first, count))

    def has_at(self, port: int, first: int, count: int = 1) -> int:
        """Of keys with another local port than those that were inserted."""
        return int(lib.roost_testing_filter_has_at(self.raw, port, first, count))

    def adopt(self) -> None:
        lib.roost_testing_filter_adopt(self.raw)

    @property
    def bytes(self) -> int:
        return int(lib.roost_testing_filter_bytes(self.raw))

    def read(self) -> Reading:
        values = ffi.new("uint64_t[6]")
        lib.roost_testing_filter_read(self.raw, values)
        return Reading(*values)

    def place(self, key: int) -> tuple[int, int, int]:
        """Its two buckets and its fingerprint."""
        place = ffi.new("uint32_t[3]")
        lib.roost_testing_filter_place(self.raw, key, place)
        return place[0], place[1], place[2]


@contextmanager
def made(connections: int) -> Iterator[Filter]:
    raw = lib.roost_testing_filter(connections)
    try:
        yield Filter(raw)
    finally:
        lib.roost_testing_filter_free(raw)


@pytest.fixture(scope="module")
def full() -> Iterator[Filter]:
    """A million connections in a filter for a million."""
    with made(MILLION) as filled:
        assert filled.insert(0, MILLION) == MILLION
        yield filled


def test_it_takes_as_many_connections_as_it_was_made_for(full: Filter) -> None:
    reading = full.read()
    assert (reading.members, reading.refused) == (MILLION, 0)
    assert reading.moves < MILLION


def test_every_member_is_found(full: Filter) -> None:
    assert full.has(0, MILLION) == MILLION


def test_a_connection_costs_less_than_two_bytes(full: Filter) -> None:
    assert full.bytes / MILLION < 1.7


def test_one_stranger_in_four_hundred_is_taken_for_a_member(full: Filter) -> None:
    """2 buckets of 5 places, 96 % of them taken, and 4095 fingerprints: 0.234 %."""
    taken = full.has(STRANGERS, MILLION) / MILLION
    assert 0.0020 < taken < 0.0027


def test_nobody_is_taken_for_a_member_at_a_port_that_no_member_has(full: Filter) -> None:
    assert full.has_at(80, 0, MILLION) == 0


def test_a_successor_forgets_the_ports_of_members_when_there_are_none() -> None:
    with made(100) as one:
        one.insert(0, 2)
        one.remove(0)
        one.adopt()
        assert one.read().gate_ports == 1
        one.remove(1)
        one.adopt()
        assert one.read().gate_ports == 0
        one.insert(0)
        assert (one.has(0), one.read().gate_ports) == (1, 1)


@pytest.mark.parametrize("connections", [1, 2, 3, 7, 100, 4_000, 50_000])
def test_smaller_ones_hold_nearly_what_they_were_made_for(connections: int) -> None:
    with made(connections) as one:
        assert one.insert(0, connections) >= connections * 0.9
        assert one.bytes <= connections * 2 + 16


def test_a_full_one_refuses_and_loses_nobody() -> None:
    with made(4_000) as one:
        held = one.insert(0, 10_000)
        assert 4_000 <= held < 4_300
        assert one.read().refused == 1
        assert one.has(0, held) == held
        assert one.read().members == held


def test_one_that_was_made_for_nobody_takes_nobody() -> None:
    with made(0) as none:
        assert (none.insert(0), none.has(0), none.remove(0), none.bytes) == (0, 0, 0, 0)


def test_removing_a_member_takes_one_copy_of_its_fingerprint_alone() -> None:
    with made(4_000) as one:
        home = one.place(0)
        twin = next(key for key in range(1, 10**7) if one.place(key) == home)
        assert one.insert(0) == one.insert(twin) == 1
        assert one.remove(0) == 1
        assert one.has(twin) == 1
        assert one.remove(twin) == 1
        assert (one.has(0), one.has(twin)) == (0, 0)


def test_a_key_leads_to_the_same_buckets_from_either_of_them() -> None:
    with made(1_234) as one:
        buckets = one.bytes // 8
        for key in range(2_000):
            first, second, fingerprint = one.place(key)
            assert 0 <= first < buckets
            assert 0 <= second < buckets
            assert 0 < fingerprint < 4096
            total = (fingerprint * 0x9E3779B1 % 2**32) * buckets >> 32
            assert (first + second) % buckets == total


def test_the_gate_is_closed_while_nobody_is_there() -> None:
    with made(100) as one:
        assert one.read().gate_buckets == 0
        one.insert(0, 2)
        assert one.read().gate_buckets == one.bytes // 8
        one.remove(0)
        assert one.read().gate_buckets == one.bytes // 8
        one.remove(1)
        assert one.read().gate_buckets == 0


def test_leaving_is_told_before_it_is_done_so_that_a_reader_looks_again() -> None:
    with made(100) as one:
        one.insert(0)
        before = one.read().gate_moved
        one.remove(0)
        assert one.read().gate_moved == before + 1


def test_a_successor_finds_the_members_and_counts_them_anew() -> None:
    with made(1_000) as one:
        one.insert(0, 900)
        one.adopt()
        assert one.read().members == 900
        assert one.has(0, 900) == 900
        assert one.remove(0, 900) == 900
        assert one.read().gate_buckets == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_it_agrees_with_a_set_however_they_come_and_go(seed: int, connections: int) -> None:
    source = random.Random(seed)
    members: set[int] = set()
    with made(connections) as one:
        for _ in range(400):
            key = source.randrange(200)
            if key in members and source.random() < 0.6:
                assert one.remove(key) == 1
                members.remove(key)
            elif key not in members and one.insert(key):
                members.add(key)
            assert one.read().members == len(members)
        assert all(one.has(key) for key in members)


def test_no_member_is_out_of_sight_while_others_make_room() -> None:
    """Two threads, for half a second: what XDP reads at any moment shows every member, or that something has moved."""
    kept, looked, moves = 2_000, ffi.new("uint64_t *"), ffi.new("uint64_t *")
    with made(4_000) as one:
        assert one.insert(0, kept) == kept
        missed = lib.roost_testing_filter_race(one.raw, kept, STRANGERS, 500, looked, moves)
        assert (missed, looked[0] > kept, moves[0] > 1_000) == (0, True, True), (missed, looked[0], moves[0])
        assert one.has(0, kept) == kept
