# SPDX-License-Identifier: Apache-2.0
"""For how long connections should be silent before they go down a step: active_quiet, standby_quiet, idle_quiet.

This is ski rental with several slopes: to stay in a state costs memory each second, to leave it costs processor time at
the wake-up. The cost of an interval t of one step, which saves d bytes and whose wake-up costs w, is for each silence

    d * E[seconds silent until t, at most] + w * P[it is silent for t, and wakes afterwards]

and the costs of the steps add up, so that one scan over the classes of silences finds the best t of each. Only what is
above the memory of SLEEP is counted: the rest is the same whatever the intervals are.

A silence ends by waking or by the connection's end: these are competing risks (Aalen and Johansen, 1978), for whoever
is closed asleep was never woken. A silence whose end was not seen is censored. One is seen from the moment the
connection leaves ACTIVE, not from its last byte: it is truncated on the left. So each stay enters the count of those at
risk at the age of its silence when it began, and leaves it at the age when it ended; the stays of one silence need not
be brought together. What no connection shows, since it is shorter than the interval in force, is not estimated:
`truncated_s` is the shortest interval that can be judged, and costs are those of a silence from there on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

PER_OCTAVE: Final = 16
LEAST_GAPS: Final = 200
"""In the days held out, for a recommendation."""
LEAST_GAIN: Final = 0.05
"""By which share the cost of the days held out has to fall, for a recommendation."""

STEPS: Final = ("active_quiet", "standby_quiet", "idle_quiet")
KINDS: Final = ("starts", "entered", "moved", "woke", "closed", "censored")


class Step(NamedTuple):
    """saved: bytes that the lower state takes less; wake: what waking from it costs more, byte-seconds."""

    name: str
    saved: float
    wake: float

    @property
    def break_even_s(self) -> float:
        """After so long the memory has cost as much as the wake-up would: ski rental's rule."""
        return self.wake / self.saved if self.saved > 0 else math.inf


@dataclass(frozen=True)
class Costs:
    """Bytes of a connection in each state; processor time (µs) of going down to a state and of waking from it, in all.

    From docs/performance.md: a kernel socket takes 3,584 B (`hold`), an awake connection one for the client and, in
    ACTIVE, one for its server, beside 504 B of the engine (sizeof(struct roost_conn), x86-64); IDLE 206.5 and 218 B
    (`hold --connections 100000`); SLEEP 46.5 B (`hold --connections 10000000`; the row on the disk is not counted).
    A link: half of a new connection, which is two sockets made and ended, at 10,800 a second on the engine's processor
    (`relay`). A freeze and a thaw: 189,100 of both a second on two processors (`churn`). SLEEP: 7,800 a second put to
    sleep and 15,300 woken (`control`), a processor each; the other one makes the load, so these are upper bounds.
    byte_s_per_us: what a microsecond of a processor is worth. The machine that was measured has 12 GiB for each
    processor, so both are used up together at this price. What a client waits (0.08 ms from IDLE, `wake`) and what a
    server pays for a new link are not in these figures: who minds gives a greater wake-up time."""

    active_bytes: float = 7672
    standby_bytes: float = 4088
    idle_bytes: float = 212
    sleep_bytes: float = 46.5
    standby_wake_us: float = 46
    idle_wake_us: float = 46 + 21
    sleep_wake_us: float = 46 + 21 + 194
    byte_s_per_us: float = 12 * 2**30 / 1e6

    def steps(self, persistent: bool) -> list[Step]:
        """Of a persistent service both legs of a connection sleep, no link is made, and there is no STANDBY."""
        link = self.standby_wake_us
        if persistent:
            bytes_ = [self.active_bytes, 2 * self.idle_bytes, 2 * self.sleep_bytes]
            wakes = [0.0, 2 * (self.idle_wake_us - link), 2 * (self.sleep_wake_us - link)]
        else:
            bytes_ = [self.active_bytes, self.standby_bytes, self.idle_bytes, self.sleep_bytes]
            wakes = [0.0, link, self.idle_wake_us, self.sleep_wake_us]
        names = (STEPS[0], STEPS[2]) if persistent else STEPS
        return [
            Step(name, bytes_[at] - bytes_[at + 1], (wakes[at + 1] - wakes[at]) * self.byte_s_per_us)
            for at, name in enumerate(names)
        ]


