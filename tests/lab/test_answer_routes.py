# SPDX-License-Identifier: Apache-2.0
"""What XDP answers goes where the kernel would route it, and not merely back to whoever asked.

The look-up that BPF programs have says nothing where forwarding is off: there a keep-alive, which takes the numbers to
make, is answered to where it came from, a challenge ACK is sent by the engine, and a SYN is the kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest
from scapy.layers.inet import TCP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from appliance.wire import Born
from tests.lab.engine_lab import EngineLab, Pair, tcp_info
from tests.lab.fixtures import ip
from tests.lab.handmade import LINUX, Handmade, hide
from tests.lab.wire import LAN, Sleeper, Wire, checksums_are_right, vlan_device

BOTH = pytest.mark.parametrize("family", [4, 6])
GENERIC: Final = pytest.mark.engine(xdp_mode="generic")
MODES = pytest.mark.parametrize("xdp_mode", ["native", pytest.param("generic", marks=GENERIC)])
NEIGHBOUR: Final = "02:00:00:00:00:66"
"""Another host on the link of the appliance, which no route leads to."""
GATEWAY: Final = {4: "198.18.0.77", 6: "fd00:18::77"}
GATEWAY_MAC: Final = "02:00:00:00:00:77"
FORWARDING: Final = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}


def family_of(address: str) -> str:
    return "-6" if ":" in address else "-4"


@contextmanager
def routed(box: EngineLab, client: str, gateway: str, interface: str, mac: str = GATEWAY_MAC) -> Iterator[None]:
    """The way to a client is by that gateway."""
    route = [family_of(client), "route"]
    neighbour = [family_of(client), "neigh"]
    ip(box.lab, "box", *neighbour, "replace", gateway, "lladdr", mac, "dev", interface, "nud", "permanent")
    ip(box.lab, "box", *route, "add", client, "via", gateway, "dev", interface)
    try:
        yield
    finally:
        ip(box.lab, "box", *route, "del", client)
        if mac == GATEWAY_MAC:
            ip(box.lab, "box", *neighbour, "del", gateway, "dev", interface)


def asleep(box: EngineLab, family: int) -> tuple[Pair, Sleeper]:
    pair = box.connect(family)
    box.to_idle(pair)
    return pair, Sleeper(pair, box.record(pair))


def from_neighbour(wire: Wire, *packets: Any) -> None:
    wire.send_raw(bytes(Ether(src=NEIGHBOUR, dst=wire.box_mac) / packet) for packet in packets)


@pytest.mark.parametrize("forwarding", [True, False])
@BOTH
@MODES
def test_a_neighbour_that_speaks_in_a_sleepers_name_does_not_hear_its_numbers(
    box: EngineLab, family: int, xdp_mode: str, forwarding: bool
) -> None:
    """A challenge ACK has both sequence numbers in it. It goes to the client, as a kernel's would."""
    assert box.attached == xdp_mode
    pair, sleeper = asleep(box, family)
    box.lab.sysctl("box", FORWARDING[family], int(forwarding))
    try:
        with Wire(box) as wire:

            def is_challenged() -> bool:
                from_neighbour(wire, sleeper.ip() / sleeper.tcp(seq=50_000, ack=-7, flags="S"))
                for answer in wire.replies(sleeper, 0.05):
                    numbers = (answer[TCP].seq, answer[TCP].ack)
                    assert (answer.dst, *numbers) == (wire.mac, sleeper.snd_nxt, sleeper.rcv_nxt)
                    assert checksums_are_right(answer)
                return box.stat("challenge_acks" if forwarding else "answers_by_engine") > 0

            box.wait(is_challenged, "it is challenged")  # the way that was known a second ago may be believed
    finally:
        box.lab.sysctl("box", FORWARDING[family], 1)
    box.wake_and_answer(pair)


@BOTH
@MODES
def test_a_keepalive_is_answered_by_the_way_that_leads_to_its_client_now(
    box: EngineLab, family: int, xdp_mode: str
) -> None:
    """The client comes by one gateway, and is reached by another since it fell asleep."""
    assert box.attached == xdp_mode
    pair, sleeper = asleep(box, family)

    def hops() -> list[str]:
        """XDP answers the usual probe (IPv4) by another way through it than one with a byte of payload."""
        wire.send(*(sleeper.ip() / sleeper.tcp(seq=-1) / Raw(payload) for payload in (b"", b"\0")))
        answers = wire.replies(sleeper, 0.05)
        assert [(answer.src, checksums_are_right(answer)) for answer in answers] == [(wire.box_mac, True)] * 2
        return [answer.dst for answer in answers]

    with Wire(box) as wire:
        assert hops() == [wire.mac] * 2
        with routed(box, pair.client.getsockname()[0], GATEWAY[family], "wan0"):
            box.wait(lambda: hops() == [GATEWAY_MAC] * 2, "answers go by the new way")
        box.wait(lambda: hops() == [wire.mac] * 2, "and by the old one again")
    box.wake_and_answer(pair)


