# SPDX-License-Identifier: Apache-2.0
"""A freeze takes some 10 ms, in which every packet of the connection is held: can an attacker make use of that?"""

from __future__ import annotations

import itertools
import time

import pytest

from appliance.wire import Op
from control.core.states import State
from tests.lab.engine_lab import EngineLab, receive, tcp_info
from tests.lab.forged import Flood, forged
from tests.lab.wire import Sleeper, Wire

BOTH = pytest.mark.parametrize("family", [4, 6])


@pytest.mark.usefixtures("unhurried")
@BOTH
def test_forged_frames_cannot_keep_a_connection_from_falling_asleep(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    with Wire(box) as wire:
        frames = forged(wire, Sleeper(pair, box.record(pair)), 100)
        with Flood(frames, wire, every_s=0.001):
            for _ in range(3):
                box.to_idle(pair)  # by one command
                box.wake_and_answer(pair)
    assert box.refusals(pair) == []
    assert box.stat("frozen") == 3
    assert box.stat("frames_held") >= 3, "they met the freezes"
    assert tcp_info(pair.client).retransmits == 0


@BOTH
def test_few_of_the_forged_frames_that_meet_a_freeze_are_kept_and_the_client_still_wakes(
    box: EngineLab, family: int
) -> None:
    pair = box.connect(family)
    held = dropped = 0
    with Wire(box) as wire:
        for _ in range(20):  # a freeze takes some 10 ms: on a busy machine the burst may come after it
            box.to_standby(pair)
            box.wait_for_quiet(pair)
            burst = list(itertools.islice(forged(wire, Sleeper(pair, box.record(pair)), 1400), 300))
            before = box.stat("frames_held"), box.stat("frames_held_dropped")
            box.submit(Op.IDLE, pair)
            wire.send_raw(burst)
            box.wait_state(pair, State.IDLE)
            held, dropped = box.stat("frames_held") - before[0], box.stat("frames_held_dropped") - before[1]
            if held > 64:
                break
            box.wake_and_answer(pair)
    assert held > 64, "they met the freeze"
    assert held - dropped <= 64
    box.wake_and_answer(pair)
    assert box.refusals(pair) == []


@pytest.mark.alone("the segment is sent in a grace period of 10 ms")
@pytest.mark.usefixtures("unhurried")
@BOTH
def test_a_genuine_segment_that_meets_a_freeze_is_delivered_at_once(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    rounds = 12
    took_s: list[float] = []
    for number in range(rounds):
        box.to_standby(pair)
        box.wait_for_quiet(pair)
        box.submit(Op.IDLE, pair)
        time.sleep(0.002)  # it is marked by now, and its grace period is not over
        since = time.monotonic()
        pair.client.sendall(b"%04d" % number)
        pair.server = box.accept(family)
        assert receive(pair.server, 4) == b"%04d" % number
        took_s.append(time.monotonic() - since)
        pair.server.sendall(b"answer")
        assert receive(pair.client, 6) == b"answer"
    assert box.stat("freeze_cancelled") > rounds // 2, "most of them met the freeze"
    assert tcp_info(pair.client).retransmits == 0
    assert min(took_s) < 0.005, "it does not wait for the end of the grace period (some 10 ms)"
