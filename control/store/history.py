# SPDX-License-Identifier: Apache-2.0
"""The history of transitions, in parts: tables that are written one after the other and removed whole.

A part that is being written has no index on the connections' numbers, which would cost a page of the log for nearly
each row; the numbers of its rows are in memory (numbers.py), and are searched there. A part that is full gets the
index in one sort. So a row costs the same whatever the history has grown to, and so does removing it.

What `load`, `write` and `prune` do counts once `settle` was called, after the commit; `begin` forgets
what was not committed. Rows are numbered without a gap, in the order in which the store was told of them.
"""

from __future__ import annotations

import json
import logging
import struct
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError, ProgrammingError

from control.core.states import State
from control.store.database import StoreError, change_if_free, fetch, sessions_with
from control.store.history_rows import insert_history
from control.store.numbers import Numbers
from control.store.schema import HISTORY, HISTORY_LAYOUT, history_part, history_parts, references_of

log = logging.getLogger("roost.store")

PART_ROWS: Final = 250_000
PART_MS: Final = 86_400_000
"""A part is full when it has so many rows, or when its first one is so old, in ms."""

LOADED_ROWS: Final = PART_ROWS // 8
"""Up to so many, a part that the last run left is gone on with."""

ROW_BYTES: Final = 75
"""What a row and its place in the index take, about, in SQLite's file; in PostgreSQL twice as much."""

SHOWN_PARTS: Final = 400
"""The newest ones, which the view `history` has: SQLite takes 500 terms in one statement."""

ASKED_PARTS: Final = 64
"""In one statement for the rows of one connection: of 265 parts 17 ms beside a busy thread, 60 where each is asked by
itself."""

_AT: Final = struct.Struct("=8xQ")  # of schema.HISTORY
_TYPES: Final = {column.name: column.type.compile() for column in history_part(0).columns}
_NAMES: Final = tuple(_TYPES)
_COLUMNS: Final = ", ".join(f'"{name}"' for name in _NAMES)
_WHICH: Final = {
    "sqlite": {"all": "seq < ?", "one": "id = ?", "these": "seq IN (SELECT value FROM json_each(?))"},
    "postgresql": {"all": "seq < %s", "one": "id = %s", "these": "seq = ANY(%s)"},
}
"""The rows of a part: before one, of one connection, or these."""


def _all_columns(part: sa.Table) -> str:
    """SELECT ... FROM of the part, as one of the last layout. With types, without which PostgreSQL joins no NULLs."""
    names = (f'"{name}"' if name in part.c else f'CAST(NULL AS {kind}) AS "{name}"' for name, kind in _TYPES.items())
    return f"SELECT {', '.join(names)} FROM {part.name}"


def _newest(connection: Connection, parts: Sequence[sa.Table], which: str, value: Any,
            most: int) -> Sequence[Sequence[Any]]:  # fmt: skip
    """The last rows of these parts, newest first. By text, since parts come and go, and SQLAlchemy takes some ms to
    compile a query of a new one. SQLite makes one row of them: for each that it fetches, a thread lets go of the
    interpreter and waits until it has it again."""
    of, sqlite = _WHICH[connection.dialect.name][which], connection.dialect.name == "sqlite"
    mark = "?" if sqlite else "%s"
    last = f"ORDER BY seq DESC LIMIT {mark}"
    each = [f"{_all_columns(part)} WHERE {of} {last}" for part in parts]
    values = (json.dumps(value) if sqlite and which == "these" else value, most) * len(parts)
    rows = each[0]
    if len(each) > 1:
        rows = " UNION ALL ".join(f"SELECT * FROM ({one}) AS of_part" for one in each) + f" {last}"
        values += (most,)
    if not sqlite:
        return fetch(connection, rows, values)
    text = f"SELECT json_group_array(json_array({_COLUMNS})) FROM ({rows})"  # in order, since there is a limit
    found: list[list[Any]] = json.loads(fetch(connection, text, values)[0][0])
    return found


class RemovedError(StoreError):
    """Rows behind a number are not kept any more; `first`: the number of the first one that is."""

    def __init__(self, first: int) -> None:
        self.first = first
        super().__init__(f"the history begins with row {first:,}")


