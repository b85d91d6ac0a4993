# SPDX-License-Identifier: Apache-2.0
"""Addresses as the engine has them: 16 bytes, IPv4-mapped for IPv4 (ebpf/shared/record.h); ports in host order."""

from __future__ import annotations

import ipaddress
from socket import AF_INET, inet_ntop, inet_pton
from typing import Final

_MAPPED: Final = b"\0" * 10 + b"\xff\xff"
"""What an IPv4 address begins with when it stands in 16 bytes (RFC 4291 2.5.5.2)."""

ServerAddress = tuple[str, int]
"""Address and port of a server."""


def pack_address(text: str) -> bytes:
    """16 bytes of an IP address, IPv4-mapped for IPv4. ValueError when it is none."""
    if packed := packed_ipv4(text):
        return _MAPPED + packed
    return ipaddress.ip_address(text).packed


def packed_ipv4(text: str) -> bytes | None:
    """4 bytes, of the one text that an address has; None: it is no IPv4 address. ipaddress takes 5 us more."""
    try:
        return inet_pton(AF_INET, text)
    except (OSError, ValueError):  # of text that is not ASCII, or has a NUL
        return None


def unpack_address(packed: bytes) -> str:
    """The text of an IP address of 16 bytes."""
    if packed.startswith(_MAPPED):
        return inet_ntop(AF_INET, packed[len(_MAPPED) :])
    return str(ipaddress.IPv6Address(packed))  # inet_ntop has another text for some


def endpoint_text(server: ServerAddress) -> str:
    """ "192.0.2.1:80" or "[2001:db8::1]:80" """
    return f"[{server[0]}]:{server[1]}" if ":" in server[0] else f"{server[0]}:{server[1]}"
