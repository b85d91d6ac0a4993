# SPDX-License-Identifier: Apache-2.0
"""How long connections stay in each state, what ends their stays, and how many are in each state hour by hour.

A stay whose end was not seen is censored: it lasted so long at least. Leaving it out, or taking it as ended, would make
long stays short; the estimator of Kaplan and Meier (1958) does neither. So is one that a planned stop of the daemon
ended. Of one that the daemon found when it began the age is not known, and it is left out. Durations are counted in
classes, an eighth of an octave each, so that nothing is sorted: who is censored in a class counts as watched through
half of it (the life table's rule), and a quantile is the end of its class, up to 9 % too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from control.core.states import Cause
from spark.stays import CAUSES, SEEN, STATES

QUANTILES: Final = (0.5, 0.9, 0.99)
PER_OCTAVE: Final = 8
HOUR_MS: Final = 3_600_000


def name_of(column: str, texts: Sequence[str]) -> Column:
    """The text of a number of spark.stays; null stays null."""
    return F.element_at(F.lit(list(texts)), F.col(column).cast("int") + 1)


def class_of(ms: Column, per_octave: int = PER_OCTAVE) -> Column:
    """Of a duration; 0: less than a millisecond."""
    return F.when(ms < 1, 0).otherwise(F.floor(F.log2(ms.cast("double")) * per_octave).cast("int") + 1)


def class_end_s(number: Column) -> Column:
    """Up to where a class reaches, s."""
    return F.when(number == 0, 0.001).otherwise(F.pow(F.lit(2.0), number / PER_OCTAVE) / 1000)


def with_network(stays: DataFrame, ipv4: int = 16, ipv6: int = 48) -> DataFrame:
    """The same, and `network`: the client's, with these lengths of its prefix, which are whole octets or groups."""
    short = F.concat(F.substring_index("address", ".", ipv4 // 8), F.lit(".0" * (4 - ipv4 // 8) + f"/{ipv4}"))
    zeros = F.regexp_replace(F.replace("address", F.lit("::"), F.lit(":0:0:0:0:0:0:")), "^:", "")
    groups = F.array_join(F.slice(F.split(zeros, ":"), 1, ipv6 // 16), ":")
    long = F.concat(F.regexp_replace(groups, "(^|:)0(:0)*$", ""), F.lit(f"::/{ipv6}"))
    return stays.withColumn("network", F.when(F.col("address").contains(":"), long).otherwise(short))


def durations(stays: DataFrame, by: Sequence[str]) -> DataFrame:
    """How many stays lasted for how long, of each of `by` and each state:

    of by, state, class    see class_of
    seen, censored         how many ended after so long, and how many were watched for so long and had not ended
    ms                     how long they were watched, all together"""
    ms = F.col("ended") - F.col("began")
    seen = (F.col("end") == SEEN) & (F.col("by") != int(Cause.SHUTDOWN))
    return (
        stays.where(F.col("ended").isNotNull() & (F.col("cause") != int(Cause.RESTORE)))
        .groupBy(*by, "state", class_of(ms).alias("class"))
        .agg(
            F.count_if(seen).alias("seen"),
            F.count_if(~F.coalesce(seen, F.lit(False))).alias("censored"),
            F.sum(ms).alias("ms"),
        )
    )


def dwell(counted: DataFrame, by: Sequence[str]) -> DataFrame:
    """Of `durations` by these or by more, for each of `by` and each state:

    stays, censored      how many, and how many of them are censored
    total_s              watched, all together
    mean_s               total_s over the stays that ended: what one lasts, were its end as likely at any age; null: no
                         end was seen
    p50_s, p90_s, p99_s  after so long, this share of stays has ended; null: fewer than that were seen to end"""
    of = [*by, "state"]
    sums = (F.sum(name).alias(name) for name in ("seen", "censored", "ms"))
    counted = counted.groupBy(*of, "class").agg(*sums)
    from_here = Window.partitionBy(*of).orderBy("class").rowsBetween(Window.currentRow, Window.unboundedFollowing)
    so_far = Window.partitionBy(*of).orderBy("class").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    at_risk = F.sum(F.col("seen") + F.col("censored")).over(from_here) - F.col("censored") / 2
    stay_on = 1 - F.col("seen") / at_risk
    # A product by its logarithm; of 0, where all that are left have ended, there is none.
    log = F.sum(F.when(stay_on > 0, F.log(stay_on)).otherwise(F.lit(-1e9))).over(so_far)
    survived = counted.withColumn("ended_share", 1 - F.exp(log))
    quantiles = [
        F.min(F.when(F.col("ended_share") >= share - 1e-12, class_end_s(F.col("class")))).alias(
            f"p{round(share * 100)}_s"
        )
        for share in QUANTILES
    ]
    seconds = F.sum("ms") / 1000
    return survived.groupBy(*of).agg(
        F.sum(F.col("seen") + F.col("censored")).alias("stays"),
        F.sum("censored").alias("censored"),
        seconds.alias("total_s"),
        F.try_divide(seconds, F.sum("seen")).alias("mean_s"),
        *quantiles,
    ).withColumn("state", name_of("state", STATES))  # fmt: skip


def transitions(stays: DataFrame, by: Sequence[str]) -> DataFrame:
    """What ended stays whose end was seen, for each of `by`, the state, the state that followed and the cause:

    count, share    how many; of the stays in that state whose end was seen
    mean_s          how long they had lasted"""
    ms = F.col("ended") - F.col("began")
    counted = stays.where(F.col("end") == SEEN).groupBy(*by, "state", "next", "by").agg(
        F.count("*").alias("count"), (F.avg(ms) / 1000).alias("mean_s")
    )  # fmt: skip
    share = F.col("count") / F.sum("count").over(Window.partitionBy(*by, "state"))
    return counted.withColumn("share", share).select(
        *by, name_of("state", STATES).alias("state"), name_of("next", STATES).alias("next"),
        name_of("by", CAUSES).alias("cause"), "count", "share", "mean_s",
    )  # fmt: skip


def hourly(stays: DataFrame, by: Sequence[str], first_ms: int, until_ms: int) -> DataFrame:
    """Connections in each state, on average over each hour of first_ms..until_ms:

        of by, hour (when it begins), state, connections, began

    Without a row for each hour of each stay: what a stay adds to an hour follows from how many have begun and ended
    before, and from the minutes of those that begin or end in it."""
    known = stays.where(F.col("ended").isNotNull())
    new = F.coalesce(F.col("cause") != int(Cause.RESTORE), F.lit(False))

    def steps(column: str, sign: int) -> DataFrame:
        at = F.greatest(F.least(F.col(column), F.lit(until_ms)), F.lit(first_ms))
        hour = F.floor(at / HOUR_MS).cast("long")
        left = (hour + 1) * HOUR_MS - at
        return known.select(
            *by, "state", hour.alias("hour"), F.lit(sign).alias("step"), (left * sign).alias("ms"),
            F.when(F.lit(sign > 0) & new & (F.col(column) >= first_ms), 1).otherwise(0).alias("began"),
        )  # fmt: skip

    of = [*by, "state"]
    changed = steps("began", 1).unionByName(steps("ended", -1)).groupBy(*of, "hour").agg(
        F.sum("step").alias("step"), F.sum("ms").alias("ms"), F.sum("began").alias("began")
    )  # fmt: skip
    numbers = (F.lit(number).cast("long") for number in (first_ms // HOUR_MS, (until_ms - 1) // HOUR_MS))
    hours = F.explode(F.sequence(*numbers)).alias("hour")
    sums = ("step", "ms", "began")
    none = changed.select(*of).distinct().select(*of, hours, *(F.lit(0).alias(name) for name in sums))
    # Not by a join, which finds nothing for a service that is null.
    filled = changed.unionByName(none).groupBy(*of, "hour").agg(*(F.sum(name).alias(name) for name in sums))
    before = Window.partitionBy(*of).orderBy("hour").rowsBetween(Window.unboundedPreceding, -1)
    there = F.coalesce(F.sum("step").over(before), F.lit(0))
    begins, ends = (
        F.greatest(F.col("hour") * HOUR_MS, F.lit(first_ms)),
        F.least((F.col("hour") + 1) * HOUR_MS, F.lit(until_ms)),
    )
    # Those that begin or end in the last hour were counted to its end.
    beyond = (F.col("hour") + 1) * HOUR_MS - ends
    ms = there * (ends - begins) + F.col("ms") - F.col("step") * beyond
    return filled.withColumn("connections", ms / (ends - begins)).where(f"hour < {until_ms} / {HOUR_MS}").select(
        *by, F.timestamp_millis(F.col("hour") * HOUR_MS).alias("hour"), name_of("state", STATES).alias("state"),
        "connections", "began",
    )  # fmt: skip
