# SPDX-License-Identifier: Apache-2.0
"""Flapping clients and networks, fleets that fail together, silent deaths: by hand, and where the truth is known."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from control.core.states import Cause, State
from spark import stays
from spark.jobs import churn
from tests.unit.spark.given import BEGIN_MS, HOUR_MS, history, ms, step, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

S, C = State, Cause
HOUR_S = 3600
DAY_MS = BEGIN_MS + 24 * HOUR_MS


class Rows:
    """Of a history, of connections from when they begin until they end."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._number = 0

    def life(self, began_s: float | None, ended_s: float | None, cause: Cause = C.CLIENT_CLOSE,
             by: Cause = C.CLIENT_CONNECT, error: str | None = None, silence_s: int | None = None,
             **others: Any) -> None:  # fmt: skip
        """None: it was there before the record, or after it."""
        self._number += 1
        first = S.STANDBY if by == C.SERVER_ATTACH else S.ACTIVE
        if began_s is not None:
            self._add(began_s, S.NONE, first, by, others)
        if ended_s is not None:
            self._add(ended_s, first, S.CLOSED, cause, {"error": error, "silence_s": silence_s, **others})

    def _add(self, at_s: float, source: State, target: State, cause: Cause, others: dict[str, Any]) -> None:
        self.all.append(step(len(self.all) + 1, self._number, at_s, source, target, cause, **others))


Made = Callable[[Sequence[dict[str, Any]]], "DataFrame"]


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> Made:
    count = itertools.count()

    def events(rows: Sequence[dict[str, Any]]) -> DataFrame:
        (place := tmp_path / str(next(count))).mkdir()
        read = history(spark, place, rows)
        return churn.events(read, stays.of(read, [], DAY_MS), BEGIN_MS, DAY_MS).cache()

    return events


