# SPDX-License-Identifier: Apache-2.0
"""A SLEEP connection wakes when the store has answered, and that may take long: its client must not suffer for it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from errno import EIO, ENOENT

import pytest

from appliance.lab import Lab
from appliance.wire import Op
from control.core.states import Cause, State
from tests.lab.engine_lab import Pair, receive, reset, tcp_info
from tests.lab.forged import forged
from tests.lab.slow_store import SlowStore
from tests.lab.test_relay import rss_bytes
from tests.lab.wire import Sleeper, Wire

FORGED_FRAMES = 50_000
FORGED_BYTES = 1400


def ask_for_records(box: SlowStore) -> list[Pair]:
    """A client of each family, probing every second, that was told to wake; the store has not answered."""
    pairs = [box.connect(family, keepalives=True) for family in (4, 6)]
    for pair in pairs:
        box.to_sleep(pair)
        box.submit(Op.WAKE, pair)
        box.wait_asked(pair)
    return pairs


def assert_probes_are_answered(pairs: Sequence[Pair], for_s: float) -> None:
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert all(tcp_info(pair.client).probes <= 1 for pair in pairs)
        time.sleep(0.1)
    assert max(tcp_info(pair.client).last_ack_recv_ms for pair in pairs) < 1600


def test_keepalives_are_answered_while_the_record_is_being_asked_for(empty_lab: Lab) -> None:
    with SlowStore(empty_lab) as box:
        pairs = ask_for_records(box)
        answered = box.stat("keepalives_answered")
        assert_probes_are_answered(pairs, 3.2)
        assert box.stat("keepalives_answered") >= answered + 2 * len(pairs)
        for pair in pairs:
            box.answer(pair)
            box.wait_state(pair, State.STANDBY)
            box.wake_and_answer(pair)


def test_keepalives_are_answered_when_the_engine_stops_before_the_record_has_come(empty_lab: Lab) -> None:
    with SlowStore(empty_lab) as box:
        pairs = ask_for_records(box)
        box.stop()
        assert_probes_are_answered(pairs, 4.5)  # its own patience ends after 4 s
        box.slow = False
        box.start()
        for pair in pairs:
            assert box.state(pair) is State.SLEEP
            box.wake_and_answer(pair)


@pytest.mark.memory
def test_forged_frames_for_a_connection_that_waits_for_its_record_do_not_fill_memory(empty_lab: Lab) -> None:
    with SlowStore(empty_lab) as box, Wire(box) as wire:
        pair = box.connect()
        box.to_sleep(pair)
        sleeper = Sleeper(pair, box.record(pair))
        pair.client.sendall(b"genuine")
        box.wait_asked(pair)
        before, stats = rss_bytes(), box.engine.stats()
        wire.send_raw(itertools.islice(forged(wire, sleeper, FORGED_BYTES), FORGED_FRAMES))
        assert rss_bytes() - before < FORGED_FRAMES * FORGED_BYTES / 10
        judged = ("challenge_acks", "challenge_acks_limited", "segments_dropped")
        after = box.engine.stats()
        assert sum(after[name] - stats[name] for name in judged) > 0.9 * FORGED_FRAMES, "they did arrive"
        box.answer(pair)
        server = box.accept()
        server.sendall(b"answer")
        assert receive(pair.client, 6) == b"answer"
        pair.client.close()
        assert receive(server, 1000) == b"genuine", "its word, once, and no other's"


@pytest.mark.parametrize("family", [4, 6])
def test_a_client_whose_record_cannot_be_read_sleeps_on_and_wakes_when_its_kernel_says_it_again(
    empty_lab: Lab, family: int
) -> None:
    with SlowStore(empty_lab) as box:
        pair = box.connect(family)
        box.to_sleep(pair)
        before = len(box.transitions(pair))
        pair.client.sendall(b"hello")
        box.wait_asked(pair)
        box.give_up(pair)
        server = box.accept(family)
        assert receive(server, 5) == b"hello"
        assert box.refusals(pair) == [(Op.RESTORE, EIO)]
        box.wait_state(pair, State.ACTIVE)  # the control plane hears of it later than the server
        assert box.transitions(pair)[before:] == [(State.SLEEP, State.ACTIVE, Cause.CLIENT_DATA)]


@pytest.mark.parametrize("error", [0, ENOENT], ids=["found", "gone"])
def test_a_record_that_comes_when_the_lease_is_over_wakes_and_resets_none(empty_lab: Lab, error: int) -> None:
    """Another machine may have woken the client by now ([standby]), and then the row is gone."""
    with SlowStore(empty_lab) as box:
        pair = box.connect()
        box.to_sleep(pair)
        before = len(box.transitions(pair))
        pair.client.sendall(b"hello")
        box.wait_asked(pair)
        box.engine.lease(1)
        if error:
            box.give_up(pair, error)
        else:
            box.answer(pair)
        box.wait(lambda: len(box.refusals(pair)) > 0, "it is refused")
        assert box.transitions(pair)[before:] == []
        box.engine.lease(0)
        server = box.accept()
        assert receive(server, 5) == b"hello", "its kernel has said it again"


def test_a_client_that_has_reset_is_closed_though_its_record_cannot_be_read(empty_lab: Lab) -> None:
    """It will not say that again."""
    with SlowStore(empty_lab) as box:
        pair = box.connect()
        box.to_sleep(pair)
        reset(pair.client)
        box.wait_asked(pair)
        box.give_up(pair)
        box.wait_state(pair, State.CLOSED)
