# SPDX-License-Identifier: Apache-2.0
"""What a flood of forged packets does to connections that sleep, and to one that does not.

Method. Simulated clients sleep, all born so; a real client speaks with a real server by the appliance, 64 bytes there
and back, on a service of the same daemon. Two floods follow one another, as fast as the simulator can send or at the
rate that is asked for:

    syn_...       SYNs from addresses that answer nothing, towards the service whose clients are born asleep
    segment_...   acknowledgements outside of the window, in the names of the clients that sleep

Both ends of the flood are on one processor: what makes the frames, and the appliance's XDP program that takes them
and answers. The relay is on the other: the real client, the real server, and the daemon with its engine.

    ..._relay_p99_ratio   p99 of the relay's round trips in the flood, divided by that of the same time just before it
    ..._frames_per_s      that were sent; `..._taken_share` of them reached the XDP program
    ..._core_ns           processor time that one of them takes of the appliance, measured by itself with the
                          appliance's receiving on a processor of its own; `..._core_at_2m` is the share of a core
                          that 2,000,000 a second would take. One processor that also has to make the frames makes
                          fewer

After the floods every client is kept alive once: `lost` are those that do not answer. `woken` counts every wake-up,
for whatever reason.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.lab import Lab, endpoint
from appliance.lab.cores import running_on
from appliance.lab.simulator import Simulator
from tests.bench.direct import WAN, say
from tests.bench.figures import Report, Target
from tests.bench.relay import compiled
from tests.bench.simulated import FEW, BenchError, Busy, Nursery, config, pin, two_processors

RELAY_PORT = 8001
PORT = 8000
PINGS = 10_000  # in one run of the load's client: as many as p99 needs, in half a second
SPOOFED_ADDRESSES = 1_000_000
ALONE_S = 3.0
WANTED_PER_S = 2_000_000
RATIO = Target(at_most=2)
AWAKENINGS = ("frames_woke", "fragments_woke", "thawed", "born_spoke")
TAKEN = {
    "syn": ("syn_cookies", "born_refused"),
    "segment": ("challenge_acks", "challenge_acks_limited", "segments_dropped"),
}
"""The appliance's counters that say that a frame of the flood came."""


