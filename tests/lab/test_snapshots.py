# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a daemon at work (issue 13): what they count is what the history tells, and all there is is counted."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

from appliance.lab import Lab, wait_until
from control.core.states import Cause, State
from tests.lab.echo import Echo
from tests.lab.engine_lab import receive

PORT = 8000
POLICY = {"active_quiet": "100ms", "standby_quiet": "100ms", "idle_quiet": "1s", "probe_interval": "1s"}
CLIENTS = 9

Counts = Counter[str]


def snapshots(database: Path) -> list[tuple[int, str | None, str, Counts]]:
    """(at, service, rules, counts), in the order in which they were taken."""
    query = 'SELECT at, s.name, rules, counts FROM snapshots LEFT JOIN services s ON s."index" = service ORDER BY seq'
    with closing(sqlite3.connect(database)) as connection:
        return [(*row, Counter(json.loads(counts))) for *row, counts in connection.execute(query)]


def history(database: Path) -> Counts:
    """How many transitions there were of each kind, and the payload."""
    found: Counts = Counter()
    with closing(sqlite3.connect(database)) as connection:
        query = 'SELECT "from", "to", cause, count(*), sum(rx_bytes), sum(tx_bytes) FROM history GROUP BY 1, 2, 3'
        for source, target, cause, count, rx, tx in connection.execute(query):
            found[f"{State(source).label} {State(target).label} {Cause(cause).label}"] += count
            found.update(rx_bytes=rx, tx_bytes=tx)
    return found


def test_what_is_counted_is_what_the_history_tells_and_all_there_is() -> None:
    with Lab(clients=20, nat=False) as lab, ExitStack() as stack:
        stack.enter_context(Echo(lab.space("lan"), lab.address("lan", "eth0"), PORT))
        daemon = lab.daemon(lab.config(PORT, policy=POLICY))
        database = lab.workspace / "roost.db"

        def sleep() -> None:
            wait_until(lambda: len(daemon.connections(state="SLEEP")) == len(clients), 20, "all sleep")

        clients: list[socket.socket] = []
        with lab.enter("wan"):
            for _ in range(CLIENTS):
                client = stack.enter_context(socket.create_connection((lab.address("box", "wan0"), PORT), 5))
                client.settimeout(10)
                clients.append(client)
        for client in clients:
            client.sendall(b"hello")
            assert receive(client, 5) == b"hello"
        sleep()
        address = clients[0].getsockname()[0]
        edit = {"rule": {"network": f"{address}/32", "idle_quiet": "900ms"}, "who": "test", "why": "", "seen": None}
        assert daemon.http("PUT", "/v1/policy/rules/quick", json=edit).status_code == 200
        for client in clients[:4]:
            client.sendall(b"again")
            assert receive(client, 5) == b"again"
        clients.pop().close()
        sleep()
        wait_until(lambda: daemon.status()["counters"]["probes_sent"] > 0, 10, "a client is probed")
        assert daemon.terminate() == 0
        first = snapshots(database)
        daemon.start()
        clients[0].sendall(b"still here")
        assert receive(clients[0], 10) == b"still here"
        sleep()
        assert daemon.terminate() == 0
        rows, told = snapshots(database), history(database)

    of_services = [counts for _, service, _, counts in rows if service is not None]
    states = {state.label for state in State}
    flows: Counts = Counter()
    for counts in of_services:
        transitions = {name for name in counts if name not in states | {"born", "probes"} and " after " not in name}
        flows.update({name: counts[name] for name in transitions})
    assert flows == told
    probes = sum(counts["probes"] for counts in of_services)
    assert probes == sum(counts["probes_sent"] for _, service, _, counts in rows if service is None) > 0
    for taken in (first, rows):
        last = [row for row in taken if row[0] == taken[-1][0]]
        assert sum(counts[state] for _, service, _, counts in last if service for state in states) == CLIENTS - 1
        assert [counts["table_ipv4"] for _, service, _, counts in last if service is None] == [CLIENTS - 1]
    assert {rules for _, service, rules, _ in first if service} == {"", "quick"}
    assert {rules for _, service, rules, _ in rows[len(first) :] if service} == {"quick"}, "all come from one address"
