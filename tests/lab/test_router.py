# SPDX-License-Identifier: Apache-2.0
"""A transparent router: clients and servers use each other's own addresses, and connections sleep in between."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import Any, Final

import pytest

from appliance.engine import unpin
from appliance.lab import Lab, wait_until
from appliance.wire import Command, Op
from control.core.states import Cause, State
from tests.lab.engine_lab import PORT, EngineLab, receive
from tests.lab.fixtures import ip

BOTH = pytest.mark.parametrize("family", [4, 6])
INACTIVE = [State.STANDBY, State.IDLE, State.SLEEP]
PORT_OF_CLIENTS: Final = 7000
pytestmark = pytest.mark.engine(router=True)


def reach(box: EngineLab, address: tuple[str, int], timeout_s: float = 5.0) -> socket.socket:
    """A server's connection to a client's address."""
    with box.lab.enter("lan"):
        return socket.create_connection(address, timeout_s)


def assert_reset(box: EngineLab, address: tuple[str, int]) -> None:
    """The door takes the server in before it is known which client it wants, so it is reset, at once."""
    with pytest.raises(ConnectionResetError), reach(box, address) as server:
        server.recv(1)


@BOTH
def test_each_end_sees_the_other_by_its_own_address(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    server = (box.lab.address("lan", "eth0", family), PORT)
    assert pair.client.getpeername()[:2] == pair.server.getsockname()[:2] == server
    assert pair.server.getpeername()[:2] == pair.client.getsockname()[:2]


@BOTH
@pytest.mark.parametrize("state", INACTIVE)
def test_a_client_that_wakes_comes_to_its_server_by_its_own_address(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family)
    for _ in range(3):
        box.to(pair, state)
        box.wake_and_answer(pair, 3000)
        assert pair.server.getpeername()[0] == pair.client.getsockname()[0]


@BOTH
@pytest.mark.parametrize("state", INACTIVE)
def test_a_server_that_connects_to_the_client_is_linked_to_its_connection(
    box: EngineLab, family: int, state: State
) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    with reach(box, pair.client.getsockname()[:2]) as server:
        assert server.getpeername()[:2] == pair.client.getsockname()[:2]
        server.sendall(b"are you there?")
        assert receive(pair.client, 14) == b"are you there?"
        pair.client.sendall(b"yes")
        assert receive(server, 3) == b"yes"
        box.wait_state(pair, State.ACTIVE)
        assert box.transitions(pair)[-1] == (state, State.ACTIVE, Cause.SERVER_ATTACH)
    box.wait_state(pair, State.STANDBY)
    box.wake_and_answer(pair)


@BOTH
def test_a_server_that_wants_a_client_which_is_linked_is_reset(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    assert_reset(box, pair.client.getsockname()[:2])
    box.exchange(pair)
    assert box.stat("servers_refused") == 1


@BOTH
def test_what_is_not_managed_is_routed_untouched(box: EngineLab, family: int) -> None:
    lan, wan = box.lab.address("lan", "eth0", family), box.lab.client_addresses(family)[0]
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    for space, address, other, port in (("lan", lan, "wan", PORT + 1), ("wan", wan, "lan", PORT)):
        with box.lab.enter(space):
            listener = socket.create_server((address, port), family=kind)
        with listener, box.lab.enter(other):
            with socket.create_connection((address, port), 5) as near:
                far = listener.accept()[0]
                with far:
                    assert far.getpeername() == near.getsockname()
                    near.sendall(b"straight through")
                    assert far.recv(100) == b"straight through"
        with box.lab.enter(other), pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), 5)
    assert box.stat("accepted") == box.stat("servers_refused") == 0


@BOTH
def test_without_an_engine_new_clients_are_routed_to_their_server_and_sleeping_ones_stay(
    box: EngineLab, family: int
) -> None:
    asleep = box.connect(family)
    box.to_sleep(asleep)
    box.stop()
    direct = box.dial(family)
    server = box.accept(family)
    server.sendall(b"hello")
    assert receive(direct, 5) == b"hello"
    assert server.getpeername() == direct.getsockname()
    box.start()
    box.wake_and_answer(asleep)
    direct.sendall(b"still there")  # its socket is not ours: it goes on as it began
    assert receive(server, 11) == b"still there"


@BOTH
@pytest.mark.engine(router=True, service={"fail_closed": True})
def test_without_an_engine_new_clients_are_refused_where_the_policy_says_so(box: EngineLab, family: int) -> None:
    asleep = box.connect(family)
    box.to_idle(asleep)
    box.stop()
    with pytest.raises(ConnectionRefusedError):
        box.dial(family)
    box.start()
    box.wake_and_answer(asleep)


@BOTH
def test_the_daemon_routes_and_cleans_up_behind_itself(family: int) -> None:
    with Lab(clients=10, nat=False) as lab:
        lab.server(8000)
        daemon = lab.daemon(lab.config(router={}, policy={"active_quiet": "100ms", "standby_quiet": "200ms"}))
        swarm = lab.swarm(family)
        assert swarm.connect(10, (lab.address("lan", "eth0", family), 8000)).connected == 10
        wait_until(lambda: daemon.status()["connections"]["IDLE"] == 10, 10, "all are asleep")
        daemon.kill()
        daemon.start()
        assert swarm.say(10).answered == 10
        swarm.close()
        wait_until(lambda: not any(daemon.status()["connections"].values()), 10, "all are gone")
        daemon.terminate()
        with lab.enter("box"):
            for command in (["ip", "rule"], ["ip", "-6", "rule"]):
                assert "5200" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@BOTH
@pytest.mark.parametrize("state", INACTIVE)
@pytest.mark.engine(router=True, attach_ports=[PORT_OF_CLIENTS])
def test_a_server_reaches_the_only_client_of_an_address_by_the_port_for_it(
    box: EngineLab, family: int, state: State
) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    for _ in range(2):
        with reach(box, (pair.client.getsockname()[0], PORT_OF_CLIENTS)) as server:
            server.sendall(b"are you there?")
            assert receive(pair.client, 14) == b"are you there?"
        box.wait_state(pair, State.STANDBY)


@BOTH
@pytest.mark.engine(router=True, attach_ports=[PORT_OF_CLIENTS])
def test_an_address_with_several_clients_or_none_means_nobody(box: EngineLab, family: int) -> None:
    pairs = [box.connect(family) for _ in range(2)]
    address = pairs[0].client.getsockname()[0]
    assert pairs[1].client.getsockname()[0] == address
    for pair in pairs:
        box.to_idle(pair)

    assert_reset(box, (address, PORT_OF_CLIENTS))
    assert_reset(box, (box.lab.client_addresses(family)[0] + "9", PORT_OF_CLIENTS))
    assert box.state(pairs[0]) is box.state(pairs[1]) is State.IDLE
    box.close(pairs[1])  # the one that came last: which one is left must be looked for
    with reach(box, (address, PORT_OF_CLIENTS)) as server:
        server.sendall(b"hello")
        assert receive(pairs[0].client, 5) == b"hello"


@BOTH
@pytest.mark.engine(router=True, attach_ports=[PORT_OF_CLIENTS])
def test_an_adopted_client_is_found_by_its_address(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_sleep(pair)
    box.stop()
    box.start()
    with reach(box, (pair.client.getsockname()[0], PORT_OF_CLIENTS)) as server:
        server.sendall(b"hello")
        assert receive(pair.client, 5) == b"hello"


def steered(box: EngineLab) -> list[str]:
    """The interfaces of the appliance with a steering program."""
    with box.lab.enter("box"):
        shown = {
            name: subprocess.run(
                ["tc", "filter", "show", "dev", name, "ingress"], capture_output=True, text=True, check=True
            ).stdout
            for name in ("wan0", "lan0")
        }
    return [name for name, text in shown.items() if "roost_steer" in text]


def test_steering_ends_when_the_next_engine_is_no_router_and_with_the_pins(box: EngineLab) -> None:
    assert steered(box) == ["wan0", "lan0"]
    box.stop()
    assert steered(box) == ["wan0", "lan0"], "sleeping connections may be left"
    box.restart_as(router=False)
    assert steered(box) == []
    box.stop()
    box.restart_as(router=True)
    assert steered(box) == ["wan0", "lan0"]
    box.stop()
    with box.lab.enter("box"):
        unpin(str(box.pin_dir))
    assert steered(box) == []


@BOTH
def test_both_ways_work_with_syn_cookies(box: EngineLab, family: int) -> None:
    box.lab.sysctl("box", "net.ipv4.tcp_syncookies", 2)  # always, not only when the queue is full
    try:
        pair = box.connect(family)
        box.to_idle(pair)
        with reach(box, pair.client.getsockname()[:2]) as server:
            server.sendall(b"hello")
            assert receive(pair.client, 5) == b"hello"
    finally:
        box.lab.sysctl("box", "net.ipv4.tcp_syncookies", 1)


@BOTH
def test_every_server_of_a_port_is_answered_for(family: int) -> None:
    with Lab(clients=10, nat=False) as lab:
        server = lab.server(8000)
        # A server that was linked may speak as late as that: it may have to wait for a processor.
        daemon = lab.daemon(every_server(lab, active_quiet="1s"))
        swarm = lab.swarm(family)
        assert swarm.connect(10, (lab.address("lan", "eth0", family), 8000)).connected == 10
        wait_until(lambda: daemon.status()["connections"]["IDLE"] == 10, 10, "all are asleep")
        assert swarm.say(10).answered == 10
        wait_until(lambda: daemon.status()["connections"]["IDLE"] == 10, 10, "all are asleep again")
        asker = lab.asker()
        targets = [row["client"] for row in daemon.connections(state="IDLE")]
        token = asker.send("ask", targets=targets, concurrency=2, timeout_s=5)
        answer = asker.receive(token, 20)
        assert answer["answered"] == 10, answer["failures"]
        assert server.request("stats")["hellos"] == 10


@BOTH
@pytest.mark.engine(router=True, attach_ports=[PORT_OF_CLIENTS], wait_ms=3000)
def test_a_server_waits_for_a_client_that_is_not_connected_yet(box: EngineLab, family: int) -> None:
    address = box.lab.client_addresses(family)[0]
    with reach(box, (address, PORT_OF_CLIENTS)) as server:
        server.sendall(b"are you there?")
        time.sleep(0.3)
        linked = box.stat("linked")
        client = box.dial(family, source=address)
        box.accept(family)  # its own server
        box.wait(lambda: box.stat("linked") > linked, "its own server is linked")  # a link that begins is not ended
        time.sleep(0.2)  # the one that waits finds its client busy, a few times
        box.engine.submit([Command(Op.STANDBY, cause=Cause.COMMAND, key=box.key_of(client))])
        assert receive(client, 14) == b"are you there?"
        client.sendall(b"now")
        assert receive(server, 3) == b"now"


@pytest.mark.engine(router=True, attach_ports=[PORT_OF_CLIENTS], wait_ms=400)
def test_a_server_that_waited_in_vain_is_reset_and_one_that_left_is_forgotten(box: EngineLab) -> None:
    nobody = (box.lab.client_addresses(4)[0], PORT_OF_CLIENTS)
    reach(box, nobody).close()
    began = time.monotonic()
    assert_reset(box, nobody)
    assert 0.35 < time.monotonic() - began < 2
    box.wait(lambda: box.stat("servers_refused") == 2, "both are gone")


@BOTH
@pytest.mark.parametrize("narrow", [("nat", "inside"), ("lan", "eth0")], ids=["towards-clients", "towards-servers"])
def test_the_narrowest_link_of_the_path_is_found(family: int, narrow: tuple[str, str]) -> None:
    """ICMP errors name the address that we answered under; they must come to us all the same."""
    with Lab(clients=10, nat=False) as lab, EngineLab(lab, router=True) as box:
        pair = box.connect(family)
        data = bytes(200_000)
        if narrow[0] == "nat":
            set_mtu(lab, "nat", "inside", 1300)
            source, sink = pair.server, pair.client
        else:  # a narrower link behind the one to the box: the box itself says so
            set_mtu(lab, "box", "lan0", 1300)
            source, sink = pair.client, pair.server
        source.sendall(data)
        assert receive(sink, len(data)) == data


def set_mtu(lab: Lab, space: str, ifname: str, mtu: int) -> None:
    ip(lab, space, "link", "set", ifname, "mtu", str(mtu))


EVERY = {4: "0.0.0.0", 6: "[::]"}


def every_server(lab: Lab, active_quiet: str = "100ms", **router: Any) -> dict[str, Any]:
    """A configuration that answers for every server of port 8000."""
    config = lab.config(router=router, policy={"active_quiet": active_quiet, "standby_quiet": "200ms"})
    config["service"] = [{"name": f"all{f}", "listen": f"{every}:8000", "transparent": True}
                         for f, every in EVERY.items()]  # fmt: skip
    return config


@BOTH
def test_servers_are_no_clients_and_the_appliance_is_no_server(family: int) -> None:
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    with Lab(clients=10, nat=False) as lab:
        daemon = lab.daemon(every_server(lab))
        with lab.enter("wan"):
            away = (lab.address("wan", "eth0", family), 8000)
            listener = socket.create_server(away, family=kind)
        with listener, lab.enter("lan"), socket.create_connection(away, 5) as server:
            far = listener.accept()[0]
            with far:
                time.sleep(0.5)  # quiet for long enough
                server.sendall(b"out")
                assert far.recv(10) == b"out"
        with lab.enter("wan"), pytest.raises(ConnectionResetError):
            with socket.create_connection((lab.address("box", "wan0", family), 8000), 5) as client:
                client.recv(1)
        assert daemon.status()["counters"].get("linked", 0) == 0


@BOTH
def test_new_clients_are_refused_after_an_orderly_end_where_the_policy_says_so(family: int) -> None:
    with Lab(clients=10, nat=False) as lab:
        lab.server(8000)
        daemon = lab.daemon(lab.config(router={"fail": "closed"}))
        daemon.terminate()
        with lab.enter("wan"), pytest.raises(ConnectionRefusedError):
            socket.create_connection((lab.address("lan", "eth0", family), 8000), 5)


@pytest.mark.parametrize("by_address", [False, True])
@pytest.mark.engine(router=True, attach_ports=(47001,), service={"unreachable": True})
def test_no_server_reaches_the_appliances_own_clients(box: EngineLab, by_address: bool) -> None:
    """The control connections of agents."""
    pair = box.connect()
    box.to_standby(pair)
    port = 47001 if by_address else pair.key.client_port
    assert is_reset(box, pair.client.getsockname()[0], port)
    box.wake_and_answer(pair)


def is_reset(box: EngineLab, address: str, port: int) -> bool:
    """What becomes of a server's connection to there."""
    try:
        with box.lab.enter("lan"), socket.create_connection((address, port), 5) as server:
            server.recv(1)
    except ConnectionError:
        return True
    return False
