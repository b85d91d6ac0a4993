# SPDX-License-Identifier: Apache-2.0
"""The VLANs that this network namespace is in, by its VLAN devices."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from appliance.box.links import Link, links, number

_ID, _PROTOCOL = 1, 5  # linux/if_link.h: IFLA_VLAN_...


class Vlan(NamedTuple):
    """What a frame says that is of a VLAN. ifindex: the interface that it comes by. protocol: 0x8100 (802.1Q) or 0x88A8
    (802.1ad). number: the id."""

    ifindex: int
    protocol: int
    number: int


def vlans(proc: Path = Path("/proc/thread-self/net")) -> dict[Vlan, int]:
    """The index of the device of each VLAN; also for the ports of what a device is on (a bond, a bridge), whose frames
    XDP sees there. Raises OSError where the kernel does not tell.

    Asked for each second inside of the event loop, and where there is no VLAN device by a look at a directory."""
    try:
        if len(list((proc / "vlan").iterdir())) < 2:  # its `config` is always there
            return {}
    except FileNotFoundError:
        return {}
    return vlans_of(links())


def vlans_of(every: Iterable[Link]) -> dict[Vlan, int]:
    """The same, of these interfaces."""
    masters: dict[int, int] = {}
    devices: dict[int, list[tuple[int, int, int]]] = {}
    for link in every:
        masters[link.index] = link.master
        if link.kind == b"vlan" and link.on:
            protocol = int.from_bytes(link.data[_PROTOCOL], "big")
            devices.setdefault(link.on, []).append((protocol, number(link.data[_ID]), link.index))
    found: dict[Vlan, int] = {}
    for index in masters:
        at = index
        while at:  # what is on the port itself comes before what is on its master
            for protocol, vlan, device in devices.get(at, ()):
                found.setdefault(Vlan(index, protocol, vlan), device)
            at = masters.get(at, 0)
    return found
