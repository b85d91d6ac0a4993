# SPDX-License-Identifier: Apache-2.0
"""What it costs to probe millions of sleeping clients.

Method. Simulated clients connect and are born asleep; the service probes each that was not heard for `interval`. When
all are there and so many rounds (intervals) are over, the processor time of everything that works for them is counted
for `seconds`: the whole daemon, with the softirqs that its threads do, the NAPI thread that receives the answers, and
the kernel's workers of that processor, which take down what each run of BPF_PROG_RUN has set up (whatever else they do
on this machine is counted, too). All run on one processor, the clients on another, and nothing else happens. The NAPI
threads have real-time priority, so that they go before the daemon as softirqs do: a veth's ring holds no more than 256
frames.

`core_share` is that time divided by the time that went by: the share of one core. Probes must go out as often as the
interval says (`probes_a_round`: probes in one interval for each connection). In the first four rounds clients that came
at once are moved apart, each by an eighth of the interval at most (life/sweep.c), so that a look at an interval in the
midst of them sees more or fewer; with `rounds` below 4 the figure is said and not judged.

Of all probes from the first on, those of the first rounds' rushes included, nearly every one must be answered at once
(`answered_share`; one that is lost on the way is sent again after `probe_retry`, and counts as a further probe), and no
connection may be lost.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from appliance.lab.cores import before_all_others, cpu_ns, received_on
from tests.bench.direct import say
from tests.bench.figures import Report, Target
from tests.bench.simulated import Busy, Nursery, nursery, pin, two_processors

CORE_SHARE = Target(at_most=0.2)
LEAST_ANSWERED = Target(at_least=0.999)
LEAST_A_ROUND = Target(at_least=0.95)
ROUNDS_TO_SPREAD = 4
RETRIES_AN_INTERVAL = 6


def run(connections: int = 10_000_000, interval_s: int = 60, seconds: float = 60.0,
        rounds: int = ROUNDS_TO_SPREAD) -> Report:  # fmt: skip
    """Probe `connections` every `interval_s`, and after so many rounds look on for `seconds`."""
    report = Report("probe")
    core, clients_core = two_processors()
    retry_s = max(1, interval_s // RETRIES_AN_INTERVAL)
    with nursery(connections, probe_interval=f"{interval_s}s", probe_retry=f"{retry_s}s") as born:
        pin(born.daemon.pid, core)
        simulator = born.simulator
        with (
            received_on(born.lab.space("box"), simulator.box_interface, core) as threads,
            received_on(simulator.space, "eth0", clients_core) as clients_threads,
        ):
            before_all_others([*threads, *clients_threads])
            first = counted(born)
            joined = born.connect(range(connections))
            say(f"{joined.done:,} clients are asleep, after {joined.elapsed_s:.0f} s; "
                f"their probes go round {rounds} times before they are counted")  # fmt: skip
            time.sleep(rounds * interval_s)
            daemon, receiving, workers = Busy([], born.daemon.pid), Busy(threads), kernel_workers(core)
            before, began = counted(born), time.monotonic()
            time.sleep(seconds)
            after, took = counted(born), time.monotonic() - began
            daemon_ns, receiving_ns = daemon.ns(), receiving.ns()
            workers_ns = sum(ns - workers.get(thread, 0) for thread, ns in kernel_workers(core).items())
        sent, _, unsent, answered = (now - then for now, then in zip(after, before, strict=True))
        sent_ever, heard_ever, *_ = (now - then for now, then in zip(after, first, strict=True))
        report.add_zero("lost", born.gone(range(connections)) + connections - born.asleep(), "connections")
        born.add_to(report)
        born.daemon.terminate()
    report.did = f"{connections:,} simulated clients asleep, each probed every {interval_s} s, for {took:.0f} s"
    core_ns = daemon_ns + receiving_ns + workers_ns
    report.add("core_share", core_ns / 1e9 / took, "", CORE_SHARE)
    report.add("daemon_share", daemon_ns / 1e9 / took, "")
    report.add("receiving_share", receiving_ns / 1e9 / took, "")
    report.add("workers_share", workers_ns / 1e9 / took, "")
    report.add("core_ns", core_ns / max(sent, 1), "ns")
    report.add("probes_a_round", sent / connections * interval_s / took, "",
               LEAST_A_ROUND if rounds >= ROUNDS_TO_SPREAD else None)  # fmt: skip
    report.add("answered_share", heard_ever / max(sent_ever, 1), "", LEAST_ANSWERED)
    report.add("probes_per_s", sent / took, "1/s")
    report.add("probes_unsent", unsent, "probes")
    report.add("seen_by_clients", answered, "probes")
    return report


def kernel_workers(cpu: int) -> dict[int, int]:
    """Nanoseconds that each of the kernel's workers of a processor has used, by thread. They come and go."""
    used = {}
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if comm.read_text().startswith(f"kworker/{cpu}:"):
                used[int(comm.parent.name)] = cpu_ns(int(comm.parent.name))
    return used


def counted(born: Nursery) -> tuple[int, int, int, int]:
    """Probes sent, answers heard and probes that could not be sent, of the appliance; and those that clients saw."""
    counters = born.daemon.status()["counters"]
    seen = born.simulator.counters()["probed_by_peer"]
    return counters["probes_sent"], counters["acks_heard"], counters["probes_unsent"], seen
