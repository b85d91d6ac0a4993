# SPDX-License-Identifier: Apache-2.0
"""cext/life/growth.c, cext/life/sweep.c and the list of connections, in an engine whose clock the test turns."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from errno import ENOMEM
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.wire import EventType, Key
from control.core.states import State
from tests.inner import ffi, lib
from tests.unit.records import IDLE, SLEEP, Ka, c_key

START_MS: Final = 3_600_000
IPV4, IPV6, RESTS = lib.ROOST_PART_IPV4, lib.ROOST_PART_IPV6, lib.ROOST_PART_RESTS
PARTS: Final = [IPV4, IPV6, RESTS]
NAMES: Final = ["IPv4", "IPv6", "rests"]
READ_BYTES: Final = 256 << 20
SLACK_BYTES: Final = 32 << 20  # that others take or give back meanwhile


class Still:
    """An engine without a thread; whatever has a turn is given the time."""

    def __init__(self, slots: int = 56, rests: int = 16) -> None:
        self.raw: Any = ffi.gc(lib.roost_testing_engine(slots, 56, rests, START_MS), lib.roost_testing_engine_free)
        self.now_ms = START_MS

    def change(self, probe_interval_s: int = 0, idle_quiet_ms: int = 0) -> None:
        """The policy of service 1 is another one from now on."""
        policy = ffi.new("struct roost_class *", {"probe_interval_s": probe_interval_s, "probe_count": 4})
        policy.quiet_ms[2] = idle_quiet_ms
        lib.roost_testing_change(self.raw, 1, policy)

    def governed(self, **policy: int) -> int:
        """The same, long since: from when on."""
        self.change(**policy)
        self.sweep(START_MS + 1100)
        return self.now_ms

    def insert(self, key: Key, ka: Ka, active_ms: int = 0) -> Any:
        """Its slot; with a time of its last payload byte, it has a rest slot."""
        raw, index = ka.c(), ffi.new("uint32_t *")
        if active_ms:
            rest = lib.roost_testing_engine_rest(self.raw, index)
            rest.id, rest.active_ms, raw.rest = index[0] + 1, active_ms, index[0]
        setattr(raw, "class", 1)
        slot = lib.roost_testing_engine_insert(self.raw, c_key(key), raw, 1)
        assert slot
        return slot

    def _turns(self, until_ms: int, every_ms: int) -> range:
        turns = range(self.now_ms, until_ms, every_ms)
        self.now_ms = until_ms
        return turns

    def grow(self, until_ms: int, refused: int = 0) -> list[tuple[int, int]]:
        """(when, which part) was to be made until then; there is no memory for those refused."""
        return [(now_ms - START_MS, part) for now_ms in self._turns(until_ms, 50)
                if (part := lib.roost_testing_growth(self.raw, now_ms, refused))]  # fmt: skip

    def not_grown(self) -> list[tuple[int, int]]:
        """(which part, errno) of all that the engine said it could not make larger."""
        events = ffi.new("struct roost_event[16]")
        said = events[0 : lib.roost_events(self.raw, events, 16, 0, 0)]
        assert all(event.type == EventType.NOT_GROWN for event in said)
        return [({4: IPV4, 6: IPV6, 0: RESTS}[event.count], event.error) for event in said]

    def sweep(self, until_ms: int) -> list[int]:
        """Which connections were said to be due for SLEEP until then: their numbers."""
        events, due = ffi.new("struct roost_event[16]"), []
        for now_ms in self._turns(until_ms, 2):
            lib.roost_testing_sweep(self.raw, now_ms)
            for event in events[0 : lib.roost_events(self.raw, events, 16, 0, 0)]:
                assert event.type == EventType.SLEEP_DUE
                due.append(event.id)
        return due

    def list(self, meanwhile: Callable[[], None] = lambda: None, **sought: int) -> list[tuple[int, list[bytes]]]:
        """Of each time that the engine is asked: how far it looked, and the keys that it found. Between two times
        something happens. sought: struct roost_sought."""
        listing = lib.roost_list_begin(self.raw, ffi.new("struct roost_sought *", sought))
        events = ffi.new("struct roost_event[64]")
        parts, before = [], 0
        while not lib.roost_list_done(listing):
            count = lib.roost_list(self.raw, listing, events, 64)
            found = [bytes(ffi.buffer(ffi.addressof(event.record, "key"))) for event in events[0:count]]
            before, looked_at = (after := lib.roost_list_at(listing)), after - before
            parts.append((looked_at, found))
            meanwhile()
        lib.roost_list_end(self.raw, listing)
        return parts


@pytest.fixture
def still() -> Still:
    return Still()


# Growth


@pytest.mark.parametrize("part", PARTS, ids=NAMES)
def test_what_is_full_grows(still: Still, part: int) -> None:
    assert still.grow(START_MS + 1000) == []
    lib.roost_testing_fill(still.raw, part)
    assert [made for _, made in still.grow(START_MS + 2000)] == [part]


@pytest.mark.parametrize("refused", [IPV4, IPV6, RESTS, IPV4 | IPV6, IPV4 | RESTS, IPV6 | RESTS, IPV4 | IPV6 | RESTS])
def test_what_gets_no_memory_keeps_nothing_else_from_growing(still: Still, refused: int) -> None:
    for part in PARTS:
        lib.roost_testing_fill(still.raw, part)
    assert sorted(part for _, part in still.grow(START_MS + 1000, refused)) == PARTS, "each once"
    assert sorted(still.not_grown()) == [(part, ENOMEM) for part in PARTS if refused & part]


@pytest.mark.parametrize("part", PARTS, ids=NAMES)
def test_what_got_no_memory_grows_when_there_is_some_later(still: Still, part: int) -> None:
    lib.roost_testing_fill(still.raw, part)
    assert still.grow(START_MS + 10_000, refused=part) == [(0, part)], "it is not asked for all the time"
    [(after_ms, made)] = still.grow(START_MS + 60_000)
    assert (after_ms >= 10_000, made) == (True, part)
    assert still.not_grown() == [(part, ENOMEM)]
    assert lib.roost_testing_growths_failed(still.raw) == 1


def memory(name: str) -> int:
    """Bytes, as /proc/meminfo has them."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def test_memory_that_files_were_read_into_counts_as_available(tmp_path: Path) -> None:
    """After a while that is most of a machine's memory; the kernel gives it up on demand."""
    path = tmp_path / "read"
    with path.open("wb") as file:
        file.truncate(READ_BYTES)
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass
    least = memory("MemAvailable")
    seen = lib.roost_testing_memory_available()
    free, most = memory("MemFree"), memory("MemAvailable")
    if most - free < READ_BYTES / 2:
        pytest.skip("nothing of a file that was read stays in memory here")
    assert min(least, most) - SLACK_BYTES <= seen <= max(least, most) + SLACK_BYTES


