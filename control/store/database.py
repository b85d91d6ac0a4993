# SPDX-License-Identifier: Apache-2.0
"""How the database is opened, and what SQLite and PostgreSQL spell differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection, Engine

from control.store.schema import meta

READ_CHUNK: Final = 500
"""Keys in one SELECT."""


class StoreError(Exception):
    """The database cannot be read or written; the message says which and why."""


def chunks(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """As many at a time as a statement takes."""
    for start in range(0, len(keys), READ_CHUNK):
        yield keys[start : start + READ_CHUNK]


def upsert(connection: Connection, table: sa.Table) -> sa.Insert:
    """INSERT ... ON CONFLICT DO UPDATE, which SQLite and PostgreSQL spell alike but SQLAlchemy keeps apart."""
    primary = [column.name for column in table.primary_key]
    changed = [column.name for column in table.columns if column.name not in primary]
    if connection.dialect.name == "sqlite":
        lite = sqlite.insert(table)
        return lite.on_conflict_do_update(index_elements=primary, set_={c: lite.excluded[c] for c in changed})
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # 3 MB that only its users are to pay

        post = postgresql.insert(table)
        return post.on_conflict_do_update(index_elements=primary, set_={c: post.excluded[c] for c in changed})
    raise StoreError(f"roost keeps its store in SQLite or PostgreSQL, not in {connection.dialect.name}")


def get_meta(connection: Connection, key: str) -> int | None:
    """A number that the store keeps about itself; None: it has none yet."""
    return connection.scalar(sa.select(meta.c.value).where(meta.c.key == key))


def set_meta(connection: Connection, key: str, value: int) -> None:
    """What `get_meta` says from now on."""
    if not connection.execute(sa.update(meta).where(meta.c.key == key).values(value=value)).rowcount:
        connection.execute(sa.insert(meta).values(key=key, value=value))


def open_engine(url: sa.URL, timeout_s: float, writer: bool) -> Engine:
    """Connections for the writer, or for reading alone; timeout_s: how long SQLite waits for a lock."""
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, isolation_level="READ COMMITTED" if writer else "AUTOCOMMIT", pool_pre_ping=True)
    arguments: dict[str, Any] = {}
    if not writer:
        # Autocommit: a transaction left open would go on seeing yesterday's rows. mode=rw: never make the file, since
        # an empty one, made by a look at it, would hide that it is missing.
        arguments["isolation_level"] = "AUTOCOMMIT"
        url = url.set(database=f"file:{quote(url.database or '')}", query={**url.query, "mode": "rw", "uri": "true"})
    engine = sa.create_engine(url, connect_args={"timeout": timeout_s, "check_same_thread": False}, **arguments)

    @sa.event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL" if writer else "PRAGMA query_only=ON")
        # KiB. The default, 2 MB of pages for each connection, is half of what a hundred thousand clients cost the
        # daemon, and the kernel caches the file anyway.
        connection.execute("PRAGMA cache_size=-512")

    return engine
