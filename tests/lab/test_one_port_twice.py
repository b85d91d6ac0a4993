# SPDX-License-Identifier: Apache-2.0
"""A client that has the same port at two services, or at two servers: a NAT may give both connections one."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest

from appliance.lab import Lab, endpoint, wait_until
from tests.lab.api_lab import PORT, ApiLab
from tests.lab.echo import Echo
from tests.lab.engine_lab import receive
from tests.lab.fixtures import ip
from tests.lab.test_api_attach import Upgraded
from tests.lab.test_router import BOTH, every_server


def dialled(lab: Lab, source: tuple[str, int], to: tuple[str, int]) -> socket.socket:
    """From this address and port, which another socket may have."""
    with lab.enter("wan"):
        client = socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.settimeout(10)
        client.bind(source)
        client.connect(to)
    return client


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[ApiLab]:
    """Clients of `bare` sleep without a slot."""
    box = ApiLab(nat_free_lab)
    services = box.config["service"]
    for place, (name, more) in enumerate({"second": {}, "bare": {"sleep_keepalive": "none"}}.items(), 1):
        listen = services[0]["listen"].replace(str(PORT), str(PORT + place))
        services.append({**services[0], "name": name, "listen": listen, **more})
    box.config["table"] = {**box.config.get("table", {}), "filter": 100}
    box.config["absent"] = {"steps": ["wait"], "wait": "2s"}
    with box:
        box.wait_for_api()
        yield box


class Twice(NamedTuple):
    """The client's two sockets, at lab4 and at another service; the connections' numbers; their address and port."""

    sockets: list[socket.socket]
    numbers: list[int]
    address: str


@pytest.fixture
def twice(box: ApiLab) -> Iterator[Twice]:
    with twice_at(box) as connected:
        yield connected


@contextmanager
def twice_at(box: ApiLab, place: int = 1, name: str = "second") -> Iterator[Twice]:
    with ExitStack() as stack:
        sockets = list[socket.socket]()
        source = box.lab.address("wan", "eth0"), 0
        for port in (PORT, PORT + place):
            client = stack.enter_context(dialled(box.lab, source, (box.lab.address("box", "wan0"), port)))
            source = client.getsockname()[:2]
            client.sendall(b"hello")
            assert receive(stack.enter_context(box.accepted()), 5) == b"hello"
            sockets.append(client)
        address = endpoint(*source)
        rows = {row["service"]: row["id"] for row in box.daemon.connections() if row["client"] == address}
        yield Twice(sockets, [rows["lab4"], rows[name]], address)


def test_what_is_meant_is_asked_and_nothing_done(box: ApiLab, twice: Twice) -> None:
    sockets, numbers, address = twice
    for method, path in (("GET", ""), ("GET", "/explain"), ("POST", "/close"), ("POST", "/attach")):
        status, told = box.ask("operator", method, f"/v1/connections/{address}{path}")
        assert status == 409, (path, told)
        assert {int(number) for number in re.findall(r"(\d+) at ", told["error"])} == set(numbers)
    for client, number in zip(sockets, numbers, strict=True):
        assert box.daemon.get(f"/v1/connections/{number}")["client"] == address
        client.sendall(b"still here")
    assert box.daemon.act(str(numbers[1]), "close")["state"] == "CLOSED"
    wait_until(lambda: box.ask("operator", "GET", f"/v1/connections/{address}")[0] == 200, 5, "there is one alone")
    assert box.daemon.get(f"/v1/connections/{address}")["id"] == numbers[0]


@pytest.mark.parametrize("at", [0, 1])
def test_each_is_reached_by_its_number(box: ApiLab, twice: Twice, at: int) -> None:
    sockets, numbers, _ = twice
    assert box.daemon.act(str(numbers[at]), "sleep")["state"] == "SLEEP"
    server = Upgraded(box, "operator", str(numbers[at]), b"early")
    assert server.status == 101, server.rest()
    assert receive(sockets[at], 5) == b"early"


def test_a_number_is_of_no_other_connection_when_its_own_has_ended(box: ApiLab, twice: Twice) -> None:
    sockets, numbers, _ = twice
    ticket = box.daemon.http("POST", f"/v1/connections/{numbers[1]}/attach/ticket").json()
    host, _, port = ticket["address"].rpartition(":")
    assert box.daemon.act(str(numbers[1]), "close")["state"] == "CLOSED"
    assert box.daemon.act(str(numbers[0]), "sleep")["state"] == "SLEEP"  # a server could have it
    with box.lab.enter("box"):
        server = socket.create_connection((host, int(port)), 5)
    with server:
        server.settimeout(10)
        server.sendall(f"CONNECT {ticket['authority']} HTTP/1.1\r\nHost: x\r\n\r\nfor the other".encode())
        assert b" 404 " in server.recv(100)
    sockets[0].settimeout(0.1)
    with pytest.raises(TimeoutError):
        sockets[0].recv(1)


@pytest.mark.parametrize("at", [0, 1])
def test_a_server_means_that_of_its_own_service(box: ApiLab, twice: Twice, at: int) -> None:
    sockets, numbers, address = twice
    box.token("server", ("lab4", "second")[at])
    status, told = box.ask("server", "GET", f"/v1/connections/{address}")
    assert (status, told["id"]) == (200, numbers[at]), json.dumps(told)
    assert box.daemon.act(str(numbers[at]), "sleep")["state"] == "SLEEP"
    assert Upgraded(box, "server", address, b"early").status == 101
    assert receive(sockets[at], 5) == b"early"


def test_one_that_sleeps_without_a_slot_is_not_hidden_by_one_that_is_known(box: ApiLab) -> None:
    with twice_at(box, 2, "bare") as (sockets, numbers, address):
        assert box.daemon.act(str(numbers[1]), "sleep")["state"] == "SLEEP"
        answer = box.daemon.http("GET", f"/v1/connections/{address}")
        assert answer.status_code == 409, answer.text
        assert sorted(int(one) for one in re.findall(r"(\d+) at ", answer.json()["error"])) == sorted(numbers)
        box.token("server", "bare")
        status, told = box.ask("server", "GET", f"/v1/connections/{address}")
        assert (status, told["id"]) == (200, numbers[1])
        server = Upgraded(box, "operator", str(numbers[1]), b"early")
        assert server.status == 101, server.rest()
        assert receive(sockets[1], 5) == b"early"


def test_a_job_does_nothing_where_it_is_not_said_which_one(box: ApiLab, twice: Twice) -> None:
    answer = box.daemon.http("POST", "/v1/jobs", json={"action": "close", "connections": [twice.address]})
    job = answer.json()["number"]
    wait_until(lambda: box.daemon.get(f"/v1/jobs/{job}")["state"] == "done", 10, "the job is done")
    told = box.daemon.get(f"/v1/jobs/{job}")
    assert (told["found"], told["missing"], told["missing_names"]) == (0, 1, [twice.address])
    assert all(box.daemon.get(f"/v1/connections/{number}") for number in twice.numbers)


@BOTH
def test_of_a_routers_clients_too_awake_or_asleep(family: int) -> None:
    with Lab(clients=2, nat=False) as lab, ExitStack() as stack:
        here = lab.address("lan", "eth0", family)
        there = str(ipaddress.ip_address(here) + 70)
        ip(lab, "lan", "addr", "add", f"{there}/{24 if family == 4 else 64}", "dev", "eth0",
           *(["nodad"] if family == 6 else []))  # fmt: skip
        for server in (here, there):
            stack.enter_context(Echo(lab.space("lan"), server, 8000))
        daemon = lab.daemon(every_server(lab, active_quiet="1h"))
        source = lab.address("wan", "eth0", family), 0
        for server in (here, there):
            client = stack.enter_context(dialled(lab, source, (server, 8000)))
            client.sendall(b"a")
            assert client.recv(1) == b"a"
            source = client.getsockname()[:2]
        path = f"/v1/connections/{endpoint(*source)}"
        numbers = sorted(row["id"] for row in daemon.connections())
        assert len(numbers) == 2
        for number in (None, *numbers):  # both are awake; then one sleeps, then both do
            if number is not None:
                assert daemon.act(str(number), "sleep")["state"] == "SLEEP"
            answer = daemon.http("GET", path)
            assert answer.status_code == 409, answer.text
            assert sorted(int(one) for one in re.findall(r"(\d+) at ", answer.json()["error"])) == numbers
