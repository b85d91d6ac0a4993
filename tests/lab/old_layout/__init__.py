# SPDX-License-Identifier: Apache-2.0
"""What an earlier layout left: 10,000 sleepers, pinned and in the database, made by the code of its time.

`fixture.json` says what that code made of sleepers that follow from their number (`Sleeper`): which maps it pinned,
their contents apart from the table, the database, and digests of the table and of the rows. `again.py` makes the same
bytes, and the digests tell that they are the same; the next daemon is then started on them (test_old_layout.py).

The fixture was written by `python -m tests.lab.old_layout.make` in a checkout of the commit that it names. The next
change of the layout makes another one in the same way, before anything is changed, and keeps this one.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FIXTURE: Final = Path(__file__).with_name("fixture.json")
SLEEPERS: Final = 10_000
SERVER_PORT: Final = 8000
FLAGS: Final = 7  # timestamps, SACK, window scaling
IDLE, SLEEP = 2, 3
NO_REST: Final = 0xFFFFFFFF
KA: Final = struct.Struct("=IIIIIIHHI")
REST: Final = struct.Struct("=QQIIIHHII")
BUCKET_BYTES: Final = 2304
SLOTS, HEAD_BYTES, SLOT_BYTES = 56, 64, 40
OLD_INTERVALS: Final = (300, 1026, 5000, 0)
"""Seconds between probes, where a slot has its class now. As classes: of other services, interned, or none."""


@dataclass(frozen=True)
class Sleeper:
    """One of them, by its number from 0 on."""

    number: int

    @property
    def address(self) -> bytes:
        return bytes((10, 127, self.number >> 8, self.number & 255))

    @property
    def port(self) -> int:
        return 2000 + self.number % 7

    @property
    def id(self) -> int:
        return 100_000 + self.number

    @property
    def snd_nxt(self) -> int:
        return self.number * 2_654_435_761 % 2**32

    @property
    def rcv_nxt(self) -> int:
        return (self.number * 40_503 + 7) % 2**32

    def key(self, local: bytes) -> bytes:
        mapped = bytes(10) + b"\xff\xff"
        return mapped + self.address + mapped + local + struct.pack("!HH", self.port, SERVER_PORT)

    def ka(self, phase: int, version: int = 0, heard_s: int = 0) -> bytes:
        ctl = phase | version << 8 | FLAGS << 16 | 0x77 << 24
        interval_s = OLD_INTERVALS[self.number % len(OLD_INTERVALS)]
        return KA.pack(ctl, self.snd_nxt, self.rcv_nxt, 0, 5000 + self.number, heard_s % 2**20 << 12, 502, interval_s,
                       NO_REST)  # fmt: skip

    def row(self, service: int, heard_s: int = 0) -> tuple[bytes, bytes]:
        """ka and rest of its row."""
        rest = REST.pack(self.id, 1000, 65535, 65535, 4_000_000_000, 1460, 0, 0, 0)
        return self.ka(IDLE, heard_s=heard_s) + struct.pack("=HH", service, 0), rest


def load() -> dict[str, Any]:
    """The fixture."""
    fixture: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="ascii"))
    return fixture


def digest_of_table(buckets: bytes) -> str:
    """Of an IPv4 table, without locks and times."""
    digest = hashlib.sha256()
    for at in range(0, len(buckets), BUCKET_BYTES):
        digest.update(buckets[at : at + SLOTS])
        for slot in range(at + HEAD_BYTES, at + BUCKET_BYTES, SLOT_BYTES):
            digest.update(buckets[slot : slot + 28])
            digest.update(buckets[slot + 32 : slot + SLOT_BYTES])
    return digest.hexdigest()


def digest_of_rows(packed: Iterable[bytes]) -> str:
    """Of ka and rest, as rows have them, in the order of the sleepers."""
    digest = hashlib.sha256()
    for row in packed:
        digest.update(row)
    return digest.hexdigest()
