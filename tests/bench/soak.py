# SPDX-License-Identifier: Apache-2.0
"""Days of an appliance, compressed, in which everything happens to it that may: no client is lost.

Method. Real clients in groups by habit (soak_scene.HABITS) live through days (soak_day.py): quiet nights, mornings when
all speak, bursts, clients that leave and come back, servers that come for their clients. Of each answer every byte is
compared. Simulated clients are born asleep in the same daemon; keep-alives of some of them are under way all the time,
of whose answers every field is checked, and some speak. Their store is PostgreSQL, which stands for another machine.
Meanwhile faults (soak_faults.FAULTS) come at random: each once, however long that takes, then each again in another
order; the same seed gives the same order. After each one it is waited until all is well: the daemon says so, no client
waits for an answer, and those that the fault cost have connected again. Then, and between them, the invariants of the
design are held against what is seen (soak_checks.py).

In the end all are left alone until they sleep; then every real client speaks, every simulated one is kept alive, and
the history is read from its first row to its last.

    lost_connections        real or simulated clients whose connection ended, or that spoke in vain, where no fault may
                            cost it (soak_faults.Cost); `ended_by_faults` are those that a fault may cost
    lost_bytes              of answers that those waited for
    resets                  RSTs that real clients have heard, but for those of faults that may cost one
    unanswered_keepalives   clients of either kind that were not answered, but while nothing passes by a fault
    illegal_transitions     rows of the history that do not begin where the one before ended, or are in no state machine
    memory_growth_ratio     the appliance's lasting memory at the end, divided by that after the first quarter: maps and
                            programs (bpf fdinfo) and the daemon's own resident memory, each time some seconds after the
                            service manager has restarted it, the least of some samples. So what a start takes is the
                            same in both; all rows have been drained and taken over by then
    process_growth_ratio    the same of any one process, from its first sample to its last, the largest
    findings                all that should not be, each a line in the log
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from appliance.lab import wait_until
from tests.bench.direct import say
from tests.bench.figures import Report, Target
from tests.bench.soak_checks import SILENCE_S, Checks, Window
from tests.bench.soak_day import Callers, Day
from tests.bench.soak_faults import FAULTS, NOTHING, Fault, hand_over, upgrade
from tests.bench.soak_log import written
from tests.bench.soak_scene import Scene

DAYS: Final = 3
GROWTH: Final = Target(at_most=1.02)
GAPS_S: Final = (4.0, 16.0)
"""From the moment when all is well to the next fault."""
WELL_S: Final = 180.0
"""So long it may take until all is well."""
WAITING_MS: Final = 3000
"""A client that has waited for longer is not well."""
TELL_S: Final = 10.0
PENDING: Final = 5000
"""Rows of the history that wait to be written, when all is well."""
QUIET_S = 40.0
QUIET_SAMPLES: Final = 8
TARGETS: Final = 500
"""Clients of a group that servers come for, between two faults."""


@dataclass(frozen=True, slots=True)
class Suffered:
    """A fault as it went; at: seconds since the beginning."""

    at: float
    name: str
    lasted_s: float
    well_s: float
    """From its end until all was well."""
    cost: int
    found: int


@dataclass
class Soak:
    """One that is under way."""

    scene: Scene
    checks: Checks
    day: Day
    callers: Callers
    chance: random.Random
    suffered: list[Suffered] = field(default_factory=list)
    asked_in_vain: int = 0
    left_behind: int = 0
    """Connections that the daemon still knows, whose clients have given up while it was away: it will probe them."""

    def is_well(self) -> str:
        """What is not; empty: all is."""
        status = self.scene.box.status()
        if status is None:
            return "the daemon does not answer"
        if status["store"]["state"] != "ok" or status["store"]["pending_history"] > PENDING:
            return f"its database: {status['store']}"
        if status["waiting"]:
            return f"it waits for {status['waiting']}"
        for group in self.scene.groups:
            told = group.ask("brief")
            if told["open"] != group.count:
                return f"{told['open']:,} of {group.count:,} {group.habit.name} are connected"
            if told["oldest_ms"] > WAITING_MS:
                return f"one of {group.habit.name} has waited {told['oldest_ms']:,} ms for its answer"
        return ""

    def wait(self, seconds: float) -> bool:
        """Until all is well; else it is a finding."""
        told = time.monotonic()
        deadline = told + seconds
        while what := self.is_well():
            if time.monotonic() > deadline:
                self.checks.find(f"not well within {seconds:.0f} s: {what}")
                return False
            if time.monotonic() > told + TELL_S:
                told = time.monotonic()
                say(f"    {what}")
            time.sleep(0.2)
        return True

    def suffer(self, fault: Fault) -> None:
        checks = self.checks
        before, cost = len(checks.findings), sum(checks.ends.values())
        self.came_in_vain()
        window = Window(fault.name, fault.may_cost, time.monotonic())
        checks.windows.append(window)
        say(f"{window.began - checks.began:7.1f} s  {fault.name}")
        try:
            fault.do(self.scene, self.chance)
        except Exception as error:
            error.add_note(f"{fault.name}\n{self.scene.box.daemon.log_tail()}")
            raise
        over = time.monotonic()
        self.wait(WELL_S)
        self.choose_targets()
        window.ended = time.monotonic()
        checks.all(fault.may_cost)
        self.came_in_vain()
        self.suffered.append(Suffered(
            window.began - checks.began, fault.name, over - window.began, window.ended - over,
            sum(checks.ends.values()) - cost, len(checks.findings) - before))  # fmt: skip
        for finding in checks.findings[before:]:
            say(f"  finding: {finding.what}")

    def choose_targets(self) -> None:
        """Clients that servers come for: connections that there are now."""
        for habit in {group.habit.attach: group.habit for group in self.scene.groups if group.habit.attach}.values():
            find = partial(self.scene.box.daemon.connections, service=habit.name, limit=TARGETS)
            # A power cut puts rows back of clients that had woken just before, and are gone.
            silent = {row["id"] for row in find(silence=SILENCE_S)}
            self.callers.targets[habit.attach] = [row["client"] for row in find() if row["id"] not in silent]

    def came_in_vain(self) -> None:
        """1. A server that wants a client gets it; while there is a fault it may be refused."""
        refusals, self.callers.refusals = self.callers.refusals, []
        for refusal in refusals:
            if not any(window.began - 1 <= refusal.ended and refusal.began <= window.ended + 1
                       for window in self.checks.windows):  # fmt: skip
                self.asked_in_vain += 1
                self.checks.find(f"1: a server that came for {refusal.target} was refused: {refusal.why}")

    def check(self) -> None:
        self.checks.all(NOTHING)
        self.came_in_vain()

    def live(self, seconds: float, faults: list[Fault], gaps_s: tuple[float, float]) -> None:
        """Faults at random for so long, and until each has come once. The first one is the drain, after which all that
        sleep have rows: what memory is compared with comes later."""
        begin = self.checks.began
        first = [one for one in faults if one.name == "drain"]
        deck = self.chance.sample(faults, len(faults))
        deck = [one for one in deck if one not in first] + first
        compared, each_once = False, False
        self.choose_targets()
        while time.monotonic() < begin + seconds or not each_once:
            time.sleep(self.chance.uniform(*gaps_s))
            self.check()
            if not compared and time.monotonic() >= begin + seconds / 4:
                compared = True
                self.checkpoint()
            if not deck:
                deck = [one for one in faults for _ in range(int(one.share + self.chance.random()))] or list(faults)
                self.chance.shuffle(deck)
            self.suffer(deck.pop())
            each_once = each_once or not deck
        if not compared:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Memory, of a daemon that has just begun and has all: the least within QUIET_S, since what it took to begin is
        given back by and by."""
        self.suffer(next(fault for fault in FAULTS if fault.do is hand_over))
        taken = []
        for _ in range(QUIET_SAMPLES):
            time.sleep(QUIET_S / QUIET_SAMPLES)
            if (status := self.scene.box.status()) is not None:
                taken.append(self.checks.sample(status))
        self.checks.points.append(min(sample.lasting for sample in taken))

    def settle(self) -> int:
        """All sleep, and then each has a word: transitions of the history."""
        scene, checks = self.scene, self.checks
        self.checkpoint()
        self.callers.end()
        self.day.end()
        self.wait(WELL_S)
        self.check()
        seconds = max(2.0, scene.clients / 500)
        for group in scene.groups:
            group.ask("sweep", seconds=seconds)
        wait_until(scene.all_spoke, 60 + 3 * seconds, "each client has spoken", 0.2)
        self.wait(WELL_S)
        scene.fleet.end()
        scene.fleet.keep_alive(range(scene.fleet.clients))
        self.check()
        known, there = self._known(), scene.clients + scene.fleet.clients
        if known < there:
            checks.find(f"6: the daemon knows {known:,} connections, and {there:,} there are")
        self.left_behind = known - there
        scene.box.manager.stop(timeout_s=120)  # all that it knows is written then
        checks.forged()
        return checks.history()

    def _known(self) -> int:
        return int(sum(self.scene.box.daemon.status()["connections"].values()))


