# SPDX-License-Identifier: Apache-2.0
"""How the data path gets onto an interface, in native and in generic XDP; and how servers attach, end to end."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress

import pytest
from pyroute2 import IPRoute

from appliance.engine import EngineError
from appliance.lab import Lab, wait_until
from control.core.states import Cause, State
from tests.lab.aging import pinned
from tests.lab.engine_lab import QUICK_KEEPALIVES, EngineLab, tcp_info

BOTH = pytest.mark.parametrize("family", [4, 6])


def test_a_veth_has_native_xdp_and_auto_takes_it(box: EngineLab) -> None:
    assert box.attached == "native"


@BOTH
@pytest.mark.engine(xdp_mode="generic", service={"probe_interval_s": 1, "probe_retry_s": 1, "probe_count": 3})
def test_generic_xdp_carries_a_whole_sleep_and_wake(box: EngineLab, family: int) -> None:
    assert box.attached == "generic"
    pair = box.connect(family)
    box.exchange(pair, 100_000)
    for state in (State.STANDBY, State.IDLE, State.SLEEP):
        box.to(pair, state)
        box.wake_and_answer(pair, 1000)
    box.to_idle(pair)
    heard = box.stat("acks_heard")
    box.wait(lambda: box.stat("acks_heard") > heard, "the client answers a probe", 5)
    for option in QUICK_KEEPALIVES:
        pair.client.setsockopt(*option)
    answered = box.stat("keepalives_answered")
    box.wait(lambda: box.stat("keepalives_answered") > answered, "a keep-alive is answered", 5)
    assert box.state(pair) is State.IDLE
    data = os.urandom(100_000)
    pair.client.sendall(data)
    pair.server = box.accept(family)
    got = b""
    while len(got) < len(data):
        got += pair.server.recv(1 << 16)
    assert got == data
    box.exchange(pair)


@pytest.mark.parametrize("ifname", ["lo", "br-test", "br.7"])
def test_a_driver_without_native_xdp_is_named_and_auto_falls_back_to_generic(box: EngineLab, ifname: str) -> None:
    with box.lab.enter("box"), IPRoute() as ip:
        if ifname != "lo" and not ip.link_lookup(ifname=ifname):
            ip.link("add", ifname=ifname, kind="bridge")
        try:
            with pytest.raises(EngineError, match=f"the driver of {ifname} has no native XDP; set xdp_mode"):
                box.engine.attach(ifname, "native")
            assert box.engine.attach(ifname, "auto") == "generic"
        finally:
            if ifname != "lo":
                ip.link("del", ifname=ifname)
    pair = box.connect()
    box.to_idle(pair)
    box.wake_and_answer(pair)


def test_an_interface_that_does_not_exist_is_named(box: EngineLab) -> None:
    with box.lab.enter("box"), pytest.raises(EngineError, match="no interface wan7; `ip link` lists"):
        box.engine.attach("wan7")


def test_another_xdp_program_on_the_interface_is_not_pushed_aside() -> None:
    from appliance.lab.namespaces import XDP_PASS, load_xdp

    with Lab(clients=5, nat=False) as lab:
        program = load_xdp(XDP_PASS)
        with lab.enter("box"), IPRoute() as ip:
            ip.link("set", index=ip.link_lookup(ifname="wan0")[0], xdp_fd=program)
        os.close(program)
        with pytest.raises(EngineError, match="another XDP program is attached to wan0"), EngineLab(lab):
            raise AssertionError("it started")


def test_after_unpinning_nothing_is_left_on_the_interface(empty_lab: Lab) -> None:
    with EngineLab(empty_lab) as box:
        assert "xdp" in link_details(empty_lab)
        assert "roost_guard" in egress_filters(empty_lab)
        pins = box.pin_dir
        held = pinned(pins / "xdp-wan0")  # as a kernel holds it that has not come to free it yet
        assert {path.name for path in pins.iterdir()} >= {"tables4", "tables6", "endpoints", "rest", "ring", "xdp-wan0"}
    details = link_details(empty_lab)
    os.close(held)
    assert "xdp" not in details
    assert "roost_guard" not in egress_filters(empty_lab)
    assert not pins.exists()


def link_details(lab: Lab) -> str:
    return run_in(lab, "ip", "-d", "link", "show", "wan0")


def egress_filters(lab: Lab) -> str:
    return run_in(lab, "tc", "filter", "show", "dev", "wan0", "egress")


def run_in(lab: Lab, *argv: str) -> str:
    with lab.enter("box"):
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@BOTH
def test_two_servers_that_attach_at_once_do_not_share_a_client(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    first = box.attach(pair)
    second = box.attach(pair)
    assert second.recv(1) == b"", "the second is refused, and learns it"
    first.sendall(b"mine")
    assert pair.client.recv(4) == b"mine"
    assert box.state(pair) is State.ACTIVE
    box.wait_state(pair, State.ACTIVE)
    assert [to for _, to, cause in box.transitions(pair) if cause is Cause.SERVER_ATTACH] == [State.ACTIVE]


def test_a_server_that_attaches_to_nobody_is_told(box: EngineLab) -> None:
    pair = box.connect()
    box.close(pair)
    server = box.attach(pair)
    assert server.recv(1) == b""
    assert box.stat("awake") == 0


@BOTH
@pytest.mark.usefixtures("unhurried")
def test_an_attached_server_and_a_client_that_speaks_at_the_same_time_lose_no_byte(box: EngineLab, family: int) -> None:
    for _ in range(10):
        pair = box.connect(family)
        box.to_idle(pair)
        pair.client.sendall(b"client speaks")
        server = box.attach(pair)
        server.sendall(b"server speaks")
        box.wait(lambda pair=pair: box.state(pair) is State.ACTIVE, "it is awake")  # type: ignore[misc]
        if box.no_server_is_asked(family, 0.05):  # the attaching server came first: the word is for it
            assert server.recv(13) == b"client speaks"
            assert pair.client.recv(13) == b"server speaks"
        else:
            asked = box.accept(family)
            assert asked.recv(13) == b"client speaks"
            with suppress(ConnectionResetError):  # refused: the client is another's. RST if its word was unread
                assert server.recv(1) == b""
        assert tcp_info(pair.client).retransmits == 0
        pair.client.close()


def test_http_connect_reaches_a_sleeping_client_end_to_end() -> None:
    """The daemon's own attach, through its frontend, on sleeping clients of both states."""
    with Lab(clients=20) as lab:
        lab.server(8000)
        daemon = lab.daemon(lab.config(policy={"active_quiet": "300ms", "standby_quiet": "600ms",
                                               "idle_quiet": "1500ms"}))  # fmt: skip
        swarm = lab.swarm()
        swarm.connect(20, (lab.address("box", "wan0"), 8000))
        asker = lab.asker()
        for state in ("IDLE", "SLEEP"):
            wait_until(lambda state=state: len(daemon.connections(state=state)) == 20, 10, f"all are {state}")  # type: ignore[misc]
            targets = [row["client"] for row in daemon.connections()]
            asked = asker.request("ask", proxy=[lab.address("box", "lan0"), 3128], targets=targets)
            assert (asked["answered"], asked["failed"]) == (20, {})
        assert swarm.stats().dead == {}
        with lab.enter("lan"):
            stranger = socket.create_connection((lab.address("box", "lan0"), 3128), 5)
        with stranger:
            stranger.sendall(b"CONNECT 192.0.2.1:1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert stranger.recv(100).startswith(b"HTTP/1.1 404")
