# SPDX-License-Identifier: Apache-2.0
"""An upgrade whose layout differs keeps awake connections, too, as far as the two versions understand each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from appliance.lab import DaemonHandle, Lab, SwarmGroup, endpoint, wait_until
from appliance.lab.service_manager import ServiceManager
from control.core.states import AWAKE, State
from tests.later import Later

EACH: Final = 10
PORTS: Final = {"ACTIVE": 8000, "STANDBY": 8001, "IDLE": 8002, "SLEEP": 8003}
"""By the state that the clients of a service are in when they are quiet."""
QUIET: Final = ("active_quiet", "standby_quiet", "idle_quiet")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]  # the engine is compiled


class Box:
    """A daemon with clients in every state."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        server, at = lab.address("lan", "eth0"), lab.address("box", "wan0")
        config = lab.config()
        config["service"] = []
        for place, (state, port) in enumerate(PORTS.items()):
            lab.server(port)
            quiet = {name: "300ms" if index < place else "never" for index, name in enumerate(QUIET)}
            config["service"].append({"name": state.lower(), "listen": endpoint(at, port),
                                      "server": endpoint(server, port), **quiet})  # fmt: skip
        self.daemon: DaemonHandle = lab.daemon(config, start=False)
        self.manager = ServiceManager(self.daemon, directory)
        self.manager.start()
        self.clients: dict[str, SwarmGroup] = {}
        for state, port in PORTS.items():
            self.clients[state] = lab.swarm()
            assert self.clients[state].connect(EACH, (at, port)).connected == EACH
        wait_until(lambda: self.daemon.counts() == dict.fromkeys(PORTS, EACH), 20, "each is in its state")

    def states(self) -> dict[int, str]:
        return {row["id"]: row["state"] for row in self.daemon.connections()}

    def upgrade(self, later: Later) -> None:
        self.manager.stop("restart")
        self.manager.start(environment=later.environment)
        assert f"to revision {later.revision}" in self.daemon.log.read_text(), "it is the later version"

    def all_are_answered(self, state: str) -> None:
        assert self.clients[state].say(EACH).answered == EACH
        assert (self.clients[state].stats().open, self.clients[state].stats().dead) == (EACH, Counter())


def test_an_upgrade_with_more_to_tell_of_a_connection_and_another_schema_keeps_all(tmp_path: Path) -> None:
    later = Later(tmp_path / "later")
    later.add_revision()
    later.add_facts()
    later.build()
    with Lab(clients=EACH * len(PORTS)) as lab:
        box = Box(lab, tmp_path)
        with box.manager:
            before = box.states()
            assert Counter(before.values()) == dict.fromkeys(PORTS, EACH)
            box.upgrade(later)
            assert box.states() == before
            box.manager.stop("restart")  # the longer facts are said, and understood
            box.manager.start(environment=later.environment)
            assert box.states() == before
            for state in PORTS:
                box.all_are_answered(state)


def test_an_upgrade_that_cannot_understand_what_is_handed_over_ends_what_is_awake_alone(tmp_path: Path) -> None:
    later = Later(tmp_path / "later")
    later.add_revision()
    later.raise_version()
    later.build()
    with Lab(clients=EACH * len(PORTS)) as lab:
        box = Box(lab, tmp_path)
        with box.manager:
            before = box.states()
            box.upgrade(later)
            awake = [State(state).name for state in AWAKE]
            assert box.states() == {number: state for number, state in before.items() if state not in awake}
            refused = (len(awake) * EACH) + len(PORTS)  # connections, and listening sockets
            assert f"{refused} sockets were handed over by another version" in box.daemon.log_tail()
            for state in PORTS:
                if state not in awake:
                    box.all_are_answered(state)
            for state in awake:
                wait_until(dead(box.clients[state]), 10, f"those in {state} have ended")


def dead(clients: SwarmGroup) -> Callable[[], bool]:
    return lambda: sum(clients.stats().dead.values()) == EACH
