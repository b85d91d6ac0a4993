# SPDX-License-Identifier: Apache-2.0
"""How long a server takes to reach a client, from its connect() to the first byte that the client answers.

Method. The whole daemon, with its store, holds real clients. A server on the LAN takes one of them after the other: it
connects, asks a question and waits for the answer. It comes in one of two MODES: `router_...`, to the client's own
address and port, which the appliance answers in between; `proxy_...`, with HTTP CONNECT to the appliance. Clients are
in one of three states when it comes: their socket is there and unlinked (`..._active_...`: STANDBY), their record is in
memory (`..._idle_...`), or it is a row of the database (`..._sleep_...`); `..._silent_...` is IDLE, too, and was not
heard for so long that it must answer a probe first (`attach_silence`), as none of the others must. Before a run all
clients of a group are in their state again, and everything about it is written.

A direct connection is what a server would have without the appliance: through the same network, routed, to a program
that listens at the clients' end. `..._active_extra_us_p50` is the p50 of a run minus the p50 of as many direct ones
right after it. Times are ms where the figure's name says so, else µs.
"""

from __future__ import annotations

import time
from typing import Any

from appliance.lab import DaemonHandle, Lab, Peer, SwarmGroup, endpoint, wait_until
from tests.bench.direct import WAN, say
from tests.bench.figures import Report, Stolen, Target, percentile

MODES = ("router", "proxy")
STATES = {"active": "STANDBY", "idle": "IDLE", "sleep": "SLEEP", "silent": "IDLE"}
IDLE = {"active_quiet": "300ms", "standby_quiet": "500ms", "idle_quiet": "never"}
SILENCE_S = 1
POLICY: dict[str, dict[str, Any]] = {
    "active": {"active_quiet": "1h", "standby_quiet": "never", "attach_silence": "never"},
    "idle": {**IDLE, "attach_silence": "never"},
    "sleep": {**IDLE, "idle_quiet": "1s", "attach_silence": "never"},
    "silent": {**IDLE, "attach_silence": SILENCE_S},
}
GROUPS = [(mode, state) for mode in MODES for state in STATES if (mode, state) != ("router", "silent")]
PORTS = {group: 8000 + i for i, group in enumerate(GROUPS)}
SERVER_PORT = 9000
ATTACH_PORT = 3128
JOIN_RATE = 1000  # clients/s
PATIENCE_S = 120.0
TARGETS = {"active_extra_us_p50": 500.0, "idle_ms_p99": 5.0, "sleep_ms_p99": 15.0}


def config(lab: Lab, clients: int) -> dict[str, Any]:
    """One service for each group. The router's stand at the server's own address, the proxy's at the appliance's."""
    services: list[dict[str, Any]] = []
    server = lab.address("lan", "eth0")
    for (mode, state), port in PORTS.items():
        if mode == "router":
            where: dict[str, Any] = {"listen": endpoint(server, port), "transparent": True}
        else:
            where = {"listen": endpoint(lab.address("box", WAN), port), "server": endpoint(server, SERVER_PORT)}
        services.append({"name": f"{mode}-{state}", **where, **POLICY[state]})
    table = {"ipv4": clients * 2, "ipv6": 100, "idle": clients * 2}
    return {**lab.config(attach_port=ATTACH_PORT, table=table, router={}), "service": services}


def join(lab: Lab, daemon: DaemonHandle, mode: str, state: str, clients: int, report: Report) -> SwarmGroup:
    """Connect a group's clients, and let them fall into STANDBY: each is reached for the first time from there."""
    swarm: SwarmGroup = lab.swarm()
    address = lab.address("lan", "eth0") if mode == "router" else lab.address("box", WAN)
    joined = swarm.connect(clients, (address, PORTS[mode, state]), rate=JOIN_RATE)
    if joined.failed:
        report.problems.append(f"clients could not connect: {dict(joined.failed)}")
    if state == "active":
        for row in daemon.connections(state="ACTIVE"):
            daemon.act(row["id"], "standby")
    return swarm


