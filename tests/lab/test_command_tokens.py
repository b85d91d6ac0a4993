# SPDX-License-Identifier: Apache-2.0
"""A command's token comes back on one event, the one that answers this command, whatever else is under way."""

from __future__ import annotations

import errno
import socket
from typing import Final

import pytest

from appliance.lab import Lab
from appliance.wire import Command, EventType, Op
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, Pair, receive
from tests.lab.slow_store import SlowStore

DOWN, UP = 71, 72  # tokens
Answer = tuple[State, State, Cause] | tuple[Op, int]


def answers(box: EngineLab) -> dict[int, list[Answer]]:
    """What came back with each token: a transition, or the refusal of an op with its errno."""
    found: dict[int, list[Answer]] = {}
    for e in box.events:
        if e.token and e.type != EventType.SERVED:
            step = (State(e.from_state), State(e.to_state), Cause(e.cause))
            answer: Answer = (Op(e.op), e.error) if e.type == EventType.REFUSED else step
            found.setdefault(e.token, []).append(answer)
    return found


def server_that_attaches(box: EngineLab) -> tuple[socket.socket, int]:
    """A server's end of its connection to the appliance, and the appliance's end for Op.ATTACH."""
    with box.lab.enter("box"):
        listener = socket.create_server((box.lab.address("box", "lan0"), 0))
    with listener:
        with box.lab.enter("lan"):
            server = socket.create_connection(listener.getsockname(), 5)
        return server, listener.accept()[0].detach()


def attach(pair: Pair, fd: int) -> Command:
    return Command(Op.ATTACH, cause=Cause.SERVER_ATTACH, key=pair.key, fd=fd, token=UP)


ATTACHED: Final = (State.STANDBY, State.ACTIVE, Cause.SERVER_ATTACH)


def test_an_attach_while_freezing_refuses_the_freeze_and_answers_for_itself(box: EngineLab) -> None:
    pair = box.connect()
    box.to_standby(pair)
    box.wait_for_quiet(pair)
    server, fd = server_that_attaches(box)
    with server:
        # One batch: the attach meets the freeze in its grace period.
        box.engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, id=pair.id, token=DOWN), attach(pair, fd)])
        box.wait_state(pair, State.ACTIVE)
        server.sendall(b"here I am")
        assert receive(pair.client, 9) == b"here I am"
        assert answers(box) == {DOWN: [(Op.IDLE, errno.EAGAIN)], UP: [ATTACHED]}


def test_an_attach_while_the_link_is_being_ended_waits_and_answers_for_itself(box: EngineLab) -> None:
    pair = box.connect()
    server, fd = server_that_attaches(box)
    with server:
        box.engine.submit([Command(Op.STANDBY, cause=Cause.COMMAND, id=pair.id, token=DOWN), attach(pair, fd)])
        assert pair.server.recv(1) == b""
        assert answers(box) == {}, "neither is done yet"
        pair.server.close()
        box.wait(lambda: UP in answers(box), "the attach is answered")
        server.sendall(b"here I am")
        assert receive(pair.client, 9) == b"here I am"
        assert answers(box) == {DOWN: [(State.ACTIVE, State.STANDBY, Cause.COMMAND)], UP: [ATTACHED]}


def test_idle_from_active_answers_with_idle_and_not_with_the_standby_on_its_way(box: EngineLab) -> None:
    pair = box.connect()
    box.wait_for_quiet(pair)
    box.submit(Op.IDLE, pair, token=DOWN)
    assert pair.server.recv(1) == b""
    pair.server.close()
    box.wait_state(pair, State.IDLE)
    assert box.transitions(pair)[1:] == [
        (State.ACTIVE, State.STANDBY, Cause.COMMAND), (State.STANDBY, State.IDLE, Cause.COMMAND)]  # fmt: skip
    assert answers(box) == {DOWN: [(State.STANDBY, State.IDLE, Cause.COMMAND)]}


def test_a_command_that_overtakes_another_answers_for_both(box: EngineLab) -> None:
    pair = box.connect()
    box.wait_for_quiet(pair)
    box.engine.submit([
        Command(Op.IDLE, cause=Cause.COMMAND, id=pair.id, token=DOWN),
        Command(Op.STANDBY, cause=Cause.COMMAND, id=pair.id, token=UP),
    ])  # fmt: skip
    assert pair.server.recv(1) == b""
    pair.server.close()
    box.wait_state(pair, State.STANDBY)
    assert answers(box) == {
        DOWN: [(Op.STANDBY, errno.ECANCELED)],
        UP: [(State.ACTIVE, State.STANDBY, Cause.COMMAND)],
    }, "STANDBY was the last word: it goes no further"


