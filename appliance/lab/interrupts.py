# SPDX-License-Identifier: Apache-2.0
"""Signals that want an end, for a program that makes a lab and has to take it away again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Signals that want an end raise KeyboardInterrupt, whichever they are; but a lab is made, and taken away, as a
    whole. Not by a mask: with several threads the kernel delivers to one that does not block."""

    def __init__(self) -> None:
        self._held = False
        self._wanted = False

    def handle(self, *_: object) -> None:
        """The handler. A second signal changes nothing: cleaning up takes a second or two, and is under way."""
        first, self._wanted = not self._wanted, True
        if first and not self._held:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise what was held back."""
        if self._wanted:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals wait."""
        self._held = True
        try:
            yield
        finally:
            self._held = False


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """SIGINT, SIGTERM and SIGHUP are handled so, for the length of the block."""
    mine = Interrupts()
    before = {number: signal.signal(number, mine.handle) for number in _ENDS}
    try:
        yield mine
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
