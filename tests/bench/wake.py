# SPDX-License-Identifier: Apache-2.0
"""How much longer than usual the first answer takes a client that was asleep.

Method. The whole daemon, with its store, holds thousands of real clients behind a NAT. One client at a time says a
line, and as soon as the answer is there it says another: the first round trip begins asleep and ends with the
server's answer (frame captured, socket rebuilt, server connected to, bytes moved both ways), the second is the same
client's when ACTIVE. The extra is the first minus the second, client by client; its percentiles are taken over each
run, and once more over all runs together (`..._pooled`). Before a run every client is asleep, and after it the
daemon's own counters must say that exactly as many were woken as spoke.

Both round trips cross five threads on the same few processors, and one that waits for its processor at the wrong
moment makes a difference that is no cost of waking. How large such differences are is measured beside it: `awake_...`
is the same subtraction for clients that never sleep, each run of theirs right after one of `idle_...`. What the host
took from the machine's processors meanwhile is `idle_stolen_percent`.

Three groups sleep. For `idle_...` the record is in memory; for `sleep_...` it is a row of the database, and each
wake-up reads it from there. In both, a run is over before the first that spoke falls quiet again, so that wake-ups are
what is measured. For `busy_...` the record is in memory, and a client that has spoken is put back to sleep within a
moment, while the others are measured: as many freezes as wake-ups, with all of the daemon's book-keeping, beside them.

Two more groups are of services that differ in `ready_links` alone: `ready_...` has links to its server that were made
before. In each run TURN clients of the one and of the other speak by turns, once all are asleep. They speak APART_MS
after each other, in which time the link that was taken is replaced, as it is where no more wake at a time than there
are ready links.

With `asleep_beside`, so many simulated clients are born asleep first, on an interface and a service of their own, and
sleep through all of it; in the end the keep-alive of every one of them must be answered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from appliance.lab import DaemonHandle, Lab, SwarmGroup, endpoint, wait_until
from appliance.lab.simulator import ClientState, Simulator
from tests.bench.direct import WAN, say
from tests.bench.figures import Report, Stolen, Target, percentile
from tests.bench.simulated import LOAD, patience_s

PORTS = {"idle": 8000, "busy": 8001, "sleep": 8002, "awake": 8003, "linked": 8005, "ready": 8006}
LATER = {"active_quiet": "2s", "standby_quiet": "3s"}  # a run takes less
SOON = {"active_quiet": "100ms", "standby_quiet": "200ms"}
POLICY: dict[str, dict[str, Any]] = {
    "idle": {**LATER, "idle_quiet": "never"},
    "busy": {**SOON, "idle_quiet": "never"},
    "sleep": {**LATER, "idle_quiet": "4s"},
    "awake": {"active_quiet": "never"},
    "linked": {**SOON, "idle_quiet": "never"},
    "ready": {**SOON, "idle_quiet": "never", "ready_links": 16, "ready_for": "1h"},
}
APART_MS = 5.0
TURN = 10  # the speed of a shared machine stays the same for some tenths of a second
OTHERS_PORT = 8004
STATE = {"idle": "IDLE", "busy": "IDLE", "sleep": "SLEEP"}
_THAWED = ("counters", "thawed")
WOKEN = {"idle": _THAWED, "busy": _THAWED, "sleep": ("control", "restored"), "linked": _THAWED, "ready": _THAWED}
"""What the daemon counts at each wake-up."""

JOIN_RATE = 2000  # clients/s: falling asleep keeps pace with it
PATIENCE_S = 120.0
TARGETS = {
    "idle_extra_us_p50": Target(at_most=150),
    "idle_extra_us_p99": Target(at_most=1000),
    "sleep_extra_us_p99": Target(at_most=10_000),
    "ready_gain_us_p50": Target(at_least=1),
}


def config(lab: Lab, clients: int, others: Simulator | None) -> dict[str, Any]:
    """One service for each group, and one for the others; the tables with room for all."""
    table = {
        "ipv4": clients * 2 + math.ceil((others.clients if others else 0) / LOAD),
        "ipv6": 100,
        "idle": clients * 2,
    }
    services = [
        {
            "name": group,
            "listen": endpoint(lab.address("box", WAN), port),
            "server": endpoint(lab.address("lan", "eth0"), PORTS["idle"]),
            **POLICY[group],
        }
        for group, port in PORTS.items()
    ]
    interfaces = [WAN]
    if others is not None:
        address, port = others.server
        services.append({"name": "others", "listen": endpoint(address, port), "born": "always", "idle_quiet": "never",
                         "server": endpoint(lab.address("lan", "eth0"), PORTS["idle"])})  # fmt: skip
        interfaces.append(others.box_interface)
    return {**lab.config(table=table), "service": services, "network": {"interfaces": interfaces}}


def join_others(others: Simulator, daemon: DaemonHandle, report: Report) -> None:
    """Let them be born, and fall asleep at once."""
    joined = others.connect(range(others.clients), timeout_s=patience_s(others.clients))
    say(f"{joined.done:,} others are asleep")
    born = int(daemon.status()["counters"]["born"])
    if min(joined.done, born) != others.clients:
        report.problems.append(f"of {others.clients:,} others {joined.done:,} connected, and {born:,} are asleep")


def lost_of(others: Simulator) -> int:
    """How many have no connection any more, or no answer to a keep-alive."""
    answered = others.keep_alive(range(others.clients), timeout_s=patience_s(others.clients)).done
    return others.clients - min(answered, others.census().get(ClientState.ESTABLISHED, 0))


def woken(daemon: DaemonHandle, group: str) -> int:
    section, counter = WOKEN[group]
    return int(daemon.status()[section][counter])


def all_asleep(daemon: DaemonHandle, group: str, clients: int, awake: int) -> None:
    """Wait until all but the `awake` clients that never sleep are asleep, a group's `clients` in its state, and until
    everything about it is written."""

    def all_are() -> bool:
        status = daemon.status()
        store = status["store"]
        busy = status["awake"] > awake or store["pending_sleep"] or store["pending_history"]
        asleep = status["connections"][STATE[group]]
        if STATE[group] == "IDLE":
            asleep -= status["counters"]["born"]  # the others
        return bool(asleep >= clients and not busy)

    wait_until(all_are, PATIENCE_S, f"{clients} clients {STATE[group]}")


def join(lab: Lab, group: str, clients: int, report: Report) -> SwarmGroup:
    """Connect a group's clients."""
    swarm: SwarmGroup = lab.swarm()
    joined = swarm.connect(clients, (lab.address("box", WAN), PORTS[group]), rate=JOIN_RATE)
    if joined.failed:
        report.problems.append(f"clients could not connect: {dict(joined.failed)}")
    return swarm


