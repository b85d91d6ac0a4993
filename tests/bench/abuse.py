# SPDX-License-Identifier: Apache-2.0
"""What one source that does its worst costs the clients of other networks.

Method. A daemon with the limits that it has by default serves real clients, which sleep: one after the other says a
line and is answered, and falls asleep again. One source at a time does one of these, as fast as it can from one
address, for `seconds`:

    zero_windows     connections that ask for far more than they take, and close their windows
    births           handshakes with a service whose clients are born asleep, each ended by RST
    handshakes       connections to a service with a server, ended by RST as soon as they stand
    wakes            clients that sleep, born so, say a line each, again and again
    log_ins          servers that say a wrong password at [attach]
    hellos           agents that say a wrong token
    held_clients     clients that connect to be asked for, more than there are places for
    members          segments outside of the window, in the names of clients that sleep without a slot
    wrong_checksums  the same with checksums that are wrong
    tls_handshakes   agents that say hello in TLS, hear the answer and go (a daemon of its own)

    ..._honest_p99_ratio    p99 of what an honest client waits for its answer meanwhile, over that of the same time
                            just before
    ..._per_s               what the source got done: connections that stood, segments that it sent, answers
    ..._memory_growth_mb    of the daemon's resident memory, from before to the end
    honest_failed           honest clients that were not answered, or whose connections ended

The daemon and the honest ends are on one processor, these before all others there. The source is on the other, at a
link of its own, as is what the box's kernel does at once for what it sends, XDP included (threaded NAPI, as a network
card's queue has a processor), and the servers of what it asks for.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from appliance.agent.roost_agent import VERSION, encode
from appliance.lab import DaemonHandle, Lab, SwarmGroup, endpoint, wait_until
from appliance.lab.cores import before_all_others, received_on, running_on
from appliance.lab.simulator import Outcome, Simulator, Unfinished
from appliance.lab.topology import STRANGERS
from tests.bench.direct import WAN, say
from tests.bench.figures import Report, Target, percentile
from tests.bench.relay import compiled, listening
from tests.bench.simulated import pin, threads_of, two_processors
from tests.certificates import make_certificate
from tests.lab.echo import Echo

HONEST: Final = 400
APART_MS: Final = 2.0
RATIO: Final = Target(at_most=2)
GROWTH: Final = Target(at_most=64)
"""MB, in each."""
CALM, FED, BORN, MEMBERS, AGENTS, HELD, ATTACH = 8000, 8001, 8002, 8003, 7100, 7200, 3128
HELLO: Final = encode({"roost-agent": VERSION, "token": "w" * 32, "clients": {"camera": {}}})
PASSWORD: Final = "$scrypt$ln=15,r=8,p=1$b2YgdGhpcyB0ZXN0$" + 43 * "A"
"""None is known."""
LOG_IN: Final = (b"CONNECT camera.roost:443 HTTP/1.1\r\nHost: camera.roost:443\r\n"
                 b"Proxy-Authorization: Basic YmlsbGluZzp3cm9uZw==\r\n\r\n")  # fmt: skip


@dataclass(slots=True)
class Scene:
    lab: Lab
    daemon: DaemonHandle
    honest: SwarmGroup
    program: Path
    core: int
    """The source's."""
    report: Report
    failed: int = 0
    ratios: list[float] = field(default_factory=list)
    growths: list[float] = field(default_factory=list)

    def ask(self, seconds: float) -> float:
        """What honest clients wait for their answers until then, p99 in us."""
        waited: list[float] = []
        ending = time.monotonic() + seconds
        while not waited or time.monotonic() < ending:
            said = self.honest.say(HONEST // 4, concurrency=1, apart_ms=APART_MS)
            waited += said.rtt_us
            self.failed += sum(said.failed.values())
        return percentile(waited, 99)

    def connecting(self, port: int, how: str, at_once: int, words: bytes = b"", space: str = "strangers") -> Attack:
        """A source of real connections."""

        def attack(seconds: float) -> float:
            at_box = self.lab.address("box", WAN if space == "strangers" else "lan0")
            source = STRANGERS["strangers"] if space == "strangers" else self.lab.address("lan", "eth0")
            argv = ["taskset", "--cpu-list", str(self.core), str(self.program), source, at_box, str(port), str(at_once),
                    str(seconds), how]  # fmt: skip
            process = self.lab.run(space, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            out, _ = process.popen.communicate(words, timeout=seconds + 60)
            if process.wait() != 0:
                raise RuntimeError("the source ended; its standard error says why")
            return float(json.loads(out)["connections"])

        return attack

    def measure(self, what: str, attack: Attack, seconds: float) -> None:
        quiet = self.ask(seconds)
        before, began = resident_mb(self.daemon), time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            source = pool.submit(attack, seconds)
            beside = self.ask(seconds)
            done = source.result()
        took, growth = time.monotonic() - began, resident_mb(self.daemon) - before
        ratio = beside / quiet
        say(f"{what}: {done / took:,.0f} /s; honest p99 {quiet:,.0f} -> {beside:,.0f} us; {growth:+.1f} MB")
        self.report.add(f"{what}_honest_p99_ratio", ratio, "", RATIO)
        self.report.add(f"{what}_honest_p99_us", beside, "us")
        self.report.add(f"{what}_quiet_p99_us", quiet, "us")
        self.report.add(f"{what}_per_s", done / took, "1/s")
        self.report.add(f"{what}_memory_growth_mb", growth, "MB", GROWTH)
        self.ratios.append(ratio)
        self.growths.append(growth)


Attack = Callable[[float], float]
"""Seconds; how much it got done."""


def resident_mb(daemon: DaemonHandle) -> float:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def born_and_gone(simulator: Simulator, core: int) -> Attack:
    def once(left_s: float) -> Outcome:
        done = simulator.connect(every(simulator), in_flight=2000, rto_s=0.2, tries=2, timeout_s=left_s)
        simulator.abort(every(simulator))
        return done

    return repeating(once, core)


def speaking(simulator: Simulator, core: int) -> Attack:
    return repeating(lambda left_s: simulator.speak(every(simulator), 16, 16, in_flight=2000, timeout_s=left_s), core)


def repeating(once: Callable[[float], Outcome], core: int) -> Attack:
    """once: given the seconds that are left."""

    def attack(seconds: float) -> float:
        done, ending = 0, time.monotonic() + seconds
        with running_on(core):
            while (left_s := ending - time.monotonic()) > 0:
                try:
                    done += once(left_s).done
                except Unfinished as e:
                    done += e.outcome.done
        return done

    return attack


def spoofing(spoof: Callable[[range, float], int], clients: range, core: int) -> Attack:
    def attack(seconds: float) -> float:
        with running_on(core):
            return spoof(clients, seconds)

    return attack


def every(simulator: Simulator) -> range:
    return range(simulator.clients)


@contextmanager
def scene(
    report: Report, clients: Sequence[tuple[int, int]], agents: dict[str, Any]
) -> Iterator[tuple[Scene, list[Simulator]]]:
    """clients: of each simulator, the port and how many, none connected yet; from one address each."""
    core, source_core = two_processors()
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(clients=HONEST, nat=False, addresses=100))
        simulators = [lab.simulator(count, port) for port, count in clients]
        every_one = HONEST + sum(count for _, count in clients)
        near, far, strangers = lab.address("box", WAN), lab.address("lan", "eth0"), lab.strangers()
        quiet = {"active_quiet": "100ms", "standby_quiet": "200ms", "idle_quiet": "never"}
        services = [
            {"name": "calm", "listen": endpoint(near, CALM), "server": endpoint(far, CALM)},
            {"name": "fed", "listen": endpoint(near, FED), "server": endpoint(far, FED)},
            {"name": "born", "listen": endpoint(near, BORN), "server": endpoint(far, BORN), "born": "always"},
            {"name": "members", "listen": endpoint(near, MEMBERS), "server": endpoint(far, BORN), "born": "always",
             "idle_quiet": "100ms", "sleep_keepalive": "none"},
            {"name": "agents", "listen": endpoint(near, AGENTS), "kind": "agents"},
            {"name": "held", "listen": endpoint(near, HELD), "kind": "held"},
        ]  # fmt: skip
        config = {
            "policy": quiet,
            "table": {"ipv4": 4 * every_one, "ipv6": 100, "idle": 2 * every_one, "filter": 2 * every_one},
            "service": services,
            "agents": agents,
            "agent": [{"name": "site", "token": "0" * 64, "clients": ["camera"]}],
            "attach": {"listen": [endpoint(lab.address("box", "lan0"), ATTACH)], "auth": "password",
                       "users": {"billing": PASSWORD}},
            "network": {"interfaces": [WAN, strangers, *(simulator.box_interface for simulator in simulators)]},
        }  # fmt: skip
        server = lab.server(CALM)
        load = compiled(lab.workspace)
        argv = ["taskset", "--cpu-list", str(source_core), str(load), "serve", far, str(FED)]
        listening(lab.run("lan", argv, stdout=subprocess.PIPE))
        with running_on(source_core):
            stack.enter_context(Echo(lab.space("lan"), far, BORN))
        daemon = lab.daemon(config)
        pin(daemon.pid, core)
        for link in (strangers, *(simulator.box_interface for simulator in simulators)):
            before_all_others(stack.enter_context(received_on(lab.space("box"), link, source_core)))
        honest = lab.swarm()
        honest.connect(HONEST, (near, CALM), rate=200)
        for peer in (server, *honest.peers):
            pin(peer.process.pid, core)
            before_all_others(threads_of(peer.process.pid))
        program = compiled(lab.workspace, Path(__file__).with_suffix(".c"))
        yield Scene(lab, daemon, honest, program, source_core, report), simulators
        daemon.terminate()


def client_hello() -> bytes:
    said = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="roost.test").do_handshake()
    return said.read()


