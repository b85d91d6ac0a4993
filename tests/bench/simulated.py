# SPDX-License-Identifier: Apache-2.0
"""Millions of simulated clients that are born asleep, for the benches that need more of them than the kernel has
sockets for; and whose processor did the work."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.lab import DaemonHandle, Lab, wait_until
from appliance.lab.cores import cpu_ns
from appliance.lab.simulator import ClientState, Outcome, Simulator
from tests.bench.figures import Report

PORT = 8000
LOAD = 0.9
"""Of the appliance's table when all have come, as in service."""
SLOT_BYTES = 41.1
"""Of that table, for IPv4 (ebpf/shared/table.h)."""
FEW = 100
AWAKE_ONCE = 20_000
"""Clients that speak at some time: each then has a rest slot, and while it is awake two descriptors."""
QUIET = {"active_quiet": "500ms", "standby_quiet": "1s", "idle_quiet": "never"}
SPEAK_RATE = 2000  # clients/s: those that fall quiet keep pace, within 20,000 descriptors
PATIENCE_S = 60.0
SETTLED_S = 10.0
LEAST_RATE = 20_000  # clients/s, below which something is stuck


class BenchError(Exception):
    """The bench cannot be done here, or its network did not do as it should; the message says what."""


def two_processors() -> tuple[int, int]:
    """(the appliance's, the clients')"""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise BenchError("the clients need a processor of their own: this bench takes a machine with two")
    return allowed[-1], allowed[0]


def patience_s(clients: int) -> float:
    """How long so many clients may take for anything."""
    return PATIENCE_S + clients / LEAST_RATE


def config(lab: Lab, interfaces: Sequence[str], clients: int, policy: dict[str, Any] | None = None,
           awake_once: int = AWAKE_ONCE, **service: Any) -> dict[str, Any]:  # fmt: skip
    """The appliance's, with room for so many clients, all born asleep, of which so many speak at some time."""
    table = {"ipv4": math.ceil(clients / LOAD) + FEW, "ipv6": FEW, "idle": awake_once}
    settings = lab.config(PORT, policy={**QUIET, **(policy or {})}, table=table, service={"born": "always", **service})
    return settings | {"network": {"interfaces": list(interfaces)}}


@contextmanager
def nursery(clients: int, policy: dict[str, Any] | None = None, where: dict[str, Any] | None = None,
            **options: Any) -> Iterator[Nursery]:  # fmt: skip
    """A lab with so many simulated clients, none connected yet, and the daemon for them. where: of Lab.simulator.
    options: of config()."""
    with Lab(clients=FEW, nat=False) as lab:
        simulator = lab.simulator(clients, PORT, **(where or {}))
        daemon = lab.daemon(config(lab, [simulator.box_interface], clients, policy, **options))
        yield Nursery(lab, simulator, daemon)


@dataclass(slots=True)
class Nursery:
    """How many connections there are, by state, and all that went wrong with them so far."""

    lab: Lab
    simulator: Simulator
    daemon: DaemonHandle
    failures: dict[str, int] = field(default_factory=dict)

    def connect(self, clients: range, **options: Any) -> Outcome:
        """Over the wire; all must be asleep afterwards."""
        asleep = self.asleep()
        outcome = self.simulator.connect(clients, timeout_s=patience_s(len(clients)), **options)
        self._note("connecting", outcome, len(clients))
        wanted = asleep + outcome.done
        try:
            wait_until(lambda: self.asleep() >= wanted, SETTLED_S, f"{outcome.done:,} clients asleep")
        except TimeoutError:  # ACKs were lost on the way: a keep-alive probe brings the cookie, too
            self.keep_alive(clients)
            wait_until(lambda: self.asleep() >= wanted, PATIENCE_S, f"{outcome.done:,} clients asleep")
        return outcome

    def keep_alive(self, clients: range, **options: Any) -> Outcome:
        """A probe of each, whose answer must be right in every field."""
        outcome = self.simulator.keep_alive(clients, timeout_s=patience_s(len(clients)), **options)
        self._note("keeping alive", outcome, len(clients))
        return outcome

    def speak(self, clients: Sequence[int], bytes_each: int, **options: Any) -> Outcome:
        """Each says so much to the server, and hears it back."""
        options = {"rate": SPEAK_RATE, "timeout_s": PATIENCE_S + len(clients) / SPEAK_RATE} | options
        outcome = self.simulator.speak(clients, bytes_each, bytes_each, **options)
        self._note("speaking", outcome, len(clients))
        return outcome

    def _note(self, what: str, outcome: Outcome, wanted: int) -> None:
        for how in ("refused", "cut", "lost", "skipped"):
            if number := getattr(outcome, how):
                self.failures[f"{how} {what}"] = self.failures.get(f"{how} {what}", 0) + number
        if outcome.done + sum(getattr(outcome, how) for how in ("refused", "cut", "lost", "skipped")) != wanted:
            raise BenchError(f"{what}: {outcome} does not account for {wanted:,} clients")

    def asleep(self) -> int:
        connections = self.daemon.status()["connections"]
        return int(connections["IDLE"] + connections["SLEEP"])

    def known(self) -> int:
        """Connections that the daemon knows, in whichever state."""
        return sum(self.daemon.status()["connections"].values())

    def none_awake(self) -> None:
        """Wait until the clients that spoke are asleep again, and all about them is written."""

        def none() -> bool:
            status = self.daemon.status()
            return not status["awake"] and not status["store"]["pending_history"]

        wait_until(none, PATIENCE_S, "all are asleep", every_s=0.25)

    def gone(self, clients: range) -> int:
        """How many of them have no connection any more."""
        return len(clients) - self.simulator.census(clients).get(ClientState.ESTABLISHED, 0)

    def add_to(self, report: Report) -> None:
        """What must not be: wrong frames, and clients that did not get what they wanted."""
        frames, problems = self.wrong()
        report.add_zero("wrong_frames", frames, "frames")
        report.problems += problems

    def wrong(self) -> tuple[int, list[str]]:
        """How many frames were wrong, and all that must not be, in sentences."""
        offences = self.simulator.offences()
        problems = [f"{number:,} clients were {how}" for how, number in self.failures.items()]
        if offences:
            firsts = [f"{o.kind} for client {o.client}: {o.frame.hex()}" for o in self.simulator.first_offences()]
            problems.append(f"frames were wrong: {offences}; the first of each kind: {'; '.join(firsts)}")
        return sum(offences.values()), problems


class Busy:
    """The processor time of threads of the kernel and of whole processes, from here on."""

    def __init__(self, threads: Sequence[int], *processes: int) -> None:
        self._threads = list(threads)
        self._processes = processes
        self._before = self._used()

    def _used(self) -> int:
        return sum(map(cpu_ns, self._threads)) + sum(map(process_ns, self._processes))

    def ns(self) -> int:
        return self._used() - self._before


def process_ns(pid: int) -> int:
    """Processor time that a process's threads have used so far, those that ended not counted."""
    return sum(cpu_ns(thread) for thread in threads_of(pid))


def threads_of(pid: int) -> list[int]:
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


def pin(pid: int, cpu: int) -> None:
    """Let a process, with all threads that it has, run on one processor."""
    for thread in threads_of(pid):
        os.sched_setaffinity(thread, {cpu})
