# SPDX-License-Identifier: Apache-2.0
"""The lock of the engine (cext/base/fair_lock.h)."""

from __future__ import annotations

import time

from tests.inner import lib

S = 1_000_000_000


def test_who_waits_has_it_before_its_owner_takes_it_again_and_again() -> None:
    """Not giving way, its owner has dozens of turns first. Between the waiter's look at the turns and its word that it
    waits there may be one. A wake-up that is missing takes 10 s."""
    turns, took_s = list[int](), list[float]()
    for _ in range(50):
        began = time.monotonic()
        turns.append(lib.roost_testing_fair_lock(20, 10 * S))
        took_s.append(time.monotonic() - began)
    assert min(turns) >= 0
    assert sorted(turns)[45] <= 2, turns
    assert max(took_s) < 5


def test_it_gives_way_no_longer_than_it_is_told() -> None:
    took = [lib.roost_testing_gives_way(5_000_000) for _ in range(10)]
    assert min(took) >= 5_000_000
    assert min(took) < S
