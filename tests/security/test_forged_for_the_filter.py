# SPDX-License-Identifier: Apache-2.0
"""Packets of strangers that are taken for those of connections that sleep without a slot, forged or not: nothing wakes,
nothing dies, and what they make the appliance do is bounded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scapy.layers.inet import TCP, fragment
from scapy.layers.inet6 import IPv6ExtHdrDestOpt
from scapy.packet import Raw

from appliance.lab import Lab
from appliance.wire import Op
from control.core.states import State
from tests.lab.bare_sleep import NO_KEEPALIVES, SMALL, BareSleep
from tests.lab.engine_lab import PORT, Pair, receive
from tests.lab.forged import forged
from tests.lab.test_relay import rss_bytes
from tests.lab.wire import Sleeper, Wire, damaged
from tests.security.test_exotic_packets import in_fragments

BOTH = pytest.mark.parametrize("family", [4, 6])
ASKED_MAX, SYNS_ASKED_MAX = 1024, 256  # cext/life/recall.c
FRAMES = 20_000
FRAME_BYTES = 1000
SOURCES = range(20_000, 26_000)


@pytest.fixture
def box(nat_free_lab: Lab) -> Iterator[BareSleep]:
    with BareSleep(nat_free_lab, service=NO_KEEPALIVES, filter_slots=SMALL) as box:
        yield box


def sleeper_of(box: BareSleep, pair: Pair) -> Sleeper:
    return Sleeper(pair, box.rows[pair.key.pack()])


@BOTH
def test_forged_segments_for_a_sleeper_wake_nobody_and_draw_no_reset(box: BareSleep, family: int) -> None:
    """Nor do they bring it back into the table, where it would take a slot's memory until it has been silent."""
    pair = box.let_sleep(family)
    sleeper = sleeper_of(box, pair)
    transitions = box.transitions(pair)
    attacks = [
        {"seq": sleeper.window, "flags": "PA"},
        {"ack": 5, "flags": "PA"},
        {"ack": -5, "seq": 3, "flags": "FA"},
        {"seq": 7, "flags": "R"},
        {"seq": sleeper.window + 1, "flags": "R"},
        {"seq": 4711, "flags": "S"},
        {"flags": "", "seq": 9},
    ]
    with Wire(box) as wire:
        for count, fields in enumerate(attacks, 1):
            wire.send(sleeper.ip() / sleeper.tcp(**fields) / Raw(b"evil"))
            assert [reply for reply in wire.replies(sleeper) if "R" in str(reply[TCP].flags)] == []
            assert (box.stat("perhaps_refused"), box.slots, box.members) == (count, 0, 1)
    assert (box.state(pair), box.transitions(pair)) == (State.SLEEP, transitions)
    box.wake_and_answer(pair)


@BOTH
def test_a_sleeper_in_the_filter_tells_its_numbers_as_a_socket_would_but_once_a_second(
    box: BareSleep, family: int
) -> None:
    """An RST within the window, or a SYN (RFC 5961 3.2, 4.2): its client may have lost the connection."""
    pair = box.let_sleep(family)
    sleeper = sleeper_of(box, pair)
    with Wire(box) as wire:
        for seq, flags in ((7, "R"), (4711, "S")):
            wire.send(*(sleeper.ip() / sleeper.tcp(seq=seq, flags=flags) for _ in range(20)))
            answers = [(str(reply[TCP].flags), reply[TCP].seq, reply[TCP].ack) for reply in wire.replies(sleeper)]
            assert answers == [("A", sleeper.snd_nxt, sleeper.rcv_nxt)]
            box.wait(lambda: box.stat("perhaps_remembered") == 0, "the row that was read is forgotten")
        assert (box.stat("perhaps_asked"), box.slots) == (2, 0)
        wire.send(sleeper.ip() / sleeper.tcp(flags="R"))
        box.wait_state(pair, State.CLOSED)


