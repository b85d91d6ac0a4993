# SPDX-License-Identifier: Apache-2.0
"""Segments that arrive in fragments wake a sleeper, whatever kind it is of, and their data arrive."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scapy.packet import Raw

from appliance.lab import Lab
from appliance.wire import Born, OnServerClose, Op, Sought
from control.core.states import State
from tests.lab.bare_sleep import NO_KEEPALIVES, BareSleep
from tests.lab.engine_lab import EngineLab, Pair, receive
from tests.lab.wire import LAN, WAN, Sleeper, Wire
from tests.security.test_exotic_packets import in_fragments, resets
from tests.security.test_forged_for_pairs import legs_of

BOTH = pytest.mark.parametrize("family", [4, 6])
ASLEEP = pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
ROUTER = pytest.param("router", marks=pytest.mark.engine(router=True))
PERSISTENT = {"persistent": True, "on_server_close": OnServerClose.CLIENT}
DATA = b"really me" * 50


def say_in_fragments(
    box: EngineLab, sleeper: Sleeper, hears: Callable[[], bytes], side: tuple[str, str, str] = WAN
) -> None:
    """One segment, and once it has woken the connection its retransmission."""
    with Wire(box, side) as wire:
        wire.send(*in_fragments(sleeper, sleeper.tcp(flags="PA") / Raw(DATA)))
        box.wait(lambda: box.stat("thawed"), "it wakes")
        wire.send(*in_fragments(sleeper, sleeper.tcp(flags="PA") / Raw(DATA)))
        assert hears() == DATA
        assert resets(wire.replies(sleeper)) == []


@BOTH
@ASLEEP
@pytest.mark.parametrize(
    "mode", ["service", ROUTER, pytest.param("generic", marks=pytest.mark.engine(xdp_mode="generic"))]
)
def test_a_client_that_speaks_in_fragments_is_heard(box: EngineLab, family: int, state: State, mode: str) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    say_in_fragments(box, sleeper, lambda: receive(box.accept(family), len(DATA)))
    assert (box.stat("fragments_woke"), box.stat("frames_woke"), box.stat("rst_guarded")) == (1, 0, 0)


@BOTH
@ASLEEP
@pytest.mark.parametrize("speaker", ["client", "server"])
@pytest.mark.parametrize(
    "mode", ["service", pytest.param("router", marks=pytest.mark.engine(service=PERSISTENT, router=True))]
)
@pytest.mark.engine(service=PERSISTENT)
def test_either_end_of_a_pair_is_heard(box: EngineLab, family: int, state: State, speaker: str, mode: str) -> None:
    pair = box.connect(family)
    box.wait_for_quiet(pair)
    box.submit(Op.IDLE, pair)
    box.wait_state(pair, State.IDLE)
    sleeper = legs_of(box, pair)[speaker]
    if state is State.SLEEP:
        box.to_sleep(pair)
    listener, side = (pair.server, WAN) if speaker == "client" else (pair.client, LAN)
    say_in_fragments(box, sleeper, lambda: receive(listener, len(DATA)), side)


@BOTH
@pytest.mark.engine(service={"born": Born.ALWAYS})
def test_one_that_was_born_asleep_is_heard(box: EngineLab, family: int) -> None:
    client = box.dial(family)
    box.wait(lambda: box.stat(f"table_ipv{family}") == 1, "it is born")
    (born,) = box.engine.list(Sought(born=True))
    sleeper = Sleeper(Pair(client, client, box.key_of(client), 0), born.record)
    say_in_fragments(box, sleeper, lambda: receive(box.accept(family), len(DATA)))


@BOTH
@pytest.mark.parametrize("router", [False, True])
def test_one_that_sleeps_without_a_slot_is_heard(empty_lab: Lab, family: int, router: bool) -> None:
    with BareSleep(empty_lab, service=NO_KEEPALIVES, filter_slots=1000, router=router) as box:
        pair = box.let_sleep(family)
        sleeper = Sleeper(pair, box.rows[pair.key.pack()])
        with Wire(box) as wire:
            wire.send(*in_fragments(sleeper, sleeper.tcp(flags="PA") / Raw(DATA)))
        box.wait(lambda: box.slots == 1, "its slot is back")
        say_in_fragments(box, sleeper, lambda: receive(box.accept(family), len(DATA)))
