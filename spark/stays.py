# SPDX-License-Identifier: Apache-2.0
"""How long each connection stayed in each state: a row of the history and the next one of its connection, joined.

The history is sorted by connection once, for all jobs. What cannot be is set aside with its reason, and told by kind:

    impossible    a transition that no connection can make (control/core/states.py), or a text that is no state or cause
    no time       without a time, or before 2020, or more than a day later than the report's end: a clock was wrong
    no connection without a connection's number: it was not known any more
    doubled       a row that is there twice

A stay has an end that happened, or is *censored*: all that is known is that it lasted so long. `end` says which:

    seen          the next row of the connection says when and why it ended
    open          there is no next row: it lasted to the end of the record, or further
    restart       the next row was written by a daemon that began, and found what had become of the connection while
                  there was none: censored at the end of the run before. A stay that begins so is of an unknown age
    lost          the next row begins in another state than this one led to: rows between were dropped, or are set
                  aside: how long it lasted is not known at all
    clock         the next row is of an earlier time: the clock was set back; likewise not known
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType

from control.core.states import LEGAL, Cause, State

STATES: Final = [state.label for state in State]
CAUSES: Final = [cause.label for cause in Cause]

DAY_MS: Final = 86_400_000
EARLIEST_MS: Final = 1_577_836_800_000
"""2020: a clock that says less was not set."""

_LEGAL: Final = [source << 8 | target << 4 | cause for source, target, cause in sorted(LEGAL)]

SEEN, OPEN, RESTART, LOST, CLOCK = "seen", "open", "restart", "lost", "clock"


class Run(NamedTuple):
    """Of the daemon. first: the number of its first row of history; last_ms: when it was heard of last."""

    first: int
    last_ms: int


def is_time(at: Column, latest_ms: int) -> Column:
    """Whether a clock that was set can have said so; false for none."""
    return F.coalesce((at >= EARLIEST_MS) & (at <= latest_ms), F.lit(False))


def _number(column: str, texts: Sequence[str]) -> Column:
    """Its place among the texts; -1: it is none of them."""
    return (F.coalesce(F.array_position(F.lit(list(texts)), F.col(column)), F.lit(0)) - 1).cast(ByteType())


def fault_of(until_ms: int) -> Column:
    """Why a row of `numbered` is set aside; null: it is not."""
    step = (
        F.shiftleft(F.col("from").cast("int"), 8)
        .bitwiseOR(F.shiftleft(F.col("to").cast("int"), 4))
        .bitwiseOR(F.col("cause").cast("int"))
    )
    return (
        F.when(~step.isin(_LEGAL), "impossible")
        .when(~is_time(F.col("at"), until_ms + DAY_MS), "no time")
        .when(F.col("id") == 0, "no connection")
    )


def numbered(history: DataFrame) -> DataFrame:
    """Rows of the history with numbers for texts: they are to be sorted. Times: ms since 1970."""
    return history.select(
        "id", "seq", F.unix_millis("at").alias("at"), "address", "service",
        _number("from", STATES).alias("from"), _number("to", STATES).alias("to"),
        _number("cause", CAUSES).alias("cause"), "gap_ms",
    )  # fmt: skip


def run_of(firsts: Sequence[int], seq: Column) -> Column:
    """How many runs had begun by then. firsts: the numbers of their first rows."""
    return F.size(F.filter(F.lit(list(firsts)), lambda first: first <= seq)) if firsts else F.lit(0)


def of(history: DataFrame, runs: Sequence[Run], until_ms: int) -> DataFrame:
    """The stays in all states but CLOSED, a row for each:

        id, address, service    of the connection
        seq, state, cause       of the row by which it began; cause: by which it came
        began, ended            ms since 1970; ended: as far as is known; null: `end` is lost or clock, or restart and
                                the run before is not known
        end                     see above
        next, by                the state that followed, and the cause; null unless it was seen
        from, quiet_ms          the state before; since the last payload byte, when it began
        fell                    the cause by which the connection left ACTIVE last; null: that is not in the record
        before                  of the first row of a connection that is not new, the state that it came from; else null
        why                     null; else the row is set aside, for this reason, and is no stay

    Beside them the first rows of connections that are CLOSED by it. runs: in order. until_ms: the end of the record."""
    by_connection = Window.partitionBy("id").orderBy("seq")
    double = F.lag("seq").over(by_connection) == F.col("seq")
    rows = numbered(history).withColumn("why", F.coalesce(fault_of(until_ms), F.when(double, "doubled")))
    said = F.when(F.col("why").isNull(), F.struct("seq", "at", "from", "to", "cause"))
    after = F.expr("lead(said, 1) IGNORE NULLS OVER (PARTITION BY id ORDER BY seq)")
    first = F.expr("lag(said, 1) IGNORE NULLS OVER (PARTITION BY id ORDER BY seq)").isNull()
    before = F.when(first & F.col("why").isNull() & (F.col("from") != int(State.NONE)), F.col("from"))
    left_active = F.when(F.col("why").isNull() & (F.col("from") == int(State.ACTIVE)), F.col("cause"))
    fell = F.last(left_active, ignorenulls=True).over(by_connection.rowsBetween(Window.unboundedPreceding, 0))
    joined = rows.withColumn("said", said).withColumns({"after": after, "before": before, "fell": fell}).drop("said")
    follows = F.col("after.from") == F.col("to")
    found = (F.col("after.cause") == int(Cause.RESTORE)) & (follows | (F.col("after.from") == int(State.NONE)))
    end = (
        F.when(F.col("after").isNull(), OPEN)
        .when(F.col("after.at") < F.col("at"), CLOCK)
        .when(found, RESTART)
        .when(~follows, LOST)
        .otherwise(SEEN)
    )
    ended = F.when(F.col("end") == SEEN, F.col("after.at")).when(
        F.col("end") == OPEN, F.greatest(F.lit(until_ms), F.col("at"))
    )
    if runs:
        before_it = run_of([run.first for run in runs], F.col("after.seq")) - 1
        last_ms = F.element_at(F.lit([run.last_ms for run in runs]), F.greatest(before_it, F.lit(1)))
        restarted = (F.col("end") == RESTART) & (before_it > 0)
        ended = ended.when(restarted, F.greatest(F.least(last_ms, F.col("after.at")), F.col("at")))
    seen = F.col("end") == SEEN
    kept = joined.where((F.col("to") != int(State.CLOSED)) | F.col("why").isNotNull() | F.col("before").isNotNull())
    return kept.withColumn("end", F.when(F.col("why").isNull(), end)).select(
        "id", "address", "service", "seq", F.col("to").alias("state"), "cause", F.col("at").alias("began"),
        ended.alias("ended"), "end",
        F.when(seen, F.col("after.to")).alias("next"), F.when(seen, F.col("after.cause")).alias("by"),
        "from", F.col("gap_ms").alias("quiet_ms"), "fell", "before", "why",
    )  # fmt: skip


def good(stays: DataFrame) -> DataFrame:
    """Those of `of` that are stays."""
    return stays.where(F.col("why").isNull() & (F.col("state") != int(State.CLOSED))).drop("why", "before")


def unfinished(stays: DataFrame, first_ms: int) -> DataFrame:
    """The stays that lasted when the record began, first_ms, and ended since: as `good`, begun before. How long they
    lasted is not known, only who was there."""
    known = stays.where(F.col("before").isNotNull())
    return known.select(
        "id", "address", "service", F.col("before").alias("state"), F.lit(first_ms - 1).alias("began"),
        F.col("began").alias("ended"), F.lit(SEEN).alias("end"),
    )  # fmt: skip


def unknown(stays: DataFrame) -> DataFrame:
    """How many of `good` lasted for nobody knows how long: end, stays."""
    return stays.where(F.col("ended").isNull()).groupBy("end").agg(F.count("*").alias("stays"))


def aside(stays: DataFrame) -> DataFrame:
    """How many rows were set aside: why, rows."""
    return stays.where(F.col("why").isNotNull()).groupBy("why").agg(F.count("*").alias("rows"))
