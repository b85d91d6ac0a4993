# SPDX-License-Identifier: Apache-2.0
"""Segments that a sleeping connection's client never sent: nothing wakes, nothing dies, nothing leaks, no RST leaves.

Each test ends with the client speaking: whatever was thrown at it, the connection lives.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import TCP
from scapy.packet import Raw

from appliance.wire import EventType
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, Pair, receive, tcp_info
from tests.lab.wire import MOD, Sleeper, Wire, damaged

ASLEEP = pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
BOTH = pytest.mark.parametrize("family", [4, 6])
LONG = (30, 42, 43, 44, 100, 128, 500, 1399, 1400)
"""Bytes of payload: with a header of 20 or 32 bytes more than XDP sums of every segment, odd and even."""
CHALLENGE_TICK_S = 0.512  # inactive.bpf.c: one challenge ACK for each connection and tick


class Target:
    """A sleeping connection under attack, and the wire to attack it from."""

    def __init__(self, box: EngineLab, wire: Wire, family: int, state: State) -> None:
        self.box, self.wire, self.state, self.family = box, wire, state, family
        self.pair: Pair = box.connect(family)
        box.to(self.pair, state)
        self.sleeper = Sleeper(self.pair, box.record(self.pair))
        self._events = len(box.events)
        self._gauges = self._read_gauges()
        wire.clear()

    def _read_gauges(self) -> dict[str, int]:
        stats = self.box.engine.stats()
        return {name: stats[name] for name in ("awake", "table_ipv4", "table_ipv6", "idle_records", "frozen", "thawed",
                                               "closed", "accepted", "probe_dead", "ring_full")}  # fmt: skip

    def segment(self, payload: bytes = b"", **fields: Any) -> Any:
        return self.sleeper.ip() / self.sleeper.tcp(**fields) / Raw(payload)

    def attack(self, *packets: Any) -> list[Any]:
        """Send; the segments that the appliance sends to the client for it."""
        self.wire.send(*packets)
        return self.wire.replies(self.sleeper, quiet_s=0.12)

    def assert_unmoved(self) -> None:
        """It sleeps as before, and the engine's books say the same."""
        told = [e for e in self.box.events[self._events :] if e.type != EventType.SLEEP_DUE]
        assert told == []
        assert self.box.state(self.pair) is self.state
        assert Sleeper(self.pair, self.box.record(self.pair)).essence == self.sleeper.essence
        assert self._read_gauges() == self._gauges

    def assert_lives(self) -> None:
        self.box.wake_and_answer(self.pair)
        assert tcp_info(self.pair.client).retransmits == 0


@pytest.fixture
def aim(box: EngineLab, unhurried: None) -> Iterator[Callable[[int, State], Target]]:
    with Wire(box) as wire:
        yield lambda family, state: Target(box, wire, family, state)


Aim = Callable[[int, State], Target]


def assert_challenge(replies: list[Any], target: Target) -> None:
    """At most one, and an ACK of the right numbers: it tells an attacker nothing that the client does not know, and
    makes a genuine peer that is out of step resend."""
    assert len(replies) <= 1
    for reply in replies:
        assert str(reply[TCP].flags) == "A"
        assert (reply[TCP].seq, reply[TCP].ack) == (target.sleeper.snd_nxt, target.sleeper.rcv_nxt)


@BOTH
@ASLEEP
def test_a_syn_to_a_sleeping_4_tuple_draws_one_challenge_ack_and_nothing_else(
    aim: Aim, family: int, state: State
) -> None:
    target = aim(family, state)
    drawn = 0
    for seq in (0, -1, 12345, -(2**31)):
        time.sleep(CHALLENGE_TICK_S)
        replies = target.attack(target.segment(seq=seq, ack=-target.sleeper.snd_nxt, flags="S"))
        assert_challenge(replies, target)
        drawn += len(replies)
    assert drawn == 4, "each, and a fresh record's first at any time"
    assert_challenge(target.attack(target.segment(flags="SA")), target)
    target.assert_unmoved()
    target.assert_lives()


@BOTH
@ASLEEP
def test_a_reset_in_the_window_is_challenged_and_outside_it_dropped(aim: Aim, family: int, state: State) -> None:
    """RFC 5961 3.2."""
    target = aim(family, state)
    drawn = 0
    for offset in (1, 2, target.sleeper.window - 1):
        time.sleep(CHALLENGE_TICK_S)
        replies = target.attack(target.segment(seq=offset, flags="R"))
        assert_challenge(replies, target)
        drawn += len(replies)
    assert drawn == 3
    for offset in (-1, target.sleeper.window, -(2**31)):
        for flags in ("R", "RA"):
            assert target.attack(target.segment(seq=offset, flags=flags)) == []
    target.assert_unmoved()
    target.assert_lives()


