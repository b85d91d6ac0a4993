# SPDX-License-Identifier: Apache-2.0
"""What the history has of a transition beside states and bytes: the server, the error, for how long it was silent."""

from __future__ import annotations

import errno
import time

import pytest

from appliance.wire import Ends, Op
from control.core.states import Cause, State
from tests.lab.engine_lab import PORT, EngineLab, Pair, receive, reset
from tests.lab.test_awake import let_server_vanish, vanish

PROBED = {"probe_interval_s": 1, "probe_retry_s": 1, "probe_count": 2}


def last(box: EngineLab, pair: Pair, target: State = State.CLOSED) -> tuple[Cause, Ends]:
    box.wait_state(pair, target, 20)
    event = box.transition_events(pair)[-1]
    return Cause(event.cause), Ends.unpack(event.ends)


def server_of(pair: Pair) -> str:
    address, port, *_ = pair.server.getsockname()
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@pytest.mark.parametrize("family", [4, 6])
def test_a_client_that_closes_tells_no_error_and_one_that_resets_does(box: EngineLab, family: int) -> None:
    closing, resetting = box.connect(family), box.connect(family)
    servers = server_of(closing), server_of(resetting)
    closing.client.close()
    assert receive(closing.server, 1) == b""
    closing.server.close()
    reset(resetting.client)
    assert last(box, closing) == (Cause.CLIENT_CLOSE, (servers[0], None, None, None))
    assert last(box, resetting) == (Cause.CLIENT_CLOSE, (servers[1], errno.ECONNRESET, None, None))


def test_a_link_that_its_server_resets_ends_with_its_error_and_the_next_one_without(box: EngineLab) -> None:
    pair = box.connect()
    server = server_of(pair)
    reset(pair.server)
    assert last(box, pair, State.STANDBY) == (Cause.SERVER_CLOSE, (server, errno.ECONNRESET, None, None))
    box.wake_and_answer(pair)
    pair.server.close()
    assert last(box, pair, State.STANDBY) == (Cause.SERVER_CLOSE, (server, None, None, None))


@pytest.mark.engine(service={"connect_timeout_ms": 400})
def test_a_server_that_takes_no_link_is_told_with_its_error(box: EngineLab) -> None:
    pair = box.connect()
    box.to_standby(pair)
    server = f"{box.lab.address('lan', 'eth0')}:{PORT}"
    box._close_listeners()
    pair.client.sendall(b"is anybody there?")
    with pytest.raises(ConnectionResetError):
        pair.client.recv(1)
    assert last(box, pair) == (Cause.SERVER_CLOSE, (server, errno.ECONNREFUSED, None, None))


@pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
def test_whoever_wakes_tells_for_how_long_it_was_silent(box: EngineLab, state: State) -> None:
    pair = box.connect()
    box.to(pair, state)
    time.sleep(2.1)
    box.wake_and_answer(pair)
    cause, ends = last(box, pair, State.ACTIVE)
    assert (cause, ends._replace(silence_s=None)) == (Cause.CLIENT_DATA, (None, None, None, None))
    assert ends.silence_s in (2, 3)
    server = server_of(pair)
    box.to_standby(pair)
    assert last(box, pair, State.STANDBY)[1] == (server, None, None, None), "it was heard since"


@pytest.mark.engine(service={**PROBED, "awake_probe_s": 1})
def test_whoever_answers_no_more_tells_since_when(box: EngineLab) -> None:
    idle, awake = box.connect(), box.connect()
    server = server_of(awake)
    box.to_idle(idle)
    vanish(box, idle, awake)
    try:
        cause, ends = last(box, idle)
        assert (cause, ends[:3]) == (Cause.PROBE_TIMEOUT, (None, errno.ETIMEDOUT, 2))
        assert 3 <= (ends.silence_s or 0) <= 8
        cause, ends = last(box, awake)
        assert (cause, ends[:3]) == (Cause.PROBE_TIMEOUT, (server, errno.ETIMEDOUT, None))
        assert 2 <= (ends.silence_s or 0) <= 8
    finally:
        box.lab.nft("nat", "delete table inet vanish")


@pytest.mark.engine(service={**PROBED, "persistent": True, "on_server_close": 1}, link_ports=(20000, 20999))
def test_of_a_pair_whose_server_answers_no_more_the_client_was_not_silent(box: EngineLab) -> None:
    pair = box.connect()
    box.wait_for_quiet(pair)
    box.submit(Op.IDLE, pair)
    box.wait_state(pair, State.IDLE)
    let_server_vanish(box, pair)
    try:
        assert last(box, pair) == (Cause.PROBE_TIMEOUT, (None, errno.ETIMEDOUT, None, None))
    finally:
        box.lab.nft("lan", "delete table inet vanish")


def test_a_server_that_came_by_itself_is_told_by_its_own_address(box: EngineLab) -> None:
    pair = box.connect()
    box.to_idle(pair)
    server = box.attach(pair)
    box.wait_state(pair, State.ACTIVE)
    pair.server = server
    server_is = server_of(pair)
    box.submit(Op.STANDBY, pair)
    assert last(box, pair, State.STANDBY) == (Cause.COMMAND, (server_is, None, None, None))


@pytest.mark.engine(service={"persistent": True, "on_server_close": 1}, link_ports=(20000, 20999))
def test_a_pair_tells_its_server_after_it_has_slept(box: EngineLab) -> None:
    pair = box.connect()
    server = server_of(pair)
    box.submit(Op.IDLE, pair)
    assert last(box, pair, State.IDLE)[1].server == server
    pair.client.sendall(b"again")
    assert receive(pair.server, 5) == b"again"
    box.wait_state(pair, State.ACTIVE)
    reset(pair.server)
    assert last(box, pair) == (Cause.SERVER_CLOSE, (server, errno.ECONNRESET, None, None))
