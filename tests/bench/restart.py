# SPDX-License-Identifier: Apache-2.0
"""How long millions of sleeping clients are without a daemon when it is stopped and started, or killed and started.

Method. Simulated clients connect, are born asleep, and each is kept alive once. In each run the daemon is ended, by
SIGTERM and then by SIGKILL, and started again at once; meanwhile one client says something, which the data path keeps
for the next daemon, and what it says again waits no longer than AGAIN_S. `seconds` runs from the signal until that
client has the real server's answer, so that stopping, starting, adopting the table and the first wake-up are all
inside; it is of all runs of both kinds, and `killed_...` and `stopped_...` are of one kind each.

After each start `SAMPLED` random clients speak to the server and must hear the answer; in the end every client is
kept alive once more. `lost` are those that were not answered at any time, or have no connection at the end.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from appliance.lab.simulator import Outcome
from tests.bench.direct import say
from tests.bench.figures import Report, Target
from tests.bench.simulated import PORT, BenchError, Nursery, nursery
from tests.lab.echo import Echo

SECONDS = Target(at_most=10)
SAMPLED = 10_000
SAID_BYTES = 100
AGAIN_S = 0.05
TRIES = 12  # each after twice as long, at most 256 times AGAIN_S
START_S = 120.0  # for the daemon to answer its operators


class Speaker:
    """A client that speaks while there is no daemon, in a thread."""

    def __init__(self, born: Nursery, client: int) -> None:
        self._born = born
        self._client = client
        self._outcome: Outcome | BaseException | None = None
        self._thread = threading.Thread(target=self._speak, name="speaker")
        self.answered_at = 0.0
        self._thread.start()

    def _speak(self) -> None:
        try:
            self._outcome = self._born.simulator.speak(
                [self._client], SAID_BYTES, SAID_BYTES, rto_s=AGAIN_S, tries=TRIES, timeout_s=START_S
            )
            self.answered_at = time.monotonic()
        except BaseException as error:
            self._outcome = error

    def wait(self) -> float:
        """When it had its answer (time.monotonic)."""
        self._thread.join()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        if self._outcome is None or self._outcome.done != 1:
            raise BenchError(f"the client that spoke while there was no daemon has no answer: {self._outcome}")
        return self.answered_at


def once(born: Nursery, end: Callable[[], int], client: int) -> float:
    """End the daemon and start it; seconds until a client has its answer."""
    began = time.monotonic()
    end()
    ended = time.monotonic()
    speaker = Speaker(born, client)
    try:
        born.daemon.start(START_S)
        up = time.monotonic()
    finally:
        answered = speaker.wait()
    say(f"ended after {ended - began:.2f} s, a client had its answer {answered - ended:.2f} s later, operators after "
        f"{up - ended:.2f} s")  # fmt: skip
    return answered - began


def run(connections: int = 10_000_000, runs: int = 3) -> Report:
    """Stop and kill the daemon of `connections` sleeping clients, each `runs` times."""
    report = Report("restart")
    everybody = range(connections)
    took: dict[str, list[float]] = {"stopped": [], "killed": []}
    unanswered = 0
    spoken = 2 * runs * (SAMPLED + 1)  # each has a rest slot from then on
    with (
        nursery(connections, awake_once=spoken) as born,
        Echo(born.lab.space("lan"), born.lab.address("lan", "eth0"), PORT),
    ):
        joined = born.connect(everybody)
        unanswered += connections - born.keep_alive(everybody).done
        say(f"{joined.done:,} clients are asleep, after {joined.elapsed_s:.0f} s")
        for _ in range(runs):
            for how, end in (("stopped", born.daemon.terminate), ("killed", born.daemon.kill)):
                took[how].append(once(born, end, random.choice(everybody)))
                known = born.known()
                if known != connections:
                    report.problems.append(f"after it was {how} the daemon knew {known:,} of {connections:,} clients")
                sample = sorted(random.sample(everybody, min(SAMPLED, connections)))
                unanswered += len(sample) - born.speak(sample, SAID_BYTES).done
                born.none_awake()
        unanswered += connections - born.keep_alive(everybody).done
        report.add_zero("lost", unanswered + born.gone(everybody), "clients")
        born.add_to(report)
        born.daemon.terminate()
    report.did = f"{connections:,} simulated clients asleep; the daemon stopped {runs} times, and killed as often"
    report.add("seconds", took["stopped"] + took["killed"], "s", SECONDS)
    for how, seconds in took.items():
        report.add(f"{how}_seconds", seconds, "s", SECONDS)
    return report
