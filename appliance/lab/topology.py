# SPDX-License-Identifier: Apache-2.0
"""The lab's network: links, addresses and routes.

       wan ─────────────────── nat ──────────────────── box ────────────────── lan
       eth0               inside  outside           wan0   lan0               eth0
    10.10.0.2/24     10.10.0.1/24  198.18.0.2/24  198.18.0.1/24  10.3.0.1/24   10.3.0.2/24
    fd00:10::2       fd00:10::1    fd00:18::2     fd00:18::1     fd00:3::1     fd00:3::2

    clients 10.64.0.0/10, fd00:64::/64        public 198.19.0.0/16 (nat=True)

The clients' addresses are not configured one by one: the whole ranges are local to `wan` (a `local` route, as for
anycast), and `nat` routes them there, so that a million client addresses cost nothing and no neighbour entry.
IPv4 clients are translated to the public range, which exists in the translation alone; IPv6 is routed as it is.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pyroute2 import IPRoute, NetlinkError

from appliance.lab.namespaces import XDP_PASS, Namespace, load_xdp, move_thread

ADDRESSES: Final[dict[tuple[str, str, int], str]] = {
    ("wan", "eth0", 4): "10.10.0.2",
    ("wan", "eth0", 6): "fd00:10::2",
    ("nat", "inside", 4): "10.10.0.1",
    ("nat", "inside", 6): "fd00:10::1",
    ("nat", "outside", 4): "198.18.0.2",
    ("nat", "outside", 6): "fd00:18::2",
    ("box", "wan0", 4): "198.18.0.1",
    ("box", "wan0", 6): "fd00:18::1",
    ("box", "lan0", 4): "10.3.0.1",
    ("box", "lan0", 6): "fd00:3::1",
    ("lan", "eth0", 4): "10.3.0.2",
    ("lan", "eth0", 6): "fd00:3::2",
}
BOXES: Final = ("box", "box2")
OWN: Final[dict[tuple[str, str, int], str]] = {
    (box, ifname, family): f"{network}{number}"
    for number, box in enumerate(BOXES, 11)
    for (ifname, family), network in {("wan0", 4): "198.18.0.", ("wan0", 6): "fd00:18::", ("lan0", 4): "10.3.0.",
                                      ("lan0", 6): "fd00:3::"}.items()
}  # fmt: skip
"""Where there are two appliances: the addresses that do not move."""
CLIENTS: Final = {4: ipaddress.ip_network("10.64.0.0/10"), 6: ipaddress.ip_network("fd00:64::/64")}
PUBLIC: Final = ipaddress.ip_network("198.19.0.0/16")

_End = tuple[str, str]  # namespace, interface
_LINKS: Final[tuple[tuple[_End, _End], ...]] = (
    (("wan", "eth0"), ("nat", "inside")),
    (("nat", "outside"), ("box", "wan0")),
    (("box", "lan0"), ("lan", "eth0")),
)
_FACING_THE_BOX: Final = (("nat", "outside"), ("lan", "eth0"))
_PREFIX: Final = {4: 24, 6: 64}
_FAMILY: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
_LOCAL_TABLE: Final = 255
UNSUMMED: Final = 1
"""A mark of client sockets (SO_MARK); see add_unsummed_link."""
_UNSUMMED_TABLE: Final = 77
_UNSUMMED_GATEWAY: Final = {4: "169.254.0.1", 6: "fe80::1"}
"""Nobody has these addresses, but a neighbour entry."""
_ONLINK: Final = 4  # RTNH_F_ONLINK
_BURST: Final = 200_000  # frames
_HOST_SCOPE: Final = 254
_NO_DAD: Final = 2  # IFA_F_NODAD: addresses are usable at once


def client_address(index: int, family: int) -> str:
    return str(CLIENTS[family][1 + index])


def public_address(index: int) -> str:
    return str(PUBLIC[1 + index])


def build(spaces: dict[str, Namespace], nat: bool, client_addresses: int, offloads: bool = False) -> None:
    """Links, addresses, routes, offloads, sysctls and the translation. offloads: of all ends but the appliance's."""
    for space in spaces.values():
        _quiet_defaults(space)  # before there are interfaces: they take these settings over when they are made
        with space.entered(), IPRoute() as ip:
            ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
    for link in _LINKS:
        _connect(spaces, link, offloads)
    _neighbours(spaces)
    _routes(spaces, nat)
    _sysctls(spaces)
    if nat:
        _translate(spaces["nat"], client_addresses)


