# SPDX-License-Identifier: Apache-2.0
"""Many connections frozen and thawed at once, by the engine thread alone and with workers: what becomes of one does not
touch the others."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest

from appliance.wire import Command, EventType, Op
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, Pair, receive

ACTIVE, STANDBY, IDLE, CLOSED = State.ACTIVE, State.STANDBY, State.IDLE, State.CLOSED
MANY = 40
TCP_REPAIR = 19  # linux/tcp.h
WORKERS = pytest.mark.parametrize("workers", [0, 1, 3])


@pytest.fixture
def pairs(box: EngineLab, workers: int) -> Sequence[Pair]:
    """In STANDBY, of both families, on an engine with so many workers."""
    box.stop()
    box.resize(workers=workers)
    box.start()
    made = [box.connect(family) for family in (4, 6) for _ in range(MANY // 2)]
    for pair in made:
        box.submit(Op.STANDBY, pair)
        assert pair.server.recv(1) == b""
        pair.server.close()
    wait_states(box, made, STANDBY)
    box.wait_for_quiet(made[-1])
    return made


def wait_states(box: EngineLab, pairs: Sequence[Pair], *states: State) -> None:
    def told() -> list[State]:
        last = {event.record.key_raw: State(event.to_state) for event in box.events
                if event.type == EventType.TRANSITION}  # fmt: skip
        return [last[pair.key.pack()] for pair in pairs]

    box.wait(lambda: all(state in states for state in told()), f"{len(pairs)} connections in {states}")


def freeze(box: EngineLab, pairs: Sequence[Pair]) -> None:
    box.engine.submit_many(Op.IDLE, Cause.COMMAND, ids=[pair.id for pair in pairs])
    wait_states(box, pairs, IDLE)


def wake(box: EngineLab, pairs: Sequence[Pair]) -> None:
    box.engine.submit_many(Op.WAKE, Cause.COMMAND, keys=[pair.key.pack() for pair in pairs])


def answer_all(box: EngineLab, pairs: Sequence[Pair]) -> None:
    for pair in pairs:
        box.wake_and_answer(pair)


@contextmanager
def squatter(box: EngineLab, pair: Pair) -> Iterator[None]:
    """A socket of another process with the 4-tuple of a sleeping connection, which cannot be rebuilt meanwhile."""
    with box.lab.enter("box"), socket.socket(pair.client.family) as taken:
        taken.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        taken.bind(pair.client.getpeername()[:2])
        taken.connect(pair.client.getsockname()[:2])
        yield  # closed in repair mode: silent


@WORKERS
def test_sockets_are_surveyed_and_used_again_and_every_connection_lives_on(
    box: EngineLab, pairs: Sequence[Pair]
) -> None:
    for turn in range(1, 4):
        freeze(box, pairs)
        assert box.stat("sockets_surveyed") == turn * MANY
        wake(box, pairs)
        wait_states(box, pairs, STANDBY)
    assert 0 < box.stat("sockets_reused") <= box.stat("thawed") == 3 * MANY
    answer_all(box, pairs)


@WORKERS
def test_one_that_cannot_be_rebuilt_stays_asleep_and_the_others_wake(box: EngineLab, pairs: Sequence[Pair]) -> None:
    freeze(box, pairs)
    stuck, others = pairs[MANY // 4], [*pairs[: MANY // 4], *pairs[MANY // 4 + 1 :]]
    with squatter(box, stuck):
        wake(box, pairs)
        wait_states(box, others, STANDBY)
        box.wait(lambda: box.refusals(stuck), "the wake is refused")
        assert box.refusals(stuck) == [(Op.WAKE, errno.EADDRNOTAVAIL)]
        assert box.state(stuck) is IDLE
    answer_all(box, pairs)


@WORKERS
def test_without_descriptors_all_stay_asleep_and_wake_when_there_are_some(
    box: EngineLab, pairs: Sequence[Pair]
) -> None:
    freeze(box, pairs)
    box.wait(lambda: not box.stat("sockets_spare"), "the spare sockets are closed")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        wake(box, pairs)
        box.wait(lambda: all(box.refusals(pair) for pair in pairs), "every wake is refused")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert {refusal for pair in pairs for refusal in box.refusals(pair)} == {(Op.WAKE, errno.EMFILE)}
    assert {box.state(pair) for pair in pairs} == {IDLE}
    wake(box, pairs)
    wait_states(box, pairs, STANDBY)
    answer_all(box, pairs)


@WORKERS
def test_data_and_close_commands_among_those_that_wake_are_each_obeyed(box: EngineLab, pairs: Sequence[Pair]) -> None:
    freeze(box, pairs)
    closed, speaking, woken = pairs[::3], pairs[1::3], pairs[2::3]
    wake(box, pairs[::2])
    box.engine.submit([Command(Op.CLOSE, cause=Cause.COMMAND, key=pair.key) for pair in closed])
    for pair in speaking:
        pair.client.sendall(b"hello")
    wake(box, pairs[1::2])
    wait_states(box, closed, CLOSED)
    wait_states(box, speaking, ACTIVE)
    wait_states(box, woken, STANDBY)
    for pair in closed:
        with pytest.raises(ConnectionResetError):
            pair.client.recv(1)
    served = Counter(receive(box.accept(family), 5) for family in (4, 6) for pair in speaking
                     if (pair.client.family == socket.AF_INET) == (family == 4))  # fmt: skip
    assert served == {b"hello": len(speaking)}
    answer_all(box, woken)


@WORKERS
def test_an_engine_stopped_in_the_middle_of_bulk_work_leaves_each_asleep_or_told(
    box: EngineLab, pairs: Sequence[Pair]
) -> None:
    half = MANY // 2
    freeze(box, pairs[:half])
    box.engine.submit_many(Op.IDLE, Cause.COMMAND, ids=[pair.id for pair in pairs[half:]])
    wake(box, pairs[:half])
    box.stop()
    box.start()
    asleep = [pair for pair in pairs if box.state(pair) is IDLE]
    told = [pair for pair in pairs if pair not in asleep]
    answer_all(box, asleep)
    for pair in told:
        assert select.select([pair.client], [], [], 5)[0], "its client is told"
        with suppress(ConnectionResetError):
            assert pair.client.recv(1) == b""
    assert box.stat("table_ipv4") == box.stat("table_ipv6") == 0
