# SPDX-License-Identifier: Apache-2.0
"""Silences of connections, counted by age and by what ended them: for the intervals of spark/intervals.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from control.core.states import Cause, State
from spark.intervals import KINDS, PER_OCTAVE, STEPS, Costs, plan
from spark.jobs.dwell import class_of
from spark.stays import DAY_MS, SEEN

HELD_OUT: Final = 0.3
"""Share of the record that is held out, its last days."""
EARLIEST_SHARE: Final = 0.05
"""So many of the silences are seen from truncated_s on, or from before."""

WAKING: Final = (Cause.CLIENT_DATA, Cause.SERVER_DATA, Cause.SERVER_ATTACH)


def split_of(first_ms: int, until_ms: int) -> int:
    """When the days that are held out begin: at midnight, UTC, where the record has four days or more."""
    at = first_ms + (until_ms - first_ms) * (1 - HELD_OUT)
    return round(at / DAY_MS) * DAY_MS if until_ms - first_ms >= 4 * DAY_MS else round(at)


def silences(stays: DataFrame) -> DataFrame:
    """Those of spark.stays.good that are parts of silences of a known age. Not who was born asleep and says its first
    word, what a start found, nor who was woken and could not be linked."""
    went_down = (F.col("state") > F.col("from")) & (F.col("from") != int(State.NONE))
    by_command = (F.col("state") < F.col("from")) & (F.col("cause") == int(Cause.COMMAND))
    quiet = F.col("state").isin(int(State.STANDBY), int(State.IDLE), int(State.SLEEP))
    known = (F.col("cause") != int(Cause.RESTORE)) & F.col("quiet_ms").isNotNull()
    return stays.where(quiet & known & (went_down | by_command)).withColumn(
        "linked", F.coalesce(F.col("fell") == int(Cause.QUIET), F.lit(False))
    )


def counts(stays: DataFrame, split_ms: int) -> DataFrame:
    """How many entered and left the count of those that are silent, for each service:

    linked     whether the silence began with a server's link, which active_quiet ended
    part       0: before split_ms, 1: since then; what lasted over it is cut
    class      age of the silence, see spark.jobs.dwell.class_of
    starts     silences that began to be seen; entered: these, and those that came from another state of the silence
    moved      went on to another state; woke, closed: the silence ended; censored: no more is known"""
    known = silences(stays).where(F.col("ended").isNotNull())
    number = {kind: F.lit(at) for at, kind in enumerate(KINDS)}
    closed = F.col("next") == int(State.CLOSED)
    kind = (
        F.when(F.col("end") != SEEN, number["censored"])
        .when(F.col("by").isin(*map(int, WAKING)), number["woke"])
        .when(closed & (F.col("by") != int(Cause.SHUTDOWN)), number["closed"])
        .when(closed | (F.col("next") == int(State.ACTIVE)), number["censored"])
        .otherwise(number["moved"])
    )
    first = F.when(F.col("from") == int(State.ACTIVE), number["starts"]).otherwise(number["entered"])
    in_train, in_held = F.col("began") < split_ms, F.col("ended") >= split_ms

    def event(when: Column, part: int, at: Column, kind: Column) -> Column:
        """class << 4 | part << 3 | kind"""
        age = F.col("quiet_ms") + at - F.col("began")
        return F.when(when, F.shiftleft(class_of(age, PER_OCTAVE), 4) + (part << 3) + kind)

    events = {
        "train_in": event(in_train, 0, F.col("began"), first),
        "train_out": event(
            in_train, 0, F.least("ended", F.lit(split_ms)), F.when(in_held, number["censored"]).otherwise(kind)
        ),
        "held_in": event(
            in_held, 1, F.greatest("began", F.lit(split_ms)), F.when(in_train, number["entered"]).otherwise(first)
        ),
        "held_out": event(in_held, 1, F.col("ended"), kind),
    }
    # Stays with the same events are counted before these become rows: most begin at one of a few ages.
    same = known.groupBy("service", "linked", *(one.alias(name) for name, one in events.items())).count()
    each = same.select("service", "linked", "count", F.explode(F.array_compact(F.array(*events))).alias("event"))
    counted = {name: F.col("event").bitwiseAND(7) == at for at, name in enumerate(KINDS)}
    counted["entered"] |= counted["starts"]
    part = F.shiftright("event", 3).bitwiseAND(1).alias("part")
    return each.groupBy("service", "linked", part, F.shiftright("event", 4).alias("class")).agg(
        *(F.sum(F.when(when, F.col("count")).otherwise(0)).alias(name) for name, when in counted.items())
    )


def in_force(stays: DataFrame, split_ms: int) -> DataFrame:
    """The ages at which silent connections went down, a row for each service; null: none did:

    active_quiet, standby_quiet, idle_quiet   ms, the median by `quiet`, since split_ms, or where none did, of all
    N_steps                                   of each of them, how many went down so
    linked_ms, least_ms                       of those that left ACTIVE by `quiet`, and by any cause, the age that 5 %
                                              had at most: the greater one of the two parts
    persistent                                whether most of those that left ACTIVE by `quiet` left out STANDBY"""
    quiet, left = F.col("cause") == int(Cause.QUIET), F.col("from") == int(State.ACTIVE)
    # Counted by whole seconds first, as `whole` has them: percentiles of all rows would cost more than all else here.
    age = F.when(F.col("quiet_ms") >= 10_000, F.col("quiet_ms") - F.col("quiet_ms") % 1000).otherwise(F.col("quiet_ms"))
    counted = silences(stays).where(quiet | left).groupBy(
        "service", "from", "state", quiet.alias("quiet"), (F.col("began") >= split_ms).alias("late"), age.alias("age")
    ).count()  # fmt: skip
    whens = {
        name: F.col("quiet") & (F.col("from") == int(state))
        for name, state in zip(STEPS, (State.ACTIVE, State.STANDBY, State.IDLE), strict=True)
    }

    def percentile(when: Column, share: float) -> Column:
        return F.percentile(F.when(when, F.col("age")), share, F.col("count"))

    def how_many(when: Column) -> Column:
        return F.coalesce(F.sum(F.when(when, F.col("count"))), F.lit(0))

    late = F.col("late")
    medians = [
        F.coalesce(percentile(when & late, 0.5), percentile(when, 0.5)).alias(name) for name, when in whens.items()
    ]
    steps = [how_many(when).alias(f"{name}_steps") for name, when in whens.items()]
    least = [
        F.greatest(*(percentile(when & part, EARLIEST_SHARE) for part in (late, ~late))).alias(name)
        for name, when in (("linked_ms", whens[STEPS[0]]), ("least_ms", left))
    ]
    skips = how_many(whens[STEPS[0]] & (F.col("state") == int(State.IDLE)))
    return counted.groupBy("service").agg(
        *medians, *steps, *least, (skips * 2 > how_many(whens[STEPS[0]])).alias("persistent")
    )


_PER_DAY = ", ".join(f"{what}_per_day_{which} double" for which in ("now", "optimum") for what in ("byte_s", "wakes"))
_HELD_OUT = ("now", "optimum", "ski_rental", "best", "offline")
SCHEMAS: Final = {
    "quiet_intervals": "service string, interval string, steps long, in_force_s double, optimum_s double, "
    f"recommended_s double, bound string, ski_rental_s double, {_PER_DAY}",
    "quiet_costs": "service string, persistent boolean, gaps long, woke long, closed long, censored long, "
    "truncated_s double, seen_s double, recommended boolean, reason string, "
    "cost_now double, cost_optimum double, cost_ski_rental double, cost_offline double, held_out_gaps long, "
    + ", ".join(f"cost_held_out_{which} double" for which in _HELD_OUT),
    "gap_distribution": "service string, from_s double, to_s double, at_risk double, woke long, closed long, "
    "censored long, silent double, woken double",
}


def tables(stays: DataFrame, first_ms: int, until_ms: int, costs: Costs | None = None) -> dict[str, DataFrame]:
    """By name, of spark.stays.good; first_ms, until_ms: of the record. Costs are byte-seconds of a gap.

        quiet_intervals    for each service and interval: how often it let a connection go down, and the median age at
                           which; the cheapest on the days before those held out (optimum), and the same once more where
                           it is recommended; `bound`: it is the shortest (lower) or the longest (upper) that can be
                           judged; ski rental's; a day's byte-seconds of the memory that the step saves, and wakes
        quiet_costs        for each service: silences, how they ended, what can be judged, and a gap's cost with the
                           intervals as they are, the cheapest ones of the days before, ski rental's, the best fixed
                           ones of the days held out themselves, and with hindsight for each gap (offline)
        gap_distribution   for each service and class: who was silent for so long, and what became of them; the share
                           that is silent for longer, and that wakes until its end

    What is brought together here is at most 2 * 2 * 16 rows for each octave of age: 2,000 for each service."""
    split_ms = split_of(first_ms, until_ms)
    of_service = defaultdict[str | None, list[Mapping[str, Any]]](list)
    for row in counts(stays, split_ms).collect():
        of_service[row["service"]].append(row.asDict())
    days = (until_ms - first_ms) / DAY_MS
    found = {name: list[dict[str, Any]]() for name in SCHEMAS}
    for force in in_force(stays, split_ms).orderBy("service").collect():
        if not (rows := of_service[force["service"]]):
            continue
        made = plan(rows, force.asDict(), days, costs or Costs())
        found["quiet_intervals"] += made.intervals
        found["quiet_costs"].append(made.costs)
        found["gap_distribution"] += made.distribution
    spark = stays.sparkSession
    return {name: spark.createDataFrame(rows, SCHEMAS[name]) for name, rows in found.items()}
