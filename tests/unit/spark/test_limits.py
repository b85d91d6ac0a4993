# SPDX-License-Identifier: Apache-2.0
"""What sources used, second by second, by hand; and whom limits would have refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark import stays
from spark.jobs import attaches, churn, limits
from tests.unit.spark.given import BEGIN_MS, UNTIL_MS, C, S, history, ms, step, table, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = [
    step(1, 1, 0.1, S.NONE, S.ACTIVE, C.CLIENT_CONNECT, address="10.1.1.7"),
    step(2, 2, 0.2, S.NONE, S.IDLE, C.CLIENT_CONNECT, address="10.1.1.7"),
    step(3, 3, 0.9, S.NONE, S.ACTIVE, C.CLIENT_CONNECT, address="10.1.1.8"),
    step(4, 1, 0.95, S.ACTIVE, S.CLOSED, C.CLIENT_CLOSE, address="10.1.1.7"),
    step(5, 2, 3.0, S.IDLE, S.ACTIVE, C.CLIENT_DATA, address="10.1.1.7"),
    step(6, 4, 3.5, S.STANDBY, S.ACTIVE, C.CLIENT_DATA, address="10.1.1.9"),  # it was there before the record
    step(7, 5, 4.0, S.NONE, S.STANDBY, C.SERVER_ATTACH, address="10.1.1.7"),  # the appliance dialled it
    step(8, 6, 4.0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT, address="2001:db8:0:1::7"),
    step(9, 7, 4.1, S.NONE, S.ACTIVE, C.CLIENT_CONNECT, address="2001:db8:0:1::8"),
    step(10, 8, 4.2, S.NONE, S.ACTIVE, C.CLIENT_CONNECT, address="2001:db8:0:2::8"),
]


def asked(seq: int, server: str | None, **others: Any) -> dict[str, Any]:
    given = {"seq": seq, "at": ms(7), "way": "connect", "server": server, "target": "a", "id": 1, "address": "10.1.1.7",
             "port": 1, "service": "web", "found": "SLEEP", "answer_ms": 1}  # fmt: skip
    return given | others


@pytest.fixture
def used(spark: SparkSession, tmp_path: Path) -> DataFrame:
    read = history(spark, tmp_path, ROWS)
    everything = stays.of(read, [], UNTIL_MS)
    events = churn.events(read, everything, BEGIN_MS, UNTIL_MS)
    rows = [
        asked(1, "10.9.9.9:4000"), asked(2, "10.9.9.9:4001"), asked(3, "[2001:db8:9::1]:80"), asked(4, None),
        asked(5, "10.9.9.9:4001", answer_ms=-1),
    ]  # fmt: skip
    attached = attaches.checked(table(spark, tmp_path, "attaches", rows), UNTIL_MS)
    return limits.uses(stays.good(everything), events, attached)


@pytest.fixture
def flapping(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("web", "10.1.1.8"), ("other", "10.1.1.7")], "service string, address string")


def by_second(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = told(frame, "source", "what", "second", "n", "asked", "flapping")
    return [(source, what, second - BEGIN_MS // 1000, *more) for source, what, second, *more in rows]


def test_addresses_are_sources(used: DataFrame, flapping: DataFrame) -> None:
    assert by_second(limits.of_sources(used, flapping, "address")) == [
        ("10.1.1.7/32", "births", 0, 1, 1, False),
        ("10.1.1.7/32", "connections", 0, 1, 2, False),
        ("10.1.1.7/32", "connections", 4, 2, 0, False),
        ("10.1.1.7/32", "connects", 0, 2, 2, False),
        ("10.1.1.7/32", "wakes", 3, 1, 1, False),
        ("10.1.1.8/32", "connections", 0, 1, 1, True),
        ("10.1.1.8/32", "connects", 0, 1, 1, True),
        ("10.1.1.9/32", "connections", 0, 1, 0, False),
        ("10.1.1.9/32", "wakes", 3, 1, 1, False),
        ("10.9.9.9/32", "attaches", 7, 2, 2, False),
        ("2001:db8:0:1::/64", "connections", 4, 2, 2, False),
        ("2001:db8:0:1::/64", "connects", 4, 2, 2, False),
        ("2001:db8:0:2::/64", "connections", 4, 1, 1, False),
        ("2001:db8:0:2::/64", "connects", 4, 1, 1, False),
        ("2001:db8:9::/64", "attaches", 7, 1, 1, False),
    ]


def test_networks_are_sources_that_flap_if_an_address_does(used: DataFrame, flapping: DataFrame) -> None:
    found = limits.of_sources(limits.of_networks(used), flapping, "network")
    assert [row for row in by_second(found) if row[0] != "10.9.9.0/24"] == [
        ("10.1.1.0/24", "births", 0, 1, 1, True),
        ("10.1.1.0/24", "connections", 0, 3, 3, True),
        ("10.1.1.0/24", "connections", 4, 4, 0, True),
        ("10.1.1.0/24", "connects", 0, 3, 3, True),
        ("10.1.1.0/24", "wakes", 3, 2, 2, True),
        ("2001:db8:9::/48", "attaches", 7, 1, 1, False),
        ("2001:db8::/48", "connections", 4, 3, 3, False),
        ("2001:db8::/48", "connects", 4, 3, 3, False),
    ]


def test_what_was_used_the_most_is_told(used: DataFrame, flapping: DataFrame) -> None:
    peaks = limits.most(limits.of_sources(limits.of_networks(used), flapping, "network"))
    named = told(limits.named(peaks, "network"), "prefix", "source", "what", "most", "asked", "flapping")
    assert named[:5] == [
        ("network", "10.1.1.0/24", "births", 1, 1, True),
        ("network", "10.1.1.0/24", "connections", 4, 3, True),
        ("network", "10.1.1.0/24", "connects", 3, 3, True),
        ("network", "10.1.1.0/24", "wakes", 2, 2, True),
        ("network", "10.9.9.0/24", "attaches", 2, 2, False),
    ]


def level(most: int, sources: int, flapping: bool, asked: int = 100, one: str = "a") -> dict[str, Any]:
    return {"service": "web", "what": "connects", "most": most, "exact": most, "one": one, "sources": sources,
            "asked": asked, "flapping": flapping}  # fmt: skip


def seconds(n: int, count: int, flapping: bool) -> dict[str, Any]:
    return {"service": "web", "what": "connects", "n": n, "asked": n, "seconds": count, "flapping": flapping}


def test_the_limit_is_twice_what_the_others_needed_and_refuses_those_that_flap() -> None:
    levels = [
        level(1, 90, False), level(7, 9, False), level(12, 1, False, 500, "nat"), level(2, 3, True),
        level(300, 1, True, 40_000, "x"),
    ]  # fmt: skip
    of = [seconds(1, 1000, False), seconds(12, 4, False), seconds(300, 10, True), seconds(60, 5, True)]
    (limit,), tried = limits.judged("address", levels, of)
    assert limit == {
        "service": "web", "prefix": "address", "what": "connects", "sources": 104, "p50": 1, "p99": 12, "most": 300,
        "most_of": "x", "asked": 40_800, "limit": 50, "flapping": 4, "asked_by_flapping": 40_100, "flapping_over": 1,
        "refused_of_flapping": 10 * 250 + 5 * 10,
    }  # fmt: skip
    assert [(row["limit"], row["over"], row["refused"]) for row in tried] == [
        (1, 10, 44), (2, 10, 40), (5, 10, 28), (10, 1, 8), (20, 0, 0), (50, 0, 0), (100, 0, 0), (200, 0, 0),
    ]  # fmt: skip
    of_flapping = [(row["flapping_over"], row["refused_of_flapping"]) for row in tried[-3:]]
    assert of_flapping == [(1, 2550), (1, 2000), (1, 1000)]
    assert set(limit) == set(limits.LIMITS.names)
    assert set(tried[0]) == set(limits.TRIED.names)


def test_half_of_the_sources_use_no_more_than_all_do() -> None:
    """Classes are of two digits; what is told is what somebody used."""
    (limit,), _ = limits.judged("address", [level(6700, 3, False) | {"exact": 6667}], [])
    assert (limit["p50"], limit["p99"], limit["most"]) == (6667, 6667, 6667)


def test_where_all_flap_no_limit_is_named() -> None:
    (limit,), tried = limits.judged("address", [level(3, 2, True)], [seconds(3, 2, True)])
    assert (limit["limit"], limit["flapping_over"], limit["refused_of_flapping"]) == (None, None, None)
    assert [row["refused_of_flapping"] for row in tried] == [4, 2]
    assert limits.judged("address", [], []) == ([], [])


@pytest.mark.parametrize(("least", "found"), [(0, 1), (1, 1), (2, 2), (3, 5), (6, 10), (10, 10), (11, 20), (51, 100),
                                              (99, 100), (101, 200), (200, 200), (201, 500)])  # fmt: skip
def test_limits_are_round_numbers(least: int, found: int) -> None:
    assert limits.preferred(least) == found
