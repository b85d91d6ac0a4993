# SPDX-License-Identifier: Apache-2.0
"""Who is awake is checked as well: by keep-alives of the kernel on both legs, and by a probe before a server is given a
client that was not heard for a while."""

from __future__ import annotations

import errno
import select
import time

import pytest

from appliance.wire import Op
from control.core.states import Cause, State
from tests.lab.engine_lab import PORT, EngineLab, Pair, receive, reset, tcp_info
from tests.lab.test_probing import cut_off

CHECKED = {"awake_probe_s": 1, "probe_retry_s": 1, "probe_count": 2}


def vanish(box: EngineLab, *pairs: Pair) -> None:
    """As after a device lost its power; until "vanish" is deleted."""
    ports = ", ".join(str(pair.key.client_port) for pair in pairs)
    cut_off(box, f"tcp sport {{ {ports} }} drop; tcp dport {{ {ports} }} drop;")


def let_server_vanish(box: EngineLab, pair: Pair) -> None:
    """Likewise, in "lan"."""
    box.lab.nft("lan", f"""
        table inet vanish {{
            chain arrive {{
                type filter hook input priority 0;
                tcp sport {pair.server.getpeername()[1]} drop;
            }}
        }}
    """)  # fmt: skip


@pytest.mark.engine(service=CHECKED)
def test_clients_that_vanish_while_they_are_awake_are_found_dead_and_their_servers_told(box: EngineLab) -> None:
    living, vanished, standing = box.connect(), box.connect(), box.connect(6)
    box.to_standby(standing)
    vanish(box, vanished, standing)
    try:
        for pair in (vanished, standing):
            box.wait_state(pair, State.CLOSED, 20)
            assert box.transitions(pair)[-1][2] is Cause.PROBE_TIMEOUT
        with pytest.raises(ConnectionResetError):
            vanished.server.recv(1)
        assert box.stat("probe_dead") == 2
    finally:
        box.lab.nft("nat", "delete table inet vanish")
    assert box.state(living) is State.ACTIVE
    box.exchange(living)


@pytest.mark.engine(service=CHECKED)
def test_a_server_that_vanishes_is_found_dead_and_its_client_told(box: EngineLab) -> None:
    pair = box.connect()
    pair.client.sendall(b"is anybody there?")  # and no answer: its bytes may be lost
    assert pair.server.recv(100) == b"is anybody there?"
    let_server_vanish(box, pair)
    try:
        box.wait_state(pair, State.CLOSED, 20)
        with pytest.raises(ConnectionResetError):
            pair.client.recv(1)
    finally:
        box.lab.nft("lan", "delete table inet vanish")


@pytest.mark.engine(service={**CHECKED, "standby_quiet_ms": 3000, "idle_quiet_ms": 3500})
def test_keepalives_of_the_awake_are_no_activity_and_disturb_no_freeze(box: EngineLab) -> None:
    pairs = [box.connect(family) for family in (4, 6)]
    heard = [tcp_info(pair.client).segments_in for pair in pairs]
    for pair, before in zip(pairs, heard, strict=True):
        box.wait_state(pair, State.IDLE, 20)
        assert tcp_info(pair.client).segments_in >= before + 2
        fell_quiet = [event for event in box.transition_events(pair) if event.to_state == State.STANDBY]
        assert 3000 <= fell_quiet[0].gap_ms < 5000
        assert box.stat("probe_dead") == 0
        box.wake_and_answer(pair)


@pytest.mark.own_engine(reason="its policy changes")
def test_a_changed_interval_reaches_who_is_awake(box: EngineLab) -> None:
    pair = box.connect()
    vanish(box, pair)
    try:
        for family in (4, 6):
            box.engine.update_service(box.spec(family, **CHECKED))
        box.wait_state(pair, State.CLOSED, 20)
    finally:
        box.lab.nft("nat", "delete table inet vanish")


# -- a server that wants a client which was not heard for a while -----------------------------------------------------

ASKED = {"attach_silence_s": 1}


def refusal_of(box: EngineLab, pair: Pair) -> list[tuple[Op, int]]:
    return [refusal for refusal in box.refusals(pair) if refusal[0] is Op.ATTACH]


@pytest.mark.engine(service=ASKED)
@pytest.mark.parametrize(("state", "family"), [(State.STANDBY, 4), (State.IDLE, 6), (State.SLEEP, 4)])
def test_a_server_gets_a_silent_client_only_once_it_has_answered(box: EngineLab, state: State, family: int) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    time.sleep(1.2)
    cut_off(box, f"tcp dport {PORT} drop;")
    try:
        server = box.attach(pair, preamble=b"200")
        assert not select.select([server], [], [], 1)[0], "its client says nothing"
        assert box.state(pair) is not State.ACTIVE
    finally:
        box.lab.nft("nat", "delete table inet vanish")
    assert receive(server, 3) == b"200"
    server.sendall(b"there you are")
    assert receive(pair.client, 13) == b"there you are"
    box.wait_state(pair, State.ACTIVE)
    assert box.transitions(pair)[-1] == (State.STANDBY, State.ACTIVE, Cause.SERVER_ATTACH)


@pytest.mark.engine(service=ASKED)
@pytest.mark.parametrize("state", [State.STANDBY, State.IDLE])
def test_a_server_whose_client_is_gone_is_refused_in_time_and_gets_no_success(box: EngineLab, state: State) -> None:
    pair = box.connect()
    box.to(pair, state)
    time.sleep(1.2)
    vanish(box, pair)
    try:
        server = box.attach(pair, preamble=b"200", timeout_ms=1500)
        assert receive(server, 3) == b""
        box.wait(lambda: refusal_of(box, pair) == [(Op.ATTACH, errno.ETIMEDOUT)], "the refusal is told")
        box.wait_state(pair, State.STANDBY)
        box.submit(Op.IDLE, pair)
        box.wait_state(pair, State.IDLE)
        assert box.record(pair).silence_s >= 2, "nothing was heard of it meanwhile"
    finally:
        box.lab.nft("nat", "delete table inet vanish")


@pytest.mark.engine(service=ASKED)
def test_a_silent_client_that_has_lost_its_connection_says_so_and_the_server_learns_it(box: EngineLab) -> None:
    pair = box.connect()
    box.to_idle(pair)
    vanish(box, pair)
    reset(pair.client)
    time.sleep(1.2)
    box.lab.nft("nat", "delete table inet vanish")
    server = box.attach(pair, preamble=b"200")
    assert receive(server, 3) == b""
    box.wait_state(pair, State.CLOSED)


@pytest.mark.engine(service={"attach_silence_s": 60})
@pytest.mark.parametrize("state", [State.STANDBY, State.IDLE])
def test_a_server_gets_a_client_at_once_that_was_heard_lately(box: EngineLab, state: State) -> None:
    pair = box.connect()
    box.to(pair, state)
    cut_off(box, f"tcp dport {PORT} drop;")
    try:
        server = box.attach(pair, preamble=b"200")
        assert receive(server, 3) == b"200"
    finally:
        box.lab.nft("nat", "delete table inet vanish")
