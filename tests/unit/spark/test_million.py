# SPDX-License-Identifier: Apache-2.0
"""A million rows of a history, by the jobs and by DuckDB's SQL (and plain Python, where sums of it are judged)."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import numpy as np
import pytest

from control.export.columns import ATTACHES, HISTORY, SNAPSHOTS
from spark import intervals, stays
from spark.columns import struct_of
from spark.jobs import attaches, capacity, churn, classes, dwell, limits, quiet
from tests.unit.spark.given import BEGIN_MS, HOUR_MS, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
HOURS = 15
UNTIL_MS = BEGIN_MS + HOURS * HOUR_MS + 1234
SPLIT_MS = BEGIN_MS + 9 * HOUR_MS + 17

# Connections of eight rows: silent once and woken, silent again, and closed or woken. Those of five addresses last for
# two minutes; those of a network fail together; of some the first row is from before the record.
MADE = f"""
COPY (
    SELECT row_number() OVER (ORDER BY at_ms, id, turn) AS seq, id,
           make_timestamp(({BEGIN_MS} + at_ms) * 1000) AT TIME ZONE 'UTC' AS "at", address, 40000::INTEGER AS port,
           CASE id % 3 WHEN 0 THEN 'web' WHEN 1 THEN 'line' END AS service, "from", "to",
           CASE WHEN turn = 0 THEN 'client-connect' WHEN "to" = 'ACTIVE' THEN 'client-data' WHEN "to" != 'CLOSED' THEN
                     CASE WHEN turn = 1 AND id % 7 = 0 THEN 'server-close' ELSE 'quiet' END
                WHEN fails THEN 'server-close' WHEN id % 4 = 0 THEN 'probe-timeout' ELSE 'client-close' END AS cause,
           1::BIGINT AS rx_bytes, 1::BIGINT AS tx_bytes,
           CASE turn WHEN 0 THEN 0 ELSE at_ms - max(at_ms) FILTER (turn IN (0, 3)) OVER earlier END AS gap_ms,
           NULL::VARCHAR AS server,
           CASE WHEN "to" = 'CLOSED' AND id % 4 IN (1, 2) THEN
                     CASE id % 5 WHEN 0 THEN 'ETIMEDOUT' WHEN 1 THEN 'ECONNRESET' END END AS error,
           NULL::INTEGER AS probes, CASE WHEN "to" = 'CLOSED' AND id % 6 != 5 THEN turn + id % 997 END AS silence_s
    FROM (
        SELECT *, CASE turn WHEN 0 THEN 'NONE' WHEN 1 THEN 'ACTIVE' WHEN 2 THEN 'STANDBY' WHEN 3 THEN 'IDLE'
                            WHEN 4 THEN 'ACTIVE' WHEN 5 THEN 'STANDBY' WHEN 6 THEN 'IDLE' ELSE 'SLEEP' END AS "from",
               CASE turn WHEN 1 THEN 'STANDBY' WHEN 2 THEN 'IDLE' WHEN 4 THEN 'STANDBY' WHEN 5 THEN 'IDLE'
                         WHEN 6 THEN 'SLEEP' WHEN 7 THEN CASE WHEN ends THEN 'CLOSED' ELSE 'ACTIVE' END
                         ELSE 'ACTIVE' END AS "to",
               CASE WHEN turn = 7 AND fails THEN greatest(made_ms, {10 * HOUR_MS} + hash(id + 7) % 90000) ELSE made_ms
                    END::BIGINT AS at_ms
        FROM (
            SELECT *, flaps OR fails OR id % 5 = 0 AS ends, hash(id) % 30000000 + sum(
                       hash(n) % CASE WHEN flaps THEN 30000 ELSE 3000000 END
                   ) OVER (PARTITION BY id ORDER BY n) AS made_ms
            FROM (
                SELECT n, 1 + n // 8 AS id, n % 8 AS turn, id % 100 = 7 AS flaps, id % 200 = 3 AS fails,
                       CASE WHEN flaps THEN '10.207.7.' || id % 500 // 100
                            ELSE '10.' || id % 200 || '.1.' || id % 256 END AS address
                FROM range({ROWS}) AS made(n)
            )
        )
    )
    WHERE turn > 0 OR id % 40 > 0
    WINDOW earlier AS (PARTITION BY id ORDER BY turn ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
) TO '{{path}}' (FORMAT PARQUET)
"""
STAYS = f"""
CREATE TABLE stays AS
SELECT service, address, "from", "to" AS state, cause, gap_ms, epoch_ms("at") AS began,
       coalesce(epoch_ms(lead("at") OVER one), {UNTIL_MS}) AS ended,
       lead("to") OVER one AS next, lead(cause) OVER one AS "by", lead("at") OVER one IS NOT NULL AS seen,
       last_value(CASE WHEN "from" = 'ACTIVE' THEN cause END IGNORE NULLS) OVER one AS fell
FROM '{{path}}' WINDOW one AS (PARTITION BY id ORDER BY seq)
QUALIFY state != 'CLOSED'
"""
LIVES = f"""
CREATE TABLE lives AS
SELECT *, regexp_replace(address, '[.]\\d+[.]\\d+$', '.0.0/16') AS network, coalesce(began, {BEGIN_MS}) AS since,
       coalesce(ended, {UNTIL_MS}) AS until,
       CASE WHEN cause = 'server-close' THEN 'server' WHEN cause = 'probe-timeout' OR error = 'ETIMEDOUT' THEN 'network'
            WHEN error IS NULL THEN 'client close' ELSE 'client reset' END AS likely,
       cause = 'probe-timeout' OR error = 'ETIMEDOUT' AND cause = 'client-close' AS silently
FROM (
    SELECT id, service, address, min(epoch_ms("at")) FILTER ("from" = 'NONE') AS began,
           max(epoch_ms("at")) FILTER ("to" = 'CLOSED') AS ended, max(cause) FILTER ("to" = 'CLOSED') AS cause,
           max(error) AS error, max(silence_s) AS silence_s
    FROM '{{path}}' GROUP BY ALL
)
"""


Rows = Sequence[tuple[Any, ...]]


class Million(NamedTuple):
    """The rows; the stays of them; and DuckDB's stays, and lives of connections."""

    history: DataFrame
    stays: DataFrame
    database: duckdb.DuckDBPyConnection

    def asked(self, query: str) -> list[tuple[Any, ...]]:
        return sorted(self.database.execute(query).fetchall(), key=repr)


@pytest.fixture(scope="module")
def compiled(spark: SparkSession) -> SparkSession:
    """A Spark that compiles what is to be done: of so many rows it is worth it."""
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    return spark


@pytest.fixture(scope="module")
def million(compiled: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Million:
    directory = tmp_path_factory.mktemp("million")
    path, kept = directory / "history.parquet", directory / "stays"
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    for statement in (MADE, STAYS, LIVES):
        database.execute(statement.format(path=path))
    history = compiled.read.schema(struct_of(HISTORY)).parquet(str(path))
    stays.of(history, [], UNTIL_MS).write.parquet(str(kept))
    found = compiled.read.parquet(str(kept))
    assert stays.aside(found).count() == 0
    return Million(history, found, database)


def same(found: Rows, wanted: Rows, exact: int, within: float | None = None) -> None:
    """Rows in the same order: so many columns are equal, the others to rounding."""
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert one[:exact] == other[:exact]
        for value, right in zip(one[exact:], other[exact:], strict=True):
            assert value is None if right is None else value == pytest.approx(right, abs=within), (one, other)


# -- stays -------------------------------------------------------------------------------------------------------------


def test_stays_last_as_long(million: Million) -> None:
    counted = dwell.durations(stays.good(million.stays), ["service"])
    columns = ("service", "state", "stays", "censored", "total_s", "mean_s")
    found = dwell.dwell(counted, ["service"]).collect()
    wanted = million.asked("""
        SELECT service, state, count(*), count(*) FILTER (NOT seen), sum(ended - began) / 1000,
               sum(ended - began) / 1000 / nullif(count(*) FILTER (seen), 0)
        FROM stays GROUP BY ALL
    """)
    assert len(wanted) == 12
    same(sorted((tuple(one[name] for name in columns) for one in found), key=repr), wanted, 4)
    quantiles = {(one["service"], one["state"]): one["p50_s"] for one in found}
    exact = million.asked("""
        SELECT service, state, quantile_disc(ended - began, 0.5) / 1000 FROM stays GROUP BY ALL HAVING bool_and(seen)
    """)
    assert exact
    for service, state, median in exact:
        assert quantiles[service, state] == pytest.approx(median, rel=0.1), (service, state)


def test_transitions_are_those_that_are_counted(million: Million) -> None:
    wanted = million.asked('SELECT service, state, next, "by", count(*) FROM stays WHERE seen GROUP BY ALL')
    found = dwell.transitions(stays.good(million.stays), ["service"])
    assert told(found, "service", "state", "next", "cause", "count") == wanted


def test_hours_have_the_same_connections(million: Million) -> None:
    first = BEGIN_MS + 1_000_000
    wanted = million.asked(f"""
        SELECT service, hour, state, count(*) FILTER (began >= first AND began < last),
               sum(greatest(least(ended, last) - greatest(began, first), 0) / (last - first))
        FROM stays, (
            SELECT hour, greatest(hour, {first}) AS first, least(hour + {HOUR_MS}, {UNTIL_MS}) AS last
            FROM range({BEGIN_MS}, {UNTIL_MS}, {HOUR_MS}) AS hours(hour)
        )
        GROUP BY service, hour, state
    """)
    hours = dwell.hourly(stays.good(million.stays), ["service"], first, UNTIL_MS).selectExpr(
        "service", "unix_millis(hour) AS hour", "state", "began", "connections"
    )
    assert len(wanted) > 100
    same(sorted(map(tuple, hours.collect()), key=repr), wanted, 4, 1e-6)


# -- silences ----------------------------------------------------------------------------------------------------------


def test_silences_enter_and_leave_at_the_same_ages(million: Million) -> None:
    million.database.execute(f"""
        CREATE MACRO class_of(ms) AS
            CASE WHEN ms < 1 THEN 0 ELSE floor(log2(ms) * {intervals.PER_OCTAVE})::INTEGER + 1 END
    """)
    wanted = million.asked(f"""
        WITH silent AS (
            SELECT service, fell = 'quiet' AS linked, began, ended, began - gap_ms AS spoke,
                   CASE "from" WHEN 'ACTIVE' THEN 'starts' ELSE 'entered' END AS how,
                   CASE WHEN NOT seen THEN 'censored' WHEN next = 'CLOSED' THEN 'closed'
                        WHEN "by" = 'client-data' THEN 'woke' ELSE 'moved' END AS end
            FROM stays WHERE state != 'ACTIVE' AND gap_ms IS NOT NULL
        ), cut AS (
            SELECT * FROM silent WHERE began < {SPLIT_MS} AND ended >= {SPLIT_MS}
        ), events AS (
            SELECT *, began AS moment, how AS what, began >= {SPLIT_MS} AS late FROM silent
            UNION ALL SELECT *, ended, "end", ended >= {SPLIT_MS} FROM silent
            UNION ALL SELECT *, {SPLIT_MS}, 'censored', false FROM cut
            UNION ALL SELECT *, {SPLIT_MS}, 'entered', true FROM cut
        )
        SELECT service, linked, late::INTEGER AS part, class_of(moment - spoke) AS class,
               count(*) FILTER (what = 'starts'), count(*) FILTER (what IN ('starts', 'entered')),
               count(*) FILTER (what = 'moved'), count(*) FILTER (what = 'woke'), count(*) FILTER (what = 'closed'),
               count(*) FILTER (what = 'censored')
        FROM events GROUP BY ALL
    """)
    kinds = ("starts", "entered", "moved", "woke", "closed", "censored")
    assert set(kinds) == set(intervals.KINDS)
    found = quiet.counts(stays.good(million.stays), SPLIT_MS)
    assert told(found, "service", "linked", "part", "class", *kinds) == wanted
    assert all(sum(row[at] for row in wanted) > 1000 for at in range(4, 10))


def test_intervals_in_force_are_the_same(million: Million) -> None:
    def median(state: str) -> str:
        of = f"(\"from\" = '{state}' AND cause = 'quiet'"
        return f"""coalesce(quantile_cont(age, 0.5) FILTER {of} AND began >= {SPLIT_MS}),
                            quantile_cont(age, 0.5) FILTER {of})), count(*) FILTER {of})"""

    def least(state: str, more: str = "") -> str:
        early, late = (
            f"quantile_cont(age, 0.05) FILTER (\"from\" = '{state}' {more} AND began {part} {SPLIT_MS})"
            for part in ("<", ">=")
        )
        return f"greatest({early}, {late})"

    wanted = million.asked(f"""
        SELECT service, {median("ACTIVE")}, {median("STANDBY")}, {median("IDLE")},
               {least("ACTIVE", "AND cause = 'quiet'")}, {least("ACTIVE")}
        FROM (SELECT *, CASE WHEN gap_ms < 10000 THEN gap_ms ELSE gap_ms // 1000 * 1000 END AS age FROM stays
              WHERE state != 'ACTIVE' AND gap_ms IS NOT NULL)
        GROUP BY service
    """)
    columns = [name for step in intervals.STEPS for name in (step, f"{step}_steps")]
    found = told(quiet.in_force(stays.good(million.stays), SPLIT_MS), "service", *columns, "linked_ms", "least_ms")
    same(found, wanted, 1)
    assert wanted[0][2] < wanted[0][4], "server-close left some of them"


# -- connections that begin and end ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def events(million: Million, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = str(tmp_path_factory.mktemp("events") / "events")
    churn.events(million.history, million.stays, BEGIN_MS, UNTIL_MS).write.parquet(path)
    return million.stays.sparkSession.read.parquet(path)


class Total(NamedTuple):
    """Of an address, or a network, of a service: as spark.jobs.churn.totals."""

    service: str | None
    name: str
    begun: int
    ended: int
    most: int
    reconnects: int
    worst: int
    held: float
    worst_rate: float
    worst_held: float


def beyond(count: float, mu: float) -> float:
    return count * math.log(count / mu) - count + mu if count > mu else 0.0


def totals(million: Million, by: str) -> list[Total]:
    """How many are held, as the time that each life and each hour have in common."""
    return [Total(*row) for row in million.asked(f"""
        WITH each AS (
            SELECT service, {by} AS name, greatest(least(until, last) - greatest(since, first), 0) AS ms, first, last,
                   ((began >= first AND began < last) IS TRUE)::INTEGER AS begun,
                   ((ended >= first AND ended < last) IS TRUE)::INTEGER AS ended
            FROM lives, (
                SELECT first, least(first + {HOUR_MS}, {UNTIL_MS}) AS last
                FROM range({BEGIN_MS}, {UNTIL_MS}, {HOUR_MS}) AS hours(first)
            )
            WHERE since < last AND until >= first
        ), hours AS (
            SELECT service, name, first, sum(begun) AS begun, sum(ended) AS ended, sum(ms) AS ms,
                   sum(ms) / any_value(last - first) AS held,
                   least(sum(begun), sum(ended)) AS back, back / greatest(held, 1) AS rate,
                   {churn.TIMES_USUAL} * greatest(held, 1) AS mu,
                   CASE WHEN back > mu THEN back * ln(back / mu) - back + mu ELSE 0 END AS beyond
            FROM each GROUP BY service, name, first
        ), worst AS (
            SELECT service, name, back AS worst, held AS worst_held FROM hours
            QUALIFY row_number() OVER (PARTITION BY service, name ORDER BY beyond DESC, rate DESC) = 1
        )
        SELECT hours.service, name, sum(begun)::INTEGER, sum(ended)::INTEGER, max(begun)::INTEGER,
               sum(back)::INTEGER, any_value(worst)::INTEGER,
               sum(ms) / {UNTIL_MS - BEGIN_MS}, max(rate), any_value(worst_held)
        FROM hours JOIN worst USING (name) WHERE hours.service IS NOT DISTINCT FROM worst.service
        GROUP BY hours.service, name
    """)]  # fmt: skip


def found_totals(events: DataFrame, by: Sequence[str]) -> DataFrame:
    return churn.totals(churn.hours(events, by, BEGIN_MS, UNTIL_MS), by, BEGIN_MS, UNTIL_MS)


@pytest.mark.parametrize("by", [churn.CLIENTS, churn.NETWORKS])
def test_connections_held_and_reconnects_are_the_same(million: Million, events: DataFrame, by: Sequence[str]) -> None:
    found = found_totals(events, by).selectExpr(
        *by, "begun", "ended", "most_per_hour", "reconnects", "worst.reconnects AS worst", "held", "worst_rate"
    )
    wanted = [row[:9] for row in totals(million, by[1])]
    same(sorted(map(tuple, found.collect()), key=repr), wanted, 7, 1e-9)


def median(values: Sequence[float], weights: Sequence[int]) -> float:
    """Of the values, each as often as its weight says, when they are rounded as spark.jobs.churn.usual does."""
    rounded = np.exp(np.round(np.log(np.maximum(values, 1e-6)) * 32) / 32)
    order = np.argsort(rounded)
    until = np.cumsum(np.asarray(weights)[order])
    middle = (until[-1] - 1) / 2
    return float(np.mean([rounded[order][np.searchsorted(until, at, "right")] for at in
                          (math.floor(middle), math.ceil(middle))]))  # fmt: skip


class Usual(NamedTuple):
    """Of a service: as spark.jobs.churn.usual."""

    clients: int
    record: float
    worst: float
    hours: float


def usual(clients: Sequence[Total]) -> Usual:
    weights = [math.ceil(one.held * 1000 + 1) for one in clients]
    record = median([one.reconnects / max(one.held, 1) for one in clients], weights)
    worst = median([one.worst_rate for one in clients], weights)
    hours = (UNTIL_MS - BEGIN_MS) / HOUR_MS
    return Usual(len(clients), max(record, 1), max(worst, 1),
                 median([one.held * hours / max(one.ended, 1) for one in clients], weights))  # fmt: skip


def test_those_that_flap_are_the_same(million: Million, events: DataFrame) -> None:
    of_service = defaultdict[str | None, list[Total]](list)
    for one in totals(million, "address"):
        of_service[one.service].append(one)
    hours, times = (UNTIL_MS - BEGIN_MS) / HOUR_MS, churn.TIMES_USUAL
    wanted = []
    for service, clients in of_service.items():
        usually = usual(clients)
        for one in clients:
            tests = [
                (one.reconnects, times * max(max(one.held, 1) * usually.record, one.held * hours / usually.hours)),
                (one.worst, times * max(max(one.worst_held, 1) * usually.worst, one.worst_held / usually.hours)),
            ]
            score = (max(beyond(*test) for test in tests) - math.log(2 * usually.clients)) / math.log(10)
            if one.worst_rate >= churn.LEAST and score >= 2:
                wanted.append((service, one.name, one.begun, one.ended, one.most, one.held,
                               max(times * count / mu for count, mu in tests), score))  # fmt: skip
    usually_found = churn.usual(found_totals(events, churn.CLIENTS), BEGIN_MS, UNTIL_MS)
    found = churn.flapping(
        events, found_totals(events, churn.CLIENTS), usually_found, churn.CLIENTS, BEGIN_MS, UNTIL_MS
    ).collect()
    columns = (*churn.CLIENTS, "begun", "ended", "most_per_hour", "held", "times_usual", "score")
    same(sorted((tuple(row[name] for name in columns) for row in found), key=repr), sorted(wanted, key=repr), 5)
    assert {name for _, name, *_ in wanted} == {f"10.207.7.{number}" for number in range(5)}
    lives = {tuple(row[:2]): row[2:] for row in million.asked("""
        SELECT service, address, median(ended - began) / 1000, mode(concat_ws(' ', cause, error))
        FROM lives WHERE address LIKE '10.207.7.%' GROUP BY ALL
    """)}  # fmt: skip
    for row in found:
        median_s, cause = lives[row["service"], row["address"]]
        assert row["median_life_s"] == pytest.approx(median_s, rel=0.02)
        assert row["likely_cause"] == cause


def test_what_failed_together_is_the_same(million: Million, events: DataFrame) -> None:
    minutes = defaultdict[tuple[str | None, str], Counter[int]](Counter)
    causes = defaultdict[tuple[str | None, str, int], Counter[str]](Counter)
    for service, network, minute, likely, ended in million.asked(
        "SELECT service, network, ended // 60000, likely, count(*) FROM lives WHERE ended IS NOT NULL GROUP BY ALL"
    ):
        minutes[service, network][minute] += ended
        causes[service, network, minute][likely] += ended
    first, last = BEGIN_MS // 60_000, (UNTIL_MS - 1) // 60_000
    wanted = []
    for (service, network), ends in minutes.items():
        medians = {
            hour: median_low([ends[at] for at in range(hour, min(hour + 60, last + 1))])
            for hour in range(first, last + 1, 60)
        }
        for at, ended in sorted(ends.items()):
            hour = first + (at - first) // 60 * 60
            usually = median_low([medians[one] for one in (hour - 60, hour, hour + 60) if one in medians])
            if ended >= churn.LEAST_ENDS and beyond(ended, max(2 * usually, 1)) >= math.log(1e11):
                wanted.append((service, network, at, ended, causes[service, network, at]))
    of = defaultdict[tuple[str | None, str], list[tuple[int, int, Counter[str]]]](list)
    for service, network, at, ended, why in wanted:
        of[service, network].append((at, ended, why))
    together = []
    for (service, network), failed in of.items():
        for _, run in itertools.groupby(enumerate(failed), lambda nth: nth[1][0] - nth[0]):
            rows = [row for _, row in run]
            why = sum((row[2] for row in rows), Counter[str]())
            ended, begun = sum(row[1] for row in rows), rows[0][0] // 60 * HOUR_MS
            ((there,),) = million.asked(f"""
                SELECT count(*) FROM lives
                WHERE service IS NOT DISTINCT FROM {"NULL" if service is None else f"'{service}'"}
                      AND network = '{network}' AND since < {begun} AND until >= {begun}
            """)
            ((cause, most),) = why.most_common(1)
            together.append((service, network, rows[0][0], len(rows), ended, cause, most / ended,
                             min(ended / there, 1)))  # fmt: skip
    by_hour = churn.hours(events, churn.NETWORKS, BEGIN_MS, UNTIL_MS)
    found = churn.failures(events, by_hour, churn.NETWORKS, BEGIN_MS, UNTIL_MS).selectExpr(
        *churn.NETWORKS, "unix_millis(began) DIV 60000", "minutes", "ended", "likely_cause", "cause_share",
        "connected_share",
    )  # fmt: skip
    same(sorted(map(tuple, found.collect()), key=repr), sorted(together, key=repr), 6)
    assert {(row[1], row[5]) for row in together} == {("10.3.0.0/16", "server")}


def test_silent_deaths_are_the_same(million: Million, events: DataFrame) -> None:
    wanted = million.asked("""
        SELECT service, network, count(*) FILTER (silently), count(*) FILTER (cause = 'probe-timeout'),
               count(*) FILTER (silently AND cause = 'client-close'), count(silence_s) FILTER (silently),
               quantile_disc(silence_s, 0.5) FILTER (silently), quantile_disc(silence_s, 0.9) FILTER (silently),
               quantile_disc(silence_s, 0.99) FILTER (silently), max(silence_s) FILTER (silently),
               count(*) FILTER (silently) / count(*)
        FROM lives WHERE ended IS NOT NULL GROUP BY ALL HAVING count(*) FILTER (silently) > 0
    """)
    columns = ("ended", "by_probes", "by_timeout", "known", "p50_s", "p90_s", "p99_s", "most_s", "of_ends")
    same(told(churn.silent_deaths(events, churn.NETWORKS), *churn.NETWORKS, *columns), wanted, 10)


# -- what sources used -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefix", "source"), [
    ("address", "address || '/32'"), ("network", "regexp_replace(address, '[.]\\d+$', '.0/24')"),
])  # fmt: skip
def test_what_sources_used_is_the_same(million: Million, events: DataFrame, prefix: str, source: str) -> None:
    spark = million.stays.sparkSession
    none = attaches.checked(spark.createDataFrame([], struct_of(ATTACHES)), UNTIL_MS)
    flapping = spark.createDataFrame([("web", "10.207.7.0"), (None, "10.207.7.1")], "service string, address string")
    used = limits.uses(stays.good(million.stays), events, none)
    used = used if prefix == "address" else limits.of_networks(used)
    sources = limits.of_sources(used, flapping, prefix)
    million.database.execute(f"""
        CREATE OR REPLACE TABLE used AS
        WITH steps AS (
            SELECT service, {source} AS source, address, since // 1000 AS second, 1 AS step,
                   (began IS NOT NULL)::INTEGER AS asked
            FROM lives
            UNION ALL SELECT service, {source}, address, ended // 1000, -1, 0 FROM lives WHERE ended IS NOT NULL
        ), each AS (
            SELECT service, source, address, 'connections' AS what, second, step AS n, asked FROM steps
            UNION ALL SELECT service, source, address, 'connects', second, 1, 1 FROM steps WHERE asked = 1
            UNION ALL SELECT service, {source}, address, 'wakes', began // 1000, 1, 1 FROM stays
                      WHERE "from" IN ('IDLE', 'SLEEP') AND state = 'ACTIVE'
        ), counted AS (
            SELECT service, source, what, second, sum(n) AS n, sum(asked) AS asked FROM each GROUP BY ALL
        ), flap AS (
            SELECT service, source, bool_or(service = 'web' AND address = '10.207.7.0' OR service IS NULL AND
                                            address = '10.207.7.1') IS TRUE AS flapping FROM each GROUP BY ALL
        )
        SELECT counted.* EXCLUDE (n), flapping, CASE what WHEN 'connections' THEN sum(n) OVER (
                   PARTITION BY counted.service, source, what ORDER BY second) ELSE n END AS n
        FROM counted JOIN flap USING (source) WHERE counted.service IS NOT DISTINCT FROM flap.service
    """)
    peaks = limits.most(sources).selectExpr("service", "source", "what", "most", "asked", "flapping").collect()
    wanted = million.asked("""
        SELECT service, source, what, max(n)::BIGINT, sum(asked)::BIGINT, bool_or(flapping) FROM used GROUP BY ALL
    """)
    assert sorted(map(tuple, peaks), key=repr) == wanted
    assert sum(row[5] for row in wanted) == 6
    seconds = limits.seconds(sources).selectExpr("service", "what", "n", "asked", "flapping", "seconds").collect()
    assert sorted(map(tuple, seconds), key=repr) == million.asked("""
        SELECT service, what, (ceil(n / size) * size)::BIGINT AS rounded, asked::BIGINT, flapping, count(*)
        FROM (SELECT *, pow(10, greatest(floor(log10(n)) - 1, 0)) AS size FROM used WHERE n > 0 AND asked > 0)
        GROUP BY ALL
    """)


