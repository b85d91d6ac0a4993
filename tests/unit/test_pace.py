# SPDX-License-Identifier: Apache-2.0
"""cext/path/pace.c against models of what lies between the engine and its clients: the ring of a veth whose receiver is
busy, a long way, and clients that are gone."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inner import ffi, lib

RING = 256  # frames: a veth's
AT_ONCE = 192
MANY = 10_000_000  # more than go out while a test lasts
SLICE_MS = 2  # while many wait


class Link:
    """Probes go out and answers come back, a slice at a time, as the engine and XDP see it."""

    def __init__(self) -> None:
        self._pace: Any = ffi.gc(lib.roost_testing_pace(), lib.roost_testing_pace_free)
        self._begun = self._ended = self._taken = 0
        self.now_ms = 1000
        self.waiting = MANY
        self.dropped = 0
        self.sent = 0

    def begin(self, due: int = 0) -> int:
        """The slice is over, and so many more are due: as many begin as may, and are sent."""
        room = lib.roost_testing_pace_room(self._pace, self._begun, self._ended, self._taken, self.waiting,
                                           self.dropped, self.now_ms)  # fmt: skip
        self.waiting += due
        began = min(int(room), self.waiting)
        self._taken = began
        self._begun += began
        self.waiting -= began
        self.sent += began
        return began

    def answered(self, count: int) -> int:
        """So many answers come; how many of them became another probe."""
        more = min(count, self.waiting)
        self._taken += more
        self._ended += count - more
        self.waiting -= more
        self.sent += more
        return more

    def passes(self, ms: int = SLICE_MS) -> None:
        self.now_ms += ms


def test_as_many_begin_as_a_ring_takes_and_no_more_while_nobody_answers() -> None:
    link = Link()
    assert link.begin() == AT_ONCE
    for _ in range(4):
        link.passes()
        assert link.begin() == 0


def test_nothing_begins_while_answers_are_what_is_sent() -> None:
    """Every frame goes round and round: the ring is as full as it may be."""
    link = Link()
    link.begin()
    for _ in range(50):
        assert link.answered(4 * AT_ONCE) == 4 * AT_ONCE
        link.passes()
        assert link.begin() == 0


def test_answers_that_become_no_probe_make_room_for_as_many() -> None:
    link = Link()
    link.waiting = AT_ONCE + 100
    assert link.begin() == AT_ONCE
    assert link.answered(150) == 100
    link.waiting = MANY
    link.passes()
    assert link.begin() == 50


stalls = st.integers(1, 2)  # slices; with those at the edges of it 8 ms
full_slices = st.integers(2 * AT_ONCE, 3000)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(stalls, st.integers(0, 3000), st.lists(full_slices, min_size=1, max_size=5),
                          st.integers(0, 3000)), max_size=30))  # fmt: skip
def test_a_ring_is_never_run_over_by_a_receiver_that_is_late(course: list[tuple[int, int, list[int], int]]) -> None:
    """It receives nothing for some slices, and at the edges of that less than it could."""
    link, on_way = Link(), 0
    for stalled, partly_before, rates, partly_after in course:
        for received in [partly_before, *[0] * stalled, partly_after, *rates]:
            on_way += link.begin()
            assert on_way <= RING
            link.answered(received if on_way else 0)
            link.passes()


def test_a_receiver_that_is_late_for_long_costs_few_probes_and_then_has_its_ring_full() -> None:
    """Half a second; and what was in its ring is answered at last."""
    link, ring = Link(), 0
    for _ in range(250):
        ring += link.begin()
        link.dropped += max(0, ring - RING)
        ring = min(ring, RING)
        link.passes()
    assert link.dropped <= 2 * RING
    sent = link.sent
    for _ in range(50):
        link.answered(4 * ring)
        link.passes()
        ring += link.begin()
        assert ring <= RING
    assert link.sent - sent >= 50 * AT_ONCE


def test_drops_of_long_ago_keep_nobody_from_being_probed() -> None:
    link = Link()
    link.dropped = 1_000_000
    for _ in range(500):
        link.begin()
        link.passes()
    assert rate_of(link, 500 * SLICE_MS) >= 80_000


def rate_of(link: Link, ms: int) -> float:
    """Probes a second."""
    return link.sent * 1000 / ms


@pytest.mark.parametrize("rtt_ms", [20, 100, 300])
def test_clients_far_away_are_probed_as_fast_as_need_be(rtt_ms: int) -> None:
    """Two round trips and a second after the first probe, 100,000 go out in a second."""
    link = Link()
    under_way = deque([0] * (rtt_ms // SLICE_MS))
    for _ in range(0, 1000 + 2 * rtt_ms, SLICE_MS):
        began = link.begin()
        under_way.append(began + link.answered(under_way.popleft()))
        link.passes()
    assert sum(under_way) * 1000 / rtt_ms >= 100_000


@pytest.mark.parametrize(("gone_percent", "rate"), [(1, 150_000), (10, 100_000), (50, 30_000), (90, 30_000)])
def test_clients_that_are_gone_do_not_keep_others_from_being_probed(gone_percent: int, rate: int) -> None:
    """The others answer at once: a frame goes round until it reaches nobody, ten times in a slice at most."""
    link, near = Link(), 0
    for _ in range(500):
        near += link.begin()
        for _ in range(10):
            near = link.answered(near - math.ceil(near * gone_percent / 100))
        link.passes()
    assert rate_of(link, 500 * SLICE_MS) >= rate


def test_when_all_are_gone_they_are_found_out_at_a_steady_rate() -> None:
    link = Link()
    for _ in range(500):
        link.begin()
        link.passes()
    assert rate_of(link, 500 * SLICE_MS) >= 90_000


def test_what_others_lose_stops_no_probing() -> None:
    """Something else sends by the interface, and loses a frame in each slice, while nobody answers."""
    link = Link()
    for _ in range(1000):
        link.begin()
        link.dropped += 1
        link.passes()
    assert rate_of(link, 1000 * SLICE_MS) >= 300


def test_what_few_that_are_gone_leave_behind_is_forgotten() -> None:
    """833 each 5 ms, all answered within that but one in a hundred: no slice sends less than it has to for long."""
    link = Link()
    link.waiting = 0
    for _ in range(400):
        near = link.begin(due=833)
        while near and link.waiting:
            near -= near // 100 + 1
            near = link.answered(near)
        link.answered(near)
        link.passes(5)
        assert link.waiting == 0
