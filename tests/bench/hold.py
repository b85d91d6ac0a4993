# SPDX-License-Identifier: Apache-2.0
"""What an IDLE connection costs, and that every one of them is kept alive.

Method. Real kernel sockets in several processes connect through a NAT to the daemon, say hello, get their answer and
fall quiet; their kernels then send a keep-alive every KEEPIDLE_S seconds. For `minutes` every client is looked at
again and again (TCP_INFO): each must have heard an ACK for a probe of its own. Then some random ones speak, and must
be answered by the server.

More clients than the kernel has room for (MOST_REAL, or with `simulated`) are simulated: see hold_simulated.py, which
has the same keys.

The tables and the ring are made for the number of connections, the table at a load of 85 % as in service. Counted for
`bytes_per_connection`, all as the kernel accounts it, divided by the connections that are IDLE at that moment:

    maps and programs   their whole memory (bpf fdinfo), grown or not
    daemon              growth of its resident memory since before the first client, without the pages of the maps
                        that it has mapped: those are counted above
    kernel sockets      growth of the appliance's own (its namespace's sockstat), each with its file, inode and
                        dentry, and of those in TIME-WAIT that closed links to the server leave for a minute

The clients' own sockets, and the NAT's connection tracking, are on this machine too, but stand for other machines:
`slab_growth_mb` is what all of that took, `kernel_sockets_mb` what as many sockets in the appliance would have.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from appliance.lab import DaemonHandle, Lab, SwarmGroup, wait_until
from tests.bench.direct import WAN, say
from tests.bench.figures import Report, Target
from tests.bench.hold_simulated import run_simulated
from tests.bench.memory import idle_socket_bytes, memory, sockets_growth

PORT = 8000
LOAD = 0.85
FEW = 100
RING_BYTES = 10
"""Of the ring for waking frames, for each connection: 1 MiB for 100,000. That holds 2,700 frames; the engine empties it
every millisecond or two."""
JOIN_RATE = 2000  # clients/s: what falls asleep again must keep pace, within 20,000 descriptors
KEEPIDLE_S, KEEPINTVL_S = 30, 5
LOOK_S = 10.0
SPEAKING = 500
SPEAKING_AT_ONCE = 8
PATIENCE_S = 120.0
BYTES, RSS_MB = 160.0, 120.0
MOST_REAL = 200_000  # clients: more need more processes, and more memory, than this machine should spend on them


def config(lab: Lab, connections: int) -> dict[str, Any]:
    policy = {"active_quiet": "500ms", "standby_quiet": "1s", "idle_quiet": "never"}
    ring_kb = 1 << max(6, math.ceil(math.log2(connections * RING_BYTES / 1024)))
    table = {"ipv4": math.ceil(connections / LOAD), "ipv6": FEW, "idle": connections, "ring_kb": ring_kb}
    return lab.config(port=PORT, policy=policy, table=table)


def all_idle(daemon: DaemonHandle, connections: int) -> None:
    def are() -> bool:
        status = daemon.status()
        waiting = status["store"]["pending_history"]
        return status["connections"]["IDLE"] >= connections and not status["awake"] and not waiting

    wait_until(are, PATIENCE_S, f"{connections:,} connections IDLE", every_s=0.25)


@dataclass(slots=True)
class Watch:
    """What was seen of the clients while they were quiet."""

    silent: int = 0
    dead: int = 0
    max_silence_ms: int = 0
    looks: int = 0


def watch(swarm: SwarmGroup, seconds: float) -> Watch:
    """Look at every client again and again. Silent is one that went longer without an ACK than a probe and its
    repetition take: at least one probe of it was not answered."""
    seen = Watch()
    limit_ms = (KEEPIDLE_S + KEEPINTVL_S) * 1000
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left))
        hearing = swarm.hearing(limit_ms)
        seen.silent = max(seen.silent, hearing.silent)
        seen.max_silence_ms = max(seen.max_silence_ms, hearing.max_silence_ms)
        seen.looks += 1
        say(f"{hearing.open:,} clients, longest silence {hearing.max_silence_ms / 1000:.1f} s")
    seen.dead = swarm.stats().dead.total()
    return seen


def run(connections: int = 100_000, minutes: float = 2.0, simulated: bool = False) -> Report:
    """Hold `connections` clients IDLE for `minutes`; or, of more than MOST_REAL, let all be kept alive twice."""
    if simulated or connections > MOST_REAL:
        return run_simulated(connections)
    report = Report("hold")
    with Lab(clients=connections) as lab:
        # To one server lead some 64,000 ports, and each is kept for a minute (TIME-WAIT) after its link was closed; so
        # many clients as here ask for a link faster than that. Reuse, which timestamps make safe, is what an appliance
        # needs then: without it connect() searches for a free port for a millisecond and more (profiled).
        lab.sysctl("box", "net.ipv4.tcp_tw_reuse", 1)
        server = lab.server(PORT)
        daemon = lab.daemon(config(lab, connections))
        before = memory(lab, daemon)
        swarm = lab.swarm()
        joined = swarm.connect(connections, (lab.address("box", WAN), PORT), rate=JOIN_RATE, keepidle_s=KEEPIDLE_S,
                               keepintvl_s=KEEPINTVL_S)  # fmt: skip
        say(f"{joined.connected:,} clients connected in {joined.seconds:.0f} s")
        if joined.failed:
            report.problems.append(f"clients could not connect: {dict(joined.failed)}")
        all_idle(daemon, joined.connected)
        retransmits = swarm.hearing().retransmits
        answered = daemon.status()["counters"]["keepalives_answered"]
        say(f"all are IDLE; listening to their keep-alives for {minutes:g} minutes")
        seen = watch(swarm, minutes * 60)
        held = memory(lab, daemon)
        status = daemon.status()
        answered = status["counters"]["keepalives_answered"] - answered
        idle = status["connections"]["IDLE"]
        speaking = min(SPEAKING, joined.connected)
        said = swarm.say(speaking, concurrency=SPEAKING_AT_ONCE)
        dead = swarm.stats().dead
        retransmits = swarm.hearing().retransmits - retransmits
        after = memory(lab, daemon)
        processes = len(swarm.peers)
        daemon.terminate()  # before its clients go: a hundred thousand of them would wake for their FIN
        swarm.close()
        server.close()
    sockets = sockets_growth(before, held)
    growth = held.daemon - before.daemon
    lost = connections - joined.connected + seen.silent + dead.total() + speaking - said.answered
    report.did = (
        f"{connections:,} real clients in {processes} processes behind {lab.addresses} public "
        f"addresses, IDLE for {minutes:g} minutes with a keep-alive every {KEEPIDLE_S} s, looked at {seen.looks} times"
    )
    report.add("bytes_per_connection", (held.maps + growth + sockets) / idle, "bytes", Target(at_most=BYTES))
    report.add("maps_bytes_per_connection", held.maps / idle, "bytes")
    report.add("daemon_bytes_per_connection", growth / idle, "bytes")
    report.add("sockets_bytes_per_connection", sockets / idle, "bytes")
    report.add("daemon_rss_mb", max(held.rss, after.rss) / 1e6, "MB", Target(at_most=RSS_MB))
    report.add("daemon_rss_before_mb", before.rss / 1e6, "MB")
    report.add_zero("lost", lost, "clients")
    report.add_zero("failed", speaking - said.answered, "clients")
    report.add_zero("tables_grown", status["counters"]["tables_grown"], "tables")  # they are made for so many
    report.add("idle", idle, "connections", Target(at_least=float(connections)))
    report.add("keepalives_answered", answered, "probes")
    report.add("max_silence_s", seen.max_silence_ms / 1000, "s")
    report.add("woken_and_answered", said.answered, "clients")
    report.add("retransmits", retransmits, "segments")
    report.add("slab_growth_mb", (held.slab - before.slab) / 1e6, "MB")
    report.add("kernel_sockets_mb", idle * idle_socket_bytes() / 1e6, "MB")
    if said.failed or dead:
        report.problems.append(f"clients that lost their connections: {dict(dead)}; not answered: {dict(said.failed)}")
    if seen.silent:
        report.problems.append(f"{seen.silent} clients had a keep-alive unanswered")
    return report
