# SPDX-License-Identifier: Apache-2.0
"""How the database is opened, and what SQLite and PostgreSQL spell differently."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from appliance.paths import engine_library, how_to_install
from control.store.schema import meta

log = logging.getLogger("roost.store")

T = TypeVar("T")

TAKES_PACKED: Final = "takes_packed"
"""In the `info` of an SQLite connection that has the functions of cext/rows/."""

READ_CHUNK: Final = 500
"""Keys in one SELECT."""

SERVER_LIMITS: Final = {"connect_timeout": 3, "keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 3,
                        "tcp_user_timeout": 5000}  # fmt: skip
"""How long PostgreSQL's machine may be silent (libpq's parameters; s, the last one ms). A URL may say otherwise."""

GIVE_WAY_S: Final = 0.2
"""How long a change that can be made later waits for a lock: later requests for the same table queue behind it."""

_LOCKED: Final = "55P03"  # of PostgreSQL's errors: lock_not_available

_DRIVERS: Final = {"sqlite": "sqlite", "sqlite+pysqlite": "sqlite", "postgresql": "postgresql+psycopg",
                   "postgresql+psycopg": "postgresql+psycopg"}  # fmt: skip

_SECRET: Final = re.compile("password|secret|scram_", re.IGNORECASE)
"""In names of libpq's parameters: password, sslpassword, oauth_client_secret, scram_client_key, scram_server_key."""


class StoreError(Exception):
    """The database cannot be read or written; the message says which and why."""


def chunks(keys: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many at a time as a statement takes."""
    for start in range(0, len(keys), READ_CHUNK):
        yield keys[start : start + READ_CHUNK]


def places(database: str, values: Sequence[Any]) -> str:
    """Of so many values in a statement that is given to the driver itself."""
    return ", ".join(["?" if database == "sqlite" else "%s"] * len(values))


def fetch(connection: Connection, text: str, values: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """The rows of a query that is given to SQLite itself: where none was made just before, SQLAlchemy takes 0.1 ms
    more for each. Raises SQLAlchemyError, as it does."""
    if connection.dialect.name != "sqlite":
        return connection.exec_driver_sql(text, tuple(values)).all()
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    try:
        return driver.execute(text, values).fetchall()
    except sqlite3.Error as error:
        raise DBAPIError.instance(text, None, error, sqlite3.Error) from error


def upsert(connection: Connection, table: sa.Table) -> sa.Insert:
    """INSERT ... ON CONFLICT DO UPDATE, which SQLite and PostgreSQL spell alike but SQLAlchemy keeps apart."""
    primary = [column.name for column in table.primary_key]
    changed = [column.name for column in table.columns if column.name not in primary]
    if connection.dialect.name == "sqlite":
        lite = sqlite.insert(table)
        return lite.on_conflict_do_update(index_elements=primary, set_={c: lite.excluded[c] for c in changed})
    from sqlalchemy.dialects import postgresql  # 3 MB that only its users are to pay

    post = postgresql.insert(table)
    return post.on_conflict_do_update(index_elements=primary, set_={c: post.excluded[c] for c in changed})


_SET_META: Final = sa.update(meta).where(meta.c.key == sa.bindparam("of")).values(value=sa.bindparam("number"))


def get_meta(connection: Connection, key: str) -> int | None:
    """A number that the store keeps about itself; None: it has none yet."""
    return connection.scalar(sa.select(meta.c.value).where(meta.c.key == key))


def set_meta(connection: Connection, key: str, value: int) -> None:
    """What `get_meta` says from now on."""
    if not connection.execute(_SET_META, {"of": key, "number": value}).rowcount:
        connection.execute(sa.insert(meta).values(key=key, value=value))


def now_ms(database: str) -> sa.ColumnElement[int]:
    """The database's clock: ms since 1970. database: the name of its dialect."""
    if database == "sqlite":
        return sa.cast((sa.func.julianday("now") - 2440587.5) * 86_400_000, sa.BigInteger)
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1000, sa.BigInteger)


def begin_writing(connection: Connection) -> None:
    """Right after a transaction has begun: from here to its end there is no other writer (SQLite), so that what is read
    in between holds."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def may_be_idle(connection: Connection, seconds: float) -> None:
    """How long this transaction may wait for its next statement, in place of what `open_engine` was told."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {round(seconds * 1000)}")


def change_if_free(connection: Connection, change: Callable[[], None]) -> bool:
    """Drop tables or views, or leave it for later where another transaction has one of them locked, a reader's for
    instance; whether it was done. SQLite's readers lock nothing. What follows in the transaction waits GIVE_WAY_S for a
    lock, too."""
    if connection.dialect.name == "sqlite":
        change()
        return True
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(GIVE_WAY_S * 1000)}")
    try:
        with connection.begin_nested():
            change()
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", "") != _LOCKED:
            raise
        return False
    return True


