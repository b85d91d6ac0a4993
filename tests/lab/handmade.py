# SPDX-License-Identifier: Apache-2.0
"""A TCP client whose segments are made by hand, one at a time: for what no kernel would send, or not in that order.

It lives on the wire between the NAT and the appliance, under an address behind the NAT that no host has there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Final

from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from appliance.lab import Lab
from appliance.wire import Key
from tests.lab.wire import MOD, Wire, checksums_are_right, timestamps_of

ADDRESS: Final = {4: "10.127.0.1", 6: "fd00:64::dead:1"}
NETWORK: Final = {4: "10.127.0.0/16", 6: "fd00:64::dead:0/112"}
"""No host has this address; handmade clients may."""
LINUX: Final = (
    ("MSS", 1460),
    ("SAckOK", b""),
    ("Timestamp", (1000, 0)),
    ("NOP", None),
    ("WScale", 9),
)
"""What Linux offers."""
OUR_WSCALE: Final = 7
_ports = itertools.count(20_000)
_NOBODY: Final = f"""
    table inet handmade {{
        chain forward {{
            type filter hook forward priority filter;
            ip daddr {NETWORK[4]} drop
            ip6 daddr {NETWORK[6]} drop
        }}
    }}
"""


def hide(lab: Lab) -> None:
    """Let what is for handmade clients end at the NAT: behind it a kernel would answer with an RST."""
    lab.nft("nat", "table inet handmade\ndelete table inet handmade\n" + _NOBODY)


class Handmade:
    """client.syn() -> the SYN-ACK; client.ack(); client.say(b"...")"""

    def __init__(self, wire: Wire, target: tuple[str, int], port: int | None = None, isn: int = 7_000_000,
                 options: Any = LINUX) -> None:  # fmt: skip
        self.wire, self.target = wire, target
        self.family = 6 if ":" in target[0] else 4
        self.address = ADDRESS[self.family]
        self.port = next(_ports) if port is None else port
        self.options = list(options)
        self.isn = isn
        self.snd_nxt = isn
        self.rcv_nxt = 0
        self.clock = next((value[0] for name, value in options if name == "Timestamp"), None)
        self.heard = 0
        """The newest TSval heard."""
        self._inbox: list[Any] = []

    @property
    def key(self) -> Key:
        return Key.of(self.address, self.port, *self.target)

    def ip(self, **fields: Any) -> Any:
        layer = IP if self.family == 4 else IPv6
        return layer(**{"src": self.address, "dst": self.target[0], **fields})

    def tcp(self, flags: str, **fields: Any) -> Any:
        if "options" not in fields and self.clock is not None:
            self.clock += 1
            fields["options"] = [("NOP", None), ("NOP", None), ("Timestamp", (self.clock % MOD, self.heard))]
        numbers = {"seq": self.snd_nxt % MOD, "ack": self.rcv_nxt if "A" in flags else 0}
        return TCP(flags=flags, sport=self.port, dport=self.target[1], **{"window": 500, **numbers, **fields})

    def send(self, flags: str, payload: bytes = b"", **fields: Any) -> None:
        self.wire.send(self.ip() / self.tcp(flags, **fields) / Raw(payload))

    def hear(self, wanted: Callable[[Any], bool] = lambda _: True, timeout_s: float = 2.0) -> Any:
        """The next segment for this client that is wanted; TimeoutError when none comes."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._inbox += self._new(0.01)
            while self._inbox:
                packet = self._inbox.pop(0)
                if wanted(packet[TCP]):
                    return packet
        raise TimeoutError(f"port {self.port} hears nothing of the kind within {timeout_s} s")

    def is_mine(self, packet: Any) -> bool:
        layer = IP if self.family == 4 else IPv6
        return bool(
            packet.haslayer(layer)
            and packet.haslayer(TCP)
            and packet[layer].dst == self.address
            and (packet[TCP].dport, packet[TCP].sport) == (self.port, self.target[1])
        )

    def all_heard(self, quiet_s: float = 0.1) -> list[Any]:
        """Every segment for this client, until none has come for quiet_s."""
        packets, self._inbox = self._inbox + self._new(quiet_s), []
        return packets

    def _new(self, quiet_s: float) -> list[Any]:
        port = self.port.to_bytes(2)
        frames = [frame for frame in self.wire.heard(quiet_s) if port in frame]  # scapy is slow
        mine = [packet for packet in map(Ether, frames) if self.is_mine(packet)]
        wrong = [bytes(packet).hex() for packet in mine if not checksums_are_right(packet)]
        assert not wrong, wrong
        return mine

    def syn(self, payload: bytes = b"", **fields: Any) -> Any:
        """Connect as far as the SYN-ACK, and take its numbers over."""
        self.send("S", payload, **{"seq": self.isn, "options": self.options, **fields})
        answer = self.hear(lambda tcp: str(tcp.flags) in ("SA", "SAE"))
        self.take(answer)
        return answer

    def take(self, syn_ack: Any) -> None:
        assert syn_ack[TCP].ack == (self.isn + 1) % MOD
        self.rcv_nxt = (syn_ack[TCP].seq + 1) % MOD
        self.snd_nxt = self.isn + 1
        stamps = timestamps_of(syn_ack)
        if stamps is None:
            self.clock = None
        else:
            self.heard = stamps[0]

    def ack(self, **fields: Any) -> None:
        self.send("A", **fields)

    def say(self, payload: bytes, **fields: Any) -> None:
        """Data, which counts as sent."""
        self.send("PA", payload, **fields)
        self.snd_nxt += len(payload)

    def keepalive(self, **fields: Any) -> None:
        self.send("A", seq=(self.snd_nxt - 1) % MOD, **fields)
