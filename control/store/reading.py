# SPDX-License-Identifier: Apache-2.0
"""Queries of the database."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from control.store import history, policies, schema, sleeping, starting, tagging, tokens
from control.store.database import StoreError, chunks, fetch, open_engine, places, reason
from control.store.records import shifted
from control.store.schema import KA_BYTES, KEY, KEYED, successors
from control.store.sleeping import LAST_NUMBER, Epochs, References, SleepingRow

SCAN_ROWS: Final = 10_000
CLOSE_S: Final = 2.0
"""How long readers may take to end."""

_SOME_AT_A_TIME: Final = {"yield_per": 1000}
_PACKING = frozenset({"sqlite"})  # databases that make one row of a page, see _packed


def _names_like(pattern: str, tag: str) -> tuple[sa.ColumnElement[str], sa.Select[Any]]:
    """The column of names by which they are in order, and their rows."""
    table = schema.names
    begins = re.split(r"[*?]", pattern, maxsplit=1)[0]
    like = re.sub(r"[\\%_]", r"\\\g<0>", pattern).replace("*", "%").replace("?", "_")
    name = schema.tags.c.name if tag else table.c.name
    query = sa.select(*table.columns).where(
        name >= begins,
        name < f"{begins}\x7f",  # by the index: names are of printable ASCII
        name.like(like, escape="\\"),
    )
    if tag:
        query = query.join(schema.tags, name == table.c.name).where(schema.tags.c.tag == tag)
    return name, query


class Reader:
    """What is in the database. It has connections of its own: with SQLite's WAL a reader waits for no writer, so waking
    a client costs one SELECT however long the write in progress takes. `read` may be called from one thread only, the
    others from any; they raise SQLAlchemyError when it cannot be read."""

    def __init__(self, url: sa.URL) -> None:
        self._reader_engine = open_engine(url, timeout_s=0.25, writer=False)
        self._reading = self._reader_engine.connect
        self._restore: Connection | None = None
        self._restoring = threading.Lock()
        self._epochs = Epochs()

    def close_readers(self) -> None:
        """What is read from now on is read by new connections. Waits for who reads, if it does not take too long."""
        with self._restoring:
            if self._restore is not None:
                self._restore.close()
                self._restore = None
            pool, deadline = self._reader_engine.pool, time.monotonic() + CLOSE_S
            self._reader_engine.dispose()
        while isinstance(pool, sa.QueuePool) and pool.checkedout() and time.monotonic() < deadline:
            time.sleep(0.01)

    def read(self, sought: References) -> dict[bytes, tuple[bytes, bytes]]:
        """key -> (ka, rest) of those that are there. For the dispatcher alone: it has a connection to itself, since a
        client waits for the answer. Raises StoreError when the database cannot be read."""
        return {key: (ka, rest) for key, ka, rest, _ in self._read_rows(sought)}

    def _read_rows(self, sought: References) -> list[tuple[bytes, bytes, bytes, str]]:
        """(key, ka, rest, boot) of those that are there, on that boot's clock. By the driver itself: SQLAlchemy takes
        50 us more a query."""
        dialect = self._reader_engine.dialect
        with self._restoring:
            try:
                if self._restore is None:
                    # Autocommit: between two reads no transaction of PostgreSQL's stays open.
                    self._restore = self._reader_engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                with closing(self._restore.connection.cursor()) as cursor:

                    def run(text: str, values: tuple[Any, ...]) -> Sequence[Sequence[Any]]:
                        cursor.execute(text, values)
                        found: Sequence[Sequence[Any]] = cursor.fetchall()
                        return found

                    found = sleeping.find(run, dialect.name, self._epochs, _RECORD, sought)
                    return [(key, *shifted(ka, rest, ms, timestamps_ms), boot)
                            for _, key, ka, rest, boot, ms, timestamps_ms in found]  # fmt: skip
            except (SQLAlchemyError, dialect.loaded_dbapi.Error) as error:
                if self._restore is not None:
                    self._restore.invalidate()
                    self._restore.close()
                    self._restore = None
                raise StoreError(f"cannot read sleeping records: {reason(error)}") from error

    def sleeping_rows(self, before: int = LAST_NUMBER, limit: int = 1000) -> list[SleepingRow]:
        """Up to `limit` rows by descending numbers, those before one: page through all of them."""
        with self._reading() as connection:
            return sleeping.page_before(connection, before, limit)

    def rows_numbered(self, numbers: Sequence[int]) -> Iterator[SleepingRow]:
        """The rows of those of these connections that have one."""
        with self._reading() as connection:
            yield from sleeping.numbered(connection, numbers)

    def rows_by_key(self, after: bytes = b"", limit: int = 1000) -> list[SleepingRow]:
        """Of those that are found by their keys, likewise by ascending keys."""
        with self._reading() as connection:
            return sleeping.page_by_key(connection, after, limit)

    def sleeping_numbers(self) -> Iterator[tuple[bytes, array[int]]]:
        """Every row, by ascending numbers, some thousand at a time: the keys, packed one after the other, and the
        numbers. By the driver itself. Raises StoreError when they cannot be read."""
        for (keys,), (numbers,) in self._scan(("key",), ("id",)):
            yield keys, numbers

    def sleeping_parts(self, descending: bool = False) -> Iterator[tuple[bytes, bytes, array[int], array[int]]]:
        """The same with `ka` behind the keys, and clocks behind the numbers. descending: by descending numbers, so that
        of two with the same 4-tuple the later one comes first."""
        for (keys, kas), (numbers, clocks) in self._scan(("key", "ka"), ("id", "clock"), descending):
            yield keys, kas, numbers, clocks

    def _scan(self, blobs: Sequence[str], numbers: Sequence[str],
              descending: bool = False) -> Iterator[tuple[list[bytes], list[array[int]]]]:  # fmt: skip
        """Columns of all rows, by their numbers, SCAN_ROWS at a time. numbers: columns, the first of them `id`."""
        try:
            yield from self._pages(blobs, numbers, descending)
        except (SQLAlchemyError, self._reader_engine.dialect.loaded_dbapi.Error) as error:
            raise StoreError(f"cannot read the sleepers: {reason(error)}") from error

    def _pages(self, blobs: Sequence[str], numbers: Sequence[str],
               descending: bool) -> Iterator[tuple[list[bytes], list[array[int]]]]:  # fmt: skip
        of = schema.sleeping.c
        bytes_of = [_BYTES[name] for name in blobs]
        last = LAST_NUMBER if descending else -1
        with self._reading() as connection, closing(connection.connection.cursor()) as cursor:
            packed = connection.dialect.name in _PACKING
            while True:
                page = sa.select(*(of[name] for name in (*blobs, *numbers))).limit(SCAN_ROWS)
                page = (page.where(of.id < last).order_by(of.id.desc()) if descending
                        else page.where(of.id > last).order_by(of.id))  # fmt: skip
                text = (_packed(page, blobs, numbers) if packed else page).compile(
                    dialect=connection.dialect, compile_kwargs={"literal_binds": True}
                )
                cursor.execute(str(text))
                rows = cursor.fetchall()
                if packed:
                    joined = [value or b"" for value in rows[0][: len(blobs)]]
                    columns = [array("Q", json.loads(value)) for value in rows[0][len(blobs) :]]
                else:
                    joined = [b"".join(row[at] for row in rows) for at in range(len(blobs))]
                    columns = [array("Q", (row[len(blobs) + at] for row in rows)) for at in range(len(numbers))]
                if [len(value) for value in joined] != [size * len(columns[0]) for size in bytes_of]:
                    if not packed:
                        wrong = next(row[len(blobs)] for row in rows
                                     if [len(value) for value in row[: len(blobs)]] != bytes_of)  # fmt: skip
                        raise StoreError(f"cannot read the sleepers: {' or '.join(blobs)} of row {wrong} is not "
                                         f"{' or '.join(map(str, bytes_of))} bytes")  # fmt: skip
                    packed = False  # the same page row by row: this SQLite ends what it puts together at the first NUL
                    continue
                if not columns[0]:
                    return
                yield joined, columns
                last = columns[0][-1]

    def rows_newer(self, generation: int) -> Iterator[tuple[bytes, bytes, array[int], array[int], int]]:
        """The rows that were written after the one with this generation, in the order of their writing, some thousand
        at a time: as sleeping_parts, and the last one's generation. Only of one owner of the database do generations
        ascend."""
        of = schema.sleeping.c
        query = sa.select(of.key, of.ka, of.id, of.clock, of.generation).where(of.generation > generation)
        with self._reading() as connection:
            found = connection.execution_options(yield_per=SCAN_ROWS).execute(query.order_by(of.generation))
            for rows in found.partitions():
                columns = tuple(zip(*rows, strict=True))
                keys, kas = map(b"".join, columns[:2])
                numbers, clocks = (array("Q", column) for column in columns[2:4])
                if (len(keys), len(kas)) != (KEY.size * len(rows), KA_BYTES * len(rows)):
                    raise StoreError(f"cannot read the sleepers: key or ka of a row from {numbers[0]} to {numbers[-1]} "
                                     f"is not {KEY.size} or {KA_BYTES} bytes")  # fmt: skip
                yield keys, kas, numbers, clocks, columns[4][-1]

    def numbers(self) -> array[int]:
        """Of all rows, ascending."""
        of = schema.sleeping.c
        with self._reading() as connection:
            if connection.dialect.name != "postgresql":
                return array("Q", connection.scalars(sa.select(of.id).order_by(of.id)))
            packed = connection.scalar(sa.text("SELECT string_agg(int8send(id), '' ORDER BY id) FROM sleeping"))
            found = array("Q", bytes(packed or b""))
            if sys.byteorder == "little":
                found.byteswap()
            return found

    def owner(self) -> sa.Row[Any] | None:
        """Whose the database is: the row of `owner`."""
        with self._reading() as connection:
            return connection.execute(sa.select(schema.owner)).first()

    def clocks(self) -> tuple[dict[int, sa.Row[Any]], dict[str, int]]:
        """The rows of `clocks` by their number; and starting.alive_ms."""
        with self._reading() as connection:
            return starting.all_clocks(connection), starting.alive_ms(connection)

    def rows_at(self, sought: References) -> Iterator[SleepingRow]:
        """The rows of those of these connections that have one."""
        with self._reading() as connection:
            yield from sleeping.rows(connection, self._epochs, sought)

    def sleeping_by_id(self, number: int) -> SleepingRow | None:
        """The sleeping connection with this number."""
        return next(self.rows_numbered([number]), None)

    def sleeping_ids(self, sought: References) -> dict[bytes, int]:
        """key -> number of those of these connections that have a row."""
        with self._reading() as connection:
            return sleeping.ids(connection, self._epochs, sought)

    def keyed(self, kind: str) -> Iterator[tuple[Any, bytes]]:
        """Every row of one of schema.KEYED: its key, and the rest packed. Raises SQLAlchemyError when it cannot be
        read."""
        table, form = KEYED[kind]
        with self._reading() as connection:
            for row in connection.execute(sa.select(*table.columns), execution_options=_SOME_AT_A_TIME):
                yield row[0], form.pack(*row[1:])

    def rules(self, version: int | None = None) -> tuple[int, list[policies.RuleRow]]:
        """policies.state."""
        with self._reading() as connection:
            return policies.state(connection, version)

    def rule_changes(self, limit: int, rule: str | None = None, before: int | None = None) -> list[policies.RuleRow]:
        """policies.changes."""
        with self._reading() as connection:
            return policies.changes(connection, limit, rule, before)

    def service_names(self) -> dict[int, str]:
        """By their numbers, of every service that ever was."""
        with self._reading() as connection:
            of = schema.services.c
            return {row[0]: row[1] for row in connection.execute(sa.select(of.index, of.name))}

    def last_row(self) -> int:
        """history.last_row."""
        with self._reading() as connection:
            return history.last_row(connection)

    def rows_after(self, seq: int, most: int) -> list[Sequence[Any]]:
        """history.rows_after."""
        with self._reading() as connection:
            return history.rows_after(connection, seq, most)

    def tokens(self, good_at: int | None = None) -> list[tokens.TokenRow]:
        """tokens.read."""
        with self._reading() as connection:
            return tokens.read(connection, good_at)

    def groups(self) -> dict[frozenset[str], int]:
        """policies.read_groups."""
        with self._reading() as connection:
            return policies.read_groups(connection)

    def named(self, kind: str, names: Sequence[str] = (), numbers: Sequence[int] = ()) -> dict[str, bytes]:
        """The rows of `names`, `agents` or `in_band_names` of these names, and of the first two those of connections
        with these numbers: name -> the rest, packed."""
        form = KEYED[kind][1]
        found: dict[str, bytes] = {}
        with self._reading() as connection:
            for column, values in (("name", names), ("id", numbers)):
                for chunk in chunks(values):
                    these = f"{_NAMED[kind]} WHERE {column} IN ({places(connection.dialect.name, chunk)})"
                    found.update((row[0], form.pack(*row[1:])) for row in fetch(connection, these, chunk))
        return found

    def tags_of(self, names: Sequence[str]) -> dict[str, list[str]]:
        """tagging.of."""
        with self._reading() as connection:
            return tagging.of(connection, names)

    def tag_counts(self, after: str, limit: int) -> list[tuple[str, int]]:
        """tagging.counts."""
        with self._reading() as connection:
            return tagging.counts(connection, after, limit)

    def names_like(self, pattern: str, tag: str, after: str, limit: int) -> dict[str, bytes]:
        """Rows of `names` in their order, those after one: name -> the rest, packed. pattern: `*` for any text, `?` for
        one character. tag: those that have it; "": all. What waits to be written is not among them."""
        form = KEYED["names"][1]
        name, query = _names_like(pattern, tag)
        with self._reading() as connection:
            rows = connection.execute(query.where(name > after).order_by(name).limit(limit))
            return {row[0]: form.pack(*row[1:]) for row in rows}

    def names_due(self, now_ms: int, after: str, limit: int) -> list[tuple[str, int, int, bool]]:
        """Names given in band that are to be looked at, in their order, those after one: name, kept, until, and
        whether it has tags. A name is due `kept` before its `until`."""
        own = schema.in_band_names
        tagged = sa.exists().where(schema.tags.c.name == own.c.name)
        query = sa.select(*own.columns, tagged).where(own.c.until - own.c.kept <= now_ms, own.c.name > after)
        with self._reading() as connection:
            rows = connection.execute(query.order_by(own.c.name).limit(limit))
            return [(row[0], row[1], row[2], bool(row[3])) for row in rows]

    def count_names(self, pattern: str, tag: str) -> int:
        """How many `names_like` has in all."""
        with self._reading() as connection:
            found = connection.scalar(sa.select(sa.func.count()).select_from(_names_like(pattern, tag)[1].subquery()))
            return found or 0

    def predecessors_of(self, number: int) -> list[int]:
        """The connections whose client came back by this one."""
        with self._reading() as connection:
            place = places(connection.dialect.name, [number])
            text = f"SELECT id FROM successors WHERE successor = {place} ORDER BY id"
            return [row[0] for row in fetch(connection, text, (number,))]

    def successors_of(self, numbers: Sequence[int]) -> dict[int, int]:
        """number of a closed connection -> that of the one by which its client came back, of those that have one."""
        found: dict[int, int] = {}
        with self._reading() as connection:
            for chunk in chunks(numbers):
                query = sa.select(successors.c.id, successors.c.successor).where(successors.c.id.in_(chunk))
                found.update((row[0], row[1]) for row in connection.execute(query))
        return found


_BYTES: Final = {"key": KEY.size, "ka": KA_BYTES}


def _packed(page: sa.Select[Any], blobs: Sequence[str], numbers: Sequence[str]) -> sa.Select[Any]:
    """A page in one row, made by SQLite: half of the time that a tuple for each takes. What it puts together is in the
    order of the page, since that has a limit. That a NUL does not end it is not promised by SQLite: the length
    tells."""
    rows = page.subquery()
    columns: list[Any] = [sa.cast(sa.func.group_concat(rows.c[name], ""), sa.LargeBinary) for name in blobs]
    return sa.select(*columns, *(sa.func.json_group_array(rows.c[name]) for name in numbers))


_RECORD: Final = "id, key, ka, rest, " + ", ".join(
    f"(SELECT {name} FROM clocks WHERE clocks.clock = sleeping.clock)"
    for name in ("boot_id", "shift_ms", "timestamps_ms")
)
_NAMED: Final = {
    kind: f"SELECT {', '.join(column.name for column in KEYED[kind][0].columns)} FROM {kind}"
    for kind in ("names", "agents", "in_band_names")
}
