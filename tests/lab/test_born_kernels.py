# SPDX-License-Identifier: Apache-2.0
"""Kernels of every kind as clients that are born asleep: what they believe of the connection is what the appliance
does, before and after the first word, on the wire and in both sockets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.wire import KA, Born
from control.core.states import State
from tests.lab.engine_lab import EngineLab, Pair, receive, tcp_info
from tests.lab.wire import MOD

BOTH = pytest.mark.parametrize("family", [4, 6])
SIZE = 1_000_000
TIMESTAMPS, SACK, WSCALE = 1, 2, 4
FIN, SYN, ACK = 1, 2, 16
LINK_BYTES = 14


@dataclass(frozen=True)
class Kind:
    """Sysctls of a client's kernel below net.ipv4, and its TCP_MAXSEG."""

    name: str
    sysctls: tuple[tuple[str, int], ...] = ()
    max_segment: int = 0
    agreed: int = TIMESTAMPS | SACK | WSCALE


KINDS = (
    Kind("usual"),
    Kind("no timestamps", (("tcp_timestamps", 0),), agreed=0),
    Kind("no SACK", (("tcp_sack", 0),), agreed=TIMESTAMPS | WSCALE),
    Kind("no scaling", (("tcp_window_scaling", 0),), agreed=TIMESTAMPS | SACK),
    Kind("nothing", (("tcp_timestamps", 0), ("tcp_sack", 0), ("tcp_window_scaling", 0)), agreed=0),
    Kind("small segments", max_segment=600),
    Kind("smaller segments", (("tcp_timestamps", 0),), max_segment=540, agreed=0),
    Kind("tiny segments, which the kernel is to deal with", max_segment=300),
)


@dataclass(frozen=True)
class Segment:
    """As a capture shows it."""

    ours: bool
    seq: int
    ack: int
    flags: int
    window: int
    payload: int
    mss: int | None
    wscale: int | None
    tsval: int | None


@dataclass(frozen=True)
class Belief:
    """What a kernel thinks of its peer (struct tcp_info)."""

    options: int
    snd_wscale: int
    rcv_wscale: int
    snd_mss: int


def belief(sock: socket.socket) -> Belief:
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return Belief(raw[5] & 7, raw[6] & 15, raw[6] >> 4, struct.unpack_from("=I", raw, 16)[0])


@contextmanager
def kernel(box: EngineLab, kind: Kind) -> Iterator[None]:
    """The clients' kernel is of this kind."""
    before = {name: box.lab.space("wan").read_sysctl(f"net.ipv4.{name}") for name, _ in kind.sysctls}
    for name, value in kind.sysctls:
        box.lab.sysctl("wan", f"net.ipv4.{name}", value)
    try:
        yield
    finally:
        for name, old in before.items():
            box.lab.sysctl("wan", f"net.ipv4.{name}", old)


@pytest.fixture(scope="module")
def exact() -> Iterator[EngineLab]:
    with EngineLab(exact_frames=True, service={"born": Born.ALWAYS}) as box:
        yield box


@BOTH
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_a_megabyte_passes_each_way_as_both_ends_agreed(
    exact: EngineLab, tmp_path: Path, family: int, kind: Kind
) -> None:
    box = exact
    before = box.engine.stats()
    capture = box.lab.capture("nat", "outside", tmp_path / "wire.pcap", "tcp")
    with kernel(box, kind):
        client = box.dial(family, before=lambda sock: sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_MAXSEG, kind.max_segment) if kind.max_segment else None)  # fmt: skip
    born = kind.max_segment == 0 or kind.max_segment >= 536
    if born:
        box.wait(lambda: box.engine.find(box.key_of(client)), "it is born asleep")
        assert box.stat(f"born_ipv{family}") == before[f"born_ipv{family}"] + 1
    believed = belief(client)
    assert believed.options == kind.agreed
    key = box.key_of(client)
    if born:
        found = box.engine.find(key)
        assert found is not None
        assert _scales_and_options(found.record.ka) == (believed.rcv_wscale, believed.snd_wscale, believed.options)

    client.sendall(b"?")
    server = box.accept(family)
    assert receive(server, 1) == b"?"
    up, down = bytes(range(251)) * (SIZE // 251), bytes(reversed(range(241))) * (SIZE // 241)
    senders = [
        threading.Thread(target=client.sendall, args=(up,)),
        threading.Thread(target=server.sendall, args=(down,)),
    ]
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(receive(client, len(down))))
    for thread in (*senders, reader):
        thread.start()
    assert receive(server, len(up)) == up
    for thread in (*senders, reader):
        thread.join()
    assert got == [down]

    now = belief(client)
    assert (now.options, now.snd_wscale, now.rcv_wscale) == (believed.options, believed.snd_wscale, believed.rcv_wscale)
    segments: list[Segment] = []

    def all_captured() -> bool:
        segments[:] = read(tmp_path / "wire.pcap", client.getsockname()[1], box.target(family)[1])
        return sum(s.payload for s in segments if s.ours) >= len(down)

    box.wait(all_captured, "the capture is written")
    capture.terminate()
    _assert_sound(segments, believed)
    assert box.stat("syn_cookies") - before["syn_cookies"] == born

    # The woken socket, as its own kernel sees it when it is frozen again.
    number = next(event.id for event in box.events if event.record.key_raw == key.pack() and event.id)
    pair = Pair(client, server, key, number)
    box.to_idle(pair)
    *scales, options = _scales_and_options(box.record(pair).ka)
    assert scales == [believed.rcv_wscale, believed.snd_wscale]
    assert options & ~WSCALE == believed.options & ~WSCALE  # repair mode calls none a scale of 0
    assert tcp_info(client).state == 1
    client.close()
    box.wait_state(pair, State.CLOSED)


