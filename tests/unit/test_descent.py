# SPDX-License-Identifier: Apache-2.0
"""cext/life/pressure.c: which connections in IDLE are asked to SLEEP when something runs short."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import pytest

from appliance.wire import EventType, Key
from control.core.states import Cause
from tests.inner import ffi, lib
from tests.unit.records import IDLE, SERVER, SLEEP, Ka
from tests.unit.test_turns import START_MS, Still

SHARE: Final = 0.05
"""Those that are moved are among so many of the quietest."""


class Quiet(Still):
    """Connections in IDLE, each quiet for another time."""

    def fill(self, count: int) -> list[int]:
        """Their numbers, the quietest first."""
        order = random.Random(count).sample(range(count), count)
        slots = [self.insert(Key.of(f"10.0.{i >> 8}.{i & 255}", 1, "192.0.2.9", 80), Ka(IDLE),
                             active_ms=START_MS - 8 * (count - order[i])) for i in range(count)]  # fmt: skip
        by_quiet = sorted(range(count), key=lambda i: order[i])
        return [slots[i].rest + 1 for i in by_quiet]

    def descend(self, count: int) -> list[int]:
        """Who is asked to SLEEP when so many are to go."""
        lib.roost_testing_descend(self.raw, count)
        events, asked = ffi.new("struct roost_event[4096]"), []
        busy = True
        while busy:
            busy = bool(lib.roost_testing_descent(self.raw, self.now_ms))
            for event in events[0 : lib.roost_events(self.raw, events, 4096, 0, 0)]:
                assert (event.type, event.cause) == (EventType.SLEEP_DUE, Cause.PRESSURE)
                asked.append(event.id)
        return asked


def share_of(asked: Sequence[int], by_quiet: Sequence[int]) -> float:
    """The least share of the quietest that has all of them."""
    return (max(by_quiet.index(number) for number in asked) + 1) / len(by_quiet)


@pytest.mark.parametrize("seed", range(10))
def test_those_asked_are_among_the_quietest(seed: int) -> None:
    still = Quiet(slots=16_000, rests=12_000)
    still.now_ms += seed  # another sample
    by_quiet = still.fill(10_000)
    asked = still.descend(100)
    assert len(set(asked)) == len(asked) == 100
    assert share_of(asked, by_quiet) <= SHARE


@pytest.mark.parametrize("seed", range(10))
def test_those_asked_little_by_little_are_among_the_quietest(seed: int) -> None:
    still = Quiet(slots=16_000, rests=12_000)
    still.now_ms += seed
    by_quiet = still.fill(10_000)
    asked = [number for _ in range(20) for number in still.descend(10)]
    assert len(set(asked)) == len(asked) == 200
    assert share_of(asked, by_quiet) <= SHARE


def test_more_than_the_quietest_few_go_down_in_their_order() -> None:
    still = Quiet(slots=16_000, rests=12_000)
    by_quiet = still.fill(10_000)
    asked = still.descend(2000)
    assert len(set(asked)) == len(asked) == 2000
    assert share_of(asked, by_quiet) <= 0.2 + SHARE


def test_all_can_be_asked_and_none_twice() -> None:
    still = Quiet(slots=1000, rests=400)
    by_quiet = still.fill(300)
    assert sorted(still.descend(1_000_000)) == sorted(by_quiet)
    assert still.descend(10) == [], "they are asked again when the store had its time"
    still.now_ms += 31_000
    assert len(still.descend(10)) == 10


def test_a_few_among_many_slots_are_found() -> None:
    still = Quiet(slots=50_000, rests=100)
    by_quiet = still.fill(10)
    assert sorted(still.descend(3)) == sorted(by_quiet[:3])


def test_what_cannot_sleep_is_not_asked() -> None:
    still = Quiet(slots=1000, rests=100)
    [number] = still.fill(1)
    still.insert(Key.of("10.1.0.1", 1, "192.0.2.9", 80), Ka(SLEEP))
    still.insert(Key.of("10.1.0.2", 1, "192.0.2.9", 80), Ka(IDLE, flags=SERVER), active_ms=1)
    born: Any = Ka(IDLE, rest=1 << 31 | 1460 << 16)
    still.insert(Key.of("10.1.0.3", 1, "192.0.2.9", 80), born)
    assert still.descend(10) == [number]


def test_nothing_in_idle_is_the_end_of_it() -> None:
    assert Quiet(slots=1000, rests=10).descend(10) == []
