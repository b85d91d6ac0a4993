# SPDX-License-Identifier: Apache-2.0
"""What a wake-up puts on the wire, the clients' and the servers'."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from appliance.lab import wait_until
from control.core.states import State
from tests.lab.engine_lab import EngineLab, Pair, receive, tcp_info, thread_of_engine

pytestmark = pytest.mark.own_engine("what an engine has learnt of its clients decides what it sends, and when")
KERNEL_ACKNOWLEDGES_S = 0.04
BELOW = pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])


def packets_of_a_wake(box: EngineLab, pair: Pair) -> int:
    before = box.frames_sent()["wan0"]
    box.wake_and_answer(pair)
    return box.frames_sent()["wan0"] - before


@BELOW
def test_the_answer_acknowledges_what_woke_the_client(box: EngineLab, state: State) -> None:
    pair, packets = box.connect(), []
    for _ in range(8):
        box.to(pair, state)
        packets.append(packets_of_a_wake(box, pair))
        assert tcp_info(pair.client).unacked == 0
    assert min(packets) == 1, f"the answer alone, when the server is quick: {packets}"


def acknowledged_s(pair: Pair) -> float:
    """How long what wakes a client takes to be acknowledged, when no server answers."""
    began = time.monotonic()
    pair.client.send(b"S")
    wait_until(lambda: not tcp_info(pair.client).unacked, 5, "it is acknowledged", every_s=0.001)
    return time.monotonic() - began


@BELOW
def test_who_wakes_and_is_not_answered_is_acknowledged_before_the_kernel_would(box: EngineLab, state: State) -> None:
    pair, took = box.connect(), []
    for _ in range(5):
        box.to(pair, state)
        took.append(acknowledged_s(pair))
        pair.server = box.accept()
        assert pair.server.recv(1) == b"S"
        box.wait_state(pair, State.ACTIVE)
    assert min(took) < KERNEL_ACKNOWLEDGES_S / 2, took


@BELOW
def test_a_burst_that_wakes_is_not_overtaken_by_its_own_end(box: EngineLab, state: State) -> None:
    """Frames that follow are held as long as those before them are: of a burst 26 were given to the stack too late."""
    bursts, burst = 8, os.urandom(100_000)
    pair = box.connect()
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    late = box.stat("frames_stray")
    for _ in range(bursts):
        box.to(pair, state)
        pair.client.sendall(burst)
        pair.server = box.accept()
        assert receive(pair.server, len(burst)) == burst
        box.wait_state(pair, State.ACTIVE)
    assert box.stat("frames_stray") - late <= 4 * bursts


@contextmanager
def engine_waits() -> Iterator[None]:
    """Until the calling thread is through: both are on one processor, and this one goes first."""
    allowed = os.sched_getaffinity(0)
    threads = (0, thread_of_engine())
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {min(allowed)})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))  # the engine's own is 1, while it has little to do
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for thread in threads:
            os.sched_setaffinity(thread, allowed)


def frames_to_servers(box: EngineLab, pairs: list[Pair]) -> float:
    """Of each wake-up, when all of them wake at once."""
    for pair in pairs:
        box.to(pair, State.IDLE)
    before = box.frames_sent()["lan0"]
    with engine_waits():
        for number, pair in enumerate(pairs):
            pair.client.sendall(bytes([number]))
    for _ in pairs:
        server = box.accept()
        pairs[receive(server, 1)[0]].server = server
    for pair in pairs:
        pair.server.sendall(b"answer")
        assert receive(pair.client, 6) == b"answer"
        box.wait_state(pair, State.ACTIVE)
    return (box.frames_sent()["lan0"] - before) / len(pairs)


def test_a_server_begins_while_one_client_is_woken_and_is_told_all_at_once_while_many_are(box: EngineLab) -> None:
    """SYN, what ends the handshake, what the client said, and the acknowledgement of the answer: the second goes with
    the third where others wait."""
    one, many = box.connect(), [box.connect() for _ in range(16)]
    assert min(frames_to_servers(box, [one]) for _ in range(8)) == 4
    assert min(frames_to_servers(box, many) for _ in range(4)) < 3.2
