# SPDX-License-Identifier: Apache-2.0
"""How rows are written: by the driver itself where there are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from control.store.database import upsert
from control.store.schema import KEYED, Keyed, tags

STATEMENT_ROWS: Final = 50
"""Rows in one INSERT: fifteen parameters each at most, and 999 are what any SQLite takes."""


def write_keyed(connection: Connection, changed: Mapping[Keyed, bytes | None]) -> None:
    """What stands in these rows from now on; None: nothing."""
    for kind, (table, form) in KEYED.items():
        columns = [column.name for column in table.columns]
        rows = {key: packed for (where, key), packed in changed.items() if where == kind}
        if forgotten := [{"k": key} for key, packed in rows.items() if packed is None]:
            connection.execute(sa.delete(table).where(table.c[columns[0]] == sa.bindparam("k")), forgotten)
            if kind == "names":
                connection.execute(sa.delete(tags).where(tags.c.name == sa.bindparam("k")), forgotten)
        kept = [(key, *form.unpack(packed)) for key, packed in rows.items() if packed is not None]
        if kept:
            connection.execute(upsert(connection, table), [dict(zip(columns, row, strict=True)) for row in kept])


def insert_rows(
    connection: Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    """By the driver itself: SQLAlchemy's handling of parameters takes 6 us a row, as much as all the rest of it. With
    SQLite many rows a statement: a third less again."""
    head, row = _insert_text(table, tuple(columns), connection.dialect)
    if connection.dialect.name == "postgresql":
        _copy(connection, f"{head.replace('INSERT INTO', 'COPY', 1)} FROM STDIN", rows)
        return
    whole = len(rows) - len(rows) % STATEMENT_ROWS
    if whole:
        many = f"{head} VALUES {', '.join([row] * STATEMENT_ROWS)}"
        for at in range(0, whole, STATEMENT_ROWS):
            connection.exec_driver_sql(many, tuple(chain.from_iterable(rows[at : at + STATEMENT_ROWS])))
    if rest := list(rows[whole:]):
        connection.exec_driver_sql(f"{head} VALUES {row}", rest)


@lru_cache(maxsize=16)
def _insert_text(table: sa.Table, columns: tuple[str, ...], dialect: sa.Dialect) -> tuple[str, str]:
    """INSERT INTO with the columns' names, and the values of a row in brackets. SQLAlchemy takes 0.4 ms for it."""
    compiled = sa.insert(table).inline().compile(dialect=dialect, column_keys=columns)
    head, _, row = str(compiled).partition(" VALUES ")
    return head, row


def _copy(connection: Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """PostgreSQL's way for many rows: two and a half times as many a second as by INSERT."""
    with closing(connection.connection.cursor()) as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)
