# SPDX-License-Identifier: Apache-2.0
"""The rows of `attaches`: numbered without a gap in the order in which they are committed, removed after
[history] keep_days, and earlier where they take more than keep_bytes. Everything is within a transaction or a reader's
connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from control.store.database import get_meta, set_meta
from control.store.schema import attaches
from control.store.statements import insert_rows

LAST: Final = "attaches"
"""In `meta`: the last number that was given."""

ROW_BYTES: Final = 160
"""What a row and its place in the index take, about, in SQLite's file."""


class Attach(NamedTuple):
    """A row of `attaches` without its number."""

    at: int
    way: str
    server: str
    target: str
    step: str
    id: int
    client: str
    service: int
    found: int
    error: int
    answer_ms: int
    first_ms: int | None


_COLUMNS: Final = ("seq", *Attach._fields)


def write(connection: Connection, rows: Sequence[Attach]) -> None:
    """Add them, in this order."""
    last = get_meta(connection, LAST) or 0
    insert_rows(connection, attaches, _COLUMNS, [(seq, *row) for seq, row in enumerate(rows, last + 1)])
    set_meta(connection, LAST, last + len(rows))


def recent(connection: Connection, limit: int, failed: bool) -> list[Attach]:
    """The last ones, oldest first. failed: of those that were refused."""
    query = sa.select(*(attaches.c[name] for name in Attach._fields)).order_by(attaches.c.seq.desc()).limit(limit)
    if failed:
        query = query.where(attaches.c.error != 0)
    return [Attach(*row) for row in connection.execute(query)][::-1]


def prune(connection: Connection, cutoff: int, keep_bytes: int, rows: int) -> bool:
    """Remove so many of those that asked before `cutoff`, ms since 1970, or of the oldest where all take more than
    keep_bytes (0: no limit); whether there may be more."""
    past = (get_meta(connection, LAST) or 0) - keep_bytes // ROW_BYTES if keep_bytes else 0
    removed = 0
    for old in (attaches.c.at < cutoff, attaches.c.seq <= past):
        some = sa.select(attaches.c.seq).where(old).limit(rows)
        removed = max(removed, connection.execute(sa.delete(attaches).where(attaches.c.seq.in_(some))).rowcount)
    return removed == rows
