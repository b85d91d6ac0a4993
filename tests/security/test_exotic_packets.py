# SPDX-License-Identifier: Apache-2.0
"""IP options, extension headers, fragments and tags: no packet of a sleeping connection draws an RST out of the stack,
and what is genuine in it still arrives."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, IPOption_NOP, IPOption_RR, fragment
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
    fragment6,
)
from scapy.layers.l2 import Dot1Q
from scapy.packet import Raw

from control.core.states import State
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.wire import Sleeper, Wire, vlan_device

BOTH = pytest.mark.parametrize("family", [4, 6])
ASLEEP = pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
GENERIC = pytest.param("generic", marks=pytest.mark.engine(xdp_mode="generic"))
MODES = pytest.mark.parametrize("mode", ["native", GENERIC])

IP_OPTIONS = {
    "none": [],
    "record route": [IPOption_RR(length=7, pointer=4, routers=["0.0.0.0"])],
    "a long record route": [IPOption_RR(length=39, pointer=4, routers=["0.0.0.0"] * 9)],
    "all forty bytes": [IPOption_NOP()] * 40,
}
EXTENSIONS: dict[str, list[Any]] = {
    "hop-by-hop": [IPv6ExtHdrHopByHop()],
    "destination options": [IPv6ExtHdrDestOpt()],
    "both": [IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt()],
    "padded ones": [IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(4))])] * 3,
    "six": [IPv6ExtHdrDestOpt()] * 6,
}


def stacked(base: Any, layers: list[Any]) -> Any:
    for layer in layers:
        base = base / layer
    return base


def resets(replies: list[Any]) -> list[Any]:
    return [reply for reply in replies if "R" in str(reply[TCP].flags)]


def genuine(sleeper: Sleeper, base: Any, payload: bytes = b"really me") -> Any:
    """What the client's own kernel would send next, in another wrapping."""
    return base / sleeper.tcp(flags="PA") / Raw(payload)


@pytest.mark.parametrize("what", IP_OPTIONS)
def test_a_segment_with_ip_options_wakes_and_arrives(box: EngineLab, what: str) -> None:
    pair = box.connect()
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        wire.send(genuine(sleeper, sleeper.ip(options=IP_OPTIONS[what])))
        assert receive(box.accept(), 9) == b"really me"
        assert resets(wire.replies(sleeper)) == []


@pytest.mark.parametrize("what", EXTENSIONS)
def test_a_segment_behind_extension_headers_wakes_and_arrives(box: EngineLab, what: str) -> None:
    pair = box.connect(6)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        wire.send(genuine(sleeper, stacked(sleeper.ip(), EXTENSIONS[what])))
        assert receive(box.accept(6), 9) == b"really me"
        assert resets(wire.replies(sleeper)) == []


