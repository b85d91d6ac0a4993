# SPDX-License-Identifier: Apache-2.0
"""The way back from SLEEP: rows are read, and the engine gets the records that it waits for.

    NEED_RECORD   of a connection that has a slot: its row must be there
    CANDIDATE       of a 4-tuple that the filter knows: it may be a false positive, and then has no row

What the engine cannot be told yet, since the database cannot be read, is tried again for READ_PATIENCE_S. The packets
of these clients are held meanwhile, so patience costs them nothing. Then they are dropped and the client sleeps on: its
kernel sends them again, and it is tried anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from errno import EAGAIN, EIO, ENOENT
from typing import Final

from appliance.wire import Command, Event, Op
from control.core.logs import about
from control.core.ports import EnginePort
from control.dispatch.turn import Counters
from control.store import records
from control.store.database import StoreError
from control.store.store import Store

log = logging.getLogger("roost.dispatch")

READ_PATIENCE_S: Final = 5.0
"""How long a client that wants to wake waits for a database that cannot be read, before it is given up."""

LOOK_UP_AGAIN_MS: Final = 50
"""How often a look-up of CANDIDATE is tried again."""


class Recall:
    """All of it runs in the dispatcher's thread. Times are CLOCK_MONOTONIC, s."""

    def __init__(self, engine: EnginePort, store: Store, counters: Counters) -> None:
        self._engine = engine
        self._store = store
        self._counters = counters
        self._unread: dict[bytes, tuple[Event, float]] = {}
        self._asked: dict[bytes, float] = {}
        """Keys that may sleep without a slot, and until when their look-up is tried."""
        self._next_look_up = 0.0
        self._fails = False
        self._unanswered = 0

    @property
    def looking_up(self) -> bool:
        """Whether there are look-ups to be tried again."""
        return bool(self._asked)

    # -- NEED_RECORD --------------------------------------------------------------------------------------------------

    def restore(self, events: Sequence[Event], now: float) -> None:
        """Answer these events of type NEED_RECORD, and those that could not be answered before."""
        needed = [*(event for event, _ in self._unread.values()), *events]
        if not needed:
            return
        keys = [event.record.key_raw for event in needed]
        rows: Mapping[bytes, tuple[bytes, bytes]] = {}
        why = ""
        try:
            rows = self._store.read({key: event.reference for key, event in zip(keys, needed, strict=True)})
        except StoreError as reason:
            why = str(reason)
        why = why or (self._store.damage if len(rows) < len(keys) else "")
        self._tell_of_failure(why)
        commands = []
        for event, key in zip(needed, keys, strict=True):
            row = rows.get(key)
            if row is None and why and now < self._unread.setdefault(key, (event, now + READ_PATIENCE_S))[1]:
                continue
            self._unread.pop(key, None)
            command = Command(op=Op.RESTORE, cause=event.cause, key=key, id=event.id, token=event.token)
            if row is not None:
                self._counters.restored += 1
                command.record = records.unpack(key, row[0] + row[1])
                command.id = command.record.id
            elif why:
                self._counters.unanswered += 1
                command.error = EIO
            else:
                self._counters.lost_records += 1
                command.error = ENOENT
                client = event.record.key
                log.error("%s cannot wake, and is closed: the store has no record of it", client.client_text,
                          extra=about(connection=event.id, client=client))  # fmt: skip
            commands.append(command)
        if commands:
            self._engine.submit(commands)

    # -- CANDIDATE -----------------------------------------------------------------------------------------

    def look_up(self, asked: list[bytes], now: float) -> None:
        """Answer for these keys, and for those that could not be looked up before, when it is time to try again."""
        if not asked and not (self._asked and now >= self._next_look_up):
            return
        if now >= self._next_look_up:
            asked = list(dict.fromkeys([*self._asked, *asked]))
            self._next_look_up = now + LOOK_UP_AGAIN_MS / 1000
        rows: Mapping[bytes, tuple[bytes, bytes] | None] = {}
        why = ""
        try:
            rows = self._store.asleep(asked)
        except StoreError as reason:
            why = str(reason)
        self._tell_of_failure(why)
        commands = []
        for key in asked:
            if key not in rows and now < self._asked.setdefault(key, now + READ_PATIENCE_S):
                continue
            self._asked.pop(key, None)
            row = rows.get(key)
            record = records.unpack(key, row[0] + row[1]) if row is not None else None
            error = 0 if row is not None else ENOENT if key in rows else EIO if why else EAGAIN
            self._counters.restored += not error
            self._counters.strangers += error == ENOENT
            self._counters.unanswered += error in (EIO, EAGAIN)
            commands.append(Command(op=Op.CANDIDATE, key=key, record=record, error=error))
        if commands:
            self._engine.submit(commands)

    def _tell_of_failure(self, why: str) -> None:
        """Once when it begins, and once when it is over: a flood can have any number of them asked for."""
        if why and not self._fails:
            log.error(
                "clients in SLEEP cannot wake now; their packets are held for %g s, and then until they come again: %s",
                READ_PATIENCE_S,
                why,
            )
            self._unanswered = self._counters.unanswered
        elif not why and self._fails:
            given_up = self._counters.unanswered - self._unanswered
            log.warning("clients in SLEEP can wake again; %d were looked for in vain, and sleep until they speak again",
                        given_up)  # fmt: skip
        self._fails = bool(why)
