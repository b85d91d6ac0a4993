# SPDX-License-Identifier: Apache-2.0
"""Capacity: what snapshots say of each hour, by hand and by DuckDB; the forecast; and when the appliance is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from control.export.columns import SNAPSHOTS
from spark.jobs import capacity
from spark.jobs.capacity import APPLIANCE, OTHERS
from tests.unit.spark.given import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000
BEGIN_MS = 1_795_000_000_000 // HOUR_MS * HOUR_MS
UNTIL_MS = BEGIN_MS + 1000 * HOUR_MS
MINUTE = 60_000
OWN = {"rss_bytes": 100, "maps_bytes": 1000}


def taken(
    seq: int, minute: float, service: str | None = None, counts: Mapping[str, int] | None = OWN, **others: Any
) -> dict[str, Any]:
    """A row of an export."""
    at = round(BEGIN_MS + minute * MINUTE)
    given = {
        "seq": seq, "at": at, "span_ms": MINUTE, "service": service, "rules": None,
        "counts": None if counts is None else list(counts.items()),
    }  # fmt: skip
    return given | others


def frame(spark: SparkSession, tmp_path: Path, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    return table(spark, tmp_path, "snapshots", rows)


def hours(snapshots: DataFrame) -> dict[tuple[int, str | None], dict[str, Any]]:
    """By the hour since BEGIN_MS, and the service."""
    found = capacity.hourly(snapshots, UNTIL_MS).selectExpr(
        f"(unix_millis(hour) - {BEGIN_MS}) DIV {HOUR_MS} AS nth", "*"
    )
    rows = [row.asDict() for row in found.collect()]
    told = {(row["nth"], row["service"]): row for row in rows}
    assert len(told) == len(rows)
    return told


def test_an_hour_has_what_there_was_on_average_and_what_happened_in_all(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        # The minute before 0:10, and the twenty before 0:30, which count for as much more.
        taken(1, 10, None, OWN | {"filter_members": 21, "born": 5, "memory_permille": 500, "table_ipv4": 40,
                                  "ipv4_slots": 100, "born_ipv4": 9, "SLEEP CLOSED client-close": 1}),
        taken(2, 10, "web", {"ACTIVE": 21, "IDLE": 42, "born": 5, "SLEEP ACTIVE client-data": 3, "probes": 4,
                             "NONE ACTIVE client-connect": 2, "rx_bytes": 10, "spoke after 64": 3}),
        taken(3, 10, "web", {"ACTIVE": 21, "IDLE ACTIVE server-data": 1}, rules="cheap, slow"),
        taken(4, 10, "line", {"STANDBY": 1, "STANDBY ACTIVE server-attach": 7, "SLEEP STANDBY command": 9}),
        taken(5, 30, None, OWN | {"rss_bytes": 121, "filter_members": 42, "memory_permille": 400, "table_ipv4": 30,
                                  "ipv4_slots": 200}, span_ms=20 * MINUTE),
        taken(6, 30, "web", {"SLEEP": 21, "IDLE CLOSED probe-timeout": 6, "NONE SLEEP restore": 8, "probes": 6},
              span_ms=20 * MINUTE),
        taken(6, 30, "web", {"SLEEP": 21, "IDLE CLOSED probe-timeout": 6, "NONE SLEEP restore": 8, "probes": 6},
              span_ms=20 * MINUTE),
        # The hour from 1:00 on has no snapshot. In the one from 2:00 on there is no connection.
        taken(7, 150, None, OWN),
        taken(8, 150, None, {"ACTIVE": 2, "tx_bytes": 3}),  # of a service that is not known any more
        # The clock is set back by half an hour.
        taken(9, 120, None, None),
        taken(15, 180, None, {}),
        taken(10, 121, "web", {"'=x' ACTIVE quiet": 2**62, "SLEEP ACTIVE": 2**62, "": -1, "probes": 2**62}),
        taken(11, 122, "web", {"probes": 2**63 - 1, "ACTIVE": 2**62}),
        taken(12, 0) | {"at": None},
        taken(13, 0) | {"at": 60_000},
        taken(14, 0) | {"at": UNTIL_MS + 25 * HOUR_MS},
    ]  # fmt: skip
    snapshots = frame(spark, tmp_path, rows)
    told = hours(snapshots)
    assert sorted(told, key=repr) == sorted(
        [(0, APPLIANCE), (0, "web"), (0, "line"), (2, APPLIANCE), (2, None), (2, "web")], key=repr
    )
    web = told[0, "web"]
    assert {name: web[name] for name in ("minutes", "active", "standby", "idle", "sleep", "born", "connections")} == {
        "minutes": 21, "active": 2, "standby": 0, "idle": 2, "sleep": 20, "born": pytest.approx(5 / 21),
        "connections": pytest.approx(24 + 5 / 21),
    }  # fmt: skip
    happened = ("wakes", "wakes_by_server", "births", "ends", "probes", "rx_bytes", "tx_bytes")
    assert [web[name] for name in happened] == [4, 1, 2, 6, 10, 10, 0]
    assert [web[name] for name in ("filter_members", "rss_bytes", "memory_permille", "ipv4_slots")] == [None] * 4
    assert [told[0, "line"][name] for name in happened] == [7, 7, 0, 0, 0, 0, 0]
    own = told[0, APPLIANCE]
    assert [own[name] for name in happened] == [11, 8, 2, 7, 10, 10, 0]
    assert own["born"] == web["born"], "the engine's own count is of the same"
    assert own["connections"] == pytest.approx(web["connections"] + 1 / 21 + 41)
    assert [own[name] for name in ("filter_members", "maps_bytes", "rss_bytes")] == [41, 1000, 120]
    assert [own[name] for name in ("memory_permille", "table_ipv4", "ipv4_slots")] == [500, 40, 200]
    assert (own["descriptors_permille"], own["idle_slots"]) == (None, None), "not told, or 0"
    assert (told[2, APPLIANCE]["minutes"], told[2, None]["minutes"]) == (4, 4)
    assert (told[2, None]["active"], told[2, None]["tx_bytes"]) == (0.5, 3)
    assert (told[2, APPLIANCE]["rss_bytes"], told[2, APPLIANCE]["tx_bytes"]) == (100, 3)
    assert (told[2, "web"]["wakes"], told[2, "web"]["probes"]) == (0, None), "more than there can be"
    found = {row["why"]: row["rows"] for row in capacity.aside(snapshots, UNTIL_MS).collect()}
    assert found == {"no time": 3, "doubled": 1, "clock": 1}


def test_of_no_snapshot_there_is_nothing(spark: SparkSession, tmp_path: Path) -> None:
    snapshots = frame(spark, tmp_path, [])
    assert capacity.aside(snapshots, UNTIL_MS).collect() == []
    told = capacity.tell(capacity.hourly(snapshots, UNTIL_MS))
    assert told.forecast.column_names[:4] == ["service", "quantity", "model", "hour"]
    assert [table.num_rows for table in told] == [0, 0, 0]


def test_of_one_snapshot_there_is_no_forecast_and_it_says_so(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        taken(1, 40, None, OWN | {"descriptors_permille": 7}, span_ms=40 * MINUTE),
        taken(2, 40, "web", {"SLEEP": 3}),
    ]
    hourly = capacity.hourly(frame(spark, tmp_path, rows), UNTIL_MS)
    told = capacity.tell(hourly)
    assert told.forecast.num_rows == 0
    found = {(row["service"], row["quantity"]): row for row in told.quality.to_pylist()}
    web = found["web", "connections"]
    assert (web["model"], web["says"]) == (None, "1 hours are known; a forecast needs 48")
    (full,) = told.full.to_pylist()
    assert (full["limit"], full["used_percent"], full["full_at"]) == ("descriptors", 0.7, None)
    assert full["says"].startswith("no forecast")


# -- the forecast ------------------------------------------------------------------------------------------------------


def hourly_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """As `capacity.hourly` has it, of these columns; the others are null. hour: since 1970."""
    from spark.columns import struct_of

    wanted = capacity.hourly(spark.createDataFrame([], struct_of(SNAPSHOTS)), UNTIL_MS).schema
    given = spark.createDataFrame(table).selectExpr(f"timestamp_millis(hour * {HOUR_MS}) AS hour", "* EXCEPT (hour)")
    names = {one.name: one.name if one.name in given.columns else "NULL" for one in wanted}
    return given.selectExpr(
        *(f"CAST({names[one.name]} AS {one.dataType.simpleString()}) AS {one.name}" for one in wanted)
    )


def test_what_grows_is_full_when_it_reaches_its_limit_and_services_are_told_apart(spark: SparkSession) -> None:
    """Eight weeks, of which a day is not known; memory grows by a permille in six hours."""
    first, count = BEGIN_MS // HOUR_MS, 8 * 168
    nth = np.arange(count)
    known = (nth < 500) | (nth >= 524)
    random = np.random.default_rng(5)
    memory = np.round(720 + nth / 6).astype(int)
    own: dict[str, Any] = {
        "hour": (first + nth)[known], "service": [APPLIANCE] * known.sum(), "standby": np.zeros(known.sum()),
        "minutes": np.full(known.sum(), 60.0),
        "active": np.full(known.sum(), 10.0), "connections": (1000 + nth + random.normal(0, 5, count))[known],
        "wakes": np.full(known.sum(), 30), "rss_bytes": np.full(known.sum(), 5.0), "memory_permille": memory[known],
        "descriptors_permille": np.full(known.sum(), 500), "table_ipv4": np.full(known.sum(), 40),
        "ipv4_slots": np.where(nth < 700, 50, 400)[known], "ipv6_slots": np.full(known.sum(), 100),
    }  # fmt: skip
    own["minutes"][-1] = 40.0  # the record ends in the midst of an hour
    own["wakes"][-1] = 20
    few = {name: own[name][:60] for name in ("hour", "minutes", "active", "standby", "wakes")}
    services = [
        few | {"service": pa.array([name] * 60, pa.string()), "connections": np.full(60, size)}
        for name, size in (("big", 300.0), ("<b>", 20.0), ("a", 10.0), (None, 1.0))
    ]
    table = pa.concat_tables([pa.table(part) for part in (own, *services)], promote_options="default")
    told = capacity.tell(hourly_frame(spark, table), weeks=4, most=2)
    quality = {(row["service"], row["quantity"]): row for row in told.quality.to_pylist()}
    assert {service for service, _ in quality} == {APPLIANCE, "big", "<b>", OTHERS}
    grown = quality[APPLIANCE, "connections"]
    assert (grown["model"], grown["season_hours"], grown["says"]) == ("trend", 168, None)
    assert grown["mae"] == grown["mae_trend"] < grown["mae_naive"] / 10
    assert grown["held_out_weeks"] == 5, "behind the first three"
    assert quality[APPLIANCE, "wakes"]["mae"] == 0, "the last hour is as if it had been full"
    assert (APPLIANCE, "idle_records") not in quality
    forecast = [row for row in told.forecast.to_pylist() if row["quantity"] == "connections"]
    forecast.sort(key=lambda row: (row["service"] or "", row["hour"]))
    by_service: dict[str, list[Any]] = {}
    for row in forecast:
        by_service.setdefault(row["service"], []).append(row)
    assert len(by_service[APPLIANCE]) == 4 * 168
    assert by_service[APPLIANCE][0]["hour"].astimezone(UTC) == at(first + count)
    for nth_row, row in enumerate(by_service[APPLIANCE]):
        assert row["low95"] <= row["low80"] <= row["value"] <= row["high80"] <= row["high95"]
        assert row["value"] == pytest.approx(1000 + count + nth_row, abs=10)
    assert by_service["big"][0]["value"] == 0, "nobody has been there for weeks"
    assert by_service[OTHERS][0]["hour"].astimezone(UTC) == at(first + count)
    full = {row["limit"]: row for row in told.full.to_pylist()}
    assert set(full) == {"memory", "descriptors", "table of IPv4", "table of IPv6"}
    (memory_full, descriptors) = full["memory"], full["descriptors"]
    assert memory_full["used_percent"] == pytest.approx(94.4, abs=0.1)
    assert abs((memory_full["full_at"].astimezone(UTC) - at(first + 280 * 6)).total_seconds()) <= 12 * 3600
    assert memory_full["earliest"] <= memory_full["full_at"] <= memory_full["latest"]
    assert memory_full["end_percent"] == pytest.approx(105.6, abs=0.3)
    assert (descriptors["full_at"], descriptors["says"]) == (None, "not within the forecast")
    assert (descriptors["used_percent"], descriptors["end_percent"]) == (50, 50)
    assert full["table of IPv4"]["used_percent"] == 10, "of the places that there are now"
    assert full["table of IPv6"]["used_percent"] == 0


def at(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3600, UTC)