@BOTH
def test_a_segment_with_a_vlan_tag_is_judged_as_one_without(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire, vlan_device(box, 5):
        wire.send(sleeper.ip() / sleeper.tcp(seq=sleeper.window, flags="PA") / Raw(b"evil"), vlan=5)
        wire.send(sleeper.ip() / sleeper.tcp(ack=3, flags="PA") / Raw(b"evil"), vlan=5)
        assert resets(wire.replies(sleeper)) == []
        assert box.state(pair) is State.IDLE
        wire.send(genuine(sleeper, sleeper.ip()), vlan=5)
        box.wait(lambda: box.stat("frames_woke") == 1, "what is genuine wakes")
    box.wake_and_answer(pair)


@BOTH
@ASLEEP
@MODES
def test_a_genuine_segment_of_a_vlan_that_has_no_device_neither_wakes_nor_is_answered(
    box: EngineLab, family: int, state: State, mode: str
) -> None:
    """Another VLAN is no link of the appliance, and the kernel drops what comes from there."""
    assert box.attached == mode
    pair = box.connect(family)
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    data = sleeper.tcp(flags="PA") / Raw(b"evil")
    with Wire(box) as wire, vlan_device(box, 7), vlan_device(box, 5, 0x88A8):
        for segment in (sleeper.tcp(seq=-1), sleeper.tcp(), sleeper.tcp(seq=9, flags="S"), data):
            wire.send(sleeper.ip() / segment, *in_fragments(sleeper, segment / Raw(bytes(200)))[:1], vlan=5)
        assert wire.replies(sleeper) == []
    counted = ("frames_woke", "frames_held", "acks_heard", "keepalives_answered", "challenge_acks", "rst_guarded")
    assert [name for name in counted if box.stat(name)] == []
    assert Sleeper(pair, box.record(pair)).essence == sleeper.essence
    assert box.state(pair) is state
    box.wake_and_answer(pair)


@BOTH
@ASLEEP
@MODES
def test_a_genuine_segment_with_a_vlan_tag_wakes_and_arrives(
    box: EngineLab, family: int, state: State, mode: str
) -> None:
    """A tag of priority alone (IEEE 802.1Q 6.8), which a stack receives with or without VLAN devices."""
    assert box.attached == mode
    pair = box.connect(family)
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        wire.send(genuine(sleeper, sleeper.ip()), vlan=0)
        assert receive(box.accept(family), 9) == b"really me"
        assert resets(wire.replies(sleeper)) == []


@pytest.mark.parametrize("layers", [
    [IPv6ExtHdrDestOpt()] * 7,
    [IPv6ExtHdrFragment(id=7)],
    [IPv6ExtHdrHopByHop(), IPv6ExtHdrFragment(id=8), IPv6ExtHdrDestOpt()],
    [IPv6ExtHdrRouting(addresses=["fd00:18::1"], segleft=0)] * 7,
], ids=["seven options", "atomic fragment", "fragment in a chain", "seven routing headers"])  # fmt: skip
@ASLEEP
def test_a_forged_segment_in_a_chain_that_xdp_does_not_follow_draws_no_reset_and_wakes_nobody(
    box: EngineLab, layers: list[Any], state: State
) -> None:
    """It reaches the stack, which has no socket for it: the guard stops the RST."""
    pair = box.connect(6)
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        for numbers in (
            {"ack": 5},
            {"seq": 1 << 30},
        ):  # the acknowledgement alone proves nothing, nor does what it draws
            wire.send(stacked(sleeper.ip(), layers) / sleeper.tcp(flags="PA", **numbers) / Raw(b"evil"))
        assert wire.replies(sleeper) == []
    assert box.stat("rst_guarded") == 2
    assert box.stat("thawed") == 0
    assert box.state(pair) is state
    box.wake_and_answer(pair)


@ASLEEP
def test_what_xdp_does_not_follow_wakes_nobody_though_its_numbers_are_right(box: EngineLab, state: State) -> None:
    pair = box.connect(6)
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        wire.send(genuine(sleeper, stacked(sleeper.ip(), [IPv6ExtHdrDestOpt()] * 7)))
        assert wire.replies(sleeper) == []
    assert (box.stat("rst_guarded"), box.stat("thawed"), box.state(pair)) == (1, 0, state)
    box.wake_and_answer(pair)


@BOTH
@ASLEEP
def test_fragments_of_a_forged_segment_draw_no_reset_and_wake_nobody(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        for fields in (
            {"ack": 77},
            {"seq": 1 << 30},
            {"ack": -1, "seq": 5},
            {"flags": "FA", "ack": 1},
            {"flags": "", "ack": 9},
        ):
            wire.send(*in_fragments(sleeper, sleeper.tcp(**fields) / Raw(b"evil" * 100)))
        assert wire.replies(sleeper) == []
    assert box.stat("rst_guarded") >= 4
    assert (box.stat("fragments_woke"), box.stat("thawed")) == (0, 0)
    assert box.state(pair) is state
    box.wake_and_answer(pair)


@BOTH
@ASLEEP
def test_a_fragmented_syn_draws_no_answer_and_cannot_keep_the_sleeper_from_waking(
    box: EngineLab, family: int, state: State
) -> None:
    """The listener is behind XDP: whatever it makes of the SYN must not stand in the way of the connection."""
    pair = box.connect(family)
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        wire.send(*in_fragments(sleeper, sleeper.tcp(seq=4711, flags="S") / Raw(b"evil" * 100)))
        replies = wire.replies(sleeper)
    box.wake_and_answer(pair)
    assert box.stat("thaw_failed") == 0
    assert replies == []


def in_fragments(sleeper: Sleeper, segment: Any) -> list[Any]:
    if sleeper.v4:
        parts: list[Any] = fragment(sleeper.ip(id=1234, flags=0) / segment, 104)
    else:
        whole = sleeper.ip() / IPv6ExtHdrFragment(id=4321) / segment
        parts = fragment6(IPv6(bytes(whole)), 200)
    assert len(parts) > 1
    return parts


@BOTH
def test_a_lone_fragment_changes_nothing(box: EngineLab, family: int) -> None:
    """Unless it is the first, with the numbers of a genuine segment (tests/lab/test_fragments.py)."""
    pair = box.connect(family)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    forged = sleeper.tcp(ack=1, flags="PA") / Raw(b"evil" * 200)
    reset = sleeper.tcp(flags="RA") / Raw(b"evil" * 200)
    with Wire(box) as wire:
        for segment in (forged, reset):
            wire.send(in_fragments(sleeper, segment)[0])
        last = in_fragments(sleeper, genuine(sleeper, sleeper.ip(), b"evil" * 200)[TCP])[-1]
        wire.send(last, last)
        assert wire.replies(sleeper) == []
    assert box.state(pair) is State.IDLE
    box.wake_and_answer(pair)


@BOTH
def test_a_double_vlan_tag_is_looked_into_where_there_is_a_device_for_both(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))

    def answers(wire: Wire, word: bytes = b"") -> list[Any]:
        """To a keep-alive, or to a word, in VLAN 6 within VLAN 5."""
        segment = sleeper.tcp(flags="PA") / Raw(word) if word else sleeper.tcp(seq=-1)
        wire.send(Dot1Q(vlan=6) / sleeper.ip() / segment, vlan=5)
        return wire.replies(sleeper)

    with Wire(box) as wire:
        assert answers(wire, b"evil") == []
        with vlan_device(box, 5):
            assert answers(wire, b"evil") == []
            assert box.state(pair) is State.IDLE
            with vlan_device(box, 6):  # on the device of VLAN 5, which the tests have on wan0 itself
                [answer] = answers(wire)
                assert [tag.vlan for tag in (answer[Dot1Q], answer[Dot1Q].payload)] == [5, 6]
                assert (answer[TCP].seq, answer[TCP].ack) == (sleeper.snd_nxt, sleeper.rcv_nxt)
                answers(wire, b"word")
                box.wait_state(pair, State.ACTIVE)


@BOTH
def test_three_vlan_tags_are_left_to_the_stack_and_draw_no_reset(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire, vlan_device(box, 5), vlan_device(box, 6), vlan_device(box, 7):
        wire.send(Dot1Q(vlan=6) / Dot1Q(vlan=7) / genuine(sleeper, sleeper.ip(), b"evil"), vlan=5)
        assert wire.replies(sleeper) == []
    assert box.state(pair) is State.IDLE
    box.wake_and_answer(pair)


@BOTH
def test_no_reset_of_the_stack_leaves_for_any_sleeper_but_strangers_still_get_theirs(
    box: EngineLab, family: int
) -> None:
    """The guard stops what belongs to the table, and nothing else."""
    pair = box.connect(family)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        wire.send(sleeper.ip() / TCP(sport=pair.key.client_port, dport=9, flags="S", seq=1))
        [refused] = [r for r in wire.replies(sleeper) if r[TCP].sport == 9]
        assert "R" in str(refused[TCP].flags)
    layer = IP if family == 4 else IPv6
    assert refused.haslayer(layer)
    assert box.state(pair) is State.IDLE