def last_row(connection: Connection) -> int:
    """The number of the last row that is committed; 0: there is none."""
    newest = connection.execute(sa.select(history_parts).order_by(history_parts.c.first.desc()).limit(1)).first()
    if newest is None:
        return 0
    part = history_part(newest.first, newest.layout)
    last: int | None = connection.scalar(sa.select(sa.func.max(part.c.seq)))
    return last if last is not None else int(newest.first) - 1


def rows_after(connection: Connection, seq: int, most: int) -> list[Sequence[Any]]:
    """Committed rows behind that one in their order, columns of the last layout; fewer than `most` where a part ends,
    none where there are none. Raises RemovedError."""
    of = history_parts.c
    behind = sa.or_(of.last.is_(None), of.last > seq)
    while True:
        found = connection.execute(sa.select(history_parts).where(behind).order_by(of.first).limit(1)).first()
        if found is None:
            return []
        if found.first > seq + 1:
            raise RemovedError(found.first)
        try:
            return _behind(connection, history_part(found.first, found.layout), seq, most)
        except (OperationalError, ProgrammingError):
            connection.rollback()
            if _is_kept(connection, found.first):
                raise


def _behind(connection: Connection, part: sa.Table, seq: int, most: int) -> list[Sequence[Any]]:
    if connection.dialect.name == "postgresql":
        text = f"{_all_columns(part)} WHERE seq > %s ORDER BY seq LIMIT %s"
        return list(fetch(connection, text, (seq, most)))
    rows = f"{_all_columns(part)} WHERE seq > ? ORDER BY seq LIMIT ?"
    text = f"SELECT json_group_array(json_array({_COLUMNS})) FROM ({rows})"  # see _newest
    found: list[list[Any]] = json.loads(fetch(connection, text, (seq, most))[0][0])
    return list(found)


def _is_kept(connection: Connection, first: int) -> bool:
    """Whether the part that begins with this row has not been removed."""
    of = history_parts.c.first
    return connection.scalar(sa.select(of).where(of == first)) is not None


class Part(NamedTuple):
    """first, last: numbers of rows; last is 0 while the part is written. Times: wall clock, ms."""

    table: sa.Table
    first: int
    first_at: int
    last: int = 0
    last_at: int = 0


class Seen(NamedTuple):
    """What was committed at one moment. rows: those of one connection in the part that is being written, newest first;
    None: of all."""

    parts: tuple[Part, ...]
    next_row: int
    rows: list[int] | None


