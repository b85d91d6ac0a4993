# SPDX-License-Identifier: Apache-2.0
"""Clients that are born asleep: real ones, whose handshake no socket of the appliance ever saw."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from appliance.lab import DaemonHandle, Lab, wait_until
from tests.lab.engine_lab import receive

BOTH = pytest.mark.parametrize("family", [4, 6])
PORT = 8000


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Nursery:
    """A service whose clients are born asleep, its server and its daemon."""

    def __init__(self, stack: ExitStack, family: int = 4, service: dict[str, Any] | None = None, **config: Any) -> None:
        self.family = family
        self.stack = stack
        self.lab = stack.enter_context(Lab(clients=10, nat=False))
        kind = socket.AF_INET6 if family == 6 else socket.AF_INET
        with self.lab.enter("lan"):
            address = self.lab.address("lan", "eth0", family)
            self.listener = stack.enter_context(socket.create_server((address, PORT), family=kind))
        self.listener.settimeout(5)
        service = {"born": "always"} | (service or {})
        self.daemon: DaemonHandle = self.lab.daemon(self.lab.config(service=service, **config))

    def connect(self, options: dict[int, int] | None = None) -> socket.socket:
        kind = socket.AF_INET6 if self.family == 6 else socket.AF_INET
        with self.lab.enter("wan"):
            client = self.stack.enter_context(socket.socket(kind))
        for option, value in (options or {}).items():
            client.setsockopt(socket.IPPROTO_TCP, option, value)
        client.settimeout(5)
        client.connect((self.lab.address("box", "wan0", self.family), PORT))
        return client

    def accept(self) -> socket.socket:
        server = self.stack.enter_context(self.listener.accept()[0])
        server.settimeout(5)
        return server

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.daemon.status()["counters"]
        return counters

    def count(self, name: str, value: int) -> None:
        wait_until(lambda: self.counters()[name] == value, 5, f"{name} is {value}")

    def sockets(self) -> int:
        with self.lab.enter("box"):
            out = subprocess.run(["ss", "-Htan", f"sport = {PORT}"], capture_output=True, text=True, check=True)
        return len([line for line in out.stdout.splitlines() if not line.startswith("LISTEN")])


@BOTH
def test_whoever_says_nothing_costs_no_socket_and_is_answered_when_it_speaks(stack: ExitStack, family: int) -> None:
    nursery = Nursery(stack, family)
    client = nursery.connect()
    nursery.count(f"born_ipv{family}", 1)
    assert nursery.sockets() == 0
    assert nursery.daemon.status()["connections"] == {"ACTIVE": 0, "STANDBY": 0, "IDLE": 1, "SLEEP": 0}
    assert [(c["id"], c["state"]) for c in nursery.daemon.connections()] == [(None, "IDLE")]
    client.sendall(b"x" * 5000)
    server = nursery.accept()
    assert receive(server, 5000) == b"x" * 5000
    server.sendall(b"y" * 200_000)
    assert receive(client, 200_000) == b"y" * 200_000
    (now,) = nursery.daemon.connections()
    assert (now["id"] is not None, now["state"]) == (True, "ACTIVE")
    assert nursery.counters()["born"] == 0
    client.close()
    assert server.recv(1) == b""
    server.close()
    wait_until(lambda: not nursery.daemon.connections(), 5, "it is closed")
    assert nursery.daemon.status()["control"]["illegal"] == 0
