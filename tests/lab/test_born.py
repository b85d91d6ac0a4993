# SPDX-License-Identifier: Apache-2.0
"""Clients that are born asleep: real ones, whose handshake no socket of the appliance ever saw."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final

import pytest

from appliance.lab import DaemonHandle, Lab, endpoint, wait_until
from tests.lab.engine_lab import QUICK_KEEPALIVES, receive, tcp_info

BOTH = pytest.mark.parametrize("family", [4, 6])
PORT = 8000
PLAIN_PORT: Final = 8100
"""Of the services without `born`."""
KINDS: Final = {4: socket.AF_INET, 6: socket.AF_INET6}
ESTABLISHED: Final = 1
RESET_AT_CLOSE: Final = b"\1\0\0\0\0\0\0\0"  # struct linger


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Nursery:
    """A service of each family whose clients are born asleep, their server and their daemon."""

    def __init__(self, stack: ExitStack, service: dict[str, Any] | None = None, plain: bool = False,
                 **config: Any) -> None:  # fmt: skip
        self.stack = stack
        self.lab = stack.enter_context(Lab(clients=10, nat=False))
        self.listeners: dict[int, socket.socket] = {}
        for family, kind in KINDS.items():
            with self.lab.enter("lan"):
                listener = socket.create_server(
                    (self.lab.address("lan", "eth0", family), PORT), family=kind, backlog=1000)  # fmt: skip
            listener.settimeout(5)
            self.listeners[family] = stack.enter_context(listener)
        self.settings = self.lab.config(service={"born": "always"} | (service or {}), **config)
        if plain:
            self.settings["service"] += [
                {**one, "name": f"{one['name']}-plain", "born": "never",
                 "listen": one["listen"].replace(f":{PORT}", f":{PLAIN_PORT}")}
                for one in self.settings["service"]]  # fmt: skip
        self.daemon: DaemonHandle = self.lab.daemon(self.settings)

    def client(self, family: int = 4, options: Mapping[int, int] | None = None, keepalives: bool = False,
               source_port: int = 0) -> socket.socket:  # fmt: skip
        """A socket that is about to connect."""
        with self.lab.enter("wan"):
            client = self.stack.enter_context(socket.socket(KINDS[family]))
        for option, value in (options or {}).items():
            client.setsockopt(socket.IPPROTO_TCP, option, value)
        for every in QUICK_KEEPALIVES if keepalives else ():
            client.setsockopt(*every)
        if source_port:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("", source_port))
        client.settimeout(5)
        return client

    def connect(self, family: int = 4, port: int = PORT, **options: Any) -> socket.socket:
        client = self.client(family, **options)
        client.connect((self.lab.address("box", "wan0", family), port))
        return client

    def accept(self, family: int = 4) -> socket.socket:
        server = self.stack.enter_context(self.listeners[family].accept()[0])
        server.settimeout(5)
        return server

    def converse(self, client: socket.socket) -> None:
        """The client speaks, and is answered."""
        family = next(family for family, kind in KINDS.items() if kind == client.family)
        client.sendall(b"question")
        server = self.accept(family)
        assert receive(server, 8) == b"question"
        server.sendall(b"answer")
        assert receive(client, 6) == b"answer"

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.daemon.status()["counters"]
        return counters

    def count(self, name: str, value: int) -> None:
        wait_until(lambda: self.counters()[name] == value, 5, f"{name} is {value}")

    def sockets(self) -> int:
        with self.lab.enter("box"):
            out = subprocess.run(["ss", "-Htan", f"sport = {PORT}"], capture_output=True, text=True, check=True)
        return len([line for line in out.stdout.splitlines() if not line.startswith("LISTEN")])

    def roost(self, *words: str) -> str:
        argv = [sys.executable, "-m", "control.cli.main", *words, "--socket", str(self.daemon.control_socket)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout

    def reload(self, **changes: Any) -> None:
        """SIGHUP, with these keys in both services."""
        old = self.daemon.config.read_text()
        lines = [line for line in old.splitlines() if line.partition(" = ")[0] not in changes]
        new = []
        for line in lines:
            new.append(line)
            if line.startswith("[[service]]"):
                new += [f"{key} = {json.dumps(value)}" for key, value in changes.items()]
        self.daemon.config.write_text("\n".join(new) + "\n")
        done = self.daemon.log.read_text().count("SIGHUP: policy taken over")
        self.daemon.process.popen.send_signal(signal.SIGHUP)
        wait_until(lambda: self.daemon.log.read_text().count("SIGHUP: policy taken over") > done, 5, "it is reloaded")

    @contextmanager
    def losing(self, what: str) -> Iterator[None]:
        """What matches never leaves the clients' machine."""
        self.lab.nft("wan", f"""
            table inet lose {{
                chain out {{
                    type filter hook output priority filter
                    {what} drop
                }}
            }}
        """)  # fmt: skip
        try:
            yield
        finally:
            self.lab.nft("wan", "delete table inet lose")


