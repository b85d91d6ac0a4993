# SPDX-License-Identifier: Apache-2.0
"""Clients and servers that leave checksums and segmenting to their interfaces (CHECKSUM_PARTIAL), as containers and
virtual machines on one host do: their frames come without whole checksums, and sleepers are heard all the same."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from scapy.packet import Raw

from appliance.lab import Lab
from appliance.wire import Born, OnServerClose, Op
from control.core.states import State
from tests.lab.bare_sleep import NO_KEEPALIVES, BareSleep
from tests.lab.engine_lab import EngineLab, receive, tcp_info
from tests.lab.wire import Sleeper, Wire, checksums_are_right, damaged, unsummed

BOTH = pytest.mark.parametrize("family", [4, 6])
GENERIC = pytest.param("generic", marks=pytest.mark.engine(xdp_mode="generic"))
PERSISTENT = {"persistent": True, "on_server_close": OnServerClose.CLIENT}
SIZES = (1, 600)
"""Bytes of payload: XDP sums the short segment, the engine the long one."""


@pytest.fixture(scope="module")
def nat_free_lab() -> Iterator[Lab]:
    with Lab(clients=100, nat=False, offloads=True) as lab:
        yield lab


def was_heard_at_once(box: EngineLab, *ends: socket.socket) -> bool:
    refused = [box.stat(name) for name in ("bad_checksum", "frames_bad")]
    return refused == [0, 0] and [tcp_info(end).retransmits for end in ends] == [0] * len(ends)


@pytest.mark.usefixtures("unhurried")
@BOTH
@pytest.mark.parametrize("mode", ["native", GENERIC, pytest.param("router", marks=pytest.mark.engine(router=True))])
def test_a_keepalive_is_answered_and_data_wakes(box: EngineLab, family: int, mode: str) -> None:
    pair = box.connect(family, keepalives=True)
    box.to_idle(pair)
    box.wait(lambda: box.stat("keepalives_answered"), "a keep-alive is answered", 10)
    for size in SIZES:
        box.to_idle(pair)
        box.wake_and_answer(pair, size)
    assert was_heard_at_once(box, pair.client)


@pytest.mark.usefixtures("unhurried")
@BOTH
@pytest.mark.engine(service=PERSISTENT)
def test_both_ends_of_a_pair_wake_it(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    for speaker, listener in ((pair.client, pair.server), (pair.server, pair.client)):
        for size in SIZES:
            box.wait_for_quiet(pair)
            box.submit(Op.IDLE, pair)
            box.wait_state(pair, State.IDLE)
            speaker.sendall(bytes(size))
            assert receive(listener, size) == bytes(size)
            box.wait_state(pair, State.ACTIVE)
    assert was_heard_at_once(box, pair.client, pair.server)


@pytest.mark.usefixtures("unhurried")
@BOTH
@pytest.mark.engine(service={"born": Born.ALWAYS})
def test_a_client_is_born_asleep_and_speaks(box: EngineLab, family: int) -> None:
    client = box.dial(family)
    box.wait(lambda: box.stat(f"born_ipv{family}") == 1, "it is born")
    client.sendall(b"hello")
    assert receive(box.accept(family), 5) == b"hello"
    assert was_heard_at_once(box, client)


@pytest.mark.usefixtures("unhurried")
@BOTH
def test_one_that_sleeps_without_a_slot_wakes(empty_lab: Lab, family: int) -> None:
    with BareSleep(empty_lab, service=NO_KEEPALIVES, filter_slots=1000) as box:
        pair = box.let_sleep(family)
        box.wake_and_answer(pair, 600)
        assert was_heard_at_once(box, pair.client)


@pytest.mark.usefixtures("unhurried")
@BOTH
@pytest.mark.parametrize("mode", ["native", GENERIC])
def test_more_than_a_frame_takes_wakes_and_arrives(box: EngineLab, family: int, mode: str) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    box.wake_and_answer(pair, 100_000)
    assert was_heard_at_once(box, pair.client)


@pytest.mark.engine(router=True, service={"fail_closed": True})
def test_a_router_that_fails_closed_refuses_without_its_daemon(box: EngineLab) -> None:
    box.stop()
    with pytest.raises(ConnectionRefusedError):
        box.dial()
    box.start()


@BOTH
def test_an_answer_has_a_whole_checksum_and_a_damaged_segment_gets_none(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    sleeper = Sleeper(pair, box.record(pair))
    with Wire(box) as wire:
        probe = wire.frame(sleeper.ip() / sleeper.tcp(seq=-1))
        data = wire.frame(sleeper.ip() / sleeper.tcp(flags="PA") / Raw(bytes(600)))
        wire.send_raw([damaged(probe), damaged(data)])
        wire.send_raw([unsummed(probe)])
        (answer,) = wire.replies(sleeper)
    assert checksums_are_right(answer)
    assert (box.stat("bad_checksum"), box.stat("frames_bad"), box.state(pair)) == (2, 0, State.IDLE)
