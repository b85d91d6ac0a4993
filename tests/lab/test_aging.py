# SPDX-License-Identifier: Apache-2.0
"""The tool that lets time pass for sleeping connections does what it says, and nothing else."""

from __future__ import annotations

import pytest

from control.core.states import State
from tests.lab.aging import DAY_S, HOUR_S, Sleepers
from tests.lab.engine_lab import EngineLab, tcp_info
from tests.lab.wire import MOD, Sleeper, Wire, timestamps_of

BOTH = pytest.mark.parametrize("family", [4, 6])


@BOTH
@pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
def test_the_clock_that_a_sleeper_shows_goes_on_by_the_time_that_passed(
    box: EngineLab, family: int, state: State
) -> None:
    pair, awake = box.connect(family), box.connect(family)
    box.to(pair, state)
    before = Sleeper(pair, box.record(pair))
    clocks = []
    with Wire(box) as wire:
        for hours in (0, 8):
            Sleepers(box.pin_dir).grow_older(hours * HOUR_S)
            wire.send(before.ip() / before.tcp(seq=-1))
            [answer] = wire.replies(before)
            stamps = timestamps_of(answer)
            assert stamps is not None
            clocks.append(stamps[0])
    assert (clocks[1] - clocks[0]) % MOD == pytest.approx(8 * HOUR_S * 1000, abs=2000)
    after = Sleeper(pair, box.record(pair))
    assert (after.ctl, after.snd_nxt, after.rcv_nxt) == (before.ctl, before.snd_nxt, before.rcv_nxt)
    box.wake_and_answer(pair)
    box.exchange(awake)


@pytest.mark.usefixtures("unhurried")
@BOTH
def test_past_half_of_the_timestamp_space_a_client_goes_on_that_heard_its_keepalives_answered(
    box: EngineLab, family: int
) -> None:
    """The two steps of 25 days; one step of 25 days is refused by the client's kernel, as the test below shows."""
    pair = box.connect(family, keepalives=True)
    box.to_idle(pair)
    Sleepers(box.pin_dir).grow_older(25 * DAY_S, keepalives=True)
    box.wake_and_answer(pair)
    assert tcp_info(pair.client).retransmits == 0


def test_a_client_refuses_a_clock_that_leapt_past_half_of_its_space(box: EngineLab) -> None:
    pair = box.connect()
    box.to_idle(pair)
    for _ in range(2):
        Sleepers(box.pin_dir).grow_older(13 * DAY_S)
    pair.client.sendall(b"anybody there?")
    box.accept().sendall(b"yes")
    pair.client.settimeout(0.5)
    with pytest.raises(TimeoutError):
        pair.client.recv(3)
