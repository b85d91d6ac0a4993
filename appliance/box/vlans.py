# SPDX-License-Identifier: Apache-2.0
"""The VLANs that this network namespace is in, by its VLAN devices."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_NLMSG: Final = struct.Struct("=IHHII")  # linux/netlink.h: length, type, flags, sequence, port
_IFINFO: Final = struct.Struct("=BxHiII")  # linux/rtnetlink.h: family, type, index, flags, change
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_RTM_NEWLINK, _RTM_GETLINK, _NLMSG_ERROR, _NLMSG_DONE = 16, 18, 2, 3
_REQUEST_DUMP: Final = 0x301
_DUMP_BYTES: Final = 1 << 16  # a part has at most half of that
_LINK, _MASTER, _LINKINFO, _NETNSID = 5, 10, 18, 37  # linux/if_link.h: IFLA_...
_KIND, _DATA = 1, 2  # IFLA_INFO_...
_ID, _PROTOCOL = 1, 5  # IFLA_VLAN_...
_TYPE: Final = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER


class Vlan(NamedTuple):
    """What a frame says that is of a VLAN. ifindex: the interface that it comes by. protocol: 0x8100 (802.1Q) or 0x88A8
    (802.1ad). number: the id."""

    ifindex: int
    protocol: int
    number: int


def vlans(proc: Path = Path("/proc/thread-self/net")) -> dict[Vlan, int]:
    """The index of the device of each VLAN; also for the ports of what a device is on (a bond, a bridge), whose frames
    XDP sees there. Raises OSError where the kernel does not tell.

    Asked for each second inside of the event loop, so not by pyroute2 (appliance/box/reachability.py), and where there
    is no VLAN device by a look at a directory."""
    try:
        if len(list((proc / "vlan").iterdir())) < 2:  # its `config` is always there
            return {}
    except FileNotFoundError:
        return {}
    return parse(_dump())


def parse(messages: bytes) -> dict[Vlan, int]:
    """The same, from the answers to RTM_GETLINK."""
    masters: dict[int, int] = {}
    devices: dict[int, list[tuple[int, int, int]]] = {}
    for index, attributes in _links(messages):
        masters[index] = _number(attributes.get(_MASTER, b""))
        info = dict(_attributes(attributes.get(_LINKINFO, b"")))
        if info.get(_KIND) == b"vlan\0" and _NETNSID not in attributes:
            data = dict(_attributes(info[_DATA]))
            protocol = int.from_bytes(data[_PROTOCOL], "big")
            devices.setdefault(_number(attributes[_LINK]), []).append((protocol, _number(data[_ID]), index))
    found: dict[Vlan, int] = {}
    for index in masters:
        at = index
        while at:  # what is on the port itself comes before what is on its master
            for protocol, number, device in devices.get(at, ()):
                found.setdefault(Vlan(index, protocol, number), device)
            at = masters.get(at, 0)
    return found


def _links(messages: bytes) -> Iterator[tuple[int, dict[int, bytes]]]:
    """The index and the attributes of each interface."""
    while messages:
        length, kind, *_ = _NLMSG.unpack_from(messages)
        if kind == _RTM_NEWLINK:
            begin = _NLMSG.size + _IFINFO.size
            yield _IFINFO.unpack_from(messages, _NLMSG.size)[2], dict(_attributes(messages[begin:length]))
        messages = messages[_aligned(length) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind & _TYPE, data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]


def _aligned(length: int) -> int:
    return length + 3 & ~3


def _number(value: bytes) -> int:
    return int.from_bytes(value, sys.byteorder)


def _dump() -> bytes:
    request = _NLMSG.pack(_NLMSG.size + _IFINFO.size, _RTM_GETLINK, _REQUEST_DUMP, 0, 0) + _IFINFO.pack(0, 0, 0, 0, 0)
    answers = b""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.send(request)
        while True:
            part = kernel.recv(_DUMP_BYTES)
            kind = _NLMSG.unpack_from(part)[1]
            if kind == _NLMSG_DONE:
                return answers
            if kind == _NLMSG_ERROR:
                error = -int.from_bytes(part[_NLMSG.size : _NLMSG.size + 4], sys.byteorder, signed=True)
                raise OSError(error, os.strerror(error))
            answers += part
