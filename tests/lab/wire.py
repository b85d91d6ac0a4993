# SPDX-License-Identifier: Apache-2.0
"""The wire between the clients and the appliance: frames made by hand go in, and what comes out is read by scapy.

Frames are sent and heard on the NAT's outside interface, or on the server's: to the appliance they are a client's or a
server's, or an attacker's.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Protocol, Self

from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.utils import checksum

from appliance.lab import Lab
from appliance.wire import KA, Record
from tests.lab.engine_lab import EngineLab, Pair

ETH_P_8021Q: Final = 0x8100
_ALL: Final = socket.htons(3)
_SOL_PACKET: Final = 263
_PACKET_AUXDATA: Final = 8
_TP_STATUS_VLAN_VALID: Final = 0x10
MOD: Final = 2**32
TIMESTAMPS: Final = 1


class Sleeper:
    """A connection that sleeps, as its record says: the numbers that a genuine segment carries."""

    def __init__(self, pair: Pair, record: Record) -> None:
        fields = KA.unpack(record.ka)
        self.pair = pair
        self.ctl, self.snd_nxt, self.rcv_nxt, self.ts_offset, self.ts_recent, _ = fields[:6]
        self.heard_s = record.heard_s
        self.window_on_wire = fields[6]
        self.window = fields[6] << (self.ctl >> 28 & 0xF)
        self.timestamps = bool(self.ctl >> 16 & TIMESTAMPS)
        self.v4 = pair.client.family == socket.AF_INET

    @property
    def essence(self) -> tuple[int, ...]:
        """What no segment may change while the connection sleeps (the version of the slot and the phase included)."""
        return (self.ctl, self.snd_nxt, self.rcv_nxt, self.ts_offset, self.window_on_wire)

    def ip(self, **fields: Any) -> Any:
        here, there = self.pair.client.getsockname()[0], self.pair.client.getpeername()[0]
        return IP(src=here, dst=there, **fields) if self.v4 else IPv6(src=here, dst=there, **fields)

    def tcp(self, seq: int = 0, ack: int = 0, flags: str = "A", ts: int | None = 1, **fields: Any) -> Any:
        """seq and ack count from the right ones; ts counts from the time that the client's clock may show."""
        options = fields.pop("options", None)
        if options is None:
            stamps = self.timestamps and ts is not None
            options = [("NOP", None), ("NOP", None), ("Timestamp", ((self.ts_recent + (ts or 0)) % MOD, 0))]
            options = options if stamps else []
        fields = {"sport": self.pair.key.client_port, "dport": self.pair.key.local_port, "window": 500, **fields}
        return TCP(seq=(self.rcv_nxt + seq) % MOD, ack=(self.snd_nxt + ack) % MOD, flags=flags, options=options,
                   **fields)  # fmt: skip


WAN: Final = ("nat", "outside", "wan0")
LAN: Final = ("lan", "eth0", "lan0")
"""A namespace, its interface, and the appliance's at the other end."""


class InLab(Protocol):
    """An appliance in a lab: an engine, or a whole daemon."""

    @property
    def lab(self) -> Lab: ...


@contextmanager
def vlan_device(box: EngineLab, number: int, protocol: int = ETH_P_8021Q, device: str = "wan0") -> Iterator[None]:
    """The appliance is in this VLAN on wan0. Not every kernel has VLAN devices: the engine is told that this one is it,
    whose addresses and routes are looked up then."""
    with box.lab.enter("box"):
        wan0, index = socket.if_nametoindex("wan0"), socket.if_nametoindex(device)
    box.engine.vlan(wan0, protocol, number, index)
    try:
        yield
    finally:
        box.engine.vlan(wan0, protocol, number, 0)


