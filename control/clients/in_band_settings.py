# SPDX-License-Identifier: Apache-2.0
"""What connections set in band, and are given by command, kept for the time after this daemon.

The engine holds it as the connection's policy class (conn/classes.c), asleep in its slot, and tells it when a
connection goes IDLE: awake ones do not outlive the daemon anyway. What is told here brings it back where slots are lost
(a reboot) or were made before there were classes. It is forgotten with its connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sqlalchemy.exc import SQLAlchemyError

from appliance.wire import Command, Event, Op
from control.clients.living import living
from control.core.ports import BATCH, EnginePort
from control.core.states import State
from control.store.database import reason
from control.store.schema import OVERRIDDEN, OVERRIDES_BYTES, Keyed
from control.store.store import Store

log = logging.getLogger("roost.in_band")


class InBandSettings:
    """`keep` and `hear` belong to the dispatcher's thread; `load` may be called from any."""

    def __init__(self, store: Store, engine: EnginePort) -> None:
        self._store = store
        self._engine = engine
        self._written: set[bytes] = set()
        self._waiting: dict[bytes, bytes | None] = {}
        """For a database that cannot be written now: no longer than their connections live, so there is a bound."""
        self.loaded = False
        """False: the database could not be read yet; sleeping connections wake to the policy of their service."""

    def load(self) -> bool:
        """Hand to the engine what is kept of connections that live, and forget the rest; whether it succeeded."""
        if self.loaded:
            return True
        try:
            rows = [(key, *OVERRIDDEN.unpack(packed)) for key, packed in self._store.keyed("overrides")]
            alive = living(self._engine, self._store, [row[:2] for row in rows])
        except SQLAlchemyError as error:
            log.error("what was set in band cannot be read: %s", reason(error))
            return False
        commands = []
        dead: dict[Keyed, bytes | None] = {}
        for (key, number, overrides), lives in zip(rows, alive, strict=True):
            if lives:
                commands.append(Command(op=Op.OVERRIDE, id=number, key=key, overrides=overrides))
                self._written.add(key)
            elif key not in self._written:  # else it is another connection's by now
                dead["overrides", key] = None
        self._store.add(keyed=dead)
        for start in range(0, len(commands), BATCH):
            self._engine.submit(commands[start : start + BATCH])
        self.loaded = True
        return True

    def keep(self, event: Event) -> None:
        """An event of type OVERRIDES."""
        overrides = event.overrides
        kept = OVERRIDDEN.pack(event.id, overrides) if overrides != bytes(OVERRIDES_BYTES) else None
        self._waiting[event.record.key_raw] = kept
        self._write()

    def hear(self, transitions: Iterable[Event]) -> None:
        """A batch of transitions (TransitionsPort.listen)."""
        if not self._written and not self._waiting:
            return
        for event in transitions:
            if event.to_state != State.CLOSED:
                continue
            key = event.record.key_raw
            self._waiting.pop(key, None)
            if key in self._written:
                self._written.remove(key)
                self._store.add(keyed={("overrides", key): None})
        self._write()

    def _write(self) -> None:
        if self._waiting and not self._store.status.error:
            self._written.update(self._waiting)
            self._store.add(keyed={("overrides", key): kept for key, kept in self._waiting.items()})
            self._waiting.clear()