@pytest.mark.engine(service={"standby_quiet_ms": 50, "idle_quiet_ms": 50})
def test_a_quiet_interval_that_ends_meanwhile_overtakes_no_command_that_is_waited_for(
    box: EngineLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`roost sleep` was refused, now and then, where the connection was quiet just then, too."""
    monkeypatch.setattr(box, "_decide", lambda event: None)
    pair = box.connect()
    box.wait(lambda: any(e.type == EventType.QUIET and e.id == pair.id for e in box.events), "it is quiet")
    box.engine.submit([
        Command(Op.IDLE, cause=Cause.COMMAND, id=pair.id, token=DOWN),
        Command(Op.STANDBY, cause=Cause.QUIET, id=pair.id),
        Command(Op.IDLE, cause=Cause.QUIET, id=pair.id),
    ])  # fmt: skip
    assert pair.server.recv(1) == b""
    pair.server.close()
    box.wait_state(pair, State.IDLE)
    assert answers(box) == {DOWN: [(State.STANDBY, State.IDLE, Cause.COMMAND)]}


def test_a_second_wake_by_key_and_number_finds_the_connection_whose_record_is_being_asked_for(
    empty_lab: Lab,
) -> None:
    """It has no number until its record is there; once, this ended the engine."""
    with SlowStore(empty_lab) as box:
        pair = box.connect()
        box.to_sleep(pair)
        box.engine.submit([
            Command(Op.WAKE, cause=Cause.COMMAND, key=pair.key),
            Command(Op.WAKE, cause=Cause.COMMAND, key=pair.key, id=pair.id, token=UP),
        ])  # fmt: skip
        box.wait_asked(pair)
        assert box.stat("awake") == 1, "it is one connection"
        box.answer(pair)
        box.wait_state(pair, State.STANDBY)
        assert answers(box) == {UP: [(State.SLEEP, State.STANDBY, Cause.COMMAND)]}
        box.wake_and_answer(pair)


@pytest.mark.parametrize("op", [Op.STANDBY, Op.IDLE, Op.WAKE, Op.CLOSE])
def test_a_command_for_an_earlier_connection_leaves_the_next_one_with_its_4_tuple_as_it_is(
    box: EngineLab, op: Op
) -> None:
    pair = box.connect()
    box.wait_for_quiet(pair)
    box.engine.submit([Command(op, cause=Cause.COMMAND, key=pair.key, id=pair.id + 1000, token=DOWN)])
    box.wait(lambda: DOWN in answers(box), "it is refused")
    error = errno.ENOENT if op in (Op.STANDBY, Op.IDLE) else errno.EAGAIN
    assert answers(box) == {DOWN: [(op, error)]}
    assert box.state(pair) is State.ACTIVE
    pair.client.sendall(b"as before")
    assert receive(pair.server, 9) == b"as before"


@pytest.mark.parametrize("speaks", [False, True])
def test_an_attach_to_a_sleeper_whose_record_is_lost_is_refused_once_and_the_client_reset(
    empty_lab: Lab, speaks: bool
) -> None:
    with SlowStore(empty_lab) as box:
        pair = box.connect()
        box.to_sleep(pair)
        server, fd = server_that_attaches(box)
        with server:
            box.engine.submit([attach(pair, fd)])
            box.wait_asked(pair)
            if speaks:
                pair.client.sendall(b"anybody there?")
            box.rows.clear()
            box.answer(pair)
            with pytest.raises(ConnectionResetError):
                pair.client.recv(1)
            assert server.recv(1) == b""
        box.wait_state(pair, State.CLOSED)
        assert answers(box) == {UP: [(Op.ATTACH, errno.ECONNRESET)]}
        assert box.stat("awake") == box.stat("table_ipv4") == box.stat("idle_records") == 0


@pytest.mark.engine(service={"standby_quiet_ms": 3_600_000, "idle_quiet_ms": 3_600_000})
def test_a_decision_of_quiet_that_a_server_has_overtaken_is_refused(box: EngineLab) -> None:
    """The control plane decides on what it was told. A server that was attached meanwhile keeps its client."""
    pair = box.connect()
    box.to_standby(pair)
    server, fd = server_that_attaches(box)
    with server:
        down = Command(Op.IDLE, cause=Cause.QUIET, id=pair.id, token=DOWN)
        box.engine.submit([attach(pair, fd)])
        box.wait_state(pair, State.ACTIVE)
        box.engine.submit([down])
        box.wait(lambda: DOWN in answers(box), "it is answered")
        assert answers(box) == {UP: [ATTACHED], DOWN: [(Op.IDLE, errno.EAGAIN)]}
        box.submit(Op.STANDBY, pair, Cause.QUIET, token=DOWN + 2)
        box.wait(lambda: DOWN + 2 in answers(box), "it is answered")
        assert answers(box)[DOWN + 2] == [(Op.STANDBY, errno.EAGAIN)]
        server.sendall(b"here I am")
        assert receive(pair.client, 9) == b"here I am"
        assert box.state(pair) is State.ACTIVE