def growth(checks: Checks) -> float:
    """See memory_growth_ratio above."""
    return checks.points[-1] / checks.points[0]


def growth_of_processes(checks: Checks) -> float:
    """See process_growth_ratio above."""
    ratios = [1.0]
    for _, samples in groupby(checks.samples, lambda sample: sample.pid):
        first, *more = samples
        ratios += [more[-1].lasting / first.lasting] if more else []
    return max(ratios)


def chosen(names: str) -> list[Fault]:
    """Faults by their names, separated by commas; empty: all."""
    by_name = {fault.name: fault for fault in FAULTS}
    if unknown := [name for name in names.split(",") if name and name not in by_name]:
        raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [by_name[name] for name in names.split(",") if name] or list(FAULTS)


def run(minutes: float = 45.0, clients: int = 50_000, simulated: int = 1_000_000, seed: int = 1,
        faults: str = "", log: str | None = None) -> Report:  # fmt: skip
    """Let days pass for so many clients; faults: names of those that come, all unless given. log: a file for what
    happened, in Markdown."""
    which = chosen(faults)
    report = Report("soak")
    seconds = minutes * 60
    started = time.time()
    with Scene(clients, simulated, seed) as scene:
        if any(fault.do is upgrade for fault in which):
            scene.build_later()
        joined_s = scene.join()
        say(f"{clients:,} real and {simulated:,} simulated clients are connected, the latter in {joined_s:.1f} s")
        soak = Soak(scene, Checks(scene), Day(scene, seconds / DAYS, seed), Callers(scene, 2.0, seed),
                    random.Random(seed))  # fmt: skip
        checks = soak.checks
        scene.fleet.start()
        soak.day.start()
        soak.callers.start()
        soak.wait(WELL_S)
        soak.live(seconds, which, GAPS_S)
        lived = time.monotonic() - checks.began
        transitions = soak.settle()
        totals = [group.ask("look") for group in scene.groups]
        beats = scene.fleet.beats
    counts = {fault.name: 0 for fault in (*which, *FAULTS)}
    for one in soak.suffered:
        counts[one.name] += 1
    report.did = (
        f"{clients:,} real and {simulated:,} simulated clients, {soak.day.mornings} mornings in {lived / 60:.1f} "
        f"minutes, {len(soak.suffered)} faults of {sum(map(bool, counts.values()))} kinds, seed {seed}"
    )
    report.add("connections", clients + simulated, "connections")
    report.add_zero("lost_connections", checks.lost_connections, "connections")
    report.add_zero("lost_bytes", checks.lost_bytes, "bytes")
    report.add_zero("resets", checks.resets, "RSTs")
    report.add_zero("unanswered_keepalives", checks.unanswered_keepalives, "clients")
    report.add_zero("illegal_transitions", checks.illegal_transitions, "transitions")
    report.add_zero("findings", len(checks.findings), "findings")
    report.add("memory_growth_ratio", growth(checks), "", GROWTH)
    report.add("process_growth_ratio", growth_of_processes(checks), "")
    report.add("seconds", lived, "s")
    report.add("faults", len(soak.suffered), "faults")
    for name, count in counts.items():
        report.add(f"faults_{name}", count, "faults")
    report.add("well_s", [one.well_s for one in soak.suffered] or [0.0], "s")
    report.add("ended_by_faults", sum(checks.ends.values()), "connections")
    report.add("resets_of_faults", checks.resets_of_faults, "RSTs")
    report.add("answers", sum(total["answered"] for total in totals), "answers")
    report.add("longest_answer_ms", checks.longest_ms, "ms")
    report.add("left_and_came_back", soak.day.left, "clients")
    report.add("came_for_clients", soak.callers.answered, "connections")
    report.add("keepalives", beats.answered, "keep-alives")
    report.add("keepalives_again", beats.again, "frames")
    report.add("simulated_woken", beats.spoke, "clients")
    report.add("left_behind", soak.left_behind, "connections")
    report.add("transitions", transitions, "transitions")
    report.add("most_awake", checks.most_awake, "connections")
    report.add("daemon_mb", [sample.daemon / 1e6 for sample in checks.samples], "MB")
    report.add("maps_mb", [sample.maps / 1e6 for sample in checks.samples], "MB")
    for state, looks in sorted(checks.states.items()):
        report.add(f"looks_with_{state.lower()}", looks, "looks")
    report.problems += [f"{finding.at:.1f} s, {finding.fault}: {finding.what}" for finding in checks.findings[:20]]
    if log is not None:
        Path(log).write_text(written(report, soak.suffered, checks, started))
    return report
