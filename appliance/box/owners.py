# SPDX-License-Identifier: Apache-2.0
"""Which interface of this namespace has an address, without netlink: pyroute2 alone would cost a daemon 10 MB."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from appliance.box.links import beneath
from appliance.wire import ServerAddress, endpoint_text

_SIOCGIFCONF: Final = 0x8912  # include/uapi/linux/sockios.h
_IFREQ_BYTES: Final = 40
_MOST: Final = 4096
"""IPv4 addresses that are looked at."""


def owners(proc: Path = Path("/proc/thread-self/net")) -> dict[str, str]:
    """The interface of each address."""
    buffer = array.array("B", bytes(_IFREQ_BYTES * _MOST))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks:
        place, _ = buffer.buffer_info()
        said = fcntl.ioctl(asks, _SIOCGIFCONF, struct.pack("iP", len(buffer), place))
    length, _ = struct.unpack("iP", said)
    found = {}
    for at in range(0, length, _IFREQ_BYTES):
        label = buffer[at : at + 16].tobytes().rstrip(b"\0").decode()
        found[socket.inet_ntoa(buffer[at + 20 : at + 24].tobytes())] = label.partition(":")[0]
    inet6 = proc / "if_inet6"
    if inet6.exists():  # not there when IPv6 is switched off
        for line in inet6.read_text(encoding="ascii").splitlines():
            words = line.split()
            found[str(ipaddress.IPv6Address(bytes.fromhex(words[0])))] = words[-1]
    return found


def heard_by_clients(
    listen: Iterable[ServerAddress], interfaces: Sequence[str], owner: Callable[[str], str | None] | None = None
) -> str:
    """The first of these addresses that clients who come by one of the interfaces reach, and by which they do: "...,
    which clients on wan0 reach, too"; empty: none. A client of a VLAN of an interface comes by it, too, and one by the
    port of a bridge or a bond. The loopback interface is the machine's own. owner: the interface of an address, where
    that is known. Raises OSError."""
    clients = [name for name in interfaces if name != "lo"]
    owner = owner or owners().get
    for one in listen:
        anywhere = ipaddress.ip_address(one[0]).is_unspecified
        own = owner(str(ipaddress.ip_address(one[0])))
        below = beneath(own) if own and own not in ("lo", *clients) else set()
        for client in clients:
            if anywhere or client == own or client in below:
                return f"{endpoint_text(one)}, which clients on {client} reach, too"
    return ""
