# SPDX-License-Identifier: Apache-2.0
"""Handshakes completed per second on one core, when all clients come back at once; beside HAProxy.

Method. Simulated clients (simulator/simulator.py) connect as fast as answers come, `clients` in each run and new
ones in each. Whatever of the appliance works for it is on one processor: what receives (a NAPI thread, in which XDP
runs) and the whole daemon; the clients are on another. A handshake is completed when the client has its SYN-ACK,
right in every field, and the daemon counts the connection as asleep; none may be refused, or given up.

    handshakes_per_s        of the wall clock: the smaller of what the appliance's core and what the clients' core can
                            do
    handshakes_per_core_s   for each second that the appliance's core worked
    core_busy               how much of the time that was: 1 = the two figures above are the same

HAProxy stands in a network of its own, in which no program of ours is, with one thread, on the same processor as its
receiving. It only accepts, and waits for the client's first byte before it would connect to a server, as the
appliance does. The same simulated clients connect to it, which cost the machine less than real ones would. As many as
its descriptors allow come in a run; after it all leave. `vs_haproxy` compares for each second of the core, so that
its short runs lose nothing to the clients' pace.
"""

from __future__ import annotations

import csv
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from appliance.lab import Lab, endpoint, wait_until
from appliance.lab.processes import Process, descriptor_limit
from appliance.lab.simulator import Simulator
from tests.bench.direct import WAN, say
from tests.bench.figures import Report, Target
from tests.bench.simulated import FEW, PORT, BenchError, Busy, nursery, patience_s, pin, two_processors

HANDSHAKES_PER_S = Target(at_least=500_000)
VS_HAPROXY = Target(at_least=10)
DESCRIPTORS_EACH = 2  # that HAProxy keeps for a connection, of which it needs one until the client speaks
SPARE_DESCRIPTORS = 1000
HAPROXY = """
global
    nbthread 1
    maxconn {most}
    stats socket {control} mode 600
defaults
    mode tcp
    timeout connect 10s
    timeout client 1h
    timeout server 1h
listen storm
    bind {listen} backlog 65535
    tcp-request inspect-delay 1h
    tcp-request content accept if {{ req.len gt 0 }}
    server lan {server}
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """One run."""

    done: int
    elapsed_s: float
    busy_ns: int

    @property
    def per_s(self) -> float:
        return self.done / self.elapsed_s

    @property
    def per_core_s(self) -> float:
        return self.done * 1e9 / self.busy_ns

    @property
    def busy(self) -> float:
        return self.busy_ns / 1e9 / self.elapsed_s


def roost(clients: int, runs: int, report: Report) -> list[Pace]:
    """The appliance's runs."""
    core, clients_core = two_processors()
    paces = []
    with nursery(clients * runs) as born:
        pin(born.daemon.pid, core)
        with born.simulator.one_core_each(core, clients_core) as threads:
            for number in range(runs):
                busy = Busy(threads, born.daemon.pid)
                outcome = born.connect(range(number * clients, (number + 1) * clients))
                paces.append(Pace(outcome.done, outcome.elapsed_s, busy.ns()))
                say(f"run {number + 1}: {paces[-1].per_s:,.0f} /s, {paces[-1].per_core_s:,.0f} for each second of the "
                    f"core, which was busy for {paces[-1].busy:.0%}; {outcome.retransmitted:,} sent again")  # fmt: skip
        lost = born.gone(range(clients * runs))
        counters = born.daemon.status()["counters"]
        report.add_zero("refused", counters["born_refused"], "clients")
        report.add_zero("lost", lost, "clients")
        born.add_to(report)
        born.daemon.terminate()
    return paces


