# SPDX-License-Identifier: Apache-2.0
"""A sleeping connection's record as its row keeps it: ka and rest, and behind them, of a pair, its server's leg."""

from __future__ import annotations

import struct
from typing import Final

from appliance.wire import KA, Record
from control.store.schema import KA_BYTES, KEY, REST_BYTES

_KA_4: Final = struct.Struct("=IIIIIIHHHBBI")
"""ka of schema 4: ctl, snd_nxt, rcv_nxt, ts_offset, ts_recent, heard_s, window, service, probe_interval_s, probe_sent,
challenge_tick, rest."""

_LEG: Final = KA_BYTES + REST_BYTES
_KEY: Final = KEY.size


def pack(record: Record) -> bytes:
    """What `unpack` takes apart again."""
    peer = record.peer
    return record.ka + record.rest + (peer.key_raw + peer.ka + peer.rest if peer else b"")


def unpack(key: bytes, packed: bytes) -> Record:
    """The record of the connection with this key. A rest that an earlier version wrote is shorter: it has no peer."""
    leg, other = packed[:_LEG].ljust(_LEG, b"\0"), packed[_LEG:]
    peer = unpack(other[:_KEY], other[_KEY:]) if len(other) >= _KEY + _LEG else None
    return Record(key, leg[:KA_BYTES], leg[KA_BYTES:], peer)


def from_schema_4(ka: bytes, rest: bytes) -> tuple[bytes, bytes]:
    """The two columns of a row that schema 4 or an earlier one wrote, as they are written now."""
    other = rest[REST_BYTES:]
    if len(other) == _KEY + _LEG:
        leg = _ka_from_schema_4(other[_KEY : _KEY + KA_BYTES])
        rest = rest[:REST_BYTES] + other[:_KEY] + leg + other[_KEY + KA_BYTES :]
    return _ka_from_schema_4(ka), rest


def _ka_from_schema_4(ka: bytes) -> bytes:
    *numbers, heard_s, window, service, probe_interval_s, _, _, rest = _KA_4.unpack(ka)
    return KA.pack(*numbers, heard_s << 12 & 0xFFFFFFFF, window, probe_interval_s, rest, service, 0)
