# SPDX-License-Identifier: Apache-2.0
"""cext/table/hosts.c: how many connections an address has, and which is the only one, against a dict."""

from __future__ import annotations

import socket
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire import Key, pack_address
from tests.inner import ffi, lib
from tests.unit.records import c_key


class Hosts:
    def __init__(self) -> None:
        self.raw = ffi.gc(lib.roost_testing_hosts(), lib.roost_testing_hosts_free)

    def add(self, key: Key) -> None:
        lib.roost_testing_hosts_add(self.raw, c_key(key))

    def remove(self, key: Key) -> None:
        lib.roost_testing_hosts_remove(self.raw, c_key(key))

    def find(self, address: bytes) -> tuple[int, int, int]:
        """Number of connections, client port and local port of the only one (0 when it is not known)."""
        ports = ffi.new("uint16_t[2]")
        count = lib.roost_testing_hosts_find(self.raw, address, ports)
        return count, socket.ntohs(ports[0]), socket.ntohs(ports[1])


def key(host: int, port: int, local_port: int = 8000) -> Key:
    address = f"192.0.2.{host}" if host < 128 else f"2001:db8::{host:x}"
    return Key.of(address, 1000 + port, "198.51.100.1" if host < 128 else "2001:db8:1::1", local_port)


steps = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 3), st.sampled_from([8000, 9000])), max_size=200)


@given(steps)
def test_it_counts_as_a_dict_does(steps: list[tuple[int, int, int]]) -> None:
    hosts, there = Hosts(), defaultdict[bytes, list[Key]](list)
    for host, port, local in steps:
        one = key(host, port, local)
        mine = there[one.client]
        if one in mine:
            hosts.remove(one)
            mine.remove(one)
        else:
            hosts.add(one)
            mine.append(one)
    for address, keys in there.items():
        count, client_port, local_port = hosts.find(address)
        assert count == len(keys)
        if count == 1 and client_port:
            assert (client_port, local_port) == (keys[0].client_port, keys[0].local_port)


def test_the_only_one_is_known_when_it_is_the_last_that_came() -> None:
    hosts = Hosts()
    hosts.add(key(1, 1))
    assert hosts.find(pack_address("192.0.2.1")) == (1, 1001, 8000)
    hosts.add(key(1, 2, 9000))
    hosts.remove(key(1, 1))
    assert hosts.find(pack_address("192.0.2.1")) == (1, 1002, 9000)
    hosts.add(key(1, 3))
    hosts.remove(key(1, 3))
    assert hosts.find(pack_address("192.0.2.1")) == (1, 0, 0), "it must be looked for"


@pytest.mark.parametrize("number", [5000])
def test_it_grows_and_shrinks(number: int) -> None:
    hosts = Hosts()
    keys = [Key.of(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 5, "198.51.100.1", 8000) for n in range(number)]
    for one in keys:
        hosts.add(one)
    for one in keys[::2]:
        hosts.remove(one)
    assert [hosts.find(one.client)[0] for one in keys] == [n % 2 for n in range(number)]
    for one in keys[1::2]:
        hosts.remove(one)
    assert not any(hosts.find(one.client)[0] for one in keys)
