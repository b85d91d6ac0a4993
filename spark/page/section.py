# SPDX-License-Identifier: Apache-2.0
"""What a section of a page is made of. Every text in it is text, not HTML."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from spark.page import text

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]
"""By name; those that are there."""


class Kind(Enum):
    """How the values of a column are shown, and the unit that its head tells."""

    TEXT = ""
    SERVICE = " "
    PLAIN = "  "
    COUNT = "   "
    NUMBER = "    "
    DURATION = "time"
    MILLISECONDS = "time "
    SHARE = "%"
    BYTES = "bytes"
    TIME = "UTC"

    @property
    def unit(self) -> str:
        return self.value.strip()

    @property
    def is_number(self) -> bool:
        return self not in (Kind.TEXT, Kind.SERVICE, Kind.TIME)

    def show(self, value: Any) -> str:
        """Whatever the value is."""
        if self is Kind.SERVICE and value is None:
            return text.service(None)
        try:
            return text.NONE if value is None else _SHOWN[self](value)
        except (TypeError, ValueError, ArithmeticError):
            return text.clean(value)


_SHOWN: Final[dict[Kind, Callable[[Any], str]]] = {
    Kind.TEXT: text.word,
    Kind.SERVICE: text.service,
    Kind.PLAIN: text.clean,
    Kind.COUNT: lambda value: f"{value:,d}",
    Kind.NUMBER: lambda value: text.number(float(value)),
    Kind.DURATION: lambda value: text.duration(float(value)),
    Kind.MILLISECONDS: lambda value: text.duration(float(value) / 1000),
    Kind.SHARE: lambda value: text.percent(float(value)),
    Kind.BYTES: lambda value: text.size(float(value)),
    Kind.TIME: text.moment,
}


@dataclass(frozen=True)
class Column:
    """key: in the rows. unit: in place of its kind's."""

    key: str
    title: str
    kind: Kind = Kind.TEXT
    unit: str | None = None


@dataclass(frozen=True)
class Table:
    """A page shows the first `shown` of the rows, says how many are left out, and names the file that has them.

    file: that has all of them. order: by what the rows are sorted, 'by stays'."""

    title: str
    file: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    order: str = ""
    shown: int = 40
    note: str = ""


@dataclass(frozen=True)
class Matrix:
    """A table whose cells are coloured by their share.

    cells: their share, 0..1, and what they say, the first line of it larger; None: an empty one."""

    title: str
    corner: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[tuple[float, str] | None]]


@dataclass(frozen=True)
class Panel:
    """svg: made by spark.page.figure. description: what it shows, for those who do not see it."""

    title: str
    svg: str
    description: str


@dataclass(frozen=True)
class Plot:
    """legend: the name of a colour of spark.page.figure or of a mark, and what it stands for."""

    title: str
    caption: str
    panels: Sequence[Panel]
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Section:
    """findings: sentences in plain language, the one that matters most first. matrices_head: their title, and a
    sentence that says what they show. method: paragraphs."""

    name: str
    title: str
    findings: Sequence[str]
    plots: Sequence[Plot] = ()
    matrices: Sequence[Matrix] = ()
    matrices_head: tuple[str, str] = ("", "")
    tables: Sequence[Table] = ()
    method: Sequence[str] = ()
    caveats: Sequence[str] = ()


def known(row: Row, key: str) -> float | None:
    """A number of a row; None: there is none, or it is not finite."""
    value = row.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def total(rows: Iterable[Row], key: str) -> float:
    """Of the numbers that are known."""
    return sum(known(row, key) or 0 for row in rows)


def largest(rows: Iterable[Row], key: str) -> list[Row]:
    """The same, by the size of this column; None and NaN last."""
    return sorted(rows, key=lambda row: math.inf if (value := known(row, key)) is None else -value)


def by_service(rows: Iterable[Row]) -> dict[str | None, list[Row]]:
    """The rows of each."""
    found: defaultdict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["service"]].append(row)
    return dict(found)


def shown(
    tables: Tables,
    given: Mapping[str, tuple[str, Sequence[Column]]],
    by: Mapping[str, str] = MappingProxyType({}),
    notes: Mapping[str, str] = MappingProxyType({}),
) -> list[Table]:
    """Of the tables that have rows. given: title and columns of each; by: the column that one is sorted by."""
    found = []
    for name, (title, columns) in given.items():
        if rows := tables.get(name):
            key = by.get(name)
            order = next((f"by {column.title}" for column in columns if column.key == key), "")
            found.append(Table(title, f"{name}.csv", columns, largest(rows, key) if key else rows, order,
                               note=notes.get(name, "")))  # fmt: skip
    return found
