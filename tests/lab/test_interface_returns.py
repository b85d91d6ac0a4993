# SPDX-License-Identifier: Apache-2.0
"""An interface goes away under a running daemon and comes back: the same name, another index."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import ExitStack

import pytest

from appliance.lab import Lab, wait_until
from tests.bench.upgrade import Speaking
from tests.lab.echo import Echo
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.fixtures import ip

PORT, MANY = 8000, 100
ASLEEP = {"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": "500ms"}


def test_sleepers_are_answered_again_when_the_interface_of_clients_has_come_back(empty_lab: Lab) -> None:
    lab = empty_lab
    daemon = lab.daemon(lab.config(PORT, policy=ASLEEP, router={}))
    with ExitStack() as stack:
        stack.callback(daemon.close)
        server = lab.address("lan", "eth0")
        stack.enter_context(Echo(lab.space("lan"), server, PORT))
        with lab.enter("wan"):
            client = stack.enter_context(socket.create_connection((server, PORT), 10))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 60)):
            client.setsockopt(socket.IPPROTO_TCP, option, value)

        def answered() -> int:
            return int(daemon.status()["counters"]["keepalives_answered"])

        wait_until(lambda: answered() > 0, 20, "it is asleep and answered")
        lab.remove_link("box", "wan0")
        try:
            wait_until(lambda: bool(daemon.status()["waiting"]), 10, "it is told that the interface is gone")
        finally:
            lab.renew_link("box", "wan0")
        before = answered()
        wait_until(lambda: answered() > before + 1, 15, "it is answered again")
        assert "interface wan0 waits: it has gone" in daemon.log.read_text()
        assert daemon.status()["waiting"] == []
        assert daemon.status()["interfaces"]["wan0"] == "native"
        client.sendall(b"hello")
        assert receive(client, 5) == b"hello"


@pytest.mark.engine(router=True)
def test_an_interface_may_be_made_anew_any_number_of_times(box: EngineLab) -> None:
    for _ in range(20):
        ip(box.lab, "box", "link", "add", "anew0", "type", "veth", "peer", "anew1")
        with box.lab.enter("box"):
            try:
                assert box.engine.attach("anew0") == "native"
                box.engine.steer("anew0", servers=False)
            finally:
                ip(box.lab, "box", "link", "del", "anew0")
    pair = box.connect()
    box.to_idle(pair)
    box.wake_and_answer(pair)


def test_clients_that_speak_as_soon_as_an_interface_has_come_back_are_not_reset(empty_lab: Lab) -> None:
    """It is deleted and made anew at once: between that and the moment when it is heard again, the kernel is alone."""
    lab = empty_lab
    daemon = lab.daemon(lab.config(PORT, policy=ASLEEP))
    with ExitStack() as stack:
        stack.callback(daemon.close)
        stack.callback(lab.server(PORT).close)
        clients = lab.swarm()
        stack.callback(clients.close)
        assert clients.connect(MANY, (lab.address("box", "wan0"), PORT)).connected == MANY
        speaking = Speaking(clients, MANY, concurrency=4, apart_ms=1, timeout_s=60)
        speaking.start()
        for seconds in (0.0, 0.5, 1.5):
            lab.remove_link("box", "wan0")
            time.sleep(seconds)
            lab.renew_link("box", "wan0")
            time.sleep(2)
        speaking.end()
        assert (speaking.failed, clients.stats().dead) == (0, {})
        wait_until(lambda: "quarantine" not in lab.nft("box", "list tables"), 10, "resets are sent again")


def test_the_lab_switches_offloads_of_a_link_that_the_engine_has_already(box: EngineLab) -> None:
    """The daemon may hear of an interface that is made anew before the lab has switched its offloads."""
    with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
        box.lab.space("nat").offload("outside", tso=True)
    box.lab.space("nat").offload("outside", tso=False)
