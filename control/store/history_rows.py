# SPDX-License-Identifier: Apache-2.0
"""Rows of history out of their packed form (schema.HISTORY)."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final

from sqlalchemy.engine import Connection

from appliance.wire import LOW_BITS
from control.store import sleeping
from control.store.schema import HISTORY, KEY, MAPPED, address_text

_IPV4: Final = struct.Struct("=QQ 12s4B16x2B2x HBBB7xQQQ 18sBBI")  # schema.HISTORY, its key and ends taken apart
_KEY_AT: Final = 16
_SERVER: Final = struct.Struct("=16sH")
_NO_SERVER: Final = bytes(_SERVER.size)


@lru_cache(maxsize=4096)
def _server_text(packed: bytes) -> str:
    return address_text(*_SERVER.unpack(packed))


def history_values(connection: Connection, epochs: sleeping.Epochs, packed: bytes) -> list[tuple[Any, ...]]:
    """Of rows that are packed, one after the other: in the order of the columns behind the row's number."""
    # Most clients are IPv4, and this is done for each transition there ever is: 0.8 us, 1.3 by way of KEY and
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
            None if server == _NO_SERVER else _server_text(server),
            error or None,
            probes or None,
            silence or None,
        )
        for number, at, prefix, a, b, c, d, high, low, service, source, target, cause, rx, tx, gap, server, error,
            probes, silence in _IPV4.iter_unpack(packed)
    ]  # fmt: skip
    odd = {
        index: packed[index * HISTORY.size + _KEY_AT :][: KEY.size]
        for index, row in enumerate(values)
        if not (0 < row[0] < LOW_BITS and row[2])
    }
    # Of a SLEEP connection that the engine closes without reading its record it knows a reference.
    unknown = {key: values[index][0] for index, key in odd.items() if not 0 < values[index][0] < LOW_BITS}
    ids = sleeping.ids(connection, epochs, unknown) if unknown else {}
    for index, key in odd.items():
        number, at, _client, *rest = values[index]
        client, _local, port, _local_port = KEY.unpack(key)
        number = number if 0 < number < LOW_BITS else ids.get(key, 0)
        values[index] = (number, at, address_text(client, port), *rest)
    return values
