# SPDX-License-Identifier: Apache-2.0
"""Keep-alives of sleeping clients are answered from the record, and are not activity."""

from __future__ import annotations

import itertools
import time

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop
from scapy.layers.l2 import Dot1Q
from scapy.packet import Raw

from control.core.states import State
from tests.lab.engine_lab import EngineLab, tcp_info
from tests.lab.wire import MOD, Sleeper, Wire, checksums_are_right, timestamps_of, vlan_device

TICK_MS = 10
"""XDP's clock goes by jiffies: so much it may be behind."""
ASLEEP = pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
BOTH = pytest.mark.parametrize("family", [4, 6])


@pytest.mark.usefixtures("unhurried")
def test_a_sleeping_clients_kernel_hears_its_keepalives_answered(box: EngineLab) -> None:
    """The clients give their peer up after 4 s without an answer; they probe every second, or every other."""
    kinds = list(itertools.product((4, 6), (State.IDLE, State.SLEEP)))
    pairs = [box.connect(family, keepalives=True) for family, _ in kinds]
    for pair, (_, state) in zip(pairs, kinds, strict=True):
        box.to(pair, state)
    told = len(box.events)
    before = [(Sleeper(pair, box.record(pair)), box.record(pair).active_ms) for pair in pairs]
    deadline = time.monotonic() + 4.5
    while time.monotonic() < deadline:
        assert all(tcp_info(pair.client).probes <= 1 for pair in pairs)
        time.sleep(0.1)
    assert max(tcp_info(pair.client).last_ack_recv_ms for pair in pairs) < 1600
    assert box.stat("keepalives_answered") >= 2 * len(pairs)
    assert len(box.events) == told, "an answered keep-alive is no event"
    for pair, (sleeper, active_ms) in zip(pairs, before, strict=True):
        after = Sleeper(pair, box.record(pair))
        assert after.essence == sleeper.essence
        assert box.record(pair).active_ms == active_ms
        assert after.heard_s > sleeper.heard_s, "but the client was heard"
    for pair in pairs:
        box.wake_and_answer(pair)
        assert tcp_info(pair.client).retransmits == 0


@BOTH
@ASLEEP
@pytest.mark.parametrize("timestamps", [True, False])
@pytest.mark.parametrize("payload", [b"", b"\0"])
@pytest.mark.parametrize("vlan", [None, 7])
def test_the_answer_is_the_ack_that_the_kernel_would_send(
    box: EngineLab, family: int, state: State, timestamps: bool, payload: bytes, vlan: int | None
) -> None:
    box.lab.sysctl("wan", "net.ipv4.tcp_timestamps", int(timestamps))
    try:
        pair = box.connect(family)
    finally:
        box.lab.sysctl("wan", "net.ipv4.tcp_timestamps", 1)
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    assert sleeper.timestamps == timestamps
    with Wire(box) as wire, vlan_device(box, 7):
        began_ms = time.monotonic_ns() // 1_000_000 - TICK_MS
        wire.send(sleeper.ip() / sleeper.tcp(seq=-1, ts=5) / Raw(payload), vlan=vlan)
        [answer] = wire.replies(sleeper)
        took_ms = time.monotonic_ns() // 1_000_000 - began_ms
    tcp = answer[TCP]
    assert (str(tcp.flags), tcp.seq, tcp.ack) == ("A", sleeper.snd_nxt, sleeper.rcv_nxt)
    assert (tcp.window, bytes(tcp.payload)) == (sleeper.window_on_wire, b"")
    assert checksums_are_right(answer)
    assert (answer.src, answer.dst) == (wire.box_mac, wire.mac)
    assert (answer[Dot1Q].vlan if vlan else None) == vlan
    assert answer.haslayer(Dot1Q) == (vlan is not None)
    stamps = timestamps_of(answer)
    if timestamps:
        assert stamps is not None
        assert stamps[1] == (sleeper.ts_recent + 5) % MOD, "the client's own TSval comes back"
        assert (stamps[0] - sleeper.ts_offset - began_ms) % MOD <= took_ms, "TSval runs on with the clock"
    else:
        assert stamps is None
    layer = answer[IP] if family == 4 else answer[IPv6]
    assert layer.len == len(tcp) + 20 if family == 4 else layer.plen == len(tcp)
    assert box.state(pair) is state


