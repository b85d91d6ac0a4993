# SPDX-License-Identifier: Apache-2.0
"""An upgrade whose layout differs keeps awake connections, too, as far as the two versions understand each other."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from appliance.lab import DaemonHandle, Lab, SwarmGroup, endpoint, wait_until
from appliance.lab.service_manager import ServiceManager
from control.core.states import AWAKE, State
from control.store.schema import REVISION
from tests.mutants import ROOT

EACH: Final = 10
PORTS: Final = {"ACTIVE": 8000, "STANDBY": 8001, "IDLE": 8002, "SLEEP": 8003}
"""By the state that the clients of a service are in when they are quiet."""
QUIET: Final = ("active_quiet", "standby_quiet", "idle_quiet")
NEXT: Final = f"{int(REVISION) + 1:04}"
MIGRATION: Final = f'''"""One more table."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{REVISION}"


def upgrade() -> None:
    op.create_table("later", sa.Column("number", sa.Integer, primary_key=True))
'''

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]  # the engine is compiled


class Later:
    """A checkout of a later version, which is this one and what is changed in it."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        for part in ("appliance", "control", "cext", "ebpf", "build/bpf"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        self.change("cext/build_engine.py", '["-O2", "-flto=auto"]', '["-O0"]')  # half a minute less
        self.change("control/store/schema.py", f'"{REVISION}"', f'"{NEXT}"')
        (tree / "control/store/migrations/versions" / f"r{NEXT}_later.py").write_text(MIGRATION)

    def change(self, file: str, old: str, new: str) -> None:
        path = self.tree / file
        text = path.read_text()
        assert text.count(old) == 1, f"{old} is not once in {file}"
        path.write_text(text.replace(old, new))

    def add_facts(self) -> None:
        """At their end, as cext/handover/handed.h allows it."""
        last = "    struct roost_handed_leg leg[2]; /* the client's, the server's */\n"
        self.change("cext/handover/handed.h", last, last + "    uint64_t later[2];\n")

    def raise_version(self) -> None:
        self.change("cext/handover/handed.h", "#define ROOST_HANDED_VERSION 1", "#define ROOST_HANDED_VERSION 2")

    def build(self) -> dict[str, str]:
        """The environment in which `python -m` runs it."""
        environment = {name: value for name, value in os.environ.items() if name != "ROOST_WERROR"}
        subprocess.run([sys.executable, "-P", "cext/build_engine.py"], cwd=self.tree, env=environment, check=True,
                       capture_output=True)  # fmt: skip
        return {"PYTHONPATH": str(self.tree), "PYTHONSAFEPATH": "1"}


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

    def upgrade(self, later: dict[str, str]) -> None:
        self.manager.stop("restart")
        self.manager.start(environment=later)
        assert f"to revision {NEXT}" in self.daemon.log.read_text(), "it is the later version"

    def all_are_answered(self, state: str) -> None:
        assert self.clients[state].say(EACH).answered == EACH
        assert (self.clients[state].stats().open, self.clients[state].stats().dead) == (EACH, Counter())


def test_an_upgrade_with_more_to_tell_of_a_connection_and_another_schema_keeps_all(tmp_path: Path) -> None:
    later = Later(tmp_path / "later")
    later.add_facts()
    environment = later.build()
    with Lab(clients=EACH * len(PORTS)) as lab:
        box = Box(lab, tmp_path)
        with box.manager:
            before = box.states()
            assert Counter(before.values()) == dict.fromkeys(PORTS, EACH)
            box.upgrade(environment)
            assert box.states() == before
            box.manager.stop("restart")  # the longer facts are said, and understood
            box.manager.start(environment=environment)
            assert box.states() == before
            for state in PORTS:
                box.all_are_answered(state)


def test_an_upgrade_that_cannot_understand_what_is_handed_over_ends_what_is_awake_alone(tmp_path: Path) -> None:
    later = Later(tmp_path / "later")
    later.raise_version()
    environment = later.build()
    with Lab(clients=EACH * len(PORTS)) as lab:
        box = Box(lab, tmp_path)
        with box.manager:
            before = box.states()
            box.upgrade(environment)
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
