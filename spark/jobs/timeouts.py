# SPDX-License-Identifier: Apache-2.0
"""How long the networks before clients bear silence, by service and rules: what the snapshots counted of probes.

A rule for a network makes its clients a row of the snapshots, so a network is told apart from others by a rule of its
own. What clients said by themselves (`spoke after`) is no observation: a client's own packet may open again what its
network had closed. Nor can the two directions be told apart here: each segment of TCP that arrives is acknowledged, so
whatever refreshes a path from outside refreshes it from inside, too.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

CELL: Final = ("service", "rules")

QUIET: Final = ("IDLE", "SLEEP", "born")
LOST: Final = ("IDLE CLOSED probe-timeout", "SLEEP CLOSED probe-timeout")
"""Names in a snapshot's counts."""

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
