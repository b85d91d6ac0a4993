# SPDX-License-Identifier: Apache-2.0
"""Names of clients: which connection they stand for, through its life, its end, and a restart of the daemon."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from errno import EIO, ELOOP, ENOENT, ENOTCONN
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from appliance.frontends.target import Address, Name, Target
from appliance.wire import Key, Op
from control.clients import local_addresses
from control.clients import registry as registry_module
from control.clients.locate import Locator
from control.clients.moving import Moving
from control.clients.naming import Naming
from control.clients.registry import Gift, Registry, RegistryError, canonical
from control.clients.view import View
from control.config import parse
from control.core.errors import OperationError
from control.core.states import Cause, State
from control.dispatch.dispatcher import Dispatcher
from control.reach.reach import Reach
from control.store import schema
from control.store import store as store_module
from control.store.database import parse_url
from control.store.latest import StoreStatus
from control.store.migrations.versions import r0019_names_by_bytes
from control.store.rules_file import RulesFile
from control.store.schema import KEYED, Keyed
from control.store.sleeping import References, SleepingRow
from control.store.store import Store
from tests.databases import Cluster, Database, Postgres, written
from tests.reboot import age
from tests.unit.fake_engine import FakeEngine, key
from tests.unit.test_absence import absence
from tests.unit.test_store import row

CONFIG = """
[attach]
listen = ["10.0.0.1:3128", "[::1]:3128"]
[[service]]
name = "a"
listen = "0.0.0.0:7000"
server = "10.0.0.9:7000"
"""


def names_of(registry: Registry, number: int) -> list[str]:
    return registry.names_of([number]).get(number, [])


class Rig:
    """Store, engine, registry and what uses them, for one run of a daemon."""

    def __init__(self, database: Database, engine: FakeEngine | None = None) -> None:
        self.engine = engine or FakeEngine()
        self._files = TemporaryDirectory()
        self.rules_file = RulesFile(Path(self._files.name) / "rules", "this database")
        self.store = Store(database.url, lambda slept: self.dispatcher.sleepers.slept(slept))
        self.store.open()
        self.store.service_indexes(["a"])
        self.dispatcher = Dispatcher(self.engine, self.store, 1000)
        self.registry = Registry(self.store, self.engine)
        self.store.start()
        config = parse(CONFIG)
        services = {1: config.service[0]}
        self.locator = Locator(
            self.engine, self.store, self.registry, services, config.attach.domain, config.attach.listen
        )
        self.view = View(self.engine, self.store, self.registry, services, self.locator)
        self.tagged: list[tuple[bytes, int]] = []
        spoken_for = Registry(self.store, self.engine, "agents")
        self.naming = Naming(
            self.store, self.registry, self.locator, config.attach.domain, self.tagged.extend, spoken_for
        )
        self.moving = Moving(self.engine, self.store, self.dispatcher, self.locator)
        reach = Reach(config, self.engine, self.dispatcher, self.store, self.registry, services, self.locator,
                      absence(self.store, self.registry, services, config))  # fmt: skip
        self.attaching = reach.attaching

    def close(self) -> None:
        self.store.close(3)
        self._files.cleanup()

    def turn(self) -> None:
        """Let the dispatcher hear what the engine says."""
        while self.engine.pending:
            self.dispatcher.turn(self.engine.batch(timeout_ms=0))

    def sleep(self, number: int) -> None:
        """Put a connection to sleep, its row written."""
        asyncio.run(self._sleep(number))

    async def _sleep(self, number: int) -> None:
        acting = asyncio.create_task(self.moving.act(str(number), "sleep"))
        while not acting.done():
            await asyncio.sleep(0.005)
            self.turn()
        assert (await acting)["state"] == "SLEEP"

    def wanted(self, target: Target) -> Key | int:
        try:
            return asyncio.run(self.locator.wanted(target))[0].record.key
        except OSError as error:
            return error.errno or 0


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_addresses, "local_addresses", lambda: ["10.0.0.1", "10.0.0.77", "127.0.0.1"])


@pytest.fixture
def rig(database: Database) -> Iterator[Rig]:
    made = Rig(database)
    yield made
    made.close()


def test_a_name_reaches_its_connection_in_every_state(rig: Rig) -> None:
    c = rig.engine.add(key(1), 1, State.STANDBY)
    given_name = rig.naming.give("1", "Thermostat-17")
    assert given_name == {"id": 1, "client": "192.0.0.1:40000", "name": "thermostat-17",
                          "target": "thermostat-17.roost"}  # fmt: skip
    for state in (State.STANDBY, State.ACTIVE, State.IDLE):
        c.state = state
        assert rig.wanted(Name("thermostat-17.roost")) == key(1)
    rig.sleep(1)
    assert rig.wanted(Name("thermostat-17.roost")) == key(1)
    shown = rig.view.show("thermostat-17.ROOST")
    assert (shown["id"], shown["name"], shown["state"]) == (1, "thermostat-17", "SLEEP")
    rig.engine.add(key(2), 2, State.IDLE)
    assert [row["name"] for chunk in rig.view.connections() for row in chunk] == ["thermostat-17", None]


def test_an_agent_has_several_names_and_loses_all_with_its_connection(rig: Rig) -> None:
    agents = Registry(rig.store, rig.engine, "agents")
    given: list[str] = []
    agents.listen(given.append)
    c = rig.engine.add(key(1), 1, State.ACTIVE)
    agents.give_all([Gift({"a": 0, "b": 2}, key(1).pack(), 1)])
    agents.give_all([Gift({"b": 3, "c": 0}, key(1).pack(), 1)])
    assert (agents.find("a"), names_of(agents, 1), given) == (None, ["b", "c"], ["a", "b", "b", "c"])
    rig.engine.add(key(2), 2, State.ACTIVE)
    agents.give_all([Gift({"c": 0}, key(2).pack(), 2)])
    found = agents.find("b"), agents.find("c")
    assert [(one.key, one.service, one.connected) for one in found if one] == [
        (key(1).pack(), 3, True), (key(2).pack(), 0, True)]  # fmt: skip
    agents.commit()
    again = Registry(rig.store, rig.engine, "agents")
    assert again.all() == dict(zip("bc", found, strict=True))
    rig.engine.move(c, State.CLOSED, Cause.CLIENT_CLOSE)
    assert [(name, one.connected) for name, one in sorted(agents.all().items())] == [("b", False), ("c", True)]
    assert agents.nameless([key(1).pack(), key(2).pack()]) == [key(1).pack()]
    assert list(rig.store.keyed("names")) == []


def test_a_name_given_again_moves_and_a_connection_has_one_name(rig: Rig) -> None:
    for number in (1, 2):
        rig.engine.add(key(number), number, State.IDLE)
    rig.naming.give("1", "a")
    rig.naming.give("2", "a")
    assert (rig.wanted(Name("a.roost")), names_of(rig.registry, 1)) == (key(2), [])
    rig.naming.give("2", "b")
    assert (rig.wanted(Name("a.roost")), rig.wanted(Name("b.roost"))) == (ENOENT, key(2))
    assert [name for name, _ in rig.store.keyed("names")] == ["b"]


def test_a_name_outlives_its_connection_but_does_not_reach_the_next_one_at_its_address(rig: Rig) -> None:
    c = rig.engine.add(key(1), 1, State.IDLE)
    rig.naming.give("1", "a")
    rig.engine.move(c, State.CLOSED, Cause.CLIENT_CLOSE)
    rig.turn()
    assert rig.wanted(Name("a.roost")) == ENOTCONN
    newer = rig.engine.add(key(1), 7, State.SLEEP)
    assert rig.wanted(Name("a.roost")) == ENOTCONN
    assert rig.view.show("192.0.0.1:40000")["name"] is None
    assert newer.state is State.SLEEP
    found = rig.registry.find("a")
    assert found is not None
    assert (found.key, found.id, found.connected) == (key(1).pack(), 1, False)
    with pytest.raises(OperationError, match=r'no connection "a.roost"'):
        rig.view.show("a.roost")


def test_who_sleeps_without_a_slot_is_known_by_its_row_and_a_stranger_by_having_none(rig: Rig) -> None:
    c = rig.engine.add(key(1), 5, State.IDLE, by_key=True)
    rig.registry.give("a", key(1).pack(), 5)
    rig.registry.give("b", key(2).pack(), 6)
    rig.sleep(5)
    del rig.engine.connections[c.key]
    rig.engine.without_slot = {key(1): 5, key(2): 0}
    assert {name: one.connected for name, one in rig.registry.all().items()} == {"a": True, "b": False}
    assert rig.registry.nameless([key(1).pack(), key(2).pack()]) == [key(2).pack()]


def test_a_connection_that_wakes_while_its_row_is_looked_for_lives(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    c = rig.engine.add(key(1), 5, State.IDLE)
    rig.registry.give("a", key(1).pack(), 5)
    rig.sleep(5)
    sleeping_ids = rig.store.sleeping_ids

    def woken(sought: References) -> dict[bytes, int]:
        rig.engine.move(c, State.ACTIVE, Cause.CLIENT_DATA)
        rig.turn()
        assert written(rig.store)
        return sleeping_ids(sought)

    monkeypatch.setattr(rig.store, "sleeping_ids", woken)
    found = rig.registry.find("a")
    assert found is not None
    assert found.connected
    assert c.state is State.ACTIVE


def test_a_connection_that_was_closed_in_its_sleep_is_closed_whether_or_not_its_row_is_gone(rig: Rig) -> None:
    c = rig.engine.add(key(1), 5, State.IDLE)
    rig.registry.give("a", key(1).pack(), 5)
    rig.sleep(5)
    rig.engine.move(c, State.CLOSED, Cause.PROBE_TIMEOUT)  # it has not been heard of
    assert rig.store.sleeping_ids({key(1).pack(): 5}) == {key(1).pack(): 5}
    found = rig.registry.find("a")
    assert found is not None
    assert not found.connected
    rig.registry.give("a", key(2).pack(), 6)
    assert closed(rig) == []


def test_a_name_of_a_connection_that_has_gone_a_moment_ago_is_given_and_reaches_nobody(rig: Rig) -> None:
    rig.registry.give("a", key(1).pack(), 5)
    assert rig.wanted(Name("a.roost")) == ENOTCONN
    rig.engine.add(key(1), 4, State.IDLE)  # not yet that one
    assert rig.wanted(Name("a.roost")) == ENOTCONN
    rig.engine.add(key(1), 5, State.ACTIVE)
    assert rig.wanted(Name("a.roost")) == key(1)


def test_what_is_not_written_yet_is_looked_up_as_if_it_were(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3):
        rig.engine.add(key(number), number, State.IDLE)
    for number, name in ((1, "a"), (2, "b")):
        rig.naming.give(str(number), name)
    monkeypatch.setattr(store_module, "RELAXED_GATHER_S", 600.0)
    rig.registry.give("c", key(1).pack(), 1)
    rig.registry.give("b", key(3).pack(), 3)
    rig.registry.remove("d")
    assert sorted(dict(rig.store.keyed("names"))) == ["a", "b"], "nothing of it is written"
    assert [(one := rig.registry.find(name)) and one.id for name in "abcd"] == [None, 3, 1, None]
    assert [names_of(rig.registry, number) for number in (1, 2, 3)] == [["c"], [], ["b"]]
    assert rig.registry.remove("b")
    assert (rig.registry.find("b"), names_of(rig.registry, 3)) == (None, [])
    rig.registry.commit()
    assert sorted(dict(rig.store.keyed("names"))) == ["c"]
    assert [names_of(rig.registry, number) for number in (1, 2, 3)] == [["c"], [], []]


def test_a_restart_finds_the_names_and_who_of_them_lives(rig: Rig, database: Database) -> None:
    for number, state in ((1, State.IDLE), (2, State.IDLE), (3, State.IDLE), (4, State.STANDBY)):
        rig.engine.add(key(number), number, state)
        rig.naming.give(str(number), f"n{number}")
    rig.sleep(2)
    rig.sleep(3)
    rig.close()
    age(database, "id = 3")  # it slept through a reboot: a row, and no slot yet
    engine = FakeEngine()
    for number, state in ((1, State.IDLE), (2, State.SLEEP)):
        engine.add(key(number), number, state)
    engine.add(key(4), 9, State.IDLE)  # the address of 4, which died with the daemon; another has it now
    after = Rig(database, engine)
    try:
        found = [after.registry.find(f"n{number}") for number in range(1, 5)]
        assert [one and one.connected for one in found] == [True, True, True, False]
        assert sorted(after.registry.all().items()) == [(f"n{i}", one) for i, one in enumerate(found, 1)]
        assert [after.wanted(Name(f"n{n}.roost")) for n in range(1, 5)] == [key(1), key(2), ENOTCONN, ENOTCONN]
        engine.add(key(3), 3, State.SLEEP)  # put back
        assert after.wanted(Name("n3.roost")) == key(3)
    finally:
        after.close()


def test_names_that_cannot_be_read_are_an_error_of_the_store_until_they_can(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BACKOFF_S", (0.02,))
    database.take_away()
    rig = Rig(database)
    try:
        rig.engine.add(key(1), 1, State.IDLE)
        assert rig.wanted(Name("a.roost")) == EIO
        with pytest.raises(OperationError, match="names cannot be changed now") as caught:
            rig.naming.give("1", "a")
        assert caught.value.status == 503
        with pytest.raises(OperationError, match="names cannot be read: store: ") as caught:
            rig.view.show("a.roost")
        assert caught.value.status == 503
        database.give_back()
        deadline = time.monotonic() + 5
        while rig.store.status.text != "ok":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        rig.naming.give("1", "a")
        assert rig.wanted(Name("a.roost")) == key(1)
        database.take_away()
        rig.store._note_failure(OSError("it is away"))
        assert rig.wanted(Name("a.roost")) == EIO
        assert [row["name"] for chunk in rig.view.connections() for row in chunk] == [None], "all else is shown"
        database.give_back()
    finally:
        rig.close()


def test_a_name_that_cannot_be_written_is_not_given(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.engine.add(key(1), 1, State.IDLE)
    rig.store._note_failure(OSError("disk full"))
    with pytest.raises(RegistryError, match="disk full"):
        rig.registry.give("a", key(1).pack(), 1)
    with pytest.raises(RegistryError, match="disk full"):
        rig.registry.remove("a")
    assert rig.wanted(Name("a.roost")) == ENOENT


def test_a_name_is_given_while_history_waits_for_what_a_killed_run_left(rig: Rig) -> None:
    """As long as a start reads what that one wrote."""
    rig.engine.add(key(1), 1, State.IDLE)
    rig.store.hold_history()
    rig.store.add([row(1, 1)])
    rig.naming.give("1", "a")
    assert set(rig.registry.all()) == {"a"}
    assert rig.store.status.pending_history == 1


def test_names_are_removed_by_connection_and_by_name(rig: Rig) -> None:
    c = rig.engine.add(key(1), 1, State.IDLE)
    rig.naming.give("192.0.0.1:40000", "a")
    assert rig.naming.take("1") == {"name": "a"}
    with pytest.raises(OperationError, match="has no name"):
        rig.naming.take("1")
    rig.naming.give("1", "a")
    rig.engine.move(c, State.CLOSED, Cause.CLIENT_CLOSE)
    rig.turn()
    assert rig.naming.forget("A") == {"name": "a"}
    with pytest.raises(OperationError, match='no client has the name "a"') as caught:
        rig.naming.forget("a")
    assert caught.value.status == 404
    assert list(rig.store.keyed("names")) == []


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "ü", "a" * 64, "ſ", "a.roost"])
def test_what_is_no_name_is_refused(rig: Rig, name: str) -> None:
    rig.engine.add(key(1), 1, State.IDLE)
    with pytest.raises(OperationError) as caught:
        rig.naming.give("1", name)
    assert caught.value.status == 400


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True))
def test_a_name_is_the_same_in_any_case(name: str) -> None:
    assert canonical(name, "roost") == canonical(name.upper(), "roost") == canonical(name.lower(), "roost")


@pytest.mark.parametrize(
    ("target", "error"),
    [
        (Name("a"), ENOENT),
        (Name("a.example"), ENOENT),
        (Name("roost"), ENOENT),
        (Name("a.roost.example"), ENOENT),
        (Name("a\0b.roost"), ENOENT),
        (Name("\udcff.roost"), ENOENT),
        (Name(f"{'a' * 10_000}.roost"), ENOENT),
        (Name("localhost"), ELOOP),
        (Name("api.localhost"), ELOOP),
        (Address("192.0.2.99", 1), ENOENT),
        (Address("10.0.0.1", 3128), ELOOP),
        (Address("::1", 3128), ELOOP),
        (Address("10.0.0.1", 3129), ENOENT),
        (Address("10.0.0.77", 7000), ELOOP),  # a local address, for a service that listens on all
        (Address("127.0.0.53", 7000), ELOOP),
        (Address("0.0.0.0", 7000), ELOOP),
        (Address("10.0.0.78", 7000), ENOENT),
        (Address("::2", 7000), ENOENT),
    ],
)
def test_whom_nobody_can_reach(rig: Rig, target: Target, error: int) -> None:
    assert rig.wanted(target) == error


class Written:
    """A store that is written at once."""

    def __init__(self) -> None:
        self.status = StoreStatus()
        self.rows: dict[Keyed, bytes] = {}

    def add(self, keyed: Mapping[Keyed, bytes | None]) -> None:
        for where, packed in keyed.items():
            if packed is None:
                self.rows.pop(where, None)
            else:
                self.rows[where] = packed

    def named(self, kind: str, names: Sequence[str] = (), numbers: Sequence[int] = ()) -> dict[Any, bytes]:
        found = {name: packed for (where, name), packed in self.rows.items() if where == kind}
        return {n: row for n, row in found.items() if n in names or KEYED[kind][1].unpack(row)[1] in numbers}

    def rows_at(self, keys: object) -> list[SleepingRow]:
        return []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.integers(1, 3), st.sampled_from("abc")),
        st.tuples(st.just("remove"), st.integers(1, 3), st.sampled_from("abc")),
        st.tuples(st.just("close"), st.integers(1, 3), st.none()),
        st.tuples(st.just("again"), st.integers(1, 3), st.none()),
    ),
    max_size=25,
)


@given(STEPS)
def test_whatever_happens_a_name_reaches_the_connection_it_was_given_to_or_nobody(steps: list[Any]) -> None:
    """Three addresses, whose connections come and go; three names."""
    engine = FakeEngine(carry_out=False)
    registry = Registry(Written(), engine)  # type: ignore[arg-type]
    alive: dict[int, int] = {place: place for place in (1, 2, 3)}  # address -> number of its connection
    for place, number in alive.items():
        engine.add(key(place), number, State.IDLE)
    meant: dict[str, tuple[int, int]] = {}
    numbers = 3
    for step, place, argument in steps:
        here = alive.get(place)
        if step == "give" and here:
            meant = {name: where for name, where in meant.items() if where != (place, here)}
            meant[argument] = (place, here)
            registry.give(argument, key(place).pack(), here)
        elif step == "remove":
            assert registry.remove(argument) is (meant.pop(argument, None) is not None)
        elif step == "close" and here:
            del alive[place], engine.connections[key(place)]
        elif step == "again":  # another connection from the same address
            numbers += 1
            alive[place] = numbers
            engine.add(key(place), numbers, State.ACTIVE)
        for name in "abc":
            found = registry.find(name)
            assert (found and (Key.unpack(found.key), found.id)) == (
                (key(meant[name][0]), meant[name][1]) if name in meant else None
            )
            if found:
                assert found.connected is (alive.get(meant[name][0]) == meant[name][1])
        assert registry.names_of(range(numbers + 1)) == {number: [name] for name, (_, number) in meant.items()}
        living = {place for place, number in meant.values() if alive.get(place) == number}
        nameless = registry.nameless([key(place).pack() for place in alive])
        assert nameless == [key(place).pack() for place in alive if place not in living]


@given(st.lists(st.tuples(st.integers(1, 4), st.sets(st.sampled_from("abcd"))), max_size=12), st.integers(1, 4))
def test_names_that_are_given_together_are_given_as_if_one_after_the_other(
    gifts: list[tuple[int, set[str]]], size: int
) -> None:
    """Connection i has the address of the connections i + 2 and i - 2, one of which alone lives."""
    outcomes = []
    for at_once in (1, size):
        engine, store = FakeEngine(carry_out=False), Written()
        registry = Registry(store, engine, "agents")  # type: ignore[arg-type]
        for number in (1, 4):
            engine.add(key(number % 2), number, State.IDLE)
        given = [Gift(dict.fromkeys(sorted(names), 0), key(number % 2).pack(), number) for number, names in gifts]
        for start in range(0, len(given), at_once):
            registry.give_all(given[start : start + at_once])
        rows = {where: row[:76] if where[0] == "agents" else row[:8] for where, row in store.rows.items()}  # no times
        outcomes.append((rows, {(command.key, command.id) for command in engine.commands}))
    assert outcomes[0] == outcomes[1]


MANY = 1_000_000

START = """
import sys, time
from control.clients.registry import Registry
from control.core.states import State
from control.store.store import Store
from tests.unit.fake_engine import FakeEngine, key

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 10

