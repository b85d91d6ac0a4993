# SPDX-License-Identifier: Apache-2.0
"""What the inventory asks for is carried out while clients are served already, in a thread of its own."""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from errno import ENOSPC, EOPNOTSUPP, ESTALE
from typing import Final, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from appliance.engine import Engine
from appliance.wire import KA, KEY, Command, Key, Op
from control.clients.grouping import Grouping
from control.clients.in_band_settings import InBandSettings
from control.clients.registry import RegistryError
from control.clients.rules import Rules
from control.core.logs import about
from control.core.ports import BATCH
from control.core.states import Cause, State
from control.daemon.end import End
from control.daemon.inventory import Inventory, catch_up, record_of
from control.dispatch.dispatcher import Dispatcher
from control.dispatch.turn import history_row
from control.reach.reach import Reach
from control.store.database import StoreError, reason
from control.store.owner import boot_id
from control.store.sleeping import SleepingRow
from control.store.starting import wall_offset_ms
from control.store.store import Store

log = logging.getLogger("roost.daemon")

READ_AGAIN_S: Final = 5.0
"""Between two attempts to read what is needed from a database that could not be read at start."""

FLUSH_S: Final = 30.0
"""How long what was added to the history may take to be written."""

PUT_BACK_S: Final = 5.0
"""How long the engine may take to carry out a page of insertions."""

PAGE: Final = 1000
"""Rows that are written anew at a time."""

NO_ROOM_S: Final = 60.0
"""So long a table may take to grow; where there was no memory, it is tried again after 30 s."""

AFTER_MS: Final = 300_000
"""So long the data path may have answered for a daemon that is not known to have run any more."""

DOWN_MS: Final = 20 * 86_400_000
"""A clock that says that the machine was down for longer is not believed. From 2^31 ms on, 24.8 days, a TSval counts as
an old one."""


def timestamps_ahead_ms(by_wall_ms: int, alive_ms: int | None, now_ms: int) -> int:
    """How far CLOCK_MONOTONIC is to count as ahead of that of an earlier boot (mostly behind), for the timestamp clock
    that clients see: it runs on over the time of the reboot. A client drops what goes back behind the last TSval that
    it has seen (PAWS, RFC 7323 5), and the wall clock of one of the boots may have been wrong, or set.

    by_wall_ms: as both wall clocks say. alive_ms: until when the other boot is known to have lasted, on its own clock,
    None: it is not known. now_ms: CLOCK_MONOTONIC."""
    if alive_ms is None:
        return by_wall_ms
    at_most = now_ms - alive_ms - AFTER_MS
    return max(min(by_wall_ms, at_most), at_most - DOWN_MS)


class _Page(NamedTuple):
    """Of rows: Reader.sleeping_parts."""

    keys: bytes
    kas: bytes
    numbers: array[int]
    clocks: array[int]

    def behind(self, count: int) -> _Page:
        """Without so many of the first."""
        return _Page(self.keys[count * KEY.size :], self.kas[count * KA.size :], self.numbers[count:],
                     self.clocks[count:])  # fmt: skip


def _tell_unread(error: SQLAlchemyError) -> None:
    log.error("history: what the last daemon could not write is added at the next start, as far as it is known then, "
              "since the database could not be read: %s", reason(error))  # fmt: skip


