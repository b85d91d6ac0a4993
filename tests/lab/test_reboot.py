# SPDX-License-Identifier: Apache-2.0
"""A machine reboots: none of its clients hears an RST meanwhile, and what was IDLE has a row by then."""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from appliance.lab import DaemonHandle, Lab, wait_until
from appliance.lab.service_manager import ServiceManager
from control.daemon.end import STILL_S
from tests.reboot import age, in_quarantine, quarantined

CLIENTS, PORT = 20, 8000
QUIET = {"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": "300ms"}
PROBE_S = 1  # of the clients' kernels
SILENT_S = 3 * PROBE_S


def asleep(daemon: DaemonHandle) -> Callable[[], bool]:
    return lambda: daemon.status()["connections"]["SLEEP"] == CLIENTS


@pytest.mark.parametrize(
    ("service", "router"),
    [({}, None), ({"interface": "persistent"}, None), ({"interface": "persistent"}, {})],
    ids=["transient", "persistent", "router"],
)
def test_a_reboot_resets_none(service: dict[str, Any], router: dict[str, Any] | None) -> None:
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy=QUIET, service=service, router=router))
        clients = lab.swarm()
        at = lab.address("lan", "eth0") if router is not None else lab.address("box", "wan0")
        options = {"keepidle_s": PROBE_S, "keepintvl_s": PROBE_S, "keepcnt": 100}
        assert clients.connect(CLIENTS, (at, PORT), **options).connected == CLIENTS
        wait_until(asleep(daemon), 20, "all sleep")
        daemon.terminate()
        assert quarantined(lab, daemon) == 0
        daemon.unpin()  # as a reboot does it
        time.sleep(SILENT_S)
        assert clients.hearing(SILENT_S * 1000 - 500).silent == CLIENTS, "nothing answers them"
        assert (clients.stats().open, clients.stats().dead) == (CLIENTS, {})
        daemon.start()
        wait_until(lambda: not in_quarantine(lab), 20, "all are in the table")
        assert clients.say(CLIENTS).answered == CLIENTS


@pytest.mark.parametrize(("interface", "late"), [("transient", "wan0"), ("persistent", "lan0")])
def test_an_interface_that_comes_late_resets_none(interface: str, late: str) -> None:
    """Rows are in the table long before."""
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy=QUIET, service={"interface": interface}))
        clients = lab.swarm()
        at = lab.address("box", "wan0"), PORT
        options = {"keepidle_s": PROBE_S, "keepintvl_s": PROBE_S, "keepcnt": 100}
        assert clients.connect(CLIENTS, at, **options).connected == CLIENTS
        wait_until(asleep(daemon), 20, "all sleep")
        daemon.terminate()
        assert quarantined(lab, daemon) == 0
        daemon.unpin()
        lab.remove_link("box", late)
        try:
            daemon.start()
            assert daemon.status()["waiting"]
            time.sleep(2)
            assert in_quarantine(lab)
        finally:
            lab.renew_link("box", late)
        wait_until(lambda: not in_quarantine(lab), 20, "nothing is waited for")
        assert clients.say(CLIENTS).answered == CLIENTS


@pytest.mark.parametrize(
    ("told", "interface", "kept"),
    [("stopping", "transient", CLIENTS), ("stopping", "persistent", CLIENTS), ("running", "transient", 0)],
)
def test_the_end_of_the_machine_writes_what_is_idle(tmp_path: Path, told: str, interface: str, kept: int) -> None:
    """`systemctl is-system-running` says whether it is that, or the end of the service alone."""
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        config = lab.config(PORT, policy={**QUIET, "idle_quiet": "1h"}, service={"interface": interface})
        with ServiceManager(lab.daemon(config, start=False), tmp_path) as manager:
            daemon = manager.daemon
            manager.start()
            clients = lab.swarm()
            assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
            wait_until(lambda: daemon.status()["connections"]["IDLE"] == CLIENTS, 20, "all are idle")
            began = time.monotonic()
            manager.stop(goes_down=told == "stopping")
            assert time.monotonic() - began < STILL_S, "all rows are written, and no other is waited for"
            assert quarantined(lab, daemon) == 0
            daemon.unpin()
            manager.start()
            wait_until(lambda: not in_quarantine(lab), 20, "all are in the table")
            assert clients.say(CLIENTS).answered == kept


