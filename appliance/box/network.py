# SPDX-License-Identifier: Apache-2.0
"""The network of this namespace as the kernel has it: interfaces, addresses, routes, settings. Nothing is changed."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.box.reachability import UnreachableError, interface_towards
from appliance.wire import ServerAddress

NETDEV_XDP_ACT_BASIC: Final = 1  # include/uapi/linux/netdev.h
_NETDEV_CMD_DEV_GET: Final = 1
_IFF_UP: Final = 1
_RTN_UNICAST: Final = 1  # include/uapi/linux/rtnetlink.h
PROC_SYS: Final = Path("/proc/sys/net")


def _way_to(address: str) -> str | None:
    with suppress(UnreachableError):
        return interface_towards(address)
    return None


def _addresses_of(host: str) -> list[str]:
    with suppress(socket.gaierror):
        return list(dict.fromkeys(str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))
    return []


@dataclass(frozen=True, slots=True)
class Link:
    """An interface. xdp: whether its driver has native XDP, None where the kernel does not tell (before Linux 6.3).
    offloads: those that are on. addresses: with the length of their prefix. vlans: the VLAN devices on it."""

    name: str
    up: bool
    xdp: bool | None = None
    offloads: frozenset[str] = frozenset()
    addresses: tuple[str, ...] = ()
    vlans: tuple[str, ...] = ()


class Route(NamedTuple):
    """to: a network with the length of its prefix, or "default"."""

    version: int
    interface: str
    to: str
    by_gateway: bool


@dataclass(frozen=True, slots=True)
class Network:
    """links: by name. routes: those that leave this machine. sysctls: numbers below /proc/sys/net, 0 where there is
    none. way_to: the interface by which the routing table reaches an address; None: there is no route. addresses_of:
    those of a name or address; none: it is not known now. foreign_xdp: of an interface, whose XDP program is there, and
    how it is detached, with a semicolon between them; "": none but ours; None: the engine that tells is not built.
    taken: whether another program has an address and port; transparent: which need not be this machine's."""

    links: Mapping[str, Link]
    routes: Sequence[Route] = ()
    sysctls: Mapping[str, int] = field(default_factory=dict)
    way_to: Callable[[str], str | None] = _way_to
    addresses_of: Callable[[str], Sequence[str]] = _addresses_of
    foreign_xdp: Callable[[str], str | None] = lambda _name: ""
    taken: Callable[[ServerAddress, bool], bool] = lambda _listen, _transparent: False

    def owner(self, address: str) -> str | None:
        """The interface that has this address."""
        wanted = ipaddress.ip_address(address)
        for link in self.links.values():
            if any(ipaddress.ip_interface(one).ip == wanted for one in link.addresses):
                return link.name
        return None

    def setting(self, name: str) -> int:
        return self.sysctls.get(name, 0)


def read(interfaces: Sequence[str]) -> Network:
    """The network as it is; offloads and settings of these interfaces."""
    from pyroute2 import IPRoute  # 10 MB, imported where it is used

    with IPRoute() as ip:
        xdp = _xdp()
        addresses: dict[int, list[str]] = {}
        for one in ip.get_addr():
            text = one.get_attr("IFA_LOCAL") or one.get_attr("IFA_ADDRESS")
            addresses.setdefault(one["index"], []).append(f"{text}/{one['prefixlen']}")
        links = {}
        interfaces_now = list(ip.get_links())
        vlans = _vlans(interfaces_now)
        for one in interfaces_now:
            name = one.get_attr("IFLA_IFNAME")
            links[name] = Link(
                name,
                bool(one["flags"] & _IFF_UP),
                xdp.get(one["index"]),
                _offloads(name) if name in interfaces else frozenset(),
                tuple(addresses.get(one["index"], ())),
                tuple(vlans.get(one["index"], ())),
            )
        names = {one["index"]: one.get_attr("IFLA_IFNAME") for one in interfaces_now}
        routes = [
            Route(4 if family == socket.AF_INET else 6, names[by], _destination(route), bool(gateway))
            for family in (socket.AF_INET, socket.AF_INET6)
            for route in ip.get_routes(family=family)
            if route["type"] == _RTN_UNICAST
            for by, gateway in _hops(route)
            if by in names and not _destination(route).startswith("fe80:")
        ]
    return Network(links, routes, _settings(interfaces))