# -- attaches ----------------------------------------------------------------------------------------------------------


def test_servers_are_served_the_same(compiled: SparkSession, tmp_path: Path) -> None:
    path, closed = tmp_path / "attaches.parquet", tmp_path / "closed.parquet"
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.execute(f"""
        CREATE TABLE asked AS
        SELECT n AS seq, make_timestamp(({BEGIN_MS} + hash(n) % 36000000)::BIGINT * 1000) AT TIME ZONE 'UTC' AS "at",
               CASE n % 2 WHEN 0 THEN 'connect' ELSE 'address' END AS way, NULL::VARCHAR AS server,
               'a' AS target, NULL::VARCHAR AS step, n % 50000 AS id, '10.' || n % 9 || '.0.1' AS address,
               1::INTEGER AS port, CASE n % 3 WHEN 0 THEN 'web' WHEN 1 THEN 'line' END AS service,
               CASE n % 4 WHEN 0 THEN 'IDLE' ELSE 'SLEEP' END AS found,
               CASE WHEN n % 10 = 0 THEN 'ETIMEDOUT' END AS error, (hash(n + 1) % 1000)::BIGINT AS answer_ms,
               CASE WHEN n % 10 > 3 THEN (hash(n + 2) % 100000)::BIGINT END AS first_ms
        FROM range({ROWS}) AS made(n)
    """)
    database.execute(f"COPY asked TO '{path}' (FORMAT PARQUET)")
    database.execute(f"""
        CREATE TABLE closed AS
        SELECT n AS seq, n AS id, make_timestamp(({BEGIN_MS} + hash(n + 3) % 36000000)::BIGINT * 1000) AT TIME ZONE
               'UTC' AS "at", '10.0.0.1' AS address, 1::INTEGER AS port, 'web' AS service, 'ACTIVE' AS "from",
               'CLOSED' AS "to", 'client-close' AS cause, 0::BIGINT AS rx_bytes, 0::BIGINT AS tx_bytes,
               0::BIGINT AS gap_ms, NULL::VARCHAR AS server, CASE n % 2 WHEN 0 THEN 'ECONNRESET' END AS error,
               NULL::INTEGER AS probes, NULL::BIGINT AS silence_s
        FROM range(50000) AS made(n)
    """)
    database.execute(f"COPY closed TO '{closed}' (FORMAT PARQUET)")
    wanted = database.execute(f"""
        SELECT asked.service, way, found, count(*), count(*) FILTER (asked.error IS NULL),
               count(*) FILTER (asked.error IS NULL AND first_ms IS NULL),
               count(*) FILTER (asked.error IS NULL AND first_ms IS NULL AND closed.error IS NOT NULL
                   AND epoch_ms(closed.at) BETWEEN epoch_ms(asked.at)
                   AND epoch_ms(asked.at) + answer_ms + {attaches.GONE_MS}),
               quantile_disc(answer_ms, 0.9) FILTER (asked.error IS NULL),
               quantile_disc(first_ms, 0.5) FILTER (asked.error IS NULL)
        FROM asked LEFT JOIN closed USING (id) GROUP BY ALL
    """).fetchall()
    read = compiled.read.schema(struct_of(ATTACHES)).parquet(str(path))
    ends = compiled.read.schema(struct_of(HISTORY)).parquet(str(closed))
    found = attaches.served(attaches.with_gone(attaches.checked(read, UNTIL_MS), ends), ["service", "way", "found"])
    columns = ("service", "way", "found", "requests", "linked", "no_first_byte", "gone")
    for one, other in zip(
        told(found, *columns, "answer_p90_ms", "first_p50_ms"), sorted(wanted, key=repr), strict=True
    ):
        assert one[:7] == other[:7]
        assert one[7:] == pytest.approx(other[7:], rel=0.02)
    assert sum(other[6] for other in wanted) > 100


