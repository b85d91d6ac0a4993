# SPDX-License-Identifier: Apache-2.0
"""Sockets run short: the least recently active connections go down, and no others."""

from __future__ import annotations

import pytest

from appliance.wire import Op
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, receive


def test_pressure_that_is_told_again_and_again_ends_no_more_links_than_once(box: EngineLab) -> None:
    """It is, with each client that cannot wake meanwhile. Servers take their time to end, and the last client's server
    owes it an answer."""
    pairs = [box.connect() for _ in range(6)]
    waiting = pairs[-1]
    waiting.client.sendall(b"question")
    assert receive(waiting.server, 8) == b"question"
    for _ in range(5):
        box.submit(Op.PRESSURE, waiting, Cause.PRESSURE, count=2)
    for pair in pairs[:2]:
        assert pair.server.recv(1) == b"", "the two that were silent for longest"
    for pair in pairs[2:]:
        pair.server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            pair.server.recv(1)
    waiting.server.sendall(b"answer")
    assert receive(waiting.client, 6) == b"answer"
    for pair in pairs[:2]:
        pair.server.close()
    for pair in pairs[:2]:
        box.wait_state(pair, State.IDLE)
    assert all(box.state(pair) is State.ACTIVE for pair in pairs[2:])