# The sweep


ASLEEP_SOON: Final = Key.of("192.0.2.1", 1000, "192.0.2.9", 80)
PROBED: Final = Key.of("192.0.2.1", 1001, "192.0.2.9", 80)


def test_who_is_due_for_sleep_waits_for_room_for_probes_but_not_longer_than_a_second(still: Still) -> None:
    """The offer is full of probes that XDP takes none of."""
    from_ms = still.governed(idle_quiet_ms=1000)
    still.insert(ASLEEP_SOON, Ka(IDLE), active_ms=START_MS)
    lib.roost_testing_fill_offer(still.raw)
    assert still.sweep(from_ms + 900) == [], "soon there may be room"
    assert still.sweep(from_ms + 1300) == [1]


def test_the_sweep_waits_a_second_once_and_not_for_each_bucket() -> None:
    """Most of a large table lies behind the bucket that found no room."""
    still = Still(slots=100 * 56, rests=100)
    from_ms = still.governed(idle_quiet_ms=1000)
    for port in range(100):
        still.insert(Key.of("192.0.2.1", port, "192.0.2.9", 80), Ka(IDLE), active_ms=START_MS)
    lib.roost_testing_fill_offer(still.raw)
    assert len(set(still.sweep(from_ms + 3000))) == 100


def test_a_probe_that_finds_no_room_is_sent_when_there_is_some(still: Still) -> None:
    """The sweep goes past it, and its client is not taken for one that was asked."""
    heard_s = START_MS // 1000 - 60
    from_ms = still.governed(probe_interval_s=10)
    slot = still.insert(PROBED, Ka(IDLE, heard=heard_s << lib.ROOST_HEARD_SHIFT))
    before = slot.heard
    lib.roost_testing_fill_offer(still.raw)
    still.sweep(from_ms + 3000)
    assert (lib.roost_testing_probes_sent(still.raw), slot.heard) == (0, before)
    lib.roost_testing_take_offer(still.raw)
    still.sweep(from_ms + 5000)
    assert (lib.roost_testing_probes_sent(still.raw), slot.heard & 0xF) == (1, 1)


# The list of connections


def test_connections_are_listed_a_part_of_the_table_at_a_time() -> None:
    """The engine's thread stands still while one asks for a part: eight times 16,000 positions, where all are empty."""
    still = Still(slots=300_000)
    keys = {Key.of("192.0.2.1", port, "192.0.2.9", 80).pack() for port in range(1, 21)}
    for key in keys:
        still.insert(Key.unpack(key), Ka(SLEEP))
    parts = still.list()
    assert max(looked_at for looked_at, _ in parts) <= 8 * 16384
    assert sum(looked_at for looked_at, _ in parts) >= 300_000
    found = [key for _, keys in parts for key in keys]
    assert len(found) == len(keys)
    assert set(found) == keys


def test_slots_that_are_not_sought_are_passed_a_part_at_a_time() -> None:
    still = Still(slots=30_000)
    for port in range(1, 25_001):
        still.insert(Key.of("192.0.2.1", port, "192.0.2.9", 80), Ka(SLEEP))
    parts = still.list(states=1 << State.IDLE)
    assert max(looked_at for looked_at, _ in parts[1:]) <= 1.3 * 16384, "what is empty beside them included"
    assert [found for _, found in parts if found] == []