@BOTH
@ASLEEP
def test_a_reset_of_the_exact_number_closes(aim: Aim, box: EngineLab, family: int, state: State) -> None:
    target = aim(family, state)
    assert target.attack(target.segment(flags="R", ack=-target.sleeper.snd_nxt)) == []
    box.wait_state(target.pair, State.CLOSED)
    assert box.transitions(target.pair)[-1] == (state, State.CLOSED, Cause.CLIENT_CLOSE)
    assert box.stat("awake") == box.stat("table_ipv4") == box.stat("table_ipv6") == box.stat("idle_records") == 0


@BOTH
@ASLEEP
def test_data_out_of_the_window_or_with_a_wrong_acknowledgement_wakes_nobody(
    aim: Aim, family: int, state: State
) -> None:
    target = aim(family, state)
    window = target.sleeper.window
    for fields in ({"seq": window}, {"seq": -200}, {"seq": -(2**31)}, {"ack": 1}, {"ack": -1}, {"ack": 2**31},
                   {"flags": "F", "ack": 5}, {"flags": "FPA", "seq": window + 1}, {"flags": ""}, {"flags": "P"},
                   {"flags": "F"}, {"flags": "U"}):  # fmt: skip
        assert_challenge(target.attack(target.segment(b"evil" * 25, **fields)), target)
    target.assert_unmoved()
    target.assert_lives()


@BOTH
@ASLEEP
@pytest.mark.parametrize("payload", [b"", b"evil", b"evil" * 300])
def test_a_segment_with_a_wrong_tcp_checksum_is_as_if_it_had_not_come(
    aim: Aim, family: int, state: State, payload: bytes
) -> None:
    target = aim(family, state)
    heard = Sleeper(target.pair, target.box.record(target.pair)).heard_s
    time.sleep(1.1)
    for seq, flags in ((0, "PA"), (-1, "A"), (0, "FA"), (0, "R"), (0, "A"), (0, "S")):
        right = target.segment(payload, seq=seq, flags=flags)
        wrong = type(right)(bytes(right))
        wrong[TCP].chksum ^= 0x0100
        replies = target.attack(wrong)
        # XDP does not sum long segments: the most that one of them gets is a challenge ACK, within the limit.
        assert_challenge(replies, target)
        assert len(payload) > 100 or not replies
    target.assert_unmoved()
    assert Sleeper(target.pair, target.box.record(target.pair)).heard_s == heard, "nobody was heard"
    target.assert_lives()


@BOTH
@ASLEEP
def test_a_long_segment_with_a_wrong_checksum_comes_no_farther_than_xdp(aim: Aim, family: int, state: State) -> None:
    """With the right numbers, too, it takes no room in the ring."""
    target = aim(family, state)
    frames = [target.wire.frame(target.segment(random.randbytes(size), flags="PA")) for size in LONG]
    for frame in frames:
        last = bytearray(frame)
        last[-1] ^= 1
        target.wire.send_raw([damaged(frame), bytes(last)])
    assert target.wire.replies(target.sleeper) == []
    counted = [target.box.stat(name) for name in ("bad_checksum", "frames_woke", "frames_bad")]
    assert counted == [2 * len(frames), 0, 0]
    target.assert_unmoved()
    target.wire.send_raw(frames[-1:])
    target.box.wait(lambda: target.box.stat("frames_woke") == 1, "a good one wakes")
    target.box.wait_state(target.pair, State.ACTIVE)


@ASLEEP
def test_a_wrong_ip_header_checksum_wakes_nobody_and_closes_nothing(aim: Aim, state: State) -> None:
    target = aim(4, state)
    for payload, fields in ((b"evil", {"flags": "PA"}), (b"evil" * 300, {"flags": "PA"}), (b"", {"flags": "R"}),
                            (b"", {"flags": "FA"})):  # fmt: skip
        packet = type(target.sleeper.ip())(bytes(target.segment(payload, **fields)))
        packet.chksum ^= 1
        target.attack(packet)
    target.assert_unmoved()
    target.assert_lives()


