# SPDX-License-Identifier: Apache-2.0
"""Rows of the history as an export has them: in Arrow's tables, numbers in them as the texts that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError, ProgrammingError

from control.core.states import Cause, State
from control.store.schema import history_part, history_parts, services

VERSION: Final = 1
"""Of SCHEMA."""

SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("id", pa.int64()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("address", pa.string()),
        ("port", pa.int32()),
        ("service", pa.string()),
        ("from", pa.string()),
        ("to", pa.string()),
        ("cause", pa.string()),
        ("rx_bytes", pa.int64()),
        ("tx_bytes", pa.int64()),
        ("gap_ms", pa.int64()),
    ]
)

RUNS: Final = pa.schema(
    [
        ("run", pa.int64()),
        ("instance", pa.string()),
        ("host", pa.string()),
        ("version", pa.string()),
        ("started", pa.timestamp("ms", tz="UTC")),
        ("first", pa.int64()),
        ("ended", pa.timestamp("ms", tz="UTC")),
        ("dropped", pa.int64()),
    ]
)

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

    def table(self, rows: list[Any]) -> pa.Table:
        """Rows of a part of the history as SCHEMA has them."""
        seq, number, at, client, service, source, target, cause, rx, tx, gap = zip(*rows, strict=True)
        ends = pc.extract_regex(pa.array(client, pa.string()), _ENDPOINT)
        columns = [
            pa.array(seq, pa.int64()),
            pa.array(number, pa.int64()),
            pa.array(at, pa.timestamp("ms", tz="UTC")),
            ends.field("address"),
            ends.field("port").cast(pa.int32()),
            _named(self.services, service),
            _named(self.states, source),
            _named(self.states, target),
            _named(self.causes, cause),
            *(pa.array(column, pa.int64()) for column in (rx, tx, gap)),
        ]
        return pa.table(columns, schema=SCHEMA)


def _texts(by_number: Mapping[int, str]) -> pa.Array:
    return pa.array([by_number.get(number) for number in range(max(by_number, default=0) + 1)], pa.string())


def _named(texts: pa.Array, numbers: tuple[int, ...]) -> pa.Array:
    """A number without a text, of a service that nobody knows any more, stays empty."""
    places = pa.array([number if number < len(texts) else None for number in numbers], pa.int32())
    return texts.take(places)


def parts_after(connection: Connection, after: int) -> list[int]:
    """The first rows of the parts with rows from `after` on."""
    parts = history_parts.c
    query = sa.select(parts.first).where(sa.or_(parts.last.is_(None), parts.last >= after)).order_by(parts.first)
    return list(connection.scalars(query))


def row_at(connection: Connection, seq: int) -> list[int] | None:
    """[id, at] of a row that is still there."""
    for first in reversed([first for first in parts_after(connection, seq) if first <= seq]):
        part = history_part(first).c
        found = connection.execute(sa.select(part.id, part.at).where(part.seq == seq)).first()
        if found is not None:
            return list(found)
    return None


def chunks_after(connection: Connection, first: int) -> Iterator[tuple[int, Iterator[list[Any]]]]:
    """(number of its first row, batches of its rows) of all that is committed from row `first` on, CHUNK_ROWS each."""
    batches = _batches(connection, first)
    while (batch := next(batches, None)) is not None:
        begun = batch

        def some(batch: list[Any] = begun) -> Iterator[list[Any]]:
            rows = len(batch)
            yield batch
            while rows < CHUNK_ROWS and (more := next(batches, None)) is not None:
                rows += len(more)
                yield more

        yield begun[0][0], some()


def _batches(connection: Connection, first: int) -> Iterator[list[Any]]:
    """What the daemon removes meanwhile is not among them."""
    for part in parts_after(connection, first):
        table = history_part(part)
        while True:
            query = sa.select(table).where(table.c.seq >= first).order_by(table.c.seq).limit(BATCH_ROWS)
            try:
                rows = connection.execute(query).fetchall()
            except (OperationalError, ProgrammingError):
                connection.rollback()
                if part in parts_after(connection, 0):
                    raise
                break
            if rows:
                yield list(rows)
                first = rows[-1][0] + 1
            if len(rows) < BATCH_ROWS:
                break
