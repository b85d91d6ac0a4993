# SPDX-License-Identifier: Apache-2.0
"""What it costs a connection to go through Roost: beside HAProxy, and beside a router that only forwards.

Method. Ways from the same clients to the same server, each in a network without address translation:

    routed_...   forwarded by the kernel: the network's own cost, and what the two ends of the load can do
    haproxy_...  HAProxy: TCP mode, splice in both directions, one thread
    ...          Roost, a service at an address of the appliance, as HAProxy's is; the whole daemon with its store
    router_...   Roost as transparent router, each link with its client's own address
    least_...    the least that a relay of sockets can do (least_relay.c); for new connections alone

HAProxy and the forwarding share a network that no BPF program of ours is in. Roost's engine is one thread, and so
HAProxy has one; it is given the same priority as the engine gives itself. A run is four measurements, each made of all
ways right after one another, every other run in reverse order; the ratios are of the two neighbours in a run.

    throughput_1, throughput_64   streams from the clients to the server, until its last byte is counted
    rtt_us                        64 bytes there and back, one at a time on one connection; added_rtt is what a relay
                                  adds to the forwarding
    connects_per_s                connect, 64 bytes there and back, end by the server; 64 at a time
    connect_cpu_us                processor time of the process in the middle for each of them, in all its threads
    connects_limit_vs_haproxy     the least relay's connects_per_s and HAProxy's: the load and the kernel's part, which
                                  are the same for all, leave no relay of sockets more than that
    routed_connects_vs_haproxy    the same of the forwarding alone: with no relay in the middle at all

The load (relay_load.c) shares the processors with what is measured; in the lab a frame is one MTU and its checksum is
computed in software. So these are no figures of a network card: they are to be compared with each other.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.lab import Lab, PeerError, endpoint, wait_until
from appliance.lab.processes import Process
from tests.bench.direct import WAN, say
from tests.bench.figures import Report, Stolen, Target

PORT, LEAST_PORT = 8000, 8001
AT_ONCE = 64
PINGS_A_SECOND = 10_000  # so many are made for each second of the other measurements
ENGINE_NICE = -10  # as in cext/engine.c
LOAD = Path(__file__).with_name("relay_load.c")
LEAST = Path(__file__).with_name("least_relay.c")
HAPROXY = """
global
    nbthread 1
    maxconn 4000
defaults
    mode tcp
    timeout connect 10s
    timeout client 1m
    timeout server 1m
    option splice-request
    option splice-response
listen relay
    bind {listen}
    server lan {server}
