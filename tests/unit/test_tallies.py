# SPDX-License-Identifier: Apache-2.0
"""cext/conn/tallies.c: what connections of a class did, and how many are in each state."""

from __future__ import annotations

from collections import Counter
from errno import EAGAIN
from typing import Any

from appliance.wire import Key
from control.core.states import Cause, State
from tests.inner import ffi, lib
from tests.unit.records import IDLE, SERVER, SLEEP, Ka, c_key
from tests.unit.test_classes import SERVICES, Own
from tests.unit.test_ruled_classes import MINUTE, Ruled, rule
from tests.unit.test_turns import START_MS, Still

BORN = 1 << 31 | 1460 << 16
Told = tuple[int, int, int, int]
"""class, from, to, cause."""


def tallies(still: Still) -> list[tuple[Told, tuple[int, int, int]]]:
    raw = ffi.new("struct roost_tally[]", lib.ROOST_TALLIES)
    taken = raw[0 : lib.roost_tallies_take(still.raw, raw)]
    return [
        ((getattr(t, "class"), t.from_state, t.to_state, t.cause), (t.count, t.rx_bytes, t.tx_bytes)) for t in taken
    ]


def census(still: Still) -> dict[int, tuple[dict[str, int], int]]:
    at, raw = ffi.new("uint64_t[2]"), ffi.new("struct roost_census[]", lib.ROOST_CLASSES)
    while more := lib.roost_census(still.raw, at, raw):
        assert more == 1
    found: dict[int, tuple[dict[str, int], int]] = {}
    for number, one in enumerate(raw):
        states = {State(state).name: count for state, count in enumerate(one.in_state) if count}
        if states or one.born:
            found[number] = states, one.born
            assert one.service == 1
    return found


def client(number: int) -> Key:
    return Key.of(f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 1, "192.0.2.9", 80)


def test_what_happened_is_told_once_by_class_states_and_cause() -> None:
    still = Still()
    for rx in (5, 7):
        lib.roost_testing_tally(still.raw, 1, State.SLEEP, State.ACTIVE, Cause.CLIENT_DATA, rx, 1)
    lib.roost_testing_tally(still.raw, 1, State.SLEEP, State.ACTIVE, Cause.SERVER_ATTACH, 0, 0)
    lib.roost_testing_tally(still.raw, 2, State.SLEEP, State.ACTIVE, Cause.CLIENT_DATA, 3, 0)
    woken = State.SLEEP, State.ACTIVE
    assert dict(tallies(still)) == {
        (1, *woken, Cause.CLIENT_DATA): (2, 12, 2),
        (1, *woken, Cause.SERVER_ATTACH): (1, 0, 0),
        (2, *woken, Cause.CLIENT_DATA): (1, 3, 0),
    }
    assert tallies(still) == []


def test_more_kinds_than_there_is_room_for_are_not_counted() -> None:
    still = Still()
    for kind in range(lib.ROOST_TALLIES + 3):
        lib.roost_testing_tally(still.raw, 1, kind >> 16, kind >> 8 & 255, kind & 255, 0, 0)
    lib.roost_testing_tally(still.raw, 1, 0, 0, 7, 0, 0)
    found = dict(tallies(still))
    assert len(found) == lib.ROOST_TALLIES
    assert found[1, 0, 0, 7] == (2, 0, 0), "one that there is goes on"
    lib.roost_testing_tally(still.raw, 1, 1, 0, 1, 0, 0)
    assert tallies(still) == [((1, 1, 0, 1), (1, 0, 0))], "there is room again"


def test_probes_and_deaths_are_of_the_class_of_their_slot() -> None:
    still = Still()
    still.governed(probe_interval_s=8)
    for number in range(3):
        still.insert(client(number), Ka(SLEEP))
    counts: Counter[Told] = Counter()
    events = ffi.new("struct roost_event[16]")
    for _ in range(300):
        still.now_ms += 1000
        lib.roost_testing_sweep(still.raw, still.now_ms)
        while lib.roost_events(still.raw, events, 16, 0, 0):
            pass
        counts.update({told: count for told, (count, _, _) in tallies(still)})
    died = 1, State.SLEEP, State.CLOSED, Cause.PROBE_TIMEOUT
    assert counts == {(1, State.SLEEP, State.SLEEP, Cause.NONE): 12, died: 3}, "four probes each"


def test_a_census_has_each_slot_by_class_and_state() -> None:
    still = Ruled(slots=4000, rests=64)
    still.rule([rule("10.0.1.0/24")], [MINUTE])
    ruled = still.classes[0]
    for number in range(1000):  # 256 of them in the rule's network
        slot = still.insert(client(number), Ka(SLEEP))
        setattr(slot, "class", ruled if number >> 8 == 1 else 1)
    for number in range(1000, 1010):
        still.insert(client(number), Ka(IDLE), active_ms=START_MS)
    born: Any = Ka(IDLE, rest=BORN)
    for number in range(1010, 1013):
        still.insert(client(number), born)
    still.insert(client(2000), Ka(IDLE, flags=SERVER), active_ms=START_MS)
    still.insert(Key.of("2001:db8::1", 1, "2001:db8::2", 80), Ka(SLEEP))
    assert census(still) == {1: ({"IDLE": 10, "SLEEP": 745}, 3), ruled: ({"SLEEP": 256}, 0)}


def test_what_was_set_in_band_counts_under_the_class_it_stands_in_place_of() -> None:
    still = Still()
    still.governed(idle_quiet_ms=3_600_000)
    slot = still.insert(client(1), Ka(SLEEP))
    lib.roost_testing_set_own(still.raw, slot, Own((None, None, 5000)).c())
    interned = getattr(slot, "class")
    assert interned >= SERVICES
    lib.roost_testing_tally(still.raw, interned, State.SLEEP, State.ACTIVE, Cause.CLIENT_DATA, 0, 0)
    assert [told[0] for told, _ in tallies(still)] == [1]
    assert census(still) == {1: ({"SLEEP": 1}, 0)}


def test_awake_connections_count_once() -> None:
    still = Still()
    for number in range(2):
        still.insert(client(number), Ka(SLEEP))
    for number in range(100, 200):  # without a slot
        assert not lib.roost_testing_engine_wake(still.raw, c_key(client(number)), number)
    assert census(still) == {1: ({"SLEEP": 2, "NONE": 100}, 0)}
    assert not lib.roost_testing_engine_wake(still.raw, c_key(client(1)), 1)
    assert census(still) == {1: ({"SLEEP": 1, "NONE": 101}, 0)}


def test_a_census_begins_anew_when_a_table_has_grown() -> None:
    still = Still(slots=56_000)
    at, raw = ffi.new("uint64_t[2]"), ffi.new("struct roost_census[]", lib.ROOST_CLASSES)
    while at[0] < 300:
        assert lib.roost_census(still.raw, at, raw) == 1
    at[1] -= 1  # there is one bucket more now
    assert lib.roost_census(still.raw, at, raw) == -EAGAIN
    assert lib.roost_census(still.raw, ffi.new("uint64_t[2]"), raw) == 1
