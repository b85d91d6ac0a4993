# SPDX-License-Identifier: Apache-2.0
"""What the engine tells of each server that wanted a client (ROOST_EV_SERVED): once, when the client's first byte has
come, when the link is over without one, or when the door refuses."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from appliance.wire import Event, EventType, Op, SecondServer, unpack_address
from control.core.states import State
from tests.lab.engine_lab import EngineLab, Pair, receive
from tests.lab.test_second_server import come

BOTH = pytest.mark.parametrize("family", [4, 6])
INACTIVE = [State.STANDBY, State.IDLE, State.SLEEP]
TAKE_OVER = {"second_server": SecondServer.TAKES_OVER, "second_server_ms": 5000}
TOKEN = 17  # of `come`


def told(box: EngineLab) -> list[Event]:
    return [event for event in box.events if event.type == EventType.SERVED]


def the_one(box: EngineLab, count: int = 1) -> Event:
    """The last of so many, when there are no more of them a moment later."""
    box.wait(lambda: len(told(box)) >= count, "it is told")
    time.sleep(0.1)
    assert len(told(box)) == count
    return told(box)[-1]


def assert_is_of(event: Event, pair: Pair, way: str, found: State) -> None:
    assert (event.error, event.id, event.token) == (0, pair.id, TOKEN if way == "command" else 0)
    assert event.record.key_raw == pair.key.pack()
    assert (State(event.from_state), event.served.service) == (found, 1 if pair.client.family == socket.AF_INET else 2)
    assert abs(event.at_ms - time.time() * 1000) < 10_000


@BOTH
@pytest.mark.parametrize("way", ["door", "command"])
@pytest.mark.parametrize("state", INACTIVE)
@pytest.mark.engine(router=True)
def test_the_first_byte_of_the_client_is_told_once(box: EngineLab, family: int, way: str, state: State) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    with come(box, pair, way) as server:
        server.sendall(b"are you there?")
        assert receive(pair.client, 14) == b"are you there?"
        time.sleep(0.1)
        assert told(box) == []
        for _ in range(3):
            pair.client.sendall(b"yes")
            assert receive(server, 3) == b"yes"
        event = the_one(box)
        address = server.getsockname()[:2] if way == "door" else ("::", 0)
    assert_is_of(event, pair, way, state)
    assert event.served.first_ms is not None
    assert event.count + 90 <= event.served.first_ms < 5000
    assert (unpack_address(event.served.server), event.served.port) == address
    box.wait_state(pair, State.STANDBY)
    assert len(told(box)) == 1


def server_leaves(box: EngineLab, pair: Pair) -> None:
    pair.server.close()
    box.wait_state(pair, State.STANDBY)


def client_leaves(box: EngineLab, pair: Pair) -> None:
    pair.client.close()
    assert pair.server.recv(1) == b""
    pair.server.close()
    box.wait_state(pair, State.CLOSED)


def engine_ends_it(box: EngineLab, pair: Pair) -> None:
    box.close(pair)


@BOTH
@pytest.mark.parametrize("over", [server_leaves, client_leaves, engine_ends_it])
def test_a_link_that_is_over_before_the_client_said_anything_is_told_so(
    box: EngineLab, family: int, over: Callable[[EngineLab, Pair], None]
) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    pair.server = come(box, pair, "command")
    box.wait_state(pair, State.ACTIVE)
    over(box, pair)
    event = the_one(box)
    assert_is_of(event, pair, "command", State.IDLE)
    assert event.served.first_ms is None


@BOTH
@pytest.mark.engine(router=True)
def test_a_server_that_the_door_refuses_is_told_with_its_address(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    with box.lab.enter("lan"):
        server = socket.socket(pair.client.family)
    with server:
        server.bind((box.lab.address("lan", "eth0", family), 0))
        address = server.getsockname()[:2]
        with suppress(ConnectionResetError):  # it may be reset before connect() has returned
            server.connect(pair.client.getsockname()[:2])
            pytest.fail(f"it was let in: {server.recv(1)!r}")
    event = the_one(box)
    assert (event.error, event.token, event.served.first_ms) == (errno.EBUSY, 0, None)
    assert (unpack_address(event.served.server), event.served.port) == address
    assert event.record.key.client_text == pair.key.client_text
    box.exchange(pair)
    assert len(told(box)) == 1, "its own server had not asked for it"


def test_a_command_that_is_refused_is_told_by_its_refusal_alone(box: EngineLab) -> None:
    pair = box.connect()
    with come(box, pair, "command") as server:
        assert server.recv(1) == b""
    assert told(box) == []


@pytest.mark.engine(service=TAKE_OVER)
def test_of_two_servers_each_is_told_for_itself(box: EngineLab) -> None:
    pair = box.connect()
    box.to_standby(pair)
    first = come(box, pair, "command")
    box.wait_state(pair, State.ACTIVE)
    second = come(box, pair, "command")
    assert first.recv(1) == b""
    assert_is_of(the_one(box), pair, "command", State.STANDBY)
    first.close()
    pair.client.sendall(b"hello second")
    assert receive(second, 12) == b"hello second"
    event = the_one(box, 2)
    assert event.served.first_ms is not None
    assert told(box)[0].served.first_ms is None
    second.close()


@pytest.mark.engine(service={"persistent": True})
def test_a_pair_that_falls_asleep_is_told_as_one_that_said_nothing(box: EngineLab) -> None:
    pair = box.connect()
    box.to_standby(pair)
    pair.server = come(box, pair, "command")
    box.wait_state(pair, State.ACTIVE)
    box.wait_for_quiet(pair)
    box.submit(Op.IDLE, pair)
    box.wait_state(pair, State.IDLE)
    event = the_one(box)
    assert event.served.first_ms is None
    pair.client.sendall(b"awake again")
    assert receive(pair.server, 11) == b"awake again"
    assert len(told(box)) == 1
