# SPDX-License-Identifier: Apache-2.0
"""ebpf/shared/limit.h: limits by source, in cells without keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.marshal import c_bounds
from appliance.wire import Bounds, Limited, pack_address
from tests.inner import ffi, lib

SECOND: Final = 1_000_000
CELLS: Final = lib.roost_testing_limit_cells()
NO_LIMITS: Final = ((0, 0), (0, 0))


class Limits:
    """gap_us: of an address, of a network."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def take(self, gap_us: tuple[int, int], address: str, now_us: int = 0, count: int = 1,
             what: int = Limited.WAKES, service: int = 1) -> int:  # fmt: skip
        packed = pack_address(address)
        return int(lib.roost_testing_limits_take(self.raw, gap_us, what, service, packed, now_us % 2**32, count))

    def clean(self, now_us: int) -> None:
        """As the engine does with all cells within some seconds."""
        lib.roost_testing_limits_clean(self.raw, now_us % 2**32)


@contextmanager
def limits(burst_s: float = 1.0, secret: int = 1, ipv4: tuple[int, int] = (32, 24),
           ipv6: tuple[int, int] = (64, 48)) -> Iterator[Limits]:  # fmt: skip
    bounds = c_bounds(Bounds(round(burst_s * SECOND), ipv4, ipv6, NO_LIMITS))
    raw = ffi.gc(lib.roost_testing_limits(bounds, secret), lib.roost_testing_limits_free)
    yield Limits(raw)


