# SPDX-License-Identifier: Apache-2.0
"""How long it takes until every sleeping connection obeys a rule, and a policy that SIGHUP changes.

Method. Simulated clients, half of them in 10.0.0.0/9, connect and are born asleep; `spoken` of them speak, and go to
SLEEP. In each run a rule gives those of 10.0.0.0/9 another probe interval, and is removed again: `reclass_s` runs from
the request until of `SAMPLED` buckets taken at random, and the first and the last, each slot has a class of the values
that it is to have, read from the pinned table (bpf(2)). Then the configuration gets another probe interval (half an
hour, then none, and so on) and the daemon a SIGHUP. A connection obeys when the engine has looked at it since: its
bucket then says another time at which it is to be looked at next. `reload_s` runs from the signal until all of the
sample do, the reading of the configuration and of the sample included. `reclass_share` is the daemon's processor time
meanwhile, as a share of one core.

Meanwhile one client that is awake asks the server for an echo, one question after the other, through the same engine;
both are processes of their own, and the sample is read at SCHED_IDLE, so that they do not wait for the bench itself:
`echo_ms_p99` while classes change, `quiet_echo_ms_p99` over as long while nothing does, and `relay_p99_ratio` of all
of them. `explain_ms_p99` is of requests for the policy in force for one connection, afterwards.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final

from appliance.lab import endpoint
from appliance.lab.cores import before_all_others
from tests.bench.direct import say
from tests.bench.figures import Report, Target, percentile
from tests.bench.simulated import PORT, Nursery, nursery
from tests.lab.echo import echo_process
from tests.lab.old_layout import BUCKET_BYTES, HEAD_BYTES, SLOT_BYTES, SLOTS, bpf

NETWORK: Final = ip_network("10.0.0.0/9")
RULED_S: Final = 2700
INTERVALS_S: Final = (1800, 0)  # none in the beginning
EXPLAINED: Final = 200
RECLASS_S: Final = Target(at_most=5.0)
"""At 10,000,000 connections; at 1,000,000 within 2 s."""
RELOAD_S: Final = Target(at_most=2.0)
EXPLAIN_MS: Final = Target(at_most=5.0)
RELAY_RATIO: Final = Target(at_most=1.3)
SAMPLED = 1000
DUE_AT = 60  # in a bucket
CLASS_AT = 34  # in a slot
INTERVAL_AT = 12  # in a class
CLASS_BYTES = 64
PORTS_USED = 50_000  # of an address
PATIENCE_S = 30.0


class Table:
    """The pinned IPv4 table and its classes, as another process reads them."""

    def __init__(self, pin_dir: Path) -> None:
        outer = bpf.pinned(pin_dir / "tables4")
        self._fd = bpf.by_id(int.from_bytes(bpf.read(outer, 0, 4), "little"))
        os.close(outer)
        self._classes = bpf.pinned(pin_dir / "classes")
        self.buckets = bpf.shape_of(self._fd)["max_entries"]

    def due_s(self, bucket: int) -> int:
        """When the engine looks into it next, CLOCK_MONOTONIC seconds."""
        due: int = struct.unpack_from("=I", bpf.read(self._fd, bucket, BUCKET_BYTES), DUE_AT)[0]
        return due

    def slots(self, bucket: int) -> list[tuple[int, int]]:
        """(IPv4 address of the client, class) of each slot in use."""
        raw = bpf.read(self._fd, bucket, BUCKET_BYTES)
        begins = [HEAD_BYTES + i * SLOT_BYTES for i in range(SLOTS) if raw[i]]
        return [
            (int.from_bytes(raw[at : at + 4], "big"), struct.unpack_from("=H", raw, at + CLASS_AT)[0]) for at in begins
        ]

    def interval_s(self, class_: int) -> int:
        """Between probes."""
        interval: int = struct.unpack_from("=H", bpf.read(self._classes, class_, CLASS_BYTES), INTERVAL_AT)[0]
        return interval

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._classes)


class Questions:
    """One after the other, each answered by an echo server through the engine; from a process of its own, since this
    one reads tables meanwhile, and before all others."""

    def __init__(self, sock: socket.socket) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self._process = fork.Process(target=_ask, args=(sock, theirs), daemon=True)

    def took_ms(self) -> list[float]:
        """Of each since it was asked for last."""
        self._pipe.send(True)
        took: list[float] = self._pipe.recv()
        return took

    def __enter__(self) -> Questions:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(False)
        self._process.join()


def _ask(sock: socket.socket, pipe: Any) -> None:
    before_all_others()
    took = []
    while True:
        began = time.perf_counter()
        sock.sendall(b"?")
        if sock.recv(1) != b"?":
            raise ConnectionError("the echo ended")
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(0.0005)
        if pipe.poll():
            if not pipe.recv():
                return
            pipe.send(took)
            took = []


@contextmanager
def asking(born: Nursery) -> Iterator[Questions]:
    """A client that is awake, by the lab's other interface."""
    with born.lab.enter("wan"):
        sock = socket.create_connection((born.lab.address("box", "wan0"), PORT), 5)
    sock.settimeout(10)
    with sock, Questions(sock) as questions:
        yield questions


