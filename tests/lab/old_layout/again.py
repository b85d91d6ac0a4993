# SPDX-License-Identifier: Apache-2.0
"""Makes what the fixture says again: the maps at their pins, and the database. Nothing here asks the product's code
where a slot lies or what a row is."""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from control.store.owner import boot_id
from control.store.starting import wall_offset_ms
from tests.lab import old_layout
from tests.lab.old_layout import (
    BUCKET_BYTES,
    HEAD_BYTES,
    SERVER_PORT,
    SLEEP,
    SLEEPERS,
    SLOT_BYTES,
    SLOTS,
    Sleeper,
    bpf,
)

HOME_SLOTS: Final = 3
FIRST_BUCKET: Final = 44
_MASK: Final = 2**64 - 1


def siphash13(seed: tuple[int, int], words: list[int]) -> int:
    """SipHash-1-3 over 64-bit words, without a length."""
    v = [seed[0] ^ 0x736F6D6570736575, seed[1] ^ 0x646F72616E646F6D,
         seed[0] ^ 0x6C7967656E657261, seed[1] ^ 0x7465646279746573]  # fmt: skip

    def rotate(x: int, bits: int) -> int:
        return (x << bits | x >> 64 - bits) & _MASK

    def round_() -> None:
        v[0] = (v[0] + v[1]) & _MASK
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] = (v[2] + v[3]) & _MASK
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & _MASK
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & _MASK
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)

    for word in words:
        v[3] ^= word
        round_()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        round_()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def table(seed: tuple[int, int], local: bytes, buckets: int, endpoint: int) -> bytearray:
    """The IPv4 table with all sleepers in it."""
    memory = bytearray(buckets * BUCKET_BYTES)
    heard_s = int(time.monotonic())
    for sleeper in map(Sleeper, range(SLEEPERS)):
        client, here = (int.from_bytes(address, "little") for address in (sleeper.address, local))
        ports = [int.from_bytes(port.to_bytes(2, "big"), "little") for port in (sleeper.port, SERVER_PORT)]
        number = siphash13(seed, [client << 32 | here, ports[0] << 16 | ports[1]])
        place = ((number & 0xFFFFFFFF) * buckets >> 32, (number >> 32) * buckets >> 32)
        mixed = number * 0x9E3779B97F4A7C15 & _MASK
        tag = mixed >> 56 or 1
        home = ((mixed >> 40 & 0xFFFF) * (SLOTS // HOME_SLOTS) >> 16) * HOME_SLOTS
        tags = [memory[b * BUCKET_BYTES : b * BUCKET_BYTES + SLOTS] for b in place]
        taken = [SLOTS - found.count(0) for found in tags]
        free = [[i for i, found in enumerate(side) if not found] for side in tags]
        side = int(not free[0] or (bool(free[1]) and taken[0] >= FIRST_BUCKET and taken[1] < taken[0]))
        at_home = [i for i in free[side] if home <= i < home + HOME_SLOTS] if side == 0 else []
        position = (at_home or free[side])[0]
        bucket = place[side] * BUCKET_BYTES
        slot = bucket + HEAD_BYTES + position * SLOT_BYTES
        far = sleeper.address + struct.pack("!H", sleeper.port) + struct.pack("=H", endpoint)
        memory[slot : slot + SLOT_BYTES] = far + sleeper.ka(SLEEP, version=1, heard_s=heard_s)
        memory[bucket + position] = tag
    return memory


def pin_all(fixture: dict[str, Any], pin_dir: Path) -> bytearray:
    """The maps as they were; the table's memory."""
    config = bytes.fromhex(fixture["config"])
    seed = struct.unpack_from("=QQ", config, 16)
    (endpoint,) = fixture["endpoints"]
    shapes = {name: fixture["tables"][name]["shape"] for name in ("tables4", "tables6")}
    memory = table(seed, bytes.fromhex(fixture["local"]), shapes["tables4"]["max_entries"], int(endpoint))
    pin_dir.mkdir(mode=0o700)
    for name, shape in fixture["maps"].items():
        inner = bpf.create(name.replace("tables", "table"), shapes[name]) if name in shapes else 0
        fd = bpf.create(name, shape, inner)
        if name == "tables4":
            for at in range(0, len(memory), BUCKET_BYTES):
                bpf.write(inner, at // BUCKET_BYTES, bytes(memory[at : at + BUCKET_BYTES]))
        if inner:
            bpf.write(fd, 0, struct.pack("=I", inner))
            os.close(inner)
        if name == "config":
            bpf.write(fd, 0, config)
        if name == "endpoints":
            for index, value in fixture["endpoints"].items():
                bpf.write(fd, int(index), bytes.fromhex(value))
        bpf.pin(fd, pin_dir / name)
        os.close(fd)
    return memory


def write_database(fixture: dict[str, Any], path: Path) -> str:
    """The database as it was, of this boot; the digest of its records."""
    stored, local, service = fixture["database"], bytes.fromhex(fixture["local"]), fixture["service"]
    here = f"{'.'.join(map(str, local))}:{SERVER_PORT}"
    packed = [sleeper.row(service) for sleeper in map(Sleeper, range(SLEEPERS))]
    with closing(sqlite3.connect(path)) as database, database:
        for statement in stored["schema"]:
            if not statement.startswith("CREATE TABLE sqlite_"):
                database.execute(statement)
        database.execute(f"PRAGMA user_version = {stored['user_version']}")
        database.executemany("INSERT INTO services VALUES (?, ?)", stored["services"])
        database.executemany("INSERT INTO meta VALUES (?, ?)", stored["meta"])
        database.executemany(
            "INSERT INTO sleeping VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(s.key(local), s.id, 1, f"{'.'.join(map(str, s.address))}:{s.port}", here, service,
              time.time_ns() // 10**6, boot_id(), wall_offset_ms(), *row)
             for s, row in zip(map(Sleeper, range(SLEEPERS)), packed, strict=True)])  # fmt: skip
    return old_layout.digest_of_rows(ka + rest for ka, rest in packed)