def test_the_end_of_the_machine_writes_those_that_were_born_asleep_and_never_spoke(tmp_path: Path) -> None:
    with Lab(clients=CLIENTS) as lab, ServiceManager(lab.daemon(config_of_born(lab), start=False), tmp_path) as manager:
        lab.server(PORT)
        manager.start()
        at = lab.address("box", "wan0"), PORT
        with ExitStack() as sockets:
            with lab.enter("wan"):
                clients = [sockets.enter_context(socket.create_connection(at, 5)) for _ in range(CLIENTS)]
            wait_until(lambda: manager.daemon.status()["counters"]["born"] == CLIENTS, 5, "all are born asleep")
            manager.stop(goes_down=True)
            assert quarantined(lab, manager.daemon) == 0
            manager.daemon.unpin()
            manager.start()
            wait_until(lambda: not in_quarantine(lab), 20, "all are in the table")
            for number, client in enumerate(clients):
                client.sendall(f"HELLO c{number:06d}\n".encode())
                assert client.recv(100) == f"WELCOME c{number:06d}\n".encode()


def config_of_born(lab: Lab) -> dict[str, Any]:
    return lab.config(PORT, policy={**QUIET, "idle_quiet": "1h"}, service={"born": "always"}, table={"idle": 10})


def test_where_a_daemon_runs_none_begins() -> None:
    with Lab(clients=1) as lab:
        daemon = lab.daemon(lab.config(PORT))
        assert quarantined(lab, daemon) == 0
        assert not in_quarantine(lab)


def test_new_clients_come_while_it_lasts() -> None:
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT), start=False)
        assert quarantined(lab, daemon) == 0
        kept = lab.nft("box", "list ruleset")
        daemon.start()
        wait_until(lambda: not in_quarantine(lab), 20, "it ends")
        lab.nft("box", kept)
        clients = lab.swarm()
        assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
        assert clients.say(CLIENTS).answered == CLIENTS
        assert in_quarantine(lab)


def test_it_lasts_until_rows_can_be_read() -> None:
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy=QUIET))
        clients = lab.swarm()
        options = {"keepidle_s": PROBE_S, "keepintvl_s": PROBE_S, "keepcnt": 100}
        assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT), **options).connected == CLIENTS
        wait_until(asleep(daemon), 20, "all sleep")
        daemon.terminate()
        assert quarantined(lab, daemon) == 0
        daemon.unpin()
        database = lab.workspace / "roost.db"
        with closing(sqlite3.connect(database)) as rows, rows:
            age(rows)
        away = database.rename(lab.workspace / "away.db")
        database.mkdir()  # it can be neither read nor made
        daemon.start()
        time.sleep(SILENT_S)
        assert in_quarantine(lab)
        assert (clients.stats().open, clients.stats().dead) == (CLIENTS, {})
        database.rmdir()
        away.rename(database)
        wait_until(lambda: not in_quarantine(lab), 40, "all are in the table")
        assert clients.say(CLIENTS).answered == CLIENTS


@pytest.mark.parametrize("wrong_s", [3600, -3600, 40 * 86_400, -40 * 86_400])
@pytest.mark.parametrize("interface", ["transient", "persistent"])
def test_a_clock_that_is_wrong_stalls_none(wrong_s: int, interface: str) -> None:
    """Of the boot before: it was ahead by so much. Clients drop what has a TSval from before the last one."""
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy=QUIET, service={"interface": interface}))
        clients = lab.swarm()
        assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
        wait_until(asleep(daemon), 20, "all sleep")
        daemon.terminate()
        daemon.unpin()
        with closing(sqlite3.connect(lab.workspace / "roost.db")) as rows, rows:
            age(rows)
            rows.execute(f"UPDATE clocks SET wall_offset_ms = wall_offset_ms + {wrong_s * 1000} "
                         "WHERE boot_id = 'the boot before'")  # fmt: skip
        daemon.start()
        wait_until(lambda: not in_quarantine(lab), 20, "all are in the table")
        assert clients.say(CLIENTS, timeout_s=5).answered == CLIENTS
        wait_until(asleep(daemon), 20, "all sleep again")
        with closing(sqlite3.connect(lab.workspace / "roost.db")) as history:
            assert history.execute("SELECT count(*) FROM history_1 WHERE gap_ms < 0").fetchone() == (0,)
