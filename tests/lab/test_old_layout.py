# SPDX-License-Identifier: Apache-2.0
"""Pins and a database of an earlier layout are taken over with none lost (tests/lab/old_layout)."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.lab import DaemonHandle, Lab, wait_until
from appliance.lab.daemon import DaemonError
from tests.lab import old_layout
from tests.lab.engine_lab import receive
from tests.lab.handmade import hide
from tests.lab.old_layout import BUCKET_BYTES, HEAD_BYTES, SERVER_PORT, SLEEPERS, SLOT_BYTES, SLOTS, Sleeper, again, bpf
from tests.lab.wire import Wire

CLASS_AT: Final = 8 + 26  # in a slot of IPv4
PROBE_INTERVAL_S: Final = 3600
WOKEN: Final = 300
ALL: Final = [Sleeper(number) for number in range(SLEEPERS)]


class Left:
    """A lab with what the earlier daemon left, and no daemon yet."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.fixture = lab, old_layout.load()
        self.local = bytes.fromhex(self.fixture["local"])
        policy = {"active_quiet": "1h", "idle_quiet": "1h", "probe_interval": f"{PROBE_INTERVAL_S}s"}
        self.daemon: DaemonHandle = lab.daemon(lab.config(SERVER_PORT, policy=policy), start=False)
        database = Path(tomllib.loads(self.daemon.config.read_text())["paths"]["database"])
        self.memory = again.pin_all(self.fixture, self.daemon.pin_dir)
        self.rows_digest = again.write_database(self.fixture, database)

    def table(self) -> int:
        """The descriptor of the IPv4 table."""
        fd = bpf.pinned(self.daemon.pin_dir / "tables4")
        try:
            return bpf.by_id(int.from_bytes(bpf.read(fd, 0, 4), "little"))
        finally:
            os.close(fd)

    def classes(self) -> list[int]:
        """Of all slots that are in use."""
        fd, found = self.table(), []
        for index in range(len(self.memory) // BUCKET_BYTES):
            bucket = bpf.read(fd, index, BUCKET_BYTES)
            places = [HEAD_BYTES + i * SLOT_BYTES + CLASS_AT for i in range(SLOTS) if bucket[i]]
            found += [struct.unpack_from("=H", bucket, at)[0] for at in places]
        os.close(fd)
        return found

    def rewrite_half(self) -> None:
        """What a daemon of today has done that was killed in the middle of it."""
        shape = dict(zip(bpf.SHAPE, (2, 4, 64, 4096, 1 << 10), strict=True))
        classes = bpf.create("classes", shape)
        bpf.pin(classes, self.daemon.pin_dir / "classes")
        os.close(classes)
        fd = self.table()
        for index in range(len(self.memory) // BUCKET_BYTES // 2):
            bucket = bytearray(bpf.read(fd, index, BUCKET_BYTES))
            for i in range(SLOTS):
                struct.pack_into("=H", bucket, HEAD_BYTES + i * SLOT_BYTES + CLASS_AT, self.fixture["service"])
            bpf.write(fd, index, bytes(bucket))
        os.close(fd)

    def kill_a_daemon_that_starts(self) -> None:
        def kill() -> None:
            while not (self.daemon.pin_dir / "classes").exists():
                time.sleep(0.001)
            self.daemon.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with suppress(DaemonError):
            self.daemon.start()
        killer.join()
        assert not self.daemon.running


@pytest.fixture
def left() -> Iterator[Left]:
    with Lab(clients=10, nat=False) as lab:
        hide(lab)
        yield Left(lab)


def checksum(data: bytes | bytearray) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(~total & 0xFFFF)


def frame(wire: Wire, sleeper: Sleeper, local: bytes, seq: int, payload: bytes = b"") -> bytes:
    """A segment of a sleeper's client; payload: of even length."""
    flags = 0x18 if payload else 0x10
    options = struct.pack("!BBBBII", 1, 1, 8, 10, 5001 + sleeper.number, 0)
    tcp = bytearray(struct.pack("!HHIIBBHHH", sleeper.port, SERVER_PORT, seq % 2**32, sleeper.snd_nxt, 8 << 4, flags,
                                500, 0, 0) + options + payload)  # fmt: skip
    struct.pack_into("!H", tcp, 16, checksum(sleeper.address + local + struct.pack("!HH", 6, len(tcp)) + tcp))
    ip = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, sleeper.address, local))
    struct.pack_into("!H", ip, 10, checksum(ip))
    return bytes.fromhex((wire.box_mac + wire.mac).replace(":", "")) + b"\x08\x00" + ip + tcp


