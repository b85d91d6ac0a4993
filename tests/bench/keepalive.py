# SPDX-License-Identifier: Apache-2.0
"""What answering a keep-alive probe costs, beside the least that could answer it and beside kernel sockets.

Method. Simulated clients send a keep-alive probe each, as fast as answers come, and check every field of every
answer. What answers is on a processor of its own, the clients are on another. Counted is the processor time of
the NAPI thread that receives and answers, divided by the answers. Four answer, right after one another in each run:

    ...             the appliance: `clients` asleep, all born so
    reflector_...   a bare XDP program that turns the frame around and looks nothing up (simulator/reflector.bpf.c)
    reading_...     the same program, which first reads and writes one cache line of the client's, in as much memory as
                    the appliance's table takes: what remembering a client costs at least on this machine
    kernel_...      sockets of this machine's kernel, fewer of them, since each takes 2 KB and more. They have done
                    their handshake and wait in the queue of a listener: TCP answers for such a one as for any other,
                    and it needs no descriptor. Their frames pass the smallest XDP program, as veth needs one

`vs_reflector` is the reflector's time divided by ours (1 = as cheap as can be), `vs_reading` and `vs_kernel` the same
with those. `limit_vs_reflector` is the reflector's divided by that of the one that reads: nothing that remembers
clients comes nearer to 1 with so many. `cached_...` is the same with FEW_CLIENTS of them, over and over, whose lines
stay in the processor's cache: what the instructions cost.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from appliance.lab import Lab
from appliance.lab.simulator import Outcome, Simulator
from tests.bench.direct import WAN, say
from tests.bench.figures import Report, Target
from tests.bench.simulated import (
    FEW,
    LOAD,
    PORT,
    SLOT_BYTES,
    BenchError,
    Busy,
    Nursery,
    nursery,
    patience_s,
    pin,
    two_processors,
)

VS_REFLECTOR = Target(at_least=0.8)
VS_KERNEL = Target(at_least=5)
QUEUE = 65_535  # of a listener, the most (net.core.somaxconn)
QUEUE_LOAD = 0.5  # the kernel spreads clients over listeners by a hash
WARM_UP = 10_000
FEW_CLIENTS = 1_000
FEW_ROUNDS = 200


@dataclass(slots=True)
class Way:
    """What answers: what its processors have used in each run."""

    name: str
    clients: int
    keep_alive: Callable[[range], Outcome]
    busy: Callable[[], Busy]
    core_ns: list[float] = field(default_factory=list)
    cached_ns: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)

    def measure(self) -> None:
        busy = self.busy()
        outcome = self.keep_alive(range(self.clients))
        if outcome.done != self.clients:
            raise BenchError(f"{self.name} did not answer all of {self.clients:,} clients: {outcome}")
        self.core_ns.append(busy.ns() / outcome.done)
        self.per_s.append(outcome.per_s)

    def measure_cached(self) -> None:
        busy = self.busy()
        done = sum(self.keep_alive(range(FEW_CLIENTS)).done for _ in range(FEW_ROUNDS))
        if done != FEW_CLIENTS * FEW_ROUNDS:
            raise BenchError(f"{self.name} did not answer all of {FEW_CLIENTS:,} clients in {FEW_ROUNDS} rounds")
        self.cached_ns.append(busy.ns() / done)

    def add_to(self, report: Report, prefix: str) -> None:
        report.add(f"{prefix}core_ns", self.core_ns, "ns")
        if self.cached_ns:
            report.add(f"cached_{prefix}core_ns", self.cached_ns, "ns")
        report.add(f"{prefix}answers_per_core_s", [1e9 / ns for ns in self.core_ns], "1/s")
        report.add(f"{prefix}answers_per_s", self.per_s, "1/s")


def patient(simulator: Simulator) -> Callable[[range], Outcome]:
    return lambda clients: simulator.keep_alive(clients, timeout_s=patience_s(len(clients)))


def connected(simulator: Simulator, who: str) -> None:
    outcome = simulator.connect(range(simulator.clients), timeout_s=patience_s(simulator.clients))
    if outcome.done != simulator.clients:
        raise BenchError(f"not every client could connect to {who}: {outcome}")


def listeners(stack: ExitStack, lab: Lab, clients: int) -> None:
    """Sockets of the kernel's for so many clients."""
    with lab.enter("box"):
        for _ in range(1 + int(clients / (QUEUE * QUEUE_LOAD))):
            address = lab.address("box", WAN), PORT
            stack.enter_context(socket.create_server(address, backlog=QUEUE, reuse_port=True))


