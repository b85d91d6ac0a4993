# SPDX-License-Identifier: Apache-2.0
"""Bad days on which something runs short (docs/operations.md): descriptors, memory, a disk. Pressure, by which quiet
connections go down a step before that: test_monitor.py, test_pressure.py."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.lab import Lab, wait_until
from tests.disk import fill, small_disk
from tests.lab.bad_day import Box


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(clients=200) as lab:
        yield lab


def test_a_daemon_without_a_descriptor_loses_none_and_goes_on_when_it_has_some(lab: Lab) -> None:
    """It can be asked for nothing meanwhile, not even for its status: that takes one, too."""
    with Box(lab) as box:
        soft, hard = resource.prlimit(box.daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(box.daemon.pid, resource.RLIMIT_NOFILE, (3, hard))
        try:
            answered = box.all_speak()
            box.pause(6)
            box.none_lost()
        finally:
            resource.prlimit(box.daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))
        answered()
        box.told("wakes_refused", "could not wake")
        assert box.logged("Too many open files")
        box.over("waiting")
        box.over("store")
        box.all_answered()
        box.history_is_whole()
        assert box.attention().keys() <= {"wakes_refused", "thaw_failed"}, "for five minutes"


TO_A_FILE = 'exec "$@" 2>>"$0"'


def test_a_full_disk_of_the_log_and_of_exports_stops_neither_for_good(lab: Lab, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "4m") as disk:
        box, log = Box(lab), disk / "log"
        box.start(under=["sh", "-c", TO_A_FILE, str(log)])
        box.come()
        export = [sys.executable, "-m", "control.cli.main", "export", "-c", str(box.daemon.config), str(disk / "out")]
        filler = fill(disk)
        for _ in range(100):
            os.kill(box.daemon.pid, signal.SIGHUP)  # the log tells of each
            time.sleep(0.01)
        box.all_answered()
        refused = lab.run("box", export, stderr=subprocess.PIPE)
        assert refused.wait(30) == 1
        assert refused.popen.stderr is not None
        assert f"{disk / 'out'}: No space left on device" in refused.popen.stderr.read().decode()
        filler.unlink()
        size = log.stat().st_size
        os.kill(box.daemon.pid, signal.SIGHUP)
        wait_until(lambda: log.stat().st_size > size, 5, "the log goes on")
        assert lab.run("box", export).wait(30) == 0
        assert list((disk / "out").glob("**/*.parquet"))
        box.all_answered()
        box.history_is_whole()
        assert box.attention() == {}
        box.daemon.kill()


FEW_SLOTS, NEARLY_ALL = 56, 26  # of clients in each state: 52 slots are taken, at which the table is to grow


@pytest.mark.soak
def test_a_table_that_cannot_grow_for_want_of_memory_costs_no_client_and_grows_when_there_is_some(
    lab: Lab, tmp_path: Path
) -> None:
    """The daemon has a /proc/meminfo of its own; it tries every 30 s."""
    told = tmp_path / "meminfo"
    told.write_text("MemAvailable: 1024 kB\n")
    box = Box(lab, each=NEARLY_ALL, table={"ipv4": FEW_SLOTS, "grow": True})
    box.start(under=["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"', str(told)])
    box.come()
    box.told("tables_not_grown", "could not grow")
    assert box.logged("[table] ipv4 is nearly full and cannot grow: a quarter of the machine's memory stays available")
    box.heard()
    box.all_answered()
    told.write_text("MemAvailable: 1024000000 kB\n")
    wait_until(lambda: box.daemon.status()["counters"]["tables_grown"] > 0, 40, "it has grown")
    box.heard()
    box.all_answered()
    box.history_is_whole()
    assert set(box.attention()) == {"tables_not_grown"}, "for five minutes"