@BOTH
@MODES
def test_a_keepalive_is_answered_by_the_interface_that_leads_to_its_client(
    box: EngineLab, family: int, xdp_mode: str
) -> None:
    assert box.attached == xdp_mode
    pair, sleeper = asleep(box, family)
    other = box.lab.address("lan", "eth0", family)
    with Wire(box) as here, Wire(box, LAN) as there:
        with routed(box, pair.client.getsockname()[0], other, "lan0", there.mac):

            def goes_there() -> bool:
                here.send(sleeper.ip() / sleeper.tcp(seq=-1))
                answers = there.replies(sleeper, 0.05)
                return [(answer.dst, answer[TCP].seq) for answer in answers] == [(there.mac, sleeper.snd_nxt)]

            box.wait(goes_there, "the answer leaves by the other interface")
            here.clear()
            assert goes_there()
            assert here.replies(sleeper, 0.05) == []
    box.wake_and_answer(pair)


@BOTH
@MODES
def test_what_comes_in_a_vlan_is_answered_there_by_the_routes_of_its_device(
    box: EngineLab, family: int, xdp_mode: str
) -> None:
    assert box.attached == xdp_mode
    pair, sleeper = asleep(box, family)
    other = box.lab.address("lan", "eth0", family)
    with Wire(box) as wire, Wire(box, LAN) as gateway, vlan_device(box, 7, device="lan0"):
        with routed(box, pair.client.getsockname()[0], other, "lan0", gateway.mac):
            for segment in (sleeper.tcp(seq=-1), sleeper.tcp(seq=50_000, ack=-7, flags="S")):
                wire.send(sleeper.ip() / segment, vlan=7)
                [answer] = wire.replies(sleeper, 0.05)
                assert (answer.dst, answer.src, answer[Dot1Q].vlan) == (gateway.mac, gateway.box_mac, 7)
                assert (answer[TCP].seq, answer[TCP].ack) == (sleeper.snd_nxt, sleeper.rcv_nxt)
        assert box.stat("answers_by_engine") == 0

        def is_answered_by_the_engine() -> bool:
            wire.send(sleeper.ip() / sleeper.tcp(seq=-1), vlan=7)
            return not any(answer.haslayer(Dot1Q) for answer in wire.replies(sleeper, 0.05))

        box.wait(is_answered_by_the_engine, "the client is not reached by that VLAN any more")
        assert box.stat("answers_by_engine") > 0
    box.wake_and_answer(pair)


@pytest.mark.engine(service={"probe_interval_s": 1, "probe_retry_s": 1, "probe_count": 200})
@BOTH
def test_a_gateway_that_gets_another_mac_while_its_clients_sleep_is_followed(box: EngineLab, family: int) -> None:
    """It asks for the appliance anew, as it must, and so the appliance's kernel learns."""
    asks, is_asked = (box.connect(family, keepalives=keepalives) for keepalives in (True, False))
    for pair in (asks, is_asked):
        box.to_idle(pair)
    ends = [("nat", "outside", box.lab.address("box", "wan0", family)),
            ("box", "wan0", box.lab.address("nat", "outside", family))]  # fmt: skip
    with Wire(box) as wire:
        macs = {"nat": wire.box_mac, "box": wire.mac}
        try:
            for space, ifname, other in ends:
                ip(box.lab, space, family_of(other), "neigh", "del", other, "dev", ifname)
            ip(box.lab, "nat", "link", "set", "outside", "address", GATEWAY_MAC)
            answered, heard = box.stat("keepalives_answered"), box.stat("acks_heard")
            box.wait(lambda: box.stat("keepalives_answered") > answered + 2, "its clients' keep-alives come", 8)
            box.wait(lambda: box.stat("acks_heard") > heard + 2, "probes are answered", 8)
            assert tcp_info(asks.client).probes <= 1
            for pair in (asks, is_asked):
                box.wake_and_answer(pair)
        finally:
            ip(box.lab, "nat", "link", "set", "outside", "address", macs["box"])
            for space, ifname, other in ends:
                ip(box.lab, space, family_of(other), "neigh", "replace", other, "lladdr", macs[space], "dev", ifname,
                   "nud", "permanent")  # fmt: skip


@BOTH
@pytest.mark.engine(service={"born": Born.ALWAYS})
@pytest.mark.parametrize("layout", ["linux", "other"])
@pytest.mark.parametrize("forwarding", [True, False])
def test_a_neighbour_that_connects_in_anothers_name_does_not_hear_the_cookie(
    box: EngineLab, family: int, forwarding: bool, layout: str
) -> None:
    """Where XDP does not know the way, the kernel's SYN-ACK goes by it."""
    hide(box.lab)
    cookies = box.stat("syn_cookies")
    with Wire(box) as wire, ExitStack() as stack:
        if not forwarding:
            box.lab.sysctl("box", FORWARDING[family], 0)
            stack.callback(box.lab.sysctl, "box", FORWARDING[family], 1)
            time.sleep(1.1)  # the way that was known a second ago may be believed
        client = Handmade(wire, box.target(family), options=LINUX if layout == "linux" else [("MSS", 1460)])
        from_neighbour(wire, client.ip() / client.tcp("S", seq=client.isn, options=client.options))
        answer = client.hear(lambda tcp: str(tcp.flags) == "SA")
    assert answer.dst == wire.mac
    assert box.stat("syn_cookies") - cookies == forwarding
