# SPDX-License-Identifier: Apache-2.0
"""Figure 21: what runs short in earnest makes connections go down, those that have been quiet longest first."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.lab import DaemonHandle, Lab, wait_until
from tests.lab.test_policy_change import FOREVER

PORTS: Final = itertools.count(8121)
CLIENTS: Final = 60
OFF: Final = {"connections": 0, "idle": 0, "memory": 0, "memory_stall": 0, "cpu_stall": 0, "descriptors": 0}
POLICIES: Final = {"ACTIVE": FOREVER, "IDLE": FOREVER | {"active_quiet": "500ms", "standby_quiet": "500ms"}}
LIMIT: Final = 256 << 20
FILL: Final = "import sys, time; kept = b'x' * int(sys.argv[1]); print(flush=True); time.sleep(600)"
BUSY: Final = "while True: pass"


class Rig:
    """A daemon with these thresholds, and clients that spoke once, the first of them longest ago."""

    def __init__(self, stack: ExitStack, lab: Lab, state: str = "ACTIVE", **pressure: Any) -> None:
        """state: where they go by themselves."""
        port = next(PORTS)
        lab.server(port)
        self.daemon: DaemonHandle = lab.daemon(lab.config(port, policy=POLICIES[state]) | {"pressure": OFF | pressure})
        stack.callback(self.daemon.close)
        swarm = lab.swarm()
        swarm.connect(CLIENTS, (lab.address("box", "wan0"), port))
        swarm.say(CLIENTS)
        wait_until(lambda: self.states()[state] == CLIENTS, 20, f"all are {state}")

    def states(self) -> dict[str, int]:
        states: dict[str, int] = self.daemon.status()["connections"]
        return states

    def causes(self, state: str) -> set[str]:
        rows = [self.daemon.get(f"/v1/connections/{row['id']}") for row in self.daemon.connections(state=state)]
        return {row["history"][-1]["cause"] for row in rows}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@contextmanager
def running(*argv: str, word: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            if word:
                assert process.stdout is not None
                assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def cgroups() -> Path:
    """Where one with a limit of memory may be made, of either version; skips where none can be."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    top = Path("/sys/fs/cgroup")
    for where, controllers, sign in ((top, "", "cgroup.subtree_control"), (top / "memory", "memory", "memory.stat")):
        for path in (where / line[2].lstrip("/") for line in lines if controllers in line[1].split(",")):
            if (path / sign).exists() and "memory" in f"{sign}{(path / sign).read_text() if not controllers else ''}":
                return path
    pytest.skip("no cgroup with a limit of memory can be made on this machine")


@contextmanager
def limited(pid: int) -> Iterator[Path]:
    """A cgroup that may have LIMIT bytes, with this process in it."""
    group = cgroups() / f"roost-test-{os.getpid()}"
    group.mkdir()
    try:
        first = group / "memory.limit_in_bytes"
        (first if first.exists() else group / "memory.max").write_text(str(LIMIT))
        (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(left)
        wait_until(lambda: not (group / "cgroup.procs").read_text(), 10, "the cgroup is empty")
        group.rmdir()


def test_figure_21_few_descriptors_take_awake_connections_out_of_the_kernel(
    stack: ExitStack, nat_free_lab: Lab
) -> None:
    rig = Rig(stack, nat_free_lab)
    open_now = len(list(Path(f"/proc/{rig.daemon.pid}/fd").iterdir()))
    limits = Path(f"/proc/{rig.daemon.pid}/limits").read_text()
    limit = int(next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3])
    rig.daemon.close()
    percent = 100 * (open_now - CLIENTS // 2) / limit
    rig = Rig(stack, nat_free_lab, descriptors=percent, clear=percent / 4)
    wait_until(lambda: rig.states()["IDLE"] > 0, 20, "some went down")
    wait_until(lambda: not rig.daemon.status()["pressure"]["reached"], 30, "it is over")
    assert rig.causes("IDLE") == {"pressure"}
    assert rig.states()["ACTIVE"] > 0, "no more than are too many"


def test_figure_21_a_cgroup_whose_memory_is_filled_takes_records_into_the_database(
    stack: ExitStack, nat_free_lab: Lab
) -> None:
    rig = Rig(stack, nat_free_lab, "IDLE", memory=90, rate=20)
    with limited(rig.daemon.pid) as group:
        fill = f'echo $$ > {group}/cgroup.procs && exec "{sys.executable}" -c "$0" {LIMIT * 9 // 10}'
        with running("sh", "-c", fill, FILL, word=True):
            wait_until(lambda: rig.states()["SLEEP"] > 0, 20, "records go to the database")
            assert set(rig.daemon.status()["pressure"]["reached"]) == {"memory"}
        wait_until(lambda: not rig.daemon.status()["pressure"]["reached"], 10, "it is over")
        assert rig.causes("SLEEP") == {"pressure"}


def test_figure_21_a_busy_machine_takes_awake_connections_out_of_the_kernel(
    stack: ExitStack, nat_free_lab: Lab
) -> None:
    rig = Rig(stack, nat_free_lab, cpu_stall=10, rate=20)
    for _ in range(2 * (os.cpu_count() or 1)):
        stack.enter_context(running(sys.executable, "-c", BUSY))
    wait_until(lambda: rig.states()["IDLE"] > 0, 60, "some went down")
    assert rig.causes("IDLE") == {"pressure"}
    assert any(one["name"] == "pressure" for one in rig.daemon.status()["attention"])