@dataclass(slots=True)
class Scene:
    """How many connections there are, by state."""

    born: Nursery
    attacker: Simulator
    """Of the SYNs: no host has its addresses."""
    load: Path
    relay_core: int
    flood_core: int
    p99_us: dict[str, list[float]] = field(default_factory=dict)

    def relay_until(self, done: Callable[[], bool]) -> float:
        """The p99 of the round trips until then, µs: the median of the runs."""
        lab = self.born.lab
        argv = ["taskset", "--cpu-list", str(self.relay_core), str(self.load), "ping", lab.address("box", WAN),
                str(RELAY_PORT), str(PINGS)]  # fmt: skip
        found: list[float] = []
        while not found or not done():
            process = lab.run("wan", argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, err = process.popen.communicate(timeout=120)
            if process.wait() != 0:
                raise BenchError(f"the relay's client ended: {err.decode().strip()}")
            found.append(float(json.loads(out)["p99_us"]))
        return sorted(found)[len(found) // 2]

    def flood(self, what: str, seconds: float, rate: float) -> int:
        """The frames sent."""
        if what == "syn":
            return self.attacker.spoof_syns(range(self.attacker.clients), seconds, rate)
        return self.born.simulator.spoof_segments(range(self.born.simulator.clients), seconds, rate)

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.born.daemon.status()["counters"]
        return counters


def settings(lab: Lab, interfaces: list[str], connections: int) -> dict[str, Any]:
    """Of the sleeping service, and of the relay's, whose connections never fall quiet."""
    asleep = config(lab, interfaces, connections)
    relay = {
        "name": "relay",
        "listen": endpoint(lab.address("box", WAN), RELAY_PORT),
        "server": endpoint(lab.address("lan", "eth0"), RELAY_PORT),
        "active_quiet": "never",
        "standby_quiet": "never",
    }
    return {**asleep, "service": [*asleep["service"], relay]}


@contextmanager
def scene(connections: int) -> Iterator[Scene]:
    relay_core, flood_core = two_processors()
    with Lab(clients=FEW, nat=False) as lab:
        clients, attacker = (lab.simulator(number, PORT) for number in (connections, SPOOFED_ADDRESSES))
        attacker.drop_every(1)
        load = compiled(lab.workspace)
        argv = ["taskset", "--cpu-list", str(relay_core), str(load), "serve", lab.address("lan", "eth0")]
        server = lab.run("lan", [*argv, str(RELAY_PORT)], stdout=subprocess.PIPE)
        assert server.popen.stdout is not None
        if not server.popen.stdout.readline():
            raise BenchError("the relay's server ended; its standard error says why")
        interfaces = [WAN, clients.box_interface, attacker.box_interface]
        daemon = lab.daemon(settings(lab, interfaces, connections))
        pin(daemon.pid, relay_core)
        yield Scene(Nursery(lab, clients, daemon), attacker, load, relay_core, flood_core)
        daemon.terminate()


def alone(scene: Scene, what: str) -> float:
    """Processor time of one frame of a flood, ns."""
    victim = scene.attacker if what == "syn" else scene.born.simulator
    with victim.one_core_each(scene.relay_core, scene.flood_core) as threads:
        before, busy = scene.counters(), Busy(threads)
        scene.flood(what, ALONE_S, 0)
        used, after = busy.ns(), scene.counters()
    came = sum(after[name] - before[name] for name in TAKEN[what])
    return used / max(came, 1)


def measure(scene: Scene, what: str, seconds: float, rate: float, report: Report) -> None:
    """One flood, with what it does to the relay."""
    ending = time.monotonic() + seconds
    quiet = scene.relay_until(lambda: time.monotonic() > ending)
    before = scene.counters()
    with ThreadPoolExecutor(1) as pool, running_on(scene.flood_core):
        ending = time.monotonic() + seconds
        relay = pool.submit(scene.relay_until, lambda: time.monotonic() > ending)
        sent = scene.flood(what, seconds, rate)
        flooded = relay.result()
    after = scene.counters()
    taken = sum(after[name] - before[name] for name in TAKEN[what])
    core_ns = alone(scene, what)
    say(f"{what}: {sent / seconds:,.0f} /s, {taken / max(sent, 1):.1%} taken; relay p99 {quiet:.0f} -> {flooded:.0f} "
        f"µs; {core_ns:.0f} ns each")  # fmt: skip
    report.add(f"{what}_relay_p99_ratio", flooded / quiet, "", RATIO)
    report.add(f"{what}_relay_p99_us", flooded, "µs")
    report.add(f"{what}_quiet_p99_us", quiet, "µs")
    report.add(f"{what}_frames_per_s", sent / seconds, "1/s")
    report.add(f"{what}_taken_share", taken / max(sent, 1), "", Target(at_least=0.95))
    report.add(f"{what}_core_ns", core_ns, "ns")
    report.add(f"{what}_core_at_2m", core_ns * WANTED_PER_S / 1e9, "")


def run(connections: int = 1_000_000, seconds: float = 30.0, rate: float = 0) -> Report:
    """Flood `connections` that sleep and one that does not; each for `seconds`, at `rate` a second (0: all it can)."""
    report = Report("flood")
    with scene(connections) as now:
        everybody = range(connections)
        now.born.connect(everybody)
        before = now.counters()
        for what in TAKEN:
            measure(now, what, seconds, rate, report)
        after = now.counters()
        now.born.simulator.forget_offences()  # challenge ACKs that crossed are no answers to anything the clients said
        unanswered = connections - now.born.keep_alive(everybody).done
        report.add_zero("lost", unanswered + now.born.gone(everybody), "connections")
        report.add_zero("woken", sum(after[name] - before[name] for name in AWAKENINGS), "connections")
        now.born.add_to(report)
    ratios = [report.figures[f"{what}_relay_p99_ratio"].median for what in TAKEN]
    report.add("relay_p99_ratio", max(ratios), "", RATIO)
    report.did = (
        f"{connections:,} simulated clients asleep and one relayed connection; two floods of {seconds:g} s each"
    )
    return report
