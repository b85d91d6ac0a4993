# SPDX-License-Identifier: Apache-2.0
"""What a predecessor left: the adopted table and the store are compared before the engine runs, and the history is
completed by what the predecessor could not write."""

from __future__ import annotations

import hashlib
import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from appliance.frontends.target import parse_address
from appliance.wire import CANDIDATE, KA, Key, Record, Sought
from appliance.wire.record import PAIRED
from control.core.ports import BATCH, EnginePort
from control.core.states import AWAKE, LEGAL, Cause, State
from control.dispatch.turn import history_row
from control.store import records
from control.store.database import READ_CHUNK
from control.store.owner import boot_id
from control.store.sleeping import SleepingRow
from control.store.store import Store

log = logging.getLogger("roost.daemon")


@dataclass(slots=True)
class Inventory:
    """What table and store say when the daemon begins."""

    states: list[int] = field(default_factory=lambda: [0] * len(State))
    idle_ids: array[int] = field(default_factory=lambda: array("Q"))
    awake: dict[int, State] = field(default_factory=dict)
    """That the last daemon handed over."""
    sleep_ids: array[int] = field(default_factory=lambda: array("Q"))
    """In ascending order."""
    without_row: list[bytes] = field(default_factory=list)
    """SLEEP in the table, unknown to the store: they cannot be rebuilt."""
    lost: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """Rows of this boot whose connection is gone, their keys and services by number; forgotten."""
    woke: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """Likewise, of those in IDLE: they woke since, or never fell asleep."""
    other_boot: int = 0
    """Rows from before a reboot, or of tables that are gone: to be put back into the table."""
    unseen: bool = False
    """The store could not be read."""
    left: array[int] | None = None
    """Of a machine that stood by, and had all but these rows in its table; None: this one did not."""
    shifts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Then, by clocks, what the rows in its table are off by (starting.put_back)."""
    ports: set[int] = field(default_factory=set)
    """Ours, of the servers' legs among them: no new link may take one meanwhile."""

    @property
    def open(self) -> int:
        """How many are awake or in IDLE."""
        return len(self.awake) + len(self.idle_ids)


def tables_of(pin_dir: str) -> int:
    """A number of the tables that are pinned there, which no others have, before or after; 0: there are none."""
    found = [boot_id()]
    for name in ("tables4", "tables6"):
        try:
            status = (Path(pin_dir) / name).stat()
        except OSError:
            return 0
        found.append(f"{status.st_dev} {status.st_ino} {status.st_mtime_ns}")
    return int.from_bytes(hashlib.sha256("\n".join(found).encode()).digest()[:7])


def take_inventory(engine: EnginePort, store: Store, boot: str, tables: int = 0) -> Inventory:
    """Compare the adopted table with the store, and forget rows that mean nothing. The engine must not run yet. tables:
    of `tables_of`.

    There may be ten million rows, and no client is served meanwhile: nothing is done for each of them in Python."""
    found = Inventory()
    for event in engine.list(Sought(states=(*AWAKE, State.IDLE))):
        found.states[event.to_state] += 1
        if event.to_state == State.IDLE:
            found.idle_ids.append(event.number)
        else:
            found.awake[event.number] = State(event.to_state)
    with_slot = engine.slots_in_sleep()
    found.states[State.SLEEP] = with_slot
    if store.status.error:
        log.warning("the store cannot be read: what sleeps is adopted unseen")
        found.unseen = True
        found.states[State.SLEEP] += engine.stats().get("filter_members", 0)
        return found
    if tables and (others := store.adopt_tables(tables)):
        log.warning("the pins are not those for which %d sleeping connections were written: they are put back", others)
    earlier = store.other_clocks() if store.has_rows_of_another_boot(boot) else {}
    rows_with_slot = 0
    for keys, numbers, odd_of in _pages(store, earlier):
        states = engine.states(keys, numbers)
        rows_with_slot += states.count(State.SLEEP)
        found.states[State.SLEEP] += states.count(State.SLEEP | CANDIDATE)
        if not set(states) <= _ASLEEP or earlier:  # mostly they are asleep: that is what the row says
            odd, to_be_put_back = odd_of(states)
            found.other_boot += to_be_put_back
            numbers = _take_odd(found, store, boot, numbers, odd)
        found.sleep_ids.extend(numbers)
    if rows_with_slot < with_slot:
        _find_slots_without_row(found, engine, store)
    return found


_ASLEEP: Final = frozenset({State.SLEEP, State.SLEEP | CANDIDATE})
_FLAGS_AT: Final = 2
"""Of `ka`: the byte in which PAIRED stands."""

_OddOf = Callable[[bytes], tuple[dict[int, int], int]]
"""By the states of a page's rows: those that are to be looked at closer, number -> state; and how many of the others
are to be put back."""


def _pages(store: Store, others: Container[int]) -> Iterator[tuple[bytes, array[int], _OddOf]]:
    """others: the clocks of other boots."""
    if not others:
        for keys, numbers in store.sleeping_numbers():
            yield keys, numbers, partial(_odd, numbers)
        return
    for keys, kas, numbers, clocks in store.sleeping_parts():
        yield keys, numbers, partial(_odd_of_boots, numbers, kas[_FLAGS_AT :: KA.size], clocks, others)


def _odd(numbers: array[int], states: bytes) -> tuple[dict[int, int], int]:
    return {number: state for number, state in zip(numbers, states, strict=True) if state not in _ASLEEP}, 0


