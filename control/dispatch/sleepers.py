# SPDX-License-Identifier: Apache-2.0
"""The way to SLEEP: the row first, and only when it is committed the command to forget the record.

    SLEEP_DUE, or a command ──> row to the store ──> committed ──> Op.SLEEP ──> SLEEP, or REFUSED: the row is stale

After a reboot the same way leads from a row of the last boot into the new table, by Op.INSERT.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from errno import EAGAIN
from typing import Final

from appliance.wire import Command, Event, Op, Record
from control.core.logs import about
from control.core.ports import BATCH, EnginePort, Outcome, Outcomes
from control.core.states import Cause, State
from control.dispatch.turn import Counters, Turn, history_row
from control.dispatch.waiters import Waiters
from control.store import records
from control.store.sleeping import Committed
from control.store.store import Store

log = logging.getLogger("roost.dispatch")

GENERATION: Final = 1 << 63
"""Bit of the tokens of ROOST_OP_SLEEP: the rest of it is the generation of the row that was committed."""

NOT_AWAITED: Final[Mapping[int, int]] = {Cause.COMMAND: 0, Cause.PRESSURE: -1, Cause.SHUTDOWN: -2}
"""In place of a token, by cause: it goes to sleep for another reason than that it is quiet, and the outcome is not
waited for."""

CAUSES: Final = {token: Cause(cause) for cause, token in NOT_AWAITED.items()}


class Sleepers:
    """`slept` belongs to the store's thread, `insert` and `is_inserting` to the one that reconciles, `sleep` to any,
    the rest to the dispatcher's."""

    def __init__(self, engine: EnginePort, store: Store, waiters: Waiters, counters: Counters) -> None:
        self._engine = engine
        self._store = store
        self._waiters = waiters
        self._counters = counters
        self._tokens: dict[bytes, int] = {}
        """By key, of the connections that go to sleep by command or under pressure."""
        self._inserting: dict[bytes, Record] = {}

    # -- the row ------------------------------------------------------------------------------------------------------

    def due(self, event: Event, turn: Turn) -> None:
        """An event of type SLEEP_DUE."""
        record = event.record
        if not self._store.sleep_allowed:
            self._counters.sleep_deferred += 1  # the engine says it again later
            return
        if (unawaited := NOT_AWAITED.get(event.cause)) is not None:
            self._tokens.setdefault(record.key_raw, unawaited)
        if (row := self._packed(record)) is not None:
            turn.upserts.append((record.key_raw, row))

    def sleep(self, record: Record, timeout_s: float) -> Future[Outcome]:
        """Put an IDLE connection to sleep by command: its row is written first."""
        token, future = self._waiters.expect([State.SLEEP], timeout_s)
        packed = record.key_raw
        if (row := self._packed(record)) is None:
            self._waiters.resolve(token, Outcome(EAGAIN), None)
            return future
        self._tokens[packed] = token
        self._store.add(upserts=[(packed, row)])
        return future

    def sleep_many(self, records: Sequence[Record], outcomes: Outcomes) -> None:
        """`sleep`, of many. Who is not IDLE any more, or was born asleep and has no record yet, counts as refused."""
        packed = ((record.key_raw, self._packed(record)) for record in records if record.id)
        rows = [(key, row) for key, row in packed if row is not None]
        for _ in range(len(records) - len(rows)):
            self._waiters.resolve(outcomes.token, Outcome(EAGAIN), None)
        self._tokens.update(dict.fromkeys((key for key, _ in rows), outcomes.token))
        self._store.add(upserts=rows)

    def _packed(self, record: Record) -> bytes | None:
        """For its row, the server's leg of a pair included: after a reboot the table knows neither. None: it is not
        IDLE any more, and the row that there may be is better."""
        if record.paired:
            record.peer = self._engine.find_peer(record.key_raw)
            if record.peer is None:
                return None
        return records.pack(record)

    def insert(self, found: Sequence[Record]) -> None:
        """Put sleeping records back into the table after a reboot: their rows are rewritten for this boot first."""
        packed = [(record.key_raw, record) for record in found]
        self._inserting.update(packed)
        self._store.add(upserts=[(key, records.pack(record)) for key, record in packed])

    def is_inserting(self) -> bool:
        """Whether records of `insert` wait for their rows. One whose row was to be removed before it was written, since
        its connection woke by the old one, does not go back."""
        if self._store.is_writing(waiting := list(self._inserting)):
            return True
        for packed in waiting:
            self._inserting.pop(packed, None)
        return False

    # -- the row is committed -----------------------------------------------------------------------------------------

    def slept(self, committed: list[Committed]) -> None:
        """These rows are committed: only now may the engine forget the records. Store's callback."""
        commands = []
        for packed, number, generation, blob in committed:
            if self._inserting and (record := self._inserting.pop(packed, None)) is not None:
                insert = Command(op=Op.INSERT, cause=Cause.RESTORE, id=record.id, key=packed, record=record)
                commands.append(insert)
                continue
            token, cause = GENERATION | generation, Cause.QUIET
            if self._tokens and (asked := self._tokens.pop(packed, None)) is not None:
                cause = CAUSES.get(asked, Cause.COMMAND)
                self._waiters.rename(asked, token)
            record = records.unpack(packed, blob)
            commands.append(Command(op=Op.SLEEP, cause=cause, id=number, key=packed, record=record, token=token))
        for start in range(0, len(commands), BATCH):
            self._engine.submit(commands[start : start + BATCH])

    # -- what comes in between ----------------------------------------------------------------------------------------

    def left_idle(self, key: bytes) -> None:
        """The connection with this key is not IDLE any more: a request to sleep that is not waited for is over."""
        if self._tokens.get(key) in NOT_AWAITED.values():
            del self._tokens[key]

    def expire(self, tokens: set[int]) -> None:
        """These tokens are not waited for any more."""
        if not tokens:
            return
        for packed in [packed for packed, token in list(self._tokens.items()) if token in tokens]:
            self._tokens.pop(packed, None)

    def refused(self, event: Event, turn: Turn) -> None:
        """An event of type REFUSED, to Op.SLEEP or Op.INSERT."""
        key = event.record.key_raw
        if event.op == Op.SLEEP:
            # It woke between the commit and the command, and the row is of no use; or SLEEP_DUE was said twice and it
            # sleeps already, by this very row. Which of the two, the engine knows. Should it wake, freeze and sleep
            # again before the row is removed, then by a row of a later generation, which stays.
            now = self._engine.find(event.record.key)
            if now is None or now.to_state != State.SLEEP:
                turn.stale.append((key, event.id, event.token & ~GENERATION))
        elif event.op == Op.INSERT:
            # After a reboot: the client has connected again from the same port, so the old connection is gone; or the
            # table is full, and its keep-alives are not answered.
            log.warning("%s: not put back: %s", event.record.key.client_text, os.strerror(event.error),
                        extra=about(connection=event.id, client=event.record.key))  # fmt: skip
            turn.rows.append(history_row(event.id, key, event.record.service, State.SLEEP, State.CLOSED))
            turn.deletes.append((key, event.id))
