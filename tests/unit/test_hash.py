# SPDX-License-Identifier: Apache-2.0
"""cext/base/hash.c against a model: a list of (hash, number), the latest first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inner import ffi, lib

TOP = 2**64 - 1
MIXER = 0x9E3779B97F4A7C15


class Table:
    def __init__(self) -> None:
        self.raw: Any = ffi.gc(lib.roost_testing_hash(), lib.roost_testing_hash_free)

    def put(self, hash_: int, number: int) -> None:
        lib.roost_testing_hash_put(self.raw, hash_, number)

    def drop(self, hash_: int, number: int) -> None:
        lib.roost_testing_hash_drop(self.raw, hash_, number)

    def has(self, hash_: int, number: int) -> bool:
        return bool(lib.roost_testing_hash_has(self.raw, hash_, number))

    def first(self, hash_: int) -> int:
        return int(lib.roost_testing_hash_first(self.raw, hash_))

    def walk(self, from_: int = 0, to: int = TOP, removed: int = 0) -> list[int]:
        numbers = ffi.new("uint64_t[]", 2 * self.used + 1)
        count = lib.roost_testing_hash_walk(self.raw, from_, to, removed, numbers)
        return [numbers[i] for i in range(count)]

    @property
    def size(self) -> int:
        return int(lib.roost_testing_hash_size(self.raw))

    @property
    def used(self) -> int:
        return int(lib.roost_testing_hash_used(self.raw))


# Few homes, so that runs are long, some of them over the end of the table; equal hashes, and 0, which stands for 1.
hashes = st.one_of(
    st.sampled_from([0, 2, 5 << 58, (5 << 58) + 1, 1 << 63, 63 << 58, (63 << 58) + 9, TOP - 1, TOP]),
    st.integers(0, TOP),
)
steps = st.lists(st.tuples(st.sampled_from(["put", "put", "drop"]), hashes, st.integers(1, 200)), max_size=300)


@settings(max_examples=400, deadline=None)
@given(steps, hashes, hashes, st.integers(2, 4))
def test_it_has_what_a_list_has(steps: list[tuple[str, int, int]], one: int, other: int, removed: int) -> None:
    table, model = Table(), list[tuple[int, int]]()
    for step, hash_, number in steps:
        entry = (hash_ or 1, number)
        if step == "put" and entry not in model:
            table.put(hash_, number)
            model.insert(0, entry)
        elif step == "drop":
            table.drop(hash_, number)
            if entry in model:
                model.remove(entry)
    assert table.used == len(model)
    for hash_, number in model:
        assert table.has(hash_, number)
        assert table.first(hash_) == next(number for of, number in model if of == hash_)
    for _, hash_, number in steps:
        assert table.has(hash_, number) == ((hash_ or 1, number) in model)
    low, high = min(one, other), max(one, other)
    assert sorted(table.walk(low, high)) == sorted(n for h, n in model if low <= h <= high)
    seen = table.walk(low, high, removed)
    kept = [(h, n) for h, n in model if n % removed or not low <= h <= high]
    assert set(seen) == {n for h, n in model if low <= h <= high}
    assert sorted(table.walk()) == sorted(n for _, n in kept)
    assert all(table.has(*entry) for entry in kept)


def test_ranges_that_cover_all_hashes_visit_every_entry_once_whatever_the_size() -> None:
    table = Table()
    for count in (10, 100, 1000, 5000):
        for number in range(table.used + 1, count + 1):
            table.put(number * MIXER & TOP, number)
        ranges = [table.walk(place << 52, (place << 52) + 2**52 - 1) for place in range(4096)]
        assert sorted(number for part in ranges for number in part) == list(range(1, count + 1))
        assert max(map(len, ranges)) <= count / 4096 + 5


def test_it_grows_when_it_is_three_quarters_full_and_the_latest_is_still_first() -> None:
    table = Table()
    sizes = []
    for number in range(1, 200):
        table.put(TOP if number % 2 else 7 << 58, number)
        sizes.append(table.size)
        assert table.first(TOP if number % 2 else 7 << 58) == number
    assert (sizes[0], sizes[47], sizes[48]) == (64, 64, 128)
    for number in range(199, 1, -1):
        assert table.first(TOP if number % 2 else 7 << 58) == number
        table.drop(TOP if number % 2 else 7 << 58, number)


@pytest.mark.parametrize(("text", "wanted"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)])
def test_fnv1a_gives_the_values_that_its_authors_publish(text: bytes, wanted: int) -> None:
    assert lib.roost_testing_fnv1a(text, len(text)) == wanted