Counted = Mapping[int, Mapping[str, int]]
"""By class: a row of `counts`."""


def class_number(age_s: float) -> int:
    """As spark.jobs.dwell.class_of."""
    return 0 if age_s < 0.001 else math.floor(math.log2(age_s * 1000) * PER_OCTAVE + 1e-9) + 1


def class_begin_s(number: int) -> float:
    return 0.0 if number <= 0 else 2 ** ((number - 1) / PER_OCTAVE) / 1000


@dataclass
class Curve:
    """Of the silences that last for edges[0] at least: how many there are, and at each age (s) the share that is
    silent, how long one is silent from edges[0] to that age on average, and the share that wakes until then."""

    gaps: int
    edges: list[float]
    silent: list[float]
    silent_s: list[float]
    woken: list[float]
    at_risk: list[float]

    def cost(self, step: Step, after_s: float) -> float:
        """Byte-seconds for all gaps: of the memory until then, and of wake-ups since then."""
        return self.gaps * (step.saved * self.seconds(after_s) + step.wake * self.wakes(after_s))

    def seconds(self, after_s: float) -> float:
        return self._at(self.silent_s, after_s)

    def wakes(self, after_s: float) -> float:
        """The share of gaps that wakes after this age."""
        return self.woken[-1] - self._at(self.woken, after_s)

    def _at(self, values: Sequence[float], age_s: float) -> float:
        """Straight between two edges."""
        if age_s >= self.edges[-1]:
            return values[-1]
        at = bisect_right(self.edges, age_s) - 1
        if at < 0:
            return values[0]
        share = (age_s - self.edges[at]) / (self.edges[at + 1] - self.edges[at])
        return values[at] + share * (values[at + 1] - values[at])


def curve_of(counted: Counted, truncated_s: float) -> Curve:
    """Who enters in a class is at risk in all of it, who is censored in half of it."""
    first = class_number(truncated_s)
    at_risk = gaps = 0
    for number, row in counted.items():
        gaps += row["starts"]
        if number < first:
            ended = row["woke"] + row["closed"] + row["censored"]
            gaps -= ended
            at_risk += row["entered"] - row["moved"] - ended
    curve = Curve(max(gaps, 0), [truncated_s], [1.0], [0.0], [0.0], [])
    none = dict.fromkeys(KINDS, 0)
    for number in range(first, max(counted, default=-1) + 1):
        row = counted.get(number, none)
        there = at_risk + row["entered"] - row["moved"]
        ended = row["woke"] + row["closed"]
        exposed = max(there - row["censored"] / 2, ended)
        ends, wakes = (ended / exposed, row["woke"] / exposed) if exposed > 0 else (0.0, 0.0)
        share = curve.silent[-1]
        end_s = class_begin_s(number + 1)
        curve.silent_s.append(curve.silent_s[-1] + share * (1 - ends / 2) * (end_s - curve.edges[-1]))
        curve.silent.append(share * (1 - ends))
        curve.woken.append(curve.woken[-1] + share * wakes)
        curve.edges.append(end_s)
        curve.at_risk.append(float(there))
        at_risk = there - row["woke"] - row["closed"] - row["censored"]
    return curve