@BOTH
@ASLEEP
def test_truncated_segments_and_impossible_header_lengths_are_dropped(aim: Aim, family: int, state: State) -> None:
    target = aim(family, state)
    whole = target.wire.frame(target.segment(b"evil" * 20, flags="PA"))
    tcp_at = 14 + (20 if family == 4 else 40)
    target.wire.send_raw(whole[:cut] for cut in range(14, len(whole)))
    for words in (*range(5), 9, 15):
        frame = bytearray(target.wire.frame(target.segment(b"", flags="PA")))
        frame[tcp_at + 12] = words << 4
        target.wire.send_raw([bytes(frame)])
    for length in (0, 1, 19, 20, 39, 41, 65535):
        frame = bytearray(whole)
        at = 16 if family == 4 else 18
        frame[at : at + 2] = length.to_bytes(2)
        target.wire.send_raw([bytes(frame)])
    assert [r for r in target.wire.replies(target.sleeper) if "R" in str(r[TCP].flags)] == []
    target.assert_unmoved()
    target.assert_lives()


@BOTH
@ASLEEP
def test_what_the_client_really_sent_before_wakes_nobody_when_it_is_replayed(
    aim: Aim, box: EngineLab, family: int, state: State
) -> None:
    with Wire(box) as recorder:
        pair = box.connect(family)
        box.exchange(pair, 50)
        box.exchange(pair, 3000)
    box.close(pair)
    assert recorder
    target = aim(family, state)
    sleeper = target.sleeper
    greeting = 20  # box.connect: bytes each way, all of them before the sleep
    replayed = [
        target.segment(bytes(greeting), seq=-greeting, ack=-greeting, flags="PA", ts=-50),
        target.segment(seq=0, ack=-greeting, ts=-40),
        target.segment(seq=-greeting - 1, ack=-greeting - sleeper.snd_nxt, flags="S", ts=-60),
        target.segment(bytes(greeting), seq=-greeting, ack=0, flags="PA", ts=-50),
    ]
    for packet in replayed * 3:
        assert_challenge(target.attack(packet), target)
    target.assert_unmoved()
    target.assert_lives()


@BOTH
@ASLEEP
def test_ten_thousand_guesses_without_the_numbers_wake_and_kill_nothing_and_draw_few_answers(
    aim: Aim, box: EngineLab, family: int, state: State
) -> None:
    target = aim(family, state)
    source = random.Random(family)
    bases = {
        payload: bytearray(target.wire.frame(target.segment(payload, seq=0))) for payload in (b"", b"x", b"x" * 200)
    }
    tcp_at = 14 + (20 if family == 4 else 40)
    guesses = []
    for _ in range(10_000):
        frame = bytearray(bases[source.choice(list(bases))])
        flags = source.choice([0x10, 0x18, 0x11, 0x04, 0x14, 0x02, 0x12, 0x00, source.randrange(64)])
        ack = source.randrange(MOD)
        if ack == target.sleeper.snd_nxt:
            continue
        seq = source.randrange(MOD) if flags & 4 else (target.sleeper.rcv_nxt + source.choice([0, -1, 1, 999])) % MOD
        if seq == target.sleeper.rcv_nxt and flags & 4:
            continue
        fix(frame, tcp_at, seq, ack, flags)
        guesses.append(bytes(frame))
    before = box.engine.stats()
    since = time.monotonic()
    target.wire.send_raw(guesses)
    replies = target.wire.replies(target.sleeper, quiet_s=0.3)
    seconds = time.monotonic() - since
    assert len(replies) <= seconds / CHALLENGE_TICK_S + 2
    assert all(str(reply[TCP].flags) == "A" for reply in replies)
    after = box.engine.stats()
    judged = ("challenge_acks", "challenge_acks_limited", "segments_dropped", "bad_checksum", "frames_woke")
    moved = {name: after[name] - before[name] for name in judged}
    assert moved["frames_woke"] == moved["bad_checksum"] == 0
    assert sum(moved.values()) == len(guesses), "every one was judged"
    assert moved["challenge_acks"] == len(replies)
    target.assert_unmoved()
    target.assert_lives()


def fix(frame: bytearray, tcp_at: int, seq: int, ack: int, flags: int) -> None:
    """Other numbers and flags, and the TCP checksum brought into line (RFC 1624: HC' = ~(~HC + ~m + m'))."""
    old = sum(int.from_bytes(frame[at : at + 2]) for at in range(tcp_at + 4, tcp_at + 14, 2))
    frame[tcp_at + 4 : tcp_at + 8] = seq.to_bytes(4)
    frame[tcp_at + 8 : tcp_at + 12] = ack.to_bytes(4)
    frame[tcp_at + 13] = flags
    new = sum(int.from_bytes(frame[at : at + 2]) for at in range(tcp_at + 4, tcp_at + 14, 2))
    total = (~int.from_bytes(frame[tcp_at + 16 : tcp_at + 18]) & 0xFFFF) + new + 5 * 0xFFFF - old
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    frame[tcp_at + 16 : tcp_at + 18] = (~total & 0xFFFF).to_bytes(2)