def test_a_source_has_its_burst_at_once_and_then_its_rate() -> None:
    with limits(burst_s=2) as some:
        assert some.take((SECOND // 10, 0), "192.0.2.1", count=100) == 20
        assert some.take((SECOND // 10, 0), "192.0.2.1", SECOND // 10, count=100) == 1
        assert some.take((SECOND // 10, 0), "192.0.2.1", SECOND, count=100) == 9
        assert some.take((SECOND // 10, 0), "192.0.2.1", 60 * SECOND, count=100) == 20, "no more than the burst"


@pytest.mark.parametrize(("address", "same", "other"), [
    ("192.0.2.1", None, "192.0.2.2"),
    ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"),
    ("2001:db8::ffff:c000:201", "2001:db8::1", "192.0.2.1"),
])  # fmt: skip
def test_what_counts_as_one_address_is_an_ipv4_address_or_a_site_of_ipv6(
    address: str, same: str | None, other: str
) -> None:
    with limits() as some:
        assert some.take((SECOND, 0), address) == 1
        assert some.take((SECOND, 0), same or address) == 0
        assert some.take((SECOND, 0), other) == 1


def test_a_network_has_a_limit_of_its_own() -> None:
    with limits() as some:
        each, network = SECOND // 10, SECOND // 25
        assert [some.take((each, network), f"192.0.2.{i}", count=100) for i in range(4)] == [10, 10, 5, 0]
        assert some.take((each, network), "192.0.3.1", count=100) == 10
        assert [some.take((each, network), f"2001:db8:0:{i}::", count=100) for i in range(4)] == [10, 10, 5, 0]


def test_what_is_refused_takes_nothing_from_the_network() -> None:
    """Or one address could use up what its neighbours may do."""
    with limits() as some:
        assert some.take((SECOND // 10, SECOND // 25), "192.0.2.1", count=100_000) == 10
        assert some.take((SECOND // 10, SECOND // 25), "192.0.2.2", count=100) == 10


def test_services_and_kinds_are_limited_each_by_itself() -> None:
    with limits() as some:
        for what in (Limited.BIRTHS, Limited.WAKES):
            for service in (0, 1, 2, 1023):
                assert some.take((SECOND, 0), "192.0.2.1", count=5, what=what, service=service) == 1


def test_no_limit_is_none() -> None:
    with limits() as some:
        assert some.take((0, 0), "192.0.2.1", count=1_000_000) == 1_000_000


@pytest.mark.parametrize("before_wrap_us", [0, 1, 9 * SECOND, 10 * SECOND, 10 * SECOND + 1, 11 * SECOND, 2**31])
def test_a_source_that_was_never_seen_is_in_order_whatever_the_clock_says(before_wrap_us: int) -> None:
    with limits(burst_s=10) as some:
        assert some.take((SECOND, 0), "192.0.2.1", 2**32 - before_wrap_us, count=100) == 10


@pytest.mark.parametrize("later_us", [2**32 - 10 * SECOND, 2**32 - 20 * SECOND, 2**32, 2**31, 60 * SECOND])
def test_a_source_that_was_seen_a_turn_of_the_clock_ago_is_in_order(later_us: int) -> None:
    """All of a fleet come at the same moment, and again 71 minutes later."""
    with limits(burst_s=10) as some:
        assert some.take((SECOND, 0), "192.0.2.1", 5, count=100) == 10
        some.clean(60 * SECOND)
        assert some.take((SECOND, 0), "192.0.2.1", 5 + later_us, count=100) == 10


def test_what_is_still_ahead_is_not_forgotten() -> None:
    with limits(burst_s=10) as some:
        assert some.take((SECOND, 0), "192.0.2.1", 2**32 - 5 * SECOND, count=100) == 10
        for now_us in range(2**32 - 5 * SECOND, 2**32 + 4 * SECOND, SECOND // 2):
            some.clean(now_us)
        assert some.take((SECOND, 0), "192.0.2.1", 2**32 + 3 * SECOND, count=100) == 8


@dataclass
class Exact:
    """A source by itself: what a cell stands for."""

    gap_us: int
    burst_us: int
    due_us: int = field(default=-(10**12))

    def take(self, now_us: int) -> bool:
        due = max(self.due_us, now_us) + self.gap_us
        if due - now_us > self.burst_us:
            return False
        self.due_us = due
        return True


@given(
    gap_us=st.integers(1, SECOND),
    burst_s=st.sampled_from([1, 10, 600]),
    begin_us=st.integers(0, 2**32 - 1),
    steps=st.lists(st.tuples(st.integers(0, 20 * SECOND), st.integers(1, 20)), max_size=50),
)
@settings(max_examples=200, deadline=None)
def test_one_source_is_limited_exactly_also_when_the_clock_of_32_bits_wraps(
    gap_us: int, burst_s: int, begin_us: int, steps: list[tuple[int, int]]
) -> None:
    exact, now_us = Exact(gap_us, burst_s * SECOND), 2**32 + begin_us
    with limits(burst_s) as some:
        for passed_us, count in steps:
            now_us += passed_us
            wanted = sum(exact.take(now_us) for _ in range(count))
            assert some.take((gap_us, 0), "192.0.2.1", now_us, count) == wanted


@given(
    secret=st.integers(0, 2**64 - 1),
    calls=st.lists(st.tuples(st.integers(0, 400), st.integers(0, SECOND)), max_size=200),
)
@settings(max_examples=100, deadline=None)
def test_of_many_sources_none_does_more_than_its_limit(secret: int, calls: list[tuple[int, int]]) -> None:
    sources, now_us = [Exact(SECOND // 5, SECOND) for _ in range(401)], 0
    with limits(secret=secret) as some:
        for source, passed_us in calls:
            now_us += passed_us
            may = Exact(sources[source].gap_us, SECOND, sources[source].due_us).take(now_us)
            if some.take((SECOND // 5, 0), f"192.0.{source // 256}.{source % 256}", now_us):
                assert may, "it was in order by itself"
                sources[source].take(now_us)


def test_sources_beyond_their_limits_push_no_other_out() -> None:
    """32 of them make one in 65,536 of the others wait; a thousand, one in 67."""
    for greedy, refused_at_most in ((32, 3), (1000, 400)):
        with limits(secret=greedy) as some:
            for i in range(greedy):
                some.take((SECOND // 10, 0), f"10.{i // 256}.{i % 256}.1", count=100_000)
            refused = sum(not some.take((SECOND // 10, 0), f"172.16.{i // 256}.{i % 256}") for i in range(16384))
            assert refused <= refused_at_most, (greedy, refused)


def test_a_flood_of_addresses_in_one_network_is_held_by_the_networks_limit() -> None:
    """It fills no cell beyond that, so that the addresses of others have theirs."""
    with limits() as some:
        gap_us = (SECOND // 10, SECOND // 100)
        taken = sum(some.take(gap_us, f"2001:db8:0:{i:x}::1", count=10) for i in range(65536))
        assert taken == 100
        assert all(some.take(gap_us, f"2001:db8:{i:x}::1") for i in range(1, 1000))