def _odd_of_boots(
    numbers: array[int], flags: bytes, clocks: array[int], others: Container[int], states: bytes
) -> tuple[dict[int, int], int]:
    """Of an earlier boot, those that the table does not have are to be put back. Of a pair the ports are kept free, so
    its row is read."""
    odd, to_be_put_back = dict[int, int](), 0
    for number, flag, clock, state in zip(numbers, flags, clocks, states, strict=True):
        is_other = clock in others
        if state == State.SLEEP or (state in _ASLEEP and not is_other):
            continue
        if state == State.NONE and is_other and not flag & PAIRED:
            to_be_put_back += 1
        else:
            odd[number] = state
    return odd, to_be_put_back


def _take_odd(found: Inventory, store: Store, boot: str, numbers: array[int], odd: Mapping[int, int]) -> array[int]:
    """Look at those rows of a page closer that say something else than table and filter; the numbers of the others."""
    if not odd:
        return numbers
    gone: set[int] = set()
    deletes: list[tuple[bytes, int]] = []
    for row in store.rows_numbered(list(odd)):
        state = odd[row.id]
        if row.boot_id != boot and (state == State.NONE or state & CANDIDATE):
            found.other_boot += 1  # asleep all the while: it is no transition that the history lacks
            found.states[State.SLEEP] -= bool(state & CANDIDATE)  # by another's fingerprint
            if (peer := record_of(row).peer) is not None:
                found.ports.add(peer.key.local_port)
        elif state not in _ASLEEP:
            gone.add(row.id)
            deletes.append((row.key, row.id))
            if state == State.NONE:
                found.lost[row.id] = row.key, row.service
            elif state == State.IDLE:
                found.woke[row.id] = row.key, row.service
    store.add(deletes=deletes)
    return array("Q", (number for number in numbers if number not in gone)) if gone else numbers


def _find_slots_without_row(found: Inventory, engine: EnginePort, store: Store) -> None:
    asleep = ((event.record.key_raw, event.reference) for event in engine.list() if event.to_state == State.SLEEP)
    while chunk := dict(islice(asleep, READ_CHUNK)):
        known = store.sleeping_ids(chunk)
        found.without_row += [key for key in chunk if key not in known]


def record_of(row: SleepingRow) -> Record:
    """The record that a row keeps."""
    return records.unpack(row.key, b"".join(records.shifted(row.ka, row.rest, row.shift_ms, row.timestamps_ms)))


def catch_up(store: Store, found: Inventory, named: Iterable[int], first: int, last: int) -> int:
    """Write the transitions that a killed predecessor made or suffered and could not write; returns how many. To be
    called between Store.hold_history and release_history: what this daemon writes comes behind them.

    Its last word about each connection stands in history[first..last], all of which is read; the inventory says what
    was really found. named: Store.put_last, as it was before this daemon wrote rows."""
    idle, asleep = array("Q", sorted(found.idle_ids)), found.sleep_ids
    rows: list[bytes] = []
    written = 0
    unnamed, lost, woke = set(named), dict(found.lost), dict(found.woke)
    for number, client, service, last_state in store.last_states(first, last):
        unnamed.discard(number)
        lost.pop(number, None)
        woke.pop(number, None)
        lasts = State.IDLE if _holds(idle, number) else State.SLEEP if _holds(asleep, number) else State.CLOSED
        actual = found.awake.get(number, lasts)
        if actual == last_state:
            continue
        steps = _steps(State(last_state), actual)
        rows += [history_row(number, _key_of(client), service, a, b) for a, b in steps]
        written += len(steps)
        if len(rows) >= BATCH:
            store.add(rows, first=True)
            rows = []
    # Who was in IDLE when the predecessor began has no row of the history there, nor who slept then.
    for number in unnamed:
        if _holds(asleep, number) and (row := store.row_as_of(number, last)) and row["to"] == State.IDLE:
            rows.append(history_row(number, _key_of(row["client"]), row["service"], State.IDLE, State.SLEEP))
            written += 1
    for number, (of, service) in woke.items():
        if (row := store.row_as_of(number, last)) and row["to"] == State.SLEEP:
            rows.append(history_row(number, of, service, State.SLEEP, State.IDLE))
            written += 1
    for number, (of, service) in lost.items():  # CLOSED there, or in a run before that one
        row = store.row_as_of(number, last)
        steps = _steps(State(row["to"]) if row else State.SLEEP, State.CLOSED)
        rows += [history_row(number, of, service, a, b) for a, b in steps]
        written += len(steps)
    store.add(rows, first=True)
    return written


def _key_of(client: str) -> bytes:
    """The history knows no local address, and of a row's key only the client's is asked for."""
    address = parse_address(client)
    return Key.of(address.host, address.port, "::", 0).pack()


def _holds(ids: array[int], number: int) -> bool:
    at = bisect_left(ids, number)
    return at < len(ids) and ids[at] == number


def _steps(source: State, target: State) -> list[tuple[State, State]]:
    """The legal way from what the history says to what is, by `restore`."""
    if (source, target, Cause.RESTORE) in LEGAL:
        return [(source, target)]
    if target is State.SLEEP:
        return [(source, State.IDLE), (State.IDLE, State.SLEEP)]
    # It woke and was frozen again unrecorded. The history cannot say when; it says nothing rather than something false.
    return []