PURE_ACKS: Final = "tcp flags & (syn | fin | rst | psh | ack) == ack"


def name_of(client: socket.socket) -> str:
    return endpoint(*client.getsockname()[:2])


@BOTH
def test_whoever_says_nothing_costs_no_socket_and_is_answered_when_it_speaks(stack: ExitStack, family: int) -> None:
    nursery = Nursery(stack)
    client = nursery.connect(family)
    nursery.count(f"born_ipv{family}", 1)
    assert nursery.sockets() == 0
    assert nursery.daemon.status()["connections"] == {"ACTIVE": 0, "STANDBY": 0, "IDLE": 1, "SLEEP": 0}
    assert [(c["id"], c["state"]) for c in nursery.daemon.connections()] == [(None, "IDLE")]
    client.sendall(b"x" * 5000)
    server = nursery.accept(family)
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


@pytest.fixture(scope="module")
def shared() -> Iterator[Nursery]:
    with ExitStack() as stack:
        yield Nursery(stack, plain=True)


@pytest.fixture
def nursery(shared: Nursery) -> Iterator[Nursery]:
    """The module's, whose clients of earlier tests are gone."""
    assert shared.daemon.connections() == []
    with ExitStack() as stack:
        shared.stack = stack
        yield shared
    wait_until(lambda: not shared.daemon.connections(), 10, "the clients are gone")
    status = shared.daemon.status()
    assert (status["control"]["illegal"], status["counters"]["born"]) == (0, 0)
    assert (status["counters"]["table_ipv4"], status["counters"]["table_ipv6"]) == (0, 0)


@BOTH
def test_a_client_whose_acknowledgement_was_lost_may_speak_first(nursery: Nursery, family: int) -> None:
    with nursery.losing(f"meta length <= 72 {PURE_ACKS}"):
        client = nursery.connect(family)
        nursery.converse(client)
    assert tcp_info(client).retransmits == 0


@BOTH
def test_a_client_whose_acknowledgement_was_lost_may_keep_alive_first(nursery: Nursery, family: int) -> None:
    before = nursery.counters()
    with nursery.losing(PURE_ACKS):
        client = nursery.connect(family, keepalives=True)
    wait_until(lambda: nursery.counters()["keepalives_answered"] > before["keepalives_answered"], 5, "it is answered")
    assert nursery.counters()["born"] == 1
    wait_until(lambda: tcp_info(client).probes == 0, 2, "the client heard the answer")
    nursery.converse(client)


@BOTH
@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("silent", [False, True], ids=["ack", "ack-lost"])
def test_a_client_that_ends_before_it_said_anything_is_forgotten(
    nursery: Nursery, family: int, how: str, silent: bool
) -> None:
    with nursery.losing(PURE_ACKS) if silent else nullcontext():
        client = nursery.connect(family)
    if how == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
    client.close()
    wait_until(lambda: not nursery.daemon.connections() and not nursery.sockets(), 5, "nothing is left")


