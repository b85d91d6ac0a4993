# SPDX-License-Identifier: Apache-2.0
"""What waits to be written, in four places, all bounded in memory:

ops       key -> what `sleeping` shall say about it: a packed record (upsert) or a number (delete). A dict, so that
          the last word about a 4-tuple replaces the ones before it; never more entries than the table has slots
rows      of history, packed (schema.HISTORY), in order. Past the bound new rows are dropped, counted and reported
keyed     (table, key) -> the row of that key in a table of schema.KEYED, packed, or None; like ops. While the
          database cannot be written no name is given (clients/registry.py refuses it), and what is set in band
          waits with its connection (clients/in_band_settings.py)
appended  rows of `attaches` and `snapshots`, in order; those of each bounded like the history
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from control.store.appended import Row
from control.store.schema import KA_BYTES, Keyed

ID: Final = struct.Struct("=Q")  # roost_rest.id stands first

APPENDED_BOUND: Final = 20_000
"""Rows that wait to be appended to a table, some 700 bytes each."""


@dataclass(slots=True)
class Batch:
    ops: dict[bytes, bytes | int] = field(default_factory=dict)
    rows: list[bytes] = field(default_factory=list)
    stale: list[tuple[bytes, int]] = field(default_factory=list)
    keyed: dict[Keyed, bytes | None] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)
    queued_keyed: int = 0
    settled: bool = False  # it is committed, all of it

    def __bool__(self) -> bool:
        return bool(self.ops or self.rows or self.stale or self.keyed or self.appended)


class Queues:
    """Without a lock: the caller holds one."""

    def __init__(self, history_bound: int) -> None:
        self._history_bound = history_bound
        self.ops: dict[bytes, bytes | int] = {}
        self.stale: list[tuple[bytes, int]] = []
        self.keyed: dict[Keyed, bytes | None] = {}
        self.rows: deque[bytes] = deque()
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
        stale: Iterable[tuple[bytes, int]],
        keyed: Mapping[Keyed, bytes | None],
    ) -> int:
        """Store.add; returns how many rows of history there was no room for."""
        ops = self.ops
        for key, number in deletes:
            waiting = ops.get(key)
            if isinstance(waiting, bytes) and number and ID.unpack_from(waiting, KA_BYTES)[0] != number:
                continue  # a newer connection with the same 4-tuple: its row replaces the old one anyhow
            ops[key] = number if waiting is None else 0
        for key, record in upserts:
            ops[key] = record
            self.urgent = True
        self.stale.extend(stale)
        self.keyed.update(keyed)
        self.queued_keyed += len(keyed)
        room = max(self._history_bound - len(self.rows), 0)
        self.rows.extend(rows[:room])
        self.queued_rows += min(len(rows), room)
        return max(len(rows) - room, 0)

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
        batch.stale, self.stale = self.stale, []
        batch.keyed, self.keyed = self.keyed, {}
        batch.queued_keyed = self.queued_keyed - self.taken_keyed
        self.taken_keyed = self.queued_keyed
        for _ in range(min(size, len(self.rows))):
            batch.rows.append(self.rows.popleft())
        for _ in range(min(size, len(self.appended))):
            batch.appended.append(self.appended.popleft())
        self._appended.subtract(map(type, batch.appended))
        self.urgent = bool(self.ops) or (self.urgent and bool(self.rows or self.appended))
        return batch

    def put_back(self, batch: Batch) -> None:
        """It could not be written."""
        for key, op in batch.ops.items():
            newer = self.ops.get(key)
            if newer is None:
                self.ops[key] = op
            elif isinstance(newer, int):
                self.ops[key] = 0  # a delete that follows anything else forgets whichever row there is
        self.stale[:0] = batch.stale
        self.keyed = batch.keyed | self.keyed
        self.taken_keyed -= batch.queued_keyed
        self.rows.extendleft(reversed(batch.rows))
        self.appended.extendleft(reversed(batch.appended))
        self._appended.update(map(type, batch.appended))

    @property
    def waiting(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.ops or self.rows or self.stale or self.keyed or self.appended)