def test_a_sleeper_is_heard_in_the_midst_of_a_flood_for_it(box: BareSleep) -> None:
    """Few of its packets are kept while the row is read, and forged ones may take their places; then each is judged."""
    pair = box.let_sleep()
    sleeper = sleeper_of(box, pair)
    with Wire(box) as wire:
        flood = [wire.frame(sleeper.ip() / sleeper.tcp(ack=1 + i, flags="PA") / Raw(b"evil")) for i in range(200)]
        genuine = wire.frame(sleeper.ip() / sleeper.tcp(flags="PA") / Raw(b"genuine"))
        wire.send_raw(flood)
        box.wait(lambda: box.stat("perhaps_refused") > 0, "its row is read, and kept for a second")
        rounds = 1
        wire.send_raw([*flood, genuine, *flood])
        while box.no_server_is_asked(within_s=1) and rounds < 5:  # on a slow machine that second was over
            wire.send_raw([*flood, genuine, *flood])
            rounds += 1
        assert receive(box.accept(), 7) == b"genuine"
    assert box.stat("perhaps_asked") <= rounds


def beyond_xdp(sleeper: Sleeper, segment: Any) -> list[Any]:
    """What the stack alone understands: a first fragment without the acknowledgement, many extension headers."""
    if sleeper.v4:
        parts: list[Any] = fragment(sleeper.ip(id=77, flags=0) / segment, 8)
        return parts
    whole = sleeper.ip()
    for _ in range(7):
        whole = whole / IPv6ExtHdrDestOpt()
    return [whole / segment]


@BOTH
@pytest.mark.parametrize("way", [in_fragments, beyond_xdp])
def test_what_cannot_be_handed_over_moves_a_sleeper_only_with_its_number(
    box: BareSleep, family: int, way: Callable[[Sleeper, Any], list[Any]]
) -> None:
    """Of a fragment, and of what the stack answers with an RST, the acknowledgement alone is known."""
    pair = box.let_sleep(family)
    sleeper = sleeper_of(box, pair)
    with Wire(box) as wire:
        for wrong in (1, -1, 1 << 31):
            refused = box.stat("perhaps_refused")
            wire.send(*way(sleeper, sleeper.tcp(ack=wrong, flags="PA") / Raw(b"evil" * 100)))
            box.wait(lambda before=refused: box.stat("perhaps_refused") > before, "it is refused")  # type: ignore[misc]
            assert (box.slots, box.members) == (0, 1)
        wire.send(*way(sleeper, sleeper.tcp(flags="PA") / Raw(b"real" * 100)))
        box.wait(lambda: box.stat("perhaps_slept") == 1, "it is in the table, where its retransmission is judged")
    box.wake_and_answer(pair)


@BOTH
def test_a_segment_with_a_bad_checksum_changes_nothing(box: BareSleep, family: int) -> None:
    pair = box.let_sleep(family)
    sleeper = sleeper_of(box, pair)
    frames = []
    with Wire(box) as wire:
        for payload in (b"", b"evil", b"evil" * 25, b"evil" * 349, b"odd" * 333):
            frames.append(wire.frame(sleeper.ip() / sleeper.tcp(flags="PA") / Raw(payload)))
            wire.send_raw([damaged(frames[-1]), frames[-1][:-1]])
        assert wire.replies(sleeper) == []
    assert box.stat("bad_checksum") == 2 * len(frames)
    assert (box.stat("frames_perhaps"), box.stat("perhaps_asked")) == (0, 0), "the engine hears nothing of it"
    assert (box.slots, box.members) == (0, 1)
    assert box.state(pair) is State.SLEEP
    box.wake_and_answer(pair)


def fill(box: BareSleep) -> list[Pair]:
    """The filter, and the clients that sleep by it."""
    pairs = [box.connect() for _ in range(10)]
    for pair in pairs:
        box.to_sleep(pair)
    assert box.members > 5
    return [pair for pair in pairs if (found := box.engine.find(pair.key)) is not None and found.candidate]


def segments_from(taken: list[tuple[str, int]], sleeper: Sleeper, **fields: Any) -> Iterator[Any]:
    """As the sleeper's, but from elsewhere."""
    for client, port in taken:
        ip = sleeper.ip()
        ip.src = client
        yield ip / sleeper.tcp(sport=port, **fields)


@pytest.mark.memory
def test_while_the_store_takes_its_time_a_flood_for_one_sleeper_fills_no_memory(box: BareSleep) -> None:
    pair = box.let_sleep()
    sleeper = sleeper_of(box, pair)
    box.readable = None
    before = rss_bytes()
    with Wire(box) as wire:
        wire.send_raw(itertools.islice(forged(wire, sleeper, FRAME_BYTES), FRAMES))
    box.wait(lambda: box.stat("perhaps_dropped") > FRAMES / 2, "they were handed over, and dropped")
    assert rss_bytes() - before < FRAMES * FRAME_BYTES / 10
    assert box.stat("perhaps_asked") == 1
    pair.client.sendall(b"genuine")
    box.answer(pair)
    assert receive(box.accept(), 7) == b"genuine"