def thresholds(steps: Sequence[Step], curves: Sequence[Curve], candidates: Sequence[float]) -> list[float]:
    """The cheapest ones, of which none is shorter than the one before. curves: of those that each step is for.
    candidates: ascending."""
    costs = [0.0] * len(candidates)
    chosen: list[list[int]] = []
    for step, curve in zip(steps, curves, strict=True):
        at, best = 0, list[int]()
        for number, cost in enumerate(costs):
            at = number if cost < costs[at] else at
            best.append(at)
        chosen.append(best)
        costs = [costs[best[at]] + curve.cost(step, after_s) for at, after_s in enumerate(candidates)]
    at = min(range(len(candidates)), key=costs.__getitem__)
    found = list[float]()
    for best in reversed(chosen):
        found.insert(0, candidates[at])
        at = best[at]
    return found


def ski_rental(steps: Sequence[Step]) -> list[float]:
    """When the memory of each step has cost as much as its wake-up. Steps that would be in the wrong order are one."""
    pools: list[tuple[Step, int]] = []
    for step in steps:
        pool, size = step, 1
        while pools and pools[-1][0].break_even_s >= pool.break_even_s:
            last, before = pools.pop()
            pool, size = Step(last.name, last.saved + pool.saved, last.wake + pool.wake), size + before
        pools.append((pool, size))
    return [pool.break_even_s for pool, size in pools for _ in range(size)]


def hindsight(steps: Sequence[Step], linked: Curve, everyone: Curve) -> float:
    """Byte-seconds for all gaps, if at truncated_s each went at once to the state that is the cheapest for it, and who
    never wakes to the last one. Less is not possible. Only who is linked has the first step before them."""

    def least(of: Sequence[Step], silent_s: float) -> float:
        return min(
            sum(step.wake for step in of[:depth]) + silent_s * sum(step.saved for step in of[depth:])
            for depth in range(len(of) + 1)
        )

    def total(curve: Curve, cost: Callable[[float], float]) -> float:
        return float(curve.gaps) * sum(
            (curve.woken[at + 1] - curve.woken[at]) * cost((begin + end) / 2 - curve.edges[0])
            for at, (begin, end) in enumerate(zip(curve.edges, curve.edges[1:], strict=False))
        )

    rest = [step for step in steps if step.name != STEPS[0]]
    first_step = total(linked, lambda silent_s: least(steps, silent_s) - least(rest, silent_s)) if linked.gaps else 0.0
    return total(everyone, lambda silent_s: least(rest, silent_s)) + first_step


def whole(seconds: float) -> float:
    """As an interval is written: those of 10 s or more in whole seconds."""
    return float(math.floor(seconds)) if seconds >= 10 else round(seconds, 3)


class Part(NamedTuple):
    """Days of the record: those that left ACTIVE by `quiet`, and all."""

    linked: Curve
    everyone: Curve

    def of(self, step: Step) -> Curve:
        return self.linked if step.name == STEPS[0] else self.everyone

    def cost(self, steps: Sequence[Step], after_s: Sequence[float]) -> float | None:
        """Of a gap, byte-seconds."""
        gaps = self.everyone.gaps
        total = sum(self.of(step).cost(step, at) for step, at in zip(steps, after_s, strict=True))
        return float(total) / gaps if gaps else None


@dataclass
class Plan:
    """Of a service. intervals, costs, distribution: rows of the tables."""

    intervals: list[dict[str, Any]]
    costs: dict[str, Any]
    distribution: list[dict[str, Any]]


