# SPDX-License-Identifier: Apache-2.0
"""A restart of the service keeps awake connections as they are: neither end hears of it, and no byte is lost."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from appliance.lab import DaemonError, Lab, wait_until
from appliance.lab.service_manager import ServiceManager

CLIENTS, PORT = 20, 8000
AWAKE = {"active_quiet": "never", "standby_quiet": "never", "idle_quiet": "never"}


def test_what_is_awake_goes_on(tmp_path: Path) -> None:
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy=AWAKE), start=False)
        with ServiceManager(daemon, tmp_path) as manager:
            manager.start()
            clients = lab.swarm()
            assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
            assert clients.say(CLIENTS).answered == CLIENTS
            before = sorted(row["id"] for row in daemon.connections())
            assert daemon.status()["connections"]["ACTIVE"] == CLIENTS
            for _ in range(2):
                manager.restart()
                assert sorted(row["id"] for row in daemon.connections()) == before
                assert daemon.status()["connections"]["ACTIVE"] == CLIENTS
                assert clients.say(CLIENTS).answered == CLIENTS
            assert (clients.stats().open, clients.stats().dead) == (CLIENTS, {})
            manager.hear()
            assert not manager.kept


def test_a_daemon_that_does_not_start_loses_nothing(tmp_path: Path) -> None:
    """Its configuration is not good, twice; meanwhile a bridge moves what is said."""
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy=AWAKE), start=False)
        with ServiceManager(daemon, tmp_path) as manager:
            manager.start()
            clients = lab.swarm()
            assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
            assert clients.say(CLIENTS).answered == CLIENTS
            before = sorted(row["id"] for row in daemon.connections())
            manager.stop("restart")
            good = daemon.config.read_text()
            for _ in range(3):
                daemon.config.write_text("nonsense")
                with pytest.raises(DaemonError, match="not TOML"):
                    manager.start(5)
                manager.hear()
                assert len(manager.kept) == 1
            daemon.config.write_text(good)
            manager.start()
            assert sorted(row["id"] for row in daemon.connections()) == before
            assert clients.say(CLIENTS).answered == CLIENTS
            assert (clients.stats().open, clients.stats().dead) == (CLIENTS, {})


def test_a_daemon_that_is_ended_while_it_starts_loses_nothing(tmp_path: Path) -> None:
    """Two restarts in a row, the second one at any moment of the first."""
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        daemon = lab.daemon(lab.config(PORT, policy=AWAKE), start=False)
        with ServiceManager(daemon, tmp_path) as manager:
            manager.start()
            clients = lab.swarm()
            assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
            before = sorted(row["id"] for row in daemon.connections())
            manager.stop("restart")
            for after_s in (0.2, 0.5, 0.7, 0.9, 1.1):
                with ThreadPoolExecutor(1) as pool:
                    starting = pool.submit(manager.start)
                    wait_until(lambda: daemon.running, 5, "it is begun")
                    time.sleep(after_s)
                    assert daemon.terminate() in (0, -signal.SIGTERM)
                    assert starting.exception() is None or isinstance(starting.exception(), DaemonError)
                manager.hear()
            manager.start()
            assert sorted(row["id"] for row in daemon.connections()) == before
            assert clients.say(CLIENTS).answered == CLIENTS
            assert (clients.stats().open, clients.stats().dead) == (CLIENTS, {})
