# SPDX-License-Identifier: Apache-2.0
"""Rows of the record as an export has them: in Arrow's tables, numbers in them as the texts that they stand for.

Each table is a Source of SOURCES: its columns, where its rows are, and how a row of the database becomes one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import errorcode
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError, ProgrammingError

from control.core.states import Cause, State
from control.export.columns import ATTACHES, AUDIT, HISTORY, RULES, RUNS, SNAPSHOTS, TAGS
from control.store import tagging
from control.store.database import get_meta
from control.store.history import last_row
from control.store.schema import (
    attaches,
    audit,
    columns_of_part,
    history_part,
    history_parts,
    rules,
    runs,
    services,
    snapshots,
)

WHOLE: Final = (
    ("runs", RUNS, sa.select(runs).order_by(runs.c.run)),
    ("rules", RULES, sa.select(rules).order_by(rules.c.version, rules.c.rule)),
    ("tags", TAGS, tagging.connections()),
)
"""Tables that each export writes anew, as they are: name, columns and rows."""

CHUNK_ROWS: Final = 1_000_000
BATCH_ROWS: Final = 20_000
_ENDPOINT: Final = r"^\[?(?P<address>[^\]]+)\]?:(?P<port>\d+)$"


@dataclass(frozen=True, slots=True)
class Times:
    """Those that are of interest, ms since 1970; None: no limit."""

    since_ms: int | None
    until_ms: int | None

    def of(self, table: pa.Table) -> pa.Table:
        """The rows of these times."""
        for limit, compare in ((self.since_ms, pc.greater_equal), (self.until_ms, pc.less)):
            if limit is not None:
                table = table.filter(compare(table["at"], pa.scalar(limit, pa.timestamp("ms", tz="UTC"))))
        return table


@dataclass(frozen=True, slots=True)
class Names:
    """Texts, at the places of the numbers that rows have."""

    services: pa.Array
    states: pa.Array
    causes: pa.Array

    @classmethod
    def read(cls, connection: Connection) -> Names:
        of_services = {row[1]: row[0] for row in connection.execute(sa.select(services.c.name, services.c.index))}
        return cls(
            _texts(of_services),
            _texts({int(state): state.label for state in State}),
            _texts({int(cause): cause.label for cause in Cause}),
        )

    def service(self, numbers: Sequence[int]) -> pa.Array:
        """Of one that nobody knows any more: null."""
        return _named(self.services, numbers)


def _texts(by_number: Mapping[int, str]) -> pa.Array:
    return pa.array([by_number.get(number) for number in range(max(by_number, default=0) + 1)], pa.string())


def _named(texts: pa.Array, numbers: Sequence[int]) -> pa.Array:
    """A number without a text stays empty."""
    places = pa.array([number if number < len(texts) else None for number in numbers], pa.int32())
    return texts.take(places)


def _ends(clients: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Address and port; "": null."""
    address, port = pc.extract_regex(pa.array(clients, pa.string()), _ENDPOINT).flatten()
    return address, port.cast(pa.int32())


def _history(names: Names, rows: Sequence[Any]) -> list[pa.Array]:
    seq, number, at, client, service, source, target, cause, *counts, server, error, probes, silence_s = zip(
        *rows, strict=True
    )
    return [
        seq, number, at, *_ends(client), names.service(service), _named(names.states, source),
        _named(names.states, target), _named(names.causes, cause), *counts, server, _errors(error), probes, silence_s,
    ]  # fmt: skip


def _attaches(names: Names, rows: Sequence[Any]) -> list[pa.Array]:
    seq, at, way, server, target, step, number, client, service, found, error, answer_ms, first_ms = zip(
        *rows, strict=True
    )
    return [
        seq, at, way, _or_null(server), target, _or_null(step), _or_null(number), *_ends(client),
        names.service(service), [State(one).label if one else None for one in found],
        _errors(error), answer_ms, first_ms,
    ]  # fmt: skip


def _snapshots(names: Names, rows: Sequence[Any]) -> list[Any]:
    seq, at, span_ms, service, rules, counts = zip(*rows, strict=True)
    maps = [list(json.loads(one).items()) for one in counts]
    return [seq, at, span_ms, names.service(service), _or_null(rules), maps]