class Wire:
    """with Wire(box) as wire: wire.send(packet); wire.replies(sleeper)"""

    def __init__(self, box: InLab, side: tuple[str, str, str] = WAN) -> None:
        self.box = box
        space, ifname, far = side
        with box.lab.enter(space):
            self._raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, _ALL)
            self._raw.bind((ifname, 0))
            self.mac = self._raw.getsockname()[4].hex(":")
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        self._raw.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        with box.lab.enter("box"), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as other:
            other.bind((far, 0))
            self.box_mac = other.getsockname()[4].hex(":")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._raw.close()

    def frame(self, packet: Any, vlan: int | None = None) -> bytes:
        ether = Ether(src=self.mac, dst=self.box_mac)
        return bytes(ether / Dot1Q(vlan=vlan) / packet if vlan is not None else ether / packet)

    def send(self, *packets: Any, vlan: int | None = None) -> None:
        self.send_raw(self.frame(packet, vlan) for packet in packets)

    def send_raw(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            self._raw.send(frame)

    def clear(self) -> None:
        self.heard(quiet_s=0.02)

    def heard(self, quiet_s: float = 0.15, at_most_s: float = 5.0) -> list[bytes]:
        """Frames that left the appliance, until none has come for quiet_s or at_most_s are over."""
        frames: list[bytes] = []
        self._raw.settimeout(min(quiet_s, 0.05))
        end = time.monotonic() + quiet_s
        last = time.monotonic() + at_most_s
        while time.monotonic() < min(end, last):
            try:
                frame, extra, _, address = self._raw.recvmsg(1 << 16, 64)
            except TimeoutError:
                continue
            if address[2] != socket.PACKET_OUTGOING:
                frames.append(_with_tag(frame, extra))
                end = time.monotonic() + quiet_s
        return frames

    def replies(self, sleeper: Sleeper, quiet_s: float = 0.15) -> list[Any]:
        """TCP segments (scapy frames) that left for the sleeper's client."""
        return [packet for packet in map(Ether, self.heard(quiet_s)) if _is_for(packet, sleeper)]


def _with_tag(frame: bytes, extra: list[tuple[int, int, bytes]]) -> bytes:
    """The frame as it was on the wire: the kernel takes a VLAN tag out of it and tells it apart."""
    for level, kind, data in extra:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
            status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", data[:20])
            if status & _TP_STATUS_VLAN_VALID:
                return frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
    return frame


def _is_for(packet: Any, sleeper: Sleeper) -> bool:
    layer = IP if sleeper.v4 else IPv6
    return bool(
        packet.haslayer(TCP)
        and packet.haslayer(layer)
        and packet[layer].dst == sleeper.pair.client.getsockname()[0]
        and packet[TCP].dport == sleeper.pair.key.client_port
    )


def checksums_are_right(packet: Any) -> bool:
    """The IPv4 header's and the TCP checksum, as scapy computes them anew."""
    layer = IP if packet.haslayer(IP) else IPv6
    given = bytes(packet[layer])
    length = packet[IP].len if layer is IP else 40 + packet[IPv6].plen
    fresh = layer(given[:length])
    if layer is IP:
        del fresh[IP].chksum
    del fresh[TCP].chksum
    return bytes(fresh) == given[:length]


def unsummed(frame: bytes) -> bytes:
    """A frame of Ethernet as an interface is given it that computes checksums (CHECKSUM_PARTIAL): in place of the TCP
    checksum stands the sum of the pseudo-header (RFC 9293 3.1), and not its complement."""
    packet = Ether(frame)
    addresses = frame[26:34] if packet.haslayer(IP) else frame[22:54]
    pseudo = addresses + struct.pack("!II", len(packet[TCP]), socket.IPPROTO_TCP)
    packet[TCP].chksum = ~checksum(pseudo) & 0xFFFF
    return bytes(packet)


def damaged(frame: bytes) -> bytes:
    """With another TCP checksum, which is not what an interface would complete either: by that field alone such a frame
    is taken for whole (is_left_to_interface of ebpf/lib/checksum.h), one of 65,536 that are damaged at random."""
    for bit in (1, 2):
        packet = Ether(frame)
        packet[TCP].chksum ^= bit
        if (wrong := bytes(packet)) != unsummed(frame):
            return wrong
    raise AssertionError("two different fields are not both that sum")


def timestamps_of(packet: Any) -> tuple[int, int] | None:
    """(TSval, TSecr)"""
    for name, value in packet[TCP].options:
        if name == "Timestamp":
            return int(value[0]), int(value[1])
    return None
