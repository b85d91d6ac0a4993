# SPDX-License-Identifier: Apache-2.0
"""`roost report` on a cluster of Spark's, one master and two workers on this machine: the same tables as without."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from appliance.lab import wait_until
from appliance.lab.processes import python_environment
from tests.bench.report import make

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

ROWS = 20_000
CLASS = Path(pyspark.__file__).with_name("bin") / "spark-class"


class Cluster:
    """Each of its programs leads a process group of its own: with a worker its executor ends."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        self.workers: list[subprocess.Popen[bytes]] = []
        self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0",
                    "--webui-port", "0")  # fmt: skip
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
        for name in ("one", "two"):
            self.workers.append(
                self._start(name, "org.apache.spark.deploy.worker.Worker", self.url, "--host", "127.0.0.1",
                            "--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(directory / name))
            )  # fmt: skip
            self._said(name, r"Successfully registered with master (\S+)")

    def _start(self, name: str, *argv: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._directory / f"{name}.log").open("wb"))
        env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(self._directory)}
        ends_with_us = ["setpriv", "--pdeathsig", "KILL"]
        process = subprocess.Popen(
            [*ends_with_us, CLASS, *argv], stdout=log, stderr=log, env=env, start_new_session=True
        )
        self._stack.callback(self.kill, process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _said(self, name: str, pattern: str) -> str:
        found: list[str] = []

        def says() -> bool:
            found.extend(re.findall(pattern, (self._directory / f"{name}.log").read_text(errors="replace")))
            return bool(found)

        wait_until(says, 60, f"{name} has begun")
        return found[0]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with ExitStack() as stack:
        yield Cluster(stack, directory)


@contextmanager
def report(data: Path, out: Path, master: str) -> Iterator[subprocess.Popen[str]]:
    """It does not outlast the test, whatever ends that; Java ends with it."""
    argv = [sys.executable, "-m", "control.cli.main", "report", str(data), "--out", str(out), "--master", master,
            "--scratch", str(out.parent), "--memory", "700m"]  # fmt: skip
    env = {**python_environment(), "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def make_report(data: Path, out: Path, master: str) -> None:
    with report(data, out, master) as process:
        told = process.communicate(timeout=1000)[1]
        assert process.returncode == 0, told


def same(one: Path, other: Path) -> None:
    tables = sorted(path.name for path in one.glob("*.parquet"))
    assert len(tables) >= 5
    assert tables == sorted(path.name for path in other.glob("*.parquet"))
    for name in tables:
        here, there = (pq.read_table(place / name) for place in (one, other))
        assert here.num_rows == there.num_rows
        for column in here.column_names:
            first, second = here[column].to_pylist(), there[column].to_pylist()
            is_number = any(isinstance(value, float) for value in first)
            assert first == (pytest.approx(second) if is_number else second), (name, column)


def test_a_cluster_makes_the_same_tables_and_a_killed_worker_changes_nothing(tmp_path: Path, cluster: Cluster) -> None:
    data = tmp_path / "data"
    make(data, ROWS)
    make_report(data, tmp_path / "local", "local[2]")
    make_report(data, tmp_path / "cluster-out", cluster.url)
    same(tmp_path / "local", tmp_path / "cluster-out")

    killed = threading.Event()
    with report(data, tmp_path / "killed", cluster.url) as process:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if "finding how long" in line and not killed.is_set():  # it has rows to lose that are sorted
                time.sleep(2)
                cluster.kill(cluster.workers[0])
                killed.set()
        assert (process.wait(), killed.is_set()) == (0, True), told
    same(tmp_path / "local", tmp_path / "killed")
