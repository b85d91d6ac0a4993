# SPDX-License-Identifier: Apache-2.0
"""Texts of IPv4 addresses: the system's reading of them is as strict as Python's."""

from __future__ import annotations

import ipaddress
import random

import pytest

from appliance.wire import pack_address, packed_ipv4

OCTETS = ["0", "1", "9", "10", "99", "199", "255", "256", "300", "00", "007", "0x1", "", "-1", "+1", "1 "]
ODD = [
    "",
    "1.2.3",
    "1.2.3.4.5",
    "1",
    " 1.2.3.4",
    "1.2.3.4\n",
    "1.2.3.4\0",
    "١.2.3.4",
    "1.2.3.4%eth0",
    "::1",
    "localhost",
]


def by_python(text: str) -> bytes | None:
    try:
        return ipaddress.IPv4Address(text).packed
    except ValueError:
        return None


def test_the_same_texts_are_addresses() -> None:
    chance = random.Random(1)
    texts = [".".join(chance.choice(OCTETS) for _ in range(4)) for _ in range(20_000)] + ODD
    assert [text for text in texts if packed_ipv4(text) != by_python(text)] == []


def test_an_address_has_one_text() -> None:
    """Whoever takes the text that came for the address's own may do so."""
    chance = random.Random(2)
    for _ in range(1000):
        packed = chance.randbytes(4)
        assert packed_ipv4(str(ipaddress.IPv4Address(packed))) == packed
        assert pack_address(str(ipaddress.IPv4Address(packed))) == bytes(10) + b"\xff\xff" + packed


@pytest.mark.parametrize("text", ODD[:-2])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        pack_address(text)
