# SPDX-License-Identifier: Apache-2.0
"""Time that passes for sleeping connections alone.

A night takes a night. What it changes in the appliance, though, is little: the clock that a sleeping connection shows
its peer has gone on (`ts_offset`), its peer was heard that much longer ago (`heard_s`), and a client that never spoke
was born that much longer ago. All is written straight into the tables that the daemon has pinned, for all connections
in them: both legs of a pair grow old together.

A peer's own clock stays, and the peer is an unmodified kernel: it refuses a timestamp that is more than 2^31 ms (24.8
days) ahead of the last one it knows, unless it heard that one more than 24 days ago (RFC 7323 5.5), which here it did
not. So a longer time passes in steps, between which the peers' keep-alives are answered, as they are in life.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.lab import wait_until

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
_STEP_S: Final = 20 * DAY_S  # below 2^31 ms

# ebpf/shared/table.h and ebpf/shared/record.h
_SLOTS: Final = 56
_EMPTY: Final = bytes(_SLOTS)
_HEADER: Final = 64
_GENERATIONS: Final = 4
_KEY_AND_KA: Final = {"tables4": (8, 32), "tables6": (20, 32)}
_CTL, _TS_OFFSET, _HEARD, _REST = 0, 12, 20, 28
_NO_REST, _BORN_UNIT_S, _BORN_UNITS = (1 << 32) - 1, 128, 2047
_WHEN_SHIFT, _WHEN_WRAP_S = 12, 1 << 20
_PHASE_ASLEEP: Final = (2, 3)  # IDLE, SLEEP
_SOCKET_NOTES_BYTES: Final = 2 << 16  # ebpf/shared/sockets.h
_COOKIES_SENT: Final = (4 << 12, (4 << 12) + 2 * 1024)

_SYS_BPF: Final = {"x86_64": 321, "aarch64": 280}
_BPF_MAP_LOOKUP_ELEM: Final = 1
_BPF_OBJ_GET: Final = 7
_BPF_MAP_GET_FD_BY_ID: Final = 14
_MOD: Final = 1 << 32
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Table:
    """One pinned table, as it lies in memory."""

    memory: mmap.mmap
    bucket: int  # bytes
    key: int
    slot: int

    def asleep(self) -> Iterator[int]:
        """Where the numbers (struct roost_ka) of each sleeping connection begin."""
        for start in range(0, len(self.memory) // self.bucket * self.bucket, self.bucket):
            tags = self.memory[start : start + _SLOTS]
            for number, tag in enumerate(tags) if tags != _EMPTY else ():
                ka = start + _HEADER + number * self.slot + self.key
                if tag and self.read(ka + _CTL) & 0xFF in _PHASE_ASLEEP:
                    yield ka

    def read(self, at: int) -> int:
        return int(struct.unpack_from("=I", self.memory, at)[0])

    def write(self, at: int, value: int) -> None:
        struct.pack_into("=I", self.memory, at, value % _MOD)

    def silence_s(self, ka: int) -> int:
        """Seconds since that connection's far end was heard."""
        now_s = time.monotonic_ns() // 1_000_000_000
        return (now_s - (self.read(ka + _HEARD) >> _WHEN_SHIFT)) % _WHEN_WRAP_S

    def grow_older(self, ka: int, seconds: int) -> None:
        """It was heard that much longer ago, as far as the table can say it: the engine keeps half of the range."""
        self.write(ka + _TS_OFFSET, self.read(ka + _TS_OFFSET) + seconds * 1000)
        older = min(self.silence_s(ka) + seconds, _WHEN_WRAP_S // 2) - self.silence_s(ka)
        self.write(ka + _HEARD, self.read(ka + _HEARD) - (older << _WHEN_SHIFT))
        rest = self.read(ka + _REST)
        if rest >> 30 == 3 and rest != _NO_REST:
            born = ((rest >> 16 & 0x7FF) - seconds // _BORN_UNIT_S) % _BORN_UNITS
            self.write(ka + _REST, rest & ~(0x7FF << 16) | born << 16)


class Sleepers:
    """All connections that sleep in the tables below pin_dir."""

    def __init__(self, pin_dir: Path) -> None:
        self._pin_dir = pin_dir

    def grow_older(self, seconds: int, keepalives: bool = False) -> None:
        """That much time passes for them. keepalives: their peers send some, each within a few seconds; a client that
        is to sleep for longer than 20 days needs that."""
        while seconds > 0:
            step = min(seconds, _STEP_S)
            if keepalives:
                self._hear_all()
            elif step < seconds:
                raise ValueError("after 20 days the peers must hear something: keepalives=True")
            with self.tables() as tables:
                for table in tables:
                    for ka in table.asleep():
                        table.grow_older(ka, step)
            seconds -= step
        if keepalives:
            self._hear_all()

    def count(self) -> int:
        with self.tables() as tables:
            return sum(1 for table in tables for _ in table.asleep())

    def _hear_all(self) -> None:
        """Until each has been heard from now on. Its answer has gone out with that."""
        began = time.monotonic()

        def heard() -> bool:
            with self.tables() as tables:
                silences = [table.silence_s(ka) for table in tables for ka in table.asleep()]
                return all(silence < time.monotonic() - began - 1 for silence in silences)

        wait_until(heard, 10, "a keep-alive of each sleeping connection")

    @contextmanager
    def tables(self) -> Iterator[list[Table]]:
        """The tables themselves, for as long as that lasts."""
        tables: list[Table] = []
        try:
            for name, (key, ka) in _KEY_AND_KA.items():
                for fd in _generations(self._pin_dir / name):
                    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
                    about = dict(line.split(":", 1) for line in lines)
                    bucket, buckets = int(about["value_size"]), int(about["max_entries"])
                    tables.append(Table(mmap.mmap(fd, bucket * buckets), bucket, key, key + ka))
                    os.close(fd)
            yield tables
        finally:
            for table in tables:
                table.memory.close()


def let_socket_notes_run_out(pin_dir: Path) -> None:
    """No key is noted any more as one that the kernel may have a socket for (shared/sockets.h); new notes count."""
    fd = pinned(pin_dir / "births_sockets")
    try:
        with mmap.mmap(fd, _SOCKET_NOTES_BYTES) as notes:
            notes[:] = bytes(len(notes))
    finally:
        os.close(fd)


def tell_of_cookies(pin_dir: Path, sent_s: int) -> None:
    """When a SYN cookie was sent for each service last (shared/cookies.h), CLOCK_MONOTONIC."""
    fd = pinned(pin_dir / "births_cookies")
    try:
        with mmap.mmap(fd, _COOKIES_SENT[1]) as cookies:
            cookies[slice(*_COOKIES_SENT)] = struct.pack("<H", sent_s % (1 << 16)) * 1024
    finally:
        os.close(fd)


def cookies_told(pin_dir: Path) -> set[int]:
    """What tell_of_cookies writes, of all services."""
    fd = pinned(pin_dir / "births_cookies")
    try:
        with mmap.mmap(fd, _COOKIES_SENT[1]) as cookies:
            return set(memoryview(cookies[slice(*_COOKIES_SENT)]).cast("H"))
    finally:
        os.close(fd)


def _bpf(command: int, attributes: bytes) -> int:
    return int(_libc.syscall(_SYS_BPF[platform.machine()], command, attributes, len(attributes)))


def _check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)
    return result


def pinned(path: Path) -> int:
    """A descriptor of the map, program or link that is pinned there."""
    name = ctypes.create_string_buffer(os.fsencode(path))
    return _check(_bpf(_BPF_OBJ_GET, struct.pack("QII", ctypes.addressof(name), 0, 0)), str(path))


def _generations(path: Path) -> Iterator[int]:
    """Descriptors of the maps in the map of maps that is pinned at path."""
    outer = pinned(path)
    try:
        for number in range(_GENERATIONS):
            key, found = ctypes.c_uint32(number), ctypes.c_uint32()
            look = struct.pack("=I4xQQQ", outer, ctypes.addressof(key), ctypes.addressof(found), 0)
            if not _bpf(_BPF_MAP_LOOKUP_ELEM, look):
                yield _check(_bpf(_BPF_MAP_GET_FD_BY_ID, struct.pack("=III", found.value, 0, 0)), str(path))
    finally:
        os.close(outer)
