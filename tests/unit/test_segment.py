# SPDX-License-Identifier: Apache-2.0
"""cext/socket/segment.c: checksums, parsing and probes, against scapy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, IPOption_RR, IPOption_Timestamp
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from appliance.wire import Key, pack_address
from tests.inner import ffi, lib
from tests.unit.records import TIMESTAMPS, Ka, c_key

MOD = 2**32


@dataclass(frozen=True)
class Parsed:
    seq: int
    ack: int
    payload: int
    tsval: int
    flags: int
    has_ts: bool


def good(frame: bytes, l3: int = 14) -> bool:
    return bool(lib.roost_testing_checksums_good(frame, len(frame), l3))


def parsed(frame: bytes, l3: int = 14) -> Parsed | None:
    numbers, flags, has_ts = ffi.new("uint32_t[4]"), ffi.new("uint32_t *"), ffi.new("int *")
    if not lib.roost_testing_parse(frame, len(frame), l3, numbers, flags, has_ts):
        return None
    return Parsed(numbers[0], numbers[1], numbers[2], numbers[3], flags[0], bool(has_ts[0]))


def ip_layer(family: int, exotic: int = 0) -> Any:
    """IP headers; exotic 1 and 2 add options or extension headers."""
    if family == 4:
        options = [[], [IPOption_RR(length=7, pointer=4, routers=["0.0.0.0"])], [IPOption_Timestamp()]][exotic]
        return IP(src="192.0.2.7", dst="198.51.100.1", options=options)
    layer = IPv6(src="2001:db8::7", dst="2001:db8:1::1")
    if exotic >= 1:
        layer = layer / IPv6ExtHdrHopByHop()
    if exotic == 2:
        layer = layer / IPv6ExtHdrDestOpt() / IPv6ExtHdrRouting(addresses=["2001:db8::9"], segleft=0)
    return layer


def ip_length(frame: bytes, l3: int) -> int:
    """Bytes of the packet in a frame, as its IP header says."""
    if frame[l3] >> 4 == 4:
        return int.from_bytes(frame[l3 + 2 : l3 + 4])
    return 40 + int.from_bytes(frame[l3 + 4 : l3 + 6])


frames = st.builds(
    lambda family, exotic, vlan, seq, ack, flags, options, payload, pad: (
        bytes(
            Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
            / (Dot1Q(vlan=7) / ip_layer(family, exotic) if vlan else ip_layer(family, exotic))
            / TCP(sport=40000, dport=7000, seq=seq, ack=ack, flags=flags, options=options)
            / Raw(payload)
        )
        + bytes(pad),
        18 if vlan else 14,
        Parsed(seq, ack, len(payload), dict(o for o in options if o[0] == "Timestamp").get("Timestamp", (0,))[0],
               flags, any(o[0] == "Timestamp" for o in options)),
    ),
    family=st.sampled_from([4, 6]), exotic=st.integers(0, 2), vlan=st.booleans(), seq=st.integers(0, MOD - 1),
    ack=st.integers(0, MOD - 1), flags=st.integers(0, 63),
    options=st.lists(
        st.one_of(st.just(("NOP", None)), st.tuples(st.just("MSS"), st.integers(0, 65535)),
                  st.tuples(st.just("WScale"), st.integers(0, 14)), st.just(("SAckOK", b"")),
                  st.tuples(st.just("Timestamp"), st.tuples(st.integers(0, MOD - 1), st.integers(0, MOD - 1)))),
        max_size=4, unique_by=lambda option: option[0]),
    payload=st.binary(max_size=300), pad=st.integers(0, 20),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(case=frames)
def test_what_scapy_builds_is_summed_right_and_read_right(case: tuple[bytes, int, Parsed]) -> None:
    frame, l3, expected = case
    assert good(frame, l3)
    assert parsed(frame, l3) == expected


@settings(max_examples=400, deadline=None)
@given(case=frames, where=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_of_the_segment_goes_unnoticed(case: tuple[bytes, int, Parsed], where: int, bit: int) -> None:
    frame, l3, expected = case
    at = l3 + ip_length(frame, l3) - 1 - where % (20 + expected.payload)
    broken = bytearray(frame)
    broken[at] ^= 1 << bit
    assert not good(bytes(broken), l3)


@pytest.mark.parametrize("offset", range(20))
def test_no_flipped_bit_of_the_ipv4_header_goes_unnoticed(offset: int) -> None:
    frame = bytearray(bytes(Ether() / ip_layer(4) / TCP(sport=1, dport=2, flags="A")))
    for bit in range(8):
        frame[14 + offset] ^= 1 << bit
        assert not good(bytes(frame))
        frame[14 + offset] ^= 1 << bit
    assert good(bytes(frame))


@pytest.mark.parametrize("family", [4, 6])
def test_a_fragment_is_no_segment(family: int) -> None:
    if family == 4:
        fragments: list[Any] = [IP(src="192.0.2.7", dst="198.51.100.1", flags="MF") / TCP(flags="A"),
                                IP(src="192.0.2.7", dst="198.51.100.1", frag=3) / TCP(flags="A"),
                                IP(src="192.0.2.7", dst="198.51.100.1", frag=256) / TCP(flags="A")]  # fmt: skip
    else:
        fragments = [IPv6(src="2001:db8::7", dst="2001:db8::1") / IPv6ExtHdrFragment(m=m, offset=o) / TCP(flags="A")
                     for m, o in ((1, 0), (0, 5), (0, 0))]  # fmt: skip
    for fragment in fragments:
        frame = bytes(Ether() / fragment)
        assert not good(frame)
        assert parsed(frame) is None


@settings(max_examples=300, deadline=None)
@given(case=frames, cut=st.integers(1, 400))
def test_a_truncated_frame_is_refused(case: tuple[bytes, int, Parsed], cut: int) -> None:
    frame, l3, _ = case
    short = frame[: max(0, l3 + ip_length(frame, l3) - cut)]
    assert not good(short, l3)
    assert parsed(short, l3) is None


@settings(max_examples=1500, deadline=None)
@given(noise=st.binary(max_size=120), version=st.sampled_from([0x45, 0x4F, 0x46, 0x60, None]),
       proto=st.sampled_from([6, 0, 43, 60, 44, None]), l3=st.sampled_from([14, 18]))  # fmt: skip
@example(noise=bytes(80), version=0x60, proto=0, l3=14)
def test_noise_is_read_without_harm(noise: bytes, version: int | None, proto: int | None, l3: int) -> None:
    frame = bytearray(noise)
    if version is not None and len(frame) > l3:
        frame[l3] = version
        at = l3 + (9 if version >> 4 == 4 else 6)
        if proto is not None and len(frame) > at:
            frame[at] = proto
    exact = ffi.from_buffer("uint8_t[]", bytes(frame))
    lib.roost_testing_checksums_good(exact, len(frame), l3)
    segment = parsed(bytes(frame), l3)
    assert segment is None or segment.payload <= len(frame)


kas = st.builds(Ka, flags=st.integers(0, 7), snd_nxt=st.integers(0, MOD - 1), rcv_nxt=st.integers(0, MOD - 1),
                ts_offset=st.integers(0, MOD - 1), ts_recent=st.integers(0, MOD - 1),
                window=st.integers(0, 65535))  # fmt: skip
keys = st.one_of(
    st.builds(Key.of, st.ip_addresses(v=4).map(str), st.integers(0, 65535), st.ip_addresses(v=4).map(str),
              st.integers(0, 65535)),
    st.builds(Key.of, st.ip_addresses(v=6, network="2000::/3").map(str), st.integers(0, 65535),
              st.ip_addresses(v=6, network="fd00::/8").map(str), st.integers(0, 65535)),
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(key=keys, ka=kas, now_ms=st.integers(0, 2**45))
@example(key=Key.of("192.0.2.1", 1, "192.0.2.2", 2), ka=Ka(snd_nxt=0), now_ms=0)
def test_a_probe_is_a_keepalive_as_scapy_reads_it(key: Key, ka: Ka, now_ms: int) -> None:
    packet = ffi.new("uint8_t[]", 72)
    length = lib.roost_testing_probe(c_key(key), ka.c(), now_ms, packet)
    raw = bytes(ffi.buffer(packet, length))
    v4 = raw[0] >> 4 == 4
    ip = IP(raw) if v4 else IPv6(raw)
    tcp = ip[TCP]
    assert pack_address(ip.src) == key.local
    assert pack_address(ip.dst) == key.client
    assert (tcp.sport, tcp.dport) == (key.local_port, key.client_port)
    assert (tcp.seq, tcp.ack) == ((ka.snd_nxt - 1) % MOD, ka.rcv_nxt)
    assert (str(tcp.flags), tcp.window) == ("A", ka.window)
    assert len(raw) == (ip.len if v4 else 40 + ip.plen)
    assert not bytes(tcp.payload)
    stamps = [value for name, value in tcp.options if name == "Timestamp"]
    assert stamps == ([((now_ms + ka.ts_offset) % MOD, ka.ts_recent)] if ka.flags & TIMESTAMPS else [])
    if v4:
        assert ip.flags == "DF"
        assert ip.ttl == 64
    else:
        assert ip.hlim == 64
    fresh = ip.copy()
    del fresh[TCP].chksum
    if v4:
        del fresh.chksum
    assert bytes(fresh) == raw, "both checksums are those that scapy computes"


@settings(max_examples=500, deadline=None)
@given(key=keys, ka=kas, now_ms=st.integers(0, 2**45))
@example(key=Key.of("192.0.2.1", 1, "192.0.2.2", 2), ka=Ka(flags=TIMESTAMPS, ts_offset=MOD - 1), now_ms=1)
def test_a_probe_that_is_stamped_later_is_the_one_that_is_made_later(key: Key, ka: Ka, now_ms: int) -> None:
    waited, fresh = (ffi.new("uint8_t[]", 72) for _ in range(2))
    length = lib.roost_testing_probe(c_key(key), ka.c(), 0, waited)
    lib.roost_testing_stamp(waited, length, now_ms)
    assert lib.roost_testing_probe(c_key(key), ka.c(), now_ms, fresh) == length
    assert bytes(ffi.buffer(waited)) == bytes(ffi.buffer(fresh))