def test_syns_that_are_taken_for_sleepers_are_asked_about_so_many_at_a_time_and_sleepers_go_before(
    box: BareSleep,
) -> None:
    asleep = fill(box)[0]
    taken = list(itertools.islice(box.taken_for_members(addresses=20), SYNS_ASKED_MAX + 50))
    assert len(taken) > SYNS_ASKED_MAX
    with Wire(box) as wire:
        # Made before they are sent: a question that has no answer is over after 10 s.
        frames = [wire.frame(one) for one in segments_from(taken, sleeper_of(box, asleep), flags="S", options=[])]
        box.readable = None
        wire.send_raw(frames)
        box.wait(lambda: box.stat("perhaps_dropped") == len(taken) - SYNS_ASKED_MAX, "what is too much is dropped")
        assert box.stat("perhaps_asked") == SYNS_ASKED_MAX
        box.readable = True
        asleep.client.sendall(b"room for one more")
        assert receive(box.accept(), 17) == b"room for one more"
    assert box.stat("perhaps_asked") == SYNS_ASKED_MAX + 1


def test_commands_and_servers_do_not_share_the_limits_of_packets(box: BareSleep) -> None:
    """Whatever packets have asked about: the operator reaches a sleeper, and so does its server."""
    commanded, wanted = fill(box)[:2]
    taken = list(itertools.islice(box.taken_for_members(addresses=30), ASKED_MAX + 50))
    assert len(taken) > ASKED_MAX
    with Wire(box) as wire:
        frames = [wire.frame(one) for one in segments_from(taken, sleeper_of(box, commanded), flags="PA")]
        box.readable = None
        wire.send_raw(frames)
    box.wait(lambda: box.stat("perhaps_asked") == ASKED_MAX, "so many questions have no answer")
    box.wait(lambda: box.stat("perhaps_dropped") == len(taken) - ASKED_MAX, "what is too much is dropped")
    box.submit(Op.WAKE, commanded)
    server = box.attach(wanted, early=b"you are wanted")
    box.wait(lambda: box.stat("perhaps_asked") == ASKED_MAX + 2, "both are asked about")
    for pair in (commanded, wanted):
        assert box.refusals(pair) == []
        box.answer(pair)
    box.wait_state(commanded, State.STANDBY)
    assert receive(wanted.client, 14) == b"you are wanted"
    server.close()


def from_many_ports(wire: Wire, sleeper: Sleeper, local_port: int) -> Iterator[bytes]:
    """Segments for a local port from SOURCES ports of one address; the checksum is right in each."""
    segment = sleeper.tcp(sport=0, dport=local_port, ts=None) / Raw(b"\xff\xff")
    whole = wire.frame(sleeper.ip() / segment)
    at = len(whole) - len(bytes(segment))
    for source in SOURCES:
        yield whole[:at] + source.to_bytes(2) + whole[at + 2 : -2] + (source ^ 0xFFFF).to_bytes(2)


def some_at_a_time(wire: Wire, frames: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Sends them, so few at a time that none is lost where the machine is slow; what is heard after each time."""
    while some := list(itertools.islice(frames, 100)):
        wire.send_raw(some)
        yield wire.heard(quiet_s=0.02)


def test_nobody_is_asked_about_where_no_sleeper_can_be(box: BareSleep) -> None:
    """Other TCP of this machine, at the clients' interface: some of it has a sleeper's fingerprint."""
    pairs = [box.connect() for _ in range(8)]
    for pair in pairs:
        box.to_sleep(pair)
    assert box.members > 5
    sleeper = sleeper_of(box, pairs[0])
    with Wire(box) as wire:
        resets: set[int] = set()
        for heard in some_at_a_time(wire, from_many_ports(wire, sleeper, PORT + 1)):
            resets.update(int.from_bytes(frame[36:38]) for frame in heard)
        assert len(resets) > len(SOURCES) / 2, "the stack says that nobody is there"
        assert (box.stat("frames_perhaps"), box.stat("perhaps_asked")) == (0, 0)
        for _ in some_at_a_time(wire, from_many_ports(wire, sleeper, PORT)):
            pass
        box.wait(lambda: box.stat("perhaps_asked") > 1, "at the sleeper's own port there are such")
