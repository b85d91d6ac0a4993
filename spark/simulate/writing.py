# SPDX-License-Identifier: Apache-2.0
"""A simulated fleet as `roost export` would have written it (control/export/chunks.py), and its truth beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from control.export.chunk import Chunk, File
from control.export.columns import ATTACHES, HISTORY, RULES, RUNS, SNAPSHOTS, VERSION
from control.export.files import digest_of, write_json, write_table
from spark.columns import struct_of
from spark.simulate import cycles, rows
from spark.simulate.cycles import uniform
from spark.simulate.fleet import HOUR_MS, Fleet, Plan, plan
from spark.stage import Stage

TRUTH: Final = "truth.json"
_FORM: Final = "spark.sql.parquet.outputTimestampType"


class Count(NamedTuple):
    """Of an hour (since 1970) and a run of the daemon: rows that are written, and those that were dropped."""

    hour: int
    run: int
    rows: int
    dropped: int


def simulate(spark: SparkSession, directory: Path, fleet: Fleet,
             told: Callable[[str], None] = lambda _: None) -> dict[str, Any]:  # fmt: skip
    """Write the export of `fleet` to a directory, which must be empty or not be there, and return its truth:

        fleet       its parameters
        rows        of history; doubled ones count once
        networks    Network, by name of its fields; network: CIDR; identifiable
        outages, flapping, restarts, drops, steps    network (-1: all), begin_ms, end_ms, killed
        dropped, doubled    rows of history

    Times are the true ones: from a step on, the appliance's clock is `step_s` behind. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty")
    chances, form = plan(fleet), spark.conf.get(_FORM, None)
    spark.conf.set(_FORM, "TIMESTAMP_MILLIS")
    try:
        with Stage(spark, f"file://{directory.absolute()}") as stage:
            return _write(spark, stage, directory, fleet, chances, told)
    finally:
        if form is not None:
            spark.conf.set(_FORM, form)


def _write(spark: SparkSession, stage: Stage, directory: Path, fleet: Fleet, chances: Plan,
           told: Callable[[str], None]) -> dict[str, Any]:  # fmt: skip
    told("what clients do")
    made = stage.keep(cycles.made(spark, fleet, chances), "cycles")
    told("snapshots")
    transitions = rows.transitions(fleet, chances, made)
    moved = stage.keep(rows.moves(fleet, chances, transitions), "moves")
    counted = moved.groupBy("hour", "run").agg(
        *(F.sum(F.when(F.col("dropped") == one, F.col("count")).otherwise(0)) for one in (False, True))
    )
    counts = sorted(Count(*row) for row in counted.collect())
    states = stage.keep(rows.states(spark, fleet, chances, moved), "states")
    snapshots = rows.snapshots(spark, fleet, chances, moved, states, rows.silences(made, fleet))
    _table(directory, "snapshots", SNAPSHOTS, snapshots.withColumn("chunk", F.lit(0)).repartition(1))
    told("attaches")
    attaches = rows.attaches(fleet, chances, made)
    by_hour = attaches.groupBy(F.floor(F.col("t") / HOUR_MS)).count().collect()
    asked = sorted(Count(hour, 0, count, 0) for hour, count in by_hour)
    _table(directory, "attaches", ATTACHES, _numbered(spark, attaches, asked, fleet.chunk_rows))
    told("history")
    kept = _numbered(spark, transitions.where(~F.col("dropped")), counts, fleet.chunk_rows)
    kept = rows.history(fleet, chances, kept)
    twice = F.when(uniform(fleet.seed, "doubled", F.col("seq")) < fleet.doubled, 2).otherwise(1)
    written = _table(directory, "history", HISTORY,
                     kept.withColumn("copy", F.explode(F.array_repeat(F.lit(0), twice))).drop("copy"))  # fmt: skip
    _runs(directory, fleet, chances, counts)
    _rules(directory, fleet, chances)
    write_json(directory / "_export.json", {"version": VERSION, "since_ms": None, "until_ms": None})
    count, dropped = sum(one.rows for one in counts), sum(one.dropped for one in counts)
    truth = {
        "fleet": asdict(fleet), "rows": count, "dropped": dropped, "doubled": written - count,
        "networks": [{**one._asdict(), "network": one.network, "identifiable": one.identifiable}
                     for one in chances.networks],
        **{name: [one._asdict() for one in of] for name, of in
           zip(chances._fields[1:], chances[1:], strict=True)},
    }  # fmt: skip
    (directory / TRUTH).write_text(json.dumps(truth, indent=2) + "\n")
    return truth


