# SPDX-License-Identifier: Apache-2.0
"""In-band frames that the control plane or an attaching server begins with, on the engine alone."""

from __future__ import annotations

import errno

import pytest

from appliance.wire import EventType, Op, Verb
from examples.in_band_frames import MAGIC, Answer, Frame, Ping, Recipient, Result, Stay, encode
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.in_band_lab import End

BOTH = pytest.mark.parametrize("family", [4, 6])


@BOTH
@pytest.mark.engine(service={"in_band_stay": True})
def test_a_client_is_told_to_stay_connected(box: EngineLab, family: int) -> None:
    """What figure 25 needs; the policy of it is the control plane's."""
    pair = box.connect(family)
    client = End(pair.client, Recipient.CLIENT)
    for linked in (True, False):
        if not linked:
            box.to_standby(pair)
        box.submit(Op.TELL, pair, token=77)
        assert client.frame() == Frame(Stay(), to=Recipient.CLIENT)
        box.wait(
            lambda: any(e.type == EventType.DONE and e.token == 77 for e in box.events), "the control plane learns it"
        )
        box.events.clear()
    box.to_idle(pair)
    box.submit(Op.TELL, pair)
    box.wait(lambda: (Op.TELL, errno.ENOENT) in box.refusals(pair), "a sleeping one is not told")
    box.wake_and_answer(pair)


def test_a_client_that_does_not_know_of_managers_is_told_nothing(box: EngineLab) -> None:
    pair = box.connect()
    box.submit(Op.TELL, pair)
    box.wait(lambda: (Op.TELL, errno.EPERM) in box.refusals(pair), "it is refused")
    box.exchange(pair)


@BOTH
@pytest.mark.engine(service={"in_band_servers": 1 << Verb.PING})
def test_a_server_that_attaches_may_ask_with_its_first_bytes(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_standby(pair)
    early = b"hello" + encode(Frame(Ping(), 5, answer=True)) + b"world"
    server = End(box.attach(pair, preamble=b"200\r\n", early=early), Recipient.SERVER)
    assert receive(pair.client, 10) == b"helloworld"
    assert server.frame() == Frame(Answer(Result.OK), 5, Recipient.SERVER)
    server.expect(b"200\r\n")


@BOTH
@pytest.mark.engine(service={"in_band_clients": 1 << Verb.PING})
def test_a_connection_with_half_a_frame_is_not_quiet(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    pair.client.sendall(b"x" + MAGIC)
    assert receive(pair.server, 1) == b"x"
    for op in (Op.STANDBY, Op.IDLE):
        box.submit(op, pair)
        box.wait(lambda op=op: (op, errno.EBUSY) in box.refusals(pair), "half a frame is held")  # type: ignore[misc]
    assert receive(pair.server, len(MAGIC)) == MAGIC, "its time is over, it was payload"
    box.to_idle(pair)
    box.wake_and_answer(pair)


@BOTH
@pytest.mark.engine(service={"in_band_clients": 1 << Verb.PING})
def test_half_a_frame_that_is_held_when_its_server_ends_is_for_the_next_one(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    pair.client.sendall(b"x" + MAGIC)
    assert receive(pair.server, 1) == b"x"
    pair.server.sendall(b"-")  # the request is answered: with it the server may go
    assert receive(pair.client, 1) == b"-"
    pair.server.close()
    pair.server = box.accept(family)
    assert receive(pair.server, len(MAGIC)) == MAGIC
    box.exchange(pair)
