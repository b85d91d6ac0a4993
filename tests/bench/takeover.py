# SPDX-License-Identifier: Apache-2.0
"""A machine loses its power, and the one that stood by answers for its sleepers: `roost bench takeover`.

Method. Simulated clients (appliance/lab/simulator/) connect to the first of two appliances, which have one database of
PostgreSQL's, and all fall asleep in it; keepalived gives the addresses to one of the two (vagrant/keepalived.conf).
Then the first one's power is cut: its daemon and its keepalived are killed, its interfaces fall silent, and what it had
pinned is gone. The clients' link is plugged into the second one as soon as that has the address, as a switch would send
it their frames. `answered_s` is from the cut until of twenty clients all have the answers to their keep-alives, and
`missed_s` of it until keepalived has moved the address, which takes three of its intervals. Then every client sends a
keep-alive, of whose answer every field is checked; some are woken, and must hear back what they said. `seconds`: until
the second one has put back what it could not have in its table before.

`lost_connections` are clients without an answer, and those that have no connection at the end; `resets` those that got
an RST.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import closing

from appliance.lab import Lab, wait_until
from appliance.lab.simulator import ClientState
from control.daemon.standby import is_here
from tests.bench.direct import say
from tests.bench.figures import Report, Target
from tests.bench.simulated import FEW, PORT, Nursery, config
from tests.databases import Cluster, Postgres
from tests.keepalived import keepalived
from tests.lab.echo import Echo

WOKEN = 1000
SAID_BYTES = 1000
SAMPLE, SPARE = 20, 5000
LEASE_S = 2
ASLEEP_S = 300.0
ANSWERED_S = Target(at_most=3)
QUIET = {"idle_quiet": "2s"}
OTHER_PROCESSES = ("unshare", "--pid", "--fork", "--kill-child")
"""As on another machine: the second daemon cannot see whether the first one lives, and waits for the end of its
lease."""


def run(connections: int = 1_000_000, runs: int = 1) -> Report:
    """Cut the power of the machine that has `connections` sleepers, `runs` times, each with machines of its own."""
    report = Report("takeover")
    answered, missed, compared = list[float](), list[float](), list[float]()
    lost = resets = lost_bytes = wrong_frames = 0
    for _ in range(runs):
        with closing(Cluster()) as cluster, Lab(clients=FEW, nat=False) as lab:
            one = _Cut(lab, Postgres(cluster).url, connections)
            one.run()
            answered.append(one.answered_s)
            missed.append(one.missed_s)
            compared.append(one.put_back_s)
            lost, resets, lost_bytes = lost + one.lost, resets + one.resets, lost_bytes + one.lost_bytes
            frames, problems = one.nursery.wrong()
            wrong_frames += frames
            report.problems += problems
    report.did = (f"{connections:,} simulated clients asleep in PostgreSQL, the power of their machine cut {runs} "
                  f"times, a lease of {LEASE_S} s, keepalived's advertisements every 0.3 s")  # fmt: skip
    report.add("connections", connections, "connections")
    report.add_zero("wrong_frames", wrong_frames, "frames")
    report.add_zero("lost_connections", lost, "connections")
    report.add_zero("lost_bytes", lost_bytes, "bytes")
    report.add_zero("resets", resets, "connections")
    report.add("pause_ms", [1000 * one for one in answered], "ms")
    report.add("seconds", compared, "s")
    report.add("answered_s", answered, "s", ANSWERED_S)
    report.add("missed_s", missed, "s")
    return report


class _Cut:
    def __init__(self, lab: Lab, url: str, connections: int) -> None:
        self.lab = lab
        self._everybody = range(connections)
        self._total = connections + SPARE
        lab.second_box()
        self._simulator = lab.simulator(self._total, PORT)
        settings = config(lab, [self._simulator.box_interface], self._total, QUIET) | {
            "paths": {"database": url},
            "standby": {"address": lab.address("box", "wan0"), "lease": LEASE_S},
        }
        self._boxes = [lab.daemon(settings, start=False, space=space) for space in ("box", "box2")]
        self.nursery = Nursery(lab, self._simulator, self._boxes[0])

    def run(self) -> None:
        lab, simulator, everybody = self.lab, self._simulator, self._everybody
        first, second = self._boxes
        first.start()
        self.nursery.connect(range(self._total))
        # Those that were born asleep and never spoke get rows by `roost drain` alone.
        first.process.popen.send_signal(signal.SIGUSR1)
        first.process.wait(ASLEEP_S)
        watchers = [keepalived(lab, "box", first)]
        first.begin()
        with Echo(lab.space("lan"), lab.address("lan", "eth0"), PORT):
            wait_until(lambda: first.counts().get("SLEEP") == self._total, ASLEEP_S, "all asleep", every_s=0.5)
            second.begin(under=OTHER_PROCESSES)
            watchers.append(keepalived(lab, "box2", second))
            wait_until(lambda: f"{self._total} connections are in its table" in second.standby(), ASLEEP_S,
                       "the second machine follows", every_s=0.5)  # fmt: skip
            say(f"{len(everybody):,} clients are asleep, and the second machine has their rows")
            woken = sorted(random.sample(everybody, min(WOKEN, len(everybody))))
            self.nursery.speak(woken, SAID_BYTES)  # rows with other sequence numbers
            wait_until(lambda: first.counts().get("SLEEP") == self._total, ASLEEP_S, "all asleep again", every_s=0.5)
            time.sleep(2)

            began = time.monotonic()
            first.kill()
            watchers[0].close()
            lab.cut("box")
            first.unpin()
            with lab.enter("box2"):
                wait_until(lambda: is_here(lab.address("box", "wan0")), 30, "keepalived has moved the address", 0.005)
            self.missed_s = time.monotonic() - began
            simulator.plug_into(lab.space("box2"))
            self._wait_for_answers(began)
            say(f"answered {self.answered_s:.2f} s after the power was lost, and the address moved after "
                f"{self.missed_s:.2f} s")  # fmt: skip
            self.nursery.daemon = second
            wait_until(lambda: "put back" in second.log.read_text(), ASLEEP_S, "all rows compared", every_s=0.1)
            self.put_back_s = time.monotonic() - began
            heard = self.nursery.keep_alive(everybody)
            said = self.nursery.speak(woken, SAID_BYTES)
            self.lost = len(everybody) - heard.done + self.nursery.gone(everybody)
            self.resets = simulator.census(everybody).get(ClientState.RESET, 0)
            self.lost_bytes = (len(woken) - said.done) * SAID_BYTES
            self.nursery.none_awake()
            second.close()

    def _wait_for_answers(self, began: float) -> None:
        """By others than those that are counted: who has no answer is given up."""
        for first in range(len(self._everybody), len(self._everybody) + SPARE, SAMPLE):
            heard = self._simulator.keep_alive(range(first, first + SAMPLE), rto_s=0.1, tries=0)
            if heard.done == SAMPLE:
                self.answered_s = time.monotonic() - began
                return
        raise TimeoutError("keep-alives are not answered")
