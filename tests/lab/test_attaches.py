# SPDX-License-Identifier: Apache-2.0
"""The record of attaches (issue 13): by the proxy and by a client's address, linked and refused, until the client's
first byte or without one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from appliance.lab import Lab, wait_until
from appliance.lab.daemon import DaemonHandle
from appliance.lab.processes import python_environment
from tests.lab.engine_lab import receive

PORT = 8000
# A link that is quiet for as long as the two ends: longer than a test of a loaded machine takes to its next step.
POLICY = {"active_quiet": "5s", "standby_quiet": "1s", "idle_quiet": "never"}


class Box:
    """A daemon that is a router with a proxy, and the one client it has."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        lab.server(PORT)
        self.daemon: DaemonHandle = lab.daemon(lab.config(PORT, policy=POLICY, router={"wait": "300ms"}))
        with lab.enter("wan"):
            self.client = socket.create_connection((lab.address("lan", "eth0", 4), PORT), 5)
        self.client.settimeout(10)
        host, port = self.client.getsockname()[:2]
        self.address = f"{host}:{port}"
        self.to("IDLE")
        (shown,) = self.daemon.connections()
        self.id = int(shown["id"])

    def to(self, state: str) -> None:
        wait_until(lambda: self.daemon.connections(state="IDLE") != [], 10, "the client is IDLE")
        if state == "SLEEP":
            self.daemon.act(self.address, "sleep")
            wait_until(lambda: self.daemon.connections(state="SLEEP") != [], 10, "the client is in SLEEP")

    @contextmanager
    def by_proxy(self, target: str, status: int = 200) -> Iterator[socket.socket]:
        with self.lab.enter("lan"):
            server = socket.create_connection((self.lab.address("box", "lan0"), 3128), 5)
        with server:
            server.settimeout(10)
            server.sendall(b"CONNECT %b HTTP/1.1\r\nHost: x\r\n\r\n" % target.encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += receive(server, 1)
            assert head.startswith(b"HTTP/1.1 %d" % status), head
            yield server

    @contextmanager
    def by_address(self) -> Iterator[socket.socket]:
        with self.lab.enter("lan"):
            server = socket.create_connection(self.client.getsockname()[:2], 5)
        with server:
            server.settimeout(10)
            yield server

    def attaches(self, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.daemon.get("/v1/attaches", **query)
        return found

    def last(self) -> dict[str, Any]:
        rows = self.attaches(limit=1)
        return rows[0] if rows else {}

    def row_of(self, server: socket.socket) -> dict[str, Any]:
        """What is on record of this server, once it is."""
        host, port = server.getsockname()[:2]
        wait_until(lambda: self.last().get("server") == f"{host}:{port}", 10, "it is on record")
        return self.last()


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Lab(clients=20, nat=False) as lab:
        made = Box(lab)
        yield made
        made.client.close()


@pytest.mark.parametrize("state", ["IDLE", "SLEEP"])
@pytest.mark.parametrize("way", ["connect", "address"])
def test_a_server_that_is_linked_has_a_row_with_the_state_and_the_times(box: Box, way: str, state: str) -> None:
    box.to(state)
    asked_ms = time.time() * 1000
    with box.by_proxy(box.address) if way == "connect" else box.by_address() as server:
        server.sendall(b"what is the temperature?")
        assert receive(box.client, 24) == b"what is the temperature?"
        if way == "connect":  # the daemon has taken the time of its answer, which is after it was sent
            box.row_of(server)
        time.sleep(0.15)  # the client thinks
        box.client.sendall(b"21.5")
        assert receive(server, 4) == b"21.5"
        wait_until(lambda: box.row_of(server)["first_ms"] is not None, 10, "its first byte is on record")
        row = box.last()
    assert row["way"] == way
    assert row["target"] == row["client"] == box.address
    assert (row["id"], row["service"], row["found"], row["error"], row["step"]) == (box.id, "lab4", state, None, None)
    assert abs(row["at_ms"] - asked_ms) < 1000
    assert 0 <= row["answer_ms"] <= row["first_ms"] - 140
    assert row["first_ms"] < 5000


def test_a_link_that_ends_without_a_word_of_the_client_is_on_record_without_a_first_byte(box: Box) -> None:
    box.to("IDLE")
    with box.by_proxy(box.address) as server:
        shown = box.row_of(server)
        before = len(box.attaches())
    box.to("IDLE")
    row = box.last()
    assert row == {**shown, "found": "IDLE"}
    assert (row["target"], row["error"], row["first_ms"]) == (box.address, None, None)
    assert len(box.attaches()) == before, "what was shown while it waited is not there twice"


def test_a_server_that_is_refused_has_a_row_that_says_why(box: Box) -> None:
    with box.by_proxy("192.0.2.1:9", status=404):
        pass
    row = box.last()
    assert (row["target"], row["id"], row["client"], row["found"]) == ("192.0.2.1:9", None, None, None)
    assert (row["error"], row["reason"], row["first_ms"]) == ("ENOENT", "no such client connection", None)
    with box.by_proxy("nobody.roost:80", status=404):
        pass
    assert box.last()["target"] == "nobody.roost:80"
    box.to("IDLE")
    with box.by_address() as first:
        first.sendall(b"a")
        assert receive(box.client, 1) == b"a"
        with pytest.raises(ConnectionResetError), box.by_address() as second:  # perhaps before connect() has returned
            second.recv(1)
    wait_until(lambda: box.attaches(failed=True)[-1]["way"] == "address", 10, "the door's refusal is on record")
    row = box.attaches(failed=True)[-1]
    assert (row["target"], row["error"], row["client"]) == (box.address, "EBUSY", None)
    assert all(one["error"] for one in box.attaches(failed=True))


def test_the_command_shows_them(box: Box) -> None:
    def said(*options: str) -> str:
        argv = [sys.executable, "-m", "control.cli.main", "attaches", *options]
        argv += ["--socket", str(box.daemon.control_socket)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, env=python_environment())
        assert done.returncode == 0, done.stderr
        return done.stdout

    rows = json.loads(said("--json", "-n", "3"))
    assert rows == box.attaches(limit=3)
    lines = said("--failed", "-n", "1").splitlines()
    assert len(lines) == 2
    assert "answer" in lines[0]
    assert rows[-1]["reason"] is None or rows[-1]["reason"] in lines[1]


def test_they_outlive_the_daemon_and_what_waits_is_written_at_its_end(box: Box) -> None:
    box.to("IDLE")
    with box.by_proxy(box.address) as server:
        box.row_of(server)
        before = box.attaches()
        box.daemon.restart()
    after = box.attaches()
    assert after[:-1] == before[:-1]
    assert after[-1] == {**before[-1], "found": "IDLE"}
