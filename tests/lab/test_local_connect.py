# SPDX-License-Identifier: Apache-2.0
"""Programs on the appliance itself that reach clients by connect() to their address ([attach] local_connect)."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from appliance.box.mounts import cgroup2
from appliance.engine import EngineError
from appliance.lab import Lab, endpoint, wait_until
from appliance.lab.programs import Dialogue, Endpoint
from appliance.wire import NEAR_ENDS
from tests.lab.device_lab import DeviceLab
from tests.lab.engine_lab import EngineLab
from tests.lab.fixtures import ip

libc = ctypes.CDLL(None, use_errno=True)
BOTH = pytest.mark.parametrize("family", [4, 6])
ASLEEP = ("STANDBY", "IDLE", "SLEEP")
HERE: Any = {"attach": {"local_connect": True}}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(clients=20, nat=False) as lab:
        yield lab


@BOTH
def test_figure_10_an_application_on_the_appliance_connects_to_a_client_that_sleeps(lab: Lab, family: int) -> None:
    with closing(DeviceLab(lab, "address", family, **HERE)) as box:
        for _ in range(2):
            box.to(box.id, "sleep")
            assert box.visit(proxy=None, space="box") == box.at_home()
            box.wait_last(box.id, *ASLEEP, "ACTIVE", "STANDBY")
        assert box.causes(box.id)[-2:] == ["server-attach", "server-close"]
        box.device.close()
        box.wait_last(box.id, "CLOSED")
        code, said = box.visit(proxy=None, space="box")
        assert (code, "Connection refused" in said) == (255, True), said


def test_figure_11_an_application_keeps_its_connection_to_a_client_for_as_long_as_that_is_connected(lab: Lab) -> None:
    """The persistent interface, of an application that connected: both of its ends sleep."""
    persistent: Any = {"interface": "persistent", "on_second_server": "take-over", **HERE}
    with closing(DeviceLab(lab, "address", **persistent)) as box:
        shell = shell_of(box)
        shell.ask("WORD=unforgotten", "")
        for _ in range(2):
            box.to(box.id, "sleep")
            box.wait_last(box.id, "IDLE", "SLEEP")
            assert shell.ask("echo $WORD", "\n") == "unforgotten\n"
        box.to(box.id, "sleep")
        box.device.close()
        box.wait_last(box.id, "CLOSED")
        assert shell.end() == 255, "the application's socket is closed with the client's connection"


def test_figure_12_an_application_is_connected_to_a_client_while_that_is_active(lab: Lab) -> None:
    """The transient interface: the application's socket is closed when both fall quiet, and the client stays."""
    with closing(DeviceLab(lab, "address", **HERE)) as box:
        for _ in range(2):
            box.to(box.id, "sleep")
            shell = shell_of(box)
            assert shell.ask("echo $((6 * 7))", "\n") == "42\n"
            box.to(box.id, "standby")
            assert shell.end() == 255
        assert box.daemon.status()["counters"]["accepted"] == 1


def shell_of(box: DeviceLab) -> Dialogue:
    """A shell on the device, of an operator on the appliance."""
    to = box.device.address
    shell = Dialogue(box.lab, "box", box.keys.client("-T", "-p", str(to[1]), f"root@{to[0]}", "exec sh"))
    shell.ask("echo shell is there", "shell is there\n")
    return shell


class Plain:
    """A client that says what it is told, and has no server."""

    def __init__(self, lab: Lab, listen: str = "") -> None:
        self.lab = lab
        lab.server(7000)
        server = endpoint(lab.address("lan", "eth0"), 7000)
        self.door = (lab.address("box", "wan0"), 7000)
        self.daemon = lab.daemon({
            "service": [{"name": "devices", "listen": listen or endpoint(*self.door), "server": server}],
            "attach": {"local_connect": True},
        })  # fmt: skip
        self.client = self.client_at(self.door)

    def client_at(self, door: Endpoint) -> socket.socket:
        client = self.connect("wan", door)
        wait_until(lambda: [row["state"] for row in self.daemon.connections()] == ["ACTIVE"], 10, "the client is there")
        self.daemon.act(self.daemon.connections()[0]["id"], "standby")
        return client

    def connect(self, space: str, to: Endpoint, family: int = socket.AF_INET, port: int = 0) -> socket.socket:
        with self.lab.enter(space):
            sock = socket.socket(family)
        sock.settimeout(10)
        if port:
            sock.bind(("", port))
        sock.connect(to)
        return sock

    def reaches(self, program: socket.socket) -> bool:
        """Whether what the program says comes to the client."""
        with program:
            program.sendall(b"a word")
            return self.client.recv(6) == b"a word"

    @property
    def address(self) -> Endpoint:
        where: Endpoint = self.client.getsockname()
        return where


def test_a_program_sees_the_client_as_its_peer_and_itself_on_the_loopback(lab: Lab) -> None:
    box = Plain(lab)
    program = box.connect("box", box.address)
    assert (program.getpeername(), program.getsockname()[0]) == (box.address, "127.0.0.1")
    assert box.reaches(program)


