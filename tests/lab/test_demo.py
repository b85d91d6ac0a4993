# SPDX-License-Identifier: Apache-2.0
"""`roost demo`, small: it holds what it claims, its numbers fit together, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from appliance.lab import wait_until
from appliance.lab.processes import ROOT, python_environment
from tests.lab.traces import MARK, leftovers_of, started_by

pytestmark = pytest.mark.alone(
    "it weighs a kernel socket by /proc/slabinfo, which counts every other test's sockets too"
)

CLIENTS = 500
COMMAND = [sys.executable, "-m", "control.cli.main", "demo", "--clients", str(CLIENTS)]


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demo is to draw it."""
    return tmp_path_factory.mktemp("demo") / "demo.svg"


@pytest.fixture(scope="module")
def finished(picture: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "--json", "--picture", str(picture)],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def told(finished: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(finished.stdout)  # fails if anything else was printed
    return outcome


def test_the_demo_holds_what_it_claims(finished: subprocess.CompletedProcess[str], told: dict[str, Any]) -> None:
    assert [check for check in told["checks"] if not check["ok"]] == []
    assert told["ok"] is True
    assert finished.returncode == 0
    assert finished.stderr == ""


def test_every_client_of_the_demo_is_accounted_for(told: dict[str, Any]) -> None:
    assert told["connected"] == told["clients"] == CLIENTS
    assert told["memory"]["connections"] == CLIENTS
    assert told["absence"]["adopted"] == CLIENTS
    assert told["absence"]["silent_clients"] == 0
    assert told["lost"] == {}
    assert 0 < told["peak_awake"] <= CLIENTS


def test_the_demos_memory_figures_add_up(told: dict[str, Any]) -> None:
    memory = told["memory"]
    assert 2000 < memory["kernel_socket_bytes"] < 10_000
    assert memory["kernel_sockets_bytes"] == pytest.approx(memory["kernel_socket_bytes"] * CLIENTS, rel=1e-3)
    assert memory["tables_bytes_per_connection"] == pytest.approx(memory["tables_bytes"] / CLIENTS, abs=0.1)
    own = memory["tables_bytes"] + memory["daemon_growth_bytes"]
    assert memory["bytes_per_connection"] == pytest.approx(own / CLIENTS, abs=0.1)


@pytest.mark.parametrize("part", ["reached_asleep", "reached_after_crash"])
def test_a_server_reaches_each_sleeping_client_it_wants(told: dict[str, Any], part: str) -> None:
    reached = told[part]
    assert reached["answered"] == reached["asked"] == 200
    assert reached["failed"] == {}
    assert 0 < reached["p50_us"] <= reached["p90_us"] <= reached["p99_us"] <= reached["max_us"]


def test_xdp_answers_keepalives_while_there_is_no_daemon(told: dict[str, Any]) -> None:
    absence = told["absence"]
    assert absence["seconds"] > absence["heard_after_s"] > 10
    assert absence["keepalives_answered"] >= 3 * CLIENTS


def test_the_demos_steps_make_up_its_time(told: dict[str, Any]) -> None:
    assert told["seconds"] == pytest.approx(sum(step["seconds"] for step in told["steps"]), abs=0.01)
    assert told["seconds"] < 120


def lines_of(picture: Path) -> list[str]:
    """Its text, # for each number."""
    lines: dict[str, str] = defaultdict(str)
    for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text"):
        lines[text.get("clip-path", "")] += " " + (text.text or "")
    return [" ".join(re.sub(r"\d[\d,.]*", " # ", line).split()) for line in lines.values()]


def test_the_picture_in_the_docs_is_what_the_demo_draws(told: dict[str, Any], picture: Path) -> None:
    """A new one: sudo ./roost demo --picture docs/demo.svg"""
    assert told["ok"]
    shown = lines_of(ROOT / "docs" / "demo.svg")
    few = [line for line in shown if "costs less than a kernel socket" not in line]
    assert len(shown) == len(few) + 1, "of few clients the demo does not claim that"
    assert lines_of(picture) == few
    assert "://" not in re.sub(r'xmlns="[^"]*"|<!--.*?-->', "", picture.read_text()), "it loads nothing"


@pytest.mark.parametrize(("number", "after_s"), [(signal.SIGINT, 0.0), (signal.SIGINT, 3.0), (signal.SIGTERM, 4.0)])
def test_an_interrupted_demo_leaves_nothing_behind(number: signal.Signals, after_s: float) -> None:
    """after_s: since the lab began to be made; 0: while it is being made."""
    mark = str(time.monotonic_ns())
    demo = subprocess.Popen(
        COMMAND,
        env=python_environment({MARK: mark}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    wait_until(lambda: bool(leftovers_of(demo.pid)), 20, "the demo makes its lab", every_s=0.005)
    time.sleep(after_s)
    assert len(started_by(mark)) > (1 if after_s else 0)
    os.killpg(demo.pid, number)  # as the terminal does: the whole foreground group gets it
    _, errors = demo.communicate(timeout=20)
    assert demo.returncode == 130
    assert errors == "Ended early; nothing is left behind.\n"
    assert leftovers_of(demo.pid) == []
    assert started_by(mark) == []
