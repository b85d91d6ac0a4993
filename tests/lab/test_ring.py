# SPDX-License-Identifier: Apache-2.0
"""The ring by which frames that wake connections reach the engine has no room: what is lost comes again."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from appliance.lab import Lab, wait_until
from appliance.lab.service_manager import ServiceManager
from tests.lab.engine_lab import stopped

PORT = 8000
FROZEN_S = 2.0
CLIENTS, MSS = 40, 1448


def repeated(lab: Lab) -> int:
    """Clients that wait for the acknowledgement of what they have sent again."""
    with lab.enter("wan"):
        out = subprocess.run(["ss", "-Htin", f"dport = {PORT}"], capture_output=True, text=True, check=True)
    return out.stdout.count(" backoff:")


@pytest.mark.parametrize(("segments", "restarts"), [(2, 0), (3, 0), (4, 0), (7, 0), (3, 1)])
def test_a_request_whose_end_found_no_room_is_not_cut_in_two(segments: int, restarts: int, tmp_path: Path) -> None:
    """The ring has room for 31 frames: for the first ones of a request, but not for the others. Its head is
    acknowledged when the daemon is back, and its sender sends the rest when its time-out is over, which is as long by
    then as the daemon was away: longer than active_quiet, so that the rest would begin a link of its own. A daemon that
    is restarted meanwhile hands over that it waits."""
    with Lab(clients=CLIENTS) as lab:
        config = lab.config(table={"ring_kb": 64}) | {
            "service": [{"name": "it", "listen": f"{lab.address('box', 'wan0')}:{PORT}", "active_quiet": "300ms",
                         "server": f"{lab.address('lan', 'eth0')}:{PORT}", "standby_quiet": "300ms"}]}  # fmt: skip
        lab.server(PORT)
        daemon = lab.daemon(config, start=False)
        with ServiceManager(daemon, tmp_path) as manager:
            manager.start()
            swarm = lab.swarm()
            swarm.connect(CLIENTS, (lab.address("box", "wan0"), PORT))
            wait_until(lambda: daemon.counts().get("IDLE") == CLIENTS, 10, "all are in IDLE")
            (peer,) = swarm.peers
            size = segments * MSS // 2 - 100
            with stopped(daemon):
                asked = peer.send("say", n=CLIENTS, concurrency=CLIENTS, size=size, timeout_s=30, twice=False)
                wait_until(lambda: repeated(lab) == CLIENTS, 20, "all have asked, and once more")
                time.sleep(FROZEN_S * (1 + 2 * restarts))
            wait_until(lambda: daemon.counts().get("ACTIVE"), 10, "links have a head")
            assert daemon.status()["counters"]["ring_full"] > CLIENTS
            for _ in range(restarts):
                manager.restart()
            said = peer.receive(asked, 40)
            assert said["answered"] == CLIENTS, said["failed"]
            wait_until(lambda: daemon.counts().get("IDLE") == CLIENTS, 10, "links wait for no more than there was")
