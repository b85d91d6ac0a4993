# SPDX-License-Identifier: Apache-2.0
"""Frames that were held go to the stack one by one; what the kernel refuses then goes another way (path/frames.c)."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import pytest

from tests.inner import lib
from tests.lab.engine_lab import EngineLab

TAKEN: Final = 0x88B6  # EtherTypes that no protocol claims
REFUSED: Final = 0x1234
FROM: Final = bytes.fromhex("020000000077")
LENGTH: Final = 60
AT_MOST: Final = 3  # frames that go one by one
NO_SUCH_QUEUE: Final = 1000
PATTERNS: Final = list(product((TAKEN, REFUSED), repeat=AT_MOST))
Frame = tuple[int, int]
"""EtherType, and a number of its own."""


class Replay:
    """Replays frames as received by the clients' interface, and sees which of them the stack gets."""

    def __init__(self, box: EngineLab, stack: socket.socket) -> None:
        self._box, self._stack = box, stack
        with box.lab.enter("box"):
            self._index = socket.if_nametoindex("wan0")
        self._number = 0

    def frames(self, types: tuple[int, ...]) -> list[Frame]:
        self._number += len(types)
        return [(ethertype, self._number - n) for n, ethertype in enumerate(types)]

    def replay(self, frames: list[Frame], queue: int = 0) -> int:
        """How many the kernel took."""
        packed = b"".join((b"\xff" * 6 + FROM + ethertype.to_bytes(2) + number.to_bytes(8)).ljust(LENGTH, b"\0")
                          for ethertype, number in frames)  # fmt: skip
        raw: Any = self._box.engine._raw
        with self._box.lab.enter("box"):
            return int(lib.roost_testing_replay(raw, packed, LENGTH, len(frames), self._index, queue, REFUSED))

    def received(self) -> Counter[Frame]:
        """What the stack got since it was asked last."""
        last = self.frames((TAKEN,))
        assert self.replay(last) == 1
        found = Counter[Frame]()
        while last[0] not in found:
            frame = self._stack.recv(2048)
            if frame[6:12] == FROM:
                found[int.from_bytes(frame[12:14]), int.from_bytes(frame[14:22])] += 1
        return found - Counter(last)


@pytest.fixture
def replay(box: EngineLab) -> Iterator[Replay]:
    with box.lab.enter("box"), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as stack:
        stack.bind(("wan0", 3))
        stack.settimeout(5)
        yield Replay(box, stack)


@pytest.mark.parametrize("mode", ["native", pytest.param("generic", marks=pytest.mark.engine(xdp_mode="generic"))])
def test_what_is_refused_comes_as_a_frame_of_xdp_and_the_others_once(box: EngineLab, replay: Replay, mode: str) -> None:
    """Whichever are refused: the others have come already, and those behind them are not taken along."""
    assert box.attached == mode
    for types in PATTERNS:
        frames = replay.frames(types)
        assert replay.replay(frames) == len(frames)
        assert replay.received() == Counter(frames)
    assert box.stat("replay_failed") == 0


def test_what_is_refused_in_both_ways_is_counted_and_nothing_else(box: EngineLab, replay: Replay) -> None:
    """As frames of XDP they would come from a queue that the interface does not have."""
    failed = 0
    for types in PATTERNS:
        frames = replay.frames(types)
        taken = [frame for frame in frames if frame[0] == TAKEN]
        assert replay.replay(frames, NO_SUCH_QUEUE) == len(taken)
        assert replay.received() == Counter(taken)
        failed += len(frames) - len(taken)
        assert box.stat("replay_failed") == failed