@dataclass(slots=True)
class Runs:
    """The round trips of one group, µs, run by run: the first of each client, and the one right after it."""

    first: list[list[int]] = field(default_factory=list)
    again: list[list[int]] = field(default_factory=list)
    unanswered: int = 0

    def begin(self) -> None:
        """One more run."""
        self.first.append([])
        self.again.append([])

    def say(self, swarm: SwarmGroup, clients: int, report: Report, apart_ms: float = 0.0) -> None:
        """In the last run `clients` of the swarm speak twice, one client at a time."""
        said = swarm.say(clients, concurrency=1, twice=True, apart_ms=apart_ms)
        self.unanswered += clients - said.answered
        if said.failed:
            report.problems.append(f"clients were not answered: {dict(said.failed)}")
        self.first[-1] += said.rtt_us
        self.again[-1] += said.again_us

    @property
    def extra(self) -> list[list[int]]:
        """First minus second, client by client."""
        runs = zip(self.first, self.again, strict=True)
        return [[first - again for first, again in zip(*run, strict=True)] for run in runs]

    def add_to(self, report: Report, group: str) -> None:
        pooled = [value for run in self.extra for value in run]
        for percent in (50, 99):
            key = f"{group}_extra_us_p{percent}"
            report.add(key, [percentile(run, percent) for run in self.extra], "µs", TARGETS.get(key))
            report.add(f"{key}_pooled", percentile(pooled, percent), "µs")
            report.add(f"{group}_rtt_us_p{percent}", [percentile(run, percent) for run in self.first], "µs")
            report.add(f"{group}_again_rtt_us_p{percent}", [percentile(run, percent) for run in self.again], "µs")
        report.add(f"{group}_extra_us_max", max(pooled), "µs")
        report.add_zero(f"{group}_unanswered", self.unanswered, "clients")


