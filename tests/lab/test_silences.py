# SPDX-License-Identifier: Apache-2.0
"""For how long clients were silent before they were heard again, or given up, is counted by class."""

from __future__ import annotations

import socket
from collections import Counter

import pytest

from appliance.wire import SILENCES_S, Op
from control.core.states import State
from tests.lab.aging import Sleepers
from tests.lab.engine_lab import EngineLab, Pair
from tests.lab.test_probing import cut_off
from tests.lab.wire import Sleeper, Wire

BOTH = pytest.mark.parametrize("family", [4, 6])
PROBED = {"probe_retry_s": 1, "probe_count": 1}
pytestmark = pytest.mark.own_engine


def counted(box: EngineLab) -> Counter[str]:
    """As a snapshot names them, of all classes together."""
    return Counter({
        f"{how} after {seconds}": sum(getattr(of, how)[place] for of in box.engine.silences().values())
        for how, places in SILENCES_S.items()
        for place, seconds in enumerate(places)
    })  # fmt: skip


def only(box: EngineLab, how: str) -> int:
    """From how many seconds on the only one is counted that there is."""
    ((name, count),) = (+counted(box)).items()
    assert count == 1
    assert name.startswith(f"{how} after ")
    return int(name.split()[-1])


def aged(box: EngineLab, state: State, seconds: int, family: int = 4) -> Pair:
    """A client that was heard so long ago."""
    pair = box.connect(family)
    box.to(pair, state)
    Sleepers(box.pin_dir).grow_older(seconds)
    return pair


@BOTH
@pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
def test_a_client_that_speaks_after_a_silence_is_counted_with_it(box: EngineLab, family: int, state: State) -> None:
    pair = aged(box, state, 300, family)
    assert +counted(box) == {}
    box.wake_and_answer(pair)
    assert +counted(box) == {"spoke after 256": 1}


@BOTH
def test_a_keepalive_is_counted_with_the_silence_before_it(box: EngineLab, family: int) -> None:
    pair = aged(box, State.SLEEP, 70_000, family)
    pair.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    pair.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    box.wait(lambda: box.stat("keepalives_answered") >= 3, "keep-alives are answered", 10)
    found = +counted(box)
    assert set(found) == {"spoke after 65536", "spoke after 0"}
    assert found["spoke after 65536"] == 1


def probe(box: EngineLab, family: int) -> None:
    """From now on, after 100 s: what has been silent for longer counts as that, since nobody has asked it."""
    box.engine.update_service(box.spec(family, **PROBED, probe_interval_s=100))


@BOTH
@pytest.mark.engine(service=PROBED)
def test_the_answer_to_a_probe_is_counted_with_the_silence_before_it(box: EngineLab, family: int) -> None:
    aged(box, State.SLEEP, 1000, family)
    probe(box, family)
    box.wait(lambda: box.stat("acks_heard") == 1, "a probe is answered", 10)
    assert only(box, "answered") in range(80, 113), "100 s, give or take an eighth"


@BOTH
@pytest.mark.parametrize("vlan", [None, 0], ids=["untagged", "tagged"])
def test_an_acknowledgement_that_no_probe_asked_for_is_no_answer(box: EngineLab, family: int, vlan: int | None) -> None:
    """A window update, or what a client says to have more probes on their way than the engine paces."""
    pair = aged(box, State.IDLE, 300, family)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        wire.send(*(sleeper.ip() / sleeper.tcp(ts=2 + i) for i in range(5)), vlan=vlan)
        box.wait(lambda: box.stat("acks_heard") == 5, "they are heard")
    assert +counted(box) == {"spoke after 256": 1, "spoke after 0": 4}


@pytest.mark.engine(service={**PROBED, "probe_interval_s": 1, "most_probe_s": 4})
def test_an_experiment_probes_each_silence_after_another_time(box: EngineLab) -> None:
    pairs = [box.connect() for _ in range(40)]
    for pair in pairs:
        box.submit(Op.STANDBY, pair)
    for pair in pairs:
        box.to_idle(pair)

    def both_octaves() -> bool:
        found = counted(box)
        return min(found["answered after 0"], found["answered after 2"]) >= 40

    box.wait(both_octaves, "silences of 1 s and of 2 to 4 s are probed", 60)
    assert box.stat("probe_dead") == 0


@pytest.mark.engine(service=PROBED)
def test_an_experiment_gives_up_a_client_that_was_due_long_ago_after_its_retries(box: EngineLab) -> None:
    """Its first probe is late; the interval of its silence stays what it was all the same."""
    pair = aged(box, State.IDLE, 5000)
    cut_off(box, f"tcp dport {pair.key.client_port} drop;")
    try:
        box.engine.update_service(box.spec(4, **PROBED, probe_interval_s=100, most_probe_s=1600))
        box.wait_state(pair, State.CLOSED, 15)
    finally:
        box.lab.nft("nat", "delete table inet vanish")
    assert only(box, "lost") in range(96, 1601)


@BOTH
@pytest.mark.engine(service=PROBED)
def test_a_client_that_is_given_up_is_counted_with_its_silence(box: EngineLab, family: int) -> None:
    pair = aged(box, State.IDLE, 1000, family)
    cut_off(box, f"tcp dport {pair.key.client_port} drop;")
    try:
        probe(box, family)
        # Probes keep to places of the interval that are an eighth apart: the one that gives it up may be 24 s later.
        box.wait_state(pair, State.CLOSED, 40)
    finally:
        box.lab.nft("nat", "delete table inet vanish")
    assert only(box, "lost") in range(80, 113), "the silence before its first probe"
