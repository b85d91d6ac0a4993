# SPDX-License-Identifier: Apache-2.0
"""What values of the configuration are written as: durations, addresses and ports, networks, hashes of passwords.

Each type refuses what is none of its kind with a ValueError that says how it is written.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator

from appliance.frontends.passwords import PasswordHash


@dataclass(frozen=True, slots=True)
class ToEngine:
    """Stands at a key of a service or its policy: the field of ServiceSpec that has its value. That of `..._ms` counts
    milliseconds; of words it has the place of the one that is chosen."""

    field: str


_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_PARTS = re.compile(f"(?:{_PART.pattern})+")
_MAX_S = (2**32 - 1) / 1000  # the engine counts in milliseconds, 32 bits wide


def parse_duration(value: object) -> float:
    """Seconds out of ``"90s"``, ``"1h30m"``, ``"250ms"``, ``2.5`` (seconds), ``0`` or ``"never"`` (both 0.0)."""
    seconds: float
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('a duration is seconds, or text such as "90s", "5m", "1h30m", "never"')
    if isinstance(value, str):
        text = value.strip()
        if text == "never":
            return 0.0
        if not text:
            raise ValueError('an empty text is no duration; write "never" for none')
        if re.fullmatch(r"\d+(\.\d+)?", text):
            seconds = float(text)
        elif _PARTS.fullmatch(text):
            seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(text))
        else:
            raise ValueError(f'"{value}" is no duration; write "90s", "5m", "1h30m", 2.5 (seconds) or "never"')
    else:
        seconds = float(value) if abs(value) <= _MAX_S else -1.0  # a whole number may be too large for a float
    if not 0 <= seconds <= _MAX_S:
        raise ValueError(f"a duration lies between 0 and {_MAX_S / 86400:.0f} days")
    if seconds and not round(seconds * 1000):
        raise ValueError("a duration is counted in milliseconds, of which this one would be 0, which is never")
    return seconds


def whole_seconds(value: object) -> float:
    """A duration that the engine keeps in 16 bits, in seconds; raises ValueError."""
    seconds = parse_duration(value)
    if seconds != int(seconds) or seconds > 65535:
        raise ValueError("this duration is counted in whole seconds, at most 65535")
    return seconds


Duration = Annotated[float, BeforeValidator(parse_duration, json_schema_input_type=float | str)]
WholeSeconds = Annotated[float, BeforeValidator(whole_seconds, json_schema_input_type=float | str)]


def parse_endpoint(text: str) -> tuple[str, int]:
    """(address, port) out of ``192.0.2.1:80`` or ``[2001:db8::1]:80``; names are refused."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ValueError
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
        if bracketed != (address.version == 6):
            raise ValueError
    except ValueError:
        raise ValueError(f'"{text}" is no address and port; write "192.0.2.1:80" or "[2001:db8::1]:80"') from None
    return str(address), int(port)


_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*(?![0-9]+\.?$){_LABEL}\.?")
"""RFC 1123 section 2.1; the last label is no number, or it would be an address that is written wrongly."""


def parse_server(text: str) -> tuple[str, int]:
    """(address or name, port) out of what `parse_endpoint` reads, or of ``db.example:5432``."""
    host, _, port = text.rpartition(":")
    if _NAME.fullmatch(host) and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535:
        return host, int(port)
    try:
        return parse_endpoint(text)
    except ValueError:
        raise ValueError(
            f'"{text}" is no server; write "192.0.2.1:80", "[2001:db8::1]:80" or "name.example:80"'
        ) from None


def is_name(host: str) -> bool:
    """Whether this is a name, and no address."""
    return _NAME.fullmatch(host) is not None


def server_text(value: object) -> str:
    """The text itself, when `parse_server` can read it; raises ValueError."""
    if not isinstance(value, str):
        raise ValueError('a server is text: "192.0.2.1:80", "[2001:db8::1]:80" or "name.example:80"')
    parse_server(value)
    return value


ServerText = Annotated[str, BeforeValidator(server_text)]


def endpoint_text(value: object) -> str:
    """The text itself, when `parse_endpoint` can read it; raises ValueError."""
    if not isinstance(value, str):
        raise ValueError('an address and port is text: "192.0.2.1:80" or "[2001:db8::1]:80"')
    parse_endpoint(value)
    return value


Endpoint = Annotated[str, BeforeValidator(endpoint_text)]


def parse_ports(text: str) -> tuple[int, int]:
    """(first, last) out of ``10240-32767``."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65535):
        raise ValueError(f'"{text}" is no range of ports; write "10240-32767"')
    return int(first), int(last)


def ports_text(value: object) -> str:
    """``8000-8099``; of one port (443, or ``443``) the range with it alone. Raises ValueError."""
    text = f"{value}-{value}" if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else value
    try:
        parse_ports(str(text))
    except ValueError:
        raise ValueError(f'"{value}" is no port and no range of ports; write 443 or "10240-32767"') from None
    return str(text)


def _readable_by(parse: Callable[[str], object]) -> AfterValidator:
    def check(value: str) -> str:
        parse(value)
        return value

    return AfterValidator(check)


PortRange = Annotated[str, _readable_by(parse_ports)]
Ports = Annotated[str, BeforeValidator(ports_text, json_schema_input_type=int | str)]
PasswordText = Annotated[str, _readable_by(PasswordHash.parse)]


WORDS_MAX: Final = 32


def words(value: object) -> object:
    """Of text the words between commas, `none`: no word; of a list each of its words once; of anything else itself.
    What is wrong is told word by word, so that a long list is refused as a whole."""
    if isinstance(value, str):
        value = [] if value.strip() in ("", "none") else [word.strip() for word in value.split(",")]
    if isinstance(value, list):
        value = list(dict.fromkeys(value)) if all(isinstance(word, str) for word in value) else value
        if len(value) > WORDS_MAX:
            raise ValueError(f"has {len(value):,} words, and there are fewer")
    return value


def _address(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError('an address is text: "192.0.2.1" or "2001:db8::1"')
    try:
        written = ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(f'"{value}" is no address; write "192.0.2.1" or "2001:db8::1"') from None
    address = getattr(written, "ipv4_mapped", None) or written
    if address.is_unspecified or address.is_multicast or getattr(address, "scope_id", None):
        raise ValueError(f'"{value}" is not the address of one host')
    return str(address)


Address = Annotated[str, BeforeValidator(_address)]

WHOSE: Final = ("client", "appliance")


def _source(value: object) -> str:
    if value in WHOSE:
        return str(value)
    try:
        return _address(value)
    except ValueError:
        raise ValueError(f'"{value}" is neither {", ".join(WHOSE)} nor an address') from None


Source = Annotated[str, BeforeValidator(_source)]


def parse_network(text: str, strict: bool = True) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """As ipaddress has it, and without a zone, which may be any text (`fe80::1%eth0`). Raises ValueError."""
    if "%" in text:
        raise ValueError(f"{text!r} has a zone, which a network has not")
    return ipaddress.ip_network(text, strict)


def _network(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError('a network is text: "192.0.2.0/24" or "2001:db8::/32"')
    try:
        network = parse_network(value, strict=False)
    except ValueError:
        raise ValueError(f'"{value}" is no network; write "192.0.2.0/24" or "2001:db8::/32"') from None
    address, slash, _ = value.partition("/")
    if slash and ipaddress.ip_address(address) != network.network_address:
        one = ipaddress.ip_network(address)
        raise ValueError(f'"{value}" has host bits set: "{network}" is the network, and "{one}" that address alone')
    return str(network)


AddressRange = Annotated[str, BeforeValidator(_network)]