def test_a_part_of_the_list_ends_where_there_is_no_room_for_more() -> None:
    still = Still(slots=1000)
    for port in range(1, 501):
        still.insert(Key.of("192.0.2.1", port, "192.0.2.9", 80), Ka(SLEEP))
    assert [len(found) for _, found in still.list()] == [64] * 7 + [52]


class Clients:
    """Of an engine that stands still: they wake, fall asleep, come and go at random."""

    def __init__(self, still: Still, seed: int, count: int) -> None:
        self.still, self.random = still, random.Random(seed)
        self.free = [Key.of("192.0.2.1", port, "192.0.2.9", 80) for port in range(1, count + 1)]
        self.asleep: list[Key] = []
        self.waking: list[Key] = []
        self.awake: list[Key] = []
        self.gone: set[bytes] = set()
        self.moves = [self.come, self.wake, self.thaw, self.thaw, self.fail, self.freeze, self.freeze, self.close]
        for _ in range(4 * count):
            self.random.choice(self.moves[:-1])()

    def _one(self, of: list[Key]) -> Key | None:
        return of.pop(self.random.randrange(len(of))) if of else None

    def come(self) -> None:
        if key := self._one(self.free):
            assert not lib.roost_testing_engine_wake(self.still.raw, c_key(key), key.client_port)
            self.awake.append(key)

    def wake(self) -> None:
        if key := self._one(self.asleep):
            assert not lib.roost_testing_engine_wake(self.still.raw, c_key(key), key.client_port)
            self.waking.append(key)

    def thaw(self) -> None:
        if key := self._one(self.waking):
            lib.roost_testing_engine_thaw(self.still.raw, c_key(key), 0)
            self.awake.append(key)

    def fail(self) -> None:
        if key := self._one(self.waking):
            lib.roost_testing_engine_thaw(self.still.raw, c_key(key), 1)
            self.asleep.append(key)

    def freeze(self) -> None:
        if key := self._one(self.awake):
            lib.roost_testing_engine_end(self.still.raw, c_key(key), Ka(SLEEP).c())
            self.asleep.append(key)

    def close(self) -> None:
        if key := self._one(self.awake):
            lib.roost_testing_engine_end(self.still.raw, c_key(key), ffi.NULL)
            self.gone.add(key.pack())

    def move(self) -> None:
        for _ in range(self.random.choice([0, 1, 5, 60])):
            self.random.choice(self.moves)()

    @property
    def there(self) -> set[bytes]:
        return {key.pack() for key in (*self.asleep, *self.waking, *self.awake)}


@pytest.mark.parametrize("seed", range(150))
def test_who_moves_while_a_list_is_taken_is_in_it_once(seed: int) -> None:
    clients = Clients(still := Still(slots=1000), seed, 500)
    before = clients.there
    found = Counter(key for _, keys in still.list(clients.move) for key in keys)
    assert before - clients.gone - set(found) == set(), "they were there all the time"
    assert set(found) <= before | clients.there | clients.gone
    assert max(found.values()) == 1


def test_two_lists_at_a_time_do_not_disturb_each_other() -> None:
    clients = Clients(still := Still(slots=1000), 7, 500)
    before = clients.there
    lists: list[list[bytes]] = []

    def meanwhile() -> None:
        clients.move()
        if len(lists) < 3:
            lists.append([])
            lists[-1] += [key for _, keys in still.list(clients.move) for key in keys]

    lists.append([key for _, keys in still.list(meanwhile) for key in keys])
    for found in lists:
        assert before - clients.gone - set(found) == set()
        assert len(found) == len(set(found))


def test_a_list_ends_however_many_come_while_it_is_taken() -> None:
    clients = Clients(still := Still(slots=1000), 7, 500)
    ports = iter(range(1000, 60_000))

    def come() -> None:
        for port in (next(ports) for _ in range(100)):  # more than a part has room for
            key = Key.of("192.0.2.2", port, "192.0.2.9", 80)
            assert not lib.roost_testing_engine_wake(still.raw, c_key(key), port)

    before = clients.there
    found = Counter(key for _, keys in still.list(come) for key in keys)
    assert before <= set(found)
    assert max(found.values()) == 1


def test_who_slept_without_a_slot_and_wakes_while_a_list_is_taken_is_in_it_once() -> None:
    still = Still(slots=2000)
    for port in range(1, 1001):
        still.insert(Key.of("192.0.2.1", port, "192.0.2.9", 80), Ka(SLEEP))
    ports = iter(range(1000, 60_000))
    woken: set[bytes] = set()

    def wake_one() -> None:
        key = Key.of("192.0.2.2", next(ports), "192.0.2.9", 80)
        lib.roost_testing_engine_back(still.raw, c_key(key), Ka(SLEEP).c())
        assert not lib.roost_testing_engine_wake(still.raw, c_key(key), 1)
        woken.add(key.pack())

    def wake_some() -> None:
        for _ in range(20 * (len(woken) < 100)):
            wake_one()

    found = Counter(key for _, keys in still.list(wake_some) for key in keys)
    assert len(woken) == 100
    assert woken <= set(found)
    assert len(found) == 1100
    assert max(found.values()) == 1
