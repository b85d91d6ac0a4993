# SPDX-License-Identifier: Apache-2.0
"""A sleeping connection's record as its row keeps it: ka and rest, and behind them, of a pair, its server's leg."""

from __future__ import annotations

from typing import Final

from appliance.wire import Record
from control.store.schema import KA_BYTES, KEY, REST_BYTES

_LEG: Final = KA_BYTES + REST_BYTES
_KEY: Final = KEY.size


def pack(record: Record) -> bytes:
    """What `unpack` takes apart again."""
    peer = record.peer
    return record.ka + record.rest + (peer.key_raw + peer.ka + peer.rest if peer else b"")


def shifted(ka: bytes, rest: bytes, ms: int, timestamps_ms: int) -> tuple[bytes, bytes]:
    """Record.shifted, of the two columns."""
    if not ms and not timestamps_ms:
        return ka, rest
    packed = pack(unpack(bytes(_KEY), ka + rest).shifted(ms, timestamps_ms))
    return packed[:KA_BYTES], packed[KA_BYTES:]


def unpack(key: bytes, packed: bytes) -> Record:
    """The record of the connection with this key. A rest that an earlier version wrote is shorter: it has no peer."""
    leg, other = packed[:_LEG].ljust(_LEG, b"\0"), packed[_LEG:]
    peer = unpack(other[:_KEY], other[_KEY:]) if len(other) >= _KEY + _LEG else None
    return Record(key, leg[:KA_BYTES], leg[KA_BYTES:], peer)