STRANGERS: Final = {"box": "198.51.100.1", "strangers": "198.51.100.2"}
STRANGERS_LINK: Final = (("strangers", "eth0"), ("box", "wan-strangers"))


def add_strangers(spaces: dict[str, Namespace]) -> None:
    """The namespace "strangers", with a link of its own to the appliance, apart from that of the clients."""
    _quiet_defaults(spaces["strangers"])
    _connect(spaces, STRANGERS_LINK, offloads=False)
    for name, ifname in STRANGERS_LINK:
        with spaces[name].entered(), IPRoute() as ip:
            index = ip.link_lookup(ifname=ifname)[0]
            ip.addr("add", index=index, address=STRANGERS[name], prefixlen=24, family=socket.AF_INET)
            if name != "box":
                ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
                ip.route("add", dst="default", gateway=STRANGERS["box"])
    _pass_program(spaces, [STRANGERS_LINK[0]])


def remove_link(spaces: dict[str, Namespace], end: _End) -> None:
    """Its interfaces at both ends are gone, and all that was told of them."""
    node, ifname = end
    with spaces[node].entered(), IPRoute() as ip:
        ip.link("del", ifname=ifname)


def renew_link(spaces: dict[str, Namespace], end: _End, nat: bool, offloads: bool = False) -> None:
    """Make what remove_link took: interfaces of the same names, with other indexes and MAC addresses."""
    _connect(spaces, next(link for link in _LINKS if end in link), offloads)
    _neighbours(spaces)
    _routes(spaces, nat)


def _connect(spaces: dict[str, Namespace], link: tuple[_End, _End], offloads: bool) -> None:
    """A link, with addresses at both ends. offloads: of all ends but the appliance's."""
    (near, near_if), (far, far_if) = link
    with spaces[near].entered(), IPRoute() as ip:
        ip.link("add", ifname=near_if, kind="veth", peer={"ifname": far_if, "net_ns_fd": spaces[far].fd})
    for name, ifname in link:
        with spaces[name].entered(), IPRoute() as ip:
            index = ip.link_lookup(ifname=ifname)[0]
            ip.link("set", index=index, state="up")
            for family in (4, 6):
                if (name, ifname, family) in ADDRESSES:
                    ip.addr("add", index=index, address=ADDRESSES[name, ifname, family],
                            prefixlen=_PREFIX[family], family=_FAMILY[family], flags=_NO_DAD)  # fmt: skip
        # tx: whole checksums in every frame; veth otherwise hands on frames whose checksum is still to be
        # computed, which an XDP program that answers them would copy, and a dissector would report.
        # gro: switches NAPI on, which _hold_bursts needs at the receiving end.
        on = offloads and name != "box"
        spaces[name].offload(ifname, tx=on, tso=on, gso=on, gro=True)
        _hold_bursts(spaces[name], ifname)
    # What an XDP program of the appliance sends with XDP_TX is delayed until some other frame comes (300 ms and more
    # were measured) unless the other end has an XDP program, too: veth_xdp_flush() wakes no other; GRO is not enough.
    _pass_program(spaces, [end for end in link if end in _FACING_THE_BOX])


def _quiet_defaults(space: Namespace) -> None:
    """No duplicate address detection, which would hold IPv6 back for seconds, and no routers but ours."""
    for scope in ("all", "default"):
        space.sysctl(f"net.ipv6.conf.{scope}.accept_dad", 0)
        space.sysctl(f"net.ipv6.conf.{scope}.router_solicitations", 0)
        space.sysctl(f"net.ipv4.conf.{scope}.rp_filter", 0)
        space.sysctl(f"net.ipv4.conf.{scope}.send_redirects", 0)


def _pass_program(spaces: dict[str, Namespace], ends: Iterable[tuple[str, str]]) -> None:
    program = load_xdp(XDP_PASS)
    try:
        for node, ifname in ends:
            with spaces[node].entered(), IPRoute() as ip:
                ip.link("set", index=ip.link_lookup(ifname=ifname)[0], xdp_fd=program)
    finally:
        os.close(program)  # the interfaces hold it


@dataclass(frozen=True, slots=True)
class TakenEnd:
    """What the appliance's interface of this name had; it is a bridge's port now, beside the device `tap`."""

    name: str
    tap: str
    mac: str
    addresses: list[str]  # with their prefix length
    routes: list[tuple[str, str]]  # destination, gateway


