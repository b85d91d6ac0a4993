# SPDX-License-Identifier: Apache-2.0
"""SQLite's file: who may read it, whether its path still names it, and whether its bytes are good.

A file that was removed or replaced while it is open goes on for whoever has it open, and is gone for the next daemon.
So each connection notes which files it opened, and a row counts only while their paths name them; else all that the
connection sees is written to a new file. No file of a database is opened here but by SQLite: closing a descriptor of
it would give up SQLite's locks (https://www.sqlite.org/howtocorrupt.html, 2.2).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from control.store.database import StoreError, reason

SUFFIXES: Final = ("", "-wal", "-shm")
DEFAULT_DIRECTORY: Final = Path("/var/lib/roost")
_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_NO_ROOM: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_LITTLE: Final = 256 * 1024
"""Bytes: where fewer are free, SQLite cannot open a database: its log and its index take 64 KB at least."""

Identity = tuple[tuple[int, int] | None, ...]
"""Device and inode of each of SUFFIXES; None: there is none."""


class DamagedError(StoreError):
    """The file's bytes are wrong; the message says what to do."""


def note_files(engine: Engine, path: str) -> None:
    """Let each connection of this engine note which files it opened: connection.info["files"]."""

    @sa.event.listens_for(engine, "connect")
    def _on_connect(connection: Any, record: Any) -> None:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # by now there are all of them
        record.info["files"] = identity(path)


def refuse_others(engine: Engine, path: str, opened: Callable[[], Identity]) -> None:
    """Let no connection of this engine begin with another file than the one that was opened: with that one's log beside
    it, SQLite would write what the log holds into the other, and count it as kept."""

    def _on_connect(_connection: Any, _record: Any) -> None:  # nothing is read yet
        if is_another(path, opened()):
            raise sqlite3.OperationalError(f"{path} was removed or replaced")

    sa.event.listen(engine, "connect", _on_connect, insert=True)


def identity(path: str) -> Identity:
    """Of the files that the path names now."""
    found: list[tuple[int, int] | None] = []
    for suffix in SUFFIXES:
        try:
            status = os.stat(path + suffix)  # noqa: PTH116
        except OSError:
            found.append(None)
        else:
            found.append((status.st_dev, status.st_ino))
    return tuple(found)


def is_another(path: str, opened: Identity) -> bool:
    """Whether the path names another database than the one that was opened; (): none was yet."""
    return bool(opened) and identity(path)[0] != opened[0]


def problem_of_directory(path: str) -> str:
    """Why the directory of a database is neither there nor made: a sentence; "" if it is."""
    directory = Path(path).parent
    if directory.is_dir() or directory.parent.is_dir() or directory == DEFAULT_DIRECTORY:
        return ""
    missing = next(one for one in reversed(directory.parents) if not one.is_dir())
    return (
        f"cannot make the database {path}: there is no {missing}. Is [paths] database mistyped? Else make {directory}"
    )


def prepare(path: str, group: int = 0) -> bool:
    """Have the file, its owner's alone, since sequence numbers are in it; whether it is new. group: whose members may
    read it; 0: nobody. Raises StoreError."""
    if problem := problem_of_directory(path):
        raise StoreError(problem)
    directory = Path(path).parent
    try:
        directory.mkdir(mode=0o700, parents=directory == DEFAULT_DIRECTORY, exist_ok=True)
        new = False
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            new = True
        share(path, group)
        return new
    except OSError as error:
        raise StoreError(f"cannot make the database {path}: {error.strerror}") from None


def share(path: str, group: int) -> None:
    """Let the members of this group read it; 0: nobody. Raises OSError."""
    if Path(path).parent == DEFAULT_DIRECTORY:  # another may be shared
        _give(DEFAULT_DIRECTORY, 0o750 if group else 0o700, group)
    for suffix in SUFFIXES:  # SQLite makes the others like the first
        with contextlib.suppress(FileNotFoundError):
            _give(Path(path + suffix), 0o640 if group else 0o600, group)


def _give(path: Path, mode: int, group: int) -> None:
    if os.geteuid() == 0:  # who is not root has no group to give
        os.chown(path, -1, group)
    path.chmod(mode)


def is_damage(error: BaseException) -> bool:
    """Whether SQLite says by this error that the file's bytes are wrong."""
    return _code(error) in _DAMAGE


def _code(error: BaseException) -> int:
    """SQLite's primary result code; 0: it is no error of SQLite's."""
    cause = getattr(error, "orig", None) or error
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF if isinstance(cause, sqlite3.Error) else 0


def explained(error: Exception, path: str) -> Exception:
    """The same error, or one that says what to do about it: the bytes are wrong, or the disk is full."""
    if is_damage(error):
        return damaged(path, reason(error))
    if _code(error) in _NO_ROOM:
        with contextlib.suppress(OSError):
            directory = Path(path).parent
            if (free := shutil.disk_usage(directory).free) < _LITTLE:
                return StoreError(
                    f"{reason(error)}: the disk is full, {free // 1024} KB are free in {directory}; make room there, "
                    "or give [paths] database another place"
                )
    return error


def check(path: str, opened: Identity = ()) -> None:
    """Read the whole file, unless it is another than the one that was opened. Raises DamagedError; not when it cannot
    be read now."""
    try:
        with closing(_connect(path)) as connection:
            if is_another(path, opened):
                return
            connection.execute("PRAGMA cache_size=-512")
            _check(connection, path)
    except sqlite3.Error as error:
        if is_damage(error):
            raise damaged(path, str(error)) from None


def _check(connection: sqlite3.Connection, path: str) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise damaged(path, found)


def damaged(path: str, why: str) -> DamagedError:
    """With what to do about it."""
    return DamagedError(
        f"the database {path} is damaged ({' '.join(why.split())}): nothing goes to SLEEP, and clients whose records "
        "cannot be read cannot wake. Put a good copy in its place (roost restore --database); or move it away: then a "
        "new one is made, without those that are asleep"
    )


def rescue(path: str, opened: Identity, source: sqlite3.Connection, let_go: Callable[[], None]) -> list[str]:
    """Write what `source`, which opened those files, sees to a new file, and let the path name that; returns where what
    else was there is now. let_go: closes every connection to what was opened, once all of it is written: whichever is
    the last to be closed removes the log that the path names then. Raises OSError, sqlite3.Error, DamagedError."""
    fresh = path + ".new"
    for suffix in SUFFIXES:
        Path(fresh + suffix).unlink(missing_ok=True)
    prepare(fresh)
    with closing(_connect(fresh)) as copy:
        source.backup(copy)
        _check(copy, path)
    aside: list[str] = []
    mark = time.strftime("%Y%m%d-%H%M%S")
    for suffix, ours, now in zip(SUFFIXES, opened, identity(path), strict=True):
        if now is not None and now == ours:
            Path(path + suffix).unlink()  # first of all, so that no reader begins with what is going
        elif now is not None:
            aside.append(f"{path}.replaced-{mark}{suffix}")
            Path(path + suffix).rename(aside[-1])
    let_go()
    for suffix in SUFFIXES:
        Path(path + suffix).unlink(missing_ok=True)
    Path(fresh).rename(path)
    directory = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return aside


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=0.25)
