# SPDX-License-Identifier: Apache-2.0
"""The persistent interface under its daemon: as a service, as a router, and on the server's own machine."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from appliance.lab import DaemonHandle, Lab, wait_until
from control.daemon.engine_setup import ROUTES_S
from tests.lab.engine_lab import receive, tcp_info
from tests.lab.fixtures import ip
from tests.reboot import age

BOTH = pytest.mark.parametrize("family", [4, 6])
LOOPBACK = {4: "127.0.0.1", 6: "::1"}
QUIET = {"active_quiet": "300ms", "idle_quiet": "1s"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Session:
    """One connection through an appliance, and both its ends."""

    def __init__(self, stack: ExitStack, lab: Lab, mode: str, family: int,
                 started: Callable[[DaemonHandle], None] = lambda daemon: None) -> None:  # fmt: skip
        kind = socket.AF_INET6 if family == 6 else socket.AF_INET
        self.lab = lab
        service: dict[str, Any] = {"interface": "persistent"}
        where, address = "lan", lab.address("lan", "eth0", family)
        if mode == "host":
            where, address = "box", LOOPBACK[family]
        with lab.enter(where):
            listener = stack.enter_context(socket.create_server((address, 8000), family=kind))
        listener.settimeout(5)
        config = lab.config(policy=QUIET, service=service, router={} if mode == "router" else None)
        if mode == "host":
            for one in config["service"]:
                one["server"] = "[::1]:8000" if "[" in one["listen"] else "127.0.0.1:8000"
        self.daemon: DaemonHandle = lab.daemon(config)
        started(self.daemon)
        target = lab.address("lan", "eth0", family) if mode == "router" else lab.address("box", "wan0", family)
        with lab.enter("wan"):
            self.client = stack.enter_context(socket.create_connection((target, 8000), 5))
        self.server = stack.enter_context(listener.accept()[0])
        self.server.settimeout(5)

    def talk(self, size: int = 1000) -> None:
        """The client first, then the server."""
        for says, hears in ((self.client, self.server), (self.server, self.client)):
            says.sendall(bytes(size))
            assert len(receive(hears, size)) == size

    def wait(self, state: str) -> None:
        wait_until(lambda: [c["state"] for c in self.daemon.connections()] == [state], 10, f"the session is {state}")

    def sockets_of_the_appliance(self) -> int:
        """Established ones that involve port 8000, without a server's own on the same machine."""
        with self.lab.enter("box"):
            out = subprocess.run(["ss", "-Htn", "state", "established", "( dport = 8000 or sport = 8000 )"],
                                 capture_output=True, text=True, check=True)  # fmt: skip
        return len(out.stdout.splitlines())


@BOTH
@pytest.mark.parametrize("mode", ["service", "router", "host"])
def test_a_session_survives_sleep_and_restart(stack: ExitStack, family: int, mode: str) -> None:
    lab = stack.enter_context(Lab(clients=10, nat=False))
    session = Session(stack, lab, mode, family)
    session.talk()
    own = 1 if mode == "host" else 0  # the application's end is on the same machine
    session.wait("SLEEP")
    assert session.sockets_of_the_appliance() == own
    for end in (session.client, session.server):
        end.settimeout(0)
        with pytest.raises(BlockingIOError):
            end.recv(1)
        end.settimeout(5)
    session.server.sendall(b"news")
    assert receive(session.client, 4) == b"news"
    session.talk(200_000)
    session.wait("SLEEP")
    session.daemon.restart()
    session.wait("SLEEP")
    session.talk(200_000)
    session.wait("IDLE")
    session.daemon.kill()
    session.daemon.start()
    session.server.sendall(bytes(60_000))  # on loopback one packet
    assert len(receive(session.client, 60_000)) == 60_000
    session.talk()
    session.client.close()
    assert session.server.recv(1) == b""
    session.server.close()
    wait_until(lambda: session.daemon.connections() == [], 5, "it is closed")
    status = session.daemon.status()
    assert (status["counters"]["table_ipv4"], status["counters"]["table_ipv6"]) == (0, 0)


