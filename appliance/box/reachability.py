# SPDX-License-Identifier: Apache-2.0
"""By which interface this machine reaches an address, and is reached from there."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor


class UnreachableError(Exception):
    """There is no route to an address; the message names it."""


def interface_towards(address: str) -> str:
    """The name of the interface that the routing table of this network namespace gives for an IP address; ``lo`` for
    this machine's own. Raises UnreachableError."""
    with ThreadPoolExecutor(1) as thread:  # pyroute2 runs an event loop, and so may the caller's thread
        return thread.submit(_interface_towards, address).result()


def _interface_towards(address: str) -> str:
    from pyroute2 import IPRoute  # 10 MB, imported where it is used
    from pyroute2.netlink.exceptions import NetlinkError

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with IPRoute() as ip:
        try:
            route = next(iter(ip.route("get", dst=address, family=family)))
        except NetlinkError as error:
            raise UnreachableError(f"no route to {address}: {error.args[-1]}") from None
        link = next(iter(ip.get_links(route.get_attr("RTA_OIF"))))
    return str(link.get_attr("IFLA_IFNAME"))
