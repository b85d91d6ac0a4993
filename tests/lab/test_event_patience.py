# SPDX-License-Identifier: Apache-2.0
"""Events that no caller waits for gather for a while; one that a caller waits for takes all of them along at once."""

from __future__ import annotations

import time

import pytest

from appliance.wire import Command, Event, EventType, Op, transitions
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, Pair, reset

PATIENCE_MS = 1500
IN_TIME_S, LATE_S = 0.75, 1.4


@pytest.fixture
def pairs(box: EngineLab) -> list[Pair]:
    """Three connections in STANDBY, and events that the test alone takes."""
    pairs = [box.connect() for _ in range(3)]
    for pair in pairs:
        box.to_standby(pair)
    box.hand_over()
    return pairs


def freeze(box: EngineLab, pair: Pair, token: int = 0) -> None:
    box.engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, id=pair.id, token=token)])


def taken(box: EngineLab) -> tuple[list[Event], float]:
    began = time.monotonic()
    events = box.engine.events(timeout_ms=5000, patience_ms=PATIENCE_MS)
    return events, time.monotonic() - began


def test_transitions_gather(box: EngineLab, pairs: list[Pair]) -> None:
    for pair in pairs:
        freeze(box, pair)
        time.sleep(0.1)
    events, took_s = taken(box)
    assert [(e.type, e.to_state) for e in events] == [(EventType.TRANSITION, State.IDLE)] * 3
    assert took_s > LATE_S
    assert box.engine.events(timeout_ms=0, patience_ms=PATIENCE_MS) == []


def test_the_answer_to_a_command_ends_the_gathering(box: EngineLab, pairs: list[Pair]) -> None:
    freeze(box, pairs[0])
    time.sleep(0.1)
    freeze(box, pairs[1], token=77)
    events, took_s = taken(box)
    assert [(e.to_state, e.token) for e in events] == [(State.IDLE, 0), (State.IDLE, 77)]
    assert took_s < IN_TIME_S


def test_a_refusal_is_told_at_once(box: EngineLab, pairs: list[Pair]) -> None:
    box.engine.submit([Command(Op.STANDBY, cause=Cause.COMMAND, id=10**9, token=5)])
    events, took_s = taken(box)
    assert [(e.type, e.token) for e in events] == [(EventType.REFUSED, 5)]
    assert took_s < IN_TIME_S


def test_a_waiting_taker_is_woken_for_one_event_without_patience(box: EngineLab, pairs: list[Pair]) -> None:
    freeze(box, pairs[0])
    began = time.monotonic()
    assert len(box.engine.events(timeout_ms=5000)) == 1
    assert time.monotonic() - began < IN_TIME_S


def come_and_go(box: EngineLab) -> bytes:
    """A client's 4-tuple; the engine has told of its coming and its going."""
    closed = box.stat("closed")
    client = box.dial()
    key = box.key_of(client).pack()
    box.accept().close()
    reset(client)
    box.wait(lambda: box.stat("closed") > closed, "the engine learns that it went")
    return key


def test_clients_that_come_and_go_are_packed_between_what_is_asked(box: EngineLab, pairs: list[Pair]) -> None:
    first = come_and_go(box)
    second = come_and_go(box)
    freeze(box, pairs[0], token=77)
    box.wait(lambda: box.state(pairs[0]) is State.IDLE, "it is frozen")
    third = come_and_go(box)
    before, asked, after = box.engine.batch(timeout_ms=5000)
    assert [event.type for event in (before, asked, after)] == [EventType.ROWS, EventType.TRANSITION, EventType.ROWS]
    assert asked.token == 77
    ways = [(e.record.key_raw, e.from_state, e.to_state) for e in (*transitions(before.rows), *transitions(after.rows))]
    assert [way[0] for way in ways if way[1] == State.NONE] == [first, second, third]
    assert [way[0] for way in ways if way[2] == State.CLOSED] == [first, second, third]
    assert (before.count, after.count) == (len(list(transitions(before.rows))), len(list(transitions(after.rows))))


def test_a_long_run_of_clients_loses_none_and_keeps_their_order(box: EngineLab, pairs: list[Pair]) -> None:
    keys = [come_and_go(box) for _ in range(150)]
    events = box.engine.batch(timeout_ms=5000)
    assert {event.type for event in events} == {EventType.ROWS}
    assert len(events) > 1, "an event stands for so many and no more"
    told = [found for event in events for found in transitions(event.rows)]
    assert [e.record.key_raw for e in told if e.from_state == State.NONE] == keys
    assert [e.record.key_raw for e in told if e.to_state == State.CLOSED] == keys