def test_an_ipv4_client_is_reached_by_a_socket_of_ipv6(lab: Lab) -> None:
    box = Plain(lab)
    assert box.reaches(box.connect("box", (f"::ffff:{box.address[0]}", box.address[1]), socket.AF_INET6))


def test_clients_of_a_service_on_every_address_are_reached_at_one_that_came_later(lab: Lab) -> None:
    box = Plain(lab, listen="0.0.0.0:7000")
    assert box.reaches(box.connect("box", box.address))
    box.client.close()
    wait_until(lambda: not box.daemon.connections(), 10, "the client has gone")
    ip(lab, "box", "address", "add", "198.18.0.77/24", "dev", "wan0")
    box.client = box.client_at(("198.18.0.77", 7000))
    wait_until(lambda: is_connected(box), 20, "the client is reached")


def is_connected(box: Plain) -> bool:
    with suppress(ConnectionRefusedError):
        return box.reaches(box.connect("box", box.address))
    return False


def test_what_is_bound_to_a_port_connects_to_the_client_itself(lab: Lab) -> None:
    box = Plain(lab)
    with pytest.raises(ConnectionRefusedError):
        box.connect("box", box.address, port=34567)


def test_a_program_of_another_network_namespace_is_left_alone(lab: Lab) -> None:
    """There the client's address is one of its own."""
    box = Plain(lab)
    ip(lab, "lan", "address", "add", f"{box.address[0]}/32", "dev", "lo")
    with lab.enter("lan"):
        listener = socket.create_server(box.address)
    with listener, box.connect("lan", box.address) as program:
        assert program.getsockname()[0] == box.address[0]


def test_when_the_daemon_is_killed_programs_connect_to_the_client_itself(lab: Lab) -> None:
    """And it is the hook that goes, not only the door."""
    box = Plain(lab)
    box.daemon.act(endpoint(*box.address), "sleep")
    box.daemon.kill()
    assert refused(box) != "127.0.0.1"
    box.daemon.start()
    assert box.reaches(box.connect("box", box.address))


def test_what_is_bound_to_an_interface_connects_to_the_client_itself(lab: Lab) -> None:
    box = Plain(lab)
    assert refused(box, (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"wan0")) != "127.0.0.1"


def test_a_socket_that_came_in_once_may_connect_elsewhere_afterwards(lab: Lab) -> None:
    box = Plain(lab)
    with lab.enter("lan"):
        elsewhere = socket.create_server((lab.address("lan", "eth0"), 7001))
    program = box.connect("box", box.address)
    unspecified = struct.pack("=H14x", socket.AF_UNSPEC)
    with elsewhere, program:
        assert libc.connect(program.fileno(), unspecified, len(unspecified)) == 0
        program.connect((lab.address("lan", "eth0"), 7001))
        assert program.getsockname()[0] == lab.address("box", "lan0")


def test_a_link_of_the_daemons_goes_to_its_server_and_not_to_a_client_of_that_address_and_port(lab: Lab) -> None:
    """Both are behind one address, as behind a NAT."""
    server = (lab.address("lan", "eth0"), 7100)
    door, other = (lab.address("box", "wan0"), 7000), (lab.address("box", "wan0"), 7001)
    services = [{"name": str(port), "listen": endpoint(address, port), "server": endpoint(*server)}
                for address, port in (door, other)]  # fmt: skip
    daemon = lab.daemon({"service": services, "attach": {"local_connect": True},
                         "network": {"interfaces": ["wan0", "lan0"]}})  # fmt: skip
    with lab.enter("lan"):
        client, listener = socket.socket(), socket.socket()
    with lab.enter("wan"):
        speaker = socket.socket()
    with client, listener, speaker:
        for sock in (client, listener, speaker):
            sock.settimeout(10)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(server)
        client.connect(door)
        wait_until(lambda: len(daemon.connections()) == 1, 10, "the client is there")
        listener.bind(server)
        listener.listen()
        speaker.connect(other)
        speaker.sendall(b"for the server")
        for _ in range(2):  # the client's own link was waited for, too
            link, _ = listener.accept()
            with link:
                link.settimeout(2)
                with suppress(TimeoutError):
                    if link.recv(14) == b"for the server":
                        return
        raise AssertionError("the server heard nothing")


def refused(box: Plain, *options: tuple[int, int, bytes]) -> str:
    """The address that a program's socket has once its connect() was refused."""
    with box.lab.enter("box"):
        sock = socket.socket()
    with sock:
        sock.settimeout(10)
        for option in options:
            sock.setsockopt(*option)
        with pytest.raises(ConnectionRefusedError):
            sock.connect(box.address)
        return str(sock.getsockname()[0])


@pytest.mark.own_engine
def test_the_engine_takes_as_many_places_as_it_says(box: EngineLab) -> None:
    box.engine.attach("lo", servers=True)
    box.engine.open_local_connect(cgroup2() or "")
    places = [("192.0.2.1", 1000 + n) for n in range(NEAR_ENDS + 1)]
    box.engine.local_connect_at(places[:-1])
    box.engine.local_connect_at(places[1:])
    with pytest.raises(EngineError):
        box.engine.local_connect_at(places)
