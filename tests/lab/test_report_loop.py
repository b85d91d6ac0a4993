# SPDX-License-Identifier: Apache-2.0
"""From clients behind NATs with time-outs of their own to rules that keep them: probes at random intervals, an export,
a report that finds the time-outs, its recommendation applied, and nobody lost any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
import pytest

from appliance.lab import DaemonHandle, Lab, wait_until
from appliance.lab.processes import python_environment
from appliance.lab.topology import client_address, nft, public_address

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

CLIENTS, SECONDS = map(int, os.environ.get("ROOST_LOOP", "1200 100").split())
"""How many there are, and for how long probes are sent at random, and then as is recommended."""
PORT: Final = 8000
TIMEOUTS_S: Final = {"nat0": 20, "nat1": 36, "nat2": None}
"""By the rule for its one public address; None: it forgets nothing."""

POLICY: Final = {
    "active_quiet": "200ms", "standby_quiet": "200ms", "idle_quiet": "1s", "probe_retry": "1s", "probe_count": 2,
}  # fmt: skip


SILENT: Final = {"keepidle_s": 3600, "keepintvl_s": 3600}
"""The clients have no keep-alives: each would begin a new silence."""


class Outcome(NamedTuple):
    """found: rows of the report's time-outs by rule. lost: connections that did not answer, a second, before the
    recommendation was applied and after; by rule."""

    found: dict[str, dict[str, Any]]
    before: dict[str, float]
    after: dict[str, float]


def forget(lab: Lab) -> None:
    """The NAT forgets what is silent for longer than each network's time-out, and takes no packet for a new connection
    but a SYN."""
    rules, objects = "", ""
    for at, (name, seconds) in enumerate(TIMEOUTS_S.items()):
        if seconds is not None:
            objects += f"ct timeout {name} {{ protocol tcp; policy = {{ established: {seconds} }}; }}\n"
            rules += f'ip saddr {client_address(at, 4)} ct timeout set "{name}"\n'
    with lab.enter("nat"):
        subprocess.run(["sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_loose=0"], check=True)
    nft(lab.space("nat"), f"""
        table ip roost_forget {{
            {objects}
            chain prerouting {{
                type filter hook prerouting priority filter;
                {rules}
            }}
        }}
    """)  # fmt: skip


def roost(*words: str) -> str:
    argv = [sys.executable, "-m", "control.cli.main", *words]
    done = subprocess.run(argv, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lost(daemon: DaemonHandle) -> dict[str, int]:
    """Connections that did not answer, by rule, since the daemon began; a snapshot is taken each minute."""
    found = dict.fromkeys(TIMEOUTS_S, 0)
    for row in daemon.get("/v1/snapshots", limit=1000):
        if row["rules"] in found:
            found[row["rules"]] += sum(
                row["counts"].get(f"{state} CLOSED probe-timeout", 0) for state in ("IDLE", "SLEEP")
            )
    return found


def drive(directory: Path, clients: int, seconds: float) -> Outcome:
    """clients: in all; seconds: of probes at random, and again with the recommendation."""
    with Lab(clients=clients, addresses=len(TIMEOUTS_S)) as lab:
        forget(lab)
        lab.server(PORT)
        config = lab.config(PORT, policy=POLICY)
        daemon = lab.daemon(config)
        for at, name in enumerate(TIMEOUTS_S):
            # Rules that give the same values are counted together.
            longest = f"{90 + at}s"
            rule = {"network": f"{public_address(at)}/32", "probe_interval": "8s", "most_probe_interval": longest}
            answer = daemon.http("PUT", f"/v1/policy/rules/{name}", json={"rule": rule, "who": "lab", "why": "learn"})
            assert answer.status_code == 200, answer.text
        swarm = lab.swarm()
        server = (lab.address("box", "wan0"), PORT)
        began = time.monotonic()
        swarm.connect(clients, server, **SILENT)
        time.sleep(seconds)
        took = time.monotonic() - began
        daemon.restart()  # a daemon that ends takes a snapshot
        before = {name: count / took for name, count in lost(daemon).items()}

        data, out = directory / "data", directory / "report"
        roost("export", str(data), "-c", str(daemon.config))
        roost("report", str(data), "--out", str(out), "--memory", "1g")
        found = {row["rules"]: row for row in pq.read_table(out / "timeouts.parquet").to_pylist()}
        socket = str(daemon.control_socket)
        roost("policy", "recommend", str(out / "recommendations.json"), "--apply", "--socket", socket)

        wait_until(lambda: daemon.status()["policy"]["version"] > len(TIMEOUTS_S), 10, "the recommendation is in force")
        time.sleep(130)  # probes that were under way, and those whom the NAT had forgotten, are over
        daemon.restart()
        base = lost(daemon)
        began = time.monotonic()
        swarm.connect(clients // 2, server, **SILENT)
        time.sleep(seconds)
        took = time.monotonic() - began
        daemon.restart()
        after = {name: (count - base[name]) / took for name, count in lost(daemon).items()}
        daemon.terminate()
        return Outcome(found, before, after)


def test_time_outs_are_found_and_the_recommendation_ends_the_losses(tmp_path: Path) -> None:
    outcome = drive(tmp_path, CLIENTS, SECONDS)
    print(json.dumps(outcome.found, indent=1), outcome.before, outcome.after)
    for name, seconds in TIMEOUTS_S.items():
        row = outcome.found[name]
        if seconds is None:
            assert row["known"] == "longer"
            assert outcome.before[name] == 0
        else:
            assert (row["known"], row["timeout_s"]) == ("found", pytest.approx(seconds, rel=0.1))
            assert row["recommended_s"] < seconds
            assert outcome.before[name] > 1
        assert outcome.after[name] == 0
