# SPDX-License-Identifier: Apache-2.0
"""The figures of the connection manager, each with unmodified programs on both ends: OpenSSH, curl, nginx, Redis.

What a client and a server do here is what their manuals say; neither knows that anything stands between them. Of the
transient interface: a server's connection ends when its client falls quiet, and another begins when it is needed.
(The persistent one: test_sessions.py. Agents of clients, figures 16 to 20 and 25, have files of their own.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from appliance.lab import Lab, endpoint, wait_until
from appliance.lab.programs import Dialogue, Endpoint, Nginx, Redis
from tests.lab.device_lab import BY_CONNECT, BY_SOCKS, DeviceLab
from tests.lab.program_lab import PROXY_PORT, QUICK, ProgramLab, Way

BOTH = pytest.mark.parametrize("family", [4, 6])
DeviceLabs = Callable[..., DeviceLab]
TO_SLEEP = ("ACTIVE", "STANDBY", "IDLE", "SLEEP")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(clients=20, nat=False) as lab:
        yield lab


@pytest.fixture
def device_lab(lab: Lab) -> Iterator[DeviceLabs]:
    """Makes a DeviceLab out of the arguments that it takes after its lab."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(closing(DeviceLab(lab, *arguments)))


class RedisLab(ProgramLab):
    """Redis at the far end."""

    def __init__(self, lab: Lab, way: Way, family: int = 4, **options: Any) -> None:
        super().__init__(lab, way, family, 6379, **options)
        self.redis = Redis(lab, self.server_space, [self.server])

    def client(self) -> Dialogue:
        return self.redis.session("wan", self.door)

    def wait_served(self, count: int) -> None:
        wait_until(lambda: len(self.redis.clients()) == count, 10, f"Redis has {count} clients")


def test_figure_4_any_server_reaches_any_client_whose_connection_to_a_server_has_ended(lab: Lab) -> None:
    """S servers, and C clients of each of them, which stay connected to the appliance."""
    servers = {port: lab.server(port) for port in (8001, 8002, 8003)}
    services = [
        {
            "name": f"s{port}",
            "listen": endpoint(lab.address("box", "wan0"), port),
            "server": endpoint(lab.address("lan", "eth0"), port),
        }
        for port in servers
    ]
    daemon = lab.daemon({**lab.config(policy=QUICK), "service": services})
    swarms = [lab.swarm() for _ in servers]
    for swarm, port in zip(swarms, servers, strict=True):
        assert swarm.connect(5, (lab.address("box", "wan0"), port)).connected == 5

    def all_sleep() -> bool:
        return bool(daemon.status()["connections"]["SLEEP"] == 5 * len(servers))

    for _ in range(2):
        wait_until(all_sleep, 20, "all are asleep")
        assert [server.request("stats")["open"] for server in servers.values()] == [0, 0, 0]
        wanted = [[address, name] for swarm in swarms for name, address in swarm.clients(5)]
        proxy = [lab.address("box", "lan0"), PROXY_PORT]
        asked = lab.asker().request("ask", proxy=proxy, targets=wanted, concurrency=4, timeout_s=20)
        assert (asked["answered"], asked["failed"]) == (len(wanted), {})
    assert [swarm.stats().open for swarm in swarms] == [5, 5, 5]
    assert daemon.status()["counters"]["accepted"] == 15, "none of them connected again"


@BOTH
def test_figure_5_a_client_is_connected_to_its_server_for_as_long_as_that_is_needed(lab: Lab, family: int) -> None:
    box = RedisLab(lab, "address", family)
    client = box.client()
    client.ask("SET thermostat 21", "OK\n")
    client_id = box.the_connection()
    for _ in range(2):
        box.to(client_id, "sleep")
        box.wait_served(0)
        client.ask("INCR thermostat", "\n")
        box.wait_served(1)
    box.wait_path(client_id, *TO_SLEEP, *TO_SLEEP, "ACTIVE")
    assert client.ask("GET thermostat", "\n") == "23\n"
    assert client.end() == 0
    box.wait_last(client_id, "CLOSED")
    assert box.daemon.status()["counters"]["accepted"] == 1, "redis-cli never had to connect again"


def test_figure_6_a_server_is_connected_to_its_client_if_that_is_there(device_lab: DeviceLabs) -> None:
    box = device_lab("address")
    box.to(box.id, "standby")
    assert box.visit() == box.at_home()
    box.wait_path(box.id, "ACTIVE", "STANDBY", "ACTIVE", "STANDBY")
    assert box.causes(box.id)[-2:] == ["server-attach", "server-close"]
    box.device.close()
    box.wait_last(box.id, "CLOSED")
    code, said = box.visit()
    assert (code, "404" in said) == (255, True), said


@BOTH
def test_figure_12_a_transient_socket_of_an_application_on_the_same_machine(lab: Lab, family: int) -> None:
    """N clients, fewer than N connections to the application: those that are active."""
    box = RedisLab(lab, "host", family, policy=QUICK)
    clients = [box.client() for _ in range(6)]
    for number, client in enumerate(clients):
        client.ask(f"SET room:{number} {number}", "OK\n")
    wait_until(lambda: box.daemon.status()["connections"]["SLEEP"] == 6, 15, "all six are asleep")
    assert box.redis.clients() == [], "the application's sockets are closed, and all its clients are there"
    for number in (1, 4):
        assert clients[number].ask(f"GET room:{number}", "\n") == f"{number}\n"
    assert len(box.redis.clients()) <= 2
    wait_until(lambda: box.daemon.status()["connections"]["SLEEP"] == 6, 15, "all six are asleep again")
    assert box.redis.clients() == []
    for number, client in enumerate(clients):
        assert client.ask(f"GET room:{number}", "\n") == f"{number}\n"
    assert box.daemon.status()["counters"]["accepted"] == 6