def _numbered(spark: SparkSession, frame: DataFrame, counts: Sequence[Count],
              chunk_rows: int) -> DataFrame:  # fmt: skip
    """And seq, in order of time, and chunk, a number: whole hours, until there are so many rows. Each hour is sorted by
    itself, behind as many rows as the hours before it have."""
    by_hour: dict[int, int] = {}
    for one in counts:
        by_hour[one.hour] = by_hour.get(one.hour, 0) + one.rows
    before, chunk, begun, places = 0, 0, 0, list[tuple[int, int, int]]()
    for hour, count in by_hour.items():
        if before - begun >= chunk_rows:
            chunk, begun = chunk + 1, before
        places.append((hour, before, chunk))
        before += count
    hours = spark.createDataFrame(places, "of long, before long, chunk int")
    within = Window.partitionBy("of").orderBy("t", "client", "k", "place")
    numbered = frame.withColumn("of", F.floor(F.col("t") / HOUR_MS)).withColumn("seq", F.row_number().over(within))
    return numbered.join(F.broadcast(hours), "of").withColumn("seq", F.col("seq") + F.col("before")).drop("before")


def _table(directory: Path, name: str, schema: pa.Schema, frame: DataFrame) -> int:
    """Files of the hours of `at`, and the chunks that name them. frame: the columns, and chunk. How many rows."""
    root = directory / name
    columns = [F.col(field.name).cast(field.dataType).alias(field.name) for field in struct_of(schema)]
    parts = {"date": F.date_format("at", "yyyy-MM-dd"), "hour": F.date_format("at", "HH")}
    placed = frame.select(*columns, "chunk").withColumns(parts)
    placed.sortWithinPartitions("date", "hour", "chunk", "seq").write.partitionBy("date", "hour", "chunk").option(
        "compression", "zstd").parquet(f"file://{root.absolute()}")  # fmt: skip
    (root / "_SUCCESS").unlink(missing_ok=True)
    for crc in root.glob("**/.*.crc"):
        crc.unlink()
    by_chunk: dict[int, list[Path]] = {}
    for path in sorted(root.glob("date=*/hour=*/chunk=*")):
        by_chunk.setdefault(int(path.name.partition("=")[2]), []).append(path)
    return sum(_chunk(directory, name, paths) for _, paths in sorted(by_chunk.items()))


def _chunk(directory: Path, name: str, paths: Sequence[Path]) -> int:
    found = [(path, sorted(path.glob("*.parquet"))) for path in paths]
    spans = [_span(part) for _, parts in found for part in parts]
    first, last = min(span[0] for span in spans), max(span[1] for span in spans)
    chunk = Chunk(first[0], last[0], sum(span[2] for span in spans), (last[0], 0, last[1]), [])
    for path, parts in found:
        target = path.parent / f"{chunk.name}.parquet"
        if len(parts) == 1:
            parts[0].rename(target)
        else:  # by a clock that was set back, rows of two hours are of one
            merged = pa.concat_tables([pq.ParquetFile(part).read() for part in parts]).sort_by("seq")
            pq.write_table(merged, target, compression="zstd")
        shutil.rmtree(path)
        rows = pq.read_metadata(target).num_rows
        chunk.files.append(File(str(target.relative_to(directory)), rows, digest_of(target)))
    write_json(directory / name / "_chunks" / f"{chunk.name}.json", asdict(chunk))
    return chunk.rows


def _span(path: Path) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Of a file: seq and at (ms) of its first and last row, and how many it has."""
    table = pq.ParquetFile(path).read(["seq", "at"])
    ends = [(table["seq"][at].as_py(), round(table["at"][at].as_py().timestamp() * 1000)) for at in (0, -1)]
    return ends[0], ends[1], table.num_rows


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def _runs(directory: Path, fleet: Fleet, chances: Plan, counts: Sequence[Count]) -> None:
    begins = [fleet.begin_ms, *(one.end_ms for one in chances.restarts)]
    made, first = [], 1
    for number, begin in enumerate(begins):
        next_ = chances.restarts[number] if number < len(chances.restarts) else None
        of = [one for one in counts if one.run == number]
        ended = None if next_ is None or next_.killed else rows.told_ms(chances, fleet, next_.begin_ms)
        made.append({
            "run": number + 1, "instance": "simulated", "host": "simulated", "version": "0",
            "started": _time(rows.told_ms(chances, fleet, begin)), "first": first, "ended": _time(ended),
            "dropped": sum(one.dropped for one in of),
        })  # fmt: skip
        first += sum(one.rows for one in of)
    write_table(directory / "runs" / "runs.parquet", pa.Table.from_pylist(made, RUNS))


def _rules(directory: Path, fleet: Fleet, chances: Plan) -> None:
    made = [{
        "version": number, "rule": one.rule, "at": _time(fleet.begin_ms), "who": "simulated", "why": "",
        "content": json.dumps({
            "name": one.rule, "network": one.network, "service": one.service, "probe_interval": f"{one.probe_s}s",
            **({"most_probe_interval": f"{one.most_s}s"} if one.most_s > one.probe_s else {}),
        }),
    } for number, one in enumerate(chances.networks, 1)]  # fmt: skip
    write_table(directory / "rules" / "rules.parquet", pa.Table.from_pylist(made, RULES))
