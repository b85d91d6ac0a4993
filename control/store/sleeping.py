# SPDX-License-Identifier: Apache-2.0
"""The rows of those that sleep: put, found and forgotten, within a transaction or a connection of the caller's.

A row is sought by its connection's key together with a reference (appliance/wire/record.py): what is known of the
number. The connection's slot has the low bits, and of high bits there are few: `Epochs`. A row of whose number nothing
is in memory (a sleeper without a slot, or one whose slot an earlier version made) has `by_key` set, and is in the index
of keys, which has no others.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from appliance.wire import KA, LOW_BITS, ROW_BITS
from control.store.database import chunks, places
from control.store.schema import KA_BYTES, clocks, sleeping
from control.store.statements import insert_rows

LAST_NUMBER: Final = 2**63 - 1
"""No connection's is larger."""

CLOCK_MS: Final = 100
"""Two readings of how far the wall clock is from CLOCK_MONOTONIC are of one clock when they differ by less."""

_COLUMNS: Final = [column.name for column in sleeping.columns]
_PLACE: Final = struct.Struct("=28xI")  # of ka + rest: roost_ka.rest
_NUMBER: Final = struct.Struct(f"={KA_BYTES}xQ")  # likewise: roost_rest.id
_FIRST_BY_KEY: Final = sa.select(sleeping.c.key).where(sa.text("by_key = 1")).order_by(sleeping.c.key).limit(1)
_SERVICE_AT: Final = 9  # in KA

_LOW: Final = (1 << ROW_BITS) - 1
_TEXT: Final = "SELECT {columns} FROM sleeping WHERE {condition}"
_SLEEPING_ROW: Final = (
    "id, key, slept_at, (SELECT boot_id FROM clocks WHERE clocks.clock = sleeping.clock), "
    "(SELECT wall_offset_ms FROM clocks WHERE clocks.clock = sleeping.clock), ka, rest, clock, "
    "(SELECT shift_ms FROM clocks WHERE clocks.clock = sleeping.clock), "
    "(SELECT timestamps_ms FROM clocks WHERE clocks.clock = sleeping.clock)"
)
References = Mapping[bytes, int]
"""By key: the reference (Record.reference)."""

Run = Callable[[str, tuple[Any, ...]], Iterable[Sequence[Any]]]
"""Executes a statement by the driver, and returns its rows."""


Committed = tuple[bytes, int, int, bytes]
"""A row that is committed, or about to be: key, number, generation, ka + rest."""


@dataclass(frozen=True, slots=True)
class SleepingRow:
    """A row of `sleeping`; ka and rest are the C structs of ebpf/shared/record.h as they are."""

    id: int
    key: bytes
    slept_at: int
    boot_id: str
    wall_offset_ms: int
    ka: bytes
    rest: bytes
    clock: int
    shift_ms: int
    """As in `clocks`."""
    timestamps_ms: int

    @property
    def service(self) -> int:
        """Index of the service."""
        return int(KA.unpack(self.ka)[_SERVICE_AT])


class Epochs:
    """The high bits of numbers that rows have, or had: each is kept, for there is one more after a billion connections.
    Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: frozenset[int] = frozenset()
        self._loaded = False

    def note(self, numbers: Sequence[int]) -> None:
        """Rows of these numbers are about to be committed."""
        first, last = min(numbers) >> ROW_BITS, max(numbers) >> ROW_BITS
        if first != last or first not in self._known:
            with self._lock:
                self._known |= {number >> ROW_BITS for number in numbers}

    def reload(self) -> None:
        """The database may be another one."""
        self._loaded = False

    def numbers(self, run: Run, reference: int) -> list[int]:
        """Those that a reference other than 0 may mean. run: reads what there is, once."""
        if not reference & LOW_BITS:
            return [reference]
        if not self._loaded:
            with self._lock:
                self._known |= set(_epochs_of(run))
                self._loaded = True
        return [epoch << ROW_BITS | reference & _LOW for epoch in self._known]


def _epochs_of(run: Run) -> Iterator[int]:
    epoch = -1
    while True:
        text = f"SELECT min(id) FROM sleeping WHERE id >= {(epoch + 1) << ROW_BITS}"
        ((first,),) = run(text, ())
        if first is None:
            return
        yield (epoch := first >> ROW_BITS)


# -- finding -----------------------------------------------------------------------------------------------------------


def find(run: Run, database: str, epochs: Epochs, columns: str, sought: References) -> Iterator[Sequence[Any]]:
    """The rows of those of these connections that have one. columns: of `sleeping`, id and key first."""
    numbers = [number for reference in sought.values() if reference for number in epochs.numbers(run, reference)]
    keys = [key for key, reference in sought.items() if not reference]
    for condition, values in (("id IN ({})", numbers), ("by_key = 1 AND key IN ({})", keys)):
        for chunk in chunks(values):
            text = _TEXT.format(columns=columns, condition=condition.format(places(database, chunk)))
            for row in run(text, tuple(chunk)):
                if (reference := sought.get(row[1])) is not None and is_meant(row[0], reference):
                    yield row


def is_meant(number: int, reference: int) -> bool:
    """Whether a reference may mean a number."""
    return reference in (0, number, LOW_BITS | number & _LOW)


def rows(connection: Connection, epochs: Epochs, sought: References) -> Iterator[SleepingRow]:
    """As `find`."""
    for row in find(connection.exec_driver_sql, connection.dialect.name, epochs, _SLEEPING_ROW, sought):
        yield SleepingRow(*row)


def numbered(connection: Connection, numbers: Sequence[int]) -> Iterator[SleepingRow]:
    """The rows of those of these connections that have one."""
    for some in chunks(numbers):
        text = _TEXT.format(columns=_SLEEPING_ROW, condition=f"id IN ({places(connection.dialect.name, some)})")
        for row in connection.exec_driver_sql(text, tuple(some)):
            yield SleepingRow(*row)


def _page(connection: Connection, which: str, after: int | bytes, limit: int) -> list[SleepingRow]:
    condition = f"{which.format(places(connection.dialect.name, (after,)))} LIMIT {limit}"
    rows = connection.exec_driver_sql(_TEXT.format(columns=_SLEEPING_ROW, condition=condition), (after,))
    return [SleepingRow(*row) for row in rows]


def page_before(connection: Connection, before: int, limit: int) -> list[SleepingRow]:
    """Up to `limit` rows by descending numbers, those before one."""
    return _page(connection, "id < {} ORDER BY id DESC", before, limit)


def page_by_key(connection: Connection, after: bytes, limit: int) -> list[SleepingRow]:
    """Of those that are found by their key, likewise by ascending keys."""
    return _page(connection, "by_key = 1 AND key > {} ORDER BY key", after, limit)


def last_number(connection: Connection) -> int:
    """The largest; 0: nobody sleeps."""
    return connection.scalar(sa.select(sa.func.max(sleeping.c.id))) or 0


def ids(connection: Connection, epochs: Epochs, sought: References) -> dict[bytes, int]:
    """key -> number of those that have a row."""
    found = find(connection.exec_driver_sql, connection.dialect.name, epochs, "id, key", sought)
    return {key: number for number, key in found}


# -- writing -----------------------------------------------------------------------------------------------------------


def clock(connection: Connection, boot_id: str, offset_ms: int) -> int:
    """The number of this boot's clock, as it is set now."""
    known = sa.select(clocks.c.clock).where(
        clocks.c.boot_id == boot_id, clocks.c.wall_offset_ms.between(offset_ms - CLOCK_MS, offset_ms + CLOCK_MS),
        clocks.c.shift_ms == 0, clocks.c.timestamps_ms == 0,
    )  # fmt: skip
    if (number := connection.scalar(known.limit(1))) is None:
        number = (connection.scalar(sa.select(sa.func.max(clocks.c.clock))) or 0) + 1
        connection.execute(sa.insert(clocks).values(clock=number, boot_id=boot_id, wall_offset_ms=offset_ms))
    return number


