# SPDX-License-Identifier: Apache-2.0
"""Probes take the way that the routing table has for the client's address and the appliance's together.

Of IPv4: the look-up that BPF programs have asks IPv6 rules about no source address where it is for one's own packets.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pytest
from pyroute2 import IPRoute
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether

from appliance.wire import Op
from control.core.states import State
from tests.lab.engine_lab import EngineLab, Pair
from tests.lab.wire import Wire

ONE_BUCKET: Final = 56
PATIENT: Final = {"probe_interval_s": 1, "probe_retry_s": 1, "probe_count": 200}
SECOND: Final = "198.18.0.9"
"""Another address of the appliance; what it sends from there takes another gateway, which does not exist."""
GATEWAY, GATEWAY_MAC = "198.18.0.77", "02:00:00:00:00:77"
TABLE, SERVICE = 77, 3
AT_EACH: Final = 12
"""Clients: fewer than 8 probes at once are sent by a raw socket."""


@contextmanager
def second_address(box: EngineLab) -> Iterator[None]:
    """With a service of its own."""
    with box.lab.enter("box"), IPRoute() as ip:
        wan0 = ip.link_lookup(ifname="wan0")[0]
        ip.addr("add", index=wan0, address=SECOND, prefixlen=32)
        try:
            box.engine.add_service(replace(box.spec(4), index=SERVICE, listen=SECOND))
            yield
        finally:
            ip.addr("del", index=wan0, address=SECOND, prefixlen=32)


@contextmanager
def another_way_from_there(box: EngineLab) -> Iterator[None]:
    with box.lab.enter("box"), IPRoute() as ip:
        wan0 = ip.link_lookup(ifname="wan0")[0]
        ip.neigh("replace", dst=GATEWAY, lladdr=GATEWAY_MAC, ifindex=wan0, state="permanent", family=socket.AF_INET)
        ip.route("add", dst="default", gateway=GATEWAY, oif=wan0, table=TABLE)
        ip.rule("add", src=SECOND, src_len=32, table=TABLE, priority=100)
        try:
            yield
        finally:
            ip.rule("del", src=SECOND, src_len=32, table=TABLE, priority=100)
            ip.flush_routes(table=TABLE)
            ip.neigh("del", dst=GATEWAY, ifindex=wan0, family=socket.AF_INET)


def fall_asleep(box: EngineLab, pairs: list[Pair]) -> None:
    for pair in pairs:
        pair.server.close()
    for pair in pairs:
        box.wait_state(pair, State.STANDBY)
    box.wait_for_quiet(pairs[-1])
    for pair in pairs:
        box.submit(Op.IDLE, pair)
    for pair in pairs:
        box.wait_state(pair, State.IDLE)


def ways_of(frames: list[bytes], pairs: list[Pair]) -> list[tuple[str, str]]:
    """The appliance's address and the next hop's of each probe."""
    ports = {pair.key.client_port for pair in pairs}
    packets = [packet for packet in map(Ether, frames) if packet.haslayer(IP) and packet.haslayer(TCP)]
    return [(packet[IP].src, packet.dst) for packet in packets if packet[TCP].dport in ports]


@pytest.mark.engine(service=PATIENT, ipv4_slots=ONE_BUCKET)
def test_the_way_of_a_probe_depends_on_both_of_its_ends(box: EngineLab) -> None:
    """Connections of one client with two addresses of the appliance are probed in one run."""
    first = box.target()[0]
    with second_address(box), Wire(box) as wire:
        pairs = [box.connect(to=address) for _ in range(AT_EACH) for address in (first, SECOND)]
        fall_asleep(box, pairs)
        with another_way_from_there(box):
            wire.clear()
            raw = box.stat("probes_raw")
            ways: list[tuple[str, str]] = []

            def probed() -> bool:
                """Where the answers to the last round came in two seconds, the next one is in two parts, and fewer than
                eight go by raw socket: the round after that is looked at."""
                nonlocal raw
                ways.extend(ways_of(wire.heard(quiet_s=0.05), pairs))
                if box.stat("probes_raw") != raw:
                    raw = box.stat("probes_raw")
                    ways.clear()
                return len(ways) >= 2 * len(pairs)

            box.wait(probed, "each is probed twice, and by XDP", 8)
    assert set(ways) == {(first, wire.mac), (SECOND, GATEWAY_MAC)}