def ended(scene: Scene) -> None:
    """What became of the honest, all in all."""
    stats = scene.honest.stats()
    scene.failed += HONEST - stats.open
    for why, count in stats.dead.items():
        scene.report.problems.append(f"{count} honest clients ended: {why}")


def with_tls(report: Report, agents: dict[str, Any], seconds: float) -> Scene:
    with scene(report, [], agents) as (now, _):
        now.measure("tls_handshakes", now.connecting(AGENTS, "answer", 64, client_hello()), seconds)
        ended(now)
    return now


def run(seconds: float = 20.0, clients: int = 50_000) -> Report:
    """Each kind for `seconds`, and as long before it. clients: of those that are simulated; of one address."""
    report = Report("abuse")
    places = [(BORN, clients), (BORN, clients), (MEMBERS, clients // 10)]
    with scene(report, places, {}) as (now, (newborn, wakers, members)):
        for simulator in (wakers, members):
            simulator.connect(every(simulator), rate=8000)
        members.speak(every(members), 16, 16, rate=900)
        wait_until(lambda: now.daemon.status()["counters"]["filter_members"] > members.clients * 0.9, 60, "they sleep")
        attacks = {
            "zero_windows": now.connecting(FED, "full", 500, b"P" * 64),
            "births": born_and_gone(newborn, now.core),
            "handshakes": now.connecting(FED, "close", 256),
            "wakes": speaking(wakers, now.core),
            "log_ins": now.connecting(ATTACH, "answer", 256, LOG_IN, "lan"),
            "hellos": now.connecting(AGENTS, "answer", 256, HELLO),
            "held_clients": now.connecting(HELD, "hold", 2000),
            "members": spoofing(members.spoof_segments, every(members), now.core),
            "wrong_checksums": spoofing(members.spoof_wrong, every(members), now.core),
        }
        for what, attack in attacks.items():
            now.measure(what, attack, seconds)
        ended(now)
    with TemporaryDirectory() as folder:
        certificate, key = map(str, make_certificate(Path(folder)))
        tls = {"certificate": certificate, "private_key": key}
        other = with_tls(report, tls, seconds)
    report.add("honest_p99_ratio", max(now.ratios + other.ratios), "", RATIO)
    report.add_zero("honest_failed", now.failed + other.failed, "clients")
    report.add("memory_growth_mb", max(now.growths + other.growths), "MB", GROWTH)
    report.did = f"{len(now.ratios) + len(other.ratios)} kinds of abuse by one source, {seconds:g} s each"
    return report