def number_of(record: bytes) -> int:
    """Of ka + rest."""
    return int(_NUMBER.unpack_from(record)[0])


def put(
    connection: Connection, epochs: Epochs, records: Sequence[Committed], slept_at: int, of_clock: int
) -> list[Committed]:
    """Rows for these records, in place of those that their connections have; those that have one now. Of the others the
    number is another connection's in this database: their pins were an instance's that had another database."""
    text, run = _TEXT.format(columns="id, key", condition="id IN ({})"), connection.exec_driver_sql
    there: dict[int, bytes] = {}
    for chunk in chunks([number for _, number, _, _ in records]):
        found_there = run(text.format(places(connection.dialect.name, chunk)), tuple(chunk))
        there.update((number, key) for number, key in found_there)
    again = set(there)
    records = [one for one in records if there.setdefault(one[1], one[0]) == one[0]]
    if again:
        forget(connection, epochs, [(key, number) for key, number, _, _ in records if number in again])
    if records and connection.scalar(_FIRST_BY_KEY) is not None:
        # Rows of earlier connections with the same 4-tuple are gone; but a kill may have left one of a candidate's.
        place = places(connection.dialect.name, (0,))
        text = f"DELETE FROM sleeping WHERE by_key = 1 AND key = {place} AND id < {place}"
        run(text, [(key, number) for key, number, _, _ in records])
    found = []
    for key, number, generation, record in records:
        by_key = int(_PLACE.unpack_from(record)[0] >> ROW_BITS != 1)  # low_bits_of() takes four times as long
        found.append((number, key, by_key, generation, slept_at, of_clock, record[:KA_BYTES], record[KA_BYTES:]))
    if found:
        epochs.note([row[0] for row in found])
        insert_rows(connection, sleeping, _COLUMNS, found)
    return records


def forget(connection: Connection, epochs: Epochs, gone: Iterable[tuple[bytes, int]]) -> None:
    """The rows of these connections; (key, reference)."""
    keys, numbered = list[bytes](), list[tuple[int, bytes]]()
    for key, reference in gone:
        if reference:
            numbered += [(number, key) for number in epochs.numbers(connection.exec_driver_sql, reference)]
        else:
            keys.append(key)
    place = places(connection.dialect.name, (0,))
    if numbered:
        connection.exec_driver_sql(f"DELETE FROM sleeping WHERE id = {place} AND key = {place}", numbered)
    for chunk in chunks(keys):
        text = f"DELETE FROM sleeping WHERE by_key = 1 AND key IN ({places(connection.dialect.name, chunk)})"
        connection.exec_driver_sql(text, tuple(chunk))


def forget_all(connection: Connection) -> None:
    """Nobody sleeps any more."""
    connection.execute(sa.delete(sleeping))


def forget_stale(connection: Connection, stale: Iterable[tuple[bytes, int, int]]) -> None:
    """Of these (key, number, generation)."""
    values = [{"i": number, "g": generation} for _, number, generation in stale]
    connection.execute(_FORGET_STALE, values)


_FORGET_STALE: Final = sa.delete(sleeping).where(
    sleeping.c.id == sa.bindparam("i"), sleeping.c.generation == sa.bindparam("g")
)
