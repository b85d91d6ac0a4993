# SPDX-License-Identifier: Apache-2.0
"""Names of clients: which connection they stand for, through its life, its end, and a restart of the daemon."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Mapping
from errno import EIO, ELOOP, ENOENT, ENOTCONN
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.frontends.target import Address, Name, Target
from appliance.wire import Event, EventType, Key, Op
from control.clients import local_addresses
from control.clients.locate import Locator
from control.clients.moving import Moving
from control.clients.naming import Naming
from control.clients.registry import Registry, RegistryError, canonical
from control.clients.view import View
from control.config import parse
from control.core.errors import OperationError
from control.core.states import Cause, State
from control.dispatch.dispatcher import Dispatcher
from control.reach.reach import Reach
from control.store import store as store_module
from control.store.schema import NAMED, Keyed
from control.store.store import Store, StoreStatus
from tests.databases import Database
from tests.reboot import age
from tests.unit.fake_engine import FakeEngine, event, key

CONFIG = """
[attach]
listen = ["10.0.0.1:3128", "[::1]:3128"]
[[service]]
name = "a"
listen = "0.0.0.0:7000"
server = "10.0.0.9:7000"
"""


def transition(k: Key, number: int, source: State, target: State) -> Event:
    return event(EventType.TRANSITION, k, number, from_state=source, to_state=target, cause=Cause.QUIET)


class Rig:
    """Store, engine, registry and what uses them, for one run of a daemon."""

    def __init__(self, database: Database, engine: FakeEngine | None = None) -> None:
        self.engine = engine or FakeEngine()
        self.store = Store(database.url, lambda slept: self.dispatcher.sleepers.slept(slept))
        self.store.open()
        self.store.service_indexes(["a"])
        self.dispatcher = Dispatcher(self.engine, self.store, 1000)
        self.registry = Registry(self.store, self.engine)
        self.registry.load()
        self.dispatcher.listen(self.registry.hear)
        self.store.start()
        config = parse(CONFIG)
        services = {1: config.service[0]}
        self.locator = Locator(
            self.engine, self.store, self.registry, services, config.attach.domain, config.attach.listen
        )
        self.view = View(self.engine, self.store, self.registry, services, self.locator)
        self.naming = Naming(self.store, self.registry, self.locator, config.attach.domain)
        self.moving = Moving(self.engine, self.store, self.dispatcher, self.locator)
        reach = Reach(config, self.engine, self.dispatcher, self.store, self.registry, services, {1: config.policy},
                      self.locator)  # fmt: skip
        self.attaching = reach.attaching

    def close(self) -> None:
        self.store.close(3)

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
            return self.locator.wanted(target)[0].record.key
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
    agents.load()
    given: list[str] = []
    agents.listen(given.append)
    c = rig.engine.add(key(1), 1, State.ACTIVE)
    agents.give_all({"a": 0, "b": 2}, key(1).pack(), 1)
    agents.give_all({"b": 3, "c": 0}, key(1).pack(), 1)
    assert (agents.find("a"), agents.names_at(key(1).pack()), given) == (None, ["b", "c"], ["a", "b", "b", "c"])
    rig.engine.add(key(2), 2, State.ACTIVE)
    agents.give_all({"c": 0}, key(2).pack(), 2)
    found = agents.find("b"), agents.find("c")
    assert [(one.key, one.service, one.connected) for one in found if one] == [
        (key(1).pack(), 3, True), (key(2).pack(), 0, True)]  # fmt: skip
    agents.commit()
    again = Registry(rig.store, rig.engine, "agents")
    assert again.load()
    assert (again.find("b"), again.find("c")) == found
    agents.hear([transition(c.key, 1, State.IDLE, State.CLOSED)])
    assert [(one := agents.find(name)) and one.connected for name in "bc"] == [False, True]
    assert list(rig.store.keyed("names")) == []


def test_a_name_given_again_moves_and_a_connection_has_one_name(rig: Rig) -> None:
    for number in (1, 2):
        rig.engine.add(key(number), number, State.IDLE)
    rig.naming.give("1", "a")
    rig.naming.give("2", "a")
    assert (rig.wanted(Name("a.roost")), rig.registry.name_at(key(1).pack())) == (key(2), None)
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


@pytest.mark.parametrize(
    ("number", "source", "target", "connected"),
    [
        (5, State.IDLE, State.SLEEP, True),
        (5, State.IDLE, State.CLOSED, False),
        (0, State.SLEEP, State.CLOSED, False),  # the engine does not know the numbers of those that sleep
        (6, State.NONE, State.ACTIVE, False),  # the end of 5 was not heard
        (4, State.IDLE, State.CLOSED, True),  # an earlier connection, heard of late
    ],
)
def test_what_a_transition_means_to_a_name(
    rig: Rig, number: int, source: State, target: State, connected: bool
) -> None:
    rig.registry.give("a", key(1).pack(), 5)
    rig.registry.hear([transition(key(2), 5, State.IDLE, State.CLOSED), transition(key(1), number, source, target)])
    found = rig.registry.find("a")
    assert found is not None
    assert found.connected is connected


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
        assert rig.registry.load() is False
        database.give_back()
        deadline = time.monotonic() + 5
        while not (rig.registry.load() and rig.store.status.text == "ok"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        rig.naming.give("1", "a")
        assert rig.wanted(Name("a.roost")) == key(1)
        rig.registry.give("b", key(1).pack(), 1)
        assert rig.registry.load()
        assert rig.wanted(Name("b.roost")) == key(1), "what is not written yet is not lost"
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

    def keyed(self, kind: str) -> Iterator[tuple[Any, bytes]]:
        return ((where[1], packed) for where, packed in self.rows.items() if where[0] == kind)

    def sleeping_ids(self, keys: object) -> dict[bytes, int]:
        return {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.integers(1, 3), st.sampled_from("abc")),
        st.tuples(st.just("remove"), st.integers(1, 3), st.sampled_from("abc")),
        st.tuples(st.just("close"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("again"), st.integers(1, 3), st.booleans()),
    ),
    max_size=25,
)


@given(STEPS)
def test_whatever_happens_a_name_reaches_the_connection_it_was_given_to_or_nobody(steps: list[Any]) -> None:
    """Three addresses, whose connections come and go, heard of or not; three names."""
    store, engine = Written(), FakeEngine()
    registry = Registry(store, engine)  # type: ignore[arg-type]
    assert registry.load()
    alive: dict[int, int] = {place: place for place in (1, 2, 3)}  # address -> number of its connection
    meant: dict[str, tuple[int, int]] = {}
    numbers = 3
    for step, place, argument in steps:
        number = alive.get(place)
        if step == "give" and number:
            meant = {name: where for name, where in meant.items() if where != (place, number)}
            meant[argument] = (place, number)
            registry.give(argument, key(place).pack(), number)
        elif step == "remove":
            assert registry.remove(argument) is (meant.pop(argument, None) is not None)
        elif step == "close" and number:
            del alive[place]
            registry.hear([transition(key(place), 0 if argument else number, State.SLEEP, State.CLOSED)])
        elif step == "again":  # another connection from the same address; the end of the old one was not heard of
            numbers += 1
            alive[place] = numbers
            registry.hear([transition(key(place), numbers, State.NONE, State.ACTIVE)])
        for name in "abc":
            found = registry.find(name)
            assert (found and (Key.unpack(found.key), found.id)) == (
                (key(meant[name][0]), meant[name][1]) if name in meant else None
            )
            if found:
                assert found.connected is (alive.get(meant[name][0]) == meant[name][1])
        named_places = {place: registry.name_at(key(place).pack()) for place in (1, 2, 3)}
        for place, known_as in named_places.items():
            assert known_as is None or meant[known_as] == (place, alive.get(place))
    for place, number in alive.items():
        engine.add(key(place), number, State.IDLE)
    after = Registry(store, engine)  # type: ignore[arg-type]
    assert after.load()
    assert {name: after.find(name) for name in "abc"} == {name: registry.find(name) for name in "abc"}


def test_names_cost_nothing_to_connections_without_one_and_little_to_the_collector(rig: Rig) -> None:
    for number in range(1, 1001):
        rig.registry._named[f"n{number}"] = NAMED.pack(key(number).pack(), number, 0)
        rig.registry._at[key(number).pack()] = f"n{number}"
    gc.collect()
    tracked: list[Any] = [*rig.registry._named.values(), *rig.registry._at.values(), *rig.registry._at]
    assert not any(gc.is_tracked(one) for one in tracked)
    began = time.thread_time()  # what it costs, however busy the machine is
    rig.registry.hear([transition(key(5000), n, State.IDLE, State.SLEEP) for n in range(10_000)])
    assert time.thread_time() - began < 1.0
    assert (len(rig.registry._named), len(rig.registry._at)) == (1000, 1000)


# -- a client that comes back by another connection -------------------------------------------------------------------


def closed(rig: Rig) -> list[tuple[object, int, int]]:
    """The connections that were to be closed: key, number, cause."""
    return [(command.key, command.id, command.cause) for command in rig.engine.commands if command.op == Op.CLOSE]


def test_the_name_of_a_living_connection_that_a_later_one_gets_closes_the_older(rig: Rig) -> None:
    rig.engine.add(key(1), 1, State.SLEEP)
    rig.engine.add(key(2), 7, State.ACTIVE)
    rig.registry.give("meter", key(1).pack(), 1)
    rig.registry.give("meter", key(2).pack(), 7)
    assert closed(rig) == [(key(1).pack(), 1, Cause.CLIENT_CONNECT)]
    assert rig.registry.name_at(key(2).pack()) == "meter"
    rig.turn()
    assert rig.store.flush()
    (end,) = rig.view.recent(10)
    assert (end["id"], end["cause"], end["successor"]) == (1, "client-connect", 7)
    assert rig.view.show("7")["came_back_from"] == [1]


def test_a_name_closes_nothing_but_an_older_living_connection_that_loses_its_last_one(rig: Rig) -> None:
    rig.registry.give("meter", key(1).pack(), 5)
    rig.registry.give("meter", key(1).pack(), 5)  # again
    rig.registry.give("meter", key(1).pack(), 6)  # another connection with this 4-tuple
    rig.registry.give("meter", key(2).pack(), 3)  # late words of an older one
    rig.registry.hear([transition(key(2), 3, State.IDLE, State.CLOSED)])
    rig.registry.give("meter", key(3).pack(), 8)  # no connection has it any more
    rig.registry.give_all({"a": 0, "b": 0}, key(4).pack(), 9)
    rig.registry.give("a", key(5).pack(), 10)  # its agent speaks for another still
    assert closed(rig) == []
    rig.registry.give("b", key(6).pack(), 11)
    assert closed(rig) == [(key(4).pack(), 9, Cause.CLIENT_CONNECT)]
