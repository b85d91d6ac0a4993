# SPDX-License-Identifier: Apache-2.0
"""How the cost of a sleeping connection grows with their number: memory, and the time of a keep-alive's answer.

Method. For each number a lab of its own with a daemon whose table is made for it (filled to LOAD); simulated clients
connect and are born asleep. In each of `rounds`, `answers` of them send a keep-alive probe (of fewer, all several
times; of more, others in each round), in an order that has nothing to do with where they are in the table, and every
field of every answer is checked. The appliance's processor does nothing else, and the clients are on another one.

    bytes_N     what grows with the connections, for each: maps and programs (bpf fdinfo) less those of a daemon whose
                table is made for FEW connections, and the growth of the daemon's own memory since before the first
                client
    total_bytes_N   everything, for each: all maps and programs, and the daemon's whole resident memory without their
                    pages
    ns_N        processor time of the NAPI thread that receives the probes and answers them, for each answer
    limit_ns_N  the same of a reflector that reads and writes one cache line of each client's, in as much memory as the
                table takes (simulator/reflector.bpf.c): what remembering so many costs at least on this machine
    ..._ratio   the largest figure of any number, divided by that of the smallest number

What is fixed is `fixed_maps_mb` and `fixed_daemon_mb`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from appliance.lab import Lab
from appliance.lab.simulator import Outcome
from tests.bench.direct import say
from tests.bench.figures import Report, Target
from tests.bench.memory import memory, sockets_growth
from tests.bench.simulated import FEW, LOAD, PORT, SLOT_BYTES, Busy, nursery, patience_s, pin, two_processors

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
RATIO = Target(at_most=1.15)
WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Size:
    """What so many connections cost."""

    connections: int
    bytes_each: float
    total_bytes_each: float
    ns: list[float]
    limit_ns: list[float]


def fixed() -> tuple[int, int]:
    """Bytes of (maps and programs, daemon) where there is hardly a connection."""
    with nursery(FEW) as born:
        before = memory(born.lab, born.daemon)
        born.daemon.terminate()
    return before.maps, before.daemon


def asked(connections: int, answers: int, number: int) -> list[range]:
    """The clients that send a probe in this round, one range after the other."""
    if connections <= answers:
        return [range(connections)] * -(-answers // connections)
    first = number * answers % (connections - answers + 1)
    return [range(first, first + answers)]


def pace(threads: list[int], rounds: list[list[range]], keep_alive: Callable[[range], Outcome]) -> list[float]:
    """Nanoseconds of the receiving processor an answer, of each round but the first."""
    ns = []
    for clients in rounds:
        busy = Busy(threads)
        answered = sum(keep_alive(some).done for some in clients)
        ns.append(busy.ns() / answered)
    return ns[WARM_UP_ROUNDS:]


def limit(connections: int, rounds: list[list[range]], answers: int) -> list[float]:
    """Of the reflector that reads. It has no more clients than are asked: their lines are all over its memory."""
    core, clients_core = two_processors()
    clients = min(connections, answers)
    with Lab(clients=FEW, nat=False) as lab:
        simulator = lab.simulator(clients, PORT)
        with (
            simulator.reflector(memory_bytes=int(connections / LOAD * SLOT_BYTES)),
            simulator.one_core_each(core, clients_core) as threads,
        ):
            simulator.connect(range(clients), timeout_s=patience_s(clients))
            everybody = [[range(clients)] * len(some) for some in rounds]
            return pace(threads, everybody, lambda some: simulator.keep_alive(some, timeout_s=patience_s(clients)))


def measure(connections: int, rounds: int, answers: int, fixed_maps: int, report: Report) -> Size:
    core, clients_core = two_processors()
    everybody = range(connections)
    asking = [asked(connections, answers, number) for number in range(WARM_UP_ROUNDS + rounds)]
    with nursery(connections) as born:
        pin(born.daemon.pid, core)
        before = memory(born.lab, born.daemon)
        with born.simulator.one_core_each(core, clients_core) as threads:
            born.connect(everybody)
            held = memory(born.lab, born.daemon)
            ns = pace(threads, asking, born.keep_alive)
        lost = born.gone(everybody)
        if lost:
            report.problems.append(f"{lost:,} of {connections:,} connections were lost")
        found = Report(report.bench)
        born.add_to(found)
        report.problems += found.problems
        born.daemon.terminate()
    sockets = sockets_growth(before, held)
    grown = held.maps - fixed_maps + held.daemon - before.daemon + sockets
    total = held.maps + held.daemon + sockets
    size = Size(connections, grown / connections, total / connections, ns, limit(connections, asking, answers))
    say(f"{connections:,}: {size.bytes_each:.1f} bytes each, {median(ns):.0f} ns an answer, of which remembering takes "
        f"{median(size.limit_ns):.0f}")  # fmt: skip
    return size


def sizes_up_to(connections: int) -> list[int]:
    """The powers of ten from the smallest on, and `connections` itself."""
    return sorted({*(size for size in SIZES if size < connections), connections})


def run(connections: int = 10_000_000, rounds: int = 5, answers: int = 1_000_000) -> Report:
    """From the smallest of SIZES to `connections`; in each round there are so many `answers`."""
    report = Report("growth")
    fixed_maps, fixed_daemon = fixed()
    found = [measure(size, rounds, answers, fixed_maps, report) for size in sizes_up_to(connections)]
    smallest = found[0]
    report.did = f"{' / '.join(f'{size.connections:,}' for size in found)} connections, the table filled to {LOAD:.0%}"
    bytes_ratio = max(size.bytes_each for size in found) / smallest.bytes_each
    report.add("bytes_ratio", bytes_ratio, "", RATIO)
    for key, of, target in (("ns_ratio", "ns", RATIO), ("limit_ns_ratio", "limit_ns", None)):
        by_round = zip(*(getattr(size, of) for size in found), strict=True)
        report.add(key, [max(ns) / ns[0] for ns in by_round], "", target)
    for size in found:
        report.add(f"bytes_{size.connections}", size.bytes_each, "bytes")
        report.add(f"total_bytes_{size.connections}", size.total_bytes_each, "bytes")
        report.add(f"ns_{size.connections}", size.ns, "ns")
        report.add(f"limit_ns_{size.connections}", size.limit_ns, "ns")
    report.add("fixed_maps_mb", fixed_maps / 1e6, "MB")
    report.add("fixed_daemon_mb", fixed_daemon / 1e6, "MB")
    return report
