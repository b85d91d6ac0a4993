# SPDX-License-Identifier: Apache-2.0
"""Tables to which rows are appended: what servers asked for, snapshots, and which changes were asked for. Rows are
numbered without a gap in the order in which they are committed, removed after [history] keep_days, and earlier where
those of a table take more than keep_bytes. Everything is within a transaction or a reader's connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from control.store.database import get_meta, set_meta
from control.store.schema import attaches, audit, snapshots
from control.store.statements import insert_rows

LOOKED_AT: Final = 1_000_000
"""Among so many of the last rows refusals are looked for: there is no index of them, and most servers are linked."""

SNAPSHOTS: Final = 10_000
"""Rows that are read at once, some 20 MB of Python's."""


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


class Snapshot(NamedTuple):
    """A row of `snapshots` without its number."""

    at: int
    span_ms: int
    service: int
    rules: str
    counts: str


class Audit(NamedTuple):
    """A row of `audit` without its number."""

    at: int
    who: str
    origin: str
    method: str
    path: str
    body: str
    status: int
    error: str


Row = Attach | Snapshot | Audit

TABLES: Final[Mapping[type[Row], sa.Table]] = MappingProxyType({Attach: attaches, Snapshot: snapshots, Audit: audit})

ROW_BYTES: Final[Mapping[type[Row], int]] = MappingProxyType({Attach: 160, Snapshot: 600, Audit: 200})
"""What a row and its place in the index take, about, in SQLite's file."""


def write(connection: Connection, rows: Sequence[Row]) -> None:
    """Add them, those of a table in this order. In `meta`, the last number that was given stands under its name."""
    for kind, table in TABLES.items():
        if some := [row for row in rows if type(row) is kind]:
            last = get_meta(connection, table.name) or 0
            numbered = [(seq, *row) for seq, row in enumerate(some, last + 1)]
            insert_rows(connection, table, ("seq", *kind._fields), numbered)
            set_meta(connection, table.name, last + len(some))


def recent_attaches(connection: Connection, limit: int, failed: bool) -> list[Attach]:
    """The last ones, oldest first. failed: those among the last LOOKED_AT that were refused."""
    query = sa.select(*(attaches.c[name] for name in Attach._fields)).order_by(attaches.c.seq.desc()).limit(limit)
    if failed:
        newest = get_meta(connection, attaches.name) or 0
        query = query.where(attaches.c.error != 0, attaches.c.seq > newest - LOOKED_AT)
    return [Attach(*row) for row in connection.execute(query)][::-1]


def recent_audit(connection: Connection, limit: int, who: str, refused: bool) -> list[Audit]:
    """The last ones, oldest first. who, refused: those among the last LOOKED_AT that this one asked for ("": anyone),
    and that were not done."""
    query = sa.select(*(audit.c[name] for name in Audit._fields)).order_by(audit.c.seq.desc()).limit(limit)
    if who or refused:
        query = query.where(audit.c.seq > (get_meta(connection, audit.name) or 0) - LOOKED_AT)
    if who:
        query = query.where(audit.c.who == who)
    if refused:
        query = query.where(audit.c.status >= 400)
    # What the API refuses is told to the daemon some time later, several at once.
    return sorted((Audit(*row) for row in connection.execute(query).all()[::-1]), key=lambda row: row.at)


def recent_snapshots(connection: Connection, moments: int) -> list[Snapshot]:
    """Those of the last moments at which some were taken, oldest first; the last SNAPSHOTS of them at most."""
    at = sa.select(snapshots.c.at).distinct().order_by(snapshots.c.at.desc()).limit(moments)
    query = sa.select(*(snapshots.c[name] for name in Snapshot._fields)).where(snapshots.c.at.in_(at))
    return [Snapshot(*row) for row in connection.execute(query.order_by(snapshots.c.seq.desc()).limit(SNAPSHOTS))][::-1]


def prune(connection: Connection, cutoff: int, keep_bytes: int, rows: int) -> bool:
    """Of each table, remove so many of those from before `cutoff`, ms since 1970, or of the oldest where all take more
    than keep_bytes (0: no limit); whether there may be more."""
    more = False
    for kind, table in TABLES.items():
        past = (get_meta(connection, table.name) or 0) - keep_bytes // ROW_BYTES[kind] if keep_bytes else 0
        for old in (table.c.at < cutoff, table.c.seq <= past):
            some = sa.select(table.c.seq).where(old).limit(rows)
            more |= connection.execute(sa.delete(table).where(table.c.seq.in_(some))).rowcount == rows
    return more
