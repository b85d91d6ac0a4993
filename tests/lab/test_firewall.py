# SPDX-License-Identifier: Apache-2.0
"""The box with the firewall of docs/deploy.md, which knows nothing of connections that XDP answers for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

from appliance.lab import Lab
from control.core.states import State
from tests.lab.documents import blocks
from tests.lab.engine_lab import PORT, EngineLab, receive
from tests.lab.test_born import PORT as BORN_PORT
from tests.lab.test_born import Nursery

BOTH = pytest.mark.parametrize("family", [4, 6])
FORGOTTEN: Final = "nf_conntrack_tcp_timeout_established"
LOOSE: Final = "nf_conntrack_tcp_loose"


@contextmanager
def firewall(lab: Lab, port: int) -> Iterator[None]:
    """Connection tracking forgets a connection a second after its last packet."""
    (rules,) = (block.text for block in blocks("deploy.md") if block.kind == "nft")
    lab.nft("box", rules.replace("8000", str(port)))
    lab.sysctl("box", f"net.netfilter.{FORGOTTEN}", 1)
    try:
        yield
    finally:
        lab.nft("box", "delete table inet filter")
        lab.sysctl("box", f"net.netfilter.{FORGOTTEN}", 5 * 24 * 3600)


@BOTH
@pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
def test_who_has_slept_is_let_in_by_a_firewall_that_has_forgotten_it(box: EngineLab, state: State, family: int) -> None:
    with firewall(box.lab, PORT):
        pair = box.connect(family)
        box.to(pair, state)
        time.sleep(1.2)
        box.wake_and_answer(pair)
        pair.server.sendall(b"good morning")
        assert receive(pair.client, 12) == b"good morning"


def test_one_that_takes_up_none_in_its_midst_drops_who_has_slept(box: EngineLab) -> None:
    """So what the doctor advises matters, and connection tracking has forgotten it, in the test above, too."""
    with firewall(box.lab, PORT):
        box.lab.sysctl("box", f"net.netfilter.{LOOSE}", 0)
        try:
            pair = box.connect()
            box.to_sleep(pair)
            time.sleep(1.2)
            pair.client.sendall(b"is anybody there?")
            server = box.accept()
            server.settimeout(2)
            with pytest.raises(TimeoutError):
                server.recv(1)
        finally:
            box.lab.sysctl("box", f"net.netfilter.{LOOSE}", 1)


@BOTH
def test_who_was_born_asleep_is_let_in(family: int) -> None:
    with ExitStack() as stack:
        nursery = Nursery(stack)
        with firewall(nursery.lab, BORN_PORT):
            client = nursery.connect(family)
            nursery.count("born", 1)
            nursery.converse(client)
