# SPDX-License-Identifier: Apache-2.0
"""The interfaces of this network namespace, and what each is on, asked of the kernel without pyroute2: that would cost
a daemon 10 MB."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_NLMSG: Final = struct.Struct("=IHHII")  # linux/netlink.h: length, type, flags, sequence, port
_IFINFO: Final = struct.Struct("=BxHiII")  # linux/rtnetlink.h: family, type, index, flags, change
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_RTM_NEWLINK, _RTM_GETLINK, _NLMSG_ERROR, _NLMSG_DONE = 16, 18, 2, 3
_REQUEST_DUMP: Final = 0x301
_DUMP_BYTES: Final = 1 << 16  # a part has at most half of that
_NAME, _LINK, _MASTER, _LINKINFO, _NETNSID = 3, 5, 10, 18, 37  # linux/if_link.h: IFLA_...
_KIND, _DATA = 1, 2  # IFLA_INFO_...
_TYPE: Final = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_STACKED: Final = (b"vlan", b"macvlan", b"macvtap", b"ipvlan", b"ipvtap")
"""Kinds of devices that frames come to by the device that they are on."""


@dataclass(frozen=True, slots=True)
class Link:
    """kind: as `ip link add type` has it; empty: a card. on: the index of the device that it is on, of _STACKED kinds
    in this namespace alone. master: the index of its bond, bridge or VRF. 0: none. data: what a kind has of its own."""

    index: int
    name: str
    kind: bytes
    on: int
    master: int
    data: Mapping[int, bytes]


def links() -> list[Link]:
    """All of them. Raises OSError where the kernel does not tell."""
    return list(parse(_dump()))


def parse(messages: bytes) -> Iterator[Link]:
    """The same, from the answers to RTM_GETLINK."""
    while messages:
        length, kind, *_ = _NLMSG.unpack_from(messages)
        if kind == _RTM_NEWLINK:
            begin = _NLMSG.size + _IFINFO.size
            index = _IFINFO.unpack_from(messages, _NLMSG.size)[2]
            yield _link(index, dict(_attributes(messages[begin:length])))
        messages = messages[_aligned(length) :]


def beneath(name: str) -> set[str]:
    """The interfaces by which frames come to this one: of a VLAN the one that it is on, of a bond or a bridge its
    ports, and what these are on. Raises OSError."""
    every = {link.index: link for link in links()}
    ports: dict[int, set[int]] = {}
    for index, link in every.items():
        ports.setdefault(index, set()).add(link.on)
        ports.setdefault(link.master, set()).add(index)
    found, new = set[int](), {index for index, link in every.items() if link.name == name}
    while new := {below for one in new for below in ports.get(one, ()) if below} - found:
        found |= new
    return {every[index].name for index in found if index in every}


def _link(index: int, attributes: Mapping[int, bytes]) -> Link:
    info = dict(_attributes(attributes.get(_LINKINFO, b"")))
    kind = info.get(_KIND, b"").rstrip(b"\0")
    here = kind in _STACKED and _NETNSID not in attributes
    name = attributes.get(_NAME, b"").rstrip(b"\0").decode(errors="replace")
    on, master = number(attributes.get(_LINK, b"")) if here else 0, number(attributes.get(_MASTER, b""))
    return Link(index, name, kind, on, master, dict(_attributes(info.get(_DATA, b""))))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind & _TYPE, data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]


def _aligned(length: int) -> int:
    return length + 3 & ~3


def number(value: bytes) -> int:
    """Of an attribute in the machine's own order of bytes."""
    return int.from_bytes(value, sys.byteorder)


def _dump() -> bytes:
    request = _NLMSG.pack(_NLMSG.size + _IFINFO.size, _RTM_GETLINK, _REQUEST_DUMP, 0, 0) + _IFINFO.pack(0, 0, 0, 0, 0)
    answers = b""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.send(request)
        while True:
            part = kernel.recv(_DUMP_BYTES)
            answers += part
            while part:
                length, kind, *_ = _NLMSG.unpack_from(part)
                if kind == _NLMSG_DONE:  # in a part of its own, or behind the last interface
                    return answers
                if kind == _NLMSG_ERROR:
                    error = -int.from_bytes(part[_NLMSG.size : _NLMSG.size + 4], sys.byteorder, signed=True)
                    raise OSError(error, os.strerror(error))
                part = part[_aligned(length) :]
