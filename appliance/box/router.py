# SPDX-License-Identifier: Apache-2.0
"""A router's rule and routes: what the steering programs mark is delivered to this machine, whatever its address.

    ip rule  add fwmark 0x52000000/0xff000000 lookup 5200        IPv4 and IPv6
    ip route add local default dev lo table 5200

A router's are made at start (what is there already stays) and taken back at the end, unless connections are left asleep
or new clients are to be refused: what is marked for those must not be routed to their server. They act on nothing but
that mark, so what a killed daemon leaves is harmless. There is one router in a network namespace.

Programs on the machine itself that connect to clients have that mark, too ([attach] local_connect); that is for one
daemon in a network namespace as well, and `roost unpin` takes them back.
"""

from __future__ import annotations

import logging
import socket
from errno import EACCES, EAFNOSUPPORT, EEXIST, ENETDOWN, ENOENT, EOPNOTSUPP, ESRCH
from pathlib import Path
from typing import Any, Final

from appliance.engine import router_mark

log = logging.getLogger("roost.router")

TABLE: Final = 5200
PRIORITY: Final = 5200
KERNELS: Final = 2
"""RTPROT_KERNEL: systemd-networkd takes every other rule away that is not its own, when it begins."""
FORWARDING: Final = (Path("/proc/sys/net/ipv4/ip_forward"), Path("/proc/sys/net/ipv6/conf/all/forwarding"))
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_NO_IPV6: Final = {EACCES, EAFNOSUPPORT, EOPNOTSUPP}
"""What the kernel says where IPv6 is switched off."""

_ANYWHERE: Final = {socket.AF_INET: "0.0.0.0/0", socket.AF_INET6: "::/0"}


class RouterError(Exception):
    """The kernel did not take a rule or route; the message says which and why."""


def open_routes(forwards: bool = True) -> bool:
    """Make the rule and the routes, in this thread's network namespace; False: all were there. forwards: the machine is
    a router. Raises RouterError, and has made none then."""
    made: list[str] = []
    try:
        _each("add", made, EEXIST)
    except RouterError:
        if made:
            close_routes()
        raise
    for path in FORWARDING if forwards else ():
        if path.exists() and path.read_text(encoding="ascii").strip() == "0":
            log.warning("%s is 0: this machine does not route what is not managed; set it to 1", path)
    return bool(made)


def close_routes() -> None:
    """Take them back; raises RouterError."""
    _each("del", [], ENOENT, ESRCH)


def _each(verb: str, done: list[str], *ignored: int) -> None:
    from pyroute2 import IPRoute  # 10 MB that those alone are to pay who need it
    from pyroute2.netlink.exceptions import NetlinkError

    def carry_out(what: str, call: Any, **arguments: Any) -> None:
        try:
            call(verb, **arguments)
            done.append(what)
        except NetlinkError as error:
            if error.code not in ignored and not (arguments["family"] == socket.AF_INET6 and error.code in _NO_IPV6):
                hint = "; bring the loopback interface up: ip link set lo up" if error.code == ENETDOWN else ""
                raise RouterError(f"cannot {verb} the {what}: {error.args[-1]}{hint}") from None

    mark, mask = router_mark()
    with IPRoute() as ip:
        loopback = ip.link_lookup(ifname="lo")[0]
        for family in _FAMILIES:
            carry_out("routing rule", ip.rule, family=family, fwmark=mark, fwmask=mask, table=TABLE, priority=PRIORITY,
                      protocol=KERNELS)  # fmt: skip
            carry_out("local route", ip.route, family=family, type="local", dst=_ANYWHERE[family], table=TABLE,
                      oif=loopback, scope=254)  # fmt: skip
