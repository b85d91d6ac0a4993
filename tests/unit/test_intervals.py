# SPDX-License-Identifier: Apache-2.0
"""Quiet intervals of counted silences: the estimate, the optimum, and what is recommended, by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from spark import intervals
from spark.intervals import Costs, Curve, Step, class_begin_s, class_number


def test_a_class_begins_where_the_one_before_ends() -> None:
    assert (class_number(0), class_number(0.001), class_begin_s(1)) == (0, 1, 0.001)
    for number in range(1, 600):
        assert class_number(class_begin_s(number)) == number
    assert class_number(1.024) == class_number(1.06) == class_number(1.02) + 1


# -- the estimate -----------------------------------------------------------------------------------------------------


def row(number: int, **given: int) -> dict[str, int]:
    return {"class": number, **dict.fromkeys(intervals.KINDS, 0), **given}


def counted(*rows: dict[str, int]) -> dict[int, dict[str, int]]:
    return {one["class"]: one for one in rows}


def test_waking_and_closing_compete_and_who_is_censored_is_at_risk_for_half_a_class() -> None:
    at = class_number(64)
    rows = counted(
        row(at, starts=10, entered=10, woke=4, closed=1),
        row(at + 1, censored=2, woke=2),
        row(at + 2, entered=3, moved=1, woke=1, closed=1),
    )
    curve = intervals.curve_of(rows, class_begin_s(at))
    assert curve.gaps == 10
    assert curve.at_risk == [10, 5, 1 + 3 - 1]
    assert curve.silent == pytest.approx([1, 0.5, 0.5 * (1 - 2 / 4), 0.25 * (1 - 2 / 3)])
    assert curve.woken == pytest.approx([0, 0.4, 0.4 + 0.5 * 2 / 4, 0.65 + 0.25 / 3])
    width = [class_begin_s(at + i + 1) - class_begin_s(at + i) for i in range(3)]
    assert curve.seconds(1e9) == pytest.approx(0.75 * width[0] + 0.375 * width[1] + (0.25 + 0.25 / 3) / 2 * width[2])
    assert curve.wakes(class_begin_s(at)) == pytest.approx(0.65 + 0.25 / 3)
    assert (curve.seconds(1), curve.wakes(1e9)) == (0, 0)
    one = intervals.curve_of(counted(row(at, starts=1, entered=1, woke=1)), 64)
    assert (one.gaps, one.silent) == (1, [1, 0])
    assert intervals.curve_of({}, 64).gaps == 0


def test_shorter_silences_than_can_be_judged_do_not_count() -> None:
    at = class_number(64)
    rows = counted(row(at - 20, starts=5, entered=5, woke=3), row(at, starts=10, entered=10, woke=6))
    curve = intervals.curve_of(rows, class_begin_s(at))
    assert (curve.gaps, curve.at_risk[0]) == (12, 12)


def test_of_censored_silences_the_mean_is_found_where_leaving_them_out_makes_it_short() -> None:
    """Exponential silences of 3,600 s on average, of which each is watched for an hour at most, at random."""
    rng = random.Random(5)
    table: dict[int, dict[str, int]] = {}
    ended = list[float]()
    for _ in range(20_000):
        gap, watched = 64 + rng.expovariate(1 / 3600), 64 + rng.uniform(0, 3600)
        table.setdefault(class_number(64), row(class_number(64)))["starts"] += 1
        table[class_number(64)]["entered"] += 1
        last = class_number(min(gap, watched))
        table.setdefault(last, row(last))["woke" if gap < watched else "censored"] += 1
        if gap < watched:
            ended.append(gap)
    curve = intervals.curve_of(table, 64)
    for age in (100, 600, 1800, 3000):
        assert curve._at(curve.silent, age) == pytest.approx(math.exp(-(age - 64) / 3600), abs=0.01)
    naive = sum(gap > 1800 for gap in ended) / len(ended)
    assert naive < 0.6 * math.exp(-(1800 - 64) / 3600)


# -- the optimum ------------------------------------------------------------------------------------------------------


def test_steps_of_ski_rental_in_the_wrong_order_are_one() -> None:
    steps = [Step("a", 10, 1000), Step("b", 10, 600), Step("c", 1, 500)]
    assert intervals.ski_rental(steps) == [80, 80, 500]
    assert intervals.ski_rental([Step("a", 0, 1)]) == [math.inf]


def test_costs_are_those_of_the_states() -> None:
    costs = Costs()
    steps = costs.steps(persistent=False)
    assert [step.name for step in steps] == list(intervals.STEPS)
    assert sum(step.saved for step in steps) == costs.active_bytes - costs.sleep_bytes
    assert sum(step.wake for step in steps) == pytest.approx(costs.sleep_wake_us * costs.byte_s_per_us)
    assert [step.name for step in costs.steps(persistent=True)] == ["active_quiet", "idle_quiet"]


def curve_by_hand(edges: Iterable[float], gaps: Sequence[float], truncated_s: float) -> Curve:
    """Of complete silences, without classes."""
    edges = list(edges)
    silent = [sum(gap >= edge for gap in gaps) / len(gaps) for edge in edges]
    seconds = [sum(min(gap, edge) - truncated_s for gap in gaps) / len(gaps) for edge in edges]
    return Curve(len(gaps), edges, silent, seconds, [1 - share for share in silent], [])


def test_the_cheapest_intervals_are_found_and_none_is_shorter_than_the_one_before() -> None:
    gaps = [12.0, 12.0, 12.0, 40.0, 100.0]
    curve = curve_by_hand([10, 20, 50, 200], gaps, 10)
    # By hand, of all five: waking costs 30 times 10, 5, or 0 s ... of the memory; after 20 s two are left.
    first, second = Step("a", 1, 30), Step("b", 1, 5)
    assert [curve.cost(first, at) for at in (10, 20, 50, 200)] == pytest.approx([150, 26 + 60, 76 + 30, 126])
    assert [curve.cost(second, at) for at in (10, 20, 50, 200)] == pytest.approx([25, 26 + 10, 76 + 5, 126])
    assert intervals.thresholds([first], [curve], [10, 20, 50, 200]) == [20]
    assert intervals.thresholds([second], [curve], [10, 20, 50, 200]) == [10]
    assert intervals.thresholds([first, second], [curve] * 2, [10, 20, 50, 200]) == [20, 20], "86 + 36 < 150 + 25"
    assert intervals.thresholds([second, first], [curve] * 2, [10, 20, 50, 200]) == [10, 20]


def test_with_hindsight_each_goes_at_once_to_where_it_costs_least() -> None:
    steps = [Step("active_quiet", 10, 100), Step("standby_quiet", 1, 50)]
    curve = Curve(2, [0, 10, 90], [1, 0.5, 0], [0, 0, 0], [0, 0.5, 1], [])
    # Of two gaps one is silent for 5 s: 55 awake, 105 in STANDBY. The other is for 50 s: 550 or 150 or 150.
    assert intervals.hindsight(steps, curve, curve) == pytest.approx(55 + 150)
    nobody = Curve(0, [0, 10, 90], [1, 1, 1], [0, 0, 0], [0, 0, 0], [])
    assert intervals.hindsight(steps, nobody, curve) == pytest.approx(5 + 50), "who had no server is in STANDBY already"


# -- plans of counts --------------------------------------------------------------------------------------------------


def of_gaps(gaps: Sequence[float], begins_s: float, part: int, linked: bool = True) -> list[dict[str, Any]]:
    """Rows of `counts`, of silences that all wake."""
    table = {class_number(begins_s): row(class_number(begins_s), starts=len(gaps), entered=len(gaps))}
    for gap in gaps:
        table.setdefault(class_number(gap), row(class_number(gap)))["woke"] += 1
    return [one | {"part": part, "linked": linked} for one in table.values()]


FORCE: dict[str, Any] = {
    "service": "web", "active_quiet": 60_000, "standby_quiet": 120_000, "idle_quiet": 3_600_000,
    "active_quiet_steps": 9, "standby_quiet_steps": 9, "idle_quiet_steps": 9,
    "linked_ms": 60_010, "least_ms": 60_010, "persistent": False,
}  # fmt: skip


def test_an_interval_that_was_never_tried_is_not_recommended() -> None:
    """All are silent for hours: the sooner they go down the better. How many pause for less than 60 s is not known."""
    rng = random.Random(3)
    rows = [one for part in (0, 1) for one in of_gaps([rng.uniform(20_000, 60_000) for _ in range(500)], 60.01, part)]
    made = intervals.plan(rows, FORCE, 10, Costs())
    assert [row["optimum_s"] for row in made.intervals] == [60] * 3
    assert [row["bound"] for row in made.intervals] == ["lower"] * 3
    assert made.costs["truncated_s"] == 60
    assert made.costs["cost_held_out_optimum"] == made.costs["cost_held_out_best"] < made.costs["cost_held_out_now"]
    assert made.distribution[0]["from_s"] == 60
    same = FORCE | {"standby_quiet": 60_010, "idle_quiet": 60_020}
    again = intervals.plan(rows, same, 10, Costs())
    assert (again.costs["recommended"], [row["recommended_s"] for row in again.intervals]) == (False, [None] * 3)
    assert again.costs["reason"] == "the cost of the days held out falls by less than 5%"


def test_where_habits_are_far_apart_the_optimum_is_near_what_hindsight_gives() -> None:
    rng = random.Random(4)
    gaps = [rng.uniform(100, 105) if rng.random() < 0.95 else rng.uniform(90_000, 400_000) for _ in range(4000)]
    rows = of_gaps(gaps[:3000], 60, 0) + of_gaps(gaps[3000:], 60, 1)
    made = intervals.plan(rows, FORCE, 10, Costs())
    assert [row["optimum_s"] for row in made.intervals] == pytest.approx([107] * 3, abs=3)
    costs = made.costs
    assert costs["cost_held_out_offline"] <= costs["cost_held_out_optimum"] <= 1.05 * costs["cost_held_out_offline"]
    assert costs["cost_held_out_ski_rental"] <= 2 * costs["cost_held_out_offline"]


def test_where_waking_costs_too_much_nobody_goes_down_within_what_was_seen() -> None:
    rng = random.Random(6)
    rows = [one for part in (0, 1) for one in of_gaps([60 + rng.expovariate(0.1) for _ in range(500)], 60, part)]
    made = intervals.plan(rows, FORCE | {"idle_quiet": None}, 10, Costs(byte_s_per_us=1e9))
    assert [row["bound"] for row in made.intervals] == ["upper"] * 3
    assert made.costs["recommended"]
    assert made.intervals[2]["recommended_s"] is None, "it is never now"
    assert made.intervals[0]["recommended_s"] >= made.costs["seen_s"]


def test_a_few_silences_are_no_reason_for_a_change_and_a_persistent_service_has_no_standby() -> None:
    rows = [*of_gaps([20_000.0] * 500, 60, 0), *of_gaps([20_000.0] * 100, 60, 1)]
    made = intervals.plan(rows, FORCE | {"persistent": True}, 10, Costs())
    assert [row["interval"] for row in made.intervals] == ["active_quiet", "idle_quiet"]
    assert (made.costs["recommended"], made.costs["held_out_gaps"]) == (False, 100)
    assert made.costs["reason"] == "fewer than 200 silences in the days held out"


def test_where_servers_leave_first_only_the_socket_s_and_the_record_s_intervals_are_judged() -> None:
    rows = [one for part in (0, 1) for one in of_gaps([10.0, 20_000.0] * 300, 1, part, linked=False)]
    force = FORCE | {"active_quiet": None, "linked_ms": None, "least_ms": 1000, "active_quiet_steps": 0}
    made = intervals.plan(rows, force, 10, Costs())
    assert [row["interval"] for row in made.intervals] == ["standby_quiet", "idle_quiet"]
    assert made.costs["gaps"] == 1200
    assert made.intervals[0]["optimum_s"] == pytest.approx(10, abs=1)
    one = row(class_number(60), starts=1, entered=1, censored=1) | {"part": 1, "linked": True}
    alone = intervals.plan([one], FORCE, 1, Costs())
    assert (alone.costs["recommended"], alone.costs["gaps"]) == (False, 1)
