# SPDX-License-Identifier: Apache-2.0
"""`roost drain`: another machine has every connection, and none hears of it."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from appliance.lab import DaemonError, DaemonHandle, Lab, wait_until
from tests.bench.upgrade import Speaking
from tests.databases import Cluster, Postgres, Sqlite

CLIENTS, PORT = 20, 8000
QUIET = {"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": "300ms"}
PROBED = {"keepidle_s": 1, "keepintvl_s": 1, "keepcnt": 100}
SERVICES = {"sleep": {}, "idle": {"idle_quiet": "1h"}, "awake": {"active_quiet": "never"}}


def drained(lab: Lab, daemon: DaemonHandle) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "control.cli.main", "drain", "--yes", "--json", "--socket",
               str(daemon.control_socket)]  # fmt: skip
    with lab.enter("box"):
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_another_machine_has_all_of_them(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The other machine is another instance here, with tables of its own."""
    with ExitStack() as stack:
        if kind == "postgresql":
            cluster = Cluster()
            stack.callback(cluster.close)
        database = Postgres(cluster) if kind == "postgresql" else Sqlite(tmp_path_factory.mktemp("database"))
        lab = stack.enter_context(Lab(clients=CLIENTS * 4))
        lab.server(PORT)
        config = lab.config(PORT, policy=QUIET)
        template = config["service"][0]
        config["service"] = [
            {**template, "name": name, "listen": template["listen"].replace(f":{PORT}", f":{PORT + at}"), **values}
            for at, (name, values) in enumerate((SERVICES | {"born": {"born": "always", "idle_quiet": "1h"}}).items())
        ]
        config |= {"paths": {"database": database.url}}
        first = lab.daemon(config)
        groups = [lab.swarm() for _ in SERVICES]
        for at, clients in enumerate(groups):
            target = lab.address("box", "wan0"), PORT + at
            assert clients.connect(CLIENTS, target, **PROBED).connected == CLIENTS
        with lab.enter("wan"):
            born = [stack.enter_context(socket.create_connection((lab.address("box", "wan0"), PORT + 3), 5))
                    for _ in range(CLIENTS)]  # fmt: skip
        there = {"ACTIVE": CLIENTS, "STANDBY": 0, "IDLE": 2 * CLIENTS, "SLEEP": CLIENTS}
        wait_until(lambda: first.status()["connections"] == there, 20, "all are where they go")
        told = drained(lab, first)
        assert told.returncode == 0, told.stderr + first.log_tail()
        assert json.loads(told.stdout) == {"drained": 4 * CLIENTS, "connections": there}
        assert first.process.wait(5) == 0
        assert not first.pin_dir.exists()

        second = lab.daemon(config)
        wait_until(lambda: second.status()["connections"]["SLEEP"] == 4 * CLIENTS, 20, "all are there")
        for clients in groups:
            said = clients.say(CLIENTS, timeout_s=20)
            assert (said.answered, said.failed, clients.stats().dead) == (CLIENTS, {}, {})
        for number, client in enumerate(born):
            client.sendall(f"HELLO c{number:06d}\n".encode())
            assert client.recv(100) == f"WELCOME c{number:06d}\n".encode()
        second.terminate()
        stack.callback(database.close)


def test_those_that_speak_all_the_time_are_not_lost(tmp_path: Path) -> None:
    """What sleeps is not woken any more: there would be no end to it. It says it again, to the other machine."""
    with Lab(clients=200) as lab:
        lab.server(PORT)
        config = lab.config(PORT, policy=QUIET) | {"paths": {"database": str(tmp_path / "roost.db")}}
        first = lab.daemon(config)
        clients = lab.swarm()
        assert clients.connect(200, (lab.address("box", "wan0"), PORT)).connected == 200
        wait_until(lambda: first.status()["connections"]["SLEEP"] == 200, 20, "all sleep")
        speaking = Speaking(clients, 200, concurrency=4, apart_ms=5, timeout_s=60)
        speaking.start()
        time.sleep(1)
        told = drained(lab, first)
        assert told.returncode == 0, told.stderr + first.log_tail()
        assert "could not be frozen" not in first.log_tail()
        lab.daemon(config)
        speaking.end()
        assert (speaking.failed, clients.stats().dead) == (0, {})
        assert clients.say(200, timeout_s=20).answered == 200


class Connecting(threading.Thread):
    """Clients connect one after the other and say nothing, until it is ended; those that could."""

    def __init__(self, lab: Lab, at: tuple[str, int]) -> None:
        super().__init__()
        self._lab, self._at = lab, at
        self._ending = threading.Event()
        self.connected: list[socket.socket] = []

    def run(self) -> None:
        with self._lab.enter("wan"):
            while not self._ending.is_set():
                with suppress(OSError):
                    self.connected.append(socket.create_connection(self._at, 0.5))
                time.sleep(0.005)

    def end(self) -> None:
        self._ending.set()
        self.join()


