# SPDX-License-Identifier: Apache-2.0
"""Several servers of a service: which one a link goes to, and what becomes of clients while servers are down."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from errno import ECONNREFUSED
from typing import Any

import pytest

from appliance.lab import DaemonHandle, Lab, Peer, endpoint, wait_until
from appliance.lab.processes import python_environment
from appliance.wire import Balance, Born, Command, EventType, Op, ServerAddress
from control.core.states import Cause, State
from tests.lab.engine_lab import SERVICE, EngineLab, receive
from tests.lab.several_servers import servers_of

BOTH = pytest.mark.parametrize("family", [4, 6])
HELD_S = 0.2  # RETRY_MS of cext/life/links.c


@BOTH
def test_figure_22_clients_are_refused_at_once_while_no_server_is_up_where_the_policy_says_so(
    box: EngineLab, family: int
) -> None:
    with servers_of(box, family, refuse_down=True) as servers:
        for server in servers.all:
            box.engine.mark_server(SERVICE[family], server, up=False)
        with pytest.raises(ConnectionResetError):
            servers.dial().recv(1)
        assert box.engine.stats()["clients_refused"] == 1
        box.engine.mark_server(SERVICE[family], servers.all[1], up=True)
        servers.dial().sendall(b"question")
        assert servers.accept()[0] == servers.all[1]


@BOTH
def test_what_is_born_asleep_is_refused_as_others_are_while_no_server_is_up(box: EngineLab, family: int) -> None:
    with servers_of(box, family, count=1, refuse_down=True, born=Born.ALWAYS) as servers:
        box.engine.mark_server(SERVICE[family], servers.all[0], up=False)
        with pytest.raises(ConnectionResetError):
            servers.dial().recv(1)
        box.engine.mark_server(SERVICE[family], servers.all[0], up=True)
        kept = []

        def born() -> bool:
            kept.append(servers.dial())
            return box.engine.stats()["born"] > 0

        wait_until(born, 10, "a client is born")


@BOTH
def test_links_are_shared_out_evenly_and_counted_until_they_end(box: EngineLab, family: int) -> None:
    with servers_of(box, family, 3) as servers:
        clients = [servers.dial() for _ in range(30)]
        links = [servers.accept() for _ in clients]
        assert Counter(server for server, _ in links) == dict.fromkeys(servers.all, 10)
        assert servers.links() == dict.fromkeys(servers.all, 10)
        for server, link in links:
            if server == servers.all[0]:
                link.close()
        box.wait(lambda: servers.links() == dict(zip(servers.all, (0, 10, 10), strict=True)), "those of one ended")
        more = [servers.dial() for _ in range(4)]
        assert [servers.accept()[0] for _ in more] == [servers.all[0]] * 4
        assert sum(status.linked for status in servers.status().values()) == 34


@BOTH
def test_a_client_comes_to_the_same_server_again_by_its_address(box: EngineLab, family: int) -> None:
    with servers_of(box, family, 3, balance=Balance.SOURCE_HASH) as servers:
        found: dict[str, ServerAddress] = {}
        for address in box.lab.client_addresses(family, 12):
            for _ in range(3):
                with servers.dial(source=address):
                    server, _ = servers.accept()
                    assert found.setdefault(address, server) == server
        assert len(set(found.values())) == 3, "a chance of one in forty million that they all have fewer"
        for address in list(found)[:2]:
            gone = found[address]
            servers.shut(gone)
            with servers.dial(source=address) as client:
                other, _ = servers.accept()
                assert other != gone
                client.sendall(b"x")
            servers.open(gone)
            with servers.dial(source=address):
                assert servers.accept()[0] == gone


@BOTH
@pytest.mark.engine(service={"proxy_header": 1})
def test_a_server_that_refuses_costs_the_client_no_time(box: EngineLab, family: int) -> None:
    with servers_of(box, family) as servers:
        servers.shut(servers.all[0])
        took = []
        for _ in range(4):
            began = time.monotonic()
            with servers.dial() as client:
                client.sendall(b"hello")
                server, link = servers.accept()
                assert server == servers.all[1]
                took.append(time.monotonic() - began)
                line = f"PROXY TCP{family} {client.getsockname()[0]} ".encode()
                assert receive(link, len(line)) == line, "the other server is told whose link it is"
                while not line.endswith(b"\r\nhello"):
                    line += receive(link, 1)
        assert min(took) < HELD_S / 2, "the others waited for a processor"
        assert servers.status()[servers.all[0]].failed >= 1


@BOTH
@pytest.mark.engine(service={"connect_timeout_ms": 2000})
def test_a_server_that_is_silent_leaves_the_other_its_share_of_the_time(box: EngineLab, family: int) -> None:
    with servers_of(box, family) as servers:
        drop = f"tcp dport {servers.all[0][1]} drop"
        box.lab.nft("lan", f"table inet silent {{ chain in {{ type filter hook input priority 0; {drop}; }}; }}")
        try:
            waited = []
            for _ in range(2):
                began = time.monotonic()
                client = servers.dial()
                client.sendall(b"hello")
                server, link = servers.accept()
                assert server == servers.all[1]
                assert receive(link, 5) == b"hello"
                waited.append(time.monotonic() - began)
            assert max(waited) < 1.5
            assert servers.status()[servers.all[0]].failed >= 1
        finally:
            box.lab.nft("lan", "delete table inet silent")


@BOTH
@pytest.mark.engine(service={"connect_timeout_ms": 5000})
def test_what_clients_say_while_all_are_down_arrives_when_one_is_up(box: EngineLab, family: int) -> None:
    with servers_of(box, family) as servers:
        for server in servers.all:
            box.engine.mark_server(SERVICE[family], server, False)
        words = {f"patience {n}".encode(): servers.dial() for n in range(10)}
        for word, client in words.items():
            client.sendall(word)
        with pytest.raises(AssertionError, match="no link"):
            servers.accept(0.5)
        assert all(status.failed == 0 for status in servers.status().values()), "nobody bothers them"
        box.engine.mark_server(SERVICE[family], servers.all[1], True)
        for _ in words:
            server, link = servers.accept()
            assert server == servers.all[1]
            word = receive(link, 10)
            link.sendall(b"heard")
            assert receive(words[word], 5) == b"heard"


@BOTH
@pytest.mark.engine(service={"connect_timeout_ms": 5000})
def test_what_clients_say_before_a_server_is_known_arrives_when_one_is(box: EngineLab, family: int) -> None:
    """Its name has no address yet. The appliance itself, whose address they connected to, is not asked."""
    with servers_of(box, family) as servers:
        servers.use([])
        accepted = box.stat("accepted")
        client = servers.dial()
        client.sendall(b"patience")
        with pytest.raises(AssertionError, match="no link"):
            servers.accept(0.5)
        servers.use(servers.all[:1])
        _, link = servers.accept()
        assert receive(link, 8) == b"patience"
        assert box.stat("accepted") == accepted + 1


@pytest.mark.engine(service={"connect_timeout_ms": 600})
def test_a_client_for_whom_no_server_comes_up_is_told_by_a_reset(box: EngineLab) -> None:
    with servers_of(box, 4) as servers:
        for server in servers.all:
            box.engine.mark_server(SERVICE[4], server, False)
        client = servers.dial()
        client.sendall(b"in vain")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert servers.links() == dict.fromkeys(servers.all, 0)


@BOTH
def test_so_many_failed_links_take_a_server_down_until_it_is_marked(box: EngineLab, family: int) -> None:
    with servers_of(box, family, max_fails=3) as servers:
        gone = servers.all[0]
        servers.shut(gone)
        while servers.status()[gone].up:
            with servers.dial():
                assert servers.accept()[0] == servers.all[1]
        box.wait(lambda: any(event.type == EventType.SERVER_DOWN for event in box.events), "it is told")
        (told,) = [event for event in box.events if event.type == EventType.SERVER_DOWN]
        assert (told.error, told.count, told.service) == (ECONNREFUSED, 3, SERVICE[family])
        assert told.record.key.local_text == endpoint(*gone)
        servers.open(gone)
        for _ in range(6):
            with servers.dial():
                assert servers.accept()[0] == servers.all[1]
        assert servers.status()[gone].failed == 3
        box.engine.mark_server(SERVICE[family], gone, True)
        with servers.dial():
            assert servers.accept()[0] == gone, "it has the fewest links"


@BOTH
def test_a_server_that_leaves_the_list_keeps_its_links(box: EngineLab, family: int) -> None:
    with servers_of(box, family, 3) as servers:
        stays, leaves, comes = servers.all
        servers.use([stays, leaves])
        clients: dict[ServerAddress, list[tuple[socket.socket, socket.socket]]] = {}
        for _ in range(4):
            client = servers.dial()
            server, link = servers.accept()
            clients.setdefault(server, []).append((client, link))
        servers.use([stays, comes])
        assert servers.status()[leaves].leaving
        assert servers.links() == {stays: 2, leaves: 2, comes: 0}
        for client, link in clients[leaves]:
            client.sendall(b"still there?")
            assert receive(link, 12) == b"still there?"
            client.close()
            link.close()
        for _ in range(4):
            servers.dial()
            assert servers.accept()[0] in (stays, comes)
        box.wait(lambda: leaves not in servers.status(), "its last link has ended")
        assert servers.links() == {stays: 3, comes: 3}


@BOTH
def test_a_connection_that_sleeps_is_no_link_and_may_wake_to_another_server(box: EngineLab, family: int) -> None:
    with servers_of(box, family) as servers:
        client = servers.dial()
        first, link = servers.accept()
        client.sendall(b"hello")
        assert receive(link, 5) == b"hello"
        link.sendall(b"hello")
        assert receive(client, 5) == b"hello"
        key = box.key_of(client)
        for op, state in ((Op.STANDBY, State.STANDBY), (Op.IDLE, State.IDLE)):
            time.sleep(0.06)  # a delayed ACK of the client: nothing may be in flight
            box.engine.submit([Command(op, cause=Cause.COMMAND, key=key)])
            if op is Op.STANDBY:
                assert link.recv(1) == b""
                link.close()
            box.wait(lambda state=state: (found := box.engine.find(key)) and found.to_state == state, state.name)  # type: ignore[misc]
        assert servers.links() == dict.fromkeys(servers.all, 0)
        servers.shut(first)
        client.sendall(b"again")
        second, link = servers.accept()
        assert second != first
        assert receive(link, 5) == b"again"
        assert servers.links() == {first: 0, second: 1}


@BOTH
@pytest.mark.engine(service={"persistent": True})
def test_a_server_that_slept_with_its_client_has_a_link_again(box: EngineLab, family: int) -> None:
    with servers_of(box, family) as servers:
        client = servers.dial()
        first, link = servers.accept()
        client.sendall(b"hello")
        assert receive(link, 5) == b"hello"
        time.sleep(0.06)  # a delayed ACK: nothing may be in flight
        key = box.key_of(client)
        box.engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, key=key)])
        box.wait(lambda: (found := box.engine.find(key)) and found.to_state == State.IDLE, "it sleeps")
        assert servers.links() == dict.fromkeys(servers.all, 0)
        link.sendall(b"hello")
        assert receive(client, 5) == b"hello"
        assert servers.links()[first] == 1


@BOTH
@pytest.mark.engine(router=True)
def test_every_server_sees_the_clients_own_address(box: EngineLab, family: int) -> None:
    with servers_of(box, family) as servers:
        clients = [servers.dial() for _ in range(4)]
        links = [servers.accept() for _ in clients]
        assert Counter(server for server, _ in links) == dict.fromkeys(servers.all, 2)
        assert {link.getpeername()[:2] for _, link in links} == {c.getsockname()[:2] for c in clients}


# With the daemon


def start(lab: Lab, ports: Sequence[int], **service: Any) -> DaemonHandle:
    """A daemon whose services have these ports of the LAN for servers."""
    config = lab.config(policy={"active_quiet": "200ms", "standby_quiet": "60s"}, service=service)
    for family, one in zip((4, 6), config["service"], strict=True):
        del one["server"]
        one["servers"] = [endpoint(lab.address("lan", "eth0", family), port) for port in ports]
        one["health"] = {"interval": "100ms", "fall": 2, "rise": 2}
    return lab.daemon(config)


def states(daemon: DaemonHandle, service: int = 0) -> dict[int, str]:
    """The state of each server, by its port."""
    rows = daemon.status()["services"][service]["servers"]
    return {int(row["server"].rpartition(":")[2]): row["state"] for row in rows}


def shown_status(daemon: DaemonHandle) -> str:
    """What `roost status` says."""
    argv = [sys.executable, "-m", "control.cli.main", "status", "--socket", str(daemon.control_socket)]
    environment = python_environment({"COLUMNS": "200"})
    return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True, env=environment).stdout


def open_links(server: Peer) -> int:
    return int(server.request("stats")["open"])


@BOTH
def test_when_a_server_dies_its_clients_find_another_and_come_back_with_it(family: int) -> None:
    number = 40
    with Lab(clients=number) as lab:
        first, second = lab.server(8001), lab.server(8002)
        daemon = start(lab, [8001, 8002])
        service = family // 2 - 2
        swarm = lab.swarm(family)
        where = (lab.address("box", "wan0", family), 8000)
        assert swarm.connect(number, where).connected == number
        hellos = [int(server.request("stats")["hellos"]) for server in (first, second)]
        assert hellos == [number // 2, number // 2]
        wait_until(lambda: open_links(first) + open_links(second) == 0, 10, "all are quiet")
        first.process.kill()
        wait_until(lambda: states(daemon, service) == {8001: "down", 8002: "up"}, 10, "it is known to be down")
        row = daemon.status()["services"][service]["servers"][0]
        assert row["reason"] == "connection refused (2 checks in a row)"
        address = endpoint(lab.address("lan", "eth0", family), 8001)
        assert f'server {address} of service "lab{family}" is down: connection refused' in daemon.log_tail()
        assert f"{address} down: connection refused (2 checks in a row), 0 links" in shown_status(daemon)
        said = swarm.say(number)
        assert (said.answered, said.failed) == (number, Counter())
        assert swarm.stats().dead == {}
        first = lab.server(8001)
        wait_until(lambda: states(daemon, service) == {8001: "up", 8002: "up"}, 10, "it is up again")
        wait_until(lambda: open_links(second) == 0, 10, "all are quiet")
        said = swarm.say(number)
        assert (said.answered, said.failed) == (number, Counter())
        assert int(first.request("stats")["echoes"]) > 0
        assert f'server {address} of service "lab{family}" is up again' in daemon.log_tail()


def test_clients_speak_while_all_servers_are_down_and_lose_no_word() -> None:
    number = 30
    with Lab(clients=number) as lab:
        servers = [lab.server(8001), lab.server(8002)]
        daemon = start(lab, [8001, 8002], connect_timeout="30s")
        swarm = lab.swarm()
        assert swarm.connect(number, (lab.address("box", "wan0"), 8000)).connected == number
        wait_until(lambda: sum(map(open_links, servers)) == 0, 10, "all are quiet")
        for server in servers:
            server.process.kill()
        wait_until(lambda: set(states(daemon).values()) == {"down"}, 10, "both are down")
        token = swarm.peers[0].send("say", n=number, concurrency=number, size=500, timeout_s=30, twice=False)
        wait_until(lambda: daemon.status()["connections"]["ACTIVE"] == number, 10, "all want a server")
        assert 'service "lab4" has no server that is up' in daemon.log_tail()
        lab.server(8002)
        answer = swarm.peers[0].receive(token, 40)
        assert (answer["answered"], answer["failed"]) == (number, {})
        assert swarm.stats().dead == {}


def test_the_list_of_servers_is_taken_over_without_a_restart() -> None:
    number = 20
    with Lab(clients=number) as lab:
        servers = {port: lab.server(port) for port in (8001, 8002, 8003)}
        daemon = start(lab, [8001, 8002])
        swarm = lab.swarm()
        assert swarm.connect(number, (lab.address("box", "wan0"), 8000)).connected == number
        wait_until(lambda: sum(map(open_links, servers.values())) == 0, 10, "all are quiet")
        text = daemon.config.read_text()
        daemon.config.write_text(text.replace(":8001", ":8003").replace("200ms", "60s"))
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: states(daemon).get(8003) == "up" and states(daemon).get(8001) != "up", 10, "taken over")
        assert "wait for a restart" not in daemon.log_tail()
        before = open_links(servers[8003])
        said = swarm.say(number)
        assert (said.answered, said.failed) == (number, Counter())
        assert open_links(servers[8003]) > before
        daemon.config.write_text(text.replace('"10.3.0.2:8002"', '"nowhere"'))
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: "the configuration stays as it is" in daemon.log_tail(), 10, "a wrong list is refused")
        assert 8003 in states(daemon)
        wait_until(lambda: len(daemon.get("/v1/audit")) == 2, 10, "both are on record")
        done, refused = daemon.get("/v1/audit")
        assert {(row["method"], row["path"], row["who"], row["origin"]) for row in (done, refused)} == {
            ("SIGHUP", str(daemon.config), "root", "local")
        }
        assert (done["status"], done["error"], refused["status"]) == (200, None, 422)
        assert '"nowhere"' in refused["error"]