def take_ends(box: Namespace) -> list[TakenEnd]:
    """Whatever opens the tap devices is the appliance from now on, if it takes over what the interfaces had."""
    taken = []
    with box.entered(), IPRoute() as ip:
        for ifname in (ifname for link in _LINKS for node, ifname in link if node == "box"):
            index = ip.link_lookup(ifname=ifname)[0]
            taken.append(TakenEnd(
                ifname,
                f"tap-{ifname}",
                ip.link("get", index=index)[0].get("address"),
                [f"{address.get('address')}/{address['prefixlen']}" for address in ip.get_addr(index=index)
                 if address["scope"] == 0],
                [(f"{route.get('dst')}/{route['dst_len']}", route.get("gateway"))
                 for family in _FAMILY.values() for route in ip.get_routes(family=family, oif=index)
                 if route.get("gateway")],
            ))  # fmt: skip
            ip.flush_addr(index=index)
            ip.link("set", index=index, address=f"02:00:00:00:00:{len(taken):02x}")
            ip.link("add", ifname=f"br-{ifname}", kind="bridge")
            bridge = ip.link_lookup(ifname=f"br-{ifname}")[0]
            tap = ["ip", "tuntap", "add", "dev", taken[-1].tap, "mode", "tap", "multi_queue", "vnet_hdr"]
            subprocess.run(tap, check=True)
            ports = [index, ip.link_lookup(ifname=taken[-1].tap)[0]]
            for port in ports:
                ip.link("set", index=port, master=bridge)
            for each in (*ports, bridge):
                ip.link("set", index=each, state="up")
    return taken


def add_second_box(spaces: dict[str, Namespace], nat: bool) -> None:
    """A second appliance, `box2`, beside the first one: what was `outside` and the server's `eth0` is a bridge of that
    name now. Each box has addresses of its own (OWN), and those of ADDRESSES are the first one's, until they move."""
    second = spaces[BOXES[1]]
    _quiet_defaults(second)
    with second.entered(), IPRoute() as ip:
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
    for ends in _LINKS:
        if "box" not in (node for node, _ in ends):
            continue
        (_, near_if), (far, far_if) = sorted(ends, key=lambda end: end[0] != "box")
        space = spaces[far]
        with space.entered(), IPRoute() as ip:
            old = ip.link_lookup(ifname=far_if)[0]
            mac = ip.link("get", index=old)[0].get("address")
            ip.flush_addr(index=old)
            ip.link("set", index=old, state="down")
            ip.link("set", index=old, ifname=f"{far_if}.1")
            ip.link("add", ifname=f"{far_if}.2", kind="veth", peer={"ifname": near_if, "net_ns_fd": second.fd})
            ip.link("add", ifname=far_if, kind="bridge", address=mac, br_mcast_snooping=0, br_forward_delay=0)
            bridge = ip.link_lookup(ifname=far_if)[0]
            for port in (old, ip.link_lookup(ifname=f"{far_if}.2")[0]):
                ip.link("set", index=port, master=bridge, state="up")
            ip.link("set", index=bridge, state="up")
            for family in _FAMILY:
                _give(ip, bridge, ADDRESSES[far, far_if, family])
        for name, ifname in ((far, f"{far_if}.2"), (second.name, near_if)):
            spaces[name].offload(ifname, tx=False, tso=False, gso=False, gro=True)
            _hold_bursts(spaces[name], ifname)
        _pass_program(spaces, [(far, f"{far_if}.2")])
        for name in BOXES:
            with spaces[name].entered(), IPRoute() as ip:
                index = ip.link_lookup(ifname=near_if)[0]
                ip.link("set", index=index, state="up")
                ip.flush_addr(index=index)
                for family in _FAMILY:
                    _give(ip, index, OWN[name, near_if, family])
                    ip.neigh("replace", dst=ADDRESSES[far, far_if, family], family=_FAMILY[family], lladdr=mac,
                             ifindex=index, state="permanent")  # fmt: skip
    _sysctls(spaces)
    _routes(spaces, nat)
    move_addresses(spaces, "", "box")


def _give(ip: IPRoute, index: int, address: str, alone: bool = False) -> None:
    """alone: without its network, whose route would go with it."""
    version = ipaddress.ip_address(address).version
    length = {4: 32, 6: 128} if alone else _PREFIX
    ip.addr("replace", index=index, address=address, prefixlen=length[version], family=_FAMILY[version], flags=_NO_DAD)