def test_those_that_are_born_asleep_meanwhile_are_not_lost(tmp_path: Path) -> None:
    """Whose handshake was answered has a row; the others find no listener, and hear of it from the other machine."""
    with Lab(clients=1) as lab, ExitStack() as stack:
        lab.server(PORT)
        config = lab.config(PORT, policy={**QUIET, "idle_quiet": "1h"}, service={"born": "always"})
        config |= {"paths": {"database": str(tmp_path / "roost.db")}}
        first = lab.daemon(config)
        connecting = Connecting(lab, (lab.address("box", "wan0"), PORT))
        connecting.start()
        time.sleep(1)
        told = drained(lab, first)
        lab.daemon(config)
        connecting.end()
        assert told.returncode == 0, told.stderr + first.log_tail()
        assert len(connecting.connected) > 20
        for number, client in enumerate(connecting.connected):
            stack.enter_context(client)
            client.settimeout(20)
            client.sendall(f"HELLO c{number:06d}\n".encode())
            assert client.recv(100) == f"WELCOME c{number:06d}\n".encode()


def test_of_a_machine_that_died_another_one_has_the_sleepers_when_it_is_told_to(tmp_path: Path) -> None:
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        config = lab.config(PORT, policy=QUIET) | {"paths": {"database": str(tmp_path / "roost.db")}}
        first = lab.daemon(config)
        clients = lab.swarm()
        assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
        wait_until(lambda: first.status()["connections"]["SLEEP"] == CLIENTS, 20, "all sleep")
        first.kill()
        first.unpin()
        second = lab.daemon(config, start=False)
        with pytest.raises(DaemonError, match=r"which does not run; .*roost up --take-over"):
            second.start()
        second.start(program=("-m", "control.cli.main", "up", "--take-over"))
        said = clients.say(CLIENTS, timeout_s=20)
        assert (said.answered, clients.stats().dead) == (CLIENTS, {})


def test_what_cannot_be_written_stays_asleep_here() -> None:
    with Lab(clients=CLIENTS) as lab, closing(Cluster()) as cluster:
        lab.server(PORT)
        database = Postgres(cluster)
        config = lab.config(PORT, policy={**QUIET, "idle_quiet": "1h"}) | {"paths": {"database": database.url}}
        daemon = lab.daemon(config)
        clients = lab.swarm()
        assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
        wait_until(lambda: daemon.status()["connections"]["IDLE"] == CLIENTS, 20, "all are idle")
        database.take_away()
        told = drained(lab, daemon)
        assert told.returncode == 1
        assert "no other machine may have the connections" in told.stderr
        assert "not drained" in daemon.log_tail()
        database.give_back()
        daemon.start()
        assert clients.say(CLIENTS).answered == CLIENTS
        daemon.terminate()


def test_a_database_that_stays_this_machines_is_told(tmp_path: Path) -> None:
    """Another machine would be refused: what is asleep stays in this one's tables, and goes on when it starts again."""
    with Lab(clients=CLIENTS) as lab:
        lab.server(PORT)
        database = tmp_path / "roost.db"
        config = lab.config(PORT, policy=QUIET) | {"paths": {"database": str(database)}}
        daemon = lab.daemon(config)
        clients = lab.swarm()
        assert clients.connect(CLIENTS, (lab.address("box", "wan0"), PORT)).connected == CLIENTS
        wait_until(lambda: daemon.status()["connections"]["SLEEP"] == CLIENTS, 20, "all sleep")
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TRIGGER stays BEFORE UPDATE OF machine ON owner WHEN NEW.machine = '' "
                               "BEGIN SELECT RAISE(ABORT, 'it stays'); END")  # fmt: skip
        told = drained(lab, daemon)
        assert (told.returncode, "no other machine may have the connections" in told.stderr) == (1, True)
        daemon.start()
        said = clients.say(CLIENTS, timeout_s=20)
        assert (said.answered, clients.stats().dead) == (CLIENTS, {})


def test_a_box_that_is_to_be_none_drops_no_resets_after_a_drain() -> None:
    with Lab(clients=1) as lab:
        daemon = lab.daemon(lab.config(PORT))

        def quarantined() -> bool:
            with lab.enter("box"):
                tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
            return "roost-quarantine-" in tables

        assert drained(lab, daemon).returncode == 0
        assert quarantined()
        command = [sys.executable, "-m", "control.cli.main", "unpin", "--yes", "-c", str(daemon.config)]
        with lab.enter("box"):
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "nothing is pinned" in said
        assert not quarantined()