store = Store(sys.argv[1], lambda slept: None)
store.open()
store.start()
engine = FakeEngine()
engine.add(key(1), 77, State.IDLE)
before, began = resident(), time.monotonic()
found = Registry(store, engine).find("n77")
print(found.id, int(found.connected), time.monotonic() - began, resident() - before)
store.close()
"""


def test_a_million_names_cost_the_daemon_neither_memory_nor_a_longer_start(database: Database) -> None:
    Rig(database).close()
    one = "SELECT 1 AS i UNION ALL SELECT i + 1 FROM many WHERE i < {}"
    many = f"WITH RECURSIVE many(i) AS ({one.format(MANY)})"
    packed = key(1).pack().hex()
    literal = f"x'{packed}'" if database.name == "sqlite" else f"'\\x{packed}'::bytea"
    database.execute(f"{many} INSERT INTO names (name, key, id, since) SELECT 'n' || i, {literal}, i, 0 FROM many")
    database.execute("DELETE FROM owner")  # this process, which is alive
    argv = [sys.executable, "-c", START, database.url]
    started = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert started.returncode == 0, started.stderr
    number, lives, seconds, kib = map(float, started.stdout.split())
    assert (number, lives) == (77, True)
    assert seconds < 2
    assert kib < 50 << 10


def test_a_page_of_a_list_asks_for_its_names_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 101):
        rig.engine.add(key(number), number, State.IDLE)
    rig.registry.give_all([Gift({f"n{i}": 0}, key(i).pack(), i) for i in range(1, 101, 2)])
    rig.registry.commit()
    asked = []
    named = rig.store.named

    def counting(kind: str, names: Sequence[str] = (), numbers: Sequence[int] = ()) -> dict[str, bytes]:
        asked.append(len(numbers))
        return named(kind, names, numbers)

    monkeypatch.setattr(rig.store, "named", counting)
    (page,) = rig.view.connections()
    assert [row["name"] for row in page] == [f"n{i}" if i % 2 else None for i in range(1, 101)]
    assert asked == [100]


def test_a_server_is_told_when_it_cannot_be_known_whether_an_agent_speaks_for_the_client(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(kind: str, *_: Any, **__: Any) -> dict[str, bytes]:
        if kind == "agents":
            raise OperationalError("SELECT", {}, Exception("gone"))
        return {}

    monkeypatch.setattr(rig.store, "named", read)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert asyncio.run(rig.attaching.attach(Name("a.roost"), ours, b"", b"", 1.0, "connect")) == EIO


def test_a_database_that_does_not_answer_keeps_a_server_waiting_for_so_long_and_nobody_else(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.engine.add(key(1), 1, State.IDLE)
    rig.naming.give("1", "a")
    answers = threading.Event()
    named = rig.store.named

    def slow(*arguments: Any) -> dict[str, bytes]:
        answers.wait(60)
        return named(*arguments)

    monkeypatch.setattr(rig.store, "named", slow)
    monkeypatch.setattr(registry_module, "PATIENCE_S", 0.2)

    async def scenario() -> None:
        waiting = asyncio.create_task(rig.locator.wanted(Name("a.roost")))
        await asyncio.sleep(0)
        (event,) = await rig.locator.wanted(Address("192.0.0.1", 40000))
        assert event.record.key == key(1)
        assert not waiting.done()
        with pytest.raises(OSError, match="the database takes too long") as caught:
            await waiting
        assert caught.value.errno == EIO
        answers.set()
        (event,) = await rig.locator.wanted(Name("a.roost"))
        assert event.record.key == key(1)

    asyncio.run(scenario())


# -- a client that comes back by another connection -------------------------------------------------------------------


def closed(rig: Rig) -> list[tuple[object, int, int]]:
    """The connections that were to be closed: key, number, cause."""
    return [(command.key, command.id, command.cause) for command in rig.engine.commands if command.op == Op.CLOSE]


def test_the_name_of_a_living_connection_that_a_later_one_gets_closes_the_older(rig: Rig) -> None:
    rig.engine.add(key(1), 1, State.IDLE)
    rig.engine.add(key(2), 7, State.ACTIVE)
    rig.registry.give("meter", key(1).pack(), 1)
    rig.sleep(1)
    rig.engine.commands.clear()
    rig.registry.give("meter", key(2).pack(), 7)
    assert closed(rig) == [(key(1).pack(), 1, Cause.CLIENT_CONNECT)]
    assert names_of(rig.registry, 7) == ["meter"]
    rig.turn()
    assert written(rig.store)
    (end,) = rig.view.recent(1)
    assert (end["id"], end["cause"], end["successor"]) == (1, "client-connect", 7)
    assert rig.view.show("7")["came_back_from"] == [1]
    assert rig.view.recent(10, 1)[-1] == end, "one that has ended is told of by its number"
    assert all(row["id"] == 1 for row in rig.view.recent(10, 1))
    assert rig.view.recent(10, 2) == []


def test_a_name_closes_nothing_but_an_older_living_connection_that_loses_its_last_one(rig: Rig) -> None:
    for place, number in ((1, 5), (2, 3), (3, 8), (4, 9), (5, 10), (6, 11)):
        rig.engine.add(key(place), number, State.IDLE)
    rig.registry.give("meter", key(1).pack(), 5)
    rig.registry.give("meter", key(1).pack(), 5)  # again
    rig.engine.add(key(1), 6, State.IDLE)
    rig.registry.give("meter", key(1).pack(), 6)  # another connection with this 4-tuple
    rig.registry.give("meter", key(2).pack(), 3)  # late words of an older one
    del rig.engine.connections[key(2)]
    rig.registry.give("meter", key(3).pack(), 8)  # no connection has it any more
    rig.registry.give_all([Gift({"a": 0, "b": 0}, key(4).pack(), 9)])
    rig.registry.give("a", key(5).pack(), 10)  # its agent speaks for another still
    assert closed(rig) == []
    rig.registry.give("b", key(6).pack(), 11)
    assert closed(rig) == [(key(4).pack(), 9, Cause.CLIENT_CONNECT)]


@pytest.mark.parametrize("before", [False, True], ids=["new", "of an earlier version"])
def test_names_are_found_in_a_database_that_leaves_signs_out_where_it_compares(cluster: Cluster, before: bool) -> None:
    """As CREATE DATABASE makes it where the cluster has a language: signs do not count at first."""
    cluster.execute("CREATE DATABASE german TEMPLATE template0 ENCODING UTF8 LOCALE 'C' LOCALE_PROVIDER icu "
                    "ICU_LOCALE 'de-DE-u-ka-shifted'")  # fmt: skip
    database = Postgres(cluster)
    database.url = cluster.url("german")
    try:
        if before:
            make_names_as_before(database)
        rig = Rig(database)
        try:
            for number, name in enumerate(("ab", "a-c", "a1", "b"), 1):
                rig.engine.add(key(number), number, State.IDLE)
                rig.registry.give(name, key(number).pack(), number)
            rig.naming.tag("a-c", ("x-1",), ())
            assert [*rig.registry.like("*", "", "", 10)] == ["a-c", "a1", "ab", "b"], "in the order of bytes"
            assert [*rig.registry.like("a*", "", "a-c", 10)] == ["a1", "ab"]
            assert [*rig.registry.like("a*", "x-1", "", 10)] == ["a-c"]
        finally:
            rig.close()
    finally:
        cluster.execute("DROP DATABASE german WITH (FORCE)")


def make_names_as_before(database: Postgres) -> None:
    """Revision 0018."""
    store = Store(database.url, lambda slept: None)
    store.open()
    store.close(3)
    engine = sa.create_engine(parse_url(database.url))
    with engine.begin() as connection:
        for table, columns in r0019_names_by_bytes.COLUMNS.items():
            for column in columns:
                connection.exec_driver_sql(f'ALTER TABLE {table} ALTER {column} TYPE VARCHAR(63) COLLATE "default"')
        connection.execute(sa.update(schema.revisions).values(version_num="0018"))
    engine.dispose()
