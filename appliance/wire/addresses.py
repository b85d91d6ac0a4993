# SPDX-License-Identifier: Apache-2.0
"""Addresses as the engine has them: 16 bytes, IPv4-mapped for IPv4 (ebpf/shared/record.h); ports in host order."""

from __future__ import annotations

import ipaddress

ServerAddress = tuple[str, int]
"""Address and port of a server."""


def pack_address(text: str) -> bytes:
    """16 bytes of an IP address, IPv4-mapped for IPv4. ValueError when it is none."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return bytes(10) + b"\xff\xff" + address.packed
    return address.packed


def unpack_address(packed: bytes) -> str:
    """The text of an IP address of 16 bytes."""
    ip = ipaddress.IPv6Address(packed)
    return str(ip.ipv4_mapped or ip)


def endpoint_text(server: ServerAddress) -> str:
    """ "192.0.2.1:80" or "[2001:db8::1]:80" """
    return f"[{server[0]}]:{server[1]}" if ":" in server[0] else f"{server[0]}:{server[1]}"
