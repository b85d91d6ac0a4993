# SPDX-License-Identifier: Apache-2.0
"""How long connections stay in each state by rules, as the snapshots count them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark.jobs import classes
from tests.unit.spark.given import told
from tests.unit.spark.test_timeouts import row, snapshots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPAN_S = 21_600


def test_a_stay_lasts_as_long_as_those_there_over_those_that_left(spark: SparkSession, tmp_path: Path) -> None:
    made = snapshots(spark, tmp_path, [
        row(1, "meter", "a", {"SLEEP": 10, "SLEEP ACTIVE client-data": 3, "SLEEP CLOSED probe-timeout": 1, "born": 5}),
        row(2, "meter", "a", {"SLEEP": 20, "ACTIVE": 2, "SLEEP ACTIVE client-data": 2, "probes": 900}),
        row(3, "meter", None, {"ACTIVE": 4, "NONE ACTIVE client-connect": 7, "ACTIVE STANDBY quiet": 8}),
        row(4, None, None, {"SLEEP": 1000, "SLEEP ACTIVE client-data": 1000, "rss_bytes": 5}),
        row(5, "alarm", None, {"IDLE": 6, "SLEEP NONE client-data": 9, "a b c d": 2, "": 3, "STANDBY": 0}),
        row(6, "alarm", None, {"IDLE": 6}) | {"span_ms": None},
        row(7, "lock", None, {"IDLE": 1 << 53, "IDLE SLEEP quiet": 1 << 53}),
    ])  # fmt: skip
    counts = classes.counted(made)
    columns = ("service", "rules", "state", "total_s", "ended", "mean_s")
    assert told(classes.dwell(counts), *columns) == [
        ("alarm", None, "IDLE", 6.0 * SPAN_S, 0, None),
        ("lock", None, "IDLE", float(SPAN_S << 53), 1 << 53, float(SPAN_S)),
        ("meter", "a", "ACTIVE", 2.0 * SPAN_S, 0, None),
        ("meter", "a", "SLEEP", 30.0 * SPAN_S, 6, 5.0 * SPAN_S),
        ("meter", None, "ACTIVE", 4.0 * SPAN_S, 8, SPAN_S / 2),
    ]
    steps = told(classes.transitions(counts), "service", "rules", "state", "next", "cause", "count", "share")
    assert steps == [
        ("lock", None, "IDLE", "SLEEP", "quiet", 1 << 53, 1.0),
        ("meter", "a", "SLEEP", "ACTIVE", "client-data", 5, 5 / 6),
        ("meter", "a", "SLEEP", "CLOSED", "probe-timeout", 1, 1 / 6),
        ("meter", None, "ACTIVE", "STANDBY", "quiet", 8, 1.0),
    ]
    none = classes.counted(made.where("false"))
    assert told(classes.dwell(none), *columns) == told(classes.transitions(none), "state") == []