def move_addresses(spaces: dict[str, Namespace], source: str, target: str) -> None:
    """From one box to the other, as VRRP moves them; the neighbours know at once."""
    for (node, ifname, family), address in ADDRESSES.items():
        if node != "box":
            continue
        if source:
            with spaces[source].entered(), IPRoute() as ip, suppress(NetlinkError):
                ip.addr("del", index=ip.link_lookup(ifname=ifname)[0], address=address,
                        prefixlen=32 if family == 4 else 128)  # fmt: skip
        with spaces[target].entered(), IPRoute() as ip:
            _give(ip, ip.link_lookup(ifname=ifname)[0], address, alone=True)
        far = "nat" if ifname == "wan0" else "lan"
        with spaces[far].entered(), IPRoute() as ip, suppress(NetlinkError):
            ip.neigh("del", dst=address, family=_FAMILY[family],
                     ifindex=ip.link_lookup(ifname="outside" if far == "nat" else "eth0")[0])  # fmt: skip


def cut(space: Namespace) -> None:
    """Its interfaces fall silent."""
    with space.entered(), IPRoute() as ip:
        for link in ip.get_links():
            if link.get("ifname") != "lo":
                ip.link("set", index=link["index"], state="down")


def pass_frames_unmerged(spaces: dict[str, Namespace]) -> None:
    """Switch GRO off outside the appliance, and keep NAPI on by an XDP program that passes everything.

    Tail loss probes are off, too: two round trips of some 100 us here, less than a busy machine takes a processor away
    for, and the probe looks like a loss in a capture.
    """
    for space in spaces.values():
        space.sysctl("net.ipv4.tcp_early_retrans", 0)
    ends = [end for link in _LINKS for end in link if end[0] != "box"]
    _pass_program(spaces, [end for end in ends if end not in _FACING_THE_BOX])
    for node, ifname in ends:
        spaces[node].offload(ifname, gro=False)


def _hold_bursts(space: Namespace, ifname: str) -> None:
    """Queue what the other end cannot take yet, instead of dropping it.

    The kernel's timer wheel fires keep-alives in lumps: at an interval of 30 s its buckets are 2 s wide, so that of
    100,000 clients some 7,000 send a probe in one softirq. A veth's ring holds 256 frames; with a qdisc (and NAPI at
    the other end) a full ring stops the queue, where without one it drops the frame.
    """
    with space.entered(), IPRoute() as ip:
        ip.tc("add", "pfifo", ip.link_lookup(ifname=ifname)[0], limit=_BURST)


def _neighbours(spaces: dict[str, Namespace]) -> None:
    """Each end of a link knows the other for good. Asking would work, but not in the first second: an interface has no
    link-local address to ask from before the kernel has told itself, once a second at most, that its carrier is there.
    """
    for ends in _LINKS:
        for (node, ifname), (other, other_if) in (ends, ends[::-1]):
            with spaces[other].entered(), IPRoute() as ip:
                lladdr = ip.link("get", ifname=other_if)[0].get("address")
            with spaces[node].entered(), IPRoute() as ip:
                index = ip.link_lookup(ifname=ifname)[0]
                for family in (4, 6):
                    ip.neigh("replace", dst=ADDRESSES[other, other_if, family], family=_FAMILY[family], lladdr=lladdr,
                             ifindex=index, state="permanent")  # fmt: skip


def _routes(spaces: dict[str, Namespace], nat: bool) -> None:
    def add(node: str, destination: str, via: tuple[str, str] | None, family: int = 4, **more: Any) -> None:
        with spaces[node].entered(), IPRoute() as ip:
            if via:
                more["gateway"] = ADDRESSES[*via, family]
            if "ifname" in more:
                more["oif"] = ip.link_lookup(ifname=more.pop("ifname"))[0]
            ip.route("replace", dst=destination, family=_FAMILY[family], **more)

    for family in (4, 6):
        add("wan", str(CLIENTS[family]), None, family, type="local", table=_LOCAL_TABLE, scope=_HOST_SCOPE,
            ifname="lo")  # fmt: skip
        add("wan", "default", ("nat", "inside"), family)
        add("nat", str(CLIENTS[family]), ("wan", "eth0"), family)
        add("nat", "default", ("box", "wan0"), family)
        add("lan", "default", ("box", "lan0"), family)
    for box in BOXES[: 2 if BOXES[1] in spaces else 1]:
        add(box, "fd00:10::/64", ("nat", "outside"), 6)
        add(box, str(CLIENTS[6]), ("nat", "outside"), 6)
        if nat:
            add(box, str(PUBLIC), ("nat", "outside"))
        else:
            add(box, str(CLIENTS[4]), ("nat", "outside"))
            add(box, "10.10.0.0/24", ("nat", "outside"))
    if nat:
        # What no translation claims ends here, as it would at a carrier's NAT, and does not come back to the box.
        add("nat", str(PUBLIC), None, type="blackhole")


