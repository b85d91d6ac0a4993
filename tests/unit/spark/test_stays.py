# SPDX-License-Identifier: Apache-2.0
"""How long connections stay in their states, and what ends it; by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark import stays
from spark.jobs import dwell
from tests.unit.spark.given import BEGIN_MS, HOUR_MS, UNTIL_MS, C, S, history, ms, step, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIFE = [
    step(1, 7, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
    step(2, 7, 10, S.ACTIVE, S.STANDBY, C.QUIET),
    step(3, 7, 30, S.STANDBY, S.IDLE, C.QUIET),
    step(4, 7, 90, S.IDLE, S.ACTIVE, C.CLIENT_DATA, silence_s=60, rx_bytes=100),
    step(5, 7, 95, S.ACTIVE, S.CLOSED, C.CLIENT_CLOSE, error="ECONNRESET"),
]


def test_a_life_is_its_stays(spark: SparkSession, tmp_path: Path) -> None:
    found = stays.of(history(spark, tmp_path, LIFE), [], UNTIL_MS)
    assert stays.aside(found).count() == 0
    columns = ("seq", "state", "cause", "began", "ended", "end", "next", "by")
    assert told(stays.good(found), *columns) == [
        (1, S.ACTIVE, C.CLIENT_CONNECT, ms(0), ms(10), "seen", S.STANDBY, C.QUIET),
        (2, S.STANDBY, C.QUIET, ms(10), ms(30), "seen", S.IDLE, C.QUIET),
        (3, S.IDLE, C.QUIET, ms(30), ms(90), "seen", S.ACTIVE, C.CLIENT_DATA),
        (4, S.ACTIVE, C.CLIENT_DATA, ms(90), ms(95), "seen", S.CLOSED, C.CLIENT_CLOSE),
    ]  # fmt: skip


def test_stays_without_an_end_are_censored_and_say_why(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *(step(seq, number, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT) for seq, number in enumerate((1, 2, 3, 4, 5), 1)),
        step(6, 2, 50, S.IDLE, S.SLEEP, C.QUIET),  # rows between are missing
        step(7, 3, -5, S.ACTIVE, S.STANDBY, C.QUIET),  # the clock was set back
        step(8, 4, 70, S.ACTIVE, S.CLOSED, C.RESTORE),  # by the next run
        step(9, 5, 80, S.ACTIVE, S.CLOSED, C.RESTORE),
    ]
    runs = [stays.Run(1, ms(60)), stays.Run(8, ms(1000))]
    found = told(
        stays.good(stays.of(history(spark, tmp_path, rows), runs, UNTIL_MS)), "id", "seq", "end", "ended", "next"
    )
    assert found == [
        (1, 1, "open", UNTIL_MS, None),
        (2, 2, "lost", None, None),
        (2, 6, "open", UNTIL_MS, None),
        (3, 3, "clock", None, None),
        (3, 7, "open", UNTIL_MS, None),
        (4, 4, "restart", ms(60), None),
        (5, 5, "restart", ms(60), None),
    ]


def test_a_sleeper_that_a_reboot_put_back_slept_before_it_and_its_age_is_not_known_since(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [
        step(1, 7, 0, S.NONE, S.IDLE, C.CLIENT_CONNECT),
        step(2, 7, 10, S.IDLE, S.SLEEP, C.QUIET),
        step(3, 7, 5000, S.NONE, S.SLEEP, C.RESTORE),
        step(4, 7, 6000, S.SLEEP, S.ACTIVE, C.CLIENT_DATA),
    ]
    runs = [stays.Run(1, ms(4000)), stays.Run(3, ms(10_000))]
    found = stays.good(stays.of(history(spark, tmp_path, rows), runs, ms(7000)))
    assert told(found, "seq", "end", "ended") == [
        (1, "seen", ms(10)), (2, "restart", ms(4000)), (3, "seen", ms(6000)), (4, "open", ms(7000)),
    ]  # fmt: skip
    asleep = found.where(f"state = {int(S.SLEEP)}")
    (one,) = dwell.dwell(dwell.durations(asleep, []), []).collect()
    assert (one["stays"], one["censored"], one["total_s"]) == (1, 1, 3990.0), "what began by restore has an unknown age"
    hours = dwell.hourly(asleep, [], BEGIN_MS, ms(7000))
    assert told(hours, "began") == [(0,), (1,)], "nobody fell asleep by the reboot"


def test_a_stay_over_several_runs_is_watched_to_the_end_of_the_last_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [
        step(1, 7, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(2, 8, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(9, 7, 900, S.ACTIVE, S.CLOSED, C.RESTORE),
        step(10, 8, 30, S.ACTIVE, S.CLOSED, C.RESTORE),  # by a clock that was set back to before the last run's end
    ]
    runs = [stays.Run(1, ms(100)), stays.Run(3, ms(200)), stays.Run(5, ms(800)), stays.Run(9, ms(1000))]
    found = stays.good(stays.of(history(spark, tmp_path, rows), runs, UNTIL_MS))
    assert told(found, "id", "end", "ended") == [(7, "restart", ms(800)), (8, "restart", ms(30))]


def test_without_the_runs_nobody_knows_when_a_stay_ended_that_a_restart_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [step(1, 7, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT), step(2, 7, 900, S.ACTIVE, S.CLOSED, C.RESTORE)]
    for runs in ([], [stays.Run(2, ms(1000))]):
        found = stays.good(stays.of(history(spark, tmp_path, rows), runs, UNTIL_MS))
        assert told(found, "end", "ended") == [("restart", None)]
        assert dwell.durations(found, []).count() == 0


def test_a_stay_that_a_planned_stop_ends_is_censored_and_counted_among_transitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [step(1, 7, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT), step(2, 7, 60, S.ACTIVE, S.IDLE, C.SHUTDOWN)]
    found = stays.good(stays.of(history(spark, tmp_path, rows), [], ms(60)))
    (one,) = dwell.dwell(dwell.durations(found.where("seq = 1"), []), []).collect()
    assert (one["stays"], one["censored"], one["total_s"], one["mean_s"]) == (1, 1, 60.0, None)
    assert told(dwell.transitions(found, []), "cause", "count") == [("shutdown", 1)]


def test_who_was_there_when_the_record_began_is_in_its_hours(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        step(1, 1, 1800, S.SLEEP, S.CLOSED, C.CLIENT_CLOSE),
        step(2, 2, 3600 + 1800, S.SLEEP, S.ACTIVE, C.CLIENT_DATA),
        step(3, 3, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
    ]
    found = stays.of(history(spark, tmp_path, rows), [], ms(7200))
    assert told(stays.good(found), "id", "state") == [(2, S.ACTIVE), (3, S.ACTIVE)]
    there = stays.good(found).unionByName(stays.unfinished(found, BEGIN_MS), allowMissingColumns=True)
    hours = dwell.hourly(there, [], BEGIN_MS, ms(7200)).where("state = 'SLEEP'")
    assert told(hours.orderBy("hour"), "connections", "began") == [(0.5, 0), (1.5, 0)]


def test_rows_that_cannot_be_are_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    wrong = [
        step(1, 1, 0, S.CLOSED, S.ACTIVE, C.CLIENT_DATA),
        step(2, 1, 0, S.NONE, S.SLEEP, C.QUIET),
        step(3, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT) | {"to": "ASLEEP"},
        step(4, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT) | {"cause": None},
        step(5, 1, 100_000, S.NONE, S.ACTIVE, C.CLIENT_CONNECT) | {"at": UNTIL_MS + 2 * stays.DAY_MS},
        step(6, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT) | {"at": None},
        step(7, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(7, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(8, 0, 0, S.SLEEP, S.CLOSED, C.CLIENT_CLOSE),  # of a connection that had no row any more
        step(9, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT) | {"at": 60_000},  # a minute after 1970 began
    ]
    found = stays.of(history(spark, tmp_path, wrong), [], UNTIL_MS)
    assert told(found.where("why IS NOT NULL"), "seq", "why") == [
        *((seq, "impossible") for seq in (1, 2, 3, 4)), (5, "no time"), (6, "no time"), (7, "doubled"),
        (8, "no connection"), (9, "no time"),
    ]  # fmt: skip
    assert told(stays.aside(found), "why", "rows") == [
        ("doubled", 1), ("impossible", 4), ("no connection", 1), ("no time", 3),
    ]  # fmt: skip
    assert told(stays.good(found), "seq", "end") == [(7, "open")]


def test_quantiles_are_those_of_kaplan_and_meier(spark: SparkSession, tmp_path: Path) -> None:
    """Stays in STANDBY of 10, 20 and 80 s that ended, and one of 40 s that was not seen to end: 1/4 have ended after
    10 s, 1/2 after 20, and all after 80, since who is left after 40 is one alone."""
    rows, seq = [], 0
    for number, lasted in enumerate((10, 20, 80), 1):
        for source, target, cause, at in (
            (S.NONE, S.STANDBY, C.SERVER_ATTACH, 0),
            (S.STANDBY, S.IDLE, C.QUIET, lasted),
        ):
            seq += 1
            rows.append(step(seq, number, at, source, target, cause))
    rows.append(step(seq + 1, 9, 0, S.NONE, S.STANDBY, C.SERVER_ATTACH))
    found = stays.good(stays.of(history(spark, tmp_path, rows), [], ms(40)))
    counted = dwell.durations(found.where("state = 2"), ["service"])
    (one,) = dwell.dwell(counted, ["service"]).collect()
    assert (one["service"], one["state"], one["stays"], one["censored"], one["total_s"]) == (
        "web",
        "STANDBY",
        4,
        1,
        150.0,
    )
    assert one["mean_s"] == pytest.approx(50)
    assert one["p50_s"] == pytest.approx(20, rel=0.1)
    assert one["p90_s"] == one["p99_s"] == pytest.approx(80, rel=0.1)


def test_who_is_censored_in_a_class_was_watched_through_half_of_it(spark: SparkSession, tmp_path: Path) -> None:
    """Four of ten ended after some 100 s, and six were watched for some 100 s: of those who were watched for so long,
    seven on average, more than half have ended."""
    rows, seq = [], 0
    for number in range(1, 11):
        seq += 2
        rows.append(step(seq, number, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT))
        if number <= 4:
            rows.append(step(seq + 1, number, 100, S.ACTIVE, S.CLOSED, C.CLIENT_CLOSE))
    found = stays.good(stays.of(history(spark, tmp_path, rows), [], ms(100)))
    (one,) = dwell.dwell(dwell.durations(found, []), []).collect()
    assert one["p50_s"] == pytest.approx(100, rel=0.1)
    assert one["p90_s"] is None


def test_of_stays_that_never_end_there_is_no_mean(spark: SparkSession, tmp_path: Path) -> None:
    rows = [step(1, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT)]
    found = stays.good(stays.of(history(spark, tmp_path, rows), [], ms(40)))
    (one,) = dwell.dwell(dwell.durations(found, []), []).collect()
    assert (one["stays"], one["censored"], one["total_s"]) == (1, 1, 40.0)
    assert {one[name] for name in ("mean_s", "p50_s", "p90_s", "p99_s")} == {None}


def test_transitions_are_counted_with_their_share(spark: SparkSession, tmp_path: Path) -> None:
    found = dwell.transitions(stays.good(stays.of(history(spark, tmp_path, LIFE), [], UNTIL_MS)), ["service"])
    assert told(found, "service", "state", "next", "cause", "count", "share", "mean_s") == [
        ("web", "ACTIVE", "CLOSED", "client-close", 1, 0.5, 5.0),
        ("web", "ACTIVE", "STANDBY", "quiet", 1, 0.5, 10.0),
        ("web", "IDLE", "ACTIVE", "client-data", 1, 1.0, 60.0),
        ("web", "STANDBY", "IDLE", "quiet", 1, 1.0, 20.0),
    ]


def test_each_hour_has_those_who_were_there(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        step(1, 1, -1800, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),  # half an hour before the first hour, to 1:15
        step(2, 1, 4500, S.ACTIVE, S.CLOSED, C.CLIENT_CLOSE),
        step(3, 2, 5400, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),  # from 1:30 to the end, 2:30
    ]
    until = ms(9000)
    found = stays.good(stays.of(history(spark, tmp_path, rows), [], until))
    hours = dwell.hourly(found, ["service"], BEGIN_MS, until)
    hours = hours.selectExpr(f"(unix_millis(hour) - {BEGIN_MS}) / {HOUR_MS} AS nth", "state", "connections", "began")
    assert told(hours, "nth", "state", "connections", "began") == [
        (0, "ACTIVE", 1.0, 0), (1, "ACTIVE", 0.75, 1), (2, "ACTIVE", 1.0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("address", "network"), [
    ("10.1.2.3", "10.1.0.0/16"), ("2001:db8:7:8::1", "2001:db8:7::/48"), ("2001:db8::1", "2001:db8::/48"),
    ("::1", "::/48"), ("fe80::1", "fe80::/48"), (None, None),
])  # fmt: skip
def test_a_client_is_of_its_network(spark: SparkSession, address: str | None, network: str | None) -> None:
    frame = spark.createDataFrame([(address,)], "address STRING")
    (one,) = dwell.with_network(frame).collect()
    assert one["network"] == network
