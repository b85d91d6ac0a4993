# SPDX-License-Identifier: Apache-2.0
"""A table that grows while it is used: no connection in it is lost, and no end notices."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from time import monotonic, sleep
from typing import Any

import pytest

from appliance.lab import Lab, wait_until
from appliance.lab.simulator import ClientState, Simulator, Unfinished
from control.core.states import State
from tests.lab.echo import Echo
from tests.lab.engine_lab import EngineLab
from tests.lab.test_persistent import PERSISTENT, fall_asleep

PORT = 8000
CLIENTS = 60_000
QUICK = {"active_quiet": "200ms", "standby_quiet": "300ms"}
STAY_ASLEEP = 26  # pairs: 52 of 56 slots, with which a table begins to grow whenever it is looked at


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Grown:
    """A daemon whose tables begin small, and simulated clients that are born asleep."""

    def __init__(self, stack: ExitStack, family: int, ipv4: int = 2000, idle: int = 5000, grow: bool = True,
                 policy: dict[str, str] | None = None) -> None:  # fmt: skip
        self.lab = stack.enter_context(Lab(clients=10, nat=False))
        self.simulator: Simulator = stack.enter_context(self.lab.simulator(CLIENTS, PORT, family=family))
        self.echo = stack.enter_context(Echo(self.lab.space("lan"), self.lab.address("lan", "eth0", family), PORT))
        table = {"ipv4": ipv4, "ipv6": 2000, "idle": idle, "grow": grow}
        config: dict[str, Any] = self.lab.config(port=PORT, service={"born": "always", **(policy or {})}, table=table)
        config["network"] = {"interfaces": ["wan0", self.simulator.box_interface]}
        self.daemon = self.lab.daemon(config)

    def has_grown(self, before: dict[str, int]) -> bool:
        """All slots have moved."""
        after = self.counters()
        assert not after["tables_not_grown"], after
        return after["tables_grown"] > before["tables_grown"]

    def grows(self, before: dict[str, int]) -> bool:
        """Whether the larger table comes into use, within 10 s if it is due. Slots may still be moving then."""
        deadline = monotonic() + 10
        while monotonic() < deadline:
            after = self.counters()
            assert not after["tables_not_grown"], after
            if any(after[name] > before[name] for name in ("ipv4_slots", "ipv6_slots")):
                return True
            if all(after[f"table_ipv{v}"] * 100 < after[f"ipv{v}_slots"] * 92 for v in (4, 6)):
                return False
            sleep(0.05)
        raise TimeoutError(f"the table is full and does not grow: {after}")

    def fill(self, family: int, joined: int, percent: int) -> tuple[dict[str, int], range]:
        """Lets clients join that are behind the first `joined`, until so many of the slots are taken: the counters from
        before, and those clients."""
        before = self.counters()
        room = max(100, before[f"ipv{family}_slots"] * percent // 100 - before[f"table_ipv{family}"])
        some = range(joined, min(CLIENTS, joined + room))
        assert self.simulator.connect(some).done == len(some)
        return before, some

    def speak(self, clients: Sequence[int], count: int) -> int:
        """Each says so many bytes, and hears them: the number of those that did."""
        try:
            return self.simulator.speak(clients, count, count).done
        except Unfinished as error:
            error.add_note(f"the daemon's counters: {self.counters()}")
            raise

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.daemon.status()["counters"]
        return counters


@pytest.mark.alone("it waits 10 s for what a table of that size needs of a processor")
@pytest.mark.parametrize("family", [4, 6])
def test_a_table_grows_thirtyfold_under_keepalives_and_nobody_is_lost(stack: ExitStack, family: int) -> None:
    grown = Grown(stack, family)
    simulator, source = grown.simulator, random.Random(family)
    joined = 0
    while joined < CLIENTS:
        before, some = grown.fill(family, joined, 93)  # it grows at 92; the fuller, the more find both buckets full
        joined = some.stop
        some_of_them = source.sample(range(joined), min(joined, 3000))
        asked = simulator.keep_alive(
            some_of_them, in_flight=64, rto_s=5
        )  # nothing is lost but what the appliance takes
        assert asked.retransmitted == 0, "a moving slot holds no packet of a client that only keeps alive"
        if joined < CLIENTS:
            wait_until(partial(grown.has_grown, before), 10, "the table has grown")
    everybody = simulator.keep_alive(range(CLIENTS))
    assert everybody.done == CLIENTS
    after = grown.counters()
    assert after["tables_grown"] >= 5
    assert after[f"table_ipv{family}"] == after["born"] == CLIENTS
    assert grown.speak(source.sample(range(CLIENTS), 500), 200) == 500
    assert simulator.offences() == {}, simulator.first_offences()


@pytest.mark.parametrize("family", [4, 6])
def test_births_that_fill_the_larger_table_before_all_slots_have_moved_hold_up_no_growth(
    stack: ExitStack, family: int
) -> None:
    """Then it has no place for the last ones. Those that slept wake, and their sockets have no TSval to echo before the
    client speaks; the new ones are born when they speak, or find both of their buckets full and are refused."""
    grown = Grown(stack, family)
    simulator, joined, growths = grown.simulator, 0, 0
    while joined < CLIENTS // 3:
        before, some = grown.fill(family, joined, 95)
        joined = some.stop
        if grown.grows(before):
            growths += 1
        else:
            sleep(0.6)  # a birth that was refused has shut the door for half a second: the others have sockets
    wait_until(lambda: grown.counters()["tables_grown"] >= growths, 10, "all slots have moved")
    after = grown.counters()
    assert after[f"table_ipv{family}"] + after["awake"] > joined * 98 // 100
    everybody = range(joined)
    living = simulator.census(everybody)[ClientState.ESTABLISHED]
    assert living > joined * 999 // 1000
    assert grown.speak(everybody, 20) == living
    assert growths >= 5
    assert not simulator.offences(), simulator.first_offences()


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.engine(service=PERSISTENT, ipv4_slots=56, ipv6_slots=56, grow=True)
def test_both_legs_of_pairs_find_each_other_in_the_larger_table(box: EngineLab, family: int) -> None:
    """Some sleep, some are IDLE, and some are awake or waking while the slots move."""
    pairs = [box.connect(family) for _ in range(35)]
    for number, pair in enumerate(pairs):
        fall_asleep(box, pair, State.SLEEP if number % 2 else State.IDLE)
        if number >= STAY_ASLEEP:  # the table is as full as it may be
            pair.server.sendall(b"in between")
    box.wait(lambda: box.stat("tables_grown") == 1, "the table has grown", 5)
    assert box.stat(f"ipv{family}_slots") > 56
    for number, pair in enumerate(pairs):
        if number >= STAY_ASLEEP:
            assert pair.client.recv(10) == b"in between"
        box.exchange(pair)
        box.wait_state(pair, State.ACTIVE)
    assert box.stat(f"table_ipv{family}") == 0


def test_records_of_the_idle_find_room_and_outlast_the_daemon(stack: ExitStack) -> None:
    """A client that was born asleep and has spoken needs a record. There is room for 500 at first."""
    everybody = range(3000)
    grown = Grown(stack, 4, ipv4=2 * len(everybody), idle=500, policy=QUICK)
    simulator = grown.simulator
    assert simulator.connect(everybody).done == len(everybody)
    assert grown.speak(everybody, 20) == len(everybody)
    wait_until(lambda: grown.counters()["idle_records"] == len(everybody), 30, "all are IDLE")
    slots = grown.counters()["idle_slots"]
    assert slots > 2000, "it has grown twice"
    grown.daemon.kill()
    grown.daemon.start()
    after = grown.counters()
    assert (after["idle_records"], after["idle_slots"]) == (len(everybody), slots)
    assert simulator.keep_alive(everybody).done == len(everybody)
    assert grown.speak(everybody, 20) == len(everybody)
    assert simulator.offences() == {}, simulator.first_offences()


def test_clients_that_were_born_asleep_wake_while_records_have_no_room(stack: ExitStack) -> None:
    """The rest slot that a wake needs for a moment is not given to those that freeze."""
    everybody = range(3000)
    grown = Grown(stack, 4, 2 * len(everybody), 640, grow=False, policy=QUICK)
    assert grown.simulator.connect(everybody).done == len(everybody)
    assert grown.speak(everybody[:1000], 20) == 1000
    wait_until(lambda: grown.counters()["table_full"] > 0, 10, "records have no room")
    assert grown.speak(everybody[1000:], 20) == 2000
