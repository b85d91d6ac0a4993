# SPDX-License-Identifier: Apache-2.0
"""What keeps an awake connection from being frozen is told while it does, and so is why the last freeze was refused."""

from __future__ import annotations

import errno
import socket
from dataclasses import astuple

import pytest

from appliance.wire import Obstacle, Obstacles, Op
from control.core.states import State
from tests.lab.engine_lab import EngineLab, Pair, receive

MORE_THAN_QUEUES_TAKE = 16 << 20


def obstacles(box: EngineLab, pair: Pair) -> Obstacles:
    found = box.engine.find_obstacles(pair.key.pack())
    assert found is not None
    return found


def reads_little(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


def test_nothing_keeps_a_quiet_connection_from_being_frozen(box: EngineLab) -> None:
    pair = box.connect()
    box.to_standby(pair)
    box.wait_for_quiet(pair)
    assert astuple(obstacles(box, pair)) == (Obstacle(0), 0, 0, 0, 0, 0)
    box.to_idle(pair)
    assert box.engine.find_obstacles(pair.key.pack()) is None


def test_a_client_that_does_not_read_is_what_keeps_it_awake(box: EngineLab) -> None:
    pair = box.connect(before=reads_little)
    pair.server.setblocking(False)
    sent = 0
    while not (found := obstacles(box, pair)).now & Obstacle.CLIENT_BLOCKED:
        try:
            sent += pair.server.send(bytes(1 << 16))
        except BlockingIOError:
            assert sent < MORE_THAN_QUEUES_TAKE
    assert found.client_unacknowledged > 0
    box.submit(Op.IDLE, pair)
    box.wait(lambda: obstacles(box, pair).refused, "the freeze is refused", 15)
    assert obstacles(box, pair).refused == errno.EBUSY
    assert receive(pair.client, sent) == bytes(sent)


@pytest.mark.engine(service={"persistent": True})
def test_a_freeze_that_the_kernel_had_something_to_do_for_says_so(box: EngineLab) -> None:
    """The client's window is full of what it does not read, and the engine has nothing left to send."""
    pair = box.connect(before=reads_little)
    pair.server.sendall(bytes(6000))
    box.wait(lambda: obstacles(box, pair).client_unacknowledged, "the client's window is closed")
    box.submit(Op.IDLE, pair)
    box.wait(lambda: obstacles(box, pair).refused == errno.EAGAIN, "the freeze is refused")
    assert box.state(pair) is State.ACTIVE
    assert receive(pair.client, 6000) == bytes(6000)
    box.wait(lambda: not obstacles(box, pair).client_unacknowledged, "the client has taken all")
