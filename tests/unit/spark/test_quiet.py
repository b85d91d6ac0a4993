# SPDX-License-Identifier: Apache-2.0
"""Quiet intervals: what is counted of silences, by hand and by DuckDB; the optimum, by trying all; on held-out days."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from control.core.states import Cause, State
from control.export.columns import HISTORY
from spark import intervals, stays
from spark.intervals import Costs, Step, class_number
from spark.jobs import quiet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_S = 86_400
BEGIN_MS = 1_795_000_000_000 // stays.DAY_MS * stays.DAY_MS

S, C = State, Cause


class Row(NamedTuple):
    """Of a history; at_s, gap_s: since BEGIN_MS, since the last payload byte."""

    id: int
    at_s: float
    source: State
    target: State
    cause: Cause
    gap_s: float
    service: str | None = "web"


def read(spark: SparkSession, tmp_path: Path, rows: Sequence[Row], until_s: float) -> DataFrame:
    """The good stays; rows are numbered in their order."""
    from spark.columns import struct_of

    none, size = pa.nulls(len(rows), pa.string()), len(rows)
    columns = {
        "seq": range(1, size + 1), "id": [row.id for row in rows],
        "at": [BEGIN_MS + round(row.at_s * 1000) for row in rows], "address": ["10.1.1.7"] * size,
        "port": [4000] * size, "service": [row.service for row in rows], "from": [row.source.label for row in rows],
        "to": [row.target.label for row in rows], "cause": [row.cause.label for row in rows], "rx_bytes": [1] * size,
        "tx_bytes": [2] * size, "gap_ms": [round(row.gap_s * 1000) for row in rows], "server": none, "error": none,
        "probes": pa.nulls(size, pa.int32()), "silence_s": pa.nulls(size, pa.int64()),
    }  # fmt: skip
    arrays = [pa.array(columns[field.name], field.type) for field in HISTORY]
    path = tmp_path / "history.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, schema=HISTORY), path)
    history = spark.read.schema(struct_of(HISTORY)).parquet(str(path))
    kept = tmp_path / "stays"
    stays.of(history, [], BEGIN_MS + round(until_s * 1000)).write.parquet(str(kept))
    return stays.good(spark.read.parquet(str(kept)))


def down(number: int, at_s: float, ages: Sequence[float], service: str | None = "web") -> list[Row]:
    """A silence that begins at at_s, by way of STANDBY, IDLE and SLEEP, at these ages."""
    states = (S.ACTIVE, S.STANDBY, S.IDLE, S.SLEEP)
    return [
        Row(number, at_s + age, source, target, C.QUIET, age, service)
        for age, source, target in zip(ages, states, states[1:], strict=False)
    ]


def born(number: int, service: str | None = "web", at_s: float = 0) -> Row:
    return Row(number, at_s, S.NONE, S.ACTIVE, C.CLIENT_CONNECT, 0, service)


# -- what is counted --------------------------------------------------------------------------------------------------


def test_each_silence_enters_and_leaves_at_its_age_whatever_ends_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        # Wakes from IDLE at the age of 300 s, and is silent from 400 on; the record ends at 1000.
        born(1), *down(1, 0, [60, 120]), Row(1, 300, S.IDLE, S.ACTIVE, C.CLIENT_DATA, 300), *down(1, 400, [60, 120]),
        # Closed in STANDBY at the age of 90 s; its service is not known any more.
        born(2, None), *down(2, 0, [60], None), Row(2, 90, S.STANDBY, S.CLOSED, C.CLIENT_CLOSE, 90, None),
        # Its server leaves at the age of 5 s; a server asks for it at 50, when the engine has forgotten its age.
        born(3), Row(3, 5, S.ACTIVE, S.STANDBY, C.SERVER_CLOSE, 5), Row(3, 50, S.STANDBY, S.ACTIVE, C.SERVER_ATTACH, 0),
        # The daemon ends, and this one with it.
        born(4), *down(4, 0, [60]), Row(4, 100, S.STANDBY, S.CLOSED, C.SHUTDOWN, 100),
        # Born asleep, and speaks: this is no silence between bytes.
        Row(5, 10, S.NONE, S.IDLE, C.CLIENT_CONNECT, 10), Row(5, 10, S.IDLE, S.ACTIVE, C.CLIENT_DATA, 10),
        # A rebuilt one could not be linked, and waits: it has woken once.
        born(6), *down(6, 0, [60, 120, 200]), Row(6, 250, S.SLEEP, S.IDLE, C.CLIENT_DATA, 250),
        Row(6, 260, S.IDLE, S.ACTIVE, C.CLIENT_DATA, 260),
        # An operator wakes it: censored, since how long it would have been silent is unknown.
        born(7), *down(7, 0, [60, 120]), Row(7, 130, S.IDLE, S.STANDBY, C.COMMAND, 130),
        Row(7, 140, S.STANDBY, S.IDLE, C.COMMAND, 140), Row(7, 150, S.IDLE, S.ACTIVE, C.COMMAND, 150),
    ]  # fmt: skip
    found = read(spark, tmp_path, rows, 1000)
    counted = quiet.counts(found, BEGIN_MS + 500_000).collect()

    def told(service: str | None, linked: bool, part: int) -> dict[str, dict[int, int]]:
        mine = [row for row in counted if (row["service"], row["linked"], row["part"]) == (service, linked, part)]
        return {
            kind: {row["class"]: row[kind] for row in mine if row[kind]}
            for kind in intervals.KINDS if any(row[kind] for row in mine)
        }  # fmt: skip

    of = {age: class_number(age) for age in (5, 50, 60, 90, 100, 120, 128, 130, 140, 150, 200, 250, 300, 600)}
    assert of[130] == of[128]
    assert of[60] < of[90] < of[100] < of[120]
    web = told("web", True, 0)
    assert web["starts"] == {of[60]: 5}
    assert Counter(web["entered"]) == Counter([of[60]] * 5 + [of[120]] * 3 + [of[200], of[130], of[140]])
    assert Counter(web["moved"]) == Counter([of[120]] * 3 + [of[200], of[130], of[140]])
    assert web["woke"] == {of[250]: 1, of[300]: 1}
    assert Counter(web["censored"]) == Counter([of[100], of[100], of[150]]), "cut at 500 s: at the age of 100"
    assert "closed" not in web
    assert told("web", True, 1) == {
        "entered": {of[100]: 1, of[120]: 1}, "moved": {of[120]: 1}, "censored": {of[600]: 1}
    }  # fmt: skip
    assert told("web", False, 0) == {"starts": {of[5]: 1}, "entered": {of[5]: 1}, "woke": {of[50]: 1}}
    assert told(None, True, 0) == {"starts": {of[60]: 1}, "entered": {of[60]: 1}, "closed": {of[90]: 1}}
    assert len(counted) == len({(row["service"], row["linked"], row["part"], row["class"]) for row in counted})

    by_service = {row["service"]: row.asDict() for row in quiet.in_force(found, BEGIN_MS + 500_000).collect()}
    assert by_service["web"] == {
        "service": "web", "active_quiet": 60_000, "standby_quiet": 120_000, "idle_quiet": 200_000,
        "active_quiet_steps": 5, "standby_quiet_steps": 4, "idle_quiet_steps": 1, "linked_ms": 60_000,
        "least_ms": 18_750, "persistent": False,
    }  # fmt: skip
    assert by_service[None]["standby_quiet"] is None


# -- known habits -----------------------------------------------------------------------------------------------------

IN_FORCE = (30.0, 60.0, 3600.0)
DAYS = 10
SPLIT_S = 7 * DAY_S


class Silence(NamedTuple):
    at_s: float
    gap_s: float
    ends: str


def two_habits(rng: random.Random) -> float:
    """Most pause for one to two minutes, or not at all; the others for hours."""
    if rng.random() < 0.93:
        return rng.choice((rng.uniform(1, 25), rng.uniform(70, 110)))
    return rng.lognormvariate(math.log(4 * 3600), 0.8)


def life(rng: random.Random, number: int, rows: list[Row], silences: list[Silence]) -> None:
    """Of a client for the whole record, which connects again after it was closed."""
    now = round(rng.uniform(0, 600), 3)
    rows.append(born(number, at_s=now))
    while now < DAYS * DAY_S:
        now = round(now + rng.uniform(0.1, 5), 3)
        gap, closes = round(two_habits(rng), 3), rng.random() < 0.02
        silences.append(Silence(now, gap, "closed" if closes else "woke"))
        path = down(number, now, [age for age in IN_FORCE if age <= gap])
        state = path[-1].target if path else S.ACTIVE
        rows += path
        now = round(now + gap, 3)
        if closes:
            rows.append(Row(number, now, state, S.CLOSED, C.CLIENT_CLOSE, gap))
            number += 1000
            rows.append(born(number, at_s=now))
        elif path:
            rows.append(Row(number, now, state, S.ACTIVE, C.CLIENT_DATA, gap))


def true_cost(steps: Sequence[Step], after_s: Sequence[float], silences: Sequence[Silence], least_s: float) -> float:
    """Byte-seconds of a silence from least_s on, by adding them up."""
    total = 0.0
    for silence in silences:
        for step, at in zip(steps, after_s, strict=True):
            total += step.saved * (min(silence.gap_s, at) - least_s)
            if silence.gap_s >= at and silence.ends == "woke":
                total += step.wake
    return total / len(silences)


def true_offline(steps: Sequence[Step], silences: Sequence[Silence], least_s: float) -> float:
    total = 0.0
    for silence in silences:
        if silence.ends == "woke":
            total += min(
                sum(step.wake for step in steps[:depth])
                + sum(step.saved for step in steps[depth:]) * (silence.gap_s - least_s)
                for depth in range(len(steps) + 1)
            )
    return total / len(silences)


@pytest.fixture(scope="module")
def known(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    rng = random.Random(11)
    rows, silences = list[Row](), list[Silence]()
    for number in range(1, 25):
        life(rng, number, rows, silences)
    path = tmp_path_factory.mktemp("quiet")
    rows = sorted((one for one in rows if one.at_s < DAYS * DAY_S), key=lambda one: one.at_s)
    found = read(spark, path, rows, DAYS * DAY_S)
    tables = quiet.tables(found, BEGIN_MS, BEGIN_MS + DAYS * stays.DAY_MS)
    held = [one for one in silences if one.at_s >= SPLIT_S and one.at_s + one.gap_s < DAYS * DAY_S and one.gap_s >= 30]
    return {name: [row.asDict() for row in frame.collect()] for name, frame in tables.items()} | {
        "held": held, "frame": found, "silences": [one for one in silences if one.gap_s >= 30],
    }  # fmt: skip


def test_the_optimum_of_known_habits_is_found_on_days_held_out(known: dict[str, Any]) -> None:
    steps = Costs().steps(persistent=False)
    (costs,), intervals = known["quiet_costs"], known["quiet_intervals"]
    optimum = [row["optimum_s"] for row in intervals]
    assert [row["in_force_s"] for row in intervals] == list(IN_FORCE)
    assert 108 <= optimum[0] == optimum[1] <= 118, "after the pauses, of which the longest are of 110 s"
    assert (costs["recommended"], costs["reason"]) == (True, None)
    assert [row["recommended_s"] for row in intervals] == optimum
    held = known["held"]
    # By trying all pairs of a finer grid; idle_quiet does not depend on them but by the order.
    grid = [30 * 1.03**i for i in range(300)]
    each = [[true_cost([step], [at], held, 30) for at in grid] for step in steps]
    least_last = min(each[2])
    best = min(each[0][i] + min(each[1][i:]) for i in range(len(grid))) + least_last
    reached = true_cost(steps, optimum, held, 30)
    assert reached <= 1.05 * best
    assert costs["cost_held_out_optimum"] <= 1.05 * costs["cost_held_out_best"]
    assert costs["cost_held_out_now"] > 1.2 * costs["cost_held_out_optimum"]


def test_costs_are_what_adding_up_each_silence_gives(known: dict[str, Any]) -> None:
    steps = Costs().steps(persistent=False)
    (costs,), held = known["quiet_costs"], known["held"]
    ski = [row["ski_rental_s"] for row in known["quiet_intervals"]]
    optimum = [row["optimum_s"] for row in known["quiet_intervals"]]
    # Those that last over an end of the part are estimated there, and are left out here.
    for which, after_s in (("now", IN_FORCE), ("optimum", optimum), ("ski_rental", ski)):
        assert costs[f"cost_held_out_{which}"] == pytest.approx(true_cost(steps, after_s, held, 30), rel=0.05)
    assert costs["cost_held_out_offline"] == pytest.approx(true_offline(steps, held, 30), rel=0.05)
    order = [costs[f"cost_held_out_{which}"] for which in ("offline", "best", "optimum", "ski_rental", "now")]
    assert order == sorted(order)


def test_what_is_counted_is_what_happened(known: dict[str, Any]) -> None:
    happened = Counter[tuple[int, int, str]]()
    for at_s, gap_s, ends in known["silences"]:
        begins, done = at_s + 30, at_s + gap_s
        if begins >= DAYS * DAY_S:
            continue
        part = int(begins >= SPLIT_S)
        happened[part, class_number(30), "starts"] += 1
        if not part and done >= SPLIT_S:
            happened[0, class_number(SPLIT_S - at_s), "censored"] += 1
            part = 1
        if done < DAYS * DAY_S:
            happened[part, class_number(gap_s), ends] += 1
        else:
            happened[part, class_number(DAYS * DAY_S - at_s), "censored"] += 1
    found = Counter[tuple[int, int, str]]()
    for one in quiet.counts(known["frame"], quiet.split_of(BEGIN_MS, BEGIN_MS + DAYS * stays.DAY_MS)).collect():
        assert (one["service"], one["linked"]) == ("web", True)
        for kind in ("starts", "woke", "closed", "censored"):
            found[one["part"], one["class"], kind] += one[kind]
    assert +found == +happened
    of_table = {round(row["from_s"], 3): row for row in known["gap_distribution"]}
    woke = sum(count for (_, _, kind), count in happened.items() if kind == "woke")
    assert sum(row["woke"] for row in of_table.values()) == woke
    assert all(row["silent"] + row["woken"] <= 1 + 1e-9 for row in of_table.values())


def test_no_silence_is_no_row(known: dict[str, Any]) -> None:
    found = quiet.tables(known["frame"].where("id < 0"), BEGIN_MS, BEGIN_MS + 10_000)
    assert {name: frame.count() for name, frame in found.items()} == dict.fromkeys(quiet.SCHEMAS, 0)