def test_a_quiet_host_session_answers_the_keepalives_of_its_application(stack: ExitStack) -> None:
    lab = stack.enter_context(Lab(clients=10, nat=False))
    session = Session(stack, lab, "host", 4)
    session.talk()
    session.server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        session.server.setsockopt(socket.IPPROTO_TCP, option, 1)
    session.wait("SLEEP")
    raw = session.daemon.status()["counters"]["probes_raw"]
    wait_until(lambda: session.daemon.status()["counters"]["probes_raw"] >= raw + 3, 10, "three keep-alives answered")
    session.wait("SLEEP")
    session.talk()


def test_an_acknowledgement_that_a_server_on_this_machine_did_not_get_is_said_again(stack: ExitStack) -> None:
    lab = stack.enter_context(Lab(clients=10, nat=False))
    session = Session(stack, lab, "host", 4)
    session.talk()
    lab.nft(
        "box",
        """
        table inet lose {
            chain out {
                type filter hook output priority filter
                oifname "lo" tcp dport 8000 tcp flags & (syn | fin | rst | psh | ack) == ack drop
            }
        }
    """,
    )
    session.server.sendall(b"news")
    assert receive(session.client, 4) == b"news"
    session.wait("SLEEP")
    assert tcp_info(session.server).unacked == 1
    lab.nft("box", "delete table inet lose")
    wait_until(lambda: not tcp_info(session.server).unacked, 10, "it is acknowledged")
    session.wait("SLEEP")
    session.talk()


def test_a_server_that_another_interface_leads_to_later_is_heard_there(stack: ExitStack) -> None:
    """As at boot, where the network of the clients may be there before that of the servers."""
    lab = stack.enter_context(Lab(clients=10, nat=False))
    servers = [lab.address("lan", "eth0", family) for family in (4, 6)]
    for server in servers:
        ip(lab, "box", "route", "add", server, "dev", "wan0")

    def arrive(daemon: DaemonHandle) -> None:
        assert list(daemon.status()["interfaces"]) == ["wan0"]
        for server in servers:
            ip(lab, "box", "route", "del", server)
        wait_until(lambda: "lan0" in daemon.status()["interfaces"], ROUTES_S + 3, "the server is heard")

    session = Session(stack, lab, "service", 4, arrive)
    session.talk()
    session.wait("SLEEP")
    session.server.sendall(b"news")
    assert receive(session.client, 4) == b"news"


def test_without_a_route_to_the_server_the_daemon_says_so(stack: ExitStack) -> None:
    lab = stack.enter_context(Lab(clients=10, nat=False))
    config = lab.config(service={"interface": "persistent"})
    for one in config["service"]:
        one["server"] = "203.0.113.9:80"
    waiting = lab.daemon(config).status()["waiting"]
    told = "no route to 203.0.113.9: Network is unreachable; add the route, or name the interface in [network] "
    told += "server_interfaces"
    assert waiting == [f'service "lab{family}": {told}' for family in (4, 6)]


@pytest.mark.parametrize("speaker", ["client", "server"])
def test_a_session_survives_a_reboot_of_the_appliance(stack: ExitStack, speaker: str) -> None:
    """The machine cannot reboot here, but what a reboot takes can be taken: the tables, and the boot's name."""
    lab = stack.enter_context(Lab(clients=10, nat=False))
    session = Session(stack, lab, "service", 4)
    session.talk()
    session.wait("SLEEP")
    session.daemon.kill()
    session.daemon.unpin()
    with sqlite3.connect(lab.workspace / "roost.db") as database:
        age(database)
    session.daemon.start()
    session.wait("SLEEP")
    assert session.daemon.get("/v1/connections/1")["server"] == f"{lab.address('lan', 'eth0')}:8000"
    assert session.daemon.act(1, "wake")["state"] == "ACTIVE"
    session.wait("SLEEP")
    says, hears = (session.client, session.server) if speaker == "client" else (session.server, session.client)
    says.sendall(b"after the reboot")
    assert receive(hears, 16) == b"after the reboot"
    session.talk()
    session.wait("SLEEP")
    session.talk()
    wait_until(lambda: session.daemon.status()["control"]["illegal"] == 0, 1, "no transition was illegal")