def _destination(route: Any) -> str:
    return f"{route.get_attr('RTA_DST')}/{route['dst_len']}" if route["dst_len"] else "default"


def _hops(route: Any) -> list[tuple[int, Any]]:
    """Each interface that a route leads by, with the gateway there, if there is one."""
    several = route.get_attr("RTA_MULTIPATH") or ()
    hops = [(one["oif"], one.get_attr("RTA_GATEWAY") or one.get_attr("RTA_VIA")) for one in several]
    return hops or [(route.get_attr("RTA_OIF"), route.get_attr("RTA_GATEWAY") or route.get_attr("RTA_VIA"))]


def _vlans(links: Iterable[Any]) -> dict[int, list[str]]:
    """The names of VLAN devices, by the index of the interface that each is on."""
    found: dict[int, list[str]] = {}
    for one in links:
        info = one.get_attr("IFLA_LINKINFO")
        here = one.get_attr("IFLA_LINK_NETNSID") is None
        if here and info is not None and info.get_attr("IFLA_INFO_KIND") == "vlan":
            found.setdefault(one.get_attr("IFLA_LINK"), []).append(one.get_attr("IFLA_IFNAME"))
    return found


def _xdp() -> dict[int, bool]:
    """Whether native XDP is there, by the number of the interface; nothing where the kernel does not tell."""
    from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, genlmsg
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netlink.generic import GenericNetlinkSocket

    class Device(genlmsg):  # type: ignore[misc]  # of Documentation/netlink/specs/netdev.yaml
        nla_map = (("UNSPEC", "none"), ("IFINDEX", "uint32"), ("PAD", "hex"), ("XDP_FEATURES", "uint64"))

    found: dict[int, bool] = {}
    with GenericNetlinkSocket() as generic:
        try:
            generic.bind("netdev", Device)
        except NetlinkError:
            return found
        request = Device()
        request["cmd"], request["version"] = _NETDEV_CMD_DEV_GET, 1
        for one in generic.nlm_request(request, msg_type=generic.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP):
            found[one.get_attr("IFINDEX")] = bool(one.get_attr("XDP_FEATURES") & NETDEV_XDP_ACT_BASIC)
    return found


def _offloads(name: str) -> frozenset[str]:
    """The offloads of an interface that are on, by ethtool's names; none where the driver does not tell."""
    from pyroute2 import Ethtool
    from pyroute2.ethtool.ioctl import EthtoolError

    ethtool: Any = Ethtool()
    try:
        features = ethtool.get_features(name).features
    except (EthtoolError, OSError):
        return frozenset()
    finally:
        ethtool.close()
    return frozenset(feature for feature, state in features.items() if state.enable)


def forwards(interface: str, version: int) -> bool:
    """Whether the kernel routes what comes by this interface; True where there is no such setting."""
    setting = PROC_SYS / f"ipv{version}/conf/{interface}/forwarding"
    return not setting.exists() or setting.read_text(encoding="ascii").strip() != "0"


def _settings(interfaces: Sequence[str]) -> dict[str, int]:
    names = ["ipv4/ip_forward", "ipv6/conf/all/forwarding", "netfilter/nf_conntrack_tcp_loose"]
    names += [f"ipv4/conf/{name}/rp_filter" for name in ("all", *interfaces)]
    names += [f"ipv{version}/conf/{name}/forwarding" for version in (4, 6) for name in interfaces]
    found = {}
    for name in names:
        with suppress(OSError):
            found[name] = int((PROC_SYS / name).read_text(encoding="ascii"))
    return found
