# SPDX-License-Identifier: Apache-2.0
"""Connections fall asleep and wake, by every cause, and neither end can tell."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import Any

import pytest

from appliance.lab import Lab
from appliance.wire import Command, EventType, Op
from control.core.states import Cause, State
from tests.descriptors import no_collection, open_descriptors
from tests.lab.engine_lab import PORT, EngineLab, Pair, receive, tcp_info

ACTIVE, STANDBY, IDLE, SLEEP, CLOSED = State.ACTIVE, State.STANDBY, State.IDLE, State.SLEEP, State.CLOSED
BELOW = [STANDBY, IDLE, SLEEP]
BOTH = pytest.mark.parametrize("family", [4, 6])


@BOTH
@pytest.mark.engine(service={"standby_quiet_ms": 150, "idle_quiet_ms": 350, "sleep_quiet_ms": 1100})
def test_quiet_timers_take_a_connection_down_every_step_and_data_takes_it_up(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    assert pair.server.recv(1) == b""
    pair.server.close()
    box.wait_state(pair, SLEEP, 8)
    down = [(ACTIVE, STANDBY, Cause.QUIET), (STANDBY, IDLE, Cause.QUIET), (IDLE, SLEEP, Cause.QUIET)]
    assert box.transitions(pair) == [(State.NONE, ACTIVE, Cause.CLIENT_CONNECT), *down]
    box.wake_and_answer(pair)
    assert box.transitions(pair)[4:] == [(SLEEP, ACTIVE, Cause.CLIENT_DATA)]
    assert {event.id for event in box.transition_events(pair)} == {pair.id}, "one number, through SLEEP and back"


@pytest.mark.usefixtures("unhurried")
@BOTH
@pytest.mark.parametrize("state", BELOW)
def test_client_data_wakes_from_every_state_and_arrives_once(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family)
    for _ in range(3):
        box.to(pair, state)
        told = len(box.transitions(pair))
        box.wake_and_answer(pair, 500)
        assert box.transitions(pair)[told:] == [(state, ACTIVE, Cause.CLIENT_DATA)]
    assert tcp_info(pair.client).retransmits == 0
    assert box.refusals(pair) == []


@BOTH
@pytest.mark.parametrize("state", BELOW)
def test_a_server_that_attaches_reaches_the_client_in_every_state(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    told = len(box.transitions(pair))
    server = box.attach(pair, preamble=b"hello server\n", early=b"early ")
    server.sendall(b"question")
    assert receive(pair.client, 14) == b"early question"
    pair.client.sendall(b"answer")
    assert receive(server, 19) == b"hello server\nanswer"
    box.wait_state(pair, ACTIVE)
    assert box.transitions(pair)[told:] == [(state, ACTIVE, Cause.SERVER_ATTACH)]
    assert box.no_server_is_asked(family, 0.05), "the service's own server is not asked as well"
    server.close()
    box.wait_state(pair, STANDBY)
    assert box.transitions(pair)[-1] == (ACTIVE, STANDBY, Cause.SERVER_CLOSE)
    box.wake_and_answer(pair)


@BOTH
@pytest.mark.parametrize("state", [IDLE, SLEEP])
def test_a_wake_command_thaws_to_standby_without_a_server(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    box.submit(Op.WAKE, pair, token=77)
    box.wait_state(pair, STANDBY)
    last = box.transition_events(pair)[-1]
    assert (last.from_state, last.cause, last.token) == (state, Cause.COMMAND, 77)
    assert box.no_server_is_asked(family, 0.05)
    box.wake_and_answer(pair)


@BOTH
@pytest.mark.parametrize("state", [ACTIVE, *BELOW])
def test_a_close_command_resets_the_client_whatever_its_state(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family)
    if state is not ACTIVE:
        box.to(pair, state)
    box.submit(Op.CLOSE, pair)
    with pytest.raises(ConnectionResetError):
        pair.client.recv(1)
    box.wait_state(pair, CLOSED)
    assert box.transitions(pair)[-1] == (state, CLOSED, Cause.COMMAND)
    assert box.stat("awake") == box.stat("table_ipv4") == box.stat("table_ipv6") == box.stat("idle_records") == 0


def test_a_command_whose_cause_leads_nowhere_is_refused_and_changes_nothing(box: EngineLab) -> None:
    pair = box.connect()
    for op in (Op.STANDBY, Op.IDLE, Op.CLOSE):
        box.submit(op, pair, Cause.RESTORE if op is Op.STANDBY else Cause.CLIENT_DATA)
        box.wait(lambda op=op: (op, errno.EINVAL) in box.refusals(pair), f"{op.name} is refused")  # type: ignore[misc]
    assert box.state(pair) is ACTIVE
    box.to_idle(pair)
    told = box.transitions(pair)
    for op, cause in ((Op.WAKE, Cause.CLIENT_CONNECT), (Op.SLEEP, Cause.CLIENT_DATA)):
        box.submit(op, pair, cause)
        box.wait(lambda op=op: (op, errno.EINVAL) in box.refusals(pair), f"{op.name} is refused")  # type: ignore[misc]
    assert box.transitions(pair) == told
    box.wake_and_answer(pair)


def test_commands_that_make_no_sense_are_refused_and_change_nothing(box: EngineLab) -> None:
    pair = box.connect()
    box.to_idle(pair)
    told = box.transitions(pair)
    for op in (Op.STANDBY, Op.IDLE):
        box.submit(op, pair)
        box.wait(lambda op=op: (op, errno.ENOENT) in box.refusals(pair), f"{op.name} is refused")  # type: ignore[misc]
    box.engine.submit([Command(Op.SLEEP, cause=Cause.QUIET, key=pair.key, id=pair.id + 1)])
    box.wait(lambda: (Op.SLEEP, errno.EAGAIN) in box.refusals(pair), "SLEEP with another's number is refused")
    assert box.transitions(pair) == told
    box.wake_and_answer(pair)
    box.submit(Op.WAKE, pair)
    box.wait(lambda: (Op.WAKE, errno.EALREADY) in box.refusals(pair), "WAKE of an awake one is refused")


def test_a_sleeping_connection_whose_record_is_lost_is_told_by_a_reset(box: EngineLab) -> None:
    """Where a connection is gone for good, the other end learns it: never silence."""
    pair = box.connect()
    box.to_sleep(pair)
    box.rows.clear()
    pair.client.sendall(b"anybody there?")
    with pytest.raises(ConnectionResetError):
        pair.client.recv(1)
    box.wait_state(pair, CLOSED)
    assert box.stat("table_ipv4") == box.stat("awake") == box.stat("idle_records") == 0


def test_a_sleeping_connection_costs_no_descriptor(box: EngineLab) -> None:
    pairs = [box.connect(family) for family in (4, 6) for _ in range(10)]
    for pair in pairs:
        box.to_standby(pair)
    with no_collection():
        before = len(open_descriptors())
        for pair in pairs:
            box.to_idle(pair)
        box.wait(lambda: len(open_descriptors()) == before - len(pairs), "the spare sockets to be closed")
    assert box.stat("awake") == 0


@BOTH
def test_the_port_of_a_thawed_connection_is_free_again_once_it_has_ended(box: EngineLab, family: int) -> None:
    """Another client with the same address and port: the new connection is not mistaken for the old one."""
    pair = box.connect(family)
    host, port = pair.client.getsockname()[:2]
    box.to_idle(pair)
    box.wake_and_answer(pair)
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair.client.close()
    box.wait_state(pair, CLOSED)
    with box.lab.enter("wan"):
        again = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6)
    with again:
        again.settimeout(5)
        again.bind((host, port))
        again.connect((box.lab.address("box", "wan0", family), PORT))
        server = box.accept(family)
        number = box.engine.find(pair.key)
        assert number is not None
        fresh = Pair(again, server, pair.key, number.id)
        assert fresh.id != pair.id
        box.exchange(fresh)
        box.to_idle(fresh)
        box.wake_and_answer(fresh)


@BOTH
def test_a_client_that_ends_while_idle_is_believed_and_forgotten(box: EngineLab, family: int) -> None:
    for how in ("FIN", "RST"):
        pair = box.connect(family)
        box.to_idle(pair)
        if how == "RST":
            pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        pair.client.close()
        box.wait_state(pair, CLOSED)
        assert box.transitions(pair)[-1] == (IDLE, CLOSED, Cause.CLIENT_CLOSE), how
    assert box.no_server_is_asked(family), "an end is no reason to ask a server"
    assert box.stat("awake") == box.stat("table_ipv4") == box.stat("table_ipv6") == box.stat("idle_records") == 0


def test_last_words_before_the_fin_of_an_idle_client_reach_the_server(box: EngineLab) -> None:
    pair = box.connect()
    box.to_idle(pair)
    pair.client.sendall(b"goodbye")
    pair.client.shutdown(socket.SHUT_WR)
    server = box.accept()
    assert receive(server, 100) == b"goodbye"
    server.sendall(b"farewell")
    server.close()
    assert receive(pair.client, 100) == b"farewell"
    box.wait_state(pair, CLOSED)


@pytest.mark.usefixtures("unhurried")
@BOTH
@pytest.mark.parametrize("state", [IDLE, SLEEP])
def test_a_burst_that_wakes_arrives_whole_and_is_sent_once(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family)
    box.exchange(pair, 200_000)  # a window wide enough for the burst
    box.to(pair, state)
    data = os.urandom(100_000)
    pair.client.sendall(data)
    pair.server = box.accept(family)
    assert receive(pair.server, len(data)) == data
    box.exchange(pair)
    assert tcp_info(pair.client).retransmits == 0
    assert box.stat("ring_full") == box.stat("replay_failed") == box.stat("frames_bad") == 0


def test_many_wake_at_once_and_each_gets_its_own_answer(box: EngineLab) -> None:
    pairs = [box.connect(family) for family in (4, 6) for _ in range(20)]
    for pair in pairs:
        box.to_standby(pair)
    time.sleep(0.1)
    box.engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, id=pair.id) for pair in pairs])
    for pair in pairs:
        box.wait_state(pair, IDLE)
    for number, pair in enumerate(pairs):
        pair.client.sendall(b"%04d" % number)
    for family in (4, 6):
        for _ in range(20):
            server = box.accept(family)
            server.sendall(receive(server, 4) + b"!")
    for number, pair in enumerate(pairs):
        assert receive(pair.client, 5) == b"%04d!" % number


def test_bytes_in_flight_refuse_the_freeze_and_the_connection_lives_on(box: EngineLab) -> None:
    """A client that reads nothing: what the server sent stands unacknowledged or unsent."""
    pair = box.connect(before=lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096))
    data = os.urandom(200_000)
    pair.server.sendall(data)
    time.sleep(0.1)
    box.submit(Op.IDLE, pair)
    box.wait(lambda: bool(box.refusals(pair)), "the freeze is refused")
    assert box.state(pair) is ACTIVE
    assert receive(pair.client, len(data)) == data
    box.exchange(pair)


def test_sleep_with_the_record_of_an_earlier_freeze_is_refused(box: EngineLab) -> None:
    """A slow database may commit the row of a connection that has woken and been frozen again since."""
    pair = box.connect()
    box.to_idle(pair)
    stale = box.record(pair)
    box.wake_and_answer(pair)
    box.to_idle(pair)
    box.engine.submit([Command(Op.SLEEP, cause=Cause.COMMAND, id=pair.id, record=stale)])
    box.wait(lambda: (Op.SLEEP, errno.EAGAIN) in box.refusals(pair), "SLEEP with a stale record is refused")
    assert box.state(pair) is IDLE
    box.wake_and_answer(pair)


@BOTH
@pytest.mark.usefixtures("unhurried")
def test_a_freeze_ends_the_link_first_and_either_end_thaws(box: EngineLab, family: int) -> None:
    """One command takes it from ACTIVE to IDLE; the server is told by FIN, and the next link is another one."""
    pair = box.connect(family)
    for speaker in ("client", "server", "client", "server"):
        box.wait_for_quiet(pair)
        told = len(box.transitions(pair))
        box.submit(Op.IDLE, pair)
        assert pair.server.recv(1) == b""
        pair.server.close()
        box.wait_state(pair, IDLE)
        assert box.transitions(pair)[told:] == [(ACTIVE, STANDBY, Cause.COMMAND), (STANDBY, IDLE, Cause.COMMAND)]
        if speaker == "client":
            pair.client.sendall(b"good morning")
            pair.server = box.accept(family)
            assert receive(pair.server, 12) == b"good morning"
        else:
            pair.server = box.attach(pair)
            pair.server.sendall(b"good morning")
            assert receive(pair.client, 12) == b"good morning"
        box.wait_state(pair, ACTIVE)
        box.exchange(pair)
    assert box.no_server_is_asked(family, 0.05), "each link was made once"
    assert tcp_info(pair.client).retransmits == 0


def test_every_transition_is_told_once_with_its_cause_and_its_bytes(box: EngineLab) -> None:
    pair = box.connect(greet=False)
    box.exchange(pair, 300)
    box.to_idle(pair)
    box.wake_and_answer(pair, 40)
    pair.client.close()
    assert pair.server.recv(1) == b""
    pair.server.close()
    box.wait_state(pair, CLOSED)
    events = box.transition_events(pair)
    assert [(State(e.from_state), State(e.to_state), Cause(e.cause), e.rx_bytes, e.tx_bytes) for e in events] == [
        (State.NONE, ACTIVE, Cause.CLIENT_CONNECT, 0, 0),
        (ACTIVE, STANDBY, Cause.COMMAND, 300, 300),
        (STANDBY, IDLE, Cause.COMMAND, 0, 0),
        (IDLE, ACTIVE, Cause.CLIENT_DATA, 0, 0),
        (ACTIVE, CLOSED, Cause.CLIENT_CLOSE, 40, 6),
    ]
    assert all(abs(e.at_ms - time.time() * 1000) < 30_000 for e in events)
    assert events[3].gap_ms >= 60, "the gap is counted from the last payload byte, through the sleep"
    assert all(e.type == EventType.TRANSITION for e in events)


@pytest.mark.parametrize("what", ["table", "records"])
def test_a_full_table_refuses_to_freeze_says_so_and_the_connection_lives_on(empty_lab: Lab, what: str) -> None:
    room = 56 if what == "table" else 20  # a table is whole buckets
    sizes: dict[str, Any] = {"ipv4_slots": room} if what == "table" else {"idle_slots": room}
    with EngineLab(empty_lab, **sizes) as box:
        pairs = [box.connect() for _ in range(room + 3)]
        for pair in pairs:
            box.to_standby(pair)
        time.sleep(0.1)
        box.engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, id=pair.id) for pair in pairs])
        full = (Op.IDLE, errno.ENOSPC)
        box.wait(lambda: sum(full in box.refusals(pair) for pair in pairs) == 3, "three are refused")
        assert box.stat("table_full") == 3
        box.wait(lambda: sum(box.state(pair) is IDLE for pair in pairs) == room, "the others are frozen")
        refused = [pair for pair in pairs if full in box.refusals(pair)]
        for pair in refused:
            assert box.state(pair) is STANDBY
            box.wake_and_answer(pair)
        for pair in [pair for pair in pairs if box.state(pair) is IDLE][:3]:
            box.wake_and_answer(pair)
        if what == "table":
            box.to_idle(refused[0])  # there is room again


@pytest.mark.engine(idle_slots=32)
def test_clients_wake_from_sleep_while_records_have_no_room(box: EngineLab) -> None:
    """The rest slot that a wake needs for a moment is not given to those that freeze."""
    sleeper, *others = [box.connect() for _ in range(34)]
    box.to_sleep(sleeper)
    for pair in others:
        box.to_standby(pair)
    box.wait_for_quiet(others[-1])
    box.engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, id=pair.id) for pair in others])
    full = (Op.IDLE, errno.ENOSPC)
    box.wait(lambda: sum(full in box.refusals(pair) for pair in others) == 2, "two are refused")
    assert box.stat("idle_records") == 31
    box.wake_and_answer(sleeper)
    assert not tcp_info(sleeper.client).retransmits
