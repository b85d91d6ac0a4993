# SPDX-License-Identifier: Apache-2.0
"""Rules by server: of a router's service for every server, the clients of one server obey its rules, those of others do
not, awake, asleep and after a restart of the daemon."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from appliance.lab import Lab, endpoint, wait_until
from appliance.lab.daemon import DaemonHandle
from tests.lab.echo import Echo
from tests.lab.fixtures import ip
from tests.lab.test_router import BOTH, every_server

PORT = 8000


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def rule(daemon: DaemonHandle, name: str, content: dict[str, Any], status: int = 200) -> Any:
    answer = daemon.http("PUT", f"/v1/policy/rules/{name}", json={"rule": content, "who": "test", "why": "a test"})
    assert answer.status_code == status, answer.text
    return answer.json()


def client_of(lab: Lab, stack: ExitStack, source: str, server: str) -> socket.socket:
    with lab.enter("wan"):
        client = stack.enter_context(socket.create_connection((server, PORT), 10, source_address=(source, 0)))
    client.sendall(b"a")
    assert client.recv(1) == b"a"
    return client


@BOTH
def test_the_clients_of_one_server_obey_its_rules(family: int, stack: ExitStack) -> None:
    lab = stack.enter_context(Lab(clients=10, nat=False))
    here = lab.address("lan", "eth0", family)
    there = str(ipaddress.ip_address(here) + 70)
    ip(lab, "lan", "addr", "add", f"{there}/{24 if family == 4 else 64}", "dev", "eth0",
       *(["nodad"] if family == 6 else []))  # fmt: skip
    for server in (here, there):
        stack.enter_context(Echo(lab.space("lan"), server, PORT))
    daemon = lab.daemon(every_server(lab, active_quiet="1h"))
    source = lab.client_addresses(family)[0]
    one, other = (client_of(lab, stack, source, server) for server in (here, there))

    def shown(client: socket.socket) -> Any:
        return daemon.get(f"/v1/connections/{endpoint(*client.getsockname()[:2])}")

    def state(client: socket.socket) -> str:
        return str(shown(client)["state"])

    def value(client: socket.socket, key: str) -> tuple[Any, str]:
        told = daemon.get(f"/v1/connections/{shown(client)['id']}/policy")
        return next((row["value"], row["source"]) for row in told["values"] if row["key"] == key)

    rule(daemon, "there", {"server": there, "active_quiet": "1s", "idle_quiet": "1s"})
    wait_until(lambda: state(other) == "SLEEP", 15, "its server's rule lets it sleep")
    assert state(one) == "ACTIVE"
    assert value(other, "active_quiet") == (1, "rule there (version 1)")
    assert value(one, "active_quiet")[0] == 3600
    asked = {"client": source, "service": f"all{family}"}
    for server, seconds in ((there, 1), (here, 3600)):
        told = daemon.get("/v1/policy/explain", **asked, server=server)["values"]
        assert {row["key"]: row["value"] for row in told}["active_quiet"] == seconds
    (row,) = daemon.connections(rule="there")
    assert row["id"] == shown(other)["id"]

    third = client_of(lab, stack, source, there)
    wait_until(lambda: state(third) == "SLEEP", 15, "so does one that comes later")
    daemon.restart()
    other.sendall(b"b")
    assert other.recv(1) == b"b"
    assert value(other, "active_quiet") == (1, "rule there (version 1)")
    wait_until(lambda: state(other) == "SLEEP", 15, "the rule holds after a restart")

    rule(daemon, "there", {"server": there, "active_quiet": "2h"})
    other.sendall(b"c")
    assert other.recv(1) == b"c"
    assert value(other, "active_quiet") == (7200, "rule there (version 2)")
    told = rule(daemon, "nowhere", {"server": there, "service": f"all{10 - family}", "active_quiet": "1s"}, 422)
    assert f"its server is {there}, and the service" in told["error"]
    changes = daemon.get("/v1/audit")
    assert [(one["path"].rpartition("/")[2], one["status"]) for one in changes] == [
        ("there", 200), ("there", 200), ("nowhere", 422)
    ]  # fmt: skip
    assert changes[2]["error"] == told["error"]
