# SPDX-License-Identifier: Apache-2.0
"""One table of the record in the directory of an export, in chunks:

    NAME/date=2026-11-25/hour=13/FIRST-LAST.parquet   the rows of that hour (UTC) among rows FIRST to LAST
    NAME/_chunks/FIRST-LAST.json     which files have the rows FIRST to LAST, and what is in them; written last: what no
                                     such file names is not exported yet, and is removed

A chunk follows the one before it without a gap, so that the directory says itself where to go on, and no row is in it
twice however often an export was cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from sqlalchemy.engine import Connection

from control.export import files
from control.export.chunk import CHUNK, Chunk, File
from control.export.files import ExportError, write_json
from control.export.rows import Names, Source, Times, chunks_after, row_at

HOUR_MS: Final = 3_600_000
_NAME: Final = r"[0-9]{18,20}-[0-9]{18,20}"
_HOURS: Final = tuple(
    map(re.compile, (r"date=[0-9]{4}-[0-9]{2}-[0-9]{2}", r"hour=[0-9]{2}", rf"{_NAME}\.(parquet|tmp)"))
)
"""What is written below the table's directory."""

_PATH: Final = re.compile(rf"[a-z]+/date=[0-9-]{{10}}/hour=[0-9]{{2}}/{_NAME}\.parquet")
_UNFINISHED: Final = re.compile(rf"{_NAME}\.json\.tmp")


@dataclass(frozen=True, slots=True)
class Outcome:
    """rows: that were added; missed: that had been removed from the database before they were exported."""

    rows: int
    missed: int
    last: int


class Chunks:
    """Those that there are. root: the directory of the export."""

    def __init__(self, root: Path, source: Source) -> None:
        self._root = root
        self._source = source
        self._directory = root / source.name
        self._listed = self._directory / "_chunks"
        self._chunks: list[Chunk] = []

    @property
    def rows(self) -> int:
        """In all chunks."""
        return sum(chunk.rows for chunk in self._chunks)

    def load(self) -> None:
        """Read which chunks there are. Raises ExportError, OSError."""
        self._chunks = []
        for path in sorted(self._listed.glob("*.json")):
            try:
                chunk = CHUNK.validate_json(files.read(path), strict=True)
            except ValidationError:
                raise ExportError(f"{path} is not as an export writes it") from None
            if not all(_PATH.fullmatch(file.path) for file in chunk.files):
                raise ExportError(f"{path} names a file that no export writes")
            self._chunks.append(chunk)

    def unlisted(self) -> list[Path]:
        """What an export that was cut off has left."""
        known = {file.path for chunk in self._chunks for file in chunk.files}
        there = (path for path, is_ours in files.entries(self._directory, _HOURS) if is_ours)
        chunks = (path for path, is_ours in files.entries(self._listed, [_UNFINISHED]) if is_ours)
        return [*(path for path in there if str(path.relative_to(self._root)) not in known), *chunks]

    def must_be_of(self, connection: Connection) -> None:
        """Raises ExportError when they are another database's."""
        if not self._chunks:
            return
        name, (seq, *wanted) = self._source.name, self._chunks[-1].last_row
        found = row_at(connection, self._source, seq)
        if found is not None and found != wanted:
            raise ExportError(f"{self._root} has the {name} of another database: row {seq} is another there; export to "
                              "another directory")  # fmt: skip
        if found is None and seq > (last := self._source.last(connection)):
            raise ExportError(f"{self._root} has {name} up to row {seq}, and the database up to row {last}: it is "
                              "another one, or was restored from an older copy; export to another "
                              "directory")  # fmt: skip

    def add(self, connection: Connection, times: Times, told: Callable[[int], None]) -> Outcome:
        """All that is committed and in no chunk yet. told: how many rows were added, after each chunk."""
        rows = missed = 0
        last = self._chunks[-1].last if self._chunks else 0
        for first, batches in chunks_after(connection, self._source, last + 1):
            tables, read = [], 0
            for batch in batches:
                names = Names.read(connection)  # after the rows: a service may have come since those before them
                tables.append(times.of(self._source.table(names, batch)))
                read += len(batch)
            newest = batch[-1]
            table = pa.concat_tables(tables)
            missed += newest.seq - (last or first - 1) - read
            last_row = newest.seq, getattr(newest, self._source.mark), newest.at
            chunk = Chunk(first, newest.seq, table.num_rows, last_row, [])
            chunk.files.extend(self._write_hours(chunk.name, table))
            write_json(self._listed / f"{chunk.name}.json", asdict(chunk))
            self._chunks.append(chunk)
            last = chunk.last
            rows += chunk.rows
            told(rows)
        return Outcome(rows, missed, last)

    def _write_hours(self, name: str, table: pa.Table) -> Iterator[File]:
        hours = pc.divide(table["at"].cast(pa.int64()), HOUR_MS)
        for hour in sorted(pc.unique(hours).to_pylist()):
            begin = datetime.fromtimestamp(hour * HOUR_MS / 1000, UTC)
            path = self._directory / f"date={begin:%Y-%m-%d}" / f"hour={begin:%H}" / f"{name}.parquet"
            some = table.filter(pc.equal(hours, hour))
            yield File(str(path.relative_to(self._root)), some.num_rows, files.write_table(path, some))

    def problems(self) -> list[str]:
        """What is wrong with them: sentences. They are read in full."""
        wrong: list[str] = []
        last = 0
        for chunk in self._chunks:
            if chunk.first <= last:
                wrong.append(f"{self._source.name}: rows {chunk.first} to {min(last, chunk.last)} are there twice")
            last = max(last, chunk.last)
            if sum(file.rows for file in chunk.files) != chunk.rows:
                wrong.append(f"{self._source.name}/{chunk.name}: its files do not have its {chunk.rows:,} rows")
            wrong += [
                problem
                for file in chunk.files
                if (problem := files.problem_of(self._root, file.path, file.sha256, file.rows))
            ]
        wrong += [
            f"{path.relative_to(self._root)} is of no chunk: the next export removes it" for path in self.unlisted()
        ]
        strangers = (path for path, is_ours in files.entries(self._directory, _HOURS) if not is_ours)
        wrong += [f"{path.relative_to(self._root)} is nothing that an export writes: remove it" for path in strangers]
        return wrong