"""
RATIOS = {
    "throughput_1": Target(at_least=1),
    "throughput_64": Target(at_least=1),
    "connects": Target(at_least=1.2),
    "rtt": Target(at_most=1),
    "added_rtt": Target(at_most=0.85),
    "connect_cpu": Target(at_most=1),
}
"""Roost's figure divided by HAProxy's."""

Runs = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the server: where clients connect to, and how much processor time the relay there has used."""

    name: str
    lab: Lab
    load: Path
    target: tuple[str, int]
    cpu_s: Callable[[], float]

    @property
    def prefix(self) -> str:
        return "" if self.name == "roost" else f"{self.name}_"

    def measure(self, *words: object) -> dict[str, float]:
        """A run of the load's client end: what it printed, and `cpu_s` of the relay."""
        before = self.cpu_s()
        kind, *numbers = (str(word) for word in words)
        argv = [str(self.load), kind, self.target[0], str(self.target[1]), *numbers]
        process = self.lab.run("wan", argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.popen.communicate(timeout=120)
        if process.wait() != 0:
            raise PeerError(f"the load of {self.name} ended ({kind}): {err.decode().strip()}")
        printed: dict[str, float] = json.loads(out)
        return printed | {"cpu_s": self.cpu_s() - before}


def compiled(directory: Path, source: Path = LOAD) -> Path:
    """One of the programs here, built."""
    program = directory / source.stem
    subprocess.run(["cc", "-O2", "-o", str(program), str(source)], check=True)
    return program


def network(stack: ExitStack) -> Lab:
    """A network of its own."""
    return stack.enter_context(Lab(clients=AT_ONCE, nat=False))


def listening(process: Process) -> Process:
    """Wait until it says that it listens."""
    assert process.popen.stdout is not None
    if not process.popen.stdout.readline():
        raise PeerError("a program of the load ended; its standard error says why")
    return process


def serve(lab: Lab, load: Path) -> None:
    """The server's end of the load, listening."""
    argv = [str(load), "serve", lab.address("lan", "eth0"), str(PORT)]
    listening(lab.run("lan", argv, stdout=subprocess.PIPE))


def answers(lab: Lab, target: tuple[str, int]) -> bool:
    try:
        with lab.enter("wan"):
            socket.create_connection(target, 1).close()
    except OSError:
        return False
    return True


def haproxy(lab: Lab, listen: tuple[str, int]) -> Callable[[], float]:
    """HAProxy in the appliance's place; its processor time."""
    if shutil.which("haproxy") is None:
        raise PeerError("haproxy is not installed. Run: apt-get install haproxy")
    config = lab.workspace / "haproxy.cfg"
    config.write_text(
        HAPROXY.format(listen=endpoint(*listen), server=endpoint(lab.address("lan", "eth0"), PORT)).lstrip()
    )
    argv = ["nice", "-n", str(ENGINE_NICE), "haproxy", "-q", "-db", "-f", str(config)]
    process = lab.run("box", argv)
    wait_until(lambda: answers(lab, listen), 10, "HAProxy listens")
    return process.cpu_s


def least(lab: Lab, listen: tuple[str, int]) -> Callable[[], float]:
    """The least relay in the appliance's place; its processor time."""
    relay = [str(compiled(lab.workspace, LEAST)), listen[0], str(listen[1]), lab.address("lan", "eth0"), str(PORT)]
    return listening(lab.run("box", ["nice", "-n", str(ENGINE_NICE), *relay], stdout=subprocess.PIPE)).cpu_s


def roost(lab: Lab, router: bool) -> Callable[[], float]:
    """The daemon, with one service; its processor time. Connections do not fall quiet, and end with their server."""
    where: dict[str, Any] = {"router": {}} if router else {}
    never = {"active_quiet": "never", "standby_quiet": "never", "on_server_close": "close"}
    return lab.daemon(lab.config(PORT, policy=never, **where)).process.cpu_s


@contextmanager
def ways() -> Iterator[list[Way]]:
    """All of them, running."""
    with ExitStack() as stack:
        plain, service, router = (network(stack) for _ in range(3))
        load = compiled(plain.workspace)
        for lab in (plain, service, router):
            serve(lab, load)
        box, server = (plain.address("box", WAN), PORT), (plain.address("lan", "eth0"), PORT)
        yield [
            Way("routed", plain, load, server, lambda: 0.0),
            Way("haproxy", plain, load, box, haproxy(plain, box)),
            Way("least", plain, load, (box[0], LEAST_PORT), least(plain, (box[0], LEAST_PORT))),
            Way("roost", service, load, box, roost(service, router=False)),
            Way("router", router, load, server, roost(router, router=True)),
        ]


def measure(way: Way, what: str, seconds: float, runs: Runs) -> str:
    """One measurement of one way, added to its runs; a sentence about it."""

    def add(key: str, value: float) -> float:
        runs[way.prefix + key].append(value)
        return value

    if what == "rtt":
        took = way.measure("ping", max(100, int(seconds * PINGS_A_SECOND)))
        add("rtt_us_p99", took["p99_us"])
        return f"{way.name} {add('rtt_us_p50', took['p50_us']):.1f} µs"
    if what == "connects":
        took = way.measure("connect", AT_ONCE, seconds)
        if way.name != "routed":
            add("connect_cpu_us", 1e6 * took["cpu_s"] / max(took["connections"], 1))
        return f"{way.name} {add('connects_per_s', took['connections'] / took['seconds']):,.0f} /s"
    took = way.measure("stream", int(what.removeprefix("throughput_")), seconds)
    return f"{way.name} {add(f'{what}_gbit_s', 8e-9 * took['bytes'] / took['seconds']):.2f} Gbit/s"


UNITS = {
    "throughput_1_gbit_s": "Gbit/s",
    "throughput_64_gbit_s": "Gbit/s",
    "rtt_us_p50": "µs",
    "rtt_us_p99": "µs",
    "added_rtt_us": "µs",
    "connects_per_s": "1/s",
    "connect_cpu_us": "µs",
}
COMPARED = {
    "throughput_1": "throughput_1_gbit_s",
    "throughput_64": "throughput_64_gbit_s",
    "rtt": "rtt_us_p50",
    "connects": "connects_per_s",
}
"""What is measured, and the figure that ratios are made of."""

ALSO_COMPARED = {"added_rtt": "added_rtt_us", "connect_cpu": "connect_cpu_us"}
"""Those that come out of the same measurements."""


def run(seconds: float = 2.0, runs: int = 5) -> Report:
    """Each measurement lasts `seconds`; `runs` times all of them."""
    report = Report("relay", did=f"{runs} runs of {len(COMPARED)} measurements of {seconds:g} s, each of all ways")
    measured: Runs = defaultdict(list)
    stolen: list[float] = []
    with ways() as all_ways:
        for number in range(1, runs + 1):
            took = Stolen()
            for what in COMPARED:
                order = [way for way in all_ways if what == "connects" or way.name != "least"][
                    :: 1 if number % 2 else -1
                ]
                say(f"run {number}, {what}: {', '.join(measure(way, what, seconds, measured) for way in order)}")
            stolen.append(took.percent())
    for way in ("", "router_", "haproxy_"):
        pairs = zip(measured[f"{way}rtt_us_p50"], measured["routed_rtt_us_p50"], strict=True)
        measured[f"{way}added_rtt_us"] = [through - routed for through, routed in pairs]
    for what, key in (COMPARED | ALSO_COMPARED).items():
        for way, target in (("", RATIOS[what]), ("router_", None)):
            pairs = zip(measured[way + key], measured[f"haproxy_{key}"], strict=True)
            report.add(f"{way}{what}_vs_haproxy", [ours / theirs for ours, theirs in pairs], "", target)
    for key, way in {"connects_limit": "least", "routed_connects": "routed"}.items():
        pairs = zip(measured[f"{way}_connects_per_s"], measured["haproxy_connects_per_s"], strict=True)
        report.add(f"{key}_vs_haproxy", [least / theirs for least, theirs in pairs], "")
    for way in ("", "router_", "haproxy_", "least_", "routed_"):
        for key, unit in UNITS.items():
            if way + key in measured:
                report.add(way + key, measured[way + key], unit)
    report.add("stolen_percent", stolen, "%")
    return report
