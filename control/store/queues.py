# SPDX-License-Identifier: Apache-2.0
"""What waits to be written, all of it bounded in memory:

ops       key -> what `sleeping` shall say about it: a packed record (upsert) or a reference (delete). A dict, so that
          the last word about a connection replaces the ones before it; never more entries than the table has slots
gone      (key, reference) of connections to be deleted of whose 4-tuple `ops` says something else by now
stale     (key, number, generation) of rows that were committed in vain
rows      of history, packed (schema.HISTORY), in order, one or more in a piece. Past the bound new rows are dropped,
          counted and reported. While they are held none is written; past half of the bound they are not held any more
keyed     (table, key) -> the row of that key in a table of schema.KEYED, packed, or None; like ops. While the
          database cannot be written no name is given (clients/registry.py refuses it), and what is set in band
          waits with its connection (clients/in_band_settings.py)
appended  rows of `attaches`, `snapshots` and `audit`, in order; those of each bounded like the history
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from appliance.wire import LOW_BITS
from control.store.appended import Row
from control.store.numbers import Numbers
from control.store.schema import HISTORY, Keyed, references_of
from control.store.sleeping import Committed, number_of

APPENDED_BOUND: Final = 20_000
"""Rows that wait to be appended to a table, some 700 bytes each, some kB where long requests were refused."""


PIECE_ROWS: Final = 1000
_ROW: Final = HISTORY.size


class Piece(NamedTuple):
    """Rows that came together, the references that they begin with, and whether one of these is no number."""

    rows: bytes
    numbers: Numbers
    unnumbered: bool

    @classmethod
    def of(cls, rows: bytes) -> Piece:
        numbers = references_of(rows)
        return cls(rows, Numbers(numbers), 0 in numbers or max(numbers, default=0) >= LOW_BITS)


class Pieces:
    """Rows of history in order. A piece has those that came together: of 50,000 a second, none costs much alone."""

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self._pieces = deque(pieces)
        self._count = sum(len(piece.numbers) for piece in self._pieces)

    def __len__(self) -> int:
        """How many rows."""
        return self._count

    def append(self, rows: bytes, room: int) -> int:
        """At most so many of these rows; returns how many there was no room for."""
        taken = min(len(rows) // _ROW, room)
        for at in range(0, taken, PIECE_ROWS):
            self._append(Piece.of(rows[at * _ROW : min(at + PIECE_ROWS, taken) * _ROW]))
        self._count += taken
        return len(rows) // _ROW - taken

    def _append(self, piece: Piece) -> None:
        """Joined with those before it that are no larger, so that there are few of them however small they come, and
        each row is copied some ten times at most."""
        while self._pieces:
            last = self._pieces[-1]
            if len(last.numbers) > len(piece.numbers) or len(last.numbers) + len(piece.numbers) > PIECE_ROWS:
                break
            self._pieces.pop()
            piece = Piece(last.rows + piece.rows, last.numbers + piece.numbers, last.unnumbered or piece.unnumbered)
        self._pieces.append(piece)

    def take(self, most: int) -> Pieces:
        """The oldest, at most so many."""
        taken = list[Piece]()
        while self._pieces and most:
            piece = self._pieces.popleft()
            if len(piece.numbers) > most:
                self._pieces.appendleft(Piece.of(piece.rows[most * _ROW :]))
                piece = Piece.of(piece.rows[: most * _ROW])
            taken.append(piece)
            most -= len(piece.numbers)
        found = Pieces(taken)
        self._count -= len(found)
        return found

    def put_back(self, taken: Pieces) -> None:
        """Before all the others."""
        self._pieces.extendleft(reversed(taken._pieces))
        self._count += len(taken)

    def __add__(self, later: Pieces) -> Pieces:
        return Pieces([*self._pieces, *later._pieces])

    def packed(self) -> bytes:
        """All of them, one after the other."""
        return b"".join(piece.rows for piece in self._pieces)

    def newest(self, number: int | None, limit: int) -> list[tuple[int, bytes]]:
        """(place, row) of the last ones of a connection, or of all, newest first."""
        found: list[tuple[int, bytes]] = []
        before = self._count
        for piece in reversed(self._pieces):
            before -= len(piece.numbers)
            places = reversed(range(len(piece.numbers))) if number is None else piece.numbers.places(number)
            some = islice(places, limit - len(found))
            found.extend((before + place, piece.rows[place * _ROW : (place + 1) * _ROW]) for place in some)
            if len(found) == limit:
                break
        return found

    def any_unnumbered(self) -> bool:
        """Whether the engine did not know the number of one of these connections."""
        return any(piece.unnumbered for piece in self._pieces)


def _about(op: bytes | int) -> int:
    """Reference of the connection."""
    return number_of(op) if isinstance(op, bytes) else op


@dataclass(slots=True)
class Batch:
    ops: dict[bytes, bytes | int] = field(default_factory=dict)
    rows: Pieces = field(default_factory=Pieces)
    gone: list[tuple[bytes, int]] = field(default_factory=list)
    stale: list[tuple[bytes, int, int]] = field(default_factory=list)
    keyed: dict[Keyed, bytes | None] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)
    queued_keyed: int = 0
    mark: int = field(default_factory=lambda: secrets.randbits(62))
    """Stands in the database when it is committed."""
    slept: list[Committed] = field(default_factory=list)
    """What it has put into `sleeping`."""
    settled: bool = False  # it is committed, all of it

    def __bool__(self) -> bool:
        return bool(self.ops or self.gone or self.rows or self.stale or self.keyed or self.appended)


class Queues:
    """Without a lock: the caller holds one."""

    def __init__(self, history_bound: int) -> None:
        self._history_bound = history_bound
        self.ops: dict[bytes, bytes | int] = {}
        self.gone: list[tuple[bytes, int]] = []
        self.stale: list[tuple[bytes, int, int]] = []
        self.keyed: dict[Keyed, bytes | None] = {}
        self.rows = Pieces()
        self.held = False
        self.appended: deque[Row] = deque()
        self._appended: Counter[type[Row]] = Counter()  # of each table, how many of them
        self.queued_rows = 0  # of history and appended ones, ever
        self.queued_keyed = self.taken_keyed = 0  # likewise, counting each change of such a row
        self.urgent = False  # a caller waits for the commit: a connection that is to sleep, a reader of history

    def add(
        self,
        rows: Sequence[bytes],
        upserts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[tuple[bytes, int]],
        stale: Iterable[tuple[bytes, int, int]],
        keyed: Mapping[Keyed, bytes | None],
        first: bool = False,
    ) -> int:
        """Store.add; returns how many rows of history there was no room for."""
        for key, reference in deletes:
            waiting = self.ops.get(key)
            if isinstance(waiting, bytes) and number_of(waiting) != reference:
                self.gone.append((key, reference))  # the record is of a newer connection with the same 4-tuple
            else:
                self._say(key, reference)
        for key, record in upserts:
            self._say(key, record)
            self.urgent = True
        self.stale.extend(stale)
        self.keyed.update(keyed)
        self.queued_keyed += len(keyed)
        before = len(self.rows)
        added = Pieces() if first else self.rows
        dropped = added.append(b"".join(rows), max(self._history_bound - before, 0))
        if first:
            self.rows.put_back(added)
        self.queued_rows += len(self.rows) - before
        self.held &= len(self.rows) <= self._history_bound // 2
        return dropped

    def _say(self, key: bytes, op: bytes | int) -> None:
        if (before := self.ops.get(key)) is not None and (reference := _about(before)) != _about(op):
            self.gone.append((key, reference))
        self.ops[key] = op

    def append(self, row: Row) -> bool:
        """Whether there was room for it."""
        if self._appended[type(row)] >= APPENDED_BOUND:
            return False
        self.appended.append(row)
        self._appended[type(row)] += 1
        self.queued_rows += 1
        return True

    def take(self, size: int) -> Batch:
        """At most so many records and rows of history, and all else."""
        batch = Batch()
        if len(self.ops) <= size:
            batch.ops, self.ops = self.ops, {}
        else:
            for key in list(islice(self.ops, size)):
                batch.ops[key] = self.ops.pop(key)
        batch.gone, self.gone = self.gone, []
        batch.stale, self.stale = self.stale, []
        batch.keyed, self.keyed = self.keyed, {}
        batch.queued_keyed = self.queued_keyed - self.taken_keyed
        self.taken_keyed = self.queued_keyed
        batch.rows = self.rows.take(min(size, self.writable_rows))
        for _ in range(min(size, len(self.appended))):
            batch.appended.append(self.appended.popleft())
        self._appended.subtract(map(type, batch.appended))
        self.urgent = bool(self.ops) or (self.urgent and bool(self.writable_rows or self.appended))
        return batch

    def put_back(self, batch: Batch) -> None:
        """It could not be written."""
        for key, op in batch.ops.items():
            if (newer := self.ops.setdefault(key, op)) is not op and _about(newer) != _about(op):
                self.gone.append((key, _about(op)))
        self.gone += batch.gone
        self.stale[:0] = batch.stale
        self.keyed = batch.keyed | self.keyed
        self.taken_keyed -= batch.queued_keyed
        self.rows.put_back(batch.rows)
        self.appended.extendleft(reversed(batch.appended))
        self._appended.update(map(type, batch.appended))

    @property
    def writable_rows(self) -> int:
        """Of history."""
        return 0 if self.held else len(self.rows)

    @property
    def waiting(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.ops or self.gone or self.writable_rows or self.stale or self.keyed or self.appended)


def unsettled(waiting: Batch | Queues) -> Iterator[Container[bytes]]:
    """The keys of which it has something to say about `sleeping`."""
    yield waiting.ops
    yield {key for key, _ in waiting.gone}
    yield {key for key, _, _ in waiting.stale}
