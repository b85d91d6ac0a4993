# SPDX-License-Identifier: Apache-2.0
"""The monitor: which thresholds are reached, how many go down for them, and what is read of the machine."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from appliance.box import shortage
from appliance.box.shortage import Shortage
from appliance.wire import Op
from control.config import Pressure
from control.core.states import Cause, State
from control.dispatch.monitor import Monitor
from control.policy.pressure import THRESHOLDS, Load, Relief
from tests.unit.fake_engine import FakeEngine

NOTHING = Shortage(None, None, None, None)


def load(awake: int = 0, idle: int = 0, counted: dict[str, tuple[int, int]] | None = None,
         shares: dict[str, float] | None = None) -> Load:  # fmt: skip
    return Load(counted or {}, shares or {}, awake, idle)


def settings(**keys: Any) -> Pressure:
    return Pressure(**(dict.fromkeys(THRESHOLDS, 0) | keys))


@pytest.mark.parametrize(
    ("key", "relief"),
    [
        ("memory", Relief(50, 100)),
        ("memory_stall", Relief(50, 100)),
        ("cpu_stall", Relief(50, 0)),
        ("descriptors", Relief(50, 0)),
    ],
)
def test_a_share_moves_what_helps_a_part_at_a_time(key: str, relief: Relief) -> None:
    wanted = settings(**{key: 90}, rate=5)
    here = load(1000, 2000, shares={key: 0.9})
    assert here.relief(wanted, here.reached(wanted, {})) == relief
    below = load(1000, 2000, shares={key: 0.89})
    assert below.relief(wanted, below.reached(wanted, {})) == Relief()


def test_what_is_counted_moves_as_many_as_are_too_many_and_those_in_idle_first() -> None:
    wanted = settings(connections=1000, clear=10)
    for awake, idle, relief in ((100, 899, Relief()), (100, 900, Relief(0, 100)), (950, 100, Relief(50, 100))):
        here = load(awake, idle, {"connections": (awake + idle, 1000)})
        assert here.relief(wanted, here.reached(wanted, {})) == relief


def test_records_of_idle_connections_are_given_back_by_those_in_idle_alone() -> None:
    wanted = settings(idle=90, clear=5)
    here = load(500, 95, {"idle": (95, 100)})
    assert here.relief(wanted, here.reached(wanted, {})) == Relief(0, 10)


def test_what_was_reached_is_so_until_it_is_clear() -> None:
    wanted = settings(memory=90, clear=5)
    shares = [0.89, 0.9, 0.86, 0.85, 0.849, 0.89]
    before: Any = {}
    told = []
    for share in shares:
        before = load(shares={"memory": share}).reached(wanted, before)
        told.append(bool(before))
    assert told == [False, True, True, True, False, False]


@pytest.mark.parametrize("key", THRESHOLDS)
def test_each_threshold_that_may_be_given_is_over_when_nothing_is_short(key: str) -> None:
    counted = {"connections": (0, 10), "idle": (0, 10)}
    for limit in (0.01, 5, 5.01, 50, 50.01, 100):
        for clear in (0.01, 5, 50):
            with suppress(ValidationError):
                wanted = settings(**{key: round(limit) or 1 if key == "connections" else limit}, clear=clear)
                nothing = load(0, 0, counted, dict.fromkeys(set(THRESHOLDS) - set(counted), 0.0))
                assert nothing.reached(wanted, {key: 1.0}) == {}, (limit, clear)


def test_a_threshold_of_0_is_never_reached() -> None:
    here = load(10, 10, {"connections": (20, 0), "idle": (10, 10)}, {"memory": 1.0, "cpu_stall": 1.0})
    assert here.reached(settings(), {}) == {}


def test_the_monitor_orders_what_goes_down_and_tells_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine, states, found = FakeEngine(), [0] * len(State), [NOTHING]
    states[State.ACTIVE], states[State.STANDBY], states[State.IDLE] = 60, 40, 1000
    monitor = Monitor(engine, lambda: states, lambda: settings(memory=90, rate=10), lambda: found[-1])
    monitor.look()
    assert (engine.commands, monitor.status()["reached"]) == ([], {})
    found.append(Shortage(0.95, None, None, None))
    monitor.look()
    assert [(c.op, c.count, c.cause) for c in engine.commands] == [
        (Op.PRESSURE, 10, Cause.PRESSURE),
        (Op.DESCEND, 100, Cause.PRESSURE),
    ]
    assert monitor.status() == {"reached": {"memory": 95.0}, "asked": {"awake": 10, "idle": 100}}
    found.append(NOTHING)
    monitor.look()
    assert len(engine.commands) == 2
    said = [record.message for record in caplog.records]
    assert said == ["[pressure] memory is reached, 95 %: quiet connections go down", "[pressure] memory: it is over"]


# What is read


def machine(root: Path, **files: str) -> Path:
    """A file system with these files; `__` stands for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\n"
PSI = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def test_memory_of_the_machine_counts_where_no_cgroup_has_a_limit(tmp_path: Path) -> None:
    found = shortage.read(machine(tmp_path, proc__meminfo=MEMINFO, proc__pressure__memory=PSI.format("12.50")))
    assert found.memory == pytest.approx(0.6)
    assert (found.memory_stall, found.cpu_stall) == (0.125, None)


def test_the_limit_of_any_cgroup_on_the_way_up_counts(tmp_path: Path) -> None:
    group = "sys__fs__cgroup__system.slice"
    files = {
        "proc__meminfo": MEMINFO,
        "proc__self__cgroup": "0::/system.slice/roost.service\n",
        f"{group}__memory.max": "100000\n",
        f"{group}__memory.current": "95000\n",
        f"{group}__memory.stat": "anon 1\ninactive_file 5000\n",
        f"{group}__roost.service__cgroup.procs": "1\n",
        f"{group}__roost.service__memory.max": "max\n",
        f"{group}__roost.service__cpu.pressure": PSI.format("50.00"),
        "proc__pressure__cpu": PSI.format("99.00"),
    }
    found = shortage.read(machine(tmp_path, **files))
    assert found.memory == pytest.approx(0.9)
    assert found.cpu_stall == 0.5, "of our cgroup, and not of the machine"


@pytest.mark.parametrize(("limit", "share"), [("50000", 0.8), ("9223372036854771712", 0.6)])
def test_the_first_version_of_cgroups_is_read_too(tmp_path: Path, limit: str, share: float) -> None:
    group = "sys__fs__cgroup__memory__box"
    files = {
        "proc__meminfo": MEMINFO,
        "proc__self__cgroup": "4:memory:/box\n1:cpu:/\n0::/\n",
        f"{group}__cgroup.procs": "1\n",
        f"{group}__memory.limit_in_bytes": limit,
        f"{group}__memory.usage_in_bytes": "41000",
        f"{group}__memory.stat": "total_inactive_file 1000\n",
    }
    assert shortage.read(machine(tmp_path, **files)).memory == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "x", "some\n", "MemTotal: much kB\n"])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, text: str) -> None:
    files = dict.fromkeys(
        ("proc__meminfo", "proc__self__cgroup", "proc__pressure__cpu", "proc__pressure__memory"), text
    )
    assert shortage.read(machine(tmp_path, **files)) == NOTHING


def test_this_machine_tells() -> None:
    before = shortage.read()
    assert before.memory is not None
    assert 0 < before.memory < 1
    assert before.descriptors is not None
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    try:
        after = shortage.read().descriptors
    finally:
        for fd in opened:
            os.close(fd)
    assert after is not None
    assert after > before.descriptors
