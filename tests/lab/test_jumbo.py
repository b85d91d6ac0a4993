# SPDX-License-Identifier: Apache-2.0
"""Links with an MTU of 9,000: segments of 8,960 bytes wake a sleeper and are not sent again, and every byte arrives."""

from __future__ import annotations

import os
import socket

import pytest
from scapy.layers.inet import TCP
from scapy.packet import Raw

from appliance.lab import Lab
from appliance.wire import OnServerClose, Op
from control.core.states import State
from tests.lab.engine_lab import EngineLab, receive, tcp_info
from tests.lab.fixtures import ip
from tests.lab.wire import Sleeper, Wire, damaged

BOTH = pytest.mark.parametrize("family", [4, 6])
ASLEEP = pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
PERSISTENT = {"persistent": True, "on_server_close": OnServerClose.CLIENT}
MTU = 9000


@pytest.fixture(scope="module", autouse=True)
def jumbo(nat_free_lab: Lab) -> None:
    for change in (["xdp", "off"], ["mtu", str(MTU)]):  # XDP at one end bounds the other's MTU
        for space in ("wan", "nat", "box", "lan"):
            with nat_free_lab.enter(space):
                names = [ifname for _, ifname in socket.if_nameindex()[1:]]
            for ifname in names:
                ip(nat_free_lab, space, "link", "set", ifname, *change)


@pytest.mark.usefixtures("unhurried")
@BOTH
@ASLEEP
@pytest.mark.parametrize("size", [2100, 8900, 60_000])
def test_long_segments_wake_and_none_is_sent_again(box: EngineLab, family: int, state: State, size: int) -> None:
    assert box.attached == "generic", "a driver's XDP takes no frame of more than a page"
    pair = box.connect(family)
    box.to(pair, state)
    said = os.urandom(size)
    pair.client.sendall(said)
    assert receive(box.accept(family), size) == said
    assert tcp_info(pair.client).retransmits == 0


@pytest.mark.usefixtures("unhurried")
@BOTH
@ASLEEP
@pytest.mark.engine(service=PERSISTENT)
def test_a_pair_sleeps_and_wakes_byte_exactly(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family)
    for speaker, listener in ((pair.client, pair.server), (pair.server, pair.client)) * 2:
        box.exchange(pair, 100_000)
        box.wait_for_quiet(pair)
        box.submit(Op.IDLE, pair)
        box.wait_state(pair, State.IDLE)
        if state is State.SLEEP:
            box.to_sleep(pair)
        said = os.urandom(8960)
        speaker.sendall(said)
        assert receive(listener, len(said)) == said
    assert tcp_info(pair.client).retransmits == tcp_info(pair.server).retransmits == 0


@BOTH
def test_a_long_segment_that_was_damaged_or_forged_wakes_nobody(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        whole = wire.frame(sleeper.ip() / sleeper.tcp(flags="PA") / Raw(os.urandom(8000)))
        wire.send_raw([damaged(whole)])
        wire.send(sleeper.ip() / sleeper.tcp(ack=1, flags="PA") / Raw(bytes(8000)))
        assert not [reply for reply in wire.replies(sleeper) if "R" in str(reply[TCP].flags)]
    box.wait(lambda: box.stat("bad_checksum") == 1, "the damaged one is seen")
    assert box.state(pair) is State.IDLE
    box.wake_and_answer(pair, 8000)
