# SPDX-License-Identifier: Apache-2.0
"""Clients that were born asleep and never speak do not keep their slots for ever (`born_silence`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest
from scapy.layers.inet import TCP

from appliance.wire import Born
from control.core.states import State
from tests.lab.aging import HOUR_S, Sleepers
from tests.lab.engine_lab import EngineLab
from tests.lab.handmade import Handmade, hide
from tests.lab.wire import MOD, Wire

BOTH = pytest.mark.parametrize("family", [4, 6])
A_TURN: Final = 16


@pytest.fixture
def ward() -> Iterator[tuple[EngineLab, Wire]]:
    with EngineLab(service={"born": Born.ALWAYS, "born_silence_s": 24 * HOUR_S}) as box, Wire(box) as wire:
        hide(box.lab)
        yield box, wire


def born(box: EngineLab, wire: Wire, family: int) -> Handmade:
    client = Handmade(wire, box.target(family))
    client.syn()
    client.ack()
    box.wait(lambda: state_of(box, client) == State.IDLE, "it is born")
    return client


def state_of(box: EngineLab, client: Handmade) -> State | None:
    found = box.engine.find(client.key)
    return State(found.to_state) if found else None


def look_at_all(box: EngineLab) -> None:
    """Else each slot is looked at once in an hour."""
    for family in (4, 6):
        box.engine.update_service(replace(box.spec(family), probe_retry_s=7))
        box.engine.update_service(box.spec(family))


def assert_none_is_reset(box: EngineLab) -> None:
    look_at_all(box)
    time.sleep(2.5)
    assert box.engine.stats()["born_expired"] == 0


@BOTH
def test_those_that_never_spoke_are_reset_after_a_day_and_not_after_a_night(
    ward: tuple[EngineLab, Wire], family: int
) -> None:
    box, wire = ward
    silent, speaks = (born(box, wire, family) for _ in range(2))
    speaks.say(b"word")
    assert box.accept(family).recv(4) == b"word"
    Sleepers(box.pin_dir).grow_older(14 * HOUR_S)
    assert_none_is_reset(box)
    silent.keepalive()
    assert str(silent.hear()[TCP].flags) == "A", "it is there"
    young = born(box, wire, family)
    Sleepers(box.pin_dir).grow_older(11 * HOUR_S)
    look_at_all(box)
    box.wait(lambda: state_of(box, silent) is None, "it is gone")
    reset = silent.hear(lambda tcp: "R" in str(tcp.flags))
    assert reset[TCP].seq == silent.rcv_nxt % MOD
    assert state_of(box, young) == State.IDLE
    assert state_of(box, speaks) == State.ACTIVE
    stats = box.engine.stats()
    assert (stats["born_expired"], stats["born_gone"], stats["born"]) == (1, 1, 1)


def test_many_are_reset_without_holding_up_the_engine(ward: tuple[EngineLab, Wire]) -> None:
    """So many in a turn, that one which wakes meanwhile has its turn."""
    box, wire = ward
    clients = [born(box, wire, 4) for _ in range(4 * A_TURN)]
    Sleepers(box.pin_dir).grow_older(25 * HOUR_S)
    awake = born(box, wire, 4)
    look_at_all(box)
    box.wait(lambda: box.engine.stats()["born_expired"] >= A_TURN, "the first are reset")
    awake.say(b"word")
    assert box.accept().recv(4) == b"word"
    box.wait(lambda: box.engine.stats()["born_expired"] == len(clients), "all are", 15)


def test_what_an_earlier_version_bore_is_kept(ward: tuple[EngineLab, Wire]) -> None:
    """It did not say when that was, but the MSS."""
    box, wire = ward
    client = born(box, wire, 4)
    with Sleepers(box.pin_dir).tables() as tables:
        (table,) = [one for one in tables if any(one.asleep())]
        for ka in table.asleep():
            table.write(ka + 28, 1 << 31 | 1300 << 16 | 500)
    Sleepers(box.pin_dir).grow_older(72 * HOUR_S)
    assert_none_is_reset(box)
    client.say(b"word")
    assert box.accept().recv(4) == b"word"


def test_one_that_is_born_after_the_engine_has_looked_at_its_clock_is_new(ward: tuple[EngineLab, Wire]) -> None:
    """XDP may be a unit of time ahead of a turn of the engine's."""
    box, wire = ward
    client = born(box, wire, 4)
    with Sleepers(box.pin_dir).tables() as tables:
        (table,) = [one for one in tables if any(one.asleep())]
        for ka in table.asleep():
            table.write(ka + 28, table.read(ka + 28) + (1 << 16))
    assert_none_is_reset(box)
    client.say(b"word")
    assert box.accept().recv(4) == b"word"
