# SPDX-License-Identifier: Apache-2.0
"""The step `wait` of [absent]: a server waits until its client connects."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from errno import ECONNRESET, ENOENT, ETIMEDOUT
from typing import Any

import pytest

from appliance.frontends.target import Address
from appliance.wire import Event, EventType, Key
from control.config import Absent as Policy
from control.reach.absent import Absent
from control.reach.arrivals import Arrivals
from control.reach.attach_request import AttachRequest
from tests.unit.fake_engine import event, key

CLIENT = key(7)
TARGET = Address("192.0.0.7", CLIENT.client_port)
MEANWHILE_S = 0.03


def found(of: Key, candidate: bool = False) -> Event:
    """candidate: the filter says that it may be asleep without a slot."""
    return event(EventType.TRANSITION, of, count=int(candidate))


class Clients:
    """lists: what is found, each time that the server asks; the last one, from then on. outcomes: of a link to each."""

    def __init__(self, lists: list[list[Event]], outcomes: dict[Key, int]) -> None:
        self.lists = lists
        self.outcomes = outcomes
        self.asked = 0
        self.tried: list[Key] = []

    async def wanted(self, _target: Address) -> list[Event]:
        self.asked += 1
        events = self.lists[min(self.asked, len(self.lists)) - 1]
        if not events:
            raise OSError(ENOENT, "no such connection")
        return events

    async def link_when_free(self, of: Key, *_: object) -> int:
        self.tried.append(of)
        return self.outcomes[of]

    def of_address(self, _host: str) -> set[str]:
        return {"wait"}


@pytest.fixture
def server() -> Iterator[AttachRequest]:
    ours, its = socket.socketpair()
    with ours, its:
        yield AttachRequest(ours, b"", b"", 1.0)


def reached(clients: Clients, server: AttachRequest, meanwhile: Callable[[Arrivals], None] = lambda _: None,
            wait_s: float = 30.0) -> int:  # fmt: skip
    """What the server is told. meanwhile: happens when it has asked once, and waits."""
    fake: Any = clients

    async def work() -> int:
        arrivals = Arrivals()
        arrivals.begin()
        absent = Absent(Policy(steps=("wait",), wait=wait_s), fake, fake, fake, fake, arrivals, fake, fake, None)
        reaching = asyncio.ensure_future(absent.reach(TARGET, ENOENT, server))
        await asyncio.sleep(MEANWHILE_S)
        meanwhile(arrivals)
        return await reaching

    return asyncio.run(work())


def connects(arrivals: Arrivals) -> None:
    arrivals.happened(("address", CLIENT.client, CLIENT.client_port.to_bytes(2, "big")), CLIENT.pack())


def test_a_server_that_waits_gets_its_client_when_it_connects(server: AttachRequest) -> None:
    clients = Clients([[], [found(CLIENT)]], {CLIENT: 0})
    assert reached(clients, server, connects) == 0
    assert (clients.asked, clients.tried, server.step) == (2, [CLIENT], "wait")


def test_what_the_filter_took_for_the_client_is_tried_once_and_then_waited_for(server: AttachRequest) -> None:
    wrong = found(key(7, port=CLIENT.local_port), candidate=True)
    clients = Clients([[wrong]], {wrong.record.key: ENOENT})
    assert reached(clients, server, wait_s=2 * MEANWHILE_S) == ETIMEDOUT
    assert (clients.asked, clients.tried) == (1, [wrong.record.key]), "nothing has changed meanwhile"


@pytest.mark.parametrize("candidate", [False, True], ids=["known", "candidate"])
def test_of_two_connections_the_one_that_has_ended_is_passed_over(server: AttachRequest, candidate: bool) -> None:
    other = key(8)
    clients = Clients([[found(CLIENT), found(other, candidate)]], {CLIENT: ENOENT, other: 0})
    assert reached(clients, server) == 0
    assert clients.tried == [CLIENT, other]


def test_where_the_one_that_was_found_has_ended_another_one_is_looked_for_at_once(server: AttachRequest) -> None:
    other = key(8)
    clients = Clients([[found(CLIENT)], [found(other)]], {CLIENT: ENOENT, other: 0})
    assert reached(clients, server) == 0
    assert (clients.asked, clients.tried) == (2, [CLIENT, other])


def test_what_else_is_wrong_with_the_client_is_the_answer(server: AttachRequest) -> None:
    clients = Clients([[found(CLIENT), found(key(8))]], {CLIENT: ECONNRESET})
    assert reached(clients, server) == ECONNRESET


def test_one_that_is_found_and_cannot_be_linked_is_tried_no_longer_than_a_server_waits(server: AttachRequest) -> None:
    clients = Clients([[found(CLIENT)]], {CLIENT: ENOENT})
    assert reached(clients, server, wait_s=2 * MEANWHILE_S) == ETIMEDOUT
