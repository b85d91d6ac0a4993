# SPDX-License-Identifier: Apache-2.0
"""Which connections there are now: the engine knows, but of what sleeps the store alone has the number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.wire import Event, Key
from control.core.ports import EnginePort
from control.store.owner import boot_id
from control.store.store import Store


def living(engine: EnginePort, store: Store, owners: Sequence[tuple[bytes, int]]) -> list[bool]:
    """For each key and number whether that very connection lives: the key may be another one's by now. Raises
    SQLAlchemyError."""
    numbers = numbers_at(engine, store, dict(sorted(owners)))  # of two with the same key the newer one
    return [numbers[key] == number for key, number in owners]


def numbers_at(engine: EnginePort, store: Store, owners: Mapping[bytes, int]) -> dict[bytes, int | None]:
    """The number of the connection that has each key; 0 or None: there is none. owners: the number that it may have, by
    key; 0: it is not known. Raises SQLAlchemyError."""
    events = dict(zip(owners, engine.find_many([*owners]), strict=True))
    numbers = {key: _number(event) for key, event in events.items()}
    if asleep := {key: e.reference or owners[key] for key, e in events.items() if e is not None and not numbers[key]}:
        # A row is written before its connection sleeps and removed after: one without it has woken since.
        rows = store.sleeping_ids(asleep)
        numbers |= {key: rows.get(key) or _number(engine.find(Key.unpack(key))) for key in asleep}
    if nowhere := {key: owners[key] for key, number in numbers.items() if number is None}:
        boot = boot_id()  # a row of this one is about to be removed; of another, to be put back after a reboot
        numbers |= {row.key: row.id for row in store.rows_at(nowhere) if row.boot_id != boot}
    return numbers


def _number(event: Event | None) -> int | None:
    """0: the engine does not know it, of one that sleeps or may sleep. None: there is no such connection."""
    return None if event is None else event.number
