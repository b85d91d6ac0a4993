# SPDX-License-Identifier: Apache-2.0
"""Which of the connections that the store has something about still exist."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.wire import Key
from control.core.ports import EnginePort
from control.store.database import READ_CHUNK
from control.store.store import Store


def living(engine: EnginePort, store: Store, owners: Sequence[tuple[bytes, int]]) -> list[bool]:
    """For each key and number whether that very connection lives: the key may be another one's by now. Raises
    SQLAlchemyError."""
    alive = []
    for start in range(0, len(owners), READ_CHUNK):
        chunk = owners[start : start + READ_CHUNK]
        ids = store.sleeping_ids([key for key, _ in chunk])
        for key, number in chunk:
            event = engine.find(Key.unpack(key))
            # Nowhere, but asleep by its row: it is about to be put back after a reboot. Of what sleeps, the row alone
            # has the number.
            known = (event.id or event.record.id if event else 0) or ids.get(key, 0)
            alive.append(known == number)
    return alive
