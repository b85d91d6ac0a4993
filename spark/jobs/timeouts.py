# SPDX-License-Identifier: Apache-2.0
"""How long the networks before clients bear silence, by service and rules: what the snapshots counted of probes.

A rule for a network makes its clients a row of the snapshots, so a network is told apart from others by a rule of its
own. What clients said by themselves (`spoke after`) is no observation: a client's own packet may open again what its
network had closed. Nor can the two directions be told apart here: each segment of TCP that arrives is acknowledged, so
whatever refreshes a path from outside refreshes it from inside, too.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from control.core.states import Cause, State
from spark.jobs.dwell import with_network

CELL: Final = ("service", "rules")

QUIET: Final = ("IDLE", "SLEEP", "born")
LOST: Final = ("IDLE CLOSED probe-timeout", "SLEEP CLOSED probe-timeout")
"""Names in a snapshot's counts."""

WANTED_SHARE: Final = 0.02
"""Of a service's connections: for an experiment."""

_AFTER: Final = r"^(answered|lost) after (\d{1,9})$"


def silences(snapshots: DataFrame) -> DataFrame:
    """service, rules, after (s, where a class of silences begins), answered, lost: probes. rules: null where no rule
    gives these connections a value."""
    entries = snapshots.where(F.col("service").isNotNull()).select(*CELL, F.explode("counts").alias("name", "count"))
    how, after = (F.regexp_extract("name", _AFTER, group) for group in (1, 2))
    found = entries.withColumn("how", how).where((F.col("how") != "") & (F.col("count") > 0))
    return found.groupBy(*CELL, after.cast("int").alias("after")).agg(
        *(F.sum(F.when(F.col("how") == name, F.col("count")).otherwise(0)).alias(name) for name in ("answered", "lost"))
    )  # fmt: skip


def by_day(snapshots: DataFrame) -> DataFrame:
    """service, rules, day (UTC), days (watched, of it), probes, lost (connections that did not answer), connections
    (IDLE or asleep, on average)."""
    counts = F.col("counts")
    quiet, lost = (sum((F.coalesce(counts[name], F.lit(0)) for name in names), F.lit(0)) for names in (QUIET, LOST))
    return snapshots.where(F.col("service").isNotNull()).groupBy(*CELL, F.to_date("at").alias("day")).agg(
        (F.sum("span_ms") / 86_400_000).alias("days"),
        F.sum(F.coalesce(counts["probes"], F.lit(0))).alias("probes"),
        F.sum(lost).alias("lost"),
        F.avg(quiet).alias("connections"),
    )  # fmt: skip


def by_place(stays: DataFrame) -> DataFrame:
    """service, network (/24, /48), lost (connections that a probe found gone), hours (in IDLE and SLEEP, of all),
    connections (that began)."""
    asleep = F.col("state").isin(int(State.IDLE), int(State.SLEEP)) & F.col("ended").isNotNull()
    lost = asleep & (F.col("next") == int(State.CLOSED)) & (F.col("by") == int(Cause.PROBE_TIMEOUT))
    return with_network(stays, 24, 48).groupBy("service", "network").agg(
        F.count_if(F.coalesce(lost, F.lit(False))).alias("lost"),
        (F.sum(F.when(asleep, F.col("ended") - F.col("began")).otherwise(0)) / 3_600_000).alias("hours"),
        F.count_if(F.col("cause") == int(Cause.CLIENT_CONNECT)).alias("connections"),
    )  # fmt: skip


def lost_by_network(places: DataFrame) -> DataFrame:
    """Of `by_place`: service, network (/16, /48), lost, hours, lost_per_1000_h. The most first."""
    wide = with_network(places.withColumn("address", F.substring_index("network", "/", 1)))
    found = wide.groupBy("service", "network").agg(F.sum("lost").alias("lost"), F.sum("hours").alias("hours"))
    return found.withColumn("lost_per_1000_h", F.try_divide(1000 * F.col("lost"), F.col("hours"))).orderBy(
        F.desc("lost"), "service", "network"
    )


def candidates(places: DataFrame, most: int) -> DataFrame:
    """Of `by_place`: service, network, connections, share of the service's: of each service the `most` networks whose
    share is the nearest to WANTED_SHARE, the nearest first."""
    share = F.col("connections") / F.sum("connections").over(Window.partitionBy("service"))
    place = F.row_number().over(
        Window.partitionBy("service").orderBy(F.abs(F.log(F.col("share") / WANTED_SHARE)), "network")
    )
    found = places.where("network IS NOT NULL AND service IS NOT NULL AND connections > 0").withColumn("share", share)
    return found.withColumn("place", place).where(F.col("place") <= most).orderBy("service", "place").select(
        "service", "network", "connections", "share"
    )  # fmt: skip
