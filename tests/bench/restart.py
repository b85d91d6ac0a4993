# SPDX-License-Identifier: Apache-2.0
"""How long millions of sleeping clients are without a daemon when it is stopped and started, or killed and started.

Method. Simulated clients connect, are born asleep, and each is kept alive once. In each run the daemon is ended, by
SIGTERM and then by SIGKILL, and started again at once; meanwhile one client says something, which the data path keeps
for the next daemon, and what it says again waits no longer than AGAIN_S. `seconds` runs from the signal until that
client has the real server's answer, so that stopping, starting, adopting the table and the first wake-up are all
inside; it is of all runs of both kinds, and `killed_...` and `stopped_...` are of one kind each.

With `reboot` the machine is rebooted instead, as far as it can be without one: the daemon is stopped, what it has
pinned is removed, and the rows are of an earlier boot (tests/reboot.py). Before the first one all get rows, those that
never spoke, too. `seconds` runs from the start of the daemon until every row is in its table.

After each start `SAMPLED` random clients speak to the server and must hear the answer; in the end every client is
kept alive once more. `lost` are those that were not answered at any time, or have no connection at the end.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing

from appliance.lab import wait_until
from appliance.lab.simulator import Outcome
from tests.bench.direct import say
from tests.bench.figures import Report, Target
from tests.bench.simulated import PORT, BenchError, Nursery, nursery
from tests.lab.echo import Echo
from tests.reboot import age_all, in_quarantine, quarantined

SECONDS = Target(at_most=10)
PUT_BACK_S = Target(at_most=60)
SAMPLED = 10_000
SAID_BYTES = 100
AGAIN_S = 0.05
TRIES = 12  # each after twice as long, at most 256 times AGAIN_S
START_S = 120.0  # for the daemon to answer its operators
ROWS = {"idle_quiet": "1s"}
ROWS_S = 600.0  # for all to get rows, and to be put back


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


def reboot_once(born: Nursery) -> float:
    """Seconds from the start of the daemon until every row is put back."""
    lab, daemon = born.lab, born.daemon
    wait_until(lambda: daemon.counts().get("SLEEP") == born.known(), ROWS_S, "all have rows", 0.1)
    daemon.terminate()
    if status := quarantined(lab, daemon):
        raise BenchError(f"roost up --quarantine: exit status {status}")
    daemon.unpin()
    with closing(sqlite3.connect(lab.workspace / "roost.db")) as database, database:
        age_all(database)
    began = time.monotonic()
    daemon.start(START_S)
    wait_until(lambda: not in_quarantine(lab), ROWS_S, "all rows are put back", 0.05)
    return time.monotonic() - began


def write_rows(born: Nursery) -> None:
    """Of all, also of those that were born asleep and never spoke: as `roost drain` does it."""
    began = time.monotonic()
    born.daemon.process.popen.send_signal(signal.SIGUSR1)
    born.daemon.process.wait(ROWS_S)
    born.daemon.start(START_S)
    wait_until(lambda: not in_quarantine(born.lab), ROWS_S, "all rows are put back", 0.05)
    say(f"all have rows, and are back after {time.monotonic() - began:.0f} s")


def run(connections: int = 10_000_000, runs: int = 3, reboot: bool = False) -> Report:
    """Stop and kill the daemon of `connections` sleeping clients, each `runs` times; or reboot its machine so often."""
    report = Report("restart")
    everybody = range(connections)
    took: dict[str, list[float]] = {"rebooted": []} if reboot else {"stopped": [], "killed": []}
    unanswered = 0
    spoken = len(took) * runs * (SAMPLED + 1)  # each has a rest slot from then on
    with (
        nursery(connections, ROWS if reboot else None, awake_once=spoken) as born,
        Echo(born.lab.space("lan"), born.lab.address("lan", "eth0"), PORT),
    ):
        joined = born.connect(everybody)
        unanswered += connections - born.keep_alive(everybody).done
        say(f"{joined.done:,} clients are asleep, after {joined.elapsed_s:.0f} s")
        ends: dict[str, Callable[[], float]] = {
            "stopped": lambda: once(born, born.daemon.terminate, random.choice(everybody)),
            "killed": lambda: once(born, born.daemon.kill, random.choice(everybody)),
            "rebooted": lambda: reboot_once(born),
        }
        if reboot:
            write_rows(born)
        for _ in range(runs):
            for how in took:
                took[how].append(ends[how]())
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
    done = f"its machine rebooted {runs} times" if reboot else f"the daemon stopped {runs} times, and killed as often"
    report.did = f"{connections:,} simulated clients asleep; {done}"
    target = PUT_BACK_S if reboot else SECONDS
    report.add("seconds", [one for seconds in took.values() for one in seconds], "s", target)
    for how, seconds in took.items():
        report.add(f"{how}_seconds", seconds, "s", target)
    return report
