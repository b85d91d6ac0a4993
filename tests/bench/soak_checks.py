# SPDX-License-Identifier: Apache-2.0
"""What `roost bench soak` holds against the appliance: the invariants of the design, each a function that is called
after every fault and in between, by the number that it has in DESIGN.md's list; and the findings."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from appliance.peers.habits import QUESTIONS_END
from control.core.states import LEGAL, Cause, State, transition_text
from tests.bench.memory import memory, tcp_counts
from tests.bench.soak_faults import NOTHING, Cost
from tests.bench.soak_scene import KEEPIDLE_S, KEEPINTVL_S, Group, Habit, Scene

OTHER_DESCRIPTORS: Final = 400
"""Of the daemon: maps, programs, listeners, the database's, the API's, and what comes while they are counted."""
DESCRIPTORS_EACH: Final = 2
SILENCE_S: Final = KEEPIDLE_S + 2 * KEEPINTVL_S
"""Without an ACK for so long, a client has sent a probe at least once more in vain."""
CORRUPT: Final = ("wrong answer", "answer to nothing")
SHOWN: Final = 5
"""Findings of one kind that are described one by one, each time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """at: seconds since the beginning. fault: the last one before."""

    at: float
    fault: str
    what: str


@dataclass(slots=True)
class Window:
    """A fault, from its begin until all was well again; time.monotonic."""

    name: str
    cost: Cost
    began: float
    ended: float = float("inf")

    def has(self, at: float) -> bool:
        return self.began <= at <= self.ended + 1.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A connection of a real client that has ended, as its client saw it (appliance.peers.habits)."""

    name: str
    reason: str
    quiet_s: float
    waited_s: float | None
    unheard_bytes: int
    at: float


def excuse(end: Ended, habit: Habit, windows: list[Window]) -> Window | None:
    """The fault whose cost it is; None: it must not be."""
    is_corrupt = end.reason.startswith(CORRUPT)
    # One whose parts come further apart than active_quiet has two links (docs/configuration.md).
    if is_corrupt and not (QUESTIONS_END in end.reason and end.quiet_s > habit.quiet[0]):
        return None
    asked = end.at - end.waited_s if end.waited_s is not None else end.at
    for window in reversed(windows):
        if is_corrupt:
            if window.cost.silent and (window.has(end.at) or window.has(end.at - end.quiet_s)):
                return window
            continue
        during = window.has(end.at) or window.has(asked)
        # A client that waits for an answer is awake, for however long it has said nothing.
        asleep = end.quiet_s > habit.awake_s and end.waited_s is None
        if during and window.cost.awake and not asleep:
            return window
        had_row = window.began - (end.at - end.quiet_s) > habit.row_s
        if during and window.cost.idle and not had_row:
            return window
        if during and window.cost.linked == habit.server:
            persistent = habit.service.get("interface") == "persistent"
            if persistent or not asleep:
                return window
    return None


@dataclass(slots=True)
class Sample:
    """Memory of the appliance at a moment, bytes; at: seconds since the beginning."""

    at: float
    daemon: int
    maps: int
    sockets: int
    awake: int
    pid: int

    @property
    def lasting(self) -> int:
        """What does not come and go with the connections that are awake."""
        return self.daemon + self.maps


@dataclass
class Checks:
    scene: Scene
    began: float = field(default_factory=time.monotonic)
    windows: list[Window] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    points: list[int] = field(default_factory=list)
    """What is compared in the end (soak.growth): lasting memory, bytes."""
    ends: Counter[str] = field(default_factory=Counter)
    """Connections that faults have cost, by fault."""
    lost_connections: int = 0
    lost_bytes: int = 0
    resets: int = 0
    resets_of_faults: int = 0
    unanswered_keepalives: int = 0
    illegal_transitions: int = 0
    longest_ms: int = 0
    most_awake: int = 0
    states: Counter[str] = field(default_factory=Counter)
    """In how many looks a state was in use."""
    _resets: int = 0
    _offences: dict[str, int] = field(default_factory=dict)
    _unheard: int = 0
    _beats: int = 0
    _gone: int = 0
    _counted: dict[str, int] = field(default_factory=dict)
    _counted_of: int = 0
    """The process."""

    def find(self, what: str) -> None:
        fault = self.windows[-1].name if self.windows else "-"
        self.findings.append(Finding(time.monotonic() - self.began, fault, what))

    def find_all(self, whats: list[str]) -> None:
        """The first of them each, and how many more there are."""
        for what in whats[:SHOWN]:
            self.find(what)
        if len(whats) > SHOWN:
            self.find(f"and {len(whats) - SHOWN:,} more like these")

    def _silent_since(self) -> float:
        """When a fault that may leave keep-alives unanswered was over last; inf: it is not."""
        return max((window.ended for window in self.windows if window.cost.silent), default=0.0)

    # 1 and 5

    def ended(self, group: Group, looked: dict[str, Any]) -> None:
        """1. Every byte reaches its end once, in order; no connection ends but where a fault may cost it.
        5. A sleeping client notices nothing of a daemon that is away."""
        bad = []
        for end in (Ended(*row) for row in looked["ended"]):
            if (window := excuse(end, group.habit, self.windows)) is not None:
                self.ends[window.name] += 1
                continue
            self.lost_connections += 1
            self.lost_bytes += end.unheard_bytes
            asked = f", {end.waited_s:.1f} s after a question" if end.waited_s is not None else ""
            bad.append(f"1: {group.habit.name} {end.name} ended ({end.reason}) at {end.at - self.began:.1f} s, "
                       f"{end.quiet_s:.1f} s after its last byte{asked}")  # fmt: skip
        self.find_all(bad)
        self.longest_ms = max(self.longest_ms, looked["longest_ms"])

    def clients(self) -> None:
        silence_ms = SILENCE_S * 1000
        for group in self.scene.groups:
            looked = group.ask("look", silence_ms=silence_ms)
            self.ended(group, looked)
            if looked["silent"] and time.monotonic() - self._silent_since() > SILENCE_S:
                self.unanswered_keepalives += looked["silent"]
                self.find(f"5: {looked['silent']:,} of {group.habit.name} heard nothing for more than {SILENCE_S} s")

    # 2

    def no_resets(self, cost: Cost = NOTHING) -> None:
        """2. No RST leaves the appliance for a managed connection unless an end caused it. cost: of what was since the
        last time."""
        heard = self.scene.resets()
        new, self._resets = heard - self._resets, heard
        if not new:
            return
        if cost.resets:
            self.resets_of_faults += new
            return
        self.resets += new
        self.find(f"2: {new:,} RSTs for real clients")

    # 3

    def descriptors(self) -> None:
        """3. A sleeping connection costs no descriptor and no socket."""
        box = self.scene.box
        before = box.status()
        if before is None:
            return
        descriptors = len(list(Path(f"/proc/{box.daemon.pid}/fd").iterdir()))
        with self.scene.lab.enter("box"):
            sockets, _ = tcp_counts(Path("/proc/thread-self/net/sockstat").read_text())
        after = box.status() or before
        most = DESCRIPTORS_EACH * max(before["awake"], after["awake"]) * 5 // 4 + OTHER_DESCRIPTORS
        for what, number in (("descriptors", descriptors), ("sockets", sockets)):
            if number > most:
                counted = [(one["awake"], one["counters"]["awake"]) for one in (before, after)]
                self.find(f"3: the appliance has {number:,} {what}; awake, by the dispatcher and the engine: {counted}")

    # 4

    def forged(self) -> None:
        """4. What an outsider forges wakes none: no simulated client woke while all that came in their names was
        forged."""
        for began, ended in self.scene.fleet.forged:
            ((woken, example),) = self.scene.database.execute(f"""
                SELECT count(DISTINCT id), min(id) FROM history
                WHERE at BETWEEN {began} AND {ended} AND cause = {Cause.CLIENT_DATA}
                    AND service = (SELECT "index" FROM services WHERE name = 'fleet')
            """)  # fmt: skip
            if woken:
                self.find(f"4: {woken:,} simulated clients woke by forged segments, one of them connection {example}")

    # 5, of the simulated ones

    def fleet(self) -> None:
        """5. Keep-alives of simulated clients are answered, whatever happens; and right in every field (1)."""
        fleet = self.scene.fleet
        if fleet.error is not None:
            raise RuntimeError(f"the simulated clients have stopped: {fleet.error}") from fleet.error
        new, self._beats = fleet.unanswered[self._beats :], len(fleet.unanswered)
        for at, number in new:
            self.unanswered_keepalives += number
            self.find(f"5: {number:,} keep-alives of simulated clients were not answered until {at - self.began:.1f} s")
        unheard, self._unheard = fleet.beats.unheard - self._unheard, fleet.beats.unheard
        if unheard:
            self.find(f"1: {unheard:,} simulated clients spoke and had no answer")
        if gone := fleet.gone() - self._gone:
            self._gone += gone
            self.lost_connections += gone
            self.find(f"1: {gone:,} simulated clients have lost their connections")
        offences = self.scene.simulator.offences()
        for kind, number in offences.items():
            more = number - self._offences.get(kind, 0)
            if more:
                first = next(one for one in self.scene.simulator.first_offences() if one.kind == kind)
                self.find(f"1: {more:,} frames to simulated clients were wrong: {kind}; the first was for client "
                          f"{first.client}: {first.frame.hex()}")  # fmt: skip
        self._offences = offences

    # 6

    def legal(self, status: dict[str, Any]) -> None:
        """6. What the control plane itself counts of illegal, lost and dropped transitions. 1. Of sleepers whose row
        was not to be had when they were to wake."""
        counted = {name: status["control"][name] for name in ("illegal", "lost_records")}
        counted["dropped_history"] = status["store"]["dropped_history"]
        before = self._counted if self._counted_of == status["pid"] else {}
        for name, number in counted.items():
            if more := number - before.get(name, 0):
                self.illegal_transitions += more if name != "lost_records" else 0
                self.find(f"6: the daemon counts {more:,} {name}")
        self._counted, self._counted_of = counted, status["pid"]

    def history(self) -> int:
        """6. Every transition is in the history exactly once, with its cause: of every connection, each begins where
        the one before it ended, and all are legal. How many there are.

        A row of the store that is put back into new tables is a transition only where it was not known to sleep, or
        has its server's leg: its connection then begins again."""
        again = f'"from" = {State.NONE} AND cause = {Cause.RESTORE} AND before = {State.SLEEP}'
        rows = self.scene.database.execute(f"""
            SELECT before, "from", "to", cause, count(*), min(id), {again} FROM (
                SELECT id, "from", "to", cause,
                       coalesce(lag("to") OVER (PARTITION BY id ORDER BY seq), {State.NONE}) AS before FROM history
            ) steps GROUP BY 1, 2, 3, 4, 7
        """)  # fmt: skip
        for before, source, target, cause, number, example, put_back in rows:
            step = transition_text(source, target, cause)
            if (source, target, cause) not in LEGAL:
                self.illegal_transitions += number
                self.find(f"6: {number:,} transitions {step}, one of them of connection {example}")
            elif before != source and not put_back:
                self.illegal_transitions += number
                self.find(f"6: {number:,} times was {State(before).label}, then {step}; one is connection {example}")
        return sum(row[4] for row in rows)

    # 7

    def sample(self, status: dict[str, Any]) -> Sample:
        """7. Memory is bounded: what the appliance takes now."""
        taken = memory(self.scene.lab, self.scene.box.daemon)
        self.samples.append(Sample(time.monotonic() - self.began, taken.daemon, taken.maps, taken.sockets,
                                   status["awake"], status["pid"]))  # fmt: skip
        self.most_awake = max(self.most_awake, status["awake"])
        self.states.update(state for state, number in status["connections"].items() if number)
        return self.samples[-1]

    # 9

    def owner(self) -> None:
        """9. A database and its connections have one owner."""
        number = len(self.scene.database.execute("SELECT epoch FROM owner"))
        if number != 1:
            self.find(f"9: the database has {number} owners")

    def all(self, cost: Cost = NOTHING) -> None:
        """Every one that can be looked at now. cost: of the fault that is over."""
        self.clients()
        self.fleet()
        self.no_resets(cost)
        self.descriptors()
        if (status := self.scene.box.status()) is None:
            self.find("the daemon does not answer its operators")
            return
        self.legal(status)
        self.sample(status)
        self.owner()
