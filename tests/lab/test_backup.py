# SPDX-License-Identifier: Apache-2.0
"""A machine is lost with its database and its configuration: by a backup that was made while it ran, another one takes
its place, and no client hears an RST."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from appliance.lab import DaemonHandle, Lab, wait_until
from appliance.lab.processes import ROOT
from tests.lab.test_reboot import PROBE_S, SILENT_S
from tests.reboot import in_quarantine, quarantined

CLIENTS, BUSY, STALE, PORT = 20, 10, 4, 8000
QUIET = {"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": "300ms"}
PATIENT = {"keepidle_s": PROBE_S, "keepintvl_s": PROBE_S, "keepcnt": 100}


def roost(lab: Lab, *words: str) -> str:
    """What a command says, in the appliance."""
    with lab.enter("box"):
        done = subprocess.run([sys.executable, "-m", "control.cli.main", *words], cwd=ROOT, capture_output=True,
                              text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def slept(daemon: DaemonHandle, count: int) -> None:
    wait_until(lambda: daemon.status()["connections"]["SLEEP"] == count, 20, "all sleep")


def lose(lab: Lab, daemon: DaemonHandle) -> None:
    """Nothing of the machine is left, nor answers."""
    daemon.kill()
    lab.nft("box", "add table inet lost; add chain inet lost in { type filter hook input priority 0; policy drop; }")
    daemon.unpin()
    for path in (daemon.config, *lab.workspace.glob("roost.db*")):
        path.unlink()


def replace(lab: Lab, daemon: DaemonHandle, backup: Path) -> None:
    """Another machine has what was saved, and then the address."""
    paths = {"database": lab.workspace / "roost.db", "control_socket": daemon.control_socket, "pin_dir": daemon.pin_dir}
    lines = [f'{key} = "{path}"' for key, path in paths.items()]
    daemon.config.write_text("\n".join(["[paths]", *lines, ""]))  # none of them is where it is by default
    roost(lab, "restore", str(backup), "-c", str(daemon.config), "--with-config", "--force")
    assert quarantined(lab, daemon) == 0
    lab.nft("box", "delete table inet lost")


@pytest.mark.parametrize("interface", ["transient", "persistent"])
def test_by_a_backup_another_machine_wakes_all_that_slept(tmp_path: Path, interface: str) -> None:
    """Some are in SLEEP, and some in IDLE get their rows for the backup. Others wake and sleep meanwhile."""
    with Lab(clients=CLIENTS + BUSY) as lab:
        lab.server(PORT)
        service = {"interface": interface}
        daemon = lab.daemon(lab.config(PORT, policy={**QUIET, "idle_quiet": "1h"}, service=service))
        at = lab.address("box", "wan0"), PORT
        clients, busy = lab.swarm(), lab.swarm()
        assert clients.connect(CLIENTS // 2, at, **PATIENT).connected == CLIENTS // 2
        wait_until(lambda: daemon.status()["connections"]["IDLE"] == CLIENTS // 2, 20, "some are idle")
        roost(lab, "job", "start", "sleep", "--state", "idle", "-c", str(daemon.config))
        slept(daemon, CLIENTS // 2)
        assert clients.connect(CLIENTS // 2, at, **PATIENT).connected == CLIENTS // 2
        wait_until(lambda: daemon.status()["connections"]["IDLE"] == CLIENTS // 2, 20, "the others are idle")
        said = roost(lab, "backup", str(tmp_path / "early"), "-c", str(daemon.config))
        assert f"with {CLIENTS // 2} sleeping connections" in said
        assert f"{CLIENTS // 2} connections in IDLE, 0 awake" in said
        roost(lab, "job", "start", "sleep", "--state", "idle", "-c", str(daemon.config))
        slept(daemon, CLIENTS)

        assert busy.connect(BUSY, at).connected == BUSY
        over = threading.Event()

        def wake_and_sleep() -> None:
            while not over.is_set():
                assert busy.say(BUSY).answered == BUSY

        thread = threading.Thread(target=wake_and_sleep)
        thread.start()
        try:
            for _ in range(3):
                roost(lab, "backup", str(tmp_path / "late"), "--force", "-c", str(daemon.config))
        finally:
            over.set()
            thread.join()
        busy.close()
        wait_until(lambda: sum(daemon.status()["connections"].values()) == CLIENTS, 20, "the busy ones are gone")

        lose(lab, daemon)
        replace(lab, daemon, tmp_path / "late")
        time.sleep(SILENT_S)
        assert clients.hearing(SILENT_S * 1000 - 500).silent == CLIENTS, "nothing answers them"
        daemon.start()
        wait_until(lambda: not in_quarantine(lab), 20, "all are in the table")
        assert (clients.stats().open, clients.stats().dead) == (CLIENTS, {})
        assert clients.say(CLIENTS).answered == CLIENTS


def test_probes_find_what_ended_or_spoke_after_the_backup(tmp_path: Path) -> None:
    """Of what spoke the backup has old sequence numbers, which its client does not answer."""
    probed = {"probe_interval": "2s", "probe_retry": "1s", "probe_count": 2}
    with Lab(clients=CLIENTS + 2 * STALE) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy={**QUIET, **probed}))
        at = lab.address("box", "wan0"), PORT
        clients, ended, spoke = lab.swarm(), lab.swarm(), lab.swarm()
        assert clients.connect(CLIENTS, at, **PATIENT).connected == CLIENTS
        assert ended.connect(STALE, at).connected == STALE
        assert spoke.connect(STALE, at, **PATIENT).connected == STALE
        slept(daemon, CLIENTS + 2 * STALE)
        roost(lab, "backup", str(tmp_path / "box"), "-c", str(daemon.config))
        ended.close()
        assert spoke.say(STALE).answered == STALE
        slept(daemon, CLIENTS + STALE)
        lose(lab, daemon)
        replace(lab, daemon, tmp_path / "box")
        daemon.start()
        wait_until(lambda: not in_quarantine(lab), 20, "all are in the table")
        slept(daemon, CLIENTS)
        assert spoke.say(STALE, timeout_s=5).answered == 0
        assert spoke.stats().dead == {"ECONNRESET": STALE}, "they may connect again"
        assert clients.say(CLIENTS).answered == CLIENTS
        assert clients.stats().dead == {}
