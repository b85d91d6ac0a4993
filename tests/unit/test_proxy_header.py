# SPDX-License-Identifier: Apache-2.0
"""cext/socket/proxy_header.c: the PROXY protocol's header, read back by its specification."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire import Key
from tests.inner import ffi, lib
from tests.unit.records import c_key

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
Ends = tuple[str, int, str, int]


def header(ends: Ends, version: int) -> bytes:
    raw = ffi.new("uint8_t[108]")
    return bytes(ffi.buffer(raw, lib.roost_testing_proxy_header(c_key(Key.of(*ends)), version, raw)))


ports = st.integers(1, 65535)
ipv6 = st.ip_addresses(v=6).filter(lambda ip: ipaddress.IPv6Address(ip).ipv4_mapped is None)
ends = st.one_of(
    *(st.tuples(ip.map(str), ports, ip.map(str), ports) for ip in (st.ip_addresses(v=4), ipv6)),
)


@given(ends)
def test_version_1_is_one_line_of_text(ends: Ends) -> None:
    line = header(ends, 1)
    assert line.endswith(b"\r\n")
    proxy, family, client, local, client_port, local_port = line[:-2].decode("ascii").split(" ")
    assert (proxy, family) == ("PROXY", "TCP6" if ":" in ends[0] else "TCP4")
    assert ipaddress.ip_address(client) == ipaddress.ip_address(ends[0])
    assert ipaddress.ip_address(local) == ipaddress.ip_address(ends[2])
    assert (int(client_port), int(local_port)) == (ends[1], ends[3])


@given(ends)
def test_version_2_is_a_block_of_known_length(ends: Ends) -> None:
    block = header(ends, 2)
    assert block[:12] == SIGNATURE
    command, family, length = struct.unpack("!BBH", block[12:16])
    assert (command, family, length) == (0x21, 0x21 if ":" in ends[0] else 0x11, len(block) - 16)
    size = 16 if ":" in ends[0] else 4
    client, local, client_port, local_port = struct.unpack(f"!{size}s{size}sHH", block[16:])
    assert (ipaddress.ip_address(client), ipaddress.ip_address(local)) == tuple(map(ipaddress.ip_address, ends[::2]))
    assert (client_port, local_port) == ends[1::2]


@pytest.mark.parametrize("version", [1, 2])
def test_the_longest_fits(version: int) -> None:
    address = ":".join(["ffff"] * 8)
    assert len(header((address, 65535, address, 65535), version)) <= 108