class HAProxy:
    """HAProxy in the appliance's place, on one processor."""

    def __init__(self, lab: Lab, core: int, most: int) -> None:
        if shutil.which("haproxy") is None:
            raise BenchError("haproxy is not installed. Run: apt-get install haproxy")
        self._control = lab.workspace / "haproxy.sock"
        file = lab.workspace / "haproxy.cfg"
        listen, server = (endpoint(lab.address(*where), PORT) for where in (("box", WAN), ("lan", "eth0")))
        file.write_text(HAPROXY.format(most=most, control=self._control, listen=listen, server=server).lstrip())
        argv = ["taskset", "--cpu-list", str(core), "haproxy", "-q", "-db", "-f", str(file)]
        self.process: Process = lab.run("box", argv)
        wait_until(lambda: self._control.is_socket(), 10, "HAProxy runs")

    def sessions(self) -> int:
        """Clients that it has accepted and that have not left."""
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self._control))
            control.sendall(b"show stat\n")
            text = b"".join(iter(lambda: control.recv(1 << 16), b"")).decode()
        rows = csv.DictReader(text.removeprefix("# ").splitlines())
        return next(int(row["scur"]) for row in rows if (row["pxname"], row["svname"]) == ("storm", "FRONTEND"))


@contextmanager
def haproxy(core: int, clients: int) -> Iterator[tuple[HAProxy, Simulator]]:
    with Lab(clients=FEW, nat=False) as lab:
        simulator = lab.simulator(clients, PORT, to_kernel=True)
        yield HAProxy(lab, core, clients + FEW), simulator


def haproxy_paces(clients: int, runs: int) -> list[Pace]:
    """HAProxy's runs."""
    core, clients_core = two_processors()
    everybody = range(clients)
    paces = []
    with haproxy(core, clients) as (proxy, simulator), simulator.one_core_each(core, clients_core) as threads:
        for number in range(runs):
            busy = Busy(threads, proxy.process.pid)
            outcome = simulator.connect(everybody, timeout_s=patience_s(clients))
            wait_until(lambda: proxy.sessions() == clients, 10, f"{clients:,} clients accepted", every_s=0.01)
            paces.append(Pace(outcome.done, outcome.elapsed_s, busy.ns()))
            say(f"HAProxy, run {number + 1}: {paces[-1].per_s:,.0f} /s, {paces[-1].per_core_s:,.0f} for each second of "
                "the core")  # fmt: skip
            simulator.finish(everybody, timeout_s=patience_s(clients))
            wait_until(lambda: proxy.sessions() == 0, 10, f"{clients:,} clients gone")
    return paces


def room_of_haproxy() -> int:
    """Clients that HAProxy has descriptors for."""
    return (descriptor_limit() - SPARE_DESCRIPTORS) // DESCRIPTORS_EACH


def run(clients: int = 1_000_000, runs: int = 5) -> Report:
    """`clients` connect in each of `runs` runs."""
    report = Report("storm")
    theirs_each = min(clients, room_of_haproxy())
    ours = roost(clients, runs, report)
    theirs = haproxy_paces(theirs_each, runs)
    report.did = (
        f"{runs} runs: {clients:,} simulated clients connect as fast as they can, and {theirs_each:,} to HAProxy"
    )
    report.add("handshakes_per_s", [pace.per_s for pace in ours], "1/s", HANDSHAKES_PER_S)
    report.add("handshakes_per_core_s", [pace.per_core_s for pace in ours], "1/s", HANDSHAKES_PER_S)
    report.add("core_busy", [pace.busy for pace in ours], "")
    pairs = zip(ours, theirs, strict=True)
    report.add("vs_haproxy", [our.per_core_s / their.per_core_s for our, their in pairs], "", VS_HAPROXY)
    report.add("haproxy_per_core_s", [pace.per_core_s for pace in theirs], "1/s")
    report.add("haproxy_per_s", [pace.per_s for pace in theirs], "1/s")
    report.add("core_ns", [1e9 / pace.per_core_s for pace in ours], "ns")
    report.add("haproxy_core_ns", [1e9 / pace.per_core_s for pace in theirs], "ns")
    return report
