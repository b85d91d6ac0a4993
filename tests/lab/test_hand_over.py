# SPDX-License-Identifier: Apache-2.0
"""A restart of the service keeps awake connections as they are: neither end hears of it, and no byte is lost."""

from __future__ import annotations

from pathlib import Path

from appliance.lab import Lab
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
