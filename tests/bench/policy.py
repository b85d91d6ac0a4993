# SPDX-License-Identifier: Apache-2.0
"""How long it takes until every sleeping connection obeys a policy that SIGHUP changes.

Method. Simulated clients connect and are born asleep. In each run the configuration gets another probe interval (half
an hour, then none, and so on) and the daemon a SIGHUP. A connection obeys when the engine has looked at it since: its
bucket then says another time at which it is to be looked at next, which is read from the pinned table (bpf(2)), of
`SAMPLED` buckets taken at random, and of the first and the last. `reclass_s` runs from the signal until all of them do,
the reading of the configuration and of the sample included; `reclass_share` is the daemon's processor time in that
while, as a share of one core.

Meanwhile one client that is awake asks the server for an echo, one question after the other, through the same engine:
`echo_ms_max` is the longest answer while classes change, `quiet_echo_ms_max` over as long while nothing does.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.direct import say
from tests.bench.figures import Report, Target
from tests.bench.simulated import PORT, Nursery, nursery
from tests.lab.echo import Echo
from tests.lab.old_layout import BUCKET_BYTES, bpf

RECLASS_S = Target(at_most=2.0)
"""At 10,000,000 connections."""
SAMPLED = 1000
DUE_AT = 60  # in a bucket
PATIENCE_S = 30.0
INTERVALS = ("30m", "never")


class Table:
    """The pinned IPv4 table, as another process reads it."""

    def __init__(self, pin_dir: Path) -> None:
        outer = bpf.pinned(pin_dir / "tables4")
        self._fd = bpf.by_id(int.from_bytes(bpf.read(outer, 0, 4), "little"))
        os.close(outer)
        self.buckets = bpf.shape_of(self._fd)["max_entries"]

    def due_s(self, bucket: int) -> int:
        """When the engine looks into it next, CLOCK_MONOTONIC seconds."""
        due: int = struct.unpack_from("=I", bpf.read(self._fd, bucket, BUCKET_BYTES), DUE_AT)[0]
        return due

    def close(self) -> None:
        os.close(self._fd)


class Questions:
    """One after the other, each answered by an echo server through the engine; `longest_s` until it is read."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stop = False
        self._longest_s = 0.0
        self._thread = threading.Thread(target=self._ask, name="questions")

    def _ask(self) -> None:
        while not self._stop:
            began = time.perf_counter()
            self._sock.sendall(b"?")
            if self._sock.recv(1) != b"?":
                raise ConnectionError("the echo ended")
            self._longest_s = max(self._longest_s, time.perf_counter() - began)
            time.sleep(0.0005)

    def longest_ms(self) -> float:
        """Since it was asked for last."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s * 1000

    def __enter__(self) -> Questions:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()


@contextmanager
def asking(born: Nursery) -> Iterator[Questions]:
    """A client that is awake, by the lab's other interface."""
    with born.lab.enter("wan"):
        sock = socket.create_connection((born.lab.address("box", "wan0"), PORT), 5)
    sock.settimeout(10)
    with sock, Questions(sock) as questions:
        yield questions


def configure(born: Nursery, interval: str) -> None:
    path = born.daemon.config
    lines = [line for line in path.read_text().splitlines() if not line.startswith("probe_interval")]
    at = lines.index("[policy]") + 1
    path.write_text("\n".join([*lines[:at], f'probe_interval = "{interval}"', *lines[at:]]) + "\n")


def once(born: Nursery, table: Table, interval: str) -> tuple[float, float]:
    """Seconds until all of the sample obey, and the daemon's processor time until then."""
    sample = {0, table.buckets - 1, *random.sample(range(table.buckets), min(SAMPLED, table.buckets))}
    configure(born, interval)
    before = {bucket: table.due_s(bucket) for bucket in sample}
    cpu_s, began = born.daemon.process.cpu_s(), time.monotonic()
    born.daemon.process.popen.send_signal(signal.SIGHUP)
    while before:
        before = {bucket: due_s for bucket, due_s in before.items() if abs(table.due_s(bucket) - due_s) < 2}
        if time.monotonic() > began + PATIENCE_S:
            raise TimeoutError(f"{len(before)} of {len(sample)} buckets were not looked into within {PATIENCE_S} s")
        time.sleep(0.01)
    return time.monotonic() - began, born.daemon.process.cpu_s() - cpu_s


def run(connections: int = 100_000, runs: int = 6) -> Report:
    """Change the policy of `connections` sleeping clients `runs` times."""
    report = Report("policy")
    took, share, echoes, quiet = [], [], [], []
    with (
        nursery(connections, {"probe_interval": INTERVALS[-1]}) as born,
        Echo(born.lab.space("lan"), born.lab.address("lan", "eth0"), PORT),
    ):
        joined = born.connect(range(connections))
        say(f"{joined.done:,} clients are asleep, after {joined.elapsed_s:.0f} s")
        table = Table(born.daemon.pin_dir)
        with asking(born) as questions:
            for i in range(runs):
                time.sleep(3)  # so that a bucket's next time is another than before
                questions.longest_ms()
                time.sleep(2)
                quiet.append(questions.longest_ms())
                seconds, cpu_s = once(born, table, INTERVALS[i % len(INTERVALS)])
                echoes.append(questions.longest_ms())
                took.append(seconds)
                share.append(cpu_s / seconds)
                say(f"{seconds:.2f} s; the longest echo {echoes[-1]:.1f} ms, before {quiet[-1]:.1f} ms")
        table.close()
        lost = connections - born.keep_alive(range(connections)).done
        report.add_zero("lost", lost + born.gone(range(connections)), "clients")
        born.add_to(report)
        born.daemon.terminate()
    report.did = f"{connections:,} simulated clients asleep; their policy changed {runs} times"
    report.add("reclass_s", took, "s", RECLASS_S)
    report.add("reclass_share", share, "")
    report.add("echo_ms_max", echoes, "ms")
    report.add("quiet_echo_ms_max", quiet, "ms")
    return report
