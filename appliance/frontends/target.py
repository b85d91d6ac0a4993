# SPDX-License-Identifier: Apache-2.0
"""What a server asks for: the address and port of a client, or the name that a client was given.

No name is ever looked up in the DNS: a target is the address of a client or the name of one.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from typing import Final

from appliance.wire import endpoint_text, packed_ipv4

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WANTED: Final = "the target is not client-address:client-port"


@dataclass(frozen=True, slots=True)
class Address:
    """A client's address, as text (an IPv4-mapped one is IPv4), and its port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Name:
    """A client's name with its domain: lower case, since host names are the same in any case (RFC 4343). The port that
    was asked for with it matters only where the client must be dialled: the name stands for one connection."""

    text: str
    port: int = field(default=0, compare=False)


Target = Address | Name


def target_text(target: Target) -> str:
    """As it is asked for: host:port."""
    return f"{target.text}:{target.port}" if isinstance(target, Name) else endpoint_text((target.host, target.port))


def address(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> Address:
    """An Address; its port may be one that no client can have. Raises ValueError for an address with a zone."""
    if isinstance(ip, ipaddress.IPv6Address) and ip.scope_id:
        raise ValueError(f"{_WANTED} (no zone here)")
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return Address(str(mapped or ip), port)


def host_target(host: str, port: int) -> Target:
    """The target out of a host, which is an address or a name, and a port.

    Raises ValueError when it can be neither."""
    if packed_ipv4(host):
        return Address(host, port)
    try:
        return address(ipaddress.ip_address(host), port)
    except ValueError:
        pass
    host = host.removesuffix(".")
    # A last label of digits is that of a mistyped IPv4 address (RFC 3696 2: no top-level domain is numeric).
    if len(host) > 253 or not _NAME.fullmatch(host) or host.rpartition(".")[2].isdigit():
        raise ValueError("the target is neither a client's address nor a client's name")
    return Name(host.lower(), port)


def parse_authority(text: str) -> Target:
    """The target out of ``host:port`` (RFC 9110 section 7.1); raises ValueError with a sentence."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(_WANTED)
    bracketed = host.startswith("[") and host.endswith("]")
    if not bracketed and ":" not in host:
        return host_target(host, int(port))
    try:
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        raise ValueError(_WANTED) from None
    if not bracketed or ip.version != 6:
        raise ValueError(f"{_WANTED} (IPv6 goes in brackets)")
    return address(ip, int(port))


def parse_address(text: str) -> Address:
    """The client out of ``address:port``, as the product itself writes it: Linux takes segments from port 0, too.
    Raises ValueError with a sentence."""
    from_zero = text.endswith(":0")
    target = parse_authority(f"{text[:-1]}1" if from_zero else text)
    if isinstance(target, Name):
        raise ValueError(_WANTED)
    return replace(target, port=0) if from_zero else target
