# SPDX-License-Identifier: Apache-2.0
"""What goes down when something runs short, and what those that wake meanwhile notice (seed figure 21).

Method. Simulated clients have spoken, one after the other, and are in IDLE; beside them are clients of kernel sockets,
of which one after the other speaks, is answered and freezes again. The daemon is given one threshold of [pressure]
after the other (SIGHUP), low enough to be reached as things are, and then none again. Where connections are counted
(`connections`, `idle`) it is over by itself, when one in fifty has gone to SLEEP; the others last `SECONDS`, at 1 % a
second, and `cpu_stall` has a process beside it that never waits. `memory_stall` is left out: a machine that stalls for
memory measures nothing.

    KEY_down             how many went down a step: from IDLE to SLEEP, of `cpu_stall` and `descriptors` from awake
    KEY_quietest_share   of those from IDLE, how many were among the 5 % that had been quiet longest before
    KEY_overshoot        where connections are counted: how many too many went down, as a share of those that had to
    wake_p99_ratio       the 99th percentile of an answer to a client that wakes, while something is short, over before;
                         without `cpu_stall`, for what is short there slows all down
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from appliance.lab import Lab, wait_until
from appliance.lab.groups import SwarmGroup
from tests.bench.direct import say
from tests.bench.figures import Report, Target, percentile
from tests.bench.simulated import FEW, PORT, Nursery, config
from tests.lab.echo import Echo

QUIETEST: Final = 0.05
PART: Final = 50
"""One of so many connections goes down where they are counted."""
SECONDS: Final = 2.0
WAKERS: Final = 200
SPEAKERS: Final = 1000
"""Awake, when descriptors or processors run short."""
WAKES: Final = 300
"""At once, in which a threshold is reached, and before."""
OFF: Final = {"connections": 0, "idle": 0, "memory": 0, "memory_stall": 0, "cpu_stall": 0, "descriptors": 0}
ANY: Final = 0.01  # %
SHARE: Final = Target(at_least=0.99)
RATIO: Final = Target(at_most=1.5)


@contextmanager
def crowd(connections: int) -> Iterator[tuple[Nursery, SwarmGroup]]:
    """Simulated clients in IDLE that have spoken, and clients of kernel sockets that sleep as well."""
    with Lab(clients=FEW, nat=False) as lab:
        simulator = lab.simulator(connections, PORT)
        interfaces = [simulator.box_interface, "wan0"]
        settings = config(lab, interfaces, connections + WAKERS, awake_once=connections + WAKERS + 1000)
        others = lab.config(PORT + 1, service={"born": "always"})["service"]
        settings["service"] += [{**service, "name": f"wake-{service['name']}"} for service in others]
        lab.server(PORT + 1)
        born = Nursery(lab, simulator, lab.daemon(settings))
        with Echo(lab.space("lan"), lab.address("lan", "eth0"), PORT):
            born.connect(range(connections))
            born.speak(range(connections), 100)
            swarm = lab.swarm()
            swarm.connect(WAKERS, (lab.address("box", "wan0"), PORT + 1))
            born.none_awake()
            yield born, swarm
        born.daemon.terminate()


def press(born: Nursery, **thresholds: float) -> None:
    """These are the thresholds from now on."""
    path = born.daemon.config
    text = path.read_text().partition("\n[pressure]\n")[0]
    lines = [f"{key} = {value}" for key, value in (OFF | {"clear": 0.001} | thresholds).items()]
    path.write_text("\n".join([text, "[pressure]", *lines]) + "\n")
    done = born.daemon.log.read_text().count("SIGHUP: policy taken over")
    born.daemon.process.popen.send_signal(signal.SIGHUP)
    wait_until(lambda: born.daemon.log.read_text().count("SIGHUP: policy taken over") > done, 10, "it is reloaded")


def in_idle(born: Nursery) -> set[int]:
    """The numbers of all that have one."""
    return {row["id"] for row in born.daemon.connections(state="IDLE") if row["id"]}


def last_spoke_ms(born: Nursery) -> dict[int, int]:
    """By number, by the history: a list takes a while, and `quiet_s` of its last rows is longer by that."""
    wait_until(lambda: not born.daemon.status()["store"]["pending_history"], 30, "the history is written")
    with closing(sqlite3.connect(born.daemon.status()["database"].removeprefix("sqlite:///"))) as database:
        return dict(database.execute("SELECT id, max(at - gap_ms) FROM history GROUP BY id"))


class Bench:
    """One threshold after the other."""

    def __init__(self, born: Nursery, swarm: SwarmGroup, report: Report) -> None:
        self.born, self.swarm, self.report = born, swarm, report
        self.calm: list[int] = []
        self.pressed: list[int] = []

    def wakes(self) -> list[int]:
        """How long answers to clients that wake took, us."""
        said = self.swarm.say(WAKES, concurrency=1)
        if said.failed:
            self.report.problems.append(f"clients were not answered: {dict(said.failed)}")
        return said.rtt_us

    def measure(self, key: str, threshold: float, needed: int = 0, speakers: int = 0) -> None:
        """needed: how many must go so that it is over; 0: it is not over by itself. speakers: awake clients."""
        self.calm += self.wakes()
        self.born.none_awake()
        spoke = last_spoke_ms(self.born)
        before = {number: spoke[number] for number in in_idle(self.born)}
        asked = self.asked()
        if speakers:
            self.born.speak(range(speakers), 100)
        press(self.born, **{key: threshold}, rate=50 if speakers else 0.5)
        wait_until(lambda: key in self.reached() or self.asked() != asked, 10, f"{key} is reached")
        began = time.monotonic()
        woken = self.wakes()
        self.pressed += woken if key != "cpu_stall" else []
        if needed:
            wait_until(lambda: not self.reached(), 30, f"{key} is over")
        else:
            time.sleep(max(SECONDS - (time.monotonic() - began), 0))
        press(self.born)
        self.born.none_awake()
        wait_until(lambda: not self.born.daemon.status()["store"]["pending_sleep"], 30, "all that is to SLEEP does")
        gone = before.keys() - in_idle(self.born)
        self.tell(key, before, gone, needed, self.asked()["awake"] - asked["awake"])

    def tell(self, key: str, before: dict[int, int], gone: set[int], needed: int, awake: int) -> None:
        """before: when each of those in IDLE had spoken last."""
        quietest = set(sorted(before, key=before.__getitem__)[: int(len(before) * QUIETEST)])
        say(f"{key}: {len(gone):,} of {len(before):,} went from IDLE to SLEEP, {awake:,} awake ones were to go down")
        self.report.add(f"{key}_down", len(gone) or awake, "connections")
        if gone:
            self.report.add(f"{key}_quietest_share", len(gone & quietest) / len(gone), "", SHARE)
        if needed:
            self.report.add(f"{key}_overshoot", (len(gone) - needed) / needed, "")

    def reached(self) -> dict[str, float]:
        reached: dict[str, float] = self.born.daemon.status()["pressure"]["reached"]
        return reached

    def asked(self) -> dict[str, int]:
        asked: dict[str, int] = self.born.daemon.status()["pressure"]["asked"]
        return asked


def run(connections: int = 20_000) -> Report:
    """Let `connections` clients in IDLE feel what runs short."""
    report = Report("pressure")
    with crowd(connections) as (born, swarm):
        bench = Bench(born, swarm, report)
        there = born.known()
        down = there // PART
        bench.measure("connections", there - down, down)
        stats: dict[str, Any] = born.daemon.status()["counters"]
        down = stats["idle_records"] // PART
        bench.measure("idle", 100 * (stats["idle_records"] - down) / stats["idle_slots"], down)
        bench.measure("memory", ANY)
        speakers = min(SPEAKERS, connections // 2)
        bench.measure("descriptors", ANY, speakers=speakers)
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            try:
                bench.measure("cpu_stall", ANY, speakers=speakers)
            finally:
                busy.kill()
        lost = connections - born.keep_alive(range(connections)).done
        report.add_zero("lost", lost + born.gone(range(connections)), "clients")
        born.add_to(report)
    report.did = f"{connections:,} clients in IDLE, and {WAKERS} that wake by turns"
    ratio = percentile(list(bench.pressed), 99) / percentile(list(bench.calm), 99)
    report.add("wake_p99_ratio", ratio, "", RATIO)
    return report
