# SPDX-License-Identifier: Apache-2.0
"""The record as Parquet, for programs that mine it: one directory, added to by each export.

    history/, attaches/, snapshots/, audit/   in chunks (chunks.py)
    runs/runs.parquet                 the daemon's starts and ends: all of them, each time
    rules/rules.parquet               changes of the policy's rules, likewise
    tags/tags.parquet                 connections of clients that have tags, likewise
    _export.json                      the version of the columns, and which times are exported
    _whole.json                       SHA-256 of the files of runs, rules and tags; not there: they are being written,
                                      or an earlier Roost wrote them
    _lock                             is locked by the export that is at work

Columns: rows.py; docs/export.md describes them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from control.export.chunks import Chunks, Outcome
from control.export.columns import VERSION
from control.export.files import ExportError, make_directory, problem_of, read_json, write_json, write_parts
from control.export.rows import BATCH_ROWS, SOURCES, WHOLE, Times
from control.store.database import StoreError, open_engine, parse_url, reason, without_secrets
from control.store.schema import REVISION, revisions

LOCK_S: Final = 5.0
_INDEX: Final = "_export.json"
_DIGESTS: Final = "_whole.json"
_LOCK: Final = "_lock"
"""Its owner's alone: a lock on what others may read is one that they may take."""


class Export:
    """A directory with an export. Raises ExportError when it is something else."""

    def __init__(self, directory: Path) -> None:
        """directory: it may be a symbolic link, those in it may not."""
        directory = directory.resolve()
        self._directory = directory
        self._tables = {source.name: Chunks(directory, source) for source in SOURCES}
        self.unknown = ""
        """What a check could not look at, a sentence."""

    @property
    def rows(self) -> dict[str, int]:
        """Of each table that there is in chunks."""
        return {name: chunks.rows for name, chunks in self._tables.items()}

    # -- adding -------------------------------------------------------------------------------------------------------

    def add(self, url: str, since_ms: int | None, until_ms: int | None,
            told: Callable[[str, int], None]) -> dict[str, Outcome]:  # fmt: skip
        """All that is committed and not exported yet, by table. since, until: the times that are of interest, ms since
        1970; the same ones for each export to a directory. told: how many rows were added to a table, now and then.
        Raises ExportError, StoreError, OSError: what was exported until then is kept, and the next one goes on
        there."""
        try:
            make_directory(self._directory)
        except (FileExistsError, NotADirectoryError):
            raise ExportError(f"{self._directory} is no directory") from None
        self._must_be_an_exports()
        with self._locked():
            self._begin({"version": VERSION, "since_ms": since_ms, "until_ms": until_ms})
            for chunks in self._tables.values():
                chunks.load()
            self._sweep()
            try:
                with reading(url) as connection:
                    return self._add(connection, Times(since_ms, until_ms), told)
            except SQLAlchemyError as error:
                whose = without_secrets(parse_url(url))
                raise StoreError(f"cannot read the history in {whose}: {reason(error)}") from error

    def _must_be_an_exports(self) -> None:
        if (self._directory / _INDEX).exists():
            return
        if any(entry.name not in (f"{_INDEX}.tmp", _LOCK) for entry in self._directory.iterdir()):
            raise ExportError(f"{self._directory} has files, and none of them is an export's: name an empty one")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        here = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise ExportError(f"another export to {self._directory} is at work") from None
        finally:
            os.close(here)

    def _begin(self, wanted: Mapping[str, int | None]) -> None:
        path = self._directory / _INDEX
        if not path.exists():
            write_json(path, wanted)
            return
        there = read_json(path)
        if there.get("version") != VERSION:
            raise ExportError(f"{self._directory} has version {there.get('version')} of the columns, this roost writes "
                              f"{VERSION}: export to another directory")  # fmt: skip
        if there != wanted:
            raise ExportError(f"{self._directory} has {_times(there)}, and {_times(wanted)} was asked for: export to "
                              "another directory")  # fmt: skip

    def _sweep(self) -> None:
        """Remove what an export that was cut off has left."""
        for path in [path for chunks in self._tables.values() for path in chunks.unlisted()]:
            path.unlink(missing_ok=True)

    def _add(self, connection: Connection, times: Times, told: Callable[[str, int], None]) -> dict[str, Outcome]:
        for chunks in self._tables.values():
            chunks.must_be_of(connection)
        done = {}
        for name, chunks in self._tables.items():
            done[name] = chunks.add(connection, times, partial(told, name))
        (self._directory / _DIGESTS).unlink(missing_ok=True)
        digests = {}
        for name, schema, query in WHOLE:
            rows = connection.execute(query, execution_options={"yield_per": BATCH_ROWS})
            parts = (_table(part, schema) for part in rows.partitions())
            digests[name] = write_parts(self._directory / name / f"{name}.parquet", schema, parts)
        write_json(self._directory / _DIGESTS, digests)
        return done

    # -- checking -----------------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """What is wrong with it: sentences. It is read in full."""
        if not (self._directory / _INDEX).exists():
            raise ExportError(f"{self._directory} has no export")
        wrong: list[str] = []
        for chunks in self._tables.values():
            chunks.load()
            wrong += chunks.problems()
        digests = read_json(path) if (path := self._directory / _DIGESTS).exists() else None
        if digests is None:
            tables = ", ".join(name for name, _, _ in WHOLE)
            self.unknown = (
                f"whether {tables} are as they were written is not known: there is no {_DIGESTS}, which "
                "the next export writes"
            )
        for name, _, _ in WHOLE:
            whole = f"{name}/{name}.parquet"
            if digests is not None:
                wrong.append(problem_of(self._directory, whole, str(digests.get(name))))
            elif (self._directory / whole).exists():
                wrong.append(problem_of(self._directory, whole, None))
        return list(filter(None, wrong))


def _table(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


@contextmanager
def reading(url: str) -> Iterator[Connection]:
    """Raises StoreError when the database is of another revision, SQLAlchemyError when it cannot be read."""
    engine = open_engine(parse_url(url), timeout_s=LOCK_S, writer=False)
    try:
        with engine.connect() as connection:
            found = connection.scalar(sa.select(revisions.c.version_num))
            if found != REVISION:
                raise StoreError(f"the database has revision {found}, this roost reads {REVISION}: start its daemon "
                                 "once, which brings it there")  # fmt: skip
            yield connection
    finally:
        engine.dispose()


def _times(wanted: Mapping[str, int | None]) -> str:
    ends = [None if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
            for ms in (wanted.get("since_ms"), wanted.get("until_ms"))]  # fmt: skip
    since, until = ends
    if since is None and until is None:
        return "the record of all times"
    return "the record" + (f" from {since}" if since else "") + (f" to {until}" if until else "")
