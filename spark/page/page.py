# SPDX-License-Identifier: Apache-2.0
"""The report's page, `report.html`, of what lies beside it: report.json and TABLE.parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark.page import figure, html, text
from spark.page.section import Row, Section, Tables
from spark.page.sections import about, attaches, capacity, churn, dwell, limits, other, quiet, timeouts

NAME: Final = "report.html"
SECTIONS: Final[tuple[ModuleType, ...]] = (timeouts, quiet, churn, limits, attaches, dwell, capacity)
"""Each has TABLES, their names, and section(tables), which is asked if one of them is there."""
MOST_ROWS: Final = 1_000_000
"""Of a table; of one that has more, the first ones are read."""


def write(directory: Path) -> Path:
    """Raises OSError."""
    told: dict[str, Any] = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    tables: dict[str, list[Row]] = {}
    problems: list[str] = []
    for path in sorted(directory.glob("*.parquet")):
        try:
            tables[path.stem] = _rows(path, problems)
        except pa.ArrowException as error:
            problems.append(f"{text.clean(path.name)} cannot be read: {text.clean(error)}")
    with figure.drawing():
        sections = list(_sections(told, tables, problems))
    title = "How the connections of a Roost appliance behave"
    made = html.page(title, about.period(told), sections)
    path = directory / NAME
    half = directory / f".{NAME}"
    half.write_text(made, encoding="utf-8")
    return half.replace(path)


def _rows(path: Path, problems: list[str]) -> list[Row]:
    # Spark writes times as INT96, UTC.
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        if file.metadata.num_rows > MOST_ROWS:
            problems.append(f"Of {text.clean(path.name)}, this page knows the first {MOST_ROWS:,} rows of "
                            f"{file.metadata.num_rows:,}.")  # fmt: skip
        rows: list[Row] = []
        for batch in file.iter_batches():
            rows += batch.slice(0, MOST_ROWS - len(rows)).to_pylist()
            if len(rows) >= MOST_ROWS:
                break
        return rows


def _sections(told: dict[str, Any], tables: Tables, problems: list[str]) -> Iterator[Section]:
    yield about.about(told, problems)
    known: set[str] = set()
    for module in SECTIONS:
        known.update(module.TABLES)
        if its := {name: tables[name] for name in module.TABLES if name in tables}:
            yield module.section(its)
    if rest := {name: rows for name, rows in tables.items() if name not in known}:
        yield other.section(rest)
    yield about.set_aside(told, problems)
