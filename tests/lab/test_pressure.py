# SPDX-License-Identifier: Apache-2.0
"""Sockets run short: the least recently active connections go down, and no others; those that cannot, because what was
sent to them waits in vain, are reset."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from appliance.lab import Lab, wait_until
from appliance.wire import Command, OnServerClose, Op
from control.core.states import Cause, State
from control.dispatch.capacity import LOOK_EVERY_S, RELIEF_EVERY_S, SHORTAGES
from control.policy.decisions import relief, under_pressure
from tests.lab.echo import Echo
from tests.lab.engine_lab import EngineLab, Pair, receive


def test_pressure_that_is_told_again_and_again_ends_no_more_links_than_once(box: EngineLab) -> None:
    """It is, with each client that cannot wake meanwhile. Servers take their time to end, and the last client's server
    owes it an answer."""
    pairs = [box.connect() for _ in range(6)]
    waiting = pairs[-1]
    waiting.client.sendall(b"question")
    assert receive(waiting.server, 8) == b"question"
    for _ in range(5):
        box.submit(Op.PRESSURE, waiting, Cause.PRESSURE, count=2)
    for pair in pairs[:2]:
        assert pair.server.recv(1) == b"", "the two that were silent for longest"
    for pair in pairs[2:]:
        pair.server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            pair.server.recv(1)
    waiting.server.sendall(b"answer")
    assert receive(waiting.client, 6) == b"answer"
    for pair in pairs[:2]:
        pair.server.close()
    for pair in pairs[:2]:
        box.wait_state(pair, State.IDLE)
    assert all(box.state(pair) is State.ACTIVE for pair in pairs[2:])


PORT = 8000
SHORT = {"wakes_refused", "stuck_reset"}
BLOB = bytes(300_000)
"""More than a client takes that reads nothing, and less than the kernel keeps for it."""


def small_buffer(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


def deaf(box: EngineLab) -> Pair:
    """A client that reads nothing, and a server that has sent it much."""
    pair = box.connect(before=small_buffer)
    pair.server.sendall(BLOB)
    return pair


def relieve(box: EngineLab, done: Callable[[], object], what: str) -> None:
    """As the dispatcher does, until it is done."""
    told = 0.0

    def step() -> object:
        nonlocal told
        awake, now = box.engine.stats()["awake"], time.monotonic()
        if now >= told + RELIEF_EVERY_S and under_pressure(awake, 16):
            told = now
            box.engine.submit([Command(Op.PRESSURE, cause=Cause.PRESSURE, count=relief(awake, 16))])
        return done()

    box.wait(step, what, 40)


@pytest.mark.engine(max_awake=16)
def test_clients_that_read_nothing_keep_nobody_from_waking(box: EngineLab) -> None:
    """As many as may be awake, and none can be frozen. The longest stuck are reset, and no more than needed."""
    sleeper = box.connect()
    box.to_idle(sleeper)
    stuck = [deaf(box) for _ in range(16)]
    sleeper.client.sendall(b"hello")
    box.wait(lambda: box.stat("wakes_refused") > 0, "there is no room for it")
    relieve(box, lambda: box.state(sleeper) is State.ACTIVE, "it wakes")
    while not (heard := box.accept().recv(5)):
        pass  # begun for an earlier attempt, and given up
    assert heard == b"hello"
    count = box.stat("stuck_reset")
    assert count in (2, 3), "of 16 awake, or 17 with the one that woke, 14 can stay"

    def closed() -> list[Pair]:
        return [pair for pair in stuck if box.told(pair) is State.CLOSED]

    box.wait(lambda: len(closed()) == count, "they are closed")
    assert all(pair in stuck[:8] for pair in closed()), "the longest stuck"
    for pair in closed():
        assert box.transitions(pair)[-1][1:] == (State.CLOSED, Cause.PRESSURE)
        with pytest.raises(ConnectionResetError):
            receive(pair.client, len(BLOB))
    assert receive(stuck[-1].client, len(BLOB)) == BLOB, "whoever reads again has lost nothing"


@pytest.mark.engine(max_awake=16, service={"on_server_close": OnServerClose.CLIENT})
@pytest.mark.parametrize("end", ["client", "server"])
def test_half_closed_connections_keep_nobody_from_waking(box: EngineLab, end: str) -> None:
    """One end has shut its side, and the other says nothing more and does not close."""
    sleeper = box.connect()
    box.to_idle(sleeper)
    pairs = [box.connect() for _ in range(16)]
    for pair in pairs:
        shut, other = (pair.client, pair.server) if end == "client" else (pair.server, pair.client)
        shut.shutdown(socket.SHUT_WR)
        assert receive(other, 1) == b""
    talks, silent = pairs[:2], pairs[2:]
    sleeper.client.sendall(b"hello")
    box.wait(lambda: box.stat("wakes_refused") > 0, "there is no room for it")

    def is_awake() -> bool:
        for pair in talks:
            shut, other = (pair.client, pair.server) if end == "client" else (pair.server, pair.client)
            other.sendall(b"more")
            assert receive(shut, 4) == b"more", "half-closed, and in use"
        return box.state(sleeper) is State.ACTIVE

    relieve(box, is_awake, "it wakes")
    assert box.stat("stuck_reset") in (2, 3), "of 16 awake, or 17 with the one that woke, 14 can stay"
    box.wait(lambda: sum(box.told(pair) is State.CLOSED for pair in silent) == box.stat("stuck_reset"), "they are told")


@pytest.mark.engine(max_awake=16)
def test_a_link_that_is_just_being_ended_is_not_stuck(box: EngineLab) -> None:
    """Both ends have been quiet for longer than makes them stuck, and the server's kernel is slow to acknowledge our
    FIN. That has no payload: when the last of it was sent says nothing."""
    pairs = [box.connect() for _ in range(16)]
    time.sleep(5.5)
    box.lab.nft("lan", "table inet slow { chain o { type filter hook output priority 0; oifname eth0 drop; }; }")
    try:
        for _ in range(3):
            box.engine.submit([Command(Op.PRESSURE, cause=Cause.PRESSURE, count=16)])
            time.sleep(0.1)
    finally:
        box.lab.nft("lan", "delete table inet slow")
    for pair in pairs:
        assert receive(pair.server, 1) == b"", "our FIN"
        pair.server.close()
    for pair in pairs:
        box.wait_state(pair, State.IDLE)
    assert box.stat("stuck_reset") == 0


@pytest.mark.engine(max_awake=64)
def test_new_clients_leave_room_for_those_that_wake(box: EngineLab) -> None:
    sleeper = box.connect()
    box.to_idle(sleeper)
    pairs = [box.connect(greet=False) for _ in range(62)]
    for _ in range(5):
        box.dial()
    box.wait(lambda: box.stat("accept_paused") > 0, "no more are taken")
    box.wake_and_answer(sleeper)
    assert box.stat("wakes_refused") == 0
    assert all(box.state(pair) is State.ACTIVE for pair in pairs)


def test_a_host_that_shuts_its_windows_keeps_no_sleeper_from_waking_and_the_daemon_tells_of_it(empty_lab: Lab) -> None:
    """260 of its connections wake together, ask for much and read nothing, where 200 may be awake."""
    lab, asleep = empty_lab, {"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": "500ms"}
    daemon = lab.daemon(lab.config(PORT, policy=asleep, table={"max_awake": 200}))

    def answer(asked: bytes) -> bytes:
        return asked if asked == b"hello" else BLOB[:100_000]

    with ExitStack() as stack:
        stack.callback(daemon.close)
        server = lab.address("lan", "eth0")
        stack.enter_context(Echo(lab.space("lan"), server, PORT, answer))

        def come(buffer: int | None = None) -> socket.socket:
            with lab.enter("wan"):
                client = stack.enter_context(socket.socket())
            if buffer:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            client.settimeout(30)
            client.connect((lab.address("box", "wan0"), PORT))
            return client

        client, stuck = come(), [come(4096) for _ in range(260)]
        wait_until(lambda: daemon.status()["connections"]["SLEEP"] == 261, 60, "all are asleep")
        for one in stuck:
            one.sendall(b"much")
        wait_until(lambda: daemon.status()["counters"]["wakes_refused"] > 0, 30, "there is no room for more")
        client.sendall(b"hello")
        assert receive(client, 5) == b"hello"

        def all_told() -> bool:
            """The client may have had the room that is kept for those that wake, before anybody was reset."""
            status = daemon.status()
            told = {one["name"] for one in status["attention"]} >= SHORT
            return told and all(status["counters"][counter] for counter in SHORT)

        wait_until(all_told, 30, "status tells")
        told = [SHORTAGES[counter] for counter in SHORT]
        wait_until(lambda: all(what in daemon.log.read_text() for what in told), LOOK_EVERY_S + 10, "the log tells")