def measure(
    lab: Lab, daemon: DaemonHandle, group: str, each: list[int], awake: SwarmGroup, report: Report
) -> tuple[Runs, Runs]:
    """Wake so many clients of a group in each run, and after it let as many speak of those that are `awake` always.
    Returns both."""
    swarm = join(lab, group, sum(each), report)
    never = awake.stats().open
    woke, spoke = Runs(), Runs()
    unmeasured = 0
    stolen: list[float] = []
    for number, share in enumerate(each, 1):
        all_asleep(daemon, group, sum(each), never)
        before = woken(daemon, group)
        woke.begin()
        spoke.begin()
        took = Stolen()
        woke.say(swarm, share, report)
        stolen.append(took.percent())
        count = woken(daemon, group) - before
        unmeasured += abs(count - share)
        spoke.say(awake, share, report)
        say(f"{group}, run {number}: {count:,} woken, extra p99 {percentile(woke.extra[-1], 99):,.0f} µs, "
            f"{stolen[-1]:.0f} % of the processors stolen")  # fmt: skip
    woke.add_to(report, group)
    report.add(f"{group}_wakeups", sum(each) - woke.unanswered, "wake-ups")
    report.add(f"{group}_stolen_percent", stolen, "%")
    report.add_zero(f"{group}_not_asleep", unmeasured, "clients")
    report.add_zero(f"{group}_dead", swarm.stats().dead.total(), "clients")
    return woke, spoke


def measure_ready(lab: Lab, daemon: DaemonHandle, each: list[int], never: int, report: Report) -> None:
    """Wake so many clients in each run whose links are made as they wake, and as many for whom one is ready."""
    swarms = {group: join(lab, group, sum(each), report) for group in ("linked", "ready")}
    runs = {group: Runs() for group in swarms}
    unmeasured = 0
    for share in each:
        for one in runs.values():
            one.begin()
        for turn, clients in enumerate(divided(share, -(-share // TURN))):
            for group in sorted(swarms, reverse=bool(turn % 2)):
                wait_until(lambda: daemon.status()["awake"] <= never, PATIENCE_S, "all are asleep")
                before = woken(daemon, group)
                runs[group].say(swarms[group], clients, report, APART_MS)
                unmeasured += abs(woken(daemon, group) - before - clients)
    for group, one in runs.items():
        one.add_to(report, group)
    report.add_zero("ready_not_asleep", unmeasured, "clients")
    p50 = {group: [percentile(run, 50) for run in one.first] for group, one in runs.items()}
    gains = [linked - ready for linked, ready in zip(p50["linked"], p50["ready"], strict=True)]
    report.add("ready_gain_us_p50", gains, "µs", TARGETS["ready_gain_us_p50"])


def divided(wakeups: int, runs: int) -> list[int]:
    """How many wake-ups there are in each run."""
    return [wakeups // runs + (index < wakeups % runs) for index in range(runs)]


def run(
    wakeups: int = 5000, sleep_wakeups: int = 2000, ready_wakeups: int = 1000, runs: int = 5, asleep_beside: int = 0
) -> Report:
    """Wake `wakeups` clients from IDLE, `sleep_wakeups` from SLEEP and as many while others freeze, `ready_wakeups`
    whose links are ready and as many whose links are not; in `runs` runs, beside `asleep_beside` simulated clients that
    sleep through all of it."""
    report = Report("wake")
    awake = -(-wakeups // runs)
    asleep = wakeups + 2 * sleep_wakeups + 2 * ready_wakeups
    with Lab(clients=asleep + awake) as lab:
        server = lab.server(PORTS["idle"])
        others = lab.simulator(asleep_beside, OTHERS_PORT) if asleep_beside else None
        daemon = lab.daemon(config(lab, asleep + awake, others))
        if others is not None:
            join_others(others, daemon, report)
        never = join(lab, "awake", awake, report)
        _, spoke = measure(lab, daemon, "idle", divided(wakeups, runs), never, report)
        spoke.add_to(report, "awake")
        for group in ("busy", "sleep"):
            measure(lab, daemon, group, divided(sleep_wakeups, runs), never, report)
        if ready_wakeups:
            measure_ready(lab, daemon, divided(ready_wakeups, runs), never.stats().open, report)
        report.add("store_last_commit_ms", float(daemon.status()["store"]["last_commit_ms"]), "ms")
        if others is not None:
            report.add_zero("others_lost", lost_of(others), "clients")
            report.problems += [f"frames for the others were wrong: {wrong}" for wrong in [others.offences()] if wrong]
        daemon.terminate()
        server.close()
    report.did = (
        f"{asleep:,} clients asleep, {wakeups:,} wake-ups from IDLE and {sleep_wakeups:,} from SLEEP, "
        f"{ready_wakeups:,} with ready links, "
        f"one client at a time; {asleep_beside:,} others asleep"
    )
    return report
