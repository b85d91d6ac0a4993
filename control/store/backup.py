# SPDX-License-Identifier: Apache-2.0
"""A copy of SQLite's file while a daemon writes to it, and such a copy put in the place of a database."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sqlalchemy.exc import SQLAlchemyError

from control.store import file
from control.store.database import StoreError, open_engine, parse_url, reason
from control.store.owner import LEASE_S, LeaseRunsError, OwnedError, Owner, Ownership
from control.store.schema import REVISION

WAIT_S: Final = 5.0
"""For another process's lock."""

_COLUMN: Final = r'("\w+"|CAST\(NULL AS \w+(\(\d+\))?\) AS "\w+")'
_PART: Final = rf"SELECT {_COLUMN}(, {_COLUMN})* FROM history_\d+"
_OURS: Final = re.compile(rf"CREATE (TABLE|INDEX|UNIQUE INDEX) |CREATE VIEW history AS {_PART}( UNION ALL {_PART})*\Z")
"""What makes a table, an index, or the view of the history. Another view could be read for ever, in a table's place."""


def copy(path: str, to: str) -> tuple[str, int]:
    """Write the database to a new file, as it is at one moment; its revision, and how many sleep by it. A daemon may
    write meanwhile: a reader of the log keeps no writer waiting, and one step, within one transaction, begins never
    again. Raises StoreError, and OSError where there is no room."""
    if not Path(path).is_file():
        raise StoreError(f"there is no database {path}: no daemon has run with this configuration")
    with _told(path, to), closing(_connect(to, "rwc")) as made:
        made.execute("PRAGMA synchronous=OFF")  # only what is made of it is to last
        with closing(_connect(path)) as source:
            source.backup(made)
        made.execute("PRAGMA journal_mode=DELETE")
        revision = _revision_of_good(made, path)
        return revision, made.execute("SELECT count(*) FROM sleeping").fetchone()[0]


def make_ready(path: str, revision: str) -> int:
    """Check a copy that was made elsewhere, by whomever, and let it belong to whichever daemon opens it; how many API
    tokens are good by it, unless they have expired. Raises StoreError, and OSError where there is no room."""
    with _told(path, path), closing(_connect(path)) as copied:
        copied.execute("PRAGMA trusted_schema=OFF")
        for (sql,) in copied.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"):
            if not _OURS.match(str(sql)):
                raise StoreError("the database in the backup has views, triggers or virtual tables, and Roost's have "
                                 "none but a view of the history")  # fmt: skip
        if _revision_of_good(copied, path) != revision or revision > REVISION:
            raise StoreError("the database in the backup has another revision than the backup says")
        copied.execute("PRAGMA journal_mode=DELETE")
        copied.execute("DELETE FROM owner")
        if not copied.execute("SELECT 1 FROM sqlite_schema WHERE name = 'tokens'").fetchone():
            return 0  # of an earlier version
        return int(copied.execute("SELECT count(*) FROM tokens WHERE revoked_at IS NULL").fetchone()[0])


def refuse_running(path: str, me: Owner) -> bool:
    """Whether the bytes of this database are wrong: a daemon that has it waits for another one in its place. Raises
    StoreError where a daemon has it and it is good, or it cannot be known whether one has."""
    engine = open_engine(parse_url(f"sqlite:///{path}"), WAIT_S, writer=False)
    try:
        with engine.connect() as connection:
            Ownership(me, take_over=True).refuse_another(connection)
    except (LeaseRunsError, OwnedError) as error:
        if _is_damaged(path):
            return True
        wait = f": stop it; if it is dead, wait {LEASE_S:g} s" if isinstance(error, LeaseRunsError) else ""
        raise StoreError(f"{error}{wait}") from None
    except SQLAlchemyError as error:
        if not _is_worthless(error):
            raise StoreError(f"it cannot be known whether a daemon uses {path}: {reason(error)}") from None
        return file.is_damage(error)
    finally:
        engine.dispose()
    return False


def _is_damaged(path: str) -> bool:
    try:
        file.check(path)
    except file.DamagedError:
        return True
    return False


def put(fresh: str, path: str, damaged: bool = False) -> str:
    """Let the path name this database, which is synced, and lies beside it, in place of one that no daemon has; where
    that one is now, "": there was none. At each moment the path names the one or the other, whole: the log of the old
    one, which SQLite would take for the new one's, is written into it first. damaged: the old one is, and its log is
    put beside it as it is. Raises StoreError, OSError."""
    aside = ""
    if os.path.lexists(path):
        aside = f"{path}.replaced-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        if damaged:
            _part(path, aside)
        else:
            _fold(path, aside)
        Path(aside).hardlink_to(path)
    for suffix in file.SUFFIXES[1:]:
        Path(path + suffix).unlink(missing_ok=True)
    Path(fresh).rename(path)
    sync(Path(path).parent)
    return aside


def sync(path: Path) -> None:
    """What was done to a directory, or written to a file, outlasts the machine."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _fold(path: str, aside: str) -> None:
    """Write the log into its database."""
    try:
        with closing(_connect(path)) as old:
            busy = old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.Error as error:
        if not file.is_damage(error):
            raise StoreError(f"{path}: {reason(error)}") from None
        _part(path, aside)
        return
    if busy:
        raise StoreError(f"another process reads {path}: `roost api`, an export? End it first")


def _part(path: str, aside: str) -> None:
    """Let the log go with its damaged database."""
    with contextlib.suppress(FileNotFoundError):
        Path(path + "-wal").rename(aside + "-wal")


def _revision_of_good(connection: sqlite3.Connection, path: str) -> str:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StoreError(f"the database {path} is damaged ({' '.join(found.split())})")
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else ""


def _is_worthless(error: SQLAlchemyError) -> bool:
    """Whether no daemon can have the file, since it is no database, or has no owner."""
    return file.is_damage(error) or "no such table" in str(error)


@contextlib.contextmanager
def _told(path: str, writes: str) -> Iterator[None]:
    """SQLite's errors as those that commands say."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), writes) from None
        raise StoreError(f"{path} cannot be copied: {reason(error)}") from None


def _connect(path: str, mode: str = "rw") -> sqlite3.Connection:
    where = f"file:{quote(path)}?mode={mode}"
    return sqlite3.connect(where, uri=True, timeout=WAIT_S, isolation_level=None)