@BOTH
def test_a_server_reaches_it_by_its_address_and_port(nursery: Nursery, family: int) -> None:
    client = nursery.connect(family)
    nursery.count("born", 1)
    with nursery.lab.enter("lan"):
        server = nursery.stack.enter_context(
            socket.create_connection((nursery.lab.address("box", "lan0"), 3128), timeout=5))  # fmt: skip
    server.sendall(f"CONNECT {name_of(client)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert server.recv(4096).startswith(b"HTTP/1.1 200")
    server.sendall(b"good morning")
    assert receive(client, 12) == b"good morning"
    client.sendall(b"and to you")
    assert receive(server, 10) == b"and to you"


@BOTH
def test_the_operator_sees_wakes_and_closes_it_by_its_address(nursery: Nursery, family: int) -> None:
    woken, closed = nursery.connect(family), nursery.connect(family)
    nursery.count("born", 2)
    shown = json.loads(nursery.roost("show", name_of(woken), "--json"))
    assert (shown["client"], shown["state"], shown["id"]) == (name_of(woken), "IDLE", None)
    assert name_of(woken) in nursery.roost("show", name_of(woken))
    assert name_of(closed) in nursery.roost("connections")
    nursery.roost("wake", name_of(woken))
    wait_until(lambda: json.loads(nursery.roost("show", name_of(woken), "--json"))["state"] == "STANDBY", 5, "it woke")
    nursery.roost("close", name_of(closed))
    with pytest.raises(ConnectionResetError):
        closed.recv(1)
    assert [row["client"] for row in nursery.daemon.connections()] == [name_of(woken)]
    nursery.converse(woken)


@BOTH
@pytest.mark.parametrize("action", ["standby", "idle", "sleep"])
def test_what_cannot_be_done_with_it_is_refused_with_a_reason_and_changes_nothing(
    nursery: Nursery, family: int, action: str
) -> None:
    client = nursery.connect(family)
    nursery.count("born", 1)
    answer = nursery.daemon.http("POST", f"/v1/connections/{name_of(client)}/{action}")
    assert answer.status_code < 500, answer.text
    assert answer.json()
    (row,) = nursery.daemon.connections()
    assert row["client"] == name_of(client)
    nursery.converse(client)


@BOTH
def test_a_client_that_comes_again_from_the_same_port_is_taken_in(nursery: Nursery, family: int) -> None:
    old = nursery.connect(family, source_port=33_000)
    nursery.count("born", 1)
    with nursery.losing("tcp sport 33000"):
        old.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        old.close()  # it lost its memory
    new = nursery.connect(family, source_port=33_000)  # by a socket, when that is within 32 ms of the old one's end
    nursery.converse(new)


@BOTH
def test_a_client_that_comes_again_while_it_is_awake_is_taken_in(nursery: Nursery, family: int) -> None:
    old = nursery.connect(family, source_port=33_001)
    nursery.converse(old)
    with nursery.losing("tcp sport 33001"):
        old.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        old.close()
    new = nursery.connect(family, source_port=33_001)
    nursery.converse(new)


@BOTH
def test_a_service_that_does_not_ask_for_it_accepts_as_ever(nursery: Nursery, family: int) -> None:
    before = nursery.counters()
    client = nursery.connect(family, port=PLAIN_PORT)
    nursery.count("accepted", before["accepted"] + 1)
    after = nursery.counters()
    assert (after["syn_cookies"], after["born"]) == (before["syn_cookies"], 0)
    nursery.converse(client)


def test_clients_live_through_restarts_and_are_answered_while_nobody_is_there() -> None:
    """SIGTERM, then SIGKILL with an absence of some keep-alives."""
    with ExitStack() as stack:
        nursery = Nursery(stack)
        clients = [nursery.connect(family, keepalives=True) for family in (4, 6) for _ in range(6)]
        nursery.count("born", 12)
        secret = _births_gate(nursery)
        nursery.daemon.restart()
        assert (nursery.counters()["born"], nursery.counters()["table_ipv4"]) == (12, 6)
        nursery.converse(clients[0])
        nursery.converse(clients[6])
        assert nursery.daemon.kill() == -signal.SIGKILL
        time.sleep(4.5)  # the clients give up after 4 s
        assert all(tcp_info(client).probes <= 1 for client in clients[1:6] + clients[7:])
        nursery.daemon.start()
        nursery.count("born", 10)
        assert nursery.daemon.status()["connections"]["IDLE"] == 10
        for client in clients[1:6] + clients[7:]:
            nursery.converse(client)
        assert _births_gate(nursery) == secret, "cookies of the predecessor are good"
        assert nursery.daemon.status()["control"]["illegal"] == 0


def _births_gate(nursery: Nursery) -> bytes:
    """The secret of an instance's cookies."""
    path = str(nursery.daemon.pin_dir / "births_gate")
    out = subprocess.run(["bpftool", "-j", "map", "dump", "pinned", path], capture_output=True, check=True).stdout
    (entry,) = json.loads(out)
    return bytes(int(byte, 16) for byte in entry["value"][:16])


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_without_a_daemon_nobody_is_born_and_clients_are_refused_as_ever(stack: ExitStack, how: str) -> None:
    nursery = Nursery(stack)
    living = nursery.connect()
    nursery.count("born", 1)
    if how == "stopped":
        nursery.daemon.terminate()
    else:
        nursery.daemon.kill()
        time.sleep(3.1)  # 2 s, in whole seconds
    for family in (4, 6):
        with pytest.raises(ConnectionRefusedError):
            nursery.connect(family)
    nursery.daemon.start()
    assert nursery.counters()["born"] == 1
    nursery.converse(living)
    nursery.converse(nursery.connect(6))


def test_where_the_kernel_does_not_forward_it_is_said_and_clients_take_sockets(stack: ExitStack) -> None:
    nursery = Nursery(stack)
    assert "is born asleep" not in nursery.daemon.log.read_text()
    nursery.daemon.terminate()
    nursery.lab.sysctl("box", "net.ipv4.conf.wan0.forwarding", 0)
    stack.callback(nursery.lab.sysctl, "box", "net.ipv4.conf.wan0.forwarding", 1)
    nursery.daemon.start()
    (said,) = [line for line in nursery.daemon.log.read_text().splitlines() if "is born asleep" in line]
    assert said.endswith("net.ipv4.conf.wan0.forwarding is 0")
    nursery.connect(4)
    nursery.connect(6)
    nursery.count("accepted", 1)
    nursery.count("born_ipv6", 1)


def test_a_reload_switches_it_off_and_on(stack: ExitStack) -> None:
    nursery = Nursery(stack)
    before = nursery.connect()
    nursery.count("born", 1)
    nursery.reload(born="never")
    between = [nursery.connect(family) for family in (4, 6)]
    servers = [nursery.accept(family) for family in (4, 6)]  # a client that is accepted is linked at once
    assert (nursery.counters()["accepted"], nursery.counters()["born"]) == (2, 1)
    nursery.reload(born="always")
    after = [nursery.connect(family) for family in (4, 6)]
    nursery.count("born", 3)
    assert nursery.counters()["accepted"] == 2
    for client in (before, *after):
        nursery.converse(client)
    for client, server in zip(between, servers, strict=True):
        client.sendall(b"as ever")
        assert receive(server, 7) == b"as ever"


def test_in_a_storm_they_are_born_and_else_accepted(stack: ExitStack) -> None:
    """A storm at one service is none at another."""
    nursery = Nursery(stack, service={"born": "storm", "born_rate": 40})
    quiet = []
    for _ in range(4):
        quiet.append(nursery.connect())
        time.sleep(0.15)  # a tick, and more: the rate is counted by ticks of 128 ms
    nursery.count("accepted", len(quiet))
    assert (nursery.counters()["born"], nursery.counters()["syn_cookies"]) == (0, 0)
    many = [nursery.connect() for _ in range(200)]
    other = nursery.connect(6)
    wait_until(lambda: nursery.counters()["born"] + nursery.counters()["accepted"] == 205, 5, "all are there")
    counters = nursery.counters()
    assert counters["born"] > 150
    assert counters["born_ipv6"] == 0
    time.sleep(0.3)  # two ticks without a client: the storm is over
    late = nursery.connect()
    nursery.count("accepted", counters["accepted"] + 1)
    assert len({name_of(client) for client in (*quiet, *many, other, late)}) == 206
    assert all(tcp_info(client).retransmits == 0 for client in many)


def test_a_full_table_means_the_ordinary_way_before_the_engine_knows(stack: ExitStack) -> None:
    """They come faster than the engine looks whether there is room. A client that had a cookie by then is refused, by
    RST."""
    nursery = Nursery(stack, table={"ipv4": 560, "ipv6": 560, "idle": 560, "grow": False})
    clients: list[socket.socket] = []
    refused = 0
    while len(clients) < 700:
        try:
            clients.append(nursery.connect(keepalives=True))
        except ConnectionResetError:
            refused += 1
    time.sleep(4.5)  # the clients give up after 4 s
    lost = [client for client in clients if tcp_info(client).state != ESTABLISHED]
    assert refused + len(lost) <= 5
    counters = nursery.counters()
    assert counters["born"] + counters["accepted"] == len(clients) - len(lost)
    assert counters["born"] > 400
    for _ in range(counters["accepted"]):
        nursery.accept()  # a client that is accepted is linked at once
    living = [client for client in clients if client not in lost]
    for client in (living[0], living[300]):
        nursery.converse(client)
