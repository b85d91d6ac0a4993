# SPDX-License-Identifier: Apache-2.0
"""appliance/peers/chaos_end.py: how long an end waits for what is still on its way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from appliance.peers import chaos_end
from appliance.peers.chaos_end import End

COMMAND = {"timeout_s": 30, "most_s": 300}


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> End:
    clock, replies = SimpleNamespace(now=1000.0), list[Any]()
    loop = SimpleNamespace(command=lambda *_: None, reply=lambda *_, **answer: replies.append(answer))
    monkeypatch.setattr(chaos_end, "Loop", lambda: loop)
    monkeypatch.setattr("appliance.peers.chaos_end.time.monotonic", lambda: clock.now)
    end = End()
    loop.clock, loop.replies = clock, replies
    end.wait(COMMAND, lambda: False, dict)
    return end


def waits_s(end: End, bytes_a_second: int) -> float:
    """Until it answers."""
    loop: Any = end.loop
    began = loop.clock.now
    while not loop.replies:
        loop.clock.now += 1
        end.received += bytes_a_second
        end.check_waiting()
    assert loop.replies == [{}]
    return float(loop.clock.now - began)


def test_a_session_in_which_nothing_moves_is_given_up_after_its_time(end: End) -> None:
    assert waits_s(end, 0) == COMMAND["timeout_s"]


def test_a_slow_session_is_waited_for_as_long_as_bytes_get_through_but_not_for_ever(end: End) -> None:
    assert waits_s(end, 500) == COMMAND["most_s"]


def test_a_session_that_has_stopped_is_given_up_one_time_later(end: End) -> None:
    end.received += 1
    assert waits_s(end, 0) == 2 * COMMAND["timeout_s"]
