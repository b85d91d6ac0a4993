# SPDX-License-Identifier: Apache-2.0
"""What an end does not take within the time that the policy gives ends its connection, with a cause of its own."""

from __future__ import annotations

import os
import socket
import time

import pytest

from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, Pair, receive

BLOB = os.urandom(1_000_000)
LIMITED = pytest.mark.engine(service={"write_timeout_s": 2})


def small_buffer(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


def assert_given_up(box: EngineLab, pair: Pair) -> None:
    box.wait_state(pair, State.CLOSED, 15)
    assert box.transitions(pair)[-1][1:] == (State.CLOSED, Cause.WRITE_TIMEOUT)
    assert box.stat("write_timeouts") == 1


@LIMITED
def test_a_client_that_takes_nothing_is_reset_though_it_speaks(box: EngineLab) -> None:
    pair = box.connect(before=small_buffer)
    pair.server.sendall(BLOB[:100_000])
    began = time.monotonic()

    def closed() -> bool:
        try:
            pair.client.send(b".")
        except ConnectionError:
            return True
        return False

    box.wait(closed, "it is closed", 15)
    assert time.monotonic() - began >= 2
    assert_given_up(box, pair)
    with pytest.raises(ConnectionResetError):
        receive(pair.server, len(BLOB))


@LIMITED
def test_a_client_that_takes_nothing_is_reset_when_its_link_has_ended_too(box: EngineLab) -> None:
    pair = box.connect(before=small_buffer)
    pair.server.sendall(BLOB[:30_000])
    pair.server.close()
    box.wait_state(pair, State.STANDBY)
    box.wait_state(pair, State.CLOSED, 15)
    assert box.transitions(pair)[-1] == (State.STANDBY, State.CLOSED, Cause.WRITE_TIMEOUT)


@LIMITED
def test_a_server_that_takes_nothing_is_reset(box: EngineLab) -> None:
    pair = box.connect()
    pair.client.settimeout(20)
    with pytest.raises(ConnectionResetError):
        pair.client.sendall(BLOB * 20)
    assert_given_up(box, pair)


@LIMITED
def test_a_client_that_takes_little_at_a_time_gets_all(box: EngineLab) -> None:
    pair = box.connect(before=small_buffer)
    pair.server.sendall(BLOB[:12_000])
    got = bytearray()
    while len(got) < 12_000:
        time.sleep(0.4)  # its pace
        got += pair.client.recv(4096)
    assert got == BLOB[:12_000]
    assert box.state(pair) is State.ACTIVE