@contextmanager
def everybody(clients: int, kernel_clients: int) -> Iterator[tuple[Nursery, list[Way], list[Simulator]]]:
    """All four, their clients connected."""
    core, clients_core = two_processors()
    with ExitStack() as stack:
        born = stack.enter_context(nursery(clients))
        pin(born.daemon.pid, core)
        lab = stack.enter_context(Lab(clients=FEW, nat=False))
        bare, reading = lab.simulator(clients, PORT), lab.simulator(clients, PORT)
        kernel = lab.simulator(kernel_clients, PORT, to_kernel=True)
        stack.enter_context(bare.reflector())
        stack.enter_context(reading.reflector(memory_bytes=int(clients / LOAD * SLOT_BYTES)))
        listeners(stack, lab, kernel_clients)
        threads = [
            stack.enter_context(one.one_core_each(core, clients_core))
            for one in (born.simulator, bare, kernel, reading)
        ]
        born.connect(range(clients))
        connected(bare, "the reflector")
        connected(reading, "the reflector that reads")
        connected(kernel, "the kernel")
        roost = Way("Roost", clients, born.keep_alive, lambda: Busy(threads[0]))
        reflector = Way("the reflector", clients, patient(bare), lambda: Busy(threads[1]))
        sockets = Way("the kernel", kernel_clients, patient(kernel), lambda: Busy(threads[2]))
        reader = Way("the reflector that reads", clients, patient(reading), lambda: Busy(threads[3]))
        yield born, [roost, reflector, sockets, reader], [bare, kernel, reading]
        born.daemon.terminate()


def run(clients: int = 1_000_000, kernel_clients: int = 100_000, runs: int = 5) -> Report:
    """All clients of each of the four are answered `runs` times."""
    report = Report("keepalive")
    with everybody(clients, kernel_clients) as (born, ways, others):
        for way in ways:
            way.keep_alive(range(min(way.clients, WARM_UP)))
        daemon, began = Busy([], born.daemon.pid), time.monotonic()
        for number in range(1, runs + 1):
            for way in ways if number % 2 else ways[::-1]:
                way.measure()
            for way in ways[:2]:
                way.measure_cached()
            say(f"run {number}: {', '.join(f'{way.name} {way.core_ns[-1]:,.0f} ns' for way in ways)} an answer")
        daemon_share = daemon.ns() / 1e9 / (time.monotonic() - began)
        report.add_zero("lost", born.gone(range(clients)), "clients")
        born.add_to(report)
        report.problems += [f"frames of a yardstick were wrong: {wrong}" for o in others if (wrong := o.offences())]
    roost, reflector, kernel, reading = ways
    report.did = (
        f"{runs} runs: {clients:,} clients asleep, as many of each reflector and {kernel_clients:,} kernel sockets"
    )
    compared = (
        ("vs_reflector", reflector.core_ns, roost.core_ns, VS_REFLECTOR),
        ("vs_kernel", kernel.core_ns, roost.core_ns, VS_KERNEL),
        ("limit_vs_reflector", reflector.core_ns, reading.core_ns, None),
        ("vs_reading", reading.core_ns, roost.core_ns, None),
        ("cached_vs_reflector", reflector.cached_ns, roost.cached_ns, None),
    )
    for key, theirs, ours, target in compared:
        report.add(key, [their / our for their, our in zip(theirs, ours, strict=True)], "", target)
    for way, prefix in ((roost, ""), (reflector, "reflector_"), (kernel, "kernel_"), (reading, "reading_")):
        way.add_to(report, prefix)
    report.add("daemon_share", daemon_share, "")
    return report