# -- snapshots ---------------------------------------------------------------------------------------------------------

SNAPSHOTS_MADE = f"""
COPY (
    SELECT n + 1 AS seq, make_timestamp(({BEGIN_MS} + minute * 60000 + 1) * 1000) AT TIME ZONE 'UTC' AS "at",
           (30000 + hash(minute) % 60000)::BIGINT AS span_ms,
           CASE WHEN what > 0 THEN 'service ' || what END AS service,
           CASE n % 3 WHEN 1 THEN 'a' WHEN 2 THEN 'b, c' END AS rules,
           CASE WHEN what > 0 THEN MAP {{{{
               'ACTIVE': (hash(n) % 1000)::BIGINT, 'SLEEP': (hash(n + 1) % 5000)::BIGINT,
               'SLEEP ACTIVE client-data': (hash(n + 2) % 50)::BIGINT, 'SLEEP ACTIVE server-data': 1::BIGINT,
               'SLEEP CLOSED client-close': (n % 2)::BIGINT, 'probes': (n % 7)::BIGINT
           }}}} ELSE MAP {{{{
               'rss_bytes': (hash(n) % 100000 + 1)::BIGINT, 'memory_permille': (n % 1000)::BIGINT
           }}}} END AS counts
    FROM (SELECT n, n // 5 AS minute, n % 5 AS what FROM range({ROWS}) AS made(n))
    WHERE minute % 1000 > 200
) TO '{{path}}' (FORMAT PARQUET)
"""
HOURS_WANTED = """
WITH good AS (SELECT *, epoch_ms("at") // 3600000 AS hour FROM '{path}'),
     seen AS (SELECT hour, sum(span_ms)::DOUBLE AS span FROM good WHERE service IS NULL GROUP BY hour),
     each AS (SELECT hour, service, sum(counts['ACTIVE'] * span_ms) AS active, sum(counts['SLEEP'] * span_ms) AS sleep,
                     sum(counts['SLEEP ACTIVE client-data'] + counts['SLEEP ACTIVE server-data']) AS wakes,
                     sum(counts['SLEEP ACTIVE server-data']) AS by_server,
                     sum(counts['SLEEP CLOSED client-close']) AS ends, sum(counts['probes']) AS probes
              FROM good WHERE service IS NOT NULL GROUP BY GROUPING SETS ((hour, service), (hour)))
SELECT hour, coalesce(service, '(appliance)'), span / 60000, active / span, sleep / span, wakes, by_server, ends, probes
FROM each JOIN seen USING (hour) ORDER BY ALL
"""