class Reconciler:
    """`run` is for a thread of its own; it ends the daemon when it fails. span: (first, last) row number of the
    predecessor's history, last 0: none. filled: called when every row is in the table."""

    def __init__(self, engine: Engine, store: Store, dispatcher: Dispatcher, rules: Rules, settings: InBandSettings,
                 grouping: Grouping, reach: Reach, end: End, found: Inventory, span: tuple[int, int],
                 filled: Callable[[], None]) -> None:  # fmt: skip
        self._engine = engine
        self._store = store
        self._dispatcher = dispatcher
        self._rules = rules
        self._settings = settings
        self._grouping = grouping
        self._reach = reach
        self._end = end
        self._found = found
        self._span = span
        self._filled = filled
        self._is_full = False

    def run(self) -> None:
        """All of it."""
        try:
            self._close_lost()
            first, last = self._span
            lacks = last or self._found.lost or self._found.woke
            is_known, named = True, list[int]()
            try:
                if last and self._store.left_open() == self._found.open:
                    first = last + 1  # the last run has written what became of each connection
                if lacks:
                    named = self._store.put_last()
            except SQLAlchemyError as error:
                _tell_unread(error)
                is_known = False
            if self._found.other_boot or self._later():
                log.info("put back %d sleeping connections", self._put_back_all())
            if not self._end.has_come:
                self._filled()
            self._engine.unreserve_link_ports()
            # Each of them reads what the store has about connections that live, once.
            reach = self._reach
            reading = (self._rules.load, self._settings.load, reach.dialled.load, self._forget_strays,
                       reach.forget_withdrawn)  # fmt: skip
            while not all(read() for read in reading) and not self._end.has_come:
                time.sleep(READ_AGAIN_S)
            if self._end.has_come:
                return
            self._grouping.look_at_all()
            # Last: it reads all that the last run has written, minutes for 100,000,000 rows.
            is_whole = not lacks or (is_known and self._catch_up(named, first, last))
            self._store.release_history()
            if is_whole and last and not self._end.has_come:
                self._note_caught_up(last)
        except Exception as error:
            log.exception("reconciling with the store failed")
            self._end.fail(f"reconciling with the store: {error}")

    def _catch_up(self, named: Iterable[int], first: int, last: int) -> bool:
        """Whether that was done."""
        try:
            if missing := catch_up(self._store, self._found, named, first, last):
                log.warning("history: added %d transitions that the last daemon could not write", missing)
        except SQLAlchemyError as error:
            _tell_unread(error)
            return False
        return True

    def _note_caught_up(self, last: int) -> None:
        """Once what was added is written. Else the next start reads the same again."""
        with suppress(StoreError):
            if self._store.flush(FLUSH_S):
                self._store.note_caught_up(last)

    def _later(self) -> bool:
        """Whether rows that could not be read at start are from before a reboot; once they can be read."""
        while self._found.unseen and not self._end.has_come:
            try:
                return self._store.has_rows_of_another_boot(boot_id())
            except StoreError:
                time.sleep(READ_AGAIN_S)
        return False

    def _forget_strays(self) -> bool:
        try:
            strays = self._reach.agents.forget_strays()
        except RegistryError as error:
            log.error("agents: %s", error)
            return False
        if strays:
            log.info("closed %d data connections whose sessions ended with the last daemon", strays)
        return True

    def _close_lost(self) -> None:
        found = self._found
        if found.states[State.IDLE] + found.states[State.SLEEP]:
            log.info("adopted %d IDLE, %d SLEEP connections", found.states[State.IDLE], found.states[State.SLEEP])
        for start in range(0, len(found.without_row), BATCH):
            keys = found.without_row[start : start + BATCH]
            self._engine.submit([Command(op=Op.CLOSE, cause=Cause.RESTORE, key=key) for key in keys])
        if found.without_row:
            log.error("%d sleeping connections have no record in the store; closed", len(found.without_row))
        if found.lost:
            log.warning("%d records belong to connections that are gone; forgotten", len(found.lost))

    def _put_back_all(self) -> int:
        """What is in the table already is left alone when it begins anew."""
        while not self._end.has_come:
            try:
                return self._put_back()
            except (StoreError, SQLAlchemyError) as error:
                log.error("rows from before the reboot cannot be read now, and are put back later: %s", error)
                time.sleep(READ_AGAIN_S)
        return 0

    def _put_back(self) -> int:
        """Rows stay as they are but for a few; that their times are of another clock, their clock says in the end."""
        boot, offset, alive = boot_id(), wall_offset_ms(), self._store.alive_ms()
        now_ms = time.monotonic_ns() // 1_000_000
        others = self._store.other_clocks()
        shifts = {}  # since they were put back last
        for clock, row in others.items():
            by_wall_ms = row.wall_offset_ms - offset
            shift = by_wall_ms, timestamps_ahead_ms(by_wall_ms, alive.get(row.boot_id), now_ms)
            shifts[clock] = self._found.shifts.get(clock, shift)
        if self._found.left is not None:  # the others may have woken, and ended, by now
            put = self._put_back_each(self._found.left, boot, shifts)
            self._store.put_back(shifts)
            return put
        clocks_off = {clock: (others[clock].shift_ms + ms, others[clock].timestamps_ms + timestamps_ms)
                      for clock, (ms, timestamps_ms) in shifts.items()}  # fmt: skip
        put, after = 0, b""
        for page in map(_Page._make, self._store.sleeping_parts(descending=True)):
            if self._store.rows_by_key(limit=1):
                self._leave_out_followed(page)
            done, refused, single = self._put_back_page(page, clocks_off)
            self._close_refused(refused)
            put += done + self._put_back_each(single, boot, shifts)
            if self._end.has_come:
                return put
        while not self._end.has_come and (by_key := self._store.rows_by_key(after, PAGE)):
            put += self._put_back_each(array("Q", (row.id for row in by_key)), boot, shifts)
            after = by_key[-1].key
        if not self._end.has_come:
            self._store.put_back(shifts)
        return put

    def _put_back_page(self, page: _Page,
                       shifts: Mapping[int, tuple[int, int]]) -> tuple[int, dict[int, int], array[int]]:  # fmt: skip
        """By one call of the engine's, in which no row is looked at here. How many are back; the errno of each that is
        refused, by its number; and those that are to be put back one by one."""
        put, refused, single = 0, dict[int, int](), array("Q")
        deadline = time.monotonic() + (0 if self._is_full else NO_ROOM_S)
        while page.numbers:
            done, errors = self._engine.put_back(*page, shifts)
            put += errors.count(0)
            if any(errors):
                for number, error in zip(page.numbers, errors, strict=False):
                    if error == EOPNOTSUPP:
                        single.append(number)
                    elif error not in (0, ESTALE):
                        refused[number] = error
            page = page.behind(done)
            if done:
                deadline = time.monotonic() + NO_ROOM_S
            elif time.monotonic() > deadline or self._end.has_come:
                self._is_full = True
                refused |= {
                    number: ENOSPC for number, of in zip(page.numbers, page.clocks, strict=True) if of in shifts
                }
                log.error("%d connections are not put back, and closed: the table is full; give more room in [table]",
                          len(page.numbers))  # fmt: skip
                break
            else:
                time.sleep(0.01)  # the table grows
        return put, {} if self._end.has_come else refused, single

    def _close_refused(self, refused: Mapping[int, int]) -> None:
        """The client has connected again from the same port, so that the old connection is gone; or the table is full,
        and its keep-alives are not answered."""
        if not refused:
            return
        closed, deletes = [], []
        for row in self._store.rows_numbered([number for number in refused if number not in self._found.awake]):
            key = Key.unpack(row.key)
            if refused[row.id] != ENOSPC:
                log.warning("%s: not put back: %s", key.client_text, os.strerror(refused[row.id]),
                            extra=about(connection=row.id, client=key))  # fmt: skip
            closed.append(history_row(row.id, row.key, row.service, State.SLEEP, State.CLOSED))
            deletes.append((row.key, row.id))
        self._store.add(closed, deletes=deletes)

    def _put_back_each(self, numbers: array[int], boot: str, shifts: Mapping[int, tuple[int, int]]) -> int:
        """Pairs, and those that may need no slot: their rows are written anew, on this boot's clock. How many."""
        put, last, deadline = 0, None, 0.0
        for start in range(0, len(numbers), PAGE):
            found = sorted(self._store.rows_numbered(numbers[start : start + PAGE]), key=lambda row: -row.id)
            others = self._without_followed([row for row in found if row.boot_id != boot])
            records = [record_of(row).shifted(*shifts[row.clock]) for row in others]
            self._dispatcher.sleepers.insert(records)
            put += len(records)
            last = records[-1] if records else last
            deadline = time.monotonic() + PUT_BACK_S
            # One page at a time: a million records must not stand in memory. What is being written is put back, too.
            while self._dispatcher.sleepers.is_inserting() and not (self._end.has_come and time.monotonic() > deadline):
                time.sleep(0.01)
        while last is not None and self._engine.find(last.key) is None and time.monotonic() < deadline:
            time.sleep(0.01)  # the engine has the commands, and carries them out in order
        return put

    def _without_followed(self, rows: Sequence[SleepingRow]) -> Iterable[SleepingRow]:
        """Those whose client has not connected again from the same port. One that did before the last reboot is among
        them, newest first; one that sleeps without a slot by now is unknown to the engine, which refuses the others."""
        latest = self._store.sleeping_ids({row.key: 0 for row in rows})
        for row in rows:
            if latest.setdefault(row.key, row.id) <= row.id:
                latest[row.key] = row.id
                yield row
            else:
                self._close_followed(row)

    def _leave_out_followed(self, page: _Page) -> None:
        """The rows of those whose client has a later connection from the same port, which sleeps without a slot, or did
        before the reboot: it goes back after them."""
        keys = [page.keys[at : at + KEY.size] for at in range(0, len(page.keys), KEY.size)]
        latest = self._store.sleeping_ids(dict.fromkeys(keys, 0))
        followed = [at for at, key in enumerate(keys) if latest.get(key, 0) > page.numbers[at]]
        for at in followed:
            page.clocks[at] = 0  # of no clock: the engine leaves it alone
        for row in self._store.rows_numbered([page.numbers[at] for at in followed]):
            self._close_followed(row)

    def _close_followed(self, row: SleepingRow) -> None:
        key = Key.unpack(row.key)
        log.warning("%s: not put back: it has connected again", key.client_text,
                    extra=about(connection=row.id, client=key))  # fmt: skip
        closed = history_row(row.id, row.key, row.service, State.SLEEP, State.CLOSED)
        self._store.add([closed], deletes=[(row.key, row.id)])
