# SPDX-License-Identifier: Apache-2.0
"""Probing: the appliance's own keep-alives reach living clients, and find the dead."""

from __future__ import annotations

import time

import pytest
from scapy.layers.inet import TCP

from control.core.states import Cause, State
from tests.lab.engine_lab import PORT, EngineLab, receive
from tests.lab.fixtures import ip
from tests.lab.wire import MOD, Sleeper, Wire, checksums_are_right, timestamps_of

PROBED = {"probe_interval_s": 1, "probe_retry_s": 1, "probe_count": 2}


@pytest.mark.engine(service=PROBED)
def test_living_clients_answer_probes_and_sleep_on(box: EngineLab) -> None:
    pairs = [box.connect(family) for family in (4, 6)] + [box.connect(family) for family in (4, 6)]
    for pair in pairs[:2]:
        box.to_idle(pair)
    for pair in pairs[2:]:
        box.to_sleep(pair)
    told = len(box.events)
    time.sleep(5.5)  # more than probe_count unanswered ones would need
    assert box.events[told:] == [], "neither a probe nor its answer is an event"
    assert box.stat("probes_sent") >= 2 * len(pairs)
    assert box.stat("acks_heard") >= 2 * len(pairs)
    assert box.stat("probes_unsent") == box.stat("probe_dead") == box.stat("awake") == 0
    for pair in pairs:
        box.wake_and_answer(pair)


@pytest.mark.engine(service=PROBED)
@pytest.mark.parametrize("family", [4, 6])
def test_a_probe_on_the_wire_is_a_keepalive_of_the_record(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        wire.clear()
        probes = [packet for packet in wire.replies(sleeper, quiet_s=2.2) if packet[TCP].seq != sleeper.snd_nxt]
    now_ms = time.monotonic_ns() // 1_000_000
    assert probes
    for probe in probes:
        tcp = probe[TCP]
        assert (str(tcp.flags), tcp.seq, tcp.ack) == ("A", (sleeper.snd_nxt - 1) % MOD, sleeper.rcv_nxt)
        assert (tcp.window, bytes(tcp.payload)) == (sleeper.window_on_wire, b"")
        assert (probe.src, probe.dst) == (wire.box_mac, wire.mac)
        assert checksums_are_right(probe)
        stamps = timestamps_of(probe)
        assert stamps is not None
        assert 0 <= (now_ms + sleeper.ts_offset - stamps[0]) % MOD < 5000


def cut_off(box: EngineLab, rules: str) -> None:
    """Between clients and appliance, until the table is deleted."""
    box.lab.nft("nat", f"""
        table inet vanish {{
            chain forward {{
                type filter hook forward priority -5;
                {rules}
            }}
        }}
    """)  # fmt: skip


@pytest.mark.engine(service=PROBED)
def test_vanished_clients_are_found_dead_counted_and_told_by_cause(box: EngineLab) -> None:
    """Their packets are dropped behind the NAT: as after a device lost its power."""
    living = [box.connect(family) for family in (4, 6)]
    vanished = [box.connect(family) for family in (4, 6)] + [box.connect(family) for family in (4, 6)]
    for pair in living + vanished[:2]:
        box.to_idle(pair)
    for pair in vanished[2:]:
        box.to_sleep(pair)
    cut_off(box, "tcp sport {{ {0} }} drop; tcp dport {{ {0} }} drop;".format(
        ", ".join(str(pair.key.client_port) for pair in vanished)))  # fmt: skip
    try:
        since = time.monotonic()
        for pair in vanished:
            box.wait_state(pair, State.CLOSED, 8)
        assert time.monotonic() - since > 1.9, "not before every probe had its time"
    finally:
        box.lab.nft("nat", "delete table inet vanish")
    for pair, state in zip(vanished, [State.IDLE] * 2 + [State.SLEEP] * 2, strict=True):
        assert box.transitions(pair)[-1] == (state, State.CLOSED, Cause.PROBE_TIMEOUT)
    assert box.stat("probe_dead") == len(vanished)
    assert box.stat("table_ipv4") == box.stat("table_ipv6") == 1
    assert box.stat("idle_records") == len(living), "their records are free again"
    for pair in living:
        box.wake_and_answer(pair)


@pytest.mark.engine(service=PROBED)
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
def test_a_client_whose_words_are_lost_lives_while_it_answers(box: EngineLab, family: int, state: State) -> None:
    """Its answers have the number that follows those words, as Linux sends them: a black hole of the path's MTU."""
    pair = box.connect(family)
    box.to(pair, state)
    cut_off(box, f"tcp dport {PORT} tcp flags & psh == psh drop;")
    try:
        pair.client.sendall(b"lost")
        time.sleep(6)
        assert (box.state(pair), box.stat("probe_dead")) == (state, 0)
    finally:
        box.lab.nft("nat", "delete table inet vanish")
    assert receive(box.accept(family), 4) == b"lost"


@pytest.mark.engine(service=PROBED)
def test_probes_that_cannot_be_sent_are_not_unanswered(box: EngineLab) -> None:
    """There is no route to their clients for longer than all of them would last."""
    pairs = [box.connect(family) for family in (4, 6)] + [box.connect(family) for family in (4, 6)]
    for pair, state in zip(pairs, [State.IDLE] * 2 + [State.SLEEP] * 2, strict=True):
        box.to(pair, state)
    routes = [("-4", f"{pairs[0].client.getsockname()[0]}/32"), ("-6", f"{pairs[1].client.getsockname()[0]}/128")]
    for family, clients in routes:
        ip(box.lab, "box", family, "route", "add", "unreachable", clients)
    try:
        time.sleep(6)
    finally:
        for family, clients in routes:
            ip(box.lab, "box", family, "route", "del", "unreachable", clients)
    assert box.stat("probes_unsent") >= len(pairs)
    assert (box.stat("probe_dead"), box.stat("table_ipv4") + box.stat("table_ipv6")) == (0, len(pairs))
    heard = box.stat("acks_heard")
    box.wait(lambda: box.stat("acks_heard") >= heard + len(pairs), "they answer those that are sent", 5)
    for pair in pairs:
        box.wake_and_answer(pair)


@pytest.mark.engine(service={**PROBED, "probe_retry_s": 3, "probe_count": 3})
def test_an_answer_to_the_last_probe_is_in_time(box: EngineLab) -> None:
    pair = box.connect()
    box.to_idle(pair)
    cut_off(box, f"tcp dport {PORT} drop;")
    try:
        sent = box.stat("probes_sent")
        box.wait(lambda: box.stat("probes_sent") >= sent + 2, "two probes are lost", 8)
    finally:
        box.lab.nft("nat", "delete table inet vanish")
    heard = box.stat("acks_heard")
    box.wait(lambda: box.stat("acks_heard") > heard, "the next one is answered", 6)
    time.sleep(3.5)
    assert box.state(pair) is State.IDLE
    assert box.stat("probe_dead") == 0