@contextmanager
def unhurried() -> Iterator[None]:
    """This thread leaves its processor to whoever else wants it: it is not to be what echoes wait for."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def until_all(table: Table, obeys: Callable[[int], bool], sample: set[int]) -> None:
    """Every bucket of the sample."""
    began, left = time.monotonic(), set(sample)
    while left := {bucket for bucket in left if not obeys(bucket)}:
        if time.monotonic() > began + PATIENCE_S:
            raise TimeoutError(f"{len(left)} of {len(sample)} buckets do not obey after {PATIENCE_S} s")
        time.sleep(0.01)


def set_rule(born: Nursery, ruled: bool) -> None:
    content = {"network": str(NETWORK), "probe_interval": f"{RULED_S}s"}
    body = {"who": "bench", "why": "to measure"} | ({"rule": content} if ruled else {})
    answer = born.daemon.http("PUT" if ruled else "DELETE", "/v1/policy/rules/half", json=body, timeout=60)
    answer.raise_for_status()


def reclass(born: Nursery, table: Table, sample: set[int], ruled: bool, otherwise_s: int) -> None:
    """A rule for half of the clients comes, or goes. otherwise_s: the interval of the others."""
    set_rule(born, ruled)
    low, high = int(NETWORK[0]), int(NETWORK[-1])
    intervals: dict[int, int] = {}

    def obeys(bucket: int) -> bool:
        for address, class_ in table.slots(bucket):
            if class_ not in intervals:
                intervals[class_] = table.interval_s(class_)
            if intervals[class_] != (RULED_S if ruled and low <= address <= high else otherwise_s):
                return False
        return True

    until_all(table, obeys, sample)


def reload(born: Nursery, table: Table, sample: set[int], interval_s: int) -> None:
    """SIGHUP, with another policy."""
    path = born.daemon.config
    lines = [line for line in path.read_text().splitlines() if not line.startswith("probe_interval")]
    at = lines.index("[policy]") + 1
    path.write_text("\n".join([*lines[:at], f"probe_interval = {interval_s}", *lines[at:]]) + "\n")
    before = {bucket: table.due_s(bucket) for bucket in sample}
    born.daemon.process.popen.send_signal(signal.SIGHUP)
    until_all(table, lambda bucket: abs(table.due_s(bucket) - before[bucket]) >= 2, sample)


def explain_ms(born: Nursery, connections: int) -> list[float]:
    took = []
    for client in random.sample(range(connections), min(EXPLAINED, connections)):
        where = endpoint(born.simulator.address_of(client), born.simulator.port_of(client))
        began = time.perf_counter()
        born.daemon.http("GET", f"/v1/connections/{where}/policy").raise_for_status()
        took.append((time.perf_counter() - began) * 1000)
    return took


def run(connections: int = 100_000, runs: int = 3, spoken: int = 1000) -> Report:
    """Change the rules, and the policy, of `connections` sleeping clients `runs` times."""
    report = Report("policy")
    reclassed, reloaded, share, echoes, quiet, explained = [], [], [], [], [], []
    addresses = 2 * max(64, math.ceil(connections / PORTS_USED / 2))
    where = {"addresses": addresses, "base": str(ip_address(int(NETWORK[-1]) + 1 - addresses // 2))}
    spoken = min(spoken, connections)
    policy = {"probe_interval": "never", "idle_quiet": "2s"}
    with (
        nursery(connections, policy, where, awake_once=max(spoken, 1000)) as born,
        echo_process(born.lab.space("lan"), born.lab.address("lan", "eth0"), PORT),
    ):
        joined = born.connect(range(connections))
        born.speak(range(spoken), 100)
        born.none_awake()
        say(f"{joined.done:,} clients are asleep, {spoken:,} of them in SLEEP, after {joined.elapsed_s:.0f} s")
        table = Table(born.daemon.pin_dir)
        with asking(born) as questions:

            def timed(work: Callable[[], None]) -> float:
                time.sleep(3)  # so that a bucket's next time is another than before
                questions.took_ms()
                time.sleep(2)
                quiet.append(questions.took_ms())
                cpu_s, began = born.daemon.process.cpu_s(), time.monotonic()
                with unhurried():
                    work()
                seconds = time.monotonic() - began
                echoes.append(questions.took_ms())
                share.append((born.daemon.process.cpu_s() - cpu_s) / seconds)
                now, calm = percentile(echoes[-1], 99), percentile(quiet[-1], 99)
                say(f"{seconds:.2f} s; p99 of echoes {now:.2f} ms, before {calm:.2f} ms")
                return seconds

            for i in range(runs):
                sample = {0, table.buckets - 1, *random.sample(range(table.buckets), min(SAMPLED, table.buckets))}
                now_s, then_s = INTERVALS_S[(i + 1) % 2], INTERVALS_S[i % 2]
                reclassed += [timed(partial(reclass, born, table, sample, ruled, now_s)) for ruled in (True, False)]
                reloaded.append(timed(partial(reload, born, table, sample, then_s)))
                explained.append(percentile(explain_ms(born, connections), 99))
        table.close()
        lost = connections - born.keep_alive(range(connections)).done
        report.add_zero("lost", lost + born.gone(range(connections)), "clients")
        born.add_to(report)
        born.daemon.terminate()
    report.did = f"{connections:,} simulated clients asleep; rules and policy changed {runs} times each"
    report.add("reclass_s", reclassed, "s", RECLASS_S)
    report.add("reload_s", reloaded, "s", RELOAD_S)
    report.add("reclass_share", share, "")
    report.add("explain_ms_p99", explained, "ms", EXPLAIN_MS)
    report.add("echo_ms_p99", [percentile(took, 99) for took in echoes], "ms")
    report.add("quiet_echo_ms_p99", [percentile(took, 99) for took in quiet], "ms")
    all_of = [percentile(list(itertools.chain(*some)), 99) for some in (echoes, quiet)]
    report.add("relay_p99_ratio", [all_of[0] / all_of[1]], "", RELAY_RATIO)
    return report
