# SPDX-License-Identifier: Apache-2.0
"""Rows of history out of their packed form (schema.HISTORY)."""

from __future__ import annotations

import struct
from typing import Any, Final

from sqlalchemy.engine import Connection

from appliance.wire import LOW_BITS
from control.store import sleeping
from control.store.schema import HISTORY, KEY, MAPPED, address_text

_IPV4: Final = struct.Struct("=QQ 12s4B16x2B2x HBBB7xQQQ")  # schema.HISTORY, its key taken apart


def history_values(connection: Connection, epochs: sleeping.Epochs, packed: bytes) -> list[tuple[Any, ...]]:
    """Of rows that are packed, one after the other: in the order of the columns behind the row's number."""
    # Most clients are IPv4, and this is done for each transition there ever is: 0.6 us, 1.1 by way of KEY and
    # address_text.
    values = [
        (
            number,
            at,
            f"{a}.{b}.{c}.{d}:{high << 8 | low}" if prefix == MAPPED else "",
            service,
            source,
            target,
            cause,
            rx,
            tx,
            gap,
        )
        for number, at, prefix, a, b, c, d, high, low, service, source, target, cause, rx, tx, gap in (
            _IPV4.iter_unpack(packed)
        )
    ]
    odd = {
        index: HISTORY.unpack_from(packed, index * HISTORY.size)
        for index, row in enumerate(values)
        if not (0 < row[0] < LOW_BITS and row[2])
    }
    # Of a SLEEP connection that the engine closes without reading its record it knows a reference.
    unknown = {row[2]: row[0] for row in odd.values() if not 0 < row[0] < LOW_BITS}
    ids = sleeping.ids(connection, epochs, unknown) if unknown else {}
    for index, (number, at, key, *rest) in odd.items():
        client, _local, port, _local_port = KEY.unpack(key)
        number = number if 0 < number < LOW_BITS else ids.get(key, 0)
        values[index] = (number, at, address_text(client, port), *rest)
    return values
