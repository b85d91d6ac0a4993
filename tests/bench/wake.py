# SPDX-License-Identifier: Apache-2.0
"""How much longer than usual the first answer takes a client that was asleep.

Method. The whole daemon, with its store, holds thousands of real clients behind a NAT. One client at a time says a
line, and as soon as the answer is there it says another: the first round trip begins asleep and ends with the server's
answer (frame captured, socket rebuilt, server connected to, bytes moved both ways), the second is the same client's
when ACTIVE. The extra is the first minus the second, client by client; its percentiles are taken over each run, and
once more over all runs together (`..._pooled`). Before a run every client is asleep, and after it the daemon's own
counters must say that exactly as many were woken as spoke.

There are three groups. For `idle_...` the record is in memory; for `sleep_...` it is a row of the database, and each
wake-up reads it from there. In both, a run is over before the first who spoke falls quiet again, so that wake-ups are
what is measured. For `busy_...` the record is in memory, and who has spoken is put back to sleep within a moment, while
the others are measured: as many freezes as wake-ups, with all of the daemon's book-keeping, beside them.
"""

from __future__ import annotations

from typing import Any

from appliance.lab import DaemonHandle, Lab, SwarmGroup, endpoint, wait_until
from tests.bench.direct import WAN, say
from tests.bench.figures import Report, Target, percentile

PORTS = {"idle": 8000, "busy": 8001, "sleep": 8002}
LATER = {"active_quiet": "2s", "standby_quiet": "3s"}  # a run takes less
POLICY: dict[str, dict[str, Any]] = {
    "idle": {**LATER, "idle_quiet": "never"},
    "busy": {"active_quiet": "100ms", "standby_quiet": "200ms", "idle_quiet": "never"},
    "sleep": {**LATER, "idle_quiet": "4s"},
}
STATE = {"idle": "IDLE", "busy": "IDLE", "sleep": "SLEEP"}
WOKEN = {"idle": ("counters", "thawed"), "busy": ("counters", "thawed"), "sleep": ("control", "restored")}
"""What the daemon counts at each wake-up."""

JOIN_RATE = 2000  # clients/s: falling asleep keeps pace with it
PATIENCE_S = 120.0
IDLE_P50_US, IDLE_P99_US, SLEEP_P99_US = 500.0, 2000.0, 10_000.0


def config(lab: Lab, clients: int) -> dict[str, Any]:
    """One service for each group; the tables with room for all."""
    table = {"ipv4": clients * 2, "ipv6": 100, "idle": clients * 2}
    services = [
        {
            "name": group,
            "listen": endpoint(lab.address("box", WAN), port),
            "server": endpoint(lab.address("lan", "eth0"), PORTS["idle"]),
            **POLICY[group],
        }
        for group, port in PORTS.items()
    ]
    return {**lab.config(table=table), "service": services}


def woken(daemon: DaemonHandle, group: str) -> int:
    section, counter = WOKEN[group]
    return int(daemon.status()[section][counter])


def asleep(daemon: DaemonHandle, group: str, clients: int) -> None:
    """Wait until the whole group is asleep, and everything about it written."""

    def all_are() -> bool:
        status = daemon.status()
        store = status["store"]
        busy = status["awake"] or store["pending_sleep"] or store["pending_history"]
        return status["connections"][STATE[group]] >= clients and not busy

    wait_until(all_are, PATIENCE_S, f"{clients} clients {STATE[group]}")


def measure(lab: Lab, daemon: DaemonHandle, group: str, wakeups: int, runs: int, report: Report) -> None:
    """Wake `wakeups` clients of a group in `runs` runs, one client at a time."""
    before_us = int(daemon.status()["connections"][STATE[group]])  # other groups' clients
    swarm: SwarmGroup = lab.swarm()
    joined = swarm.connect(wakeups, (lab.address("box", WAN), PORTS[group]), rate=JOIN_RATE)
    if joined.failed:
        report.problems.append(f"clients could not connect: {dict(joined.failed)}")
    first_us: list[list[int]] = []
    again_us: list[list[int]] = []
    unanswered = unmeasured = 0
    shares = [wakeups // runs + (index < wakeups % runs) for index in range(runs)]
    for number, share in enumerate(shares, 1):
        asleep(daemon, group, before_us + joined.connected)
        before = woken(daemon, group)
        said = swarm.say(share, concurrency=1, twice=True)
        count = woken(daemon, group) - before
        unanswered += share - said.answered
        unmeasured += abs(count - share)
        if said.failed:
            report.problems.append(f"clients were not answered: {dict(said.failed)}")
        first_us.append(said.rtt_us)
        again_us.append(said.again_us)
        say(f"{group}, run {number}: {count:,} woken, extra p99 "
            f"{percentile(extras(said.rtt_us, said.again_us), 99):,.0f} µs")  # fmt: skip
    dead = swarm.stats().dead
    extra = [extras(*pair) for pair in zip(first_us, again_us, strict=True)]
    pooled = [value for one in extra for value in one]
    targets = {
        "idle_extra_us_p50": Target(at_most=IDLE_P50_US),
        "idle_extra_us_p99": Target(at_most=IDLE_P99_US),
        "sleep_extra_us_p99": Target(at_most=SLEEP_P99_US),
    }
    for percent in (50, 99):
        key = f"{group}_extra_us_p{percent}"
        report.add(key, [percentile(one, percent) for one in extra], "µs", targets.get(key))
        report.add(f"{key}_pooled", percentile(pooled, percent), "µs")
        report.add(f"{group}_rtt_us_p{percent}", [percentile(one, percent) for one in first_us], "µs")
        report.add(f"{group}_again_rtt_us_p{percent}", [percentile(one, percent) for one in again_us], "µs")
    report.add(f"{group}_extra_us_max", max(pooled), "µs")
    report.add(f"{group}_wakeups", len(pooled), "wake-ups")
    report.add_zero(f"{group}_unanswered", unanswered, "clients")
    report.add_zero(f"{group}_not_asleep", unmeasured, "clients")
    report.add_zero(f"{group}_dead", dead.total(), "clients")


def extras(first_us: list[int], again_us: list[int]) -> list[int]:
    """First round trip minus second, client by client."""
    return [first - again for first, again in zip(first_us, again_us, strict=True)]


def run(wakeups: int = 5000, sleep_wakeups: int = 2000, runs: int = 5) -> Report:
    """Wake `wakeups` clients from IDLE, `sleep_wakeups` from SLEEP and as many while others freeze; in `runs` runs."""
    report = Report("wake")
    everyone = wakeups + 2 * sleep_wakeups
    with Lab(clients=everyone) as lab:
        server = lab.server(PORTS["idle"])
        daemon = lab.daemon(config(lab, everyone))
        measure(lab, daemon, "idle", wakeups, runs, report)
        measure(lab, daemon, "busy", sleep_wakeups, runs, report)
        measure(lab, daemon, "sleep", sleep_wakeups, runs, report)
        report.add("store_last_commit_ms", float(daemon.status()["store"]["last_commit_ms"]), "ms")
        daemon.terminate()
        server.close()
    report.did = (
        f"{everyone:,} clients asleep, {wakeups:,} wake-ups from IDLE and "
        f"{sleep_wakeups:,} from SLEEP, one client at a time"
    )
    return report
