# SPDX-License-Identifier: Apache-2.0
"""Reports: what is read of an export, what is set aside, and what the jobs make of it; by hand, and by DuckDB."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from control.cli.report import command
from control.core.states import Cause, State
from control.export.chunk import Chunk, File
from control.export.columns import HISTORY, RUNS, VERSION
from control.export.export import Export
from control.export.files import digest_of, write_json
from control.store.store import Store
from spark import reading, session, stays
from spark.jobs import dwell
from spark.report import Outcome, Report, plain
from tests.databases import Sqlite, written
from tests.mutants import ROOT
from tests.unit.test_store import row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000
BEGIN_MS = 1_795_000_000_000 // HOUR_MS * HOUR_MS
UNTIL_MS = BEGIN_MS + 10 * HOUR_MS

S, C = State, Cause


def step(
    seq: int, number: int, at_s: float, source: State, target: State, cause: Cause, **others: Any
) -> dict[str, Any]:
    """A row of an export."""
    given = {
        "seq": seq, "id": number, "at": round(BEGIN_MS + at_s * 1000), "address": f"10.1.{number % 256}.7",
        "port": 40_000,
        "service": "web", "from": source.label, "to": target.label, "cause": cause.label, "rx_bytes": 1, "tx_bytes": 2,
        "gap_ms": 3,
    }  # fmt: skip
    return given | others


def history(spark: SparkSession, tmp_path: Path, rows: Sequence[dict[str, Any]]) -> DataFrame:
    from spark.columns import struct_of

    path = tmp_path / "history.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), schema=HISTORY), path)
    return spark.read.schema(struct_of(HISTORY)).parquet(str(path))


LIFE = [
    step(1, 7, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
    step(2, 7, 10, S.ACTIVE, S.STANDBY, C.QUIET),
    step(3, 7, 30, S.STANDBY, S.IDLE, C.QUIET),
    step(4, 7, 90, S.IDLE, S.ACTIVE, C.CLIENT_DATA, silence_s=60, rx_bytes=100),
    step(5, 7, 95, S.ACTIVE, S.CLOSED, C.CLIENT_CLOSE, error="ECONNRESET"),
]


def told(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(one[name] for name in columns) for one in frame.collect()), key=repr)


def ms(at_s: float) -> int:
    return round(BEGIN_MS + at_s * 1000)


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


# -- against DuckDB ----------------------------------------------------------------------------------------------------

ROWS = 1_000_000
MADE = f"""
COPY (
    SELECT seq, id, make_timestamp(({BEGIN_MS} + at_ms) * 1000) AT TIME ZONE 'UTC' AS "at",
           '10.' || id % 200 || '.1.' || id % 256 AS address, 40000::INTEGER AS port,
           CASE id % 3 WHEN 0 THEN 'web' WHEN 1 THEN 'line' END AS service,
           CASE turn % 4 WHEN 0 THEN CASE turn WHEN 0 THEN 'NONE' ELSE 'IDLE' END WHEN 1 THEN 'ACTIVE'
                         WHEN 2 THEN 'STANDBY' ELSE 'IDLE' END AS "from",
           CASE turn % 4 WHEN 0 THEN 'ACTIVE' WHEN 1 THEN 'STANDBY' WHEN 2 THEN 'IDLE'
                         ELSE CASE id % 5 WHEN 0 THEN 'CLOSED' ELSE 'SLEEP' END END AS "to",
           CASE turn % 4 WHEN 0 THEN CASE turn WHEN 0 THEN 'client-connect' ELSE 'client-data' END WHEN 3 THEN
                         CASE id % 5 WHEN 0 THEN 'client-close' ELSE 'quiet' END ELSE 'quiet' END AS cause,
           1::BIGINT AS rx_bytes, 1::BIGINT AS tx_bytes, 1::BIGINT AS gap_ms, NULL::VARCHAR AS server,
           NULL::VARCHAR AS error,
           NULL::INTEGER AS probes, NULL::BIGINT AS silence_s
    FROM (
        SELECT row_number() OVER (ORDER BY made_ms, id, turn) AS seq, *, made_ms::BIGINT AS at_ms
        FROM (
            SELECT 1 + n // 4 AS id, n % 4 AS turn,
                   hash(n // 4) % 30000000 + sum(hash(n) % 3000000) OVER (PARTITION BY n // 4 ORDER BY n) AS made_ms
            FROM range({ROWS}) AS made(n)
        )
    )
) TO '{{path}}' (FORMAT PARQUET)
"""
STAYS = """
CREATE TABLE stays AS
SELECT service, "to" AS state, epoch_ms("at") AS began, coalesce(epoch_ms(lead("at") OVER one), {until}) AS ended,
       lead("to") OVER one AS next, lead(cause) OVER one AS "by", lead("at") OVER one IS NOT NULL AS seen, id
FROM '{path}' WINDOW one AS (PARTITION BY id ORDER BY seq)
"""


@pytest.fixture(scope="module")
def million(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, Any, int]:
    """The stays of a million rows; DuckDB's; the end of the record."""
    from spark.columns import struct_of

    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    path, until = tmp_path_factory.mktemp("million") / "history.parquet", BEGIN_MS + 15 * HOUR_MS + 1234
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.execute(MADE.format(path=path))
    database.execute(STAYS.format(path=path, until=until))
    database.execute("DELETE FROM stays WHERE state = 'CLOSED'")
    found = stays.of(spark.read.schema(struct_of(HISTORY)).parquet(str(path)), [], until)
    kept = found.cache()
    assert stays.aside(kept).count() == 0
    return stays.good(kept), database, until


def test_a_million_stays_last_as_long_as_by_duckdb(million: tuple[DataFrame, Any, int]) -> None:
    found, database, _ = million
    counted = dwell.durations(found, ["service"]).cache()
    sums = (
        dwell.dwell(counted, ["service"]).select("service", "state", "stays", "censored", "total_s", "mean_s").collect()
    )
    wanted = database.execute("""
        SELECT service, state, count(*), count(*) FILTER (NOT seen), sum(ended - began) / 1000,
               sum(ended - began) / 1000 / nullif(count(*) FILTER (seen), 0)
        FROM stays GROUP BY ALL
    """).fetchall()
    assert len(wanted) == 12
    for one, other in zip(sorted(map(tuple, sums), key=repr), sorted(wanted, key=repr), strict=True):
        assert one[:4] == other[:4]
        assert one[4:] == pytest.approx(other[4:], nan_ok=True) if other[5] is not None else one[5] is None
    quantiles = {(one["service"], one["state"]): one["p50_s"] for one in dwell.dwell(counted, ["service"]).collect()}
    exact = database.execute("""
        SELECT service, state, quantile_disc(ended - began, 0.5) / 1000 FROM stays GROUP BY ALL HAVING bool_and(seen)
    """).fetchall()
    assert exact
    for service, state, median in exact:
        assert quantiles[service, state] == pytest.approx(median, rel=0.1), (service, state)


def test_a_million_transitions_are_those_that_duckdb_counts(million: tuple[DataFrame, Any, int]) -> None:
    found, database, _ = million
    wanted = database.execute("""
        SELECT service, state, next, "by", count(*) FROM stays WHERE seen GROUP BY ALL
    """).fetchall()
    assert told(dwell.transitions(found, ["service"]), "service", "state", "next", "cause", "count") == sorted(
        wanted, key=repr
    )


def test_hours_of_a_million_stays_are_those_of_duckdb(million: tuple[DataFrame, Any, int]) -> None:
    found, database, until = million
    first = BEGIN_MS + 1_000_000
    wanted = database.execute(f"""
        SELECT service, hour, state, sum(greatest(least(ended, last) - greatest(began, first), 0) / (last - first)),
               count(*) FILTER (began >= first AND began < last)
        FROM stays, (
            SELECT hour, greatest(hour, {first}) AS first, least(hour + {HOUR_MS}, {until}) AS last
            FROM range({BEGIN_MS}, {until}, {HOUR_MS}) AS hours(hour)
        )
        GROUP BY service, hour, state
    """).fetchall()
    hours = dwell.hourly(found, ["service"], first, until).selectExpr(
        "service", "unix_millis(hour) AS hour", "state", "connections", "began"
    )
    assert len(wanted) > 100
    for one, other in zip(sorted(map(tuple, hours.collect()), key=repr), sorted(wanted, key=repr), strict=True):
        assert one[:3] == other[:3]
        assert one[3] == pytest.approx(other[3], abs=1e-6)
        assert one[4] == other[4]


# -- an export ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(sqlite: Sqlite, tmp_path: Path) -> Path:
    """300 rows in five hours, and a run."""
    store = Store(sqlite.url, lambda slept: None)
    assert store.open() == ""
    store.service_indexes(["web"])
    assert store.begin_run() == (0, 0)
    store.start()
    store.add([row(n, n, at=BEGIN_MS + n * HOUR_MS // 60) for n in range(1, 301)])
    assert written(store)
    Export(tmp_path / "out").add(sqlite.url, None, None, lambda _table, _rows: None)
    store.close()
    return tmp_path / "out"


def files(root: Path) -> list[Path]:
    return sorted((root / "history").glob("date=*/hour=*/*.parquet"))


def test_an_export_is_read_whole(spark: SparkSession, exported: Path) -> None:
    export = reading.Export(spark, str(exported))
    found = export.table("history")
    assert found.columns == HISTORY.names
    assert [one["seq"] for one in found.orderBy("seq").collect()] == list(range(1, 301))
    assert [one["run"] for one in export.table("runs").collect()] == [1]
    assert export.aside.counts == {}


@pytest.mark.parametrize("name", ["history", "a b", "ü=1%20"])
def test_an_export_may_lie_anywhere(spark: SparkSession, exported: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / name / "history" / "out"
    place.parent.mkdir(parents=True)
    exported.rename(place)
    export = reading.Export(spark, str(place))
    assert (export.table("history").count(), export.aside.counts) == (300, {})


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?", "{a,b}", "a\\b"])
def test_a_directory_that_hadoop_takes_for_a_pattern_is_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    with pytest.raises(reading.NoExportError, match="pattern"):
        reading.Export(spark, str(tmp_path / name))


def test_what_is_missing_unlisted_or_changed_is_set_aside_and_told(spark: SparkSession, exported: Path) -> None:
    gone, half, flipped, *_, last = files(exported)
    rows = {path: pq.read_metadata(path).num_rows for path in files(exported)}
    gone.unlink()
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    last.with_name("000000000000000900-000000000000000999.parquet").write_bytes(last.read_bytes())
    export = reading.Export(spark, str(exported))
    assert export.table("history").count() == 300 - rows[gone] - rows[half] - rows[flipped]
    assert export.aside.counts == {"missing": rows[gone], "changed": rows[half] + rows[flipped], "unlisted": 1}
    assert [str(gone.relative_to(exported)) in one for one in export.aside.told["missing"]] == [True]
    assert len(export.aside.told["changed"]) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"rows": 3}', '{"rows": "x", "files": 7}', "\0"])
def test_a_chunk_list_that_is_none_sets_its_files_aside(spark: SparkSession, exported: Path, content: str) -> None:
    (chunk,) = (exported / "history" / "_chunks").glob("*.json")
    chunk.write_text(content)
    export = reading.Export(spark, str(exported))
    assert export.table("history").count() == 0
    assert export.aside.counts == {"unlisted": len(files(exported)), "unreadable": 1}


def test_an_export_of_an_unknown_version_is_set_aside(spark: SparkSession, exported: Path) -> None:
    (exported / "_export.json").write_text(json.dumps({"version": 99}))
    export = reading.Export(spark, str(exported))
    assert export.table("history").count() == export.table("runs").count() == 0
    assert export.aside.told["version"] == ["the export has version 99 of the columns; this roost reads 1, 2"]


def test_runs_that_cannot_be_read_are_set_aside(spark: SparkSession, exported: Path) -> None:
    (exported / "runs" / "runs.parquet").write_bytes(b"PAR1 half")
    export = reading.Export(spark, str(exported))
    assert export.table("runs").count() == 0
    assert export.aside.counts == {"unreadable": 1}
    (exported / "runs" / "runs.parquet").unlink()
    export = reading.Export(spark, str(exported))
    assert export.table("runs").count() == 0
    assert export.aside.counts == {"missing": 1}


def test_runs_with_a_damaged_page_are_set_aside(spark: SparkSession, exported: Path) -> None:
    path = exported / "runs" / "runs.parquet"
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    export = reading.Export(spark, str(exported))
    assert export.table("runs").count() == 0
    assert export.aside.counts == {"unreadable": 1}


def test_where_there_is_no_export_one_sentence_says_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(reading.NoExportError, match="there is no such directory"):
        reading.Export(spark, str(tmp_path / "none"))
    with pytest.raises(reading.NoExportError, match="has no export"):
        reading.Export(spark, str(tmp_path))
    with pytest.raises(reading.NoExportError, match="cannot be read"):
        reading.Export(spark, "nowhere://x")


# -- a report ----------------------------------------------------------------------------------------------------------


def fake_export(root: Path, rows: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> Path:
    """An export of these rows, in one file."""
    path = root / "history" / "date=2026-11-18" / "hour=00" / "1-9.parquet"
    for directory in (path.parent, root / "history" / "_chunks", root / "runs"):
        directory.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=HISTORY), path)
    pq.write_table(pa.Table.from_pylist(list(runs), schema=RUNS), root / "runs" / "runs.parquet")
    listed = [File(str(path.relative_to(root)), len(rows), digest_of(path))]
    chunk = Chunk(1, len(rows), len(rows), (len(rows), 1, 1), listed)
    write_json(root / "history" / "_chunks" / "1-9.json", asdict(chunk))
    write_json(root / "_export.json", {"version": VERSION})
    return root


def report(
    spark: SparkSession, data: Path, out: Path, since_ms: int | None = None, until_ms: int | None = None
) -> Outcome:
    return Report(spark, reading.Export(spark, str(data)), out, since_ms, until_ms, lambda _: None).run()


def test_a_report_has_its_tables_and_says_what_it_is_about(spark: SparkSession, exported: Path, tmp_path: Path) -> None:
    files(exported)[0].unlink()
    outcome = report(spark, exported, tmp_path / "report")
    told_of = json.loads((tmp_path / "report" / "report.json").read_text())
    assert told_of["rows"] == outcome.rows == 300 - outcome.aside.counts["missing"]
    assert told_of["set_aside"] == {"missing": outcome.aside.counts["missing"]}
    assert (
        told_of["to"]
        == f"{datetime.fromtimestamp((BEGIN_MS + 300 * HOUR_MS // 60) / 1000, UTC):%Y-%m-%dT%H:%M:%S}.001+00:00"
    )
    some = {"lost_by_network", "dwell_by_service", "dwell_by_network", "hours", "quiet_intervals", "quiet_costs",
            "gap_distribution"}  # fmt: skip
    none = {"transitions", "flapping_clients", "flapping_networks", "failures", "silent_deaths"}
    assert outcome.tables == told_of["tables"]
    assert set(outcome.tables) == some | none
    for name in outcome.tables:
        rows = pq.read_table(tmp_path / "report" / f"{name}.parquet").num_rows
        assert rows > 0 or name in none
        with (tmp_path / "report" / f"{name}.csv").open(newline="") as file:
            assert len(list(csv.DictReader(file))) == rows
    assert not list((tmp_path / "report").glob(".*")), "nothing of Spark's is left"
    report(spark, exported, tmp_path / "report", UNTIL_MS)  # again, into the same directory
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["report.html", "report.json"], (
        "tables of other times are gone"
    )


def test_a_report_says_what_is_not_known(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        step(1, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(2, 1, 50, S.IDLE, S.SLEEP, C.QUIET),  # rows between were dropped
        step(3, 2, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(4, 2, -5, S.ACTIVE, S.STANDBY, C.QUIET),
        step(5, 3, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT) | {"at": 60_000},
        step(6, 4, 60, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(7, 4, 7200, S.ACTIVE, S.CLOSED, C.RESTORE),
    ]
    runs = [
        {
            "run": 1,
            "instance": "main",
            "host": "h",
            "version": "1",
            "started": ms(-10),
            "first": 1,
            "ended": None,
            "dropped": 3,
        },
        {
            "run": 2,
            "instance": "main",
            "host": "h",
            "version": "1",
            "started": ms(7200),
            "first": 7,
            "ended": None,
            "dropped": 0,
        },
    ]
    made = fake_export(tmp_path / "export", rows, runs)
    report(spark, made, tmp_path / "report")
    found = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (found["unknown"], found["dropped"], found["set_aside"]) == ({"clock": 1, "lost": 1}, 3, {"no time": 1})
    assert found["from"].startswith(f"{datetime.fromtimestamp(ms(-5) / 1000, UTC):%Y-%m-%dT%H:%M:%S}")
    (active,) = [one for one in pq.read_table(tmp_path / "report" / "dwell_by_service.parquet").to_pylist()
                 if one["state"] == "ACTIVE"]  # fmt: skip
    assert (active["stays"], active["censored"], active["total_s"]) == (1, 1, 0.0), "killed when it last wrote a row"


def test_a_report_is_made_without_the_runs(spark: SparkSession, exported: Path, tmp_path: Path) -> None:
    (exported / "runs" / "runs.parquet").unlink()
    outcome = report(spark, exported, tmp_path / "report")
    assert (outcome.rows, outcome.aside.counts, len(outcome.tables)) == (300, {"missing": 1}, 12)


def test_a_report_of_times_without_a_row_says_so(spark: SparkSession, exported: Path, tmp_path: Path) -> None:
    outcome = report(spark, exported, tmp_path / "report", UNTIL_MS, UNTIL_MS + 1)
    assert (outcome.rows, outcome.tables, outcome.until_ms) == (0, [], None)
    assert json.loads((tmp_path / "report" / "report.json").read_text())["rows"] == 0


def test_a_formula_stays_text_in_csv() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\tx", "a=1", "", None, "<b>", -1]
    assert [plain(text) for text in texts] == ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "a=1", "", None, "<b>", -1]


@pytest.mark.parametrize(("options", "says"), [
    (["--memory", "8x"], "8x is no amount of memory"),
    (["--out", "/proc/report"], "/proc/report: No such file or directory"),
])  # fmt: skip
def test_what_cannot_be_is_said_in_a_sentence_before_anything_long(
    exported: Path, options: list[str], says: str
) -> None:
    done = subprocess.run([sys.executable, "-m", "control.cli.main", "report", str(exported), *options],
                          capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)  # fmt: skip
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "finding how long" not in done.stderr


def test_what_spark_says_is_one_line(
    spark: SparkSession, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, for instance."""
    monkeypatch.setattr(session, "start", lambda **_: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    broken = "seq < raise_error('no space left\\nat org.apache')"
    monkeypatch.setattr(stays, "good", lambda frame: frame.where(broken))
    result = CliRunner().invoke(command, [str(exported), "--out", str(tmp_path / "report")])
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert "no space left" in result.output
    assert "at org.apache" not in result.output


# -- where there is no Spark -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "says"), [
    (None, "a report needs Java 17 or later: apt-get install openjdk-17-jre-headless"),
    ('echo \'openjdk version "11.0.2"\' >&2', 'says openjdk version "11.0.2"; a report needs Java 17'),
    ("exit 3", "does not run"),
    ("echo nonsense >&2", "says nonsense; a report needs"),
])  # fmt: skip
def test_without_java_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, says: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "java").chmod(0o755)
    result = CliRunner().invoke(command, ["somewhere"])
    assert result.exit_code == 1
    assert says in result.output


@pytest.mark.parametrize("package", ["matplotlib", "pyspark.sql"])
def test_what_is_not_installed_is_said_before_anything_is_read(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(session.SparkError, match=r"needs pyspark and matplotlib .*roost\[reports\]"):
        session.start()