def settled(daemon: DaemonHandle, service: str, state: str, clients: int) -> list[str]:
    """The clients of a service, once all of them are in the state; "address:port" each."""
    found: list[str] = []

    def all_are() -> bool:
        store = daemon.status()["store"]
        rows = daemon.connections(state=STATES[state])
        found[:] = [row["client"] for row in rows if row["service"] == service]
        return len(found) >= clients and not store["pending_sleep"] and not store["pending_history"]

    wait_until(all_are, PATIENCE_S, f"{clients} clients of {service} {STATES[state]}")
    return found


def ask(asker: Peer, targets: list[str], proxy: list[Any] | None, report: Report) -> list[int]:
    """µs from connect() to the first byte of each answer, one after the other."""
    more = {"proxy": proxy} if proxy else {}
    token = asker.send("ask", targets=targets, concurrency=1, timeout_s=10, **more)
    answer = asker.receive(token, 60 + len(targets))
    if answer["failed"]:
        report.problems.append(f"servers did not reach clients: {answer['failed']}, e.g. {answer['failures'][:3]}")
    return [int(value) for value in answer["latency_us"]]


def measure(lab: Lab, daemon: DaemonHandle, mode: str, state: str, attaches: int, runs: int, report: Report) -> None:
    """One group in one mode, and after each run as many direct connections."""
    each = -(-attaches // runs)
    swarm = join(lab, daemon, mode, state, each, report)
    asker = lab.asker()
    listening = endpoint(lab.address("wan", "eth0"), SERVER_PORT)
    took: list[list[int]] = []
    direct: list[list[int]] = []
    stolen: list[float] = []
    for number in range(1, runs + 1):
        targets = settled(daemon, f"{mode}-{state}", state, each)
        if state == "silent":
            time.sleep(SILENCE_S + 1)  # silence is counted in whole seconds
        began = Stolen()
        proxy = None if mode == "router" else [lab.address("box", "lan0"), ATTACH_PORT]
        took.append(ask(asker, targets[:each], proxy, report))
        stolen.append(began.percent())
        direct.append(ask(asker, [listening] * each, None, report))
        say(f"{mode} {state}, run {number}: p50 {percentile(took[-1], 50) / 1000:.2f} ms, p99 "
            f"{percentile(took[-1], 99) / 1000:.2f} ms; direct p50 {percentile(direct[-1], 50) / 1000:.2f} ms; "
            f"{stolen[-1]:.0f} % of the processors stolen")  # fmt: skip

    def add(key: str, values: list[float], unit: str) -> None:
        target = TARGETS.get(key)
        report.add(f"{mode}_{key}", values, unit, None if target is None else Target(at_most=target))

    for percent in (50, 99):
        add(f"{state}_ms_p{percent}", [percentile(run, percent) / 1000 for run in took], "ms")
        add(f"{state}_direct_ms_p{percent}", [percentile(run, percent) / 1000 for run in direct], "ms")
    extra = [percentile(a, 50) - percentile(b, 50) for a, b in zip(took, direct, strict=True)]
    add(f"{state}_extra_us_p50", extra, "µs")
    add(f"{state}_stolen_percent", stolen, "%")
    report.add_zero(f"{mode}_{state}_unreached", each * runs - sum(map(len, took)), "clients")
    report.add_zero(f"{mode}_{state}_dead", swarm.stats().dead.total(), "clients")
    asker.close()
    swarm.close()
    wait_until(lambda: not any(daemon.status()["connections"].values()), PATIENCE_S, "the group has gone")


def run(attaches: int = 5000, runs: int = 5) -> Report:
    """Reach `attaches` clients in each mode and from each state, one at a time, in `runs` runs."""
    report = Report("attach")
    clients = -(-attaches // runs)
    with Lab(clients=clients, nat=False) as lab:
        behind = [port for (mode, _), port in PORTS.items() if mode == "router"]
        servers = [lab.server(port) for port in (*behind, SERVER_PORT)]
        listener = lab.peer("wan", "server", "--listen", lab.address("wan", "eth0"), str(SERVER_PORT))
        listener.request("ready")
        daemon = lab.daemon(config(lab, clients))
        for mode, state in GROUPS:
            measure(lab, daemon, mode, state, attaches, runs, report)
        daemon.terminate()
        for peer in (*servers, listener):
            peer.close()
    report.did = f"{attaches:,} clients reached by a server in each mode and from each state, one at a time"
    return report
