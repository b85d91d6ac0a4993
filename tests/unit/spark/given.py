# SPDX-License-Identifier: Apache-2.0
"""Rows of the history that tests make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from control.core.states import Cause, State

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


def table(spark: SparkSession, tmp_path: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """A table of an export, of these rows."""
    from spark.columns import struct_of
    from spark.reading import CHUNKED

    path = tmp_path / f"{name}.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows), schema=CHUNKED[name]), path)
    return spark.read.schema(struct_of(CHUNKED[name])).parquet(str(path))


def history(spark: SparkSession, tmp_path: Path, rows: Sequence[dict[str, Any]]) -> DataFrame:
    return table(spark, tmp_path, "history", rows)


def told(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(one[name] for name in columns) for one in frame.collect()), key=repr)


def ms(at_s: float) -> int:
    return round(BEGIN_MS + at_s * 1000)


def files(root: Path) -> list[Path]:
    return sorted((root / "history").glob("date=*/hour=*/*.parquet"))