def _scales_and_options(ka: bytes) -> tuple[int, int, int]:
    """The client's receive scale, its send scale, and the options, as a record of ours has them."""
    ctl = KA.unpack(ka)[0]
    return ctl >> 24 & 15, ctl >> 28, ctl >> 16 & 7


def _assert_sound(segments: list[Segment], believed: Belief) -> None:
    """What the appliance sent was for this client: not longer than it takes, within its window, with a clock that never
    goes back; and the window it gave is never drawn back (RFC 9293 3.8.6)."""
    syn = next(s for s in segments if not s.ours and s.flags & SYN)
    syn_ack = next(s for s in segments if s.ours and s.flags & SYN)
    assert syn.mss is not None
    stamps = 12 if believed.options & TIMESTAMPS else 0
    edge = theirs = 0  # the client's window's right edge, and ours, from the first byte of each
    clock: int | None = None
    for s in segments:
        if s.ours:
            assert s.payload <= syn.mss - stamps
            assert (s.tsval is not None) == bool(stamps)
            if s.tsval is not None:
                assert clock is None or (s.tsval - clock) % MOD < 2**31, "our clock went back"
                clock = s.tsval
            if s.flags & SYN:
                theirs = s.window
                continue
            assert (s.seq - syn_ack.seq - 1 + s.payload) % MOD <= edge, "beyond the client's window"
            ours = (s.ack - syn.seq - 1) % MOD + (s.window << believed.snd_wscale)
            assert ours >= theirs, "the window was drawn back"
            theirs = ours
        elif s.flags & ACK:
            edge = max(edge, (s.ack - syn_ack.seq - 1) % MOD + (s.window << believed.rcv_wscale))


def read(path: Path, client_port: int, port: int) -> list[Segment]:
    """The segments of one connection in a capture, in their order."""
    raw = path.read_bytes()
    segments, at = [], 24
    while at + 16 <= len(raw):
        (length,) = struct.unpack_from("<8xI", raw, at)
        frame = raw[at + 16 : at + 16 + length]
        if len(frame) < length:
            break  # it is being written
        at += 16 + length
        if frame[12:14] == b"\x08\x00":
            header, total = (frame[LINK_BYTES] & 15) * 4, int.from_bytes(frame[16:18])
        else:
            header, total = 40, 40 + int.from_bytes(frame[18:20])
        tcp = frame[LINK_BYTES + header : LINK_BYTES + total]
        source, target, seq, ack, offset, flags, window = struct.unpack_from("!HHIIBBH", tcp)
        if (source, target) in ((client_port, port), (port, client_port)):
            options = tcp_options(tcp[20 : (offset >> 4) * 4])
            mss, scale, stamps = (options.get(kind) for kind in (2, 3, 8))
            segments.append(Segment(
                source == port, seq, ack, flags, window, len(tcp) - (offset >> 4) * 4,
                mss=int.from_bytes(mss) if mss else None,
                wscale=scale[0] if scale else None,
                tsval=int.from_bytes(stamps[:4]) if stamps else None))  # fmt: skip
    return segments


def tcp_options(raw: bytes) -> dict[int, bytes]:
    options, at = {}, 0
    while at < len(raw) and raw[at]:
        if raw[at] == 1:
            at += 1
            continue
        options[raw[at]] = raw[at + 2 : at + raw[at + 1]]
        at += raw[at + 1]
    return options
