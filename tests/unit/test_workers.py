# SPDX-License-Identifier: Apache-2.0
"""Helping hands: whatever their number, each item of a batch is worked on once, and is done when the batch is."""

from __future__ import annotations

import pytest

from tests.inner import ffi, lib


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize(("count", "each"), [(1, 8), (8, 8), (9, 8), (64, 8), (100, 7), (5, 1)])
def test_every_item_of_a_batch_is_done_once(threads: int, count: int, each: int) -> None:
    batches = 500
    done = ffi.new("uint32_t[]", count)
    assert lib.roost_testing_workers(threads, batches, count, each, done) == 0
    assert list(done) == [batches] * count


def test_an_empty_batch_is_done_at_once() -> None:
    assert lib.roost_testing_workers(2, 10, 0, 8, ffi.NULL) == 0