@pytest.fixture(scope="module")
def minutes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("minutes") / "snapshots.parquet"
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.execute(SNAPSHOTS_MADE.format(path=path))
    return path


def test_stays_by_rules_are_the_same(compiled: SparkSession, minutes: Path) -> None:
    counts = classes.counted(compiled.read.schema(struct_of(SNAPSHOTS)).parquet(str(minutes)))
    wanted = duckdb.execute(f"""
        SELECT service, rules, 'ACTIVE', sum(counts['ACTIVE'] * span_ms) / 1000, 0, NULL FROM '{minutes}'
        WHERE service IS NOT NULL GROUP BY ALL
        UNION ALL
        SELECT service, rules, 'SLEEP', sum(counts['SLEEP'] * span_ms) / 1000 AS total,
               sum(counts['SLEEP ACTIVE client-data'] + counts['SLEEP ACTIVE server-data'] +
                   counts['SLEEP CLOSED client-close']) AS ended, total / ended
        FROM '{minutes}' WHERE service IS NOT NULL GROUP BY ALL
    """).fetchall()
    found = told(classes.dwell(counts), "service", "rules", "state", "total_s", "ended", "mean_s")
    assert len(found) == 4 * 3 * 2
    for one, other in zip(found, sorted(wanted, key=repr), strict=True):
        assert one[:3] == other[:3]
        assert one[3:] == pytest.approx(other[3:])
    ways = ("SLEEP ACTIVE client-data", "SLEEP ACTIVE server-data", "SLEEP CLOSED client-close")
    each = " UNION ALL ".join(
        f"SELECT service, rules, '{way}', sum(counts['{way}'])::BIGINT FROM '{minutes}' WHERE service IS NOT NULL "
        "GROUP BY ALL" for way in ways
    )  # fmt: skip
    steps = classes.transitions(counts).selectExpr("service", "rules", "concat_ws(' ', state, next, cause)", "count")
    assert sorted(map(tuple, steps.collect()), key=repr) == sorted(duckdb.execute(each).fetchall(), key=repr)


def test_hours_of_snapshots_are_the_same(compiled: SparkSession, minutes: Path) -> None:
    wanted = duckdb.execute(HOURS_WANTED.format(path=minutes)).fetchall()
    assert len(wanted) > 1000
    snapshots = compiled.read.schema(struct_of(SNAPSHOTS)).parquet(str(minutes))
    found = capacity.hourly(snapshots, BEGIN_MS + 10_000 * HOUR_MS).selectExpr(
        f"unix_millis(hour) DIV {HOUR_MS}", "service", "minutes", "active", "sleep", "wakes", "wakes_by_server", "ends",
        "probes",
    )  # fmt: skip
    rows = sorted(map(tuple, found.collect()))
    assert len(rows) == len(wanted)
    for one, other in zip(rows, wanted, strict=True):
        assert one[:2] == other[:2]
        assert one[2:] == pytest.approx([float(value) for value in other[2:]])
