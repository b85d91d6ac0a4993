# SPDX-License-Identifier: Apache-2.0
"""An endless byte stream that either end can produce from a number, and a receiver that says what became of it.

The stream of a connection's direction is a window that slides over one random table of a prime length, from a start
that the connection's number and direction choose. A position is found again from any 24 bytes of it, so that a byte
that is missing, came twice, or came in the wrong order is counted as what it is and the comparison goes on behind it.
"""

from __future__ import annotations

import random
from typing import Final

MAX_CHUNK: Final = 1 << 16
PERIOD: Final = 1_048_573  # a prime: chunks and table never fall into step
_NEEDLE: Final = 24

_ring = random.Random(2004).randbytes(PERIOD)
TABLE: Final = _ring + _ring[: 2 * MAX_CHUNK]
_VIEW: Final = memoryview(TABLE)


def start_of(number: int, to_server: bool) -> int:
    """Where in the table the stream of a connection's direction starts."""
    return random.Random(number * 2 + to_server).randrange(PERIOD)


def window(start: int, position: int, length: int) -> memoryview:
    """Bytes [position, position + length) of the stream; length <= MAX_CHUNK."""
    at = (start + position) % PERIOD
    return _VIEW[at : at + length]


class Receiver:
    """Compares what arrives with what was sent. `position` is where in the stream the next byte is expected."""

    __slots__ = ("corrupted", "doubtful", "duplicated", "gaps", "lost", "position", "reordered", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.position = 0
        self.lost = self.duplicated = self.reordered = self.corrupted = 0  # bytes
        self.gaps: list[tuple[int, int]] = []  # positions skipped so far: reordered if they come later, else lost
        self.doubtful = b""  # did not match, and is too short to be found again

    def receive(self, data: bytes) -> None:
        """data is at most MAX_CHUNK long."""
        if not self.doubtful:
            at = (self.start + self.position) % PERIOD
            if data == TABLE[at : at + len(data)]:  # the only line that matters for speed: a copy and a memcmp
                self.position += len(data)
                return
        self._resolve(self.doubtful + data, final=False)

    def finish(self, sent: int) -> None:
        """The stream has ended; the sender says that it sent so many bytes."""
        at_end = sent - len(self.doubtful)
        if self.doubtful and self.position < at_end and self.doubtful == window(self.start, at_end, len(self.doubtful)):
            self.lost += at_end - self.position
            self.position, self.doubtful = sent, b""
        if self.doubtful:
            self._resolve(self.doubtful, final=True)
        if self.position < sent:
            self.lost += sent - self.position
        elif self.position > sent:
            self.duplicated += self.position - sent

    def _resolve(self, data: bytes, final: bool) -> None:
        self.doubtful = b""
        while data:
            good = _common(data, window(self.start, self.position, min(len(data), MAX_CHUNK)))
            self.position += good
            data = data[good:]
            if not data:
                return
            if good:
                continue  # the rest may be longer than the window was
            if len(data) < _NEEDLE and not final:
                self.doubtful = data
                return
            data = self._resynchronise(data, final)

    def _resynchronise(self, data: bytes, final: bool) -> bytes:
        """data[0] is not the expected byte. Find where in the stream it comes from; what is still to be compared."""
        here = (self.start + self.position) % PERIOD
        found = TABLE.find(data[:_NEEDLE], 0, PERIOD + _NEEDLE) if len(data) >= _NEEDLE else -1
        if found < 0:
            self.corrupted += 1  # from nowhere in the stream: count it in its place and look on behind it
            self.position += 1
            return data[1:]
        jump = (found - here + PERIOD // 2) % PERIOD - PERIOD // 2  # the nearest of its places in the stream
        if jump > 0:
            self.gaps.append((self.position, self.position + jump))
            self.lost += jump
            self.position += jump
            return data
        # From before: bytes of a gap come late (reordered), any other come again (duplicated). Compare on from there,
        # without moving the expected position when the passage ends.
        back = self.position + jump
        for index, (first, last) in enumerate(self.gaps):
            if first <= back < last:
                length = _common(data, window(self.start, back, min(len(data), last - back, MAX_CHUNK)))
                self.lost -= length
                self.reordered += length
                rest = ((first, back), (back + length, last))
                self.gaps[index : index + 1] = [gap for gap in rest if gap[0] < gap[1]]
                return data[length:]
        length = _common(data, window(self.start, back, min(len(data), -jump, MAX_CHUNK)))
        self.duplicated += length
        return data[length:]


def _common(left: bytes, right: memoryview) -> int:
    """Length of the common prefix, by halving."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:  # invariant: [0, low) is equal, [0, high) is not
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