def test_of_a_history_begins_and_ends_are_read(made: Made) -> None:
    rows = [
        step(1, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(2, 1, 1, S.ACTIVE, S.STANDBY, C.QUIET),
        step(3, 1, 2, S.STANDBY, S.CLOSED, C.PROBE_TIMEOUT, silence_s=9),
        step(4, 2, 3, S.NONE, S.SLEEP, C.RESTORE),  # put back: it did not begin
        step(5, 3, 4, S.NONE, S.STANDBY, C.SERVER_ATTACH, address="2001:db8::7", service=None),
        step(6, 4, 5, S.NONE, S.ACTIVE, C.QUIET),  # impossible
        step(7, 0, 5, S.SLEEP, S.CLOSED, C.CLIENT_CLOSE),
        step(8, 5, 5, S.ACTIVE, S.CLOSED, C.CLIENT_CLOSE) | {"at": 60_000},
        step(9, 5, 5, S.ACTIVE, S.CLOSED, C.CLIENT_CLOSE) | {"cause": "<script>"},
        step(10, 5, 5, S.ACTIVE, S.CLOSED, C.CLIENT_CLOSE) | {"at": None},
    ]
    columns = ("id", "service", "network", "at", "born", "by_client", "silence_s")
    assert told(made(rows), *columns) == [
        (1, "web", "10.1.0.0/16", ms(0), True, True, None),
        (1, "web", "10.1.0.0/16", ms(2), False, False, 9),
        (3, None, "2001:db8::/48", ms(4), True, False, None),
    ]


def test_connections_held_are_those_of_each_hour(made: Made) -> None:
    """One that was there at first, until 0:30; one from 1:15 on, and one that the appliance dialled at 2:45; the record
    ends at 3:30."""
    rows = Rows()
    rows.life(None, 1800)
    rows.life(4500, None)
    rows.life(9900, None, by=C.SERVER_ATTACH)
    until_ms = ms(3.5 * HOUR_S)
    found = churn.hours(made(rows.all), ["service"], BEGIN_MS, until_ms).cache()
    nth = found.withColumn("nth", F.col("hour") - BEGIN_MS // HOUR_MS)
    assert told(nth, "nth", "begun", "ended", "before", "step", "held") == [
        (0, 0, 1, 1, 0, 0.5), (1, 1, 0, 0, 1, 0.75), (2, 0, 0, 1, 1, 1.25),
    ]  # fmt: skip
    (total,) = churn.totals(found, ["service"], BEGIN_MS, until_ms).collect()
    assert total["held"] == pytest.approx((0.5 + 0.75 + 1.25 + 2 * 0.5) / 3.5)
    assert (total["begun"], total["ended"], total["most_per_hour"], total["reconnects"]) == (1, 1, 1, 0)


def test_a_bound_of_the_tail_is_one(spark: SparkSession) -> None:
    cases = [(count, mu) for mu in (0.5, 1.0, 3.0, 10.0, 100.0) for count in (0, 1, 2, 5, 20, 150)]
    frame = spark.createDataFrame(cases, "count LONG, mu DOUBLE")
    for one in frame.withColumn("beyond", churn.beyond(F.col("count"), F.col("mu"))).collect():
        count, mu = one["count"], one["mu"]
        below = sum(math.exp(n * math.log(mu) - mu - math.lgamma(n + 1)) for n in range(count))
        assert math.exp(-one["beyond"]) >= 1 - below - 1e-12
        assert (one["beyond"] > 0) == (count > mu)


def flapping(found: DataFrame, by: Sequence[str], until_ms: int = DAY_MS) -> DataFrame:
    def totals(of: Sequence[str]) -> DataFrame:
        return churn.totals(churn.hours(found, of, BEGIN_MS, until_ms), of, BEGIN_MS, until_ms)

    usually = churn.usual(totals(churn.CLIENTS), BEGIN_MS, until_ms)
    return churn.flapping(found, totals(by), usually, by, BEGIN_MS, until_ms)


def fleet(random_: random.Random) -> tuple[Rows, set[str], set[str]]:
    """A day of 600 clients of two services, and of networks before them: addresses and networks that flap."""
    rows, clients, networks = Rows(), set[str](), set[str]()

    def client(address: str, service: str | None, life_s: float, gap_s: float, until_s: float = 24 * HOUR_S,
               since_s: float = 0, **others: Any) -> None:  # fmt: skip
        at_s = since_s or None
        ends_s = since_s + random_.random() * life_s
        while ends_s < until_s:
            rows.life(at_s, ends_s, address=address, service=service, **others)
            at_s = ends_s + random_.expovariate(1 / gap_s)
            ends_s = at_s + random_.expovariate(1 / life_s)
        rows.life(at_s, until_s if until_s < 24 * HOUR_S else None, address=address, service=service)

    for number in range(500):  # lives of 4 h at the median, some of a fifth of that; all of them reconnect at 6:00
        address, life_s = f"10.{number % 20}.0.{number // 20}", 4 * HOUR_S * random_.lognormvariate(0, 0.7)
        client(address, "web", life_s, 10, 6 * HOUR_S)
        client(address, "web", life_s, 10, since_s=6 * HOUR_S)
    for number in range(60):  # they ask something for 5 s each half an hour
        client(f"10.60.{number}.1", None, 5, 1800)
    for number in range(3):  # carriers' NATs: each of 80 clients, and of 40 that ask something
        for _ in range(80):
            client(f"10.70.{number}.1", "web", 4 * HOUR_S, 10)
        for _ in range(40):
            client(f"10.71.{number}.1", None, 5, 1800)
    for number in range(300):  # a crowd that comes in a minute, stays for an hour, and leaves
        rows.life(30_000 + number / 5, 34_000 + number / 5, address="10.72.0.1")
    for number in range(12):  # a path that forgets connections after a minute
        clients.add(f"10.80.0.{number}")
        client(f"10.80.0.{number}", "web", 60, 30, error="ECONNRESET")
    for number in range(5):  # one that does after five minutes
        clients.add(f"10.81.{number}.1")
        client(f"10.81.{number}.1", "web", 300, 20, cause=C.PROBE_TIMEOUT)
    clients.add("10.82.0.1")  # for an hour only
    client("10.82.0.1", "web", 20, 20, 2 * HOUR_S, HOUR_S)
    for number in range(2000):  # by another address each time, from a network with 10 clients
        rows.life(number * 40, number * 40 + 350, address=f"10.90.{number // 250}.{number % 250}", cause=C.SERVER_CLOSE)
    networks |= {"10.80.0.0/16", "10.81.0.0/16", "10.82.0.0/16", "10.90.0.0/16"}
    return rows, clients, networks


def test_those_that_flap_are_found_and_no_others(made: Made) -> None:
    rows, clients, networks = fleet(random.Random(15))
    found = made(rows.all)
    named = {one["address"]: one for one in flapping(found, churn.CLIENTS).collect()}
    assert {address for address, one in named.items() if one["service"] == "web"} == named.keys() == clients
    one = named["10.80.0.7"]
    wanted = [row for row in rows.all if row["address"] == "10.80.0.7"]
    assert one["ended"] == sum(row["to"] == "CLOSED" for row in wanted)
    assert one["begun"] == sum(row["from"] == "NONE" for row in wanted)
    assert one["likely_cause"] == "client-close ECONNRESET"
    assert one["median_life_s"] == pytest.approx(60 * math.log(2), rel=0.2)
    assert one["held"] == pytest.approx(60 / 90, rel=0.1)
    assert 30 < one["most_per_hour"] < 70
    assert one["score"] > 100
    assert one["times_usual"] > 20
    assert named["10.81.0.1"]["likely_cause"] == "probe-timeout"
    of_networks = {one["network"]: one["likely_cause"] for one in flapping(found, churn.NETWORKS).collect()}
    assert of_networks.keys() == networks
    assert of_networks["10.90.0.0/16"] == "server-close"


def test_one_client_alone_and_none_flap_not(made: Made) -> None:
    rows = Rows()
    for number in range(600):
        rows.life(60 * number, 60 * number + 50, address="10.1.1.1", service=None)
    assert flapping(made(rows.all), churn.CLIENTS).collect() == [], "it is its own usual"
    assert flapping(made([]), churn.CLIENTS).collect() == []


# -- failures ----------------------------------------------------------------------------------------------------------


def failures(found: DataFrame, by: Sequence[str] = churn.NETWORKS, until_ms: int = DAY_MS) -> list[tuple[Any, ...]]:
    by_hour = churn.hours(found, by, BEGIN_MS, until_ms)
    table = churn.failures(found, by_hour, by, BEGIN_MS, until_ms)
    columns = ("began", "minutes", "ended", "likely_cause", "cause_share", "connected_share", "addresses")
    return told(table, *by, *columns)


def at(minute: int) -> datetime:
    return datetime.fromtimestamp(ms(60 * minute) / 1000, UTC).replace(tzinfo=None)


def test_fleets_that_fail_together_are_found_with_the_likely_cause(made: Made) -> None:
    """A day's cycle in a large network, whose ends vary by more than Poisson's; and failures in others."""
    random_, rows = random.Random(7), Rows()
    for minute in range(24 * 60):
        usual = 20 + 15 * math.sin(minute / 1440 * 2 * math.pi)
        for _ in range(round(random_.gauss(usual, 1.5 * math.sqrt(usual)))):
            rows.life(None, 60 * minute + random_.random() * 60, address="10.1.0.1")
    for number in range(300):  # a server ends, in two minutes, and it has a few ends besides
        rows.life(None, 60 * 600 + number / 3, C.SERVER_CLOSE, address=f"10.2.{number}.1")
    for _ in range(100):
        rows.life(None, 60 * 600 + 30, C.CLIENT_CLOSE, error="ECONNRESET", address="10.2.0.1")
        rows.life(None, None, address="10.2.0.1")
    for minute in range(60, 120):  # a path, for an hour, and again after five
        for number in range(25):
            rows.life(0, 60 * minute, C.CLIENT_CLOSE, error="ETIMEDOUT", address=f"10.3.{number}.1", service=None)
            if minute < 61:
                rows.life(0, 60 * 420, C.PROBE_TIMEOUT, address=f"10.3.{number}.1", service=None)
    for number in range(19):  # too few
        rows.life(None, 60 * 500, C.SERVER_CLOSE, address=f"10.4.{number}.1")
    for number in range(20):
        rows.life(None, 60 * 700, C.SHUTDOWN, address=f"10.5.{number}.1")
    found = made(rows.all)
    seen = failures(found)
    assert [one[:7] for one in seen] == [
        ("web", "10.2.0.0/16", at(600), 2, 400, "server", 0.75),
        ("web", "10.5.0.0/16", at(700), 1, 20, "appliance", 1.0),
        (None, "10.3.0.0/16", at(60), 60, 1500, "network", 1.0),
        (None, "10.3.0.0/16", at(420), 1, 25, "network", 1.0),
    ]
    assert [one[7] for one in seen] == [1.0, 1.0, pytest.approx(1500 / 1525), 1.0]
    assert [one[8] for one in seen] == [pytest.approx(count, rel=0.15) for count in (300, 20, 25, 25)]
    by_service = [one[:4] for one in failures(found, ["service"])]
    assert by_service == [("web", at(600), 2, pytest.approx(400, abs=99)), (None, at(60), 60, 1500),
                          (None, at(420), 1, 25)]  # fmt: skip


def test_in_a_record_of_minutes_its_minutes_say_what_is_usual(made: Made) -> None:
    rows = Rows()
    for minute in range(5):
        for number in range(200 if minute == 3 else 40):
            rows.life(None, 60 * minute + number / 10, C.CLIENT_CONNECT)
    assert [one[2:6] for one in failures(made(rows.all), until_ms=ms(290))] == [(at(3), 1, 200, "client came anew")]
    assert failures(made([])) == []


@pytest.mark.parametrize(("cause", "error", "kind"), [
    ("server-close", "ETIMEDOUT", "server"), ("probe-timeout", None, "network"), ("write-timeout", None, "network"),
    ("client-close", "EHOSTUNREACH", "network"), ("client-close", "ECONNRESET", "client reset"),
    ("client-close", None, "client close"), ("client-connect", None, "client came anew"),
    ("restore", None, "appliance"), ("pressure", None, "appliance"), ("command", None, "operator"),
])  # fmt: skip
def test_causes_say_who_is_likely_to_blame(spark: SparkSession, cause: str, error: str | None, kind: str) -> None:
    (one,) = spark.createDataFrame([(cause, error)], "cause STRING, error STRING").select(churn.likely()).collect()
    assert one[0] == kind


# -- silent deaths -----------------------------------------------------------------------------------------------------


def test_of_silent_deaths_it_is_told_how_long_nobody_knew(made: Made) -> None:
    rows = Rows()
    for number in range(1, 101):
        rows.life(0, 100, C.PROBE_TIMEOUT, silence_s=number, address="10.1.0.1")
    for number in range(20):
        rows.life(0, 100, C.CLIENT_CLOSE, error="ETIMEDOUT", address=f"10.1.0.{number}")
        rows.life(0, 100, C.CLIENT_CLOSE, error="ECONNRESET", silence_s=5000, address="10.1.0.1")
        rows.life(0, 100, C.SERVER_CLOSE, error="ETIMEDOUT", silence_s=5000, address="10.2.0.1")
    rows.life(None, 5, C.PROBE_TIMEOUT, address="10.1.0.1", service=None, silence_s=524_288)
    found = churn.silent_deaths(made(rows.all), churn.NETWORKS)
    columns = ("ended", "of_ends", "by_probes", "by_timeout", "known", "p50_s", "p90_s", "p99_s", "most_s")
    assert told(found, *churn.NETWORKS, *columns) == [
        ("web", "10.1.0.0/16", 120, 120 / 140, 100, 20, 100, 50, 90, 99, 100),
        (None, "10.1.0.0/16", 1, 1.0, 1, 0, 1, 524_288, 524_288, 524_288, 524_288),
    ]
