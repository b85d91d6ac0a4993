# SPDX-License-Identifier: Apache-2.0
"""Connections of one kind, listed and in pages: what the engine leaves out is what a look at each would leave out."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from appliance.lab.processes import python_environment
from appliance.wire import Event, Sought, pack_address
from control.core.states import AWAKE, State
from tests.bench.simulated import nursery
from tests.lab.engine_lab import EngineLab, Pair

STATES = (State.ACTIVE, State.STANDBY, State.IDLE, State.SLEEP)
SOUGHT = [
    Sought(states=(state,)) for state in STATES
] + [
    Sought(states=(State.ACTIVE, State.IDLE)),
    Sought(network=pack_address("10.0.0.0"), bits=96 + 8),
    Sought(network=pack_address("0.0.0.0"), bits=96),
    Sought(network=pack_address("fd00::"), bits=16),
    Sought(quiet_s=3),
    Sought(quiet_s=3, states=(State.IDLE,)),
    Sought(silence_s=3),
    Sought(quiet_s=3600),
    Sought(service=7),
    Sought(classes=frozenset()),
]  # fmt: skip


def fits(event: Event, sought: Sought) -> bool:
    client = int.from_bytes(event.record.key.client, "big")
    network = int.from_bytes(sought.network, "big")
    return (
        event.to_state in (sought.states or STATES)
        and sought.service in (0, event.record.service)
        and (sought.classes is None or event.record.service in sought.classes)  # whose default each has
        and (client ^ network) >> (128 - sought.bits) == 0
        and (event.to_state == State.SLEEP or event.gap_ms >= sought.quiet_s * 1000)
        and (not sought.numbers or event.number in sought.numbers)
        and (not sought.silence_s or (event.to_state not in AWAKE and event.record.silence_s >= sought.silence_s))
    )


def keys(events: Any) -> set[bytes]:
    return {event.record.key_raw for event in events}


def in_pages(box: EngineLab, sought: Sought, limit: int) -> list[list[bytes]]:
    pages, after = [], 0
    for _ in range(10_000):
        events, after = box.engine.page(replace(sought, after=after), limit)
        pages.append([event.record.key_raw for event in events])
        if not after:
            return pages
    raise AssertionError("there is no last page")


def test_many_are_found_in_the_order_in_which_they_are_asked_for(box: EngineLab) -> None:
    pairs = [box.connect(family) for family in (4, 6)]
    box.to(pairs[1], State.IDLE)
    strange = replace(pairs[0].key, client_port=1).pack()
    asked = [pairs[0].key.pack(), strange, pairs[1].key.pack()] * 100  # more than the lock is held for at once
    found = box.engine.find_many(asked)
    assert [event and (event.record.key_raw, event.to_state) for event in found] == [
        (asked[0], State.ACTIVE), None, (asked[2], State.IDLE)] * 100  # fmt: skip
    assert list(box.engine.find_many([strange])) == [None]
    assert list(box.engine.find_many([])) == []


def test_what_is_sought_is_listed_and_nothing_else(box: EngineLab) -> None:
    def connected(state: State, family: int) -> Pair:
        pair = box.connect(family)
        if state is not State.ACTIVE:
            box.to(pair, state)
        return pair

    for state, family in itertools.product(STATES, (4, 6)):
        connected(state, family)
    time.sleep(4.1)  # they have been quiet for longer than is asked for, the next ones by far not so long
    late = [connected(state, 4).key.pack() for state in (State.ACTIVE, State.IDLE)]
    everything = list(box.engine.list())
    assert len(everything) == len(keys(everything)) == 10
    some = 0
    service = everything[0].record.service
    numbers = [event.number for event in everything if event.number]
    assert len(numbers) == 8, "those in SLEEP have none here"
    some_numbers = frozenset({*numbers[::2], 2**63})
    for sought in [*SOUGHT, Sought(service=service), Sought(classes=frozenset({service, 4095})),
                   Sought(numbers=some_numbers), Sought(numbers=some_numbers, states=(State.IDLE,)),
                   Sought(numbers=frozenset({2**63}))]:  # fmt: skip
        wanted = keys(event for event in everything if fits(event, sought))
        some += 0 < len(wanted) < 10
        assert keys(box.engine.list(sought)) == wanted, sought
        for limit in (1, 2, 100):
            pages = in_pages(box, sought, limit)
            assert Counter(itertools.chain(*pages)) == Counter(wanted), sought
            assert max(map(len, pages)) <= limit, "no two of so few lie in one place"
    assert some >= 8, "what is sought tells them apart"
    for sought in (Sought(quiet_s=3), Sought(silence_s=3)):
        assert not keys(box.engine.list(sought)).intersection(late)


def test_pages_of_many_that_sleep_have_each_of_them_once() -> None:
    """As an operator asks for them; a page of few that lie far apart ends early, and says where it goes on."""
    clients = 20_000
    with nursery(clients, {"probe_interval": "never"}, {"addresses": 64, "base": "10.127.255.224"}) as born:
        born.connect(range(clients))
        seen: Counter[str] = Counter()
        after: str | None = "first"
        while after:
            page = born.daemon.get("/v1/connections", after=after, limit=1000)
            seen.update(row["client"] for row in page["connections"])
            assert len(page["connections"]) <= 1000
            after = page["next"]
        assert (len(seen), max(seen.values())) == (clients, 1)

        half = list(born.daemon.connections(network="10.127.255.0/24"))
        assert len(half) == sum(client.startswith("10.127.255.") for client in seen) > clients / 4
        assert born.daemon.connections(state="ACTIVE") == []
        argv = [sys.executable, "-m", "control.cli.main", "connections", "--network", "10.127.255.224/32", "--after",
                "first", "--limit", "7", "--json", "--socket", str(born.daemon.control_socket)]  # fmt: skip
        done = subprocess.run(argv, env=python_environment(), capture_output=True, text=True, check=True)
        told = json.loads(done.stdout)
        assert {row["client"].rpartition(":")[0] for row in told["connections"]} == {"10.127.255.224"}
        assert (len(told["connections"]), bool(told["next"])) == (7, True)


@pytest.mark.parametrize("after", ["0", "99999999999999999999", "-5", str(2**62)])
def test_a_place_that_no_page_ended_with_ends_in_good_order(box: EngineLab, after: str) -> None:
    pair = box.connect()
    events, left = box.engine.page(Sought(after=min(max(int(after), 0), 2**62)), 10)
    assert (len(events), left) in ((1, 0), (0, 0))
    box.exchange(pair)
