# SPDX-License-Identifier: Apache-2.0
"""The units of systemd (vagrant/systemd): how little they may do, and that the daemon does with that."""

from __future__ import annotations

import queue
import re
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from appliance.lab import Lab, wait_until
from tests.mutants import ROOT

UNITS = ROOT / "vagrant" / "systemd"
CLIENTS, PORT = 50, 8000
QUIET = {"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": "300ms"}


def setting(unit: str, name: str) -> list[str]:
    """The words of all lines that set it."""
    lines = (UNITS / f"{unit}.service").read_text().splitlines()
    return [word for line in lines if line.startswith(f"{name}=") for word in line.removeprefix(f"{name}=").split()]


def confined(unit: str) -> list[str]:
    """Runs a program with the unit's capabilities."""
    some = "".join(f",+{name.removeprefix('CAP_').lower()}" for name in setting(unit, "CapabilityBoundingSet"))
    assert setting(unit, "NoNewPrivileges") == ["yes"]
    return ["setpriv", "--no-new-privs", "--inh-caps=-all", f"--bounding-set=-all{some}", "--"]


@pytest.mark.parametrize(("unit", "most"), [("roost", 3.0), ("roost-api", 1.5), ("roost-quarantine", 3.0)])
def test_units_are_exposed_no_more_than_they_may_be(unit: str, most: float) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNITS / f"{unit}.service")]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", told.stdout)
    assert found, told.stderr
    assert float(found[1]) <= most, told.stdout


@pytest.mark.parametrize("unit", ["roost", "roost-api", "roost-quarantine"])
def test_units_have_nothing_that_systemd_does_not_know(unit: str, tmp_path: Path) -> None:
    text = (UNITS / f"{unit}.service").read_text().replace("/usr/bin/roost", "/bin/true")
    (tmp_path / f"{unit}.service").write_text(text)
    told = subprocess.run(["systemd-analyze", "verify", "--man=no", str(tmp_path / f"{unit}.service")],
                          capture_output=True, text=True, check=False)  # fmt: skip
    wrong = [line for line in told.stderr.splitlines() if unit in line and "Unit roost" not in line]
    assert wrong == []


def test_the_daemon_needs_no_more_than_its_unit_lets_it(tmp_path: Path) -> None:
    with Lab(clients=CLIENTS) as lab, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        said = queue.SimpleQueue[bytes]()

        def listen() -> None:
            while told := manager.recv(4096):
                said.put(told)

        listening = threading.Thread(target=listen, daemon=True)
        listening.start()
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000"}

        def heard(what: bytes) -> None:
            while not said.get(timeout=20).startswith(what):
                pass

        def start() -> None:
            daemon.start(under=confined("roost"), environment=environment)
            heard(b"READY=1\nSTATUS=serves ")
            heard(b"WATCHDOG=1")

        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy=QUIET), start=False)
        start()
        swarm = lab.swarm()
        assert swarm.connect(CLIENTS, (lab.address("box", "wan0"), PORT), keepidle_s=2, keepintvl_s=2).failed == {}
        wait_until(lambda: daemon.status()["connections"]["SLEEP"] == CLIENTS, 30, "all asleep")
        daemon.kill()
        start()
        daemon.act(daemon.connections(state="SLEEP")[0]["id"], "wake")
        assert daemon.terminate() == 0
        heard(b"STOPPING=1")
        start()
        assert daemon.status()["connections"]["SLEEP"] >= CLIENTS - 1
        assert "Operation not permitted" not in daemon.log.read_text()
        assert swarm.stats().open == CLIENTS
        manager.shutdown(socket.SHUT_RD)
        listening.join(5)


def test_the_daemon_ends_before_its_addresses_go_and_is_begun_by_nobody_who_only_needs_it() -> None:
    assert "keepalived.service" in setting("roost", "After")
    assert setting("roost-api", "After") == ["roost.service"]
    assert [setting("roost-api", how) for how in ("Wants", "Requires", "BindsTo", "Upholds")] == [[], [], [], []]