def test_challenge_acks_of_one_connection_are_limited_to_one_a_tick(aim: Aim, box: EngineLab) -> None:
    target = aim(4, State.IDLE)
    frame = target.wire.frame(target.segment(flags="S"))
    since = time.monotonic()
    while time.monotonic() - since < 1.6:
        target.wire.send_raw([frame] * 20)
        time.sleep(0.01)
    replies = target.wire.replies(target.sleeper)
    assert 2 <= len(replies) <= 5
    assert box.stat("challenge_acks_limited") > 100
    target.assert_lives()


def segments(target: Target) -> st.SearchStrategy[Any]:
    """Anything that shares the sleeping connection's 4-tuple but not its numbers."""
    offset = st.one_of(st.sampled_from([0, -1, 1, 2, -2, target.sleeper.window, -target.sleeper.window]),
                       st.integers(-(2**31), 2**31 - 1))  # fmt: skip
    option = st.one_of(
        st.tuples(st.just("Timestamp"), st.tuples(st.integers(0, MOD - 1), st.integers(0, MOD - 1))),
        st.just(("NOP", None)), st.tuples(st.just("MSS"), st.integers(0, 65535)),
        st.tuples(st.integers(20, 250), st.binary(max_size=6)),
    )  # fmt: skip
    return st.builds(
        lambda seq, ack, flags, payload, options, urgent: target.segment(
            payload, seq=seq, ack=ack, flags=flags, options=options, urgptr=urgent),
        seq=offset, ack=offset.filter(lambda ack: ack % MOD != 0),
        flags=st.integers(0, 63).filter(lambda flags: not flags & 4), payload=st.binary(max_size=600),
        options=st.lists(option, max_size=3), urgent=st.integers(0, 65535),
    )  # fmt: skip


@BOTH
@ASLEEP
def test_hypothesis_finds_no_segment_without_the_acknowledgement_number_that_moves_a_sleeper(
    aim: Aim, family: int, state: State
) -> None:
    target = aim(family, state)

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(packet=segments(target))
    @example(packet=target.segment(b"evil", ack=1))
    def attack(packet: Any) -> None:
        target.wire.send(packet)
        target.assert_unmoved()

    attack()
    assert all(str(reply[TCP].flags) == "A" for reply in target.wire.replies(target.sleeper))
    target.assert_unmoved()
    target.assert_lives()


@BOTH
@ASLEEP
def test_hypothesis_finds_no_noise_behind_an_ip_header_that_moves_a_sleeper(
    aim: Aim, family: int, state: State
) -> None:
    target = aim(family, state)
    whole = target.wire.frame(target.segment(b"evil", flags="PA"))
    head = whole[: 14 + (20 if family == 4 else 40) + 4]  # up to the ports

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(noise=st.binary(max_size=200), bit=st.integers(0, len(whole) * 8 - 1), flip=st.booleans())
    def attack(noise: bytes, bit: int, flip: bool) -> None:
        frame = bytearray(whole if flip else head + noise)
        if flip:
            if bit // 8 < 14:  # another address on the link or another protocol: not this connection's
                return
            frame[bit // 8] ^= 1 << bit % 8
        target.wire.send_raw([bytes(frame)])
        target.assert_unmoved()

    if family == 4:
        attack()
    else:  # IPv6 has no header checksum: a flipped bit of hop limit, class or label goes unnoticed
        whole = target.wire.frame(target.segment(b"evil", flags="PA", chksum=0x1234))
        attack()
    assert [r for r in target.wire.replies(target.sleeper) if "R" in str(r[TCP].flags)] == []
    target.assert_unmoved()
    target.assert_lives()


@BOTH
@ASLEEP
def test_urgent_data_wakes_and_is_a_byte_as_any_other(aim: Aim, box: EngineLab, family: int, state: State) -> None:
    target = aim(family, state)
    target.pair.client.send(b"u", socket.MSG_OOB)
    target.pair.client.sendall(b"then this")
    assert receive(box.accept(family), 10) == b"uthen this"
