# SPDX-License-Identifier: Apache-2.0
"""Those that sleep without a slot, seen from the control plane: the engine names a candidate, the row decides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from errno import EIO, ENOENT
from typing import cast

import pytest

from appliance.frontends.target import Address
from appliance.wire import Event, EventType, Key, Op, Sought
from control.clients import local_addresses
from control.config import Service
from control.core.errors import OperationError
from control.core.states import State
from tests.databases import Database
from tests.unit.fake_engine import event, record
from tests.unit.test_dispatcher import until
from tests.unit.test_registry import Rig

CLIENT = Address("192.0.0.1", 40000)
WRONG, RIGHT = (Key.of(CLIENT.host, CLIENT.port, local, 7000) for local in ("10.0.0.77", "10.0.0.1"))


@pytest.fixture
def rig(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(local_addresses, "local_addresses", lambda: ["10.0.0.1", "10.0.0.77", "127.0.0.1"])
    made = Rig(database)
    yield made
    made.close()


def put_row(rig: Rig, key: Key, number: int) -> None:
    row = record(key, number, by_key=True)
    rig.store.add(upserts=[(key.pack(), row.ka + row.rest)])
    until(lambda: rig.store.sleeping_by_id(number))


async def attached(rig: Rig) -> int:
    """How the attempt of a server to reach CLIENT ends."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        task = asyncio.create_task(rig.attaching.attach(CLIENT, ours, b"", b"", 5.0, "connect"))
        while not task.done():
            await asyncio.sleep(0.005)
            rig.turn()
        return task.result()


def test_a_look_up_by_address_and_port_goes_on_behind_a_wrong_hit_of_the_filter(rig: Rig) -> None:
    """The service listens on every address; which of them the client has connected to, the row tells."""
    rig.engine.without_slot = {WRONG: 0, RIGHT: 5}
    put_row(rig, RIGHT, 5)
    located = rig.locator.locate("192.0.0.1:40000")
    assert (located.id, located.key, located.state) == (5, RIGHT, State.SLEEP)


def test_where_no_hit_has_a_row_there_is_no_such_connection(rig: Rig) -> None:
    rig.engine.without_slot = {WRONG: 0, RIGHT: 0}
    with pytest.raises(OperationError, match="no connection"):
        rig.locator.locate("192.0.0.1:40000")


def test_who_goes_to_sleep_while_he_is_looked_for_by_number_is_found(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no row yet, then; and when the list comes to where it was, no number in memory any more."""

    def falls_asleep_meanwhile(_sought: Sought) -> Iterator[Event]:
        rig.engine.without_slot = {RIGHT: 5}
        put_row(rig, RIGHT, 5)
        return iter(())

    monkeypatch.setattr(rig.engine, "list", falls_asleep_meanwhile)
    located = rig.locator.locate("5")
    assert (located.id, located.key, located.state) == (5, RIGHT, State.SLEEP)


def test_a_server_reaches_a_sleeper_behind_a_wrong_hit_of_the_filter(rig: Rig) -> None:
    rig.engine.without_slot = {WRONG: 0, RIGHT: 5}
    put_row(rig, RIGHT, 5)
    assert asyncio.run(attached(rig)) == 0
    assert {key: c.state for key, c in rig.engine.connections.items()} == {RIGHT: State.ACTIVE}


def test_a_server_that_wants_whom_only_the_filter_knows_is_told_that_there_is_nobody(rig: Rig) -> None:
    rig.engine.without_slot = {WRONG: 0, RIGHT: 0}
    assert asyncio.run(attached(rig)) == ENOENT
    assert not rig.engine.connections


def test_who_asks_for_a_sleeper_whose_row_cannot_be_read_is_told_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.engine.carry_out = False
    rig.engine.without_slot = {RIGHT: 5}
    put_row(rig, RIGHT, 5)

    async def woken() -> None:
        task = asyncio.create_task(rig.moving.act("5", "wake"))
        while not any(command.op == Op.WAKE for command in rig.engine.commands):
            await asyncio.sleep(0.005)
        token = next(command.token for command in rig.engine.commands if command.op == Op.WAKE)
        rig.engine.say(event(EventType.REFUSED, RIGHT, op=Op.WAKE, error=EIO, token=token))
        rig.turn()
        await task

    with pytest.raises(OperationError, match="row could not be read") as raised:
        asyncio.run(woken())
    assert raised.value.status == 503


def test_an_agents_connection_hides_none_of_another_service_with_the_same_port(rig: Rig) -> None:
    """The engine names the first that is known, which is the agent's here."""
    services = cast(dict[int, Service], rig.locator._services)
    services[2] = services[1].model_copy(update={"kind": "agents"})
    agent = rig.engine.add(WRONG, 1, State.ACTIVE)
    agent.record = record(WRONG, 1, service=2)
    rig.engine.add(RIGHT, 2, State.ACTIVE)
    (wanted,) = asyncio.run(rig.locator.wanted(CLIENT))
    assert wanted.record.key == RIGHT
    del rig.engine.connections[RIGHT]
    with pytest.raises(OSError, match="an agent's connection"):
        asyncio.run(rig.locator.wanted(CLIENT))
