# SPDX-License-Identifier: Apache-2.0
"""Clients that the appliance connects to are connections like any other (seed figure 23)."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import EADDRNOTAVAIL, EAFNOSUPPORT, EEXIST, EMFILE, ENOENT
from typing import Final

import pytest

from appliance.wire import Command, Event, EventType, Key, Op, pack_address, unpack_address
from control.core.states import Cause, State
from tests.lab.engine_lab import PORT, SERVICE, EngineLab, Pair, receive
from tests.lab.test_router import assert_reset, reach

BOTH = pytest.mark.parametrize("family", [4, 6])
INACTIVE: Final = [State.STANDBY, State.IDLE, State.SLEEP]
CLIENT_PORT: Final = 9300  # at which the client listens
ATTACH_PORT: Final = 9301
ROUTER: Final = {"router": True, "attach_ports": [ATTACH_PORT], "dial_ms": 3000}
NOBODY: Final = bytes(16)


@contextmanager
def listening(box: EngineLab, family: int = 4, port: int = CLIENT_PORT) -> Iterator[socket.socket]:
    """A client that can be dialled."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    with box.lab.enter("wan"):
        listener = socket.create_server((box.lab.address("wan", "eth0", family), port), family=kind)
    with listener:
        listener.settimeout(5)
        yield listener


def dial(
    box: EngineLab, listener: socket.socket, family: int = 4, server: bytes = NOBODY
) -> tuple[Pair, socket.socket]:
    """A connection to the client, and its end of it. It is not adopted yet."""
    with box.lab.enter("box"):
        fd, key = box.engine.dial(SERVICE[family], listener.getsockname()[:2], server)
    assert fd >= 0, fd
    ours = socket.socket(fileno=fd)
    client, peer = listener.accept()
    client.settimeout(5)
    select.select([], [ours], [], 5)
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    unpacked = Key.unpack(key)
    assert peer[:2] == (unpack_address(unpacked.local), unpacked.local_port)
    return Pair(client, ours, unpacked, 0), client


def adopt(box: EngineLab, pair: Pair, family: int = 4) -> None:
    fd = pair.server.detach()
    box.engine.submit([Command(Op.ADOPT, Cause.SERVER_ATTACH, key=pair.key, fd=fd, count=SERVICE[family])])
    box.wait(lambda: box.transitions(pair), "it is adopted")
    assert box.transitions(pair)[0] == (State.NONE, State.STANDBY, Cause.SERVER_ATTACH)
    pair.id = box.transition_events(pair)[0].id


@BOTH
@pytest.mark.parametrize("state", INACTIVE)
def test_a_dialled_client_sleeps_wakes_and_has_any_server(box: EngineLab, family: int, state: State) -> None:
    with listening(box, family) as listener:
        pair, client = dial(box, listener, family)
        with client:
            adopt(box, pair, family)
            assert client.getpeername()[:2] == (box.lab.address("box", "wan0", family), PORT), "from its service"
            for turn in range(2):
                if state is not State.STANDBY:
                    box.to(pair, state)
                with box.attach(pair) as server:
                    server.sendall(b"are you there?")
                    assert receive(client, 14) == b"are you there?"
                    client.sendall(b"yes")
                    assert receive(server, 3) == b"yes"
                woke = (state, State.ACTIVE, Cause.SERVER_ATTACH)
                box.wait(lambda woke=woke, turn=turn: box.transitions(pair).count(woke) > turn, "it was told")  # type: ignore[misc]
                box.wait_state(pair, State.STANDBY)
            if state is not State.STANDBY:
                box.to(pair, state)
            box.wake_and_answer(pair)  # by the service's server
            pair.server.close()
        box.wait_state(pair, State.CLOSED)


def test_a_dialled_client_that_sleeps_outlives_the_engine(box: EngineLab) -> None:
    with listening(box) as listener:
        pair, client = dial(box, listener)
        with client:
            adopt(box, pair)
            box.to_sleep(pair)
            box.stop()
            box.start()
            box.wake_and_answer(pair)


@pytest.mark.parametrize("state", [State.ACTIVE, *INACTIVE])
def test_a_client_that_is_there_is_not_dialled(box: EngineLab, state: State) -> None:
    with listening(box) as listener:
        where = listener.getsockname()
        pair, client = dial(box, listener)
        with client:
            adopt(box, pair)
            if state is State.ACTIVE:
                box.attach(pair)
                box.wait_state(pair, State.ACTIVE)
            elif state is not State.STANDBY:
                box.to(pair, state)
            with box.lab.enter("box"):
                assert box.engine.dial(SERVICE[4], where, NOBODY) == (-EEXIST, pair.key.pack())
            assert not select.select([listener], [], [], 0)[0]


def test_what_cannot_be_dialled_or_adopted_is_refused_and_the_client_learns_it(box: EngineLab) -> None:
    with box.lab.enter("box"), listening(box) as listener:
        assert box.engine.dial(77, listener.getsockname(), NOBODY)[0] == -ENOENT
        assert box.engine.dial(SERVICE[6], listener.getsockname(), NOBODY)[0] == -EAFNOSUPPORT
        pair, client = dial(box, listener)
        commands = [Command(Op.ADOPT, Cause.SERVER_ATTACH, key=pair.key, fd=pair.server.detach(), count=77)]
        box.engine.submit(commands)
        with client, pytest.raises(ConnectionResetError):
            client.recv(1)
        box.wait(lambda: box.refusals(pair) == [(Op.ADOPT, ENOENT)], "there is no such service")
        first, client = dial(box, listener)
        other, unrelated = socket.socketpair()
        adopt(box, first)
        box.engine.submit([Command(Op.ADOPT, key=first.key, fd=unrelated.detach(), count=SERVICE[4])])
        with client:
            box.wait(lambda: (Op.ADOPT, EEXIST) in box.refusals(first), "the key is another's")
            assert other.recv(1) == b"", "it is closed"
            other.close()
            box.to_idle(first)
            box.wake_and_answer(first)