@BOTH
@pytest.mark.parametrize("mode", ["native", pytest.param("generic", marks=pytest.mark.engine(xdp_mode="generic"))])
def test_what_comes_without_the_agreed_timestamps_is_answered_with_them(box: EngineLab, family: int, mode: str) -> None:
    """lwIP's probes have none; an answer without them may be dropped (RFC 7323 3.2). So the answer is longer than the
    frame, which has no room for it at its tail: veth leaves one of 54 bytes less than the option takes."""
    assert box.attached == mode
    for state in (State.IDLE, State.SLEEP):
        pair = box.connect(family)
        box.to(pair, state)
        sleeper = Sleeper(pair, box.record(pair))
        with Wire(box) as wire, vlan_device(box, 7):
            probe = sleeper.ip() / sleeper.tcp(seq=-1, ts=None)
            challenged = sleeper.ip() / sleeper.tcp(flags="S", ts=None)
            for packet, vlan in ((probe, None), (probe / Raw(b"\0"), None), (probe, 7), (challenged, None)):
                counter = "challenge_acks" if packet is challenged else "keepalives_answered"
                before = box.stat(counter)
                wire.send(packet, vlan=vlan)
                [answer] = wire.replies(sleeper, 0.1)
                assert box.stat(counter) == before + 1
                assert (answer[TCP].seq, answer[TCP].ack) == (sleeper.snd_nxt, sleeper.rcv_nxt)
                assert timestamps_of(answer) is not None
                assert checksums_are_right(answer)
                assert (answer[Dot1Q].vlan if vlan else None) == vlan
        box.wake_and_answer(pair)


@BOTH
def test_an_older_timestamp_is_not_echoed_and_does_not_set_the_clock_back(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        seen = []
        for ts in (1000, 400, 1001):
            wire.send(sleeper.ip() / sleeper.tcp(seq=-1, ts=ts))
            [answer] = wire.replies(sleeper, 0.1)
            stamps = timestamps_of(answer)
            assert stamps is not None
            seen.append((stamps[1] - sleeper.ts_recent) % MOD)
    assert seen == [1000, 1000, 1001]


def test_keepalives_with_ip_options_and_extension_headers_are_answered_too(box: EngineLab) -> None:
    from scapy.layers.inet import IPOption_RR

    four, six = box.connect(4), box.connect(6)
    for pair in (four, six):
        box.to_idle(pair)
    with Wire(box) as wire:
        a, b = (Sleeper(pair, box.record(pair)) for pair in (four, six))
        wire.send(a.ip(options=[IPOption_RR(length=7, pointer=4, routers=["0.0.0.0"])]) / a.tcp(seq=-1))
        assert [checksums_are_right(p) for p in wire.replies(a)] == [True]
        wire.send(b.ip() / IPv6ExtHdrHopByHop() / b.tcp(seq=-1))
        assert [checksums_are_right(p) for p in wire.replies(b)] == [True]


@BOTH
@ASLEEP
def test_a_pure_ack_is_heard_and_neither_answered_nor_activity(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    heard = box.stat("acks_heard")
    with Wire(box) as wire:
        wire.send(sleeper.ip() / sleeper.tcp())
        assert wire.replies(sleeper) == []
    assert box.stat("acks_heard") == heard + 1
    assert box.state(pair) is state


@pytest.mark.engine(service={"sleep_quiet_ms": 2500})
def test_keepalives_do_not_put_off_sleep(box: EngineLab) -> None:
    """Claim 1 of the seed: a keep-alive is not activity, so the timers run on."""
    pair = box.connect(keepalives=True)
    box.to_idle(pair)
    box.wait_state(pair, State.SLEEP, 8)
    assert box.stat("keepalives_answered") >= 1
    assert box.transition_events(pair)[-1].gap_ms >= 2500


def test_the_answers_of_many_sleepers_each_carry_their_own_numbers(box: EngineLab) -> None:
    pairs = [box.connect(family) for family, _ in itertools.product((4, 6), range(8))]
    for pair in pairs:
        box.to_idle(pair)
    sleepers = [Sleeper(pair, box.record(pair)) for pair in pairs]
    with Wire(box) as wire:
        for sleeper in sleepers:
            wire.send(sleeper.ip() / sleeper.tcp(seq=-1))
            [answer] = wire.replies(sleeper, 0.06)
            assert (answer[TCP].seq, answer[TCP].ack) == (sleeper.snd_nxt, sleeper.rcv_nxt)