def plan(rows: Sequence[Mapping[str, Any]], force: Mapping[str, Any], days: float, costs: Costs) -> Plan:
    """rows: of `counts`, and force: of `in_force`, for one service; days: how long the record is."""
    linked_ms = force["linked_ms"]
    least_ms = linked_ms if linked_ms is not None else force["least_ms"]
    truncated_s = whole((least_ms or 0) / 1000)

    def part(*numbers: int) -> Part:
        linked, everyone = (
            _sums(row for row in rows if row["part"] in numbers and (row["linked"] or not only))
            for only in (True, False)
        )
        return Part(*(curve_of(counted, truncated_s) for counted in (linked, everyone)))

    train, held, both = part(0), part(1), part(0, 1)
    steps = [one for one in costs.steps(bool(force["persistent"])) if one.name != STEPS[0] or linked_ms is not None]
    end_s = train.everyone.edges[-1]
    candidates = sorted({truncated_s, *(float(math.ceil(at)) if at >= 10 else at for at in train.everyone.edges[1:])})
    best = thresholds(steps, [train.of(step) for step in steps], candidates)
    now = [math.inf if force[step.name] is None else whole(force[step.name] / 1000) for step in steps]
    never = [math.isinf(before) and after >= end_s for before, after in zip(now, best, strict=True)]
    ski = ski_rental(steps)
    held_best = thresholds(steps, [held.of(step) for step in steps], sorted({truncated_s, *held.everyone.edges[1:]}))
    held_now, held_optimum = held.cost(steps, now), held.cost(steps, best)
    reason = None
    if held.everyone.gaps < LEAST_GAPS:
        reason = f"fewer than {LEAST_GAPS} silences in the days held out"
    elif not held_now or held_optimum is None or held_optimum > (1 - LEAST_GAIN) * held_now:
        reason = f"the cost of the days held out falls by less than {LEAST_GAIN:.0%}"
    totals = {kind: sum(row[kind] for row in rows) for kind in KINDS}
    service = force["service"]
    intervals = [
        {
            "service": service,
            "interval": step.name,
            "steps": force[f"{step.name}_steps"],
            "in_force_s": None if math.isinf(now[at]) else now[at],
            "optimum_s": best[at],
            "recommended_s": None if reason or best[at] == now[at] or never[at] else best[at],
            "bound": "lower" if best[at] <= truncated_s else "upper" if best[at] >= end_s else None,
            "ski_rental_s": None if math.isinf(ski[at]) else ski[at],
            **{
                f"{what}_per_day_{which}": value / days
                for which, after_s in (("now", now[at]), ("optimum", best[at]))
                for what, value in (
                    ("byte_s", both.of(step).gaps * step.saved * both.of(step).seconds(after_s)),
                    ("wakes", both.of(step).gaps * both.of(step).wakes(after_s)),
                )
            },
        }
        for at, step in enumerate(steps)
    ]
    told = {
        "service": service,
        "persistent": bool(force["persistent"]),
        "gaps": both.everyone.gaps,
        "woke": totals["woke"],
        "closed": totals["closed"],
        "censored": totals["censored"],
        "truncated_s": truncated_s,
        "seen_s": end_s,
        "recommended": reason is None,
        "reason": reason,
        "held_out_gaps": held.everyone.gaps,
        **{
            f"cost_{prefix}{which}": of.cost(steps, after_s)
            for prefix, of, own in (("", both, None), ("held_out_", held, held_best))
            for which, after_s in (("now", now), ("optimum", best), ("ski_rental", ski), ("best", own))
            if after_s is not None
        },
        **{
            f"cost_{prefix}offline": hindsight(steps, *of) / of.everyone.gaps if of.everyone.gaps else None
            for prefix, of in (("", both), ("held_out_", held))
        },
    }
    return Plan(intervals, told, _distribution(service, both.everyone, _sums(rows)))


def _sums(rows: Iterable[Mapping[str, Any]]) -> Counted:
    """By class."""
    found: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(KINDS, 0))
    for row in rows:
        for kind in KINDS:
            found[row["class"]][kind] += row[kind]
    return dict(found)


def _distribution(service: str | None, curve: Curve, counted: Counted) -> list[dict[str, Any]]:
    none = dict.fromkeys(KINDS, 0)
    rows = []
    for at, (begin, end) in enumerate(zip(curve.edges, curve.edges[1:], strict=False)):
        row = counted.get(class_number((begin + end) / 2), none)
        ended = {kind: row[kind] for kind in ("woke", "closed", "censored")}
        rows.append(
            {"service": service, "from_s": begin, "to_s": end, "at_risk": curve.at_risk[at], **ended,
             "silent": curve.silent[at + 1], "woken": curve.woken[at + 1]}
        )  # fmt: skip
    return rows
