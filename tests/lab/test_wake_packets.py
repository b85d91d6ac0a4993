# SPDX-License-Identifier: Apache-2.0
"""What a wake-up puts on the clients' wire."""

from __future__ import annotations

import time

import pytest

from appliance.lab import wait_until
from control.states import State
from tests.lab.engine_lab import EngineLab, Pair, tcp_info

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
