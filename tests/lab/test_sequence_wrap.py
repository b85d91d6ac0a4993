# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers that run over 2^32 while a connection sleeps, as it falls asleep, or as it wakes (RFC 9293 3.4).

A client chooses its own first number here. The kernel chooses ours: of many connections the one is taken that is next
to 2^32, and bytes are moved until it is there.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from scapy.layers.inet import TCP

from control.core.states import State
from tests.lab.engine_lab import EngineLab, Pair, receive
from tests.lab.test_persistent import fall_asleep
from tests.lab.wire import MOD, Sleeper, Wire

TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ = 19, 20, 21  # linux/tcp.h
RECV_QUEUE, SEND_QUEUE = 1, 2
OFF_WITHOUT_PROBE: Final = -1
AMONG: Final = 120
"""Connections of which one is chosen: some 2^32 / AMONG bytes are moved."""
PORTION: Final = 1 << 16
WORD: Final = b"thirty bytes that run over ..."
GENERIC: Final = pytest.mark.engine(xdp_mode="generic")


@contextmanager
def repaired(sock: socket.socket, queue: int) -> Iterator[None]:
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
    yield
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, OFF_WITHOUT_PROBE)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # repair mode has undone it


def number(sock: socket.socket, queue: int) -> int:
    """The next of what it hears, or says."""
    with repaired(sock, queue):
        return sock.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ) % MOD


def begin_with(isn: int) -> Callable[[socket.socket], None]:
    """For a client that is not connected yet: the number of its SYN."""

    def choose(sock: socket.socket) -> None:
        with repaired(sock, SEND_QUEUE):
            sock.setsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ, struct.pack("=I", isn))

    return choose


def next_to_the_end(box: EngineLab, family: int, isn: int, number_of: Callable[[Pair], int]) -> Pair:
    """Of many connections the one with the highest number."""
    pairs = [box.connect(family, greet=False, before=begin_with(isn)) for _ in range(AMONG)]
    chosen = max(pairs, key=number_of)
    for pair in pairs:
        if pair is not chosen:
            pair.client.close()
            pair.server.close()
    return chosen


def speak(speaker: socket.socket, listener: socket.socket, size: int) -> None:
    portion = bytes(PORTION)
    for at in range(0, size, PORTION):
        part = portion[: size - at]
        speaker.sendall(part)
        assert receive(listener, len(part)) == part


@pytest.mark.parametrize(
    ("family", "state", "left", "speaker", "xdp_mode"),
    [
        (4, State.IDLE, 10, "client", "native"),
        (4, State.SLEEP, 0, "server", "native"),
        (6, State.IDLE, 0, "client", "native"),
        (6, State.SLEEP, 1, "server", "native"),
        pytest.param(4, State.IDLE, 1, "client", "generic", marks=GENERIC),
        pytest.param(6, State.SLEEP, 10, "server", "generic", marks=GENERIC),
    ],
)
def test_numbers_of_both_directions_run_over(
    box: EngineLab, family: int, state: State, left: int, speaker: str, xdp_mode: str
) -> None:
    """left: how many numbers are left before 2^32 when the connection falls asleep."""
    assert box.attached == xdp_mode
    isn = MOD - 1 - len(WORD) - left
    pair = next_to_the_end(box, family, isn, lambda pair: number(pair.client, RECV_QUEUE))
    speak(pair.client, pair.server, len(WORD))
    speak(pair.server, pair.client, MOD - left - number(pair.client, RECV_QUEUE))
    box.to(pair, state)
    sleeper = Sleeper(pair, box.record(pair))
    assert sleeper.snd_nxt == sleeper.rcv_nxt == (MOD - left) % MOD
    with Wire(box) as wire:
        wire.send(sleeper.ip() / sleeper.tcp(seq=-1))
        [answer] = wire.replies(sleeper)
    assert answer[TCP].seq == answer[TCP].ack == (MOD - left) % MOD
    if speaker == "client":
        pair.client.sendall(WORD)
        pair.server = box.accept(family)
        assert receive(pair.server, len(WORD)) == WORD
    else:
        pair.server = box.attach(pair)
    pair.server.sendall(WORD)
    assert receive(pair.client, len(WORD)) == WORD
    for _ in range(2):
        box.exchange(pair)
        box.to(pair, state)
        box.wake_and_answer(pair)


@pytest.mark.engine(service={"persistent": True})
@pytest.mark.parametrize(
    ("family", "state", "left", "whose"),
    [(4, State.IDLE, 10, "ours"), (4, State.SLEEP, 0, "ours"), (4, State.IDLE, 0, "its"), (6, State.SLEEP, 10, "its")],
)
def test_numbers_between_a_pair_and_its_server_run_over(
    box: EngineLab, family: int, state: State, left: int, whose: str
) -> None:
    queue = RECV_QUEUE if whose == "ours" else SEND_QUEUE
    pair = next_to_the_end(box, family, 1, lambda pair: number(pair.server, queue))
    ends = (pair.client, pair.server)
    speaker, listener = ends if whose == "ours" else ends[::-1]
    speak(speaker, listener, MOD - left - number(pair.server, queue))
    assert (MOD - number(pair.server, queue)) % MOD == left
    for first, second in (ends, ends[::-1]):
        fall_asleep(box, pair, state)
        first.sendall(WORD)
        assert receive(second, len(WORD)) == WORD
        box.exchange(pair)