@BOTH
def test_figure_14_transparent_router_between_a_client_and_its_server(lab: Lab, family: int) -> None:
    """The server sees its client's own address, whichever connection serves it."""
    box = RedisLab(lab, "router", family)
    client = box.client()
    client.ask("SET thermostat 21", "OK\n")
    client_id = box.the_connection()
    for _ in range(2):
        box.to(client_id, "sleep")
        box.wait_served(0)
        assert client.ask("GET thermostat", "\n") == "21\n"
        address, _ = address_of(box.redis.clients()[0])
        assert address == box.connections()[0]["client"].rpartition(":")[0].strip("[]")
    box.wait_path(client_id, *TO_SLEEP, *TO_SLEEP, "ACTIVE")


@BOTH
def test_figure_14_transparent_router_between_a_server_and_its_client(device_lab: DeviceLabs, family: int) -> None:
    """ssh to the device's own address and port, where no packet from outside would get."""
    box = device_lab("router", family)
    for actions in (["standby"], ["idle"], ["idle", "sleep"]):
        box.to(box.id, *actions)
        assert box.visit(proxy=None) == box.at_home()
        box.wait_last(box.id, "STANDBY")
    assert box.device.visits == 3
    assert box.path(box.id).count("CLOSED") == 0


@pytest.mark.parametrize("proxy", [BY_CONNECT, BY_SOCKS], ids=["CONNECT", "SOCKS5"])
def test_figure_15_proxy_between_a_server_and_its_client(device_lab: DeviceLabs, proxy: str) -> None:
    box = device_lab("address")
    for actions in (["standby"], ["idle"], ["idle", "sleep"]):
        box.to(box.id, *actions)
        assert box.visit(proxy) == box.at_home()
        box.wait_last(box.id, "STANDBY")
    assert box.path(box.id) == ["ACTIVE", "STANDBY", "ACTIVE", "STANDBY", "IDLE", "ACTIVE", "STANDBY", "IDLE", "SLEEP",
                                "ACTIVE", "STANDBY"]  # fmt: skip


@BOTH
def test_figure_22_a_client_is_granted_its_connection_if_the_server_can_be_reached(lab: Lab, family: int) -> None:
    box = ProgramLab(lab, "address", family, 8080, connect_timeout="500ms")
    nginx = Nginx(lab, "lan", [box.server])
    granted = nginx.fetch("wan", box.door)
    said, _ = granted.popen.communicate(timeout=20)
    assert re.fullmatch(rb"connection 1 request 1 from .*\nconnects 1\n", said)
    nginx.close()
    denied = nginx.fetch("wan", box.door)
    said, _ = denied.popen.communicate(timeout=20)
    assert denied.popen.returncode == 56, "curl: failure in receiving network data"
    assert b"reset by peer" in said
    wait_until(lambda: box.connections() == [], 5, "no entry of it is left")


def test_figure_23_a_server_is_granted_its_client_whatever_state_that_is_in(device_lab: DeviceLabs) -> None:
    box = device_lab("address")
    code, said = box.visit()
    assert (code, "409" in said or "503" in said) == (255, True), f"active, with another server: {said}"
    for state, actions in (("STANDBY", ["standby"]), ("IDLE", ["idle"]), ("SLEEP", ["idle", "sleep"])):
        box.to(box.id, *actions)
        box.wait_last(box.id, state)
        assert box.visit() == box.at_home()
        box.wait_last(box.id, "STANDBY")
    nobody = ("192.0.2.1", 22)
    code, said = box.visit(to=nobody)
    assert (code, "404" in said) == (255, True), f"not connected, and not to be dialled: {said}"


def test_figure_24_data_of_a_client_is_forwarded_from_whatever_state(lab: Lab) -> None:
    box = RedisLab(lab, "address")
    client = box.client()
    client.ask("SET n 0", "OK\n")
    client_id = box.the_connection()
    assert client.ask("INCR n", "\n") == "1\n", "active"
    path = ["ACTIVE"]
    for depth in (1, 2, 3):
        box.to(client_id, *("standby", "idle", "sleep")[:depth])
        assert client.ask("INCR n", "\n") == f"{depth + 1}\n"
        path += [*TO_SLEEP[1 : depth + 1], "ACTIVE"]
        box.wait_path(client_id, *path)


def test_figure_24_what_carries_no_data_wakes_nobody(lab: Lab) -> None:
    """curl asks twice over one connection, some seconds apart, and probes its quiet server every second."""
    box = ProgramLab(lab, "address", 4, 8080, policy=QUICK)
    nginx = Nginx(lab, "lan", [box.server])
    curl = nginx.fetch("wan", box.door, times=2, pause_s=6)
    client_id = box.the_connection()
    box.wait_last(client_id, *TO_SLEEP)
    answered, path = box.counter("keepalives_answered"), box.path(client_id)
    wait_until(lambda: box.counter("keepalives_answered") >= answered + 2, 5, "two keep-alives are answered")
    assert box.path(client_id) == path
    said, _ = curl.popen.communicate(timeout=20)
    first, one, second, none = said.decode().splitlines()
    assert (one, none) == ("connects 1", "connects 0")
    assert first.startswith("connection 1 request 1 from")
    assert second.startswith("connection 2 request 1 from"), "another connection of the transient interface"
    box.wait_last(client_id, "CLOSED")
    assert (box.path(client_id)[len(path)], box.causes(client_id)[len(path)]) == ("ACTIVE", "client-data")


def address_of(client: str) -> Endpoint:
    """The client that a line of CLIENT LIST names."""
    found = re.search(r" addr=\[?([0-9a-f.:]+?)\]?:(\d+) ", client)
    assert found is not None, client
    return found[1], int(found[2])
