# SPDX-License-Identifier: Apache-2.0
"""What an IDLE connection costs when there are millions, and that every one of them is kept alive: `roost bench hold`
for more clients than the kernel has sockets for.

Method. Simulated clients (simulator/simulator.py) connect over the wire, all are born asleep. Each sends a
keep-alive probe, and then each another; of every answer every field is checked, and one that is wrong or does not
come makes the bench fail. Then `WOKEN` random ones say something to a real server, through sockets that the appliance
makes for them, and must hear it back; they fall asleep again, and all are kept alive a last time.

The appliance's table is at a load of LOAD, its other tables as large as this many clients that speak once need them.
Counted for `bytes_per_connection`, at the moment between the keep-alives and the waking, divided by all connections:

    maps and programs   their whole memory as the kernel accounts it (bpf fdinfo), used or not
    daemon              growth of its resident memory since before the first client, without the pages of the maps
                        that it has mapped: those are counted above
    kernel sockets      growth of the appliance's own, which should be none

`total_bytes_per_connection` has the daemon's whole resident memory in place of its growth. `lost` are clients that
did not connect, had a probe unanswered or have no connection at the end; `failed` those that spoke and did not hear
it all.
"""

from __future__ import annotations

import random

from tests.bench.direct import say
from tests.bench.figures import Report, Target
from tests.bench.memory import idle_socket_bytes, memory, sockets_growth
from tests.bench.simulated import LOAD, PORT, nursery
from tests.lab.echo import Echo

WOKEN = 10_000
SAID_BYTES = 1000
ROUNDS = 2  # of keep-alives, before some are woken
BYTES, RSS_MB = Target(at_most=64), Target(at_most=120)


def run_simulated(connections: int) -> Report:
    report = Report("hold")
    everybody = range(connections)
    woken = sorted(random.sample(everybody, min(WOKEN, connections)))
    with nursery(connections) as born, Echo(born.lab.space("lan"), born.lab.address("lan", "eth0"), PORT):
        before = memory(born.lab, born.daemon)
        joined = born.connect(everybody)
        say(f"{joined.done:,} clients are asleep, after {joined.elapsed_s:.0f} s")
        answered = 0
        for _ in range(ROUNDS):
            heard = born.keep_alive(everybody)
            answered += heard.done
            say(f"{heard.done:,} keep-alives were answered, {heard.per_s:,.0f} a second; "
                f"{heard.retransmitted:,} were sent again")  # fmt: skip
        idle = born.asleep()
        held = memory(born.lab, born.daemon)
        said = born.speak(woken, SAID_BYTES)
        say(f"{said.done:,} clients were woken, and heard by a server and it by them")
        born.none_awake()
        after = memory(born.lab, born.daemon)
        last = born.keep_alive(everybody)
        lost = ROUNDS * connections - answered + connections - last.done + born.gone(everybody)
        born.add_to(report)
        status = born.daemon.status()
        born.daemon.terminate()
    growth, sockets = held.daemon - before.daemon, sockets_growth(before, held)
    report.did = (
        f"{connections:,} simulated clients born asleep, the table filled to {LOAD:.0%}; {ROUNDS} keep-alives each, "
        f"{len(woken):,} woken, a last keep-alive each"
    )
    report.add("bytes_per_connection", (held.maps + growth + sockets) / idle, "bytes", BYTES)
    report.add("total_bytes_per_connection", (held.maps + held.daemon + sockets) / idle, "bytes")
    report.add("maps_bytes_per_connection", held.maps / idle, "bytes")
    report.add("daemon_bytes_per_connection", growth / idle, "bytes")
    report.add("sockets_bytes_per_connection", sockets / idle, "bytes")
    report.add("daemon_rss_mb", max(held.daemon, after.daemon) / 1e6, "MB", RSS_MB)
    report.add("daemon_rss_before_mb", before.daemon / 1e6, "MB")
    report.add_zero("lost", lost, "clients")
    report.add_zero("failed", len(woken) - said.done, "clients")
    report.add("idle", idle, "connections", Target(at_least=float(connections)))
    report.add("keepalives_answered", answered + last.done, "probes")
    report.add("woken_and_answered", said.done, "clients")
    report.add("handshakes_per_s", joined.per_s, "1/s")
    report.add("keepalives_per_s", last.per_s, "1/s")
    report.add("retransmits", joined.retransmitted + last.retransmitted, "frames")
    report.add("kernel_sockets_mb", idle * idle_socket_bytes() / 1e6, "MB")
    if status["control"]["illegal"]:
        report.problems.append(f"the control plane counted {status['control']['illegal']} illegal transitions")
    return report
