# SPDX-License-Identifier: Apache-2.0
"""Rows of an earlier boot go back into the table as they are, thousands by one call."""

from __future__ import annotations

import time
from array import array
from errno import EEXIST, EOPNOTSUPP, ESTALE

import pytest

from appliance.lab import wait_until
from appliance.wire import KA, LOW_BITS, REST, ROW_BITS, Key, Record
from appliance.wire.record import PAIRED
from control.core.states import State
from tests.lab.engine_lab import EngineLab

FAR_MS, TIMESTAMPS_MS = -70_500, -90_250


def row(box: EngineLab, number: int, where: int = 0, flags: int = 0, by_key: bool = False) -> Record:
    """The record of a client that slept before the reboot."""
    host, port = box.target()
    where = where or number
    heard = (int(time.monotonic()) + 60) << 12
    place = 0xFFFFFFFF if by_key else 1 << ROW_BITS | number
    ka = KA.pack(State.SLEEP | flags << 16, 1000, 2000, 123_456, 9, heard % 2**32, 512, 0, place, box.spec(4).index, 0)
    client = f"10.127.{where >> 8}.{where & 255}"
    return Record(Key.of(client, 2000, host, port).pack(), ka, REST.pack(number, 0, 65535, 65535, 0, 1460, 0, 0, 0))


def put_back(box: EngineLab, rows: list[Record], *far_ms: int, clocks: int = 1) -> tuple[int, bytes]:
    """far_ms: of each clock. clocks: how many the rows have, by turns."""
    shifts = {clock: (ms, TIMESTAMPS_MS) for clock, ms in enumerate(far_ms or (FAR_MS,), 1)}
    of = array("Q", (at % clocks + 1 for at in range(len(rows))))
    return box.engine.put_back(b"".join(one.key_raw for one in rows), b"".join(one.ka for one in rows),
                               array("Q", (one.id for one in rows)), of, shifts)  # fmt: skip


def test_they_are_in_the_table_on_this_boots_clock(box: EngineLab) -> None:
    rows = [row(box, number) for number in range(1, 1001)]
    assert put_back(box, rows) == (1000, bytes(1000))
    assert put_back(box, rows) == (1000, bytes(1000)), "by a daemon that did not get as far as to say so"
    assert box.stat("table_ipv4") == 1000
    for one in rows[::100]:
        event, expected = box.engine.find(one.key), one.shifted(FAR_MS, TIMESTAMPS_MS)
        assert event is not None
        assert event.to_state == State.SLEEP
        assert (event.record.ts_offset, event.record.heard_s) == (expected.ts_offset, expected.heard_s)
        assert event.reference == LOW_BITS | one.id


def test_who_was_heard_by_a_clock_that_was_ahead_has_not_been_silent_for_days(box: EngineLab) -> None:
    """By one that is an hour behind since the reboot, that is; all of them would be probed at once."""
    rows = [row(box, 1), row(box, 2)]
    put_back(box, rows[:1], 3_600_000)
    put_back(box, rows[1:], -60_000 - 86_000_000)
    ahead, behind = (box.engine.find(one.key) for one in rows)
    assert ahead is not None
    assert ahead.record.silence_s < 60
    assert behind is not None
    assert 86_000 <= behind.record.silence_s < 86_060


def test_each_is_on_this_boots_clock_by_that_of_its_row(box: EngineLab) -> None:
    """Of three clocks, by turns, of which the third one is unknown."""
    rows = [row(box, number) for number in range(1, 7)]
    assert put_back(box, rows, FAR_MS, FAR_MS - 60_000, clocks=3) == (6, bytes((0, 0, ESTALE, 0, 0, ESTALE)))
    found = [(box.engine.find(one.key), one.shifted(FAR_MS, 0).heard_s) for one in rows]
    assert [event and event.record.heard_s - heard_s for event, heard_s in found] == [0, -60, None] * 2


def test_what_cannot_go_back_this_way_is_told_apart(box: EngineLab) -> None:
    pair = box.connect()
    awake = row(box, 5)
    awake.key_raw = pair.key.pack()
    assert put_back(box, [row(box, 1)]) == (1, bytes(1))
    odd = [row(box, 2, where=1), awake, row(box, 3, flags=PAIRED), row(box, 4, by_key=True), row(box, 6)]
    assert put_back(box, odd) == (5, bytes((EEXIST, EEXIST, EOPNOTSUPP, ESTALE, 0)))
    assert box.stat("table_ipv4") == 2


@pytest.mark.engine(ipv4_slots=10_000, grow=True)
def test_the_table_grows_for_them_and_refuses_none(box: EngineLab) -> None:
    rows, at = [row(box, number) for number in range(1, 30_001)], 0

    def all_back() -> bool:
        nonlocal at
        done, errors = put_back(box, rows[at:])
        assert not any(errors)
        at += done
        return at == len(rows)

    wait_until(all_back, 10, "all are in the table", 0.01)
    assert (box.stat("table_ipv4"), box.stat("table_refused")) == (len(rows), 0)
