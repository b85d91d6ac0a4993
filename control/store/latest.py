# SPDX-License-Identifier: Apache-2.0
"""Reading the store as if all that waits to be written were written.

What waits is with the writer (store.py), which changes it here while it holds the lock: rows that are queued, and those
of the transaction that it is at.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from control.core.states import State
from control.store import appended, sleeping, starting
from control.store.file import DamagedError
from control.store.history import History, Seen
from control.store.history_rows import HISTORY_COLUMNS, history_values, with_numbers
from control.store.queues import Batch, Pieces, Queues, unsettled
from control.store.reading import Reader
from control.store.schema import KEYED, SUCCESSOR, Keyed

log = logging.getLogger("roost.store")

PUT_LAST: Final = 50_000
READER_S: Final = 5.0
"""How long a reader of history waits for the commit of a row without a number: a disk may stall for a second."""


@dataclass(slots=True)
class StoreStatus:
    """What `roost status` says about the store."""

    error: str = ""
    pending_sleep: int = 0
    pending_history: int = 0
    dropped_history: int = 0
    dropped_attaches: int = 0
    dropped_snapshots: int = 0
    dropped_audit: int = 0
    written_history: int = 0
    kept_history: int = 0
    rescued: int = 0
    last_commit_ms: float = 0.0

    @property
    def text(self) -> str:
        return f"error: {self.error}" if self.error else "ok"


class Latest(Reader):
    """What is in the database, and on its way there. Its calls may come from any thread."""

    def __init__(self, url: sa.URL, history: History, queues: Queues, boot_id: str) -> None:
        super().__init__(url)
        lock = threading.RLock()
        self._wake, self._committed = threading.Condition(lock), threading.Condition(lock)
        self._history = history
        self._queues = queues
        self._being_written = Batch()
        self._settled_rows = self._settled_keyed = 0  # of what was queued ever: committed
        self._unheard: dict[bytes, sleeping.Committed] = {}  # committed, and not said to on_slept yet
        self._boot_id = boot_id
        self._status = StoreStatus()
        self._damage: DamagedError | None = None
        self._thread: threading.Thread | None = None
        """The writer."""

    @property
    def status(self) -> StoreStatus:
        with self._wake:
            self._status.pending_sleep = len(self._queues.ops) + len(self._being_written.ops)
            self._status.pending_history = len(self._queues.rows) + len(self._being_written.rows)
            self._status.kept_history = self._history.kept_rows
            return self._status

    @property
    def damage(self) -> str:
        """Why a row that is not found may be there all the same; "": it is not."""
        return str(self._damage or "")

    def flush(self, timeout_s: float = 1.0) -> bool:
        """Wait until all the history, appended rows and rows of schema.KEYED that were queued by now are committed;
        whether they are. A database that cannot be written is not waited for; nor is history that is held, and what
        was appended meanwhile."""
        with self._wake:
            rows = 0 if self._queues.held else self._queues.queued_rows
            changes = self._queues.queued_keyed

            def settled() -> bool:
                return self._settled_rows >= rows and self._settled_keyed >= changes

            if self._thread is not None:
                self._queues.urgent = self._queues.urgent or not settled()
                self._wake.notify()
                self._committed.wait_for(lambda: settled() or bool(self._status.error), timeout_s)
            return settled()

    def named(self, kind: str, names: Sequence[str] = (), numbers: Sequence[int] = ()) -> dict[str, bytes]:
        """As Reader has it, but as if all that waits were written."""
        with self._wake:
            batches = self._being_written.keyed, self._queues.keyed
            if numbers:  # any of them may have one
                waiting = {name: row for batch in batches for (where, name), row in batch.items() if where == kind}
            else:
                waiting = {name: batch[kind, name] for batch in batches for name in names if (kind, name) in batch}
        found: dict[Any, bytes | None] = {**super().named(kind, names, numbers), **waiting}
        wanted, of = frozenset(names), frozenset(numbers)
        return {
            name: row for name, row in found.items() if row and (name in wanted or KEYED[kind][1].unpack(row)[1] in of)
        }

    def asleep(self, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes] | None]:
        """key -> (ka, rest), or None when no row is found by that key alone. Of what is about to be written or
        forgotten, of such a row that an earlier boot wrote (it is about to be put back), and of what a damaged file has
        no row of, it is not known yet: those keys are left out. Like `read` in all else."""
        with self._wake:
            batches = [*unsettled(self._queues), *unsettled(self._being_written), self._unheard]
            open_ = {key for key in keys if any(key in batch for batch in batches)}
        found: dict[bytes, tuple[bytes, bytes] | None] = {key: None for key in keys if key not in open_}
        rows = self._read_rows(dict.fromkeys(found, 0))
        if self._damage is not None:
            found = {}
        for key, ka, rest, boot in rows:
            if boot == self._boot_id:
                found[key] = ka, rest
            else:
                found.pop(key, None)
        return found

    def last_states(self, first: int, last: int) -> Iterator[tuple[int, str, int, int]]:
        """History.last_states."""
        with self._reading() as connection:
            yield from self._history.last_states(connection, first, last)

    def row_as_of(self, number: int, last: int) -> dict[str, Any] | None:
        """Of a connection, of what is written of the history as far as this row; None: it is not known there. What is
        still to be written is not waited for."""
        for limit in (1, 100):  # there are later rows where Store.hold_history had to be given up
            with self._wake:
                seen = self._history.see(number, limit)
            with self._reading() as connection:
                found = self._history.rows(connection, seen, number, limit)
            for row in found:
                if row["seq"] <= last:
                    return row
        return None

    def put_last(self) -> list[int]:
        """starting.put_last: what half a second of going to sleep is, for which rows of the history wait."""
        with self._reading() as connection:
            return starting.put_last(connection, PUT_LAST)

    def left_open(self) -> int:
        """starting.left_open."""
        with self._reading() as connection:
            return starting.left_open(connection)

    def history_of(self, number: int, limit: int = 100) -> list[dict[str, Any]]:
        """The last `limit` transitions of a connection, oldest first; columns of a part of the history, and where it
        was closed the number of its successor, None: it has none. What waits to be written is among them."""
        return self._transitions(number, limit)

    def recent_attaches(self, limit: int, failed: bool = False) -> list[appended.Attach]:
        """appended.recent_attaches; what waits to be written is waited for, READER_S at most."""
        self.flush(READER_S)
        with self._reading() as connection:
            return appended.recent_attaches(connection, limit, failed)

    def recent_audit(self, limit: int, who: str = "", refused: bool = False) -> list[appended.Audit]:
        """appended.recent_audit, likewise."""
        self.flush(READER_S)
        with self._reading() as connection:
            return appended.recent_audit(connection, limit, who, refused)

    def recent_snapshots(self, moments: int) -> list[appended.Snapshot]:
        """appended.recent_snapshots, likewise."""
        self.flush(READER_S)
        with self._reading() as connection:
            return appended.recent_snapshots(connection, moments)

    def recent_history(self, limit: int = 100) -> list[dict[str, Any]]:
        """The last `limit` transitions of all, oldest first."""
        return self._transitions(None, limit)

    def _transitions(self, number: int | None, limit: int) -> list[dict[str, Any]]:
        seen, rows, changed = self._snapshot(number, limit)
        if rows.any_unnumbered():  # the row of `sleeping` has the number
            if not self.flush(READER_S):
                log.warning("store: history was asked for, and its last %d rows are not written",
                            self.status.pending_history)  # fmt: skip
            seen, rows, changed = self._snapshot(number, limit)
        waiting = rows.newest(number, limit)
        with self._reading() as connection:
            packed = with_numbers(connection, self._epochs, b"".join(row for _, row in waiting))
            found = [dict(zip(HISTORY_COLUMNS, (seen.next_row + place, *value), strict=True))
                     for (place, _), value in zip(waiting, history_values(packed), strict=True)]  # fmt: skip
            found += self._history.rows(connection, seen, number, limit - len(found))
        closed = [row["id"] for row in found if row["to"] == State.CLOSED]
        by = self.successors_of(closed) if closed else {}
        by |= {one: SUCCESSOR.unpack(row)[0] for one in closed if (row := changed.get(("successors", one)))}
        for shown in found:
            shown["successor"] = by.get(shown["id"]) if shown["to"] == State.CLOSED else None
        return found[::-1]

    def _snapshot(self, number: int | None, limit: int) -> tuple[Seen, Pieces, dict[Keyed, bytes | None]]:
        """What is committed, what waits to be (rows of history; rows of schema.KEYED): at one moment."""
        with self._wake:
            written = self._being_written
            rows = (Pieces() if written.settled else written.rows) + self._queues.rows
            return self._history.see(number, limit), rows, written.keyed | self._queues.keyed
