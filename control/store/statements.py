# SPDX-License-Identifier: Apache-2.0
"""Rows in their packed forms, and what the database is told to make of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from control.store.database import chunks, upsert
from control.store.schema import HISTORY, KEY, KEYED, MAPPED, Keyed, address_text, history_part, sleeping

STATEMENT_ROWS: Final = 50
"""Rows in one INSERT: fourteen parameters each at most, and 999 are what any SQLite takes."""
_HISTORY_IPV4: Final = struct.Struct("=QQ 12s4B16x2B2x HBBB7xQQQ")  # schema.HISTORY, its key taken apart
_IPV4_KEY: Final = struct.Struct("!12x4B12x4BHH")
SLEEPING_COLUMNS: Final = [column.name for column in sleeping.columns]
HISTORY_COLUMNS: Final = [column.name for column in history_part(0).columns]

_IDS: Final = sa.select(sleeping.c.key, sleeping.c.id).where(sleeping.c.key.in_(sa.bindparam("keys", expanding=True)))
FORGET = sa.delete(sleeping).where(sleeping.c.key == sa.bindparam("k"), sleeping.c.id == sa.bindparam("i"))

FORGET_STALE = sa.delete(sleeping).where(
    sleeping.c.key == sa.bindparam("k"), sleeping.c.generation == sa.bindparam("g")
)


def write_keyed(connection: Connection, changed: Mapping[Keyed, bytes | None]) -> None:
    """What stands in these rows from now on; None: nothing."""
    for kind, (table, form) in KEYED.items():
        columns = [column.name for column in table.columns]
        rows = {key: packed for (where, key), packed in changed.items() if where == kind}
        if forgotten := [{"k": key} for key, packed in rows.items() if packed is None]:
            connection.execute(sa.delete(table).where(table.c[columns[0]] == sa.bindparam("k")), forgotten)
        kept = [(key, *form.unpack(packed)) for key, packed in rows.items() if packed is not None]
        if kept:
            connection.execute(upsert(connection, table), [dict(zip(columns, row, strict=True)) for row in kept])


def insert_history(connection: Connection, part: sa.Table, first: int, values: Sequence[tuple[Any, ...]]) -> None:
    """Rows of history_values, numbered from `first` on."""
    insert_rows(connection, part, HISTORY_COLUMNS, [(first + index, *row) for index, row in enumerate(values)])


def insert_rows(
    connection: Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """By the driver itself: SQLAlchemy's handling of parameters takes 6 us a row, as much as all the rest of it. With
    SQLite many rows a statement: a third less again."""
    compiled = sa.insert(table).inline().compile(dialect=connection.dialect, column_keys=columns)
    head, _, row = str(compiled).partition(" VALUES ")
    if connection.dialect.name == "postgresql":
        _copy(connection, f"{head.replace('INSERT INTO', 'COPY', 1)} FROM STDIN", rows)
        return
    whole = len(rows) - len(rows) % STATEMENT_ROWS
    if whole:
        many = f"{head} VALUES {', '.join([row] * STATEMENT_ROWS)}"
        for at in range(0, whole, STATEMENT_ROWS):
            connection.exec_driver_sql(many, tuple(chain.from_iterable(rows[at : at + STATEMENT_ROWS])))
    if rest := rows[whole:]:
        _run(connection, compiled, columns, rest)


def _copy(connection: Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """PostgreSQL's way for many rows: two and a half times as many a second as by INSERT."""
    with closing(connection.connection.cursor()) as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)


def run_many(
    connection: Connection, statement: sa.Insert | sa.Delete, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """A statement for each of these rows, whose parameters are these columns, likewise by the driver itself."""
    _run(connection, statement.compile(dialect=connection.dialect, column_keys=columns), columns, rows)


def _run(connection: Connection, compiled: Any, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    if not compiled.positional:
        connection.exec_driver_sql(str(compiled), [dict(zip(columns, row, strict=True)) for row in rows])
        return
    places = [columns.index(name) for name in compiled.positiontup]
    in_order = places == list(range(len(columns)))
    connection.exec_driver_sql(
        str(compiled), list(rows) if in_order else [tuple(row[at] for at in places) for row in rows]
    )


def texts_of(key: bytes) -> tuple[str, str]:
    """Client and local address of a 4-tuple, address:port, for people."""
    if key.startswith(MAPPED) and key[16:28] == MAPPED:
        a, b, c, d, e, f, g, h, client_port, local_port = _IPV4_KEY.unpack(key)
        return f"{a}.{b}.{c}.{d}:{client_port}", f"{e}.{f}.{g}.{h}:{local_port}"
    client, local, client_port, local_port = KEY.unpack(key)
    return address_text(client, client_port), address_text(local, local_port)


def history_values(connection: Connection, packed: bytes) -> list[tuple[Any, ...]]:
    """Of rows that are packed, one after the other: in the order of the columns behind the row's number."""
    # Most clients are IPv4, and this is done for each transition there ever is: 0.6 us, 1.1 by way of KEY and
    # address_text.
    values = [
        (
            number,
            at,
            f"{a}.{b}.{c}.{d}:{high << 8 | low}" if prefix == MAPPED else "",
            service,
            source,
            target,
            cause,
            rx,
            tx,
            gap,
        )
        for number, at, prefix, a, b, c, d, high, low, service, source, target, cause, rx, tx, gap in (
            _HISTORY_IPV4.iter_unpack(packed)
        )
    ]
    odd = {
        index: HISTORY.unpack_from(packed, index * HISTORY.size)
        for index, row in enumerate(values)
        if not (row[0] and row[2])
    }
    # The engine does not know the number of a SLEEP connection that it closes without reading its record.
    ids = ids_of(connection, [row[2] for row in odd.values() if not row[0]])
    for index, (number, at, key, *rest) in odd.items():
        client, _local, port, _local_port = KEY.unpack(key)
        values[index] = (number or ids.get(key, 0), at, address_text(client, port), *rest)
    return values


def ids_of(connection: Connection, keys: Sequence[bytes]) -> dict[bytes, int]:
    """key -> number of those that have a row in `sleeping`."""
    found: dict[bytes, int] = {}
    for chunk in chunks(keys):
        found.update((row[0], row[1]) for row in connection.execute(_IDS, {"keys": chunk}))
    return found
