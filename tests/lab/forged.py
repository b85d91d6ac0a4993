# SPDX-License-Identifier: Apache-2.0
"""Segments of an attacker that knows a connection's addresses and ports, and nothing else of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from scapy.packet import Raw

from tests.lab.wire import Sleeper, Wire

NUMBERS_BYTES = 8  # sequence and acknowledgement number
ETHERNET_BYTES = 14


def forged(wire: Wire, target: Sleeper, payload_bytes: int) -> Iterator[bytes]:
    """Endless frames of the target's 4-tuple, payload_bytes (even) each, whose numbers are guessed.

    The checksum is right in every one, so that the numbers alone decide: the payload ends with the complement of the
    numbers, and their sum is the same whatever they are.
    """
    payload = bytes(payload_bytes - NUMBERS_BYTES) + b"\xff" * NUMBERS_BYTES
    segment = target.tcp(seq=-target.rcv_nxt, ack=-target.snd_nxt, flags="PA", ts=None)  # both are 0
    whole = wire.frame(target.ip() / segment / Raw(payload))
    at = ETHERNET_BYTES + (20 if target.v4 else 40) + 4
    head, middle = whole[:at], whole[at + NUMBERS_BYTES : -NUMBERS_BYTES]
    guesses = random.Random(payload_bytes)
    while True:
        numbers = guesses.getrandbits(8 * NUMBERS_BYTES)
        complement = numbers ^ (1 << 8 * NUMBERS_BYTES) - 1
        yield head + numbers.to_bytes(NUMBERS_BYTES) + middle + complement.to_bytes(NUMBERS_BYTES)


class Flood:
    """with Flood(frames, wire, every_s=0.001) as flood: ... flood.sent"""

    def __init__(self, frames: Iterator[bytes], wire: Wire, every_s: float) -> None:
        self._frames, self._wire, self._every_s = frames, wire, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._pour, name="flood")
        self._error: OSError | None = None
        self.sent = 0

    def _pour(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                self._wire.send_raw([next(self._frames)])
                self.sent += 1
        except OSError as error:
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._stop.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