def sessions_with(connection: Connection, *relations: str) -> list[str]:
    """Other sessions of PostgreSQL that have one of these tables or views locked: "4711 (pg_dump)", the process and the
    application's name."""
    text = (
        "SELECT DISTINCT pid, application_name FROM pg_locks JOIN pg_stat_activity USING (pid) JOIN pg_class ON "
        "relation = pg_class.oid WHERE granted AND pid <> pg_backend_pid() AND datname = current_database() "
        "AND relname = ANY(%s) ORDER BY pid"
    )
    found = connection.exec_driver_sql(text, (list(relations),))
    return [f"{row[0]} ({row[1]})" if row[1] else str(row[0]) for row in found]


def reason(error: Exception) -> str:
    """What a driver or this package says is wrong, on one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split()) or type(error).__name__


@lru_cache
def extension() -> str:
    """A path of the engine's library as it was when this was first asked: it may be replaced while the daemon runs, by
    one whose rows are laid out otherwise."""
    return f"/proc/self/fd/{os.open(engine_library(), os.O_RDONLY)}"


def parse_url(text: str) -> sa.URL:
    """An SQLAlchemy URL with the driver that roost uses. Raises StoreError when it names another, or is none."""
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        raise StoreError("the database's URL cannot be read; one is written postgresql://user:password@host/name, "
                         "with %40 for an @ in the password") from None  # fmt: skip
    if url.drivername not in _DRIVERS:
        raise StoreError(f"roost keeps its store in SQLite or PostgreSQL (by psycopg), not in {url.drivername}: write "
                         "a path, or a URL that begins with postgresql://")  # fmt: skip
    return url.set(drivername=_DRIVERS[url.drivername])


def without_secrets(url: sa.URL) -> str:
    """It as people write it, and without passwords, of which libpq takes some in the query: for logs, errors, and
    arguments of commands, which all users of a machine see."""
    secrets = [key for key in url.query if _SECRET.search(key)]
    driver = url.get_backend_name()
    return url._replace(drivername=driver, password=None).difference_update_query(secrets).render_as_string()


def open_engine(url: sa.URL, timeout_s: float, writer: bool, idle_s: float = 0) -> Engine:
    """Connections for the writer, or for reading alone; timeout_s: how long they wait for a lock. idle_s: so long a
    transaction may wait for its next statement before a server ends it, 0: as the server says. Raises StoreError when
    the driver is not installed."""
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, timeout_s, writer)
    limits = {name: value for name, value in SERVER_LIMITS.items() if name not in url.query}
    try:
        engine = sa.create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=limits)
    except ImportError as error:
        raise StoreError(f"PostgreSQL needs psycopg ({error}): {how_to_install('psycopg[binary]')}") from None
    # What is committed is believed, so it is synced whatever the server's default is.
    settings = [f"SET lock_timeout = {round(timeout_s * 1000)}", *(["SET synchronous_commit = on"] if writer else [])]
    if idle_s:
        settings.append(f"SET idle_in_transaction_session_timeout = {round(idle_s * 1000)}")

    @sa.event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        with closing(connection.cursor()) as cursor:
            for setting in settings:
                cursor.execute(setting)
        connection.commit()

    return engine


def _open_sqlite(url: sa.URL, timeout_s: float, writer: bool) -> Engine:
    # Autocommit: a transaction left open would go on seeing yesterday's rows. mode=rw: never make the file, since an
    # empty one, made by a look at it, would hide that it is missing (file.py makes it).
    arguments: dict[str, Any] = {} if writer else {"isolation_level": "AUTOCOMMIT"}
    url = url.set(database=f"file:{quote(url.database or '')}", query={**url.query, "mode": "rw", "uri": "true"})
    engine = sa.create_engine(url, connect_args={"timeout": timeout_s, "check_same_thread": False}, **arguments)

    @sa.event.listens_for(engine, "connect")
    def _on_connect(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL" if writer else "PRAGMA query_only=ON")
        if writer and hasattr(connection, "enable_load_extension"):  # a Python may be built without it
            connection.enable_load_extension(True)
            try:
                connection.execute("SELECT load_extension(?, 'sqlite3_roost_init')", (extension(),))
                record.info[TAKES_PACKED] = True
            except (sqlite3.Error, ImportError, OSError) as error:
                log.warning("store: %s: history is written more slowly, by Python", error)
            finally:
                connection.enable_load_extension(False)
        # KiB. The default, 2 MB of pages for each connection, is half of what a hundred thousand clients cost the
        # daemon, and the kernel caches the file anyway.
        connection.execute("PRAGMA cache_size=-512")

    return engine
