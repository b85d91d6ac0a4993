# SPDX-License-Identifier: Apache-2.0
"""The history as Parquet, for programs that mine it: one directory, added to by each export.

    history/date=2026-11-25/hour=13/FIRST-LAST.parquet   the rows of that hour (UTC) among rows FIRST to LAST
    history/_chunks/FIRST-LAST.json     which files have the rows FIRST to LAST, and what is in them; written last: what
                                        no such file names is not exported yet, and is removed
    runs/runs.parquet                   the daemon's starts and ends: all of them, each time
    _export.json                        the version of the columns, and which times are exported

A chunk follows the one before it without a gap, so that a directory says itself where to go on, and no row is in it
twice however often an export was cut off. Columns: SCHEMA, RUNS; docs/export.md describes them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from control.export.rows import RUNS, VERSION, Names, Times, chunks_after, row_at
from control.store.database import StoreError, open_engine, parse_url, reason
from control.store.schema import REVISION, revisions, runs

HOUR_MS: Final = 3_600_000
LOCK_S: Final = 5.0
_INDEX: Final = "_export.json"
_HOURS: Final = "date=*/hour=*/*"


class ExportError(Exception):
    """The directory cannot be added to, or is not what it says; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class File:
    """Of a chunk; path: below the directory."""

    path: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows first..last of the history, as far as they are of the times that are exported. last_row: [seq, id, at] of
    the last one that there was, to know the database by."""

    first: int
    last: int
    rows: int
    last_row: list[int]
    files: list[File]

    @property
    def name(self) -> str:
        return f"{self.first:018d}-{self.last:018d}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """rows: that were added; missed: that had been removed from the database before they were exported."""

    rows: int
    missed: int
    last: int


class Export:
    """A directory with an export. Raises ExportError when it is something else."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._history = directory / "history"
        self._listed = self._history / "_chunks"
        self._chunks: list[Chunk] = []

    @property
    def rows(self) -> int:
        """In all chunks."""
        return sum(chunk.rows for chunk in self._chunks)

    # -- adding -------------------------------------------------------------------------------------------------------

    def add(self, url: str, since_ms: int | None, until_ms: int | None, told: Callable[[int], None]) -> Outcome:
        """All that is committed and not exported yet. since, until: the times that are of interest, ms since 1970; the
        same ones for each export to a directory. told: how many rows were added, now and then. Raises ExportError,
        StoreError, OSError: what was exported until then is kept, and the next one goes on there."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ExportError(f"{self._directory} is no directory") from None
        with self._locked():
            self._begin({"version": VERSION, "since_ms": since_ms, "until_ms": until_ms})
            self._load()
            self._sweep()
            try:
                with _reading(url) as connection:
                    done = self._add(connection, Times(since_ms, until_ms), told)
                    self._write_runs(connection)
                    return done
            except SQLAlchemyError as error:
                whose = parse_url(url).render_as_string(hide_password=True)
                raise StoreError(f"cannot read the history in {whose}: {reason(error)}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        here = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
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
            if any(entry.name != f"{_INDEX}.tmp" for entry in self._directory.iterdir()):
                raise ExportError(f"{self._directory} has files, and none of them is an export's: name an empty one")
            _write(path, json.dumps(wanted).encode())
            return
        there = _json(path)
        if there.get("version") != VERSION:
            raise ExportError(f"{self._directory} has version {there.get('version')} of the columns, this roost writes "
                              f"{VERSION}: export to another directory")  # fmt: skip
        if there != wanted:
            raise ExportError(f"{self._directory} has {_times(there)}, and {_times(wanted)} was asked for: export to "
                              "another directory")  # fmt: skip

    def _load(self) -> None:
        self._chunks = []
        for path in sorted(self._listed.glob("*.json")):
            raw = _json(path)
            try:
                chunk = Chunk(**{**raw, "files": [File(**file) for file in raw["files"]]})
            except (KeyError, TypeError):
                raise ExportError(f"{path} is not as an export writes it") from None
            self._chunks.append(chunk)

    def _sweep(self) -> None:
        """Remove what an export that was cut off has left."""
        for path in [*self._unlisted(), *self._directory.rglob("*.tmp")]:
            path.unlink(missing_ok=True)

    def _unlisted(self) -> list[Path]:
        known = {file.path for chunk in self._chunks for file in chunk.files}
        there = sorted(self._history.glob(_HOURS))
        return [path for path in there if str(path.relative_to(self._directory)) not in known]

    def _add(self, connection: Connection, times: Times, told: Callable[[int], None]) -> Outcome:
        rows = missed = 0
        names = Names.read(connection)
        self._must_be_of(connection)
        last = self._chunks[-1].last if self._chunks else 0
        for first, batches in chunks_after(connection, last + 1):
            tables, newest = [], list[int]()
            for batch in batches:
                newest = list(batch[-1][:3])
                tables.append(times.of(names.table(batch)))
            table = pa.concat_tables(tables)
            missed += first - last - 1 if last else 0
            chunk = Chunk(first, newest[0], table.num_rows, newest, [])
            chunk.files.extend(self._write_hours(chunk.name, table))
            _write(self._listed / f"{chunk.name}.json", json.dumps(asdict(chunk)).encode())
            self._chunks.append(chunk)
            last = chunk.last
            rows += chunk.rows
            told(rows)
        return Outcome(rows, missed, last)

    def _must_be_of(self, connection: Connection) -> None:
        """Raises ExportError when it is another database's history."""
        if not self._chunks:
            return
        seq, *wanted = self._chunks[-1].last_row
        found = row_at(connection, seq)
        if found is not None and found != wanted:
            raise ExportError(f"{self._directory} has the history of another database: row {seq} is another there")

    def _write_hours(self, name: str, table: pa.Table) -> Iterator[File]:
        hours = pc.divide(table["at"].cast(pa.int64()), HOUR_MS)
        for hour in sorted(pc.unique(hours).to_pylist()):
            begin = datetime.fromtimestamp(hour * HOUR_MS / 1000, UTC)
            path = self._history / f"date={begin:%Y-%m-%d}" / f"hour={begin:%H}" / f"{name}.parquet"
            some = table.filter(pc.equal(hours, hour))
            yield File(str(path.relative_to(self._directory)), some.num_rows, _write_table(path, some))

    def _write_runs(self, connection: Connection) -> None:
        found = [tuple(row) for row in connection.execute(sa.select(runs).order_by(runs.c.run))]
        columns = zip(*found, strict=True) if found else ((),) * len(RUNS)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, RUNS, strict=True)]
        _write_table(self._directory / "runs" / "runs.parquet", pa.table(arrays, schema=RUNS))

    # -- checking -----------------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """What is wrong with it: sentences. It is read in full."""
        if not (self._directory / _INDEX).exists():
            raise ExportError(f"{self._directory} has no export")
        self._load()
        wrong: list[str] = []
        last = 0
        for chunk in self._chunks:
            if chunk.first <= last:
                wrong.append(f"rows {chunk.first} to {min(last, chunk.last)} are there twice")
            last = max(last, chunk.last)
            if sum(file.rows for file in chunk.files) != chunk.rows:
                wrong.append(f"{chunk.name}: its files do not have its {chunk.rows:,} rows")
            wrong += [problem for file in chunk.files if (problem := self._problem_of(file))]
        wrong += [f"{path.relative_to(self._directory)} is of no chunk: the next export removes it"
                  for path in self._unlisted()]  # fmt: skip
        return wrong

    def _problem_of(self, file: File) -> str:
        path = self._directory / file.path
        try:
            if _digest(path) != file.sha256:
                return f"{file.path} was changed since it was written"
            rows = pq.read_metadata(path).num_rows
        except FileNotFoundError:
            return f"{file.path} is missing"
        return "" if rows == file.rows else f"{file.path} has {rows:,} rows in place of {file.rows:,}"


@contextmanager
def _reading(url: str) -> Iterator[Connection]:
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


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ExportError(f"{path} is not as an export writes it")
    return found


def _write_table(path: Path, table: pa.Table) -> str:
    """All of it, or nothing; the SHA-256 of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
    digest = _digest(temporary)
    _settle(temporary, path)
    return digest


def _write(path: Path, content: bytes) -> None:
    """All of it, or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(content)
    _settle(temporary, path)


def _settle(temporary: Path, path: Path) -> None:
    """Let `path` name what was written to `temporary`, once it is on the disk."""
    _sync(temporary)
    temporary.rename(path)
    for directory in list(path.parents)[:4]:  # those of the hour, the day and the table may be new
        _sync(directory)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _times(wanted: Mapping[str, int | None]) -> str:
    ends = [None if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
            for ms in (wanted.get("since_ms"), wanted.get("until_ms"))]  # fmt: skip
    since, until = ends
    if since is None and until is None:
        return "the history of all times"
    return "the history" + (f" from {since}" if since else "") + (f" to {until}" if until else "")
