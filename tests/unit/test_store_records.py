# SPDX-License-Identifier: Apache-2.0
"""A record as its row keeps it."""

from __future__ import annotations

import pytest

from appliance.engine import KA, REST, Key, Record
from control.store.records import pack, unpack

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
    ka = KA.pack(0, 0, 0, 1000, 0, 500, 0, 0, 0, 0, 0, 0)
    rest = REST.pack(7, 50_000, 0, 0, 0, 0, 0, 0, 0)
    shifted = Record(KEY, ka, rest, Record(OTHER, ka, rest)).shifted(-20_000)
    assert shifted.peer is not None
    for leg in (shifted, shifted.peer):
        assert (leg.ts_offset, leg.heard_s, leg.active_ms) == (21_000, 480, 30_000)
