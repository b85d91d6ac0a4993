# SPDX-License-Identifier: Apache-2.0
"""cext/base/wheel.c against a model: a dict of deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inner import ffi, lib

TICK_MS: int = lib.roost_testing_wheel_tick_ms()
HORIZON_MS: int = lib.roost_testing_wheel_horizon_ms()
TIMERS = 12
START_MS = 1_000_003  # on no tick


class Wheel:
    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._fired = ffi.new("uint32_t[]", TIMERS)

    def set(self, timer: int, due_ms: int) -> None:
        lib.roost_testing_wheel_set(self._raw, timer, due_ms)

    def cancel(self, timer: int) -> None:
        lib.roost_testing_wheel_cancel(self._raw, timer)

    def advance(self, now_ms: int) -> list[int]:
        count = lib.roost_testing_wheel_advance(self._raw, now_ms, self._fired)
        return [self._fired[i] for i in range(count)]

    @property
    def armed(self) -> int:
        return int(lib.roost_testing_wheel_armed(self._raw))


@contextmanager
def wheel() -> Iterator[Wheel]:
    raw = lib.roost_testing_wheel(START_MS, TIMERS)
    try:
        yield Wheel(raw)
    finally:
        lib.roost_testing_wheel_free(raw)


steps = st.one_of(
    st.tuples(st.just("set"), st.integers(0, TIMERS - 1),
              st.one_of(st.integers(-500, 500), st.integers(0, 2 * HORIZON_MS))),
    st.tuples(st.just("cancel"), st.integers(0, TIMERS - 1), st.just(0)),
    st.tuples(st.just("advance"), st.just(0),
              st.one_of(st.integers(0, 200), st.integers(0, HORIZON_MS), st.integers(0, 3 * HORIZON_MS))),
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(script=st.lists(steps, max_size=60))
def test_nothing_fires_early_within_the_horizon_nothing_late_and_nothing_twice(
    script: list[tuple[str, int, int]],
) -> None:
    now = START_MS
    due: dict[int, tuple[int, int]] = {}  # timer -> when it was set, its deadline
    with wheel() as w:
        for what, timer, ms in script:
            if what == "set":
                w.set(timer, now + ms)
                due[timer] = (now, now + ms)
            elif what == "cancel":
                w.cancel(timer)
                due.pop(timer, None)
            else:
                now += ms
                fired = w.advance(now)
                assert len(fired) == len(set(fired))
                for timer_fired in fired:
                    set_at, deadline = due.pop(timer_fired)
                    far = deadline - set_at > HORIZON_MS - TICK_MS
                    assert deadline <= now or (far and now - set_at >= HORIZON_MS - 2 * TICK_MS)
                for set_at, deadline in due.values():
                    # A tick that was being waited through when the timer was set is the next one's.
                    assert now < max(deadline, set_at) + 2 * TICK_MS
            assert w.armed == len(due)


def test_a_halt_of_an_hour_is_caught_up_in_one_advance() -> None:
    with wheel() as w:
        for timer in range(TIMERS):
            w.set(timer, START_MS + timer * HORIZON_MS // TIMERS)
        assert sorted(w.advance(START_MS + 3_600_000)) == list(range(TIMERS))
        assert w.armed == 0


def test_a_timer_that_is_set_again_fires_at_its_new_deadline_alone() -> None:
    with wheel() as w:
        w.set(3, START_MS + 100)
        w.set(3, START_MS + 5000)
        assert w.armed == 1
        assert w.advance(START_MS + 1000) == []
        assert w.advance(START_MS + 5000 + TICK_MS) == [3]
        assert w.advance(START_MS + HORIZON_MS * 2) == []
