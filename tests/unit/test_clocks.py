# SPDX-License-Identifier: Apache-2.0
"""The timestamp clock (TSval) that clients see runs on over a reboot, whatever the wall clocks say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.daemon.reconcile import AFTER_MS, DOWN_MS, timestamps_ahead_ms

HOUR_MS = 3_600_000
ALIVE_MS = 50 * HOUR_MS  # the boot before lasted so long
NOW_MS = 30_000  # of the present one


@pytest.mark.parametrize(("down_ms", "wrong_ms"), [(60_000, 0), (60_000, HOUR_MS), (10 * HOUR_MS, HOUR_MS)])
def test_clocks_that_are_right_or_show_too_late_are_believed(down_ms: int, wrong_ms: int) -> None:
    old_ms = ALIVE_MS + AFTER_MS + down_ms + wrong_ms
    assert timestamps_ahead_ms(NOW_MS - old_ms, ALIVE_MS, NOW_MS) == NOW_MS - old_ms


def test_without_a_mark_the_wall_clocks_are_believed() -> None:
    assert timestamps_ahead_ms(HOUR_MS, None, NOW_MS) == HOUR_MS


@given(st.integers(-(2**45), 2**45), st.integers(0, 2**40), st.integers(0, 2**40))
def test_no_timestamp_goes_back_or_half_round(by_wall_ms: int, alive_ms: int, now_ms: int) -> None:
    """record.shifted: a clock that is `ahead` ms ahead shows now - ahead where the old one would go on."""
    goes_on_at = now_ms - timestamps_ahead_ms(by_wall_ms, alive_ms, now_ms)
    assert AFTER_MS <= goes_on_at - alive_ms <= AFTER_MS + DOWN_MS < 2**31