def _audit(_names: Names, rows: Sequence[Any]) -> list[Any]:
    *columns, error = zip(*rows, strict=True)
    return [*columns, _or_null(error)]


def _errors(numbers: Sequence[int | None]) -> list[str | None]:
    return [errorcode.get(number, str(number)) if number else None for number in numbers]


def _or_null(values: Sequence[Any]) -> list[Any]:
    return [value or None for value in values]


@dataclass(frozen=True, slots=True)
class Source:
    """tables: of the database, in order, which have its rows from one on. last: the number of the last row that the
    database was given, though it may be removed by now. columns: of a batch of their rows. mark: the column by which,
    with its time, a row is told from one of another database that has its number."""

    name: str
    schema: pa.Schema
    tables: Callable[[Connection, int], Sequence[sa.Table | sa.Subquery]]
    last: Callable[[Connection], int]
    columns: Callable[[Names, Sequence[Any]], list[Any]]
    mark: str

    def table(self, names: Names, rows: Sequence[Any]) -> pa.Table:
        """Rows of the database as `schema` has them."""
        columns = zip(self.columns(names, rows), self.schema, strict=True)
        arrays = [one if isinstance(one, pa.Array) else pa.array(one, field.type) for one, field in columns]
        return pa.table(arrays, schema=self.schema)


def parts_after(connection: Connection, after: int) -> list[sa.Table]:
    """The parts of the history with rows from `after` on."""
    of = history_parts.c
    query = sa.select(of.first, of.layout).where(sa.or_(of.last.is_(None), of.last >= after)).order_by(of.first)
    return [history_part(first, layout) for first, layout in connection.execute(query)]


def _parts(connection: Connection, after: int) -> list[sa.Subquery]:
    """Each as one of the last layout."""
    return [sa.select(*columns_of_part(part)).subquery(part.name) for part in parts_after(connection, after)]


def _appended(table: sa.Table, schema: pa.Schema, columns: Callable[[Names, Sequence[Any]], list[Any]],
              mark: str) -> Source:  # fmt: skip
    return Source(table.name, schema, lambda _connection, _after: [table],
                  lambda connection: get_meta(connection, table.name) or 0, columns, mark)  # fmt: skip


SOURCES: Final = (
    Source("history", HISTORY, _parts, last_row, _history, "id"),
    _appended(attaches, ATTACHES, _attaches, "id"),
    _appended(snapshots, SNAPSHOTS, _snapshots, "span_ms"),
    _appended(audit, AUDIT, _audit, "status"),
)


def row_at(connection: Connection, source: Source, seq: int) -> list[int] | None:
    """[mark, at] of a row that is still there."""
    for table in source.tables(connection, seq):
        query = sa.select(table.c[source.mark], table.c.at).where(table.c.seq == seq)
        found = connection.execute(query).first()
        if found is not None:
            return list(found)
    return None


def chunks_after(connection: Connection, source: Source, first: int) -> Iterator[tuple[int, Iterator[list[Any]]]]:
    """(number of its first row, batches of its rows) of all that is committed from row `first` on, CHUNK_ROWS each."""
    batches = _batches(connection, source, first)
    while (batch := next(batches, None)) is not None:
        begun = batch

        def some(batch: list[Any] = begun) -> Iterator[list[Any]]:
            rows = len(batch)
            yield batch
            while rows < CHUNK_ROWS and (more := next(batches, None)) is not None:
                rows += len(more)
                yield more

        yield begun[0].seq, some()


def _batches(connection: Connection, source: Source, first: int) -> Iterator[list[Any]]:
    """What the daemon removes meanwhile is not among them."""
    for table in source.tables(connection, first):
        while True:
            query = sa.select(table).where(table.c.seq >= first).order_by(table.c.seq).limit(BATCH_ROWS)
            try:
                rows = connection.execute(query).fetchall()
                connection.rollback()  # PostgreSQL: a transaction would keep the part from being removed until its end
            except (OperationalError, ProgrammingError):
                connection.rollback()
                if table.name in {one.name for one in source.tables(connection, 0)}:
                    raise
                break
            if rows:
                yield list(rows)
                first = rows[-1].seq + 1
            if len(rows) < BATCH_ROWS:
                break