def _sysctls(spaces: dict[str, Namespace]) -> None:
    for space in spaces.values():
        space.sysctl("net.core.somaxconn", 65535)
        space.sysctl("net.ipv4.tcp_max_syn_backlog", 65535)
        space.sysctl("net.ipv4.ip_local_port_range", "1024 65535")
        # Of these the labs' services have theirs: a connection out of the same address that took one, and is in
        # TIME-WAIT, would keep a daemon that starts later from listening.
        space.sysctl("net.ipv4.ip_local_reserved_ports", "7000-9999")
        space.sysctl("net.ipv4.icmp_ratelimit", 0)
    # bind() to an address of the clients' range: a `local` route is enough for IPv4, but not for IPv6.
    spaces["wan"].sysctl("net.ipv6.ip_nonlocal_bind", 1)
    for router in {"nat", *BOXES} & spaces.keys():
        spaces[router].sysctl("net.ipv4.ip_forward", 1)
        spaces[router].sysctl("net.ipv6.conf.all.forwarding", 1)


def _translate(nat: Namespace, client_addresses: int) -> None:
    """Client address i is translated to public address i; any other to one out of all."""
    pairs = ", ".join(f"{client_address(i, 4)} : {public_address(i)}" for i in range(client_addresses))
    everyone = public_address(0)
    if client_addresses > 1:
        everyone += "-" + public_address(client_addresses - 1)
    nft(nat, f"""
        table ip roost_lab {{
            chain postrouting {{
                type nat hook postrouting priority srcnat;
                oifname "outside" ip saddr {CLIENTS[4]} snat to ip saddr map {{ {pairs} }}
                oifname "outside" snat to {everyone}
            }}
            chain forward {{
                type filter hook forward priority filter;
                ct state invalid counter drop
            }}
        }}
    """)  # fmt: skip
    # A carrier's NAT forgets after minutes, but a lab's client must be lost because of Roost or not at all.
    nat.sysctl("net.netfilter.nf_conntrack_tcp_timeout_established", 432000)
    nat.sysctl("net.netfilter.nf_conntrack_tcp_timeout_unacknowledged", 432000)
    nat.sysctl("net.netfilter.nf_conntrack_tcp_timeout_max_retrans", 432000)
    nat.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", 0)


def add_unsummed_link(spaces: dict[str, Namespace]) -> None:
    """A second link from wan to nat, for what clients send with the mark UNSUMMED. From there to the box checksums are
    left to the interfaces (CHECKSUM_PARTIAL). What comes back takes the first link."""
    wan, nat = spaces["wan"], spaces["nat"]
    with wan.entered(), IPRoute() as ip:
        ip.link("add", ifname="eth1", kind="veth", peer={"ifname": "inside1", "net_ns_fd": nat.fd})
    for space, ifname in ((wan, "eth1"), (nat, "inside1")):
        with space.entered(), IPRoute() as ip:
            ip.link("set", index=ip.link_lookup(ifname=ifname)[0], state="up")
        space.offload(ifname, tx=True, tso=False, gso=False, gro=True)
        _hold_bursts(space, ifname)
    nat.offload("outside", tx=True)
    with nat.entered(), IPRoute() as ip:
        lladdr = ip.link("get", ifname="inside1")[0].get("address")
    with wan.entered(), IPRoute() as ip:
        index = ip.link_lookup(ifname="eth1")[0]
        for family, gateway in _UNSUMMED_GATEWAY.items():
            kind = _FAMILY[family]
            ip.neigh("replace", dst=gateway, family=kind, lladdr=lladdr, ifindex=index, state="permanent")
            ip.route("add", dst="default", family=kind, gateway=gateway, oif=index, table=_UNSUMMED_TABLE,
                     flags=_ONLINK)  # fmt: skip
            ip.rule("add", family=kind, fwmark=UNSUMMED, table=_UNSUMMED_TABLE)


def need_conntrack(entries: int) -> None:
    """Raise the machine's conntrack limit if it is too small; it is one number for all namespaces."""
    path = "/proc/sys/net/netfilter/nf_conntrack_max"
    with open(path) as file:
        present = int(file.read())
    if present < entries:
        with open(path, "w") as file:
            file.write(str(entries))


def nft(space: Namespace, rules: str, arguments: Sequence[str] = ()) -> str:
    """Feed rules to nft inside a namespace; its output."""
    done = subprocess.run(["nft", *arguments, "-f", "-"], input=rules, text=True, capture_output=True,
                          preexec_fn=lambda: move_thread(space.fd))  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"nft refused the rules of the lab's namespace {space.name}: {done.stderr.strip()}")
    return done.stdout
