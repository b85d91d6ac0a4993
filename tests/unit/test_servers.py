# SPDX-License-Identifier: Apache-2.0
"""cext/conn/servers.c: which server a link goes to, which are down, and what a changed configuration leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.wire import PLACES, SERVERS_MAX, Balance, ServerAddress, pack_address, unpack_address
from tests.inner import ffi, lib

FOUR = [("10.3.0.2", 8000), ("10.3.0.3", 8000), ("fd00:3::2", 8000), ("10.3.0.2", 8001)]
CLIENTS = [f"198.51.{n >> 8}.{n & 255}" for n in range(2000)] + [f"2001:db8::{n:x}" for n in range(2000)]


@dataclass(frozen=True)
class Link:
    place: int
    server: ServerAddress


class Pool:
    def __init__(
        self, servers: Sequence[ServerAddress], balance: Balance = Balance.LEAST_CONNECTIONS, fails: int = 0
    ) -> None:
        self.raw = ffi.gc(lib.roost_testing_pool(), lib.roost_testing_pool_free)
        self.balance, self.fails = balance, fails
        assert self.set(servers)

    def set(self, servers: Sequence[ServerAddress]) -> bool:
        service = ffi.new("struct roost_service *")
        service.servers, service.balance, service.max_fails = len(servers), self.balance, self.fails
        for place, server in zip(service.server, servers, strict=False):
            put(place, server)
        return bool(lib.roost_testing_pool_set(self.raw, service) == 0)

    def begin(self, client: str = "192.0.2.1", tried: int = 0) -> Link | None:
        chosen = ffi.new("struct roost_server *")
        place = lib.roost_testing_pool_begin(self.raw, pack_address(client), tried, chosen)
        return Link(place, (unpack_address(bytes(chosen.address)), chosen.port)) if place >= 0 else None

    def choose(self, client: str, tried: int = 0) -> ServerAddress:
        """Where a link of this client would go."""
        link = self.begin(client, tried)
        assert link
        self.end(link)
        return link.server

    def end(self, link: Link, linked: int = -1) -> bool:
        return bool(lib.roost_testing_pool_end(self.raw, link.place, linked))

    def mark(self, server: ServerAddress, up: bool) -> None:
        raw = ffi.new("struct roost_server *")
        put(raw, server)
        lib.roost_testing_pool_mark(self.raw, raw, up)

    def servers(self) -> dict[ServerAddress, tuple[bool, bool, int]]:
        """Of each: is it up, does it leave, how many links."""
        raw = ffi.new("struct roost_server_status[]", PLACES)
        count = lib.roost_testing_pool_read(self.raw, raw)
        return {
            (unpack_address(bytes(s.server.address)), s.server.port): (bool(s.up), bool(s.leaving), s.links)
            for s in raw[0:count]
        }


def put(raw: Any, server: ServerAddress) -> None:
    ffi.memmove(raw.address, pack_address(server[0]), 16)
    raw.port = server[1]


def test_links_are_shared_out_evenly_and_follow_those_that_end() -> None:
    pool = Pool(FOUR)
    links = [pool.begin() for _ in range(40)]
    assert Counter(link.server for link in links if link) == dict.fromkeys(FOUR, 10)
    for link in links:
        if link and link.server == FOUR[2]:
            pool.end(link)
    again = [pool.begin() for _ in range(10)]
    assert [link.server for link in again if link] == [FOUR[2]] * 10


def test_servers_with_as_many_links_take_turns() -> None:
    pool = Pool(FOUR)
    first, second = ([pool.choose("192.0.2.1") for _ in FOUR] for _ in range(2))
    assert first == second
    assert sorted(first) == sorted(FOUR)


def test_a_server_that_is_down_or_was_tried_is_not_chosen() -> None:
    for balance in Balance:
        pool = Pool(FOUR, balance)
        pool.mark(FOUR[0], up=False)
        order = []
        tried = 0
        while (link := pool.begin("192.0.2.1", tried)) is not None:
            tried |= 1 << link.place
            order.append(link.server)
        assert sorted(order) == sorted(FOUR[1:])
        for server in FOUR:
            pool.mark(server, up=False)
        assert pool.begin() is None
        pool.mark(FOUR[1], up=True)
        assert pool.choose("192.0.2.9") == FOUR[1]


def test_a_client_address_has_its_server_whatever_happens_to_others() -> None:
    """Rendezvous hashing: a server that goes down, leaves or comes moves no client but those it had or gets."""
    pool = Pool(FOUR, Balance.SOURCE_HASH)
    before = {client: pool.choose(client) for client in CLIENTS}
    shares = Counter(before.values())
    assert all(850 < shares[server] < 1150 for server in FOUR), shares
    pool.mark(FOUR[1], up=False)
    during = {client: pool.choose(client) for client in CLIENTS}
    assert all(during[c] == before[c] for c in CLIENTS if before[c] != FOUR[1])
    moved = Counter(during[c] for c in CLIENTS if before[c] == FOUR[1])
    assert len(moved) == 3, "its clients are shared out among all that are left"
    pool.mark(FOUR[1], up=True)
    assert {client: pool.choose(client) for client in CLIENTS} == before
    assert pool.set([*reversed(FOUR), ("10.3.0.9", 1)])
    after = {client: pool.choose(client) for client in CLIENTS}
    assert all(after[c] == before[c] or after[c] == ("10.3.0.9", 1) for c in CLIENTS)
    other = Pool([*FOUR[2:], *FOUR[:2]], Balance.SOURCE_HASH)  # after a restart, and in another order
    assert {client: other.choose(client) for client in CLIENTS} == before


def test_so_many_failed_links_in_a_row_take_a_server_down_once() -> None:
    pool = Pool(FOUR[:1], fails=3)

    def fail() -> bool:
        link = pool.begin()
        assert link
        return pool.end(link, 0)

    assert [fail(), fail()] == [False, False]
    link = pool.begin()
    assert link
    pool.end(link, 1)
    assert [fail(), fail(), fail()] == [False, False, True], "a link that is made begins the count anew"
    assert pool.begin() is None
    assert not pool.end(link, 0)
    pool.mark(FOUR[0], up=True)
    assert [fail(), fail(), fail()] == [False, False, True]


def test_failures_never_take_a_server_down_where_they_are_not_counted() -> None:
    pool = Pool(FOUR[:1])
    for _ in range(500):
        link = pool.begin()
        assert link
        assert not pool.end(link, 0)


def test_a_server_that_leaves_the_configuration_keeps_its_links_until_they_end() -> None:
    pool = Pool(FOUR[:2])
    links = [link for _ in range(4) if (link := pool.begin())]
    assert pool.set(FOUR[1:3])
    assert pool.servers() == {FOUR[0]: (True, True, 2), FOUR[1]: (True, False, 2), FOUR[2]: (True, False, 0)}
    assert pool.choose("192.0.2.1") == FOUR[2]
    for link in links:
        pool.end(link)
    assert pool.servers() == {FOUR[1]: (True, False, 0), FOUR[2]: (True, False, 0)}


def test_a_server_that_comes_back_before_its_links_have_ended_is_the_same() -> None:
    pool = Pool(FOUR[:2])
    pool.mark(FOUR[0], up=False)
    pool.mark(FOUR[1], up=False)
    pool.mark(FOUR[0], up=True)
    assert pool.begin()
    pool.mark(FOUR[0], up=False)
    assert pool.set(FOUR[1:2])
    assert pool.set(FOUR[:2])
    assert pool.servers() == {FOUR[0]: (False, False, 1), FOUR[1]: (False, False, 0)}


def test_a_configuration_for_which_there_is_no_place_changes_nothing() -> None:
    def many(first: int) -> list[ServerAddress]:
        return [("10.3.0.2", first + n) for n in range(SERVERS_MAX)]

    pool = Pool(many(1))
    for start in (1000, 2000):
        for _ in range(SERVERS_MAX):
            assert pool.begin()
        before = pool.servers()
        assert pool.set(many(start)) == (start == 1000)
    assert pool.servers() == before


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "fail", "set", "down", "up"]), st.integers(0, 15))))
def test_links_are_counted_as_a_dict_counts_them(steps: list[tuple[str, int]]) -> None:
    pool, configured = Pool(FOUR), set(FOUR)
    links: list[Link] = []
    for step, number in steps:
        if step == "begin" and (link := pool.begin(tried=0)):
            links.append(link)
        elif step in ("end", "fail") and links:
            pool.end(links.pop(number % len(links)), -1 if step == "end" else 0)
        elif step == "set":
            configured = {server for bit, server in enumerate(FOUR) if number >> bit & 1}
            assert pool.set(sorted(configured))
        elif step in ("down", "up") and FOUR[number % 4] in pool.servers():
            pool.mark(FOUR[number % 4], up=step == "up")
        count = Counter(link.server for link in links)
        assert {server: links for server, (_, _, links) in pool.servers().items()} == {
            server: count[server] for server in configured | set(count)
        }


@pytest.mark.parametrize("balance", Balance)
def test_a_pool_without_servers_has_nobody(balance: Balance) -> None:
    assert Pool([], balance).begin() is None
