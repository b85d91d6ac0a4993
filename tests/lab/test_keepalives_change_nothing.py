# SPDX-License-Identifier: Apache-2.0
"""Figure 24: a keep-alive wakes nobody, and changes nothing of what is kept, told or counted but itself."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

from appliance.lab import DaemonHandle, Lab, wait_until
from control.api.metrics import families
from control.core.states import State
from tests.lab.aging import Sleepers
from tests.lab.echo import Echo

PORT = 8000
CLIENTS = 10_000
EVERY_S = 30
ROUNDS = 10  # of a keep-alive each: five minutes
POLICY = {"active_quiet": "100ms", "standby_quiet": "100ms", "idle_quiet": "100ms", "probe_interval": "never"}
BY_TIME = re.compile("roost_(uptime|resident_memory|dispatch_batches|pressure|store_last_commit|class)")
"""Metrics that time, or the machine, changes."""

TABLES = (
    "sleeping",
    "history",
    "attaches",
    "successors",
    "names",
    "overrides",
    "dialled",
    "agents",
    "services",
    "rules",
)


def stored(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(database)) as connection:
        return {table: sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in TABLES}


def snapshots(database: Path) -> list[tuple[int, Counter[str]]]:
    """(service, counts), in the order in which they were taken."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT service, counts FROM snapshots ORDER BY seq")
        return [(service, Counter(json.loads(counts))) for service, counts in rows]


def counters(daemon: DaemonHandle) -> dict[str, Any]:
    status = daemon.status()
    del status["control"]["batches"]  # the dispatcher's turns: time makes them
    return {**status["counters"], **status["control"], **status["connections"]}


def metrics(daemon: DaemonHandle) -> dict[str, float]:
    """By name and labels, of what Prometheus is told."""
    told = families({**daemon.status(), "own": {}})
    samples = (sample for family in told for sample in family.samples)
    return {f"{one.name} {one.labels}": one.value for one in samples if not BY_TIME.match(one.name)}


@contextmanager
def following(daemon: DaemonHandle) -> Iterator[Iterator[str]]:
    """The transitions that are told from now on, JSON."""
    transport = httpx.HTTPTransport(uds=str(daemon.control_socket), verify=False)
    with (
        httpx.Client(transport=transport, base_url="http://roost", timeout=60) as http,
        http.stream("GET", "/v1/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines).startswith(":"), "it listens"
        yield (line.removeprefix("data: ") for line in lines if line.startswith("data: "))


def test_figure_24_keepalives_of_10_000_clients_for_five_minutes_change_nothing() -> None:
    everybody = range(CLIENTS)
    with Lab(clients=10, nat=False) as lab, Echo(lab.space("lan"), lab.address("lan", "eth0"), PORT):
        simulator = lab.simulator(CLIENTS, PORT)
        table = {"ipv4": CLIENTS * 2, "ipv6": 100, "idle": CLIENTS * 2}
        config = lab.config(PORT, policy=POLICY, table=table)
        config["network"] = {"interfaces": ["wan0", simulator.box_interface]}
        daemon, database = lab.daemon(config), lab.workspace / "roost.db"

        def all_sleep() -> bool:
            status = daemon.status()
            return bool(status["connections"]["SLEEP"] == CLIENTS and not status["store"]["pending_history"])

        assert simulator.connect(everybody, timeout_s=60).done == CLIENTS
        wait_until(all_sleep, 60, "all are in SLEEP")
        daemon.restart()  # what its snapshots count begins here
        taken, rows, counted = len(snapshots(database)), stored(database), counters(daemon)
        page = metrics(daemon)
        with following(daemon) as lines:
            for _ in range(ROUNDS):
                Sleepers(daemon.pin_dir).grow_older(EVERY_S)
                kept = simulator.keep_alive(everybody, timeout_s=60)
                assert (kept.done, kept.retransmitted) == (CLIENTS, 0)
            after, rows_after, page_after = counters(daemon), stored(database), metrics(daemon)
            assert simulator.speak(range(1), 100, 100).done == 1  # by which is seen that the stream tells something
            told = [json.loads(next(lines))]
            while told[-1]["to"] != "SLEEP":
                told.append(json.loads(next(lines)))
        assert simulator.offences() == {}, simulator.first_offences()
        assert daemon.terminate() == 0  # it takes a last snapshot
        since = snapshots(database)[taken:]
    assert rows_after == rows
    changed = {name: after.get(name, 0) - counted.get(name, 0) for name in counted | after}
    assert {name: count for name, count in changed.items() if count} == {"keepalives_answered": ROUNDS * CLIENTS}
    differs = {name: page_after.get(name, 0) - page.get(name, 0) for name in page.keys() | page_after.keys()}
    assert {name: by for name, by in differs.items() if by} == {"roost_keepalives_answered_total {}": ROUNDS * CLIENTS}
    assert len({row["id"] for row in told}) == 1
    flows: Counter[str] = sum((counts for service, counts in since if service), Counter())
    states = {state.label: flows.pop(state.label, 0) for state in State}
    assert {state: count for state, count in states.items() if count} == {State.SLEEP.label: CLIENTS}
    silences = {name: flows.pop(name) for name in list(flows) if name.startswith("spoke after ")}
    assert sum(silences.values()) == ROUNDS * CLIENTS + 1, "after how long each was heard is counted"
    assert flows - Counter(rx_bytes=100, tx_bytes=100) == Counter(
        f"{row['from']} {row['to']} {row['cause']}" for row in told
    )