class History:
    """Without a lock: the caller holds one for `settle` and `see`. All else is the writer's."""

    def __init__(self, keep_days: float, keep_bytes: int) -> None:
        self._keep_ms = round(keep_days * 86_400_000)
        self._keep_rows = keep_bytes // ROW_BYTES
        self._part_ms = min(PART_MS, self._keep_ms // 8 or PART_MS)
        self._parts: tuple[Part, ...] = ()
        self._ids = Numbers()  # of the part that is being written
        self._next_row = 1
        self._cut_said = False
        self._view_lacks = False
        self.held = False
        """By a reader: a part that is to go."""
        self.begin()

    @property
    def next_row(self) -> int:
        """The number of the first row that is not committed."""
        return self._next_row

    @property
    def kept_rows(self) -> int:
        return self._next_row - self._parts[0].first if self._parts else 0

    def begins_ms(self, connection: Connection) -> int:
        """The time of the oldest row, ms since 1970, as the transaction has it; 0: it has none, or one that a clock
        which was ahead gave."""
        oldest = self._draft[0].table.c
        at: int = connection.scalar(sa.select(oldest.at).order_by(oldest.seq).limit(1)) or 0
        return at if at <= time.time_ns() // 1_000_000 else 0

    def load(self, connection: Connection) -> None:
        """What the database has; a part to write, where there is none."""
        self._view_lacks = True  # a part, perhaps: a reader may have kept it from being made anew
        rows = connection.execute(sa.select(history_parts).order_by(history_parts.c.first))
        self._draft = [
            Part(history_part(row.first, row.layout), row.first, row.first_at, row.last or 0, row.last_at or 0)
            for row in rows
        ]
        self._draft_ids, self._draft_began = Numbers(), True
        self._draft_next = self._draft[-1].last + 1 if self._draft else 1
        if self._draft and not self._draft[-1].last:
            first, of = self._draft[-1].first, self._draft[-1].table.c
            self._draft_next = (connection.scalar(sa.select(sa.func.max(of.seq))) or first - 1) + 1
            whole = len(of) == len(_NAMES)
            if not self._written and not whole:
                self._remove(connection, self._draft[-1])
            elif self._written < LOADED_ROWS and whole:
                self._draft_ids = Numbers(connection.scalars(sa.select(of.id).order_by(of.seq)))
            else:
                self._end_part(connection)
        if not self._draft or self._draft[-1].last:
            self._begin_part(connection, time.time_ns() // 1_000_000)

    # -- a transaction ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Of a transaction."""
        self._draft = list(self._parts)
        self._draft_next = self._next_row
        self._draft_ids = Numbers()
        self._draft_began = False  # a part: draft_ids are all its numbers

    def settle(self) -> bool:
        """It is committed. Whether a part has begun: there may be one too many."""
        self._parts, self._next_row, began = tuple(self._draft), self._draft_next, self._draft_began
        if began:
            self._ids = self._draft_ids
        else:
            self._ids.extend(self._draft_ids)
        self.begin()
        return began

    @property
    def _written(self) -> int:
        """Rows of the part that is being written."""
        return self._draft_next - self._draft[-1].first

    def write(self, connection: Connection, packed: bytes) -> None:
        """Rows of history_rows.with_numbers."""
        while packed:
            self._have_room(connection, _AT.unpack_from(packed)[0])
            room = (PART_ROWS - self._written) * HISTORY.size
            some, packed = packed[:room], packed[room:]
            insert_history(connection, self._draft[-1].table, self._draft_next, some)
            self._draft_ids.extend(Numbers(references_of(some)))
            self._draft_next += len(some) // HISTORY.size

    def _have_room(self, connection: Connection, at: int) -> None:
        if self._written >= PART_ROWS or (self._written and at - self._draft[-1].first_at >= self._part_ms):
            self._end_part(connection)
            self._begin_part(connection, at)

    def _end_part(self, connection: Connection) -> None:
        part, last = self._draft[-1], self._draft_next - 1
        sa.Index(f"ix_{part.table.name}_id", part.table.c.id).create(connection)
        last_at = connection.scalar(sa.select(part.table.c.at).where(part.table.c.seq == last)) or part.first_at
        of_it = sa.update(history_parts).where(history_parts.c.first == part.first)
        connection.execute(of_it.values(last=last, last_at=last_at))
        self._draft[-1] = part._replace(last=last, last_at=last_at)

    def _begin_part(self, connection: Connection, at: int) -> None:
        part = Part(history_part(self._draft_next), self._draft_next, at)
        part.table.create(connection)
        connection.execute(sa.insert(history_parts).values(first=part.first, first_at=at, layout=HISTORY_LAYOUT))
        self._draft.append(part)
        self._draft_ids, self._draft_began = Numbers(), True
        self._show_all(connection)

    def _show_all(self, connection: Connection) -> None:
        """Or later (`prune`), where the view is being read: no row waits for that."""
        self._view_lacks = not change_if_free(connection, partial(self._show, connection))

    def _show(self, connection: Connection) -> None:
        """The view `history`, for people: as if it were one table."""
        connection.exec_driver_sql("DROP VIEW IF EXISTS history")
        terms = [_all_columns(part.table) for part in self._draft[-SHOWN_PARTS:]]
        connection.exec_driver_sql(f"CREATE VIEW history AS {' UNION ALL '.join(terms)}")

    # -- removing -----------------------------------------------------------------------------------------------------

    def prune(self, connection: Connection, rows: int) -> bool:
        """Remove the oldest part, if it is to go and no session reads it; of one that an earlier version has let grow,
        so many rows. Whether there may be more to remove."""
        if self._view_lacks:
            self._show_all(connection)
        part = self._draft[0]
        cutoff = time.time_ns() // 1_000_000 - self._keep_ms if self._keep_ms else 0
        if not part.last and self._written:
            newest = connection.scalar(sa.select(part.table.c.at).where(part.table.c.seq == self._draft_next - 1)) or 0
            if newest < cutoff:
                self._end_part(connection)
                self._begin_part(connection, newest)
                part = self._draft[0]
        too_many = bool(self._keep_rows) and self._draft_next - part.first > self._keep_rows
        if not part.last or not (too_many or part.last_at < cutoff):
            self.held = False
            return False
        if part.last_at >= cutoff > 0 and not self._cut_said:
            self._cut_said = True
            log.warning(
                "history: what is younger than [history] keep_days is removed: it is over keep_bytes, %d rows",
                self._keep_rows,
            )
        if part.last - part.first >= 2 * PART_ROWS:
            some = sa.select(part.table.c.seq).order_by(part.table.c.seq).limit(rows)
            if connection.execute(sa.delete(part.table).where(part.table.c.seq.in_(some))).rowcount == rows:
                return True
        before = list(self._draft)
        removed = change_if_free(connection, partial(self._remove, connection, part))
        if not removed:
            self._draft = before
            if not self.held:
                readers = ", ".join(sessions_with(connection, part.table.name, "history")) or "that has ended by now"
                log.warning("history: %s stays for now, though it is to go: it is being read by PostgreSQL's session "
                            "%s; it is removed afterwards", part.table.name, readers)  # fmt: skip
        self.held = not removed
        return removed

    def _remove(self, connection: Connection, part: Part) -> None:
        connection.exec_driver_sql("DROP VIEW IF EXISTS history")
        part.table.drop(connection)
        connection.execute(sa.delete(history_parts).where(history_parts.c.first == part.first))
        self._draft.remove(part)
        if self._draft:
            self._show(connection)

    # -- reading ------------------------------------------------------------------------------------------------------

    def see(self, number: int | None, limit: int) -> Seen:
        """What is committed now, for `rows`; number: of the connection that is of interest."""
        if number is None:
            return Seen(self._parts, self._next_row, None)
        found = [self._parts[-1].first + place for place in islice(self._ids.places(number), limit)]
        return Seen(self._parts, self._next_row, found)

    def rows(self, connection: Connection, seen: Seen, number: int | None, limit: int) -> list[dict[str, Any]]:
        """The last ones, of one connection or of all: columns of a part, newest first."""
        found: list[dict[str, Any]] = []
        parts, at = seen.parts[::-1], 0
        asked = 1  # parts in one statement: the rows of one that has long been quiet may be behind hundreds of them
        while at < len(parts) and len(found) < limit:
            some = parts[at : at + asked]
            which: tuple[str, Any] = "all", seen.next_row
            if number is not None:
                which = ("one", number) if some[0].last else ("these", seen.rows)
            try:
                rows = _newest(connection, [part.table for part in some], *which, limit - len(found))
                found += (dict(zip(_NAMES, row, strict=True)) for row in rows)
            except (OperationalError, ProgrammingError):
                connection.rollback()
                if asked > 1:
                    asked = 1  # which of them?
                    continue
                if _is_kept(connection, some[0].first):  # the database says it before `settle` does
                    raise
                break  # it was removed meanwhile, and what is older
            if number is not None and found and found[-1]["from"] == State.NONE:
                break
            at += len(some)
            asked = min(asked * 4, ASKED_PARTS) if number is not None else 1
        return found

    def last_states(self, connection: Connection, first: int, last: int) -> Iterator[tuple[int, str, int, int]]:
        """(id, client, service, state) of each connection whose last row among first..last is not CLOSED."""
        parts = [part for part in reversed(self._parts) if part.first <= last and first <= (part.last or last)]
        known = set[int]()  # where one statement does not take all parts
        for at in range(0, len(parts), SHOWN_PARTS):
            tables = [part.table.c for part in parts[at : at + SHOWN_PARTS]]
            rows = sa.union_all(
                *(
                    sa.select(of.seq, of.id, of.client, of.service, of.to).where(of.seq.between(first, last))
                    for of in tables
                )
            ).subquery()
            place = sa.func.row_number().over(partition_by=rows.c.id, order_by=rows.c.seq.desc()).label("place")
            placed = sa.select(rows, place).subquery()
            query = sa.select(placed.c.id, placed.c.client, placed.c.service, placed.c.to).where(placed.c.place == 1)
            more = at + SHOWN_PARTS < len(parts)
            for row in connection.execute(query, execution_options={"yield_per": 1000}):
                if row[0] in known:
                    continue
                if more:
                    known.add(row[0])
                if row[3] != State.CLOSED:
                    yield row[0], row[1], row[2], row[3]
