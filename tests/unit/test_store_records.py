# SPDX-License-Identifier: Apache-2.0
"""A record as its row keeps it."""

from __future__ import annotations

import struct

import pytest

from appliance.engine import ffi
from appliance.wire import KA, NO_ENDS, REST, Ends, Key, Record, pack_address
from control.store.migrations.versions.r0001_schema_5 import from_schema_4
from control.store.records import pack, unpack
from control.store.schema import HISTORY

KEY = Key.of("192.0.2.1", 5, "192.0.2.2", 6).pack()
OTHER = Key.of("2001:db8::1", 7, "2001:db8::2", 8).pack()
LEG = Record(OTHER, bytes(range(KA.size)), bytes(range(REST.size)))


@pytest.mark.parametrize("peer", [None, LEG])
def test_what_is_packed_is_unpacked(peer: Record | None) -> None:
    record = Record(KEY, b"k" * KA.size, b"r" * REST.size, peer)
    assert unpack(KEY, pack(record)) == record


def test_a_row_of_an_earlier_version_has_no_peer() -> None:
    record = unpack(KEY, b"k" * KA.size + b"r" * 32)
    assert (record.rest, record.peer) == (b"r" * 32 + bytes(REST.size - 32), None)


def test_both_legs_are_shifted_to_the_clock_of_another_boot() -> None:
    ka = KA.pack(0, 0, 0, 1000, 0, 500 << 12 | 3, 0, 0, 0, 9, 0)
    rest = REST.pack(7, 50_000, 0, 0, 0, 0, 0, 0, 0)
    shifted = Record(KEY, ka, rest, Record(OTHER, ka, rest)).shifted(-20_000, -30_000)
    assert shifted.peer is not None
    for leg in (shifted, shifted.peer):
        assert (leg.ts_offset, leg.heard_s, leg.active_ms) == (31_000, 480, 30_000)
        assert (leg.probes_unanswered, leg.service) == (3, 9)


OLD = struct.Struct("=IIIIIIHHHBBI")


@pytest.mark.parametrize("paired", [False, True])
def test_a_record_of_schema_4_says_what_it_said(paired: bool) -> None:
    ka, leg = (
        OLD.pack(3 | n << 16, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, 2, 99, 0) for n in (10, 20)
    )
    rest = REST.pack(7, 50_000, 1, 2, 3, 4, 5, 6, 7)
    record = unpack(KEY, b"".join(from_schema_4(ka, rest + (OTHER + leg + rest if paired else b""))))
    assert (record.peer is not None) == paired
    for n, one in ((10, record), (20, record.peer)):
        if one is not None:
            assert one.rest == rest
            assert KA.unpack(one.ka) == (
                3 | n << 16,
                n + 1,
                n + 2,
                n + 3,
                n + 4,
                n + 5 << 12,
                n + 6,
                n + 8,
                0,
                n + 7,
                0,
            )


def test_a_row_of_schema_2_whose_rest_is_shorter_is_taken_too() -> None:
    ka, rest = from_schema_4(OLD.pack(*range(12)), b"r" * 32)
    assert unpack(KEY, ka + rest).service == 7


def test_a_row_of_the_engines_is_a_row_of_the_stores() -> None:
    numbers = {"id": 2**40, "at_ms": 2**41, "service": 7, "from_state": 1, "to_state": 2, "cause": 3}
    counted = {"rx_bytes": 2**42, "tx_bytes": 2**43, "gap_ms": 2**44}
    row = ffi.new("struct roost_row *", numbers | counted)
    ffi.memmove(ffi.addressof(row, "key"), KEY, len(KEY))
    row.ends.server = list(pack_address("192.0.2.7"))
    row.ends.server_port, row.ends.error, row.ends.probes, row.ends.silence_s = 8080, 104, 15, 2**20
    packed = bytes(ffi.buffer(row))
    *fields, ends = HISTORY.unpack(packed)
    assert fields == [2**40, 2**41, KEY, 7, 1, 2, 3, 2**42, 2**43, 2**44]
    assert Ends.unpack(ends) == ("192.0.2.7:8080", 104, 15, 2**20)
    assert Ends.unpack(NO_ENDS) == (None, None, None, None)