@pytest.mark.engine(max_awake=64)
def test_no_more_are_adopted_than_may_be_awake(box: EngineLab) -> None:
    with listening(box) as listener:
        for _ in range(62):
            box.dial()
        box.wait(lambda: box.stat("accepted") == 62, "62 are awake")
        pair, client = dial(box, listener)
        box.engine.submit([Command(Op.ADOPT, key=pair.key, fd=pair.server.detach(), count=SERVICE[4])])
        with client, pytest.raises(ConnectionResetError):
            client.recv(1)
        box.wait(lambda: box.refusals(pair) == [(Op.ADOPT, EMFILE)], "it is refused")


@pytest.mark.engine(filter_slots=1000, service={"no_keepalives": True})
def test_a_client_that_sleeps_without_a_slot_is_not_dialled_either(box: EngineLab) -> None:
    with listening(box) as listener:
        where = listener.getsockname()
        pair, client = dial(box, listener)
        with client:
            adopt(box, pair)
            box.to_sleep(pair)
            assert box.engine.stats()["filter_members"] == 1
            with box.lab.enter("box"):
                assert box.engine.dial(SERVICE[4], where, NOBODY)[0] == -EEXIST
            with box.attach(pair) as server:
                server.sendall(b"there?")
                assert receive(client, 6) == b"there?"


# -- of a router ------------------------------------------------------------------------------------------------------


def wanted(box: EngineLab) -> list[Event]:
    return [event for event in box.events if event.type == EventType.WANTED]


@BOTH
@pytest.mark.engine(**ROUTER)
def test_a_router_s_server_gets_the_client_that_is_dialled_for_it(box: EngineLab, family: int) -> None:
    address, lan = box.lab.address("wan", "eth0", family), box.lab.address("lan", "eth0", family)
    with listening(box, family) as listener, reach(box, (address, ATTACH_PORT)) as server:
        server.sendall(b"are you there?")
        box.wait(lambda: wanted(box), "the engine tells which client it wants")
        time.sleep(0.2)
        (event,) = wanted(box)  # and once is enough
        asked = event.record.key
        assert (unpack_address(asked.client), asked.client_port) == (address, ATTACH_PORT)
        assert event.served[:2] == (pack_address(lan), server.getsockname()[1])
        pair, client = dial(box, listener, family, event.served.server)
        with client:
            assert client.getpeername()[:2] == (lan, PORT), "as its server's own"
            adopt(box, pair, family)
            assert receive(client, 14) == b"are you there?"
            client.sendall(b"yes")
            assert receive(server, 3) == b"yes"
            server.close()
            box.wait_state(pair, State.STANDBY)
            box.to_sleep(pair)
            with reach(box, (address, CLIENT_PORT)) as again:
                again.sendall(b"and now?")
                assert receive(client, 8) == b"and now?"
            box.wait_state(pair, State.STANDBY)
            box.to_sleep(pair)
            box.wake_and_answer(pair)  # by the server whose address it was dialled from


@pytest.mark.engine(**ROUTER)
def test_a_router_s_server_is_reset_as_soon_as_its_client_could_not_be_dialled(box: EngineLab) -> None:
    address = box.lab.address("wan", "eth0")
    with reach(box, (address, ATTACH_PORT)) as server:
        box.wait(lambda: wanted(box), "the engine tells which client it wants")
        other = Key.of("192.0.2.1", ATTACH_PORT, "0.0.0.0", 0)
        box.engine.submit([Command(Op.ADOPT, key=other, error=ENOENT)])
        server.settimeout(0.3)
        with pytest.raises(TimeoutError):  # that was another client
            server.recv(1)
        server.settimeout(1)
        box.engine.submit([Command(Op.ADOPT, key=wanted(box)[0].record.key, error=ENOENT)])
        with pytest.raises(ConnectionResetError):
            server.recv(1)
    began = time.monotonic()
    assert_reset(box, (address, ATTACH_PORT))  # ROOST_EV_WANTED is not answered
    assert 2.9 < time.monotonic() - began < 5


@pytest.mark.engine(**ROUTER)
def test_a_service_for_every_server_dials_as_the_one_that_asks_but_not_as_the_appliance(box: EngineLab) -> None:
    """The client's next word would be for the appliance, which is no server."""
    spec = replace(box.spec(4), index=77, listen="0.0.0.0", listen_port=PORT + 77)
    with box.lab.enter("box"), listening(box) as listener:
        box.engine.add_service(spec)
        where = listener.getsockname()
        for server in (pack_address(box.lab.address("box", "lan0")), NOBODY):
            assert box.engine.dial(77, where, server)[0] == -EADDRNOTAVAIL
        lan = box.lab.address("lan", "eth0")
        fd, _ = box.engine.dial(77, where, pack_address(lan))
        with socket.socket(fileno=fd), listener.accept()[0] as client:
            assert client.getpeername() == (lan, PORT + 77)
