# SPDX-License-Identifier: Apache-2.0
"""The tables, made or brought to what they are today (migrations/)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from control.store.database import StoreError, get_meta, set_meta
from control.store.schema import REVISION, SCHEMA_VERSION, metadata, owner, revisions

log = logging.getLogger("roost.store")

_LOCK: str = "SELECT pg_advisory_xact_lock(7236840)"


def prepare_tables(connection: Connection, ask: Callable[[Connection], None]) -> bool:
    """Make them, or upgrade them, in the transaction that is open; whether they are new. ask: called before they are
    upgraded, raises StoreError where they are not to be. Raises StoreError when a later version made them, or when
    SQLite's file has tables that are another program's alone."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_LOCK)  # two daemons that start at once; SQLite's BEGIN IMMEDIATE is one
    there = sa.inspect(connection)
    version = get_meta(connection, "schema") if there.has_table("meta") else None
    if version is None:
        others = sorted(set(there.get_table_names()) - set(metadata.tables))
        if others and connection.dialect.name == "sqlite":  # a server's database may be shared
            raise StoreError(
                f"the database is another program's, with tables of its own ({', '.join(others[:3])}): put roost's "
                "back, or give [paths] database another place"
            )
        metadata.create_all(connection)
        set_meta(connection, "schema", SCHEMA_VERSION)
        connection.execute(sa.insert(revisions).values(version_num=REVISION))
        return True
    found = connection.scalar(sa.select(revisions.c.version_num)) if there.has_table(revisions.name) else None
    if found == REVISION:
        return False
    if found is None and version >= SCHEMA_VERSION:
        raise StoreError(f"the database has schema {version}, this roost writes {SCHEMA_VERSION}")
    from control.store.migrations import CommandError, upgrade

    if there.has_table(owner.name):
        ask(connection)
    try:
        upgrade(connection)
    except CommandError:
        raise StoreError(f"the database has revision {found}, this roost writes {REVISION}") from None
    log.info("store: the database was brought from %s to revision %s",
             f"revision {found}" if found else f"schema {version}", REVISION)  # fmt: skip
    return False