def numbers_of(frames: list[bytes]) -> dict[tuple[bytes, int], tuple[int, int, int]]:
    """(seq, ack, flags) of the last segment for each client."""
    found = {}
    for one in frames:
        if one[12:14] == b"\x08\x00" and one[23] == 6:
            port, seq, ack, _, flags = struct.unpack_from("!HIIBB", one, 36)
            found[one[30:34], port] = (seq, ack, flags)
    return found


def all_are_kept_alive(left: Left) -> None:
    """Each client's probe is answered with exactly what its record says."""
    with Wire(left) as wire:
        unanswered = {(s.address, s.port): s for s in ALL}
        for _ in range(5):  # a busy machine loses frames, and clients probe again
            for sleeper in list(unanswered.values()):
                wire.send_raw([frame(wire, sleeper, left.local, sleeper.rcv_nxt - 1)])
            for client, numbers in numbers_of(wire.heard(0.3, 20)).items():
                answered = unanswered.pop(client, None)
                assert answered is None or numbers == (answered.snd_nxt, answered.rcv_nxt, 0x10)
            if not unanswered:
                return
        raise AssertionError(f"{len(unanswered)} of {SLEEPERS} are not kept alive")


def wakes(left: Left, sleepers: list[Sleeper]) -> None:
    """What each says reaches the server."""
    with left.lab.enter("lan"), Wire(left) as wire:
        listener = socket.create_server((left.lab.address("lan", "eth0"), SERVER_PORT), backlog=1000)
        listener.settimeout(10)
        servers, said = [], set()
        with listener:
            for sleeper in sleepers:
                wire.send_raw([frame(wire, sleeper, left.local, sleeper.rcv_nxt, struct.pack("!Q", sleeper.number))])
            for _ in sleepers:
                server = listener.accept()[0]
                servers.append(server)
                server.settimeout(10)
                said.add(struct.unpack("!Q", receive(server, 8))[0])
        for server in servers:
            server.close()
    assert said == {sleeper.number for sleeper in sleepers}


@pytest.mark.parametrize("how", ["at once", "half rewritten", "killed twice"])
def test_ten_thousand_sleepers_of_the_layout_before_classes_are_taken_over(left: Left, how: str) -> None:
    fixture: dict[str, Any] = left.fixture
    assert old_layout.digest_of_table(bytes(left.memory)) == fixture["tables"]["tables4"]["sha256"], "its very bytes"
    assert left.rows_digest == fixture["database"]["sha256"]
    assert set(left.classes()) == set(old_layout.OLD_INTERVALS)
    if how == "half rewritten":
        left.rewrite_half()
        assert len(set(left.classes())) == len(old_layout.OLD_INTERVALS) + 1
    elif how == "killed twice":
        left.kill_a_daemon_that_starts()
        (left.daemon.pin_dir / "classes").unlink()  # so that the next one is killed as early
        left.kill_a_daemon_that_starts()

    left.daemon.start()
    assert left.daemon.status()["connections"] == {"ACTIVE": 0, "STANDBY": 0, "IDLE": 0, "SLEEP": SLEEPERS}
    assert left.classes() == [fixture["service"]] * SLEEPERS
    all_are_kept_alive(left)

    chosen = random.Random(7).sample(ALL, WOKEN)
    shown = left.daemon.get(f"/v1/connections/{chosen[0].id}")
    assert (shown["state"], shown["keep_alive"]["probe_interval_s"]) == ("SLEEP", PROBE_INTERVAL_S)
    wakes(left, chosen)
    wait_until(lambda: sum(left.daemon.status()["connections"].values()) == SLEEPERS, 10, "nobody is lost")
    assert left.daemon.status()["connections"]["SLEEP"] == SLEEPERS - WOKEN
    assert left.daemon.status()["control"]["illegal"] == 0
