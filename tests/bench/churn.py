# SPDX-License-Identifier: Apache-2.0
"""What a freeze and a thaw cost, and how many of both the engine does in a second.

Method. Real clients connect and are answered by a real server, then their server links are closed (STANDBY): a client
socket each is what is left. All of them are frozen batch after batch: the clock runs from the call that submits a
batch of ROOST_OP_IDLE to the arrival of the batch's last transition event, so that everything is inside: the commands'
way into C, mark, grace period, snapshot, publish, close, and the events' way out. Then all are thawed the same way by
ROOST_OP_WAKE, by key. A run is one such pass over all connections, and its figure that time divided by their number.

`freeze_busy_us` and `thaw_busy_us` are the part that the engine thread spends in snapshots and in rebuilding, by its
own clock, for each connection.

In life some connections go to sleep while others wake. So half of them are frozen beforehand, and then each run freezes
the one half while it thaws the other, and the other way round, `TURNS` times in all, without a pause: a batch is half
freezes and half thaws, and never are more than `WINDOWS` batches on their way. `operations_per_s` is all that was done
in such a run, freezes and thaws, by the time from the first command to the last event; `pairs_per_s` is half of it, a
pair being one freeze and one thaw.

In the end some clients speak, and must be answered: what was frozen and thawed was alive.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from appliance.engine import Engine, EngineError
from appliance.lab import Lab, SwarmGroup
from appliance.wire import Event, EventType, Op
from control.core.states import Cause, State
from tests.bench.direct import WAN, alarms, names, need_room, running_engine, say, services, until
from tests.bench.figures import Report, Target

PORT = 8000
JOINING = 2000  # at a time: while they join, a client takes two descriptors
PATIENCE_S = 60.0
SPEAKING = 2000  # in the end: each then has a server again
QUIET_S = 7200  # the clients' keep-alives stay out of it
WINDOWS = 2  # batches on their way: the next is at hand when one is done
TURNS = 4  # of each half, in a run that overlaps: the grace period at its end is then a small part of it
FREEZE_US = THAW_US = 25.0
OPERATIONS_PER_S = 120_000


class Table:
    """Where each connection is, as the engine's events tell."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.state: dict[int, int] = {}
        self.key: dict[int, bytes] = {}
        self._left = 0
        self._target: int | None = 0
        self.refused: Counter[int] = Counter()

    def see(self, event: Event) -> None:
        if event.type == EventType.TRANSITION:
            self.state[event.id] = event.to_state
            if event.id not in self.key:
                self.key[event.id] = event.record.key_raw
            if self._target is None or event.to_state == self._target:
                self._left -= 1
        elif event.type == EventType.REFUSED:
            self.refused[event.error] += 1
            self._left -= 1

    def submit(self, op: Op, numbers: Sequence[int]) -> None:
        """One command for each connection: those that wake are named by their keys."""
        if op is Op.WAKE:
            self._engine.submit_many(op, Cause.COMMAND, keys=[self.key[number] for number in numbers])
        else:
            self._engine.submit_many(op, Cause.COMMAND, ids=numbers)

    def move(self, op: Op, numbers: Sequence[int], target: State, what: str) -> float:
        """Submit a batch and wait until all of it is in `target`; the seconds that took."""
        self._left, self._target = len(numbers), target
        began = time.perf_counter()
        self.submit(op, numbers)
        until(self._engine, lambda: self._left <= 0, self.see, PATIENCE_S, what)
        return time.perf_counter() - began

    def flow(self, parts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> float:
        """Freeze the first and thaw the second of each part, and begin each as soon as no more than `WINDOWS` are on
        their way with it; the seconds that took."""
        self._left, self._target = 0, None
        began = time.perf_counter()
        for freezing, thawing in parts:
            both = len(freezing) + len(thawing)
            self._wait((WINDOWS - 1) * both)
            self._left += both
            self.submit(Op.IDLE, freezing)
            self.submit(Op.WAKE, thawing)
        self._wait(0)
        return time.perf_counter() - began

    def _wait(self, left: int) -> None:
        until(self._engine, lambda: self._left <= left, self.see, PATIENCE_S, "freezing and thawing")

    def ids(self, state: State) -> list[int]:
        return [number for number, now in self.state.items() if now == state]


def join(swarm: SwarmGroup, table: Table, engine: Engine, address: str, count: int) -> None:
    """Connect `count` clients and bring them to STANDBY."""
    expected = len(table.ids(State.STANDBY)) + count
    joined = swarm.connect(count, (address, PORT), keepidle_s=QUIET_S)
    if joined.connected != count:
        raise EngineError(f"{joined.connected} of {count} clients connected; failed: {dict(joined.failed)}")
    until(engine, lambda: len(table.state) >= expected, table.see, PATIENCE_S, f"{count} clients accepted")
    table.move(Op.STANDBY, table.ids(State.ACTIVE), State.STANDBY, "clients to STANDBY")


def batches(numbers: Sequence[int], batch: int) -> list[Sequence[int]]:
    return [numbers[start : start + batch] for start in range(0, len(numbers), batch)]


def overlapping(table: Table, batch: int, runs: int) -> list[float]:
    """Freezes and thaws a second of each run, in which one half falls asleep while the other wakes, and back, `TURNS`
    times."""
    numbers = table.ids(State.STANDBY)
    half = len(numbers) // 2
    size = min(batch // 2, half // (2 * WINDOWS)) or 1  # its turn comes again when it is done: freezes go in order
    first, second = batches(numbers[:half], size), batches(numbers[half : 2 * half], size)
    table.move(Op.IDLE, numbers[:half], State.IDLE, "freezing a half")
    speeds = []
    for number in range(1, runs + 1):
        took_s = table.flow([*zip(second, first, strict=True), *zip(first, second, strict=True)] * (TURNS // 2))
        speeds.append(2 * half * TURNS / took_s)
        say(f"overlapping run {number}: {speeds[-1]:,.0f} freezes and thaws a second")
    table.move(Op.WAKE, numbers[:half], State.STANDBY, "thawing a half")
    return speeds


def run(connections: int = 10_000, batch: int = 2000, runs: int = 5) -> Report:
    """Freeze and thaw `connections` connections `runs` times, `batch` commands at once."""
    need_room(connections, others=max(JOINING, SPEAKING))
    report = Report("churn")
    freeze_us, thaw_us, freeze_busy_us, thaw_busy_us = [], [], [], []
    with Lab(clients=connections) as lab:
        server = lab.server(PORT)
        swarm = lab.swarm()
        specs = services(lab, PORT)
        with running_engine(lab, specs, slots=connections * 2, max_awake=connections * 2) as engine:
            table = Table(engine)
            address = lab.address("box", WAN)
            for start in range(0, connections, JOINING):
                join(swarm, table, engine, address, min(JOINING, connections - start))
            numbers = table.ids(State.STANDBY)
            say(f"{len(numbers):,} clients are in STANDBY")
            first = engine.stats()
            for number in range(1, runs + 1):
                before = engine.stats()
                froze_s = sum(
                    table.move(Op.IDLE, part, State.IDLE, "freezing a batch") for part in batches(numbers, batch)
                )
                asleep = table.ids(State.IDLE)
                thawed_s = sum(
                    table.move(Op.WAKE, part, State.STANDBY, "thawing a batch") for part in batches(asleep, batch)
                )
                after = engine.stats()
                frozen, thawed = after["frozen"] - before["frozen"], after["thawed"] - before["thawed"]
                if not frozen or frozen != thawed:
                    raise EngineError(f"{frozen} were frozen and {thawed} thawed; refused: {names(table.refused)}")
                freeze_us.append(froze_s * 1e6 / frozen)
                thaw_us.append(thawed_s * 1e6 / thawed)
                freeze_busy_us.append((after["freeze_ns"] - before["freeze_ns"]) / 1e3 / frozen)
                thaw_busy_us.append((after["thaw_ns"] - before["thaw_ns"]) / 1e3 / thawed)
                say(f"run {number}: freeze {freeze_us[-1]:.1f} µs, thaw {thaw_us[-1]:.1f} µs")
            speeds = overlapping(table, batch, runs)
            last = engine.stats()
            asked = min(SPEAKING, connections)
            said = swarm.say(asked)
            gone = swarm.stats().dead
        swarm.close()
        server.close()
    report.did = (
        f"{connections:,} clients frozen and thawed {runs} times, {batch:,} in a batch, then one half while the other "
        f"was thawed; {asked:,} spoke afterwards"
    )
    report.add("operations_per_s", speeds, "operations/s", Target(at_least=OPERATIONS_PER_S))
    report.add("pairs_per_s", [speed / 2 for speed in speeds], "pairs/s")
    report.add("freeze_us", freeze_us, "µs", Target(at_most=FREEZE_US))
    report.add("thaw_us", thaw_us, "µs", Target(at_most=THAW_US))
    report.add("freeze_busy_us", freeze_busy_us, "µs")
    report.add("thaw_busy_us", thaw_busy_us, "µs")
    report.add("connections", connections, "connections")
    report.add("batch", batch, "commands")
    report.add_zero("refused", table.refused.total(), "commands")
    report.add_zero("unanswered", asked - said.answered, "clients")
    report.add_zero("dead", gone.total(), "clients")
    if table.refused:
        report.problems.append(f"commands were refused: {names(table.refused)}")
    if gone or said.failed:
        report.problems.append(f"clients that lost their connections: {dict(gone)}; not answered: {dict(said.failed)}")
    report.problems += alarms(first, last)
    return report
