# SPDX-License-Identifier: Apache-2.0
"""The control plane on the real engine, with real clients: what it counts, what it writes, what it leaves behind."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from appliance.lab import DaemonHandle, Lab, SwarmGroup, wait_until
from control.core.states import LEGAL, Cause, State
from tests.reboot import age

CLIENTS = 1500
PORT = 8000
QUIET = {"active_quiet": "1s", "standby_quiet": "2s", "idle_quiet": "3s"}

Transition = tuple[int, int, int]


class Box:
    """A lab with a server, a daemon and connected clients."""

    def __init__(
        self, lab: Lab, policy: dict[str, Any], table: dict[str, Any], clients: int = CLIENTS, keepidle_s: int = 5
    ) -> None:
        self.lab, self.clients = lab, clients
        lab.server(PORT)
        self.daemon: DaemonHandle = lab.daemon(lab.config(PORT, policy=policy, table=table))
        self.swarm: SwarmGroup = lab.swarm()
        done = self.swarm.connect(clients, (lab.address("box", "wan0"), PORT), keepidle_s=keepidle_s, keepintvl_s=5)
        assert (done.connected, done.failed) == (clients, Counter())

    def states(self) -> dict[str, int]:
        states: dict[str, int] = self.daemon.status()["connections"]
        return states

    def all_asleep(self) -> None:
        wait_until(lambda: self.states()["SLEEP"] == self.clients, 60, "all clients asleep")
        wait_until(lambda: self.daemon.status()["store"]["pending_history"] == 0, 10, "the history written")

    def database(self) -> sqlite3.Connection:
        return sqlite3.connect(self.lab.workspace / "roost.db")

    def history(self) -> dict[int, list[Transition]]:
        """Transitions of each connection, in order."""
        found: dict[int, list[Transition]] = defaultdict(list)
        with self.database() as database:
            for number, *transition in database.execute('SELECT id, "from", "to", cause FROM history ORDER BY seq'):
                found[number].append((transition[0], transition[1], transition[2]))
        return found

    def nobody_is_lost(self) -> None:
        stats = self.swarm.stats()
        assert (stats.open, stats.dead) == (self.clients, Counter())


@pytest.fixture
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    options: dict[str, Any] = getattr(request, "param", {})
    with Lab(clients=CLIENTS) as lab:
        yield Box(lab, options.get("policy", QUIET), options.get("table", {}), keepidle_s=options.get("keepidle_s", 5))


def chain_of(transitions: list[Transition]) -> None:
    """Each begins where the one before it ended, and is legal."""
    state = int(State.NONE)
    for source, target, cause in transitions:
        assert source == state, transitions
        assert (source, target, cause) in LEGAL, transitions
        state = target


def test_every_transition_of_every_client_is_in_the_history_once(box: Box) -> None:
    box.all_asleep()
    history = box.history()
    status = box.daemon.status()
    assert status["connections"] == {"ACTIVE": 0, "STANDBY": 0, "IDLE": 0, "SLEEP": CLIENTS}
    assert len(history) == CLIENTS
    for transitions in history.values():
        chain_of(transitions)
        assert transitions[0] == (State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT)
        assert transitions[-1][1] == State.SLEEP
    assert sum(map(len, history.values())) == status["control"]["transitions"] == status["store"]["written_history"]
    assert status["control"]["illegal"] == 0
    with box.database() as database:
        assert database.execute("SELECT count(*) FROM sleeping").fetchone() == (CLIENTS,)
    box.nobody_is_lost()


def test_sigterm_under_load_leaves_every_client_asleep_and_served_by_the_next_daemon(box: Box) -> None:
    box.all_asleep()
    with ThreadPoolExecutor(1) as pool:
        speaking = pool.submit(box.swarm.say, CLIENTS, concurrency=32, timeout_s=60)
        time.sleep(0.2)
        assert box.daemon.terminate() == 0
        box.daemon.start()
        said = speaking.result()
    assert (said.answered, said.failed) == (CLIENTS, Counter())
    box.all_asleep()
    for transitions in box.history().values():
        chain_of(transitions)
    box.nobody_is_lost()


@pytest.mark.parametrize(
    "box", [{"table": {"max_awake": 64}, "policy": dict.fromkeys(QUIET, "60s")}], indirect=True, ids=["64 awake"]
)
def test_more_clients_than_may_be_awake_are_served_all_the_same(box: Box) -> None:
    said = box.swarm.say(CLIENTS, concurrency=64, timeout_s=60)
    assert (said.answered, said.failed) == (CLIENTS, Counter())
    wait_until(lambda: box.daemon.status()["awake"] <= 56, 20, "at most 7/8 of those allowed are awake")
    assert sum(box.states().values()) == CLIENTS
    assert box.daemon.status()["control"]["illegal"] == 0
    box.nobody_is_lost()


@pytest.mark.parametrize("box", [{"keepidle_s": 600}], indirect=True)
@pytest.mark.parametrize("goes", ["boot", "pins"])
def test_a_reboot_puts_back_those_that_sleep_and_so_does_a_start_without_pins(box: Box, goes: str) -> None:
    """The machine cannot reboot here, but what a reboot takes can be taken: the tables, and the boot's name. (A client
    that sends a keep-alive to a machine without tables is reset; a machine that boots is silent.) Somebody who removes
    the pins takes the tables alone."""
    box.all_asleep()
    box.daemon.kill()
    box.daemon.unpin()
    if goes == "boot":
        with box.database() as database:
            age(database)
    box.daemon.start()
    wait_until(lambda: box.states()["SLEEP"] == CLIENTS, 20, "all put back")
    said = box.swarm.say(CLIENTS, concurrency=64, timeout_s=60)
    assert (said.answered, said.failed) == (CLIENTS, Counter())
    box.all_asleep()
    for transitions in box.history().values():
        chain_of(transitions)  # asleep before it, and asleep after: it is no transition
    box.nobody_is_lost()
