# SPDX-License-Identifier: Apache-2.0
"""Tables that no section is made for, as they are: what their columns mean follows from their names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from spark.page import text
from spark.page.section import Column, Kind, Row, Section, Table, Tables, largest

COLUMNS: Final = 14
"""As many are shown of a table."""
LOOKED_AT: Final = 1000
"""Rows by which a column's kind is known."""
SIZES: Final = ("count", "stays", "connections", "rows", "clients", "attempts", "total")
"""A table is shown by the first of these columns that it has, else in its own order."""
NOT_COUNTED: Final = frozenset({"id", "seq", "port", "run", "version"})


def section(tables: Tables) -> Section:
    """All of them."""
    return Section("tables", "Other tables", [], tables=[table(name, tables[name]) for name in sorted(tables)])


def table(name: str, rows: Sequence[Row]) -> Table:
    """One of them."""
    names = list(rows[0]) if rows else []
    size = next((one for one in SIZES if one in names and kind(one, rows) in (Kind.COUNT, Kind.NUMBER)), None)
    columns = [Column(one, _title(one, kind(one, rows)), kind(one, rows)) for one in names[:COLUMNS]]
    left_out = len(names) - len(columns)
    return Table(
        text.clean(name).replace("_", " "),
        f"{text.clean(name)}.csv",
        columns,
        largest(rows, size) if size else rows,
        f"by {size}" if size else "",
        note=f"{text.plural(left_out, 'more column')} there." if left_out else "",
    )


def kind(name: str, rows: Sequence[Row]) -> Kind:
    """By the column's name and its values."""
    values = [row[name] for row in islice(rows, LOOKED_AT) if row[name] is not None]
    if not values:
        return Kind.TEXT
    if name == "service":
        return Kind.SERVICE
    if all(isinstance(value, datetime) for value in values):
        return Kind.TIME
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return Kind.TEXT
    if name in NOT_COUNTED:
        return Kind.PLAIN
    if name.endswith("_s") and not name.endswith("per_s"):
        return Kind.DURATION
    if name == "share" or name.endswith("_share"):
        return Kind.SHARE
    if name == "bytes" or name.endswith("_bytes"):
        return Kind.BYTES
    return Kind.COUNT if all(isinstance(value, int) for value in values) else Kind.NUMBER


def _title(name: str, kind: Kind) -> str:
    shown = name.removesuffix("_s") if kind is Kind.DURATION else name
    return text.clean(shown).replace("_", " ")
