# SPDX-License-Identifier: Apache-2.0
"""How long connections stay in each state and what ends their stays, by service and rules: out of the snapshots, since
a transition does not say which rules its connection had.

A snapshot says how many connections are in each state, and how many left it since the one before. The mean stay is the
time that all of them were there together over those that left (Little's law): no stay has to be watched from its begin
to its end, and one that had begun before the record counts. Counts have no quantiles.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from control.core.states import LEGAL, State
from spark.jobs.timeouts import CELL
from spark.stays import CAUSES, STATES

_THERE: Final = [state.label for state in State if state not in (State.NONE, State.CLOSED)]
_LEFT: Final = [
    f"{STATES[source]} {STATES[target]} {CAUSES[cause]}"
    for source, target, cause in sorted(LEGAL)
    if source != State.NONE
]
"""Names in a snapshot's counts."""


def counted(snapshots: DataFrame) -> DataFrame:
    """service, rules, name (in `counts`: of a state or a transition), count (of all snapshots), ms (a snapshot's count
    for as long as it stands, of all)."""
    entries = snapshots.where(F.col("service").isNotNull()).select(
        *CELL, F.greatest(F.coalesce("span_ms", F.lit(0)), F.lit(0)).alias("span_ms"),
        F.explode("counts").alias("name", "count"),
    )  # fmt: skip
    return entries.where(F.col("name").isin(_THERE + _LEFT) & (F.col("count") > 0)).groupBy(*CELL, "name").agg(
        F.sum("count").alias("count"), F.sum(F.col("count").cast("double") * F.col("span_ms")).alias("ms")
    )  # fmt: skip


def dwell(counts: DataFrame) -> DataFrame:
    """Of `counted`: service, rules, state, total_s (watched, of all its connections together), ended (stays), mean_s
    (what one lasts; null: none ended)."""
    is_there = F.col("name").isin(_THERE)
    return (
        counts.groupBy(*CELL, _part(0).alias("state"))
        .agg(
            (F.sum(F.when(is_there, F.col("ms")).otherwise(0)) / 1000).alias("total_s"),
            F.sum(F.when(is_there, 0).otherwise(F.col("count"))).alias("ended"),
        )
        .withColumn("mean_s", F.try_divide("total_s", "ended"))
    )


def transitions(counts: DataFrame) -> DataFrame:
    """Of `counted`: service, rules, state, next, cause, count, share (of those that left the state)."""
    left = counts.where(~F.col("name").isin(_THERE)).select(
        *CELL, *(_part(at).alias(name) for at, name in enumerate(("state", "next", "cause"))), "count"
    )
    share = F.col("count") / F.sum("count").over(Window.partitionBy(*CELL, "state"))
    return left.withColumn("share", share)


def _part(at: int) -> Column:
    return F.get(F.split("name", " "), F.lit(at))
