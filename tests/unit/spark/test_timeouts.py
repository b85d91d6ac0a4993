# SPDX-License-Identifier: Apache-2.0
"""What a report counts of probes and silences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from control.export.chunk import Chunk, File
from control.export.columns import RULES, RUNS, SNAPSHOTS, VERSION
from control.export.files import digest_of, write_json, write_table
from spark.jobs import timeouts
from spark.reading import Export
from spark.report import Report
from spark.stage import Stage
from tests.unit.spark.given import table
from tests.unit.test_estimating import drawn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
NOON = datetime(2026, 11, 10, 12, tzinfo=UTC)


def row(seq: int, service: str | None, rules: str | None, counts: dict[str, int], day: int = 10) -> dict[str, Any]:
    return {
        "seq": seq, "at": NOON.replace(day=day), "span_ms": DAY_MS // 4, "service": service, "rules": rules,
        "counts": list(counts.items()),
    }  # fmt: skip


def snapshots(spark: SparkSession, tmp_path: Path, rows: Sequence[dict[str, Any]]) -> DataFrame:
    return table(spark, tmp_path, "snapshots", rows)


def test_probes_are_counted_by_silence_service_and_rules(spark: SparkSession, tmp_path: Path) -> None:
    made = snapshots(spark, tmp_path, [
        row(1, "meter", "a", {"answered after 64": 5, "lost after 64": 1, "spoke after 64": 99, "probes": 7,
                              "SLEEP": 10}),
        row(2, "meter", "a", {"answered after 64": 2, "answered after 72": 1, "IDLE": 20, "born": 6, "probes": 3}),
        row(3, "meter", None, {"lost after 0": 4, "SLEEP CLOSED probe-timeout": 4}),
        row(4, "meter", "a", {"probes": 1, "IDLE CLOSED probe-timeout": 2, "SLEEP CLOSED probe-timeout": 1}, day=11),
        row(5, None, None, {"answered after 64": 1000, "probes": 1000}),
        row(6, "alarm", None, {"answered after x": 3, "answered after 99999999999": 3, "lost after 64 ": 3}),
    ])  # fmt: skip
    counted = {tuple(one) for one in timeouts.silences(made).collect()}
    assert counted == {("meter", "a", 64, 7, 1), ("meter", "a", 72, 1, 0), ("meter", None, 0, 0, 4)}
    days = {(one["service"], one["rules"], one["day"]): one for one in timeouts.by_day(made).collect()}
    one = days["meter", "a", date(2026, 11, 10)]
    assert (one["days"], one["probes"], one["lost"], one["connections"]) == (0.5, 10, 0, 18.0)
    one = days["meter", "a", date(2026, 11, 11)]
    assert (one["days"], one["probes"], one["lost"]) == (0.25, 1, 3)
    assert days["meter", None, date(2026, 11, 10)]["lost"] == 4
    assert timeouts.silences(made.where("false")).collect() == []


def test_a_report_recommends_by_its_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    gaps = drawn(3, 20_000, 600)
    counts = {f"answered after {low:.0f}": int(count) for low, count in zip(gaps.low, gaps.answered, strict=True)}
    counts |= {f"lost after {low:.0f}": int(count) for low, count in zip(gaps.low, gaps.lost, strict=True)}
    data, out = tmp_path / "data", tmp_path / "out"
    some = pa.Table.from_pylist([row(1, "meter", "=carrier", counts)], schema=SNAPSHOTS)
    path = data / "snapshots" / "date=2026-11-10" / "hour=12" / "1.parquet"
    write_table(path, some)
    name = str(path.relative_to(data))
    chunk = Chunk(1, 1, 1, (1, 0, 0), [File(name, 1, digest_of(path))])
    write_json(data / "snapshots" / "_chunks" / "1.json", asdict(chunk))
    rule = {
        "version": 7,
        "rule": "=carrier",
        "at": NOON,
        "who": "ann",
        "why": "",
        "content": '{"probe_interval": 60.0}',
    }
    write_table(data / "rules" / "rules.parquet", pa.Table.from_pylist([rule], schema=RULES))
    write_table(data / "runs" / "runs.parquet", RUNS.empty_table())
    write_json(data / "_export.json", {"version": VERSION, "since_ms": None, "until_ms": None})

    with Stage(spark, str(tmp_path)) as stage:
        outcome = Report(Export(spark, str(data)), out, stage, None, None, lambda _: None).run()
    assert outcome.tables == ["probes_by_day", "timeouts", "loss_by_silence"]
    found = pq.read_table(out / "timeouts.parquet").to_pylist()
    assert [(one["service"], one["rules"], one["known"]) for one in found] == [("meter", "=carrier", "found")]
    assert (out / "timeouts.csv").read_text().splitlines()[1].startswith("meter,'=carrier,")
    told = json.loads((out / "recommendations.json").read_text())
    assert [one["name"] for one in told["rule"]] == ["=carrier"]
    assert told["version"] == 7
    assert json.loads((out / "experiments.json").read_text())["rule"] == []
