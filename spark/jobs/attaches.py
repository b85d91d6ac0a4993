# SPDX-License-Identifier: Apache-2.0
"""How servers that asked for a client were served: how many were answered, how long it took to the answer and to the
client's first byte, why the others were refused, and how many were told yes though their client was gone.

Gone: the server was linked, the client never said a byte, and its connection then ended in a way that only one that is
not there any more lets it end: its path did not answer (ETIMEDOUT, probe-timeout), it did not take what was sent
(write-timeout), it answered by RST or another error (it had begun anew), or it came by another connection. An end by
FIN is none of these: the client was there, and had nothing to say. Nor is one that came after the client was heard
again, or later than GONE_MS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from control.core.states import Cause, State
from spark.jobs.dwell import HOUR_MS, QUANTILES, with_network
from spark.stays import DAY_MS, STATES, is_time

GONE_MS: Final = 1_000_000
"""From the answer to the end, at most. Linux gives up what is not acknowledged after 924 s (tcp_retries2)."""

HEARD_MS: Final = 1_000
"""How inexact `silence_s` is."""

_GONE_CAUSES: Final = [one.label for one in (Cause.PROBE_TIMEOUT, Cause.WRITE_TIMEOUT, Cause.CLIENT_CONNECT)]


def checked(attaches: DataFrame, until_ms: int) -> DataFrame:
    """The same, `network`, and `why` a row is set aside: `impossible`, `no time`, `doubled`; null: it is not."""
    found = F.coalesce(F.col("found").isin(STATES), F.lit(True))
    times = (F.col("answer_ms") >= 0) & F.coalesce(F.col("first_ms") >= 0, F.lit(True))
    double = F.row_number().over(Window.partitionBy("seq").orderBy("at", "way", "server", "target")) > 1
    why = (
        F.when(~found | ~F.coalesce(times, F.lit(False)) | F.col("way").isNull(), "impossible")
        .when(~is_time(F.unix_millis("at"), until_ms + DAY_MS), "no time")
        .when(double, "doubled")
    )
    return with_network(attaches).withColumn("why", why)


def aside(rows: DataFrame) -> DataFrame:
    """How many rows of `checked` are set aside: why, rows."""
    return rows.where(F.col("why").isNotNull()).groupBy("why").agg(F.count("*").alias("rows"))


def with_gone(rows: DataFrame, history: DataFrame) -> DataFrame:
    """The rows of `checked` that are not set aside, and `gone`. Of the history nothing but ends is read."""
    rows = rows.where(F.col("why").isNull()).drop("why")
    silent = F.col("error").isNull() & F.col("first_ms").isNull() & F.col("id").isNotNull()
    by_error = (F.col("cause") == Cause.CLIENT_CLOSE.label) & F.col("error").isNotNull()
    ends = (
        history.where((F.col("to") == State.CLOSED.label) & (F.col("cause").isin(_GONE_CAUSES) | by_error))
        .groupBy(F.col("id").alias("closed_id"))
        .agg(F.max(F.struct(F.unix_millis("at").alias("at"), "silence_s")).alias("closed"))
    )
    asked, closed = F.unix_millis("at"), F.col("closed.at")
    heard = closed - F.col("closed.silence_s") * 1000
    gone = (
        closed.between(asked, asked + F.col("answer_ms") + GONE_MS)
        & F.coalesce(heard <= asked + F.col("answer_ms") + HEARD_MS, F.lit(True))
    )  # fmt: skip
    # Most rows need no join, and those without a connection would all meet in one of its partitions.
    of_silent = rows.where(silent).join(ends, F.col("id") == F.col("closed_id"), "left")
    of_silent = of_silent.withColumn("gone", F.coalesce(gone, F.lit(False))).drop("closed_id", "closed")
    return rows.where(~silent).withColumn("gone", F.lit(False)).unionByName(of_silent)


def with_hour(rows: DataFrame) -> DataFrame:
    """The same, and `hour`, a timestamp: when that began in which the server asked."""
    return rows.withColumn("hour", F.timestamp_millis(F.floor(F.unix_millis("at") / HOUR_MS).cast("long") * HOUR_MS))


def served(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Of rows of `with_gone`, for each of `by`:

    requests, linked, refused           how many servers asked; were told yes; no
    linked_share                        of requests
    no_first_byte, gone                 linked ones whose client said nothing; whose client was gone (see above)
    answer_p50_ms, _p90_ms, _p99_ms     from asking to the answer, of linked ones
    first_p50_ms, _p90_ms, _p99_ms      from asking to the client's first byte, where there was one"""
    linked = F.col("error").isNull()
    answer = F.when(linked, F.col("answer_ms"))
    first = F.when(linked, F.col("first_ms"))
    counted = rows.groupBy(*by).agg(
        F.count("*").alias("requests"),
        F.count_if(linked).alias("linked"),
        F.count_if(~linked).alias("refused"),
        F.avg(linked.cast("int")).alias("linked_share"),
        F.count_if(linked & F.col("first_ms").isNull()).alias("no_first_byte"),
        F.count_if("gone").alias("gone"),
        _quantiles(answer).alias("answer"),
        _quantiles(first).alias("first"),
    )
    quantiles = {
        f"{name}_p{round(share * 100)}_ms": F.col(name)[at]
        for name in ("answer", "first")
        for at, share in enumerate(QUANTILES)
    }
    return counted.withColumns(quantiles).drop("answer", "first")


def _quantiles(ms: Column) -> Column:
    """Within 1/10,000 of the ranks; null: there are no values."""
    return F.percentile_approx(ms, list(QUANTILES), 10_000)


def refusals(rows: DataFrame) -> DataFrame:
    """Why servers were refused, for each service, way, step and error:

    count, share    how many; of all that asked by this way. A client that was not found is of no known service, so
                    that shares of a service would say less"""
    counted = rows.groupBy("service", "way", "step", "error").agg(F.count("*").alias("count"))
    share = F.col("count") / F.sum("count").over(Window.partitionBy("way"))
    return counted.withColumn("share", share).where(F.col("error").isNotNull())
