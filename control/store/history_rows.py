# SPDX-License-Identifier: Apache-2.0
"""Rows of history out of their packed form (schema.HISTORY)."""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from appliance.wire import LOW_BITS
from control.store import sleeping
from control.store.database import TAKES_PACKED
from control.store.schema import HISTORY, KEY, MAPPED, address_text, history_part, references_of
from control.store.statements import insert_rows

HISTORY_COLUMNS: Final = [column.name for column in history_part(0).columns]

STATEMENT_BYTES: Final = 500 * HISTORY.size
"""Of packed rows in one statement."""

_ID: Final = struct.Struct("=Q")
_KEY_AT: Final = 16
_IPV4: Final = struct.Struct("=QQ 12s4B16x2B2x HBBB7xQQQ 18sBBI")  # schema.HISTORY, its key and ends taken apart
_SERVER: Final = struct.Struct("=16sH")
_NO_SERVER: Final = bytes(_SERVER.size)


def with_numbers(connection: Connection, epochs: sleeping.Epochs, packed: bytes) -> bytes:
    """The same rows with the numbers of connections in place of references: of a SLEEP connection that the engine
    closes without reading its record it knows no more. 0: there is no row of it."""
    rows = bytearray(packed)
    odd = [(at * HISTORY.size, one) for at, one in enumerate(references_of(packed)) if not 0 < one < LOW_BITS]
    while odd:  # of connections that had a 4-tuple one after the other, one at a time
        sought, others = dict[bytes, int](), list[tuple[int, int]]()
        found = list[tuple[int, bytes]]()
        for at, reference in odd:
            key = packed[at + _KEY_AT :][: KEY.size]
            if sought.setdefault(key, reference) == reference:
                found.append((at, key))
            else:
                others.append((at, reference))
        ids = sleeping.ids(connection, epochs, sought)
        for at, key in found:
            _ID.pack_into(rows, at, ids.get(key, 0))
        odd = others
    return bytes(rows)


def history_values(packed: bytes) -> list[tuple[Any, ...]]:
    """Rows of `with_numbers`, in the order of the columns behind the row's number; as roost_history of
    cext/rows/history.c."""
    # Most clients are IPv4, and with PostgreSQL this is done for each transition there ever is: 0.8 us, 1.3 by way of
    # KEY and address_text.
    return [
        (
            number,
            at,
            f"{a}.{b}.{c}.{d}:{high << 8 | low}" if prefix == MAPPED else _client_text(prefix, a, b, c, d, high, low),
            service,
            source,
            target,
            cause,
            rx,
            tx,
            gap,
            None if server == _NO_SERVER else _server_text(server),
            error or None,
            probes or None,
            silence or None,
        )
        for number, at, prefix, a, b, c, d, high, low, service, source, target, cause, rx, tx, gap, server, error,
            probes, silence in _IPV4.iter_unpack(packed)
    ]  # fmt: skip


def _client_text(prefix: bytes, a: int, b: int, c: int, d: int, high: int, low: int) -> str:
    return address_text(prefix + bytes((a, b, c, d)), high << 8 | low)


@lru_cache(maxsize=4096)
def _server_text(packed: bytes) -> str:
    return address_text(*_SERVER.unpack(packed))


def insert_history(connection: Connection, part: sa.Table, first: int, packed: bytes) -> None:
    """Rows of with_numbers, numbered from `first` on. SQLite takes them apart itself where it can: 0.6 us a row in
    place of 2.7, and other threads have the interpreter for all that time."""
    for at in range(0, len(packed), STATEMENT_BYTES):  # taken apart, a row is ten times as large
        some, number = packed[at : at + STATEMENT_BYTES], first + at // HISTORY.size
        if connection.info.get(TAKES_PACKED):
            text = f"INSERT INTO {part.name} SELECT ? + rowid, * FROM roost_history(?)"
            connection.exec_driver_sql(text, (number, some))
            # A thread that waits for this processor runs now; else it was seen to wait for a whole slice, 3 ms, while
            # another processor was idle (Linux 6.18, a KVM guest).
            os.sched_yield()
        else:
            values = [(number + index, *row) for index, row in enumerate(history_values(some))]
            insert_rows(connection, part, HISTORY_COLUMNS, values)
