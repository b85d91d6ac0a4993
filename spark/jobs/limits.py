# SPDX-License-Identifier: Apache-2.0
"""What each source used of what can be limited, and whom limits would have refused.

A source is an address or a network (PREFIXES) of a service. What can be limited:

    connections    at once, at the end of a second
    connects       that clients make in a second
    births         of these, those that are accepted asleep
    wakes          in a second, by a client's data
    attaches       that servers ask for in a second; the source is the server

No row says who attacks. Known are those that flap (spark/jobs/churn.py); all others are taken for honest, above all the
networks of many clients (a carrier's NAT), which a limit must let pass. So of each service, prefix and what is limited
the greatest use by one that does not flap is looked for, and the limit that is named is twice that, rounded up to 1, 2
or 5 times a power of ten. What it would have refused it takes from those that flap alone.

What a limit refuses is counted second by second: what was asked for above it. In service, what is refused once is asked
for again, and a limit may let pass a burst; so it is a measure, and not what would have come.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from control.core.states import Cause, State
from spark.jobs.dwell import with_network

PREFIXES: Final = {"address": (32, 64), "network": (24, 48)}
"""Lengths, IPv4 and IPv6, that count as one source."""

CONNECTIONS, CONNECTS, BIRTHS, WAKES, ATTACHES = WHAT = ("connections", "connects", "births", "wakes", "attaches")

MARGIN: Final = 2
"""Times what one needed that does not flap."""
TOP: Final = 50
"""Sources that are named, for each prefix and each of WHAT."""

_CELL: Final = (("service", pa.string()), ("prefix", pa.string()), ("what", pa.string()))
LIMITS: Final = pa.schema([
    *_CELL, *((name, pa.int64()) for name in ("sources", "p50", "p99", "most")), ("most_of", pa.string()),
    *((name, pa.int64()) for name in (
        "asked", "limit", "flapping", "flapping_over", "asked_by_flapping", "refused_of_flapping",
    )),
])  # fmt: skip
TRIED: Final = pa.schema([
    *_CELL, *((name, pa.int64()) for name in ("limit", "over", "flapping_over", "refused", "refused_of_flapping")),
])  # fmt: skip


def uses(stays: DataFrame, events: DataFrame, attached: DataFrame) -> DataFrame:
    """Of each address (PREFIXES) in each second in which it used something. stays: spark.stays.good; events:
    spark.jobs.churn.events; attached: spark.jobs.attaches.checked.

        service, source, second     since 1970; of ATTACHES the server's
        what, n, asked              of WHAT; of CONNECTIONS how many more there are at its end, of all others how many
                                    were asked for; those that a limit could have refused"""
    second = F.floor(F.col("at") / 1000).alias("second")

    def used(what: str, of: DataFrame, n: Column | None = None, asked: Column | None = None) -> DataFrame:
        one = F.lit(1)
        return of.select("service", "address", second, F.lit(what).alias("what"), (one if n is None else n).alias("n"),
                         (one if asked is None else asked).alias("asked"))  # fmt: skip

    came = stays.withColumn("at", F.col("began"))
    connects = came.where((F.col("from") == int(State.NONE)) & (F.col("cause") == int(Cause.CLIENT_CONNECT)))
    wakes = came.where((F.col("state") == int(State.ACTIVE)) & (F.col("cause") == int(Cause.CLIENT_DATA)))
    step = F.when(F.col("born"), 1).otherwise(-1)
    server = F.nullif(F.regexp_extract("server", r"^\[?([^\]]*)\]?:\d+$", 1), F.lit(""))
    of_servers = attached.where(F.col("why").isNull()).select(
        "service", server.alias("address"), F.unix_millis("at").alias("at")
    )  # fmt: skip
    each = (
        used(CONNECTIONS, events, step, F.col("by_client").cast("int"))
        .unionByName(used(CONNECTS, connects))
        .unionByName(used(BIRTHS, connects.where(F.col("state") == int(State.IDLE))))
        .unionByName(used(WAKES, wakes))
        .unionByName(used(ATTACHES, of_servers))
    )
    return _counted(_sourced(each.where(F.col("address").isNotNull()), "address"))


def of_networks(used: DataFrame) -> DataFrame:
    """The same of networks."""
    return _counted(_sourced(used.withColumnRenamed("source", "address"), "network"))


def _sourced(rows: DataFrame, prefix: str) -> DataFrame:
    return with_network(rows, *PREFIXES[prefix]).withColumnRenamed("network", "source")


def _counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("service", "source", "what", "second").agg(
        F.sum("n").alias("n"), F.sum("asked").alias("asked")
    )  # fmt: skip


def of_sources(used: DataFrame, flapping: DataFrame, prefix: str) -> DataFrame:
    """`uses` or `of_networks`, of that prefix: service, source, what, second; n: of CONNECTIONS how many there are;
    asked; flapping: whether an address does that is of it. flapping: of addresses, spark.jobs.churn.flapping."""
    named = _sourced(flapping, prefix).select(F.col("service").alias("of"), F.col("source").alias("who")).distinct()
    same = F.col("service").eqNullSafe(F.col("of")) & (F.col("source") == F.col("who"))
    flagged = used.join(F.broadcast(named), same, "left").withColumn("flapping", F.col("who").isNotNull())
    is_level = F.col("what") == CONNECTIONS
    so_far = Window.partitionBy("service", "source").orderBy("second")
    levels = flagged.where(is_level).withColumn("n", F.sum("n").over(so_far))
    return flagged.where(~is_level).unionByName(levels).drop("of", "who")


def most(sources: DataFrame) -> DataFrame:
    """Of each source of `of_sources` and each of WHAT: most, in a second; asked, in all; whether it flaps."""
    return sources.groupBy("service", "source", "what", "flapping").agg(
        F.max("n").alias("most"), F.sum("asked").alias("asked")
    )


def named(peaks: DataFrame, prefix: str) -> DataFrame:
    """The TOP sources by what they used, of `most`, for each of WHAT."""
    order = Window.partitionBy("what").orderBy(F.desc("most"), F.desc("asked"), "service", "source")
    return peaks.withColumn("nth", F.row_number().over(order)).where(F.col("nth") <= TOP).select(
        "service", F.lit(prefix).alias("prefix"), "source", "what", "most", "asked", "flapping"
    )  # fmt: skip


def _shortened(number: Column) -> Column:
    """Two digits, rounded up, so that there are few of them."""
    size = F.pow(F.lit(10), F.greatest(F.floor(F.log10(F.greatest(number, F.lit(1)))) - 1, F.lit(0))).cast("long")
    return (F.ceil(number / size) * size).cast("long")


def seconds(sources: DataFrame) -> DataFrame:
    """How many seconds there are with the same use: service, what, n, asked, flapping, seconds."""
    return sources.where("asked > 0 AND n > 0").groupBy(
        "service", "what", _shortened(F.col("n")).alias("n"), _shortened(F.col("asked")).alias("asked"), "flapping"
    ).agg(F.count("*").alias("seconds"))  # fmt: skip


def levels(peaks: DataFrame) -> DataFrame:
    """How many sources there are with the same greatest use, to two digits: service, what, most, flapping, sources,
    asked; exact, one: the greatest of them and whose it is."""
    return peaks.where("most > 0").groupBy("service", "what", _shortened(F.col("most")).alias("most"), "flapping").agg(
        F.count("*").alias("sources"), F.max("most").alias("exact"), F.max_by("source", "most").alias("one"),
        F.sum("asked").alias("asked"),
    )  # fmt: skip


class _Cell:
    """Of a service and what is limited: rows of `levels` and of `seconds`, of those that flap, and of others."""

    def __init__(self) -> None:
        self.levels: dict[bool, list[Mapping[str, Any]]] = {False: [], True: []}
        self.seconds: dict[bool, list[Mapping[str, Any]]] = {False: [], True: []}

    def sources(self, flapping: bool, above: int = 0) -> int:
        return sum(int(row["sources"]) for row in self.levels[flapping] if row["most"] > above)

    def asked(self, flapping: bool) -> int:
        return sum(int(row["asked"]) for row in self.levels[flapping])

    def refused(self, flapping: bool, limit: int) -> int:
        return sum(
            row["seconds"] * min(row["asked"], row["n"] - limit) for row in self.seconds[flapping] if row["n"] > limit
        )

    def most(self, flapping: bool) -> int:
        return int(max((row["exact"] for row in self.levels[flapping]), default=0))

    def limit(self) -> int | None:
        """None: there are none but those that flap."""
        return preferred(MARGIN * self.most(False)) if self.levels[False] else None

    def quantile(self, share: float) -> int:
        rows = sorted((row for of in self.levels.values() for row in of), key=lambda row: row["most"])
        rank = math.ceil(share * sum(row["sources"] for row in rows))
        until = accumulate(row["sources"] for row in rows)
        return int(next(row["exact"] for row, count in zip(rows, until, strict=True) if count >= rank))


def preferred(least: int) -> int:
    """1, 2 or 5 times a power of ten, which is so much at least."""
    power = int(f"1{'0' * (len(str(least)) - 1)}")
    return next(of * power for of in (1, 2, 5, 10) if of * power >= least)


def judged(prefix: str, levels: Iterable[Mapping[str, Any]],
           seconds: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    """Rows of the tables LIMITS and TRIED, of rows of `levels` and `seconds`.

    sources, p50, p99, most, most_of    how many there are; what half of them used at most, 99 % of them, and all of
                                        them; one that used the most. p50 and p99 up to 10 % too much
    asked, asked_by_flapping            for, in all, and by those that flap
    limit                               see above; null: there are none but those that flap
    flapping, flapping_over             how many flap, and used more than the limit
    over, refused                       of those that do not flap, how many used more, and what would have been
                                        refused; refused and refused_of_flapping up to 10 % too much"""
    cells = defaultdict[tuple[str | None, str], _Cell](_Cell)
    for row in levels:
        cells[row["service"], row["what"]].levels[row["flapping"]].append(row)
    for row in seconds:
        cells[row["service"], row["what"]].seconds[row["flapping"]].append(row)
    limits, tried = [], []
    for (service, what), cell in sorted(cells.items(), key=lambda of: (of[0][0] or "", WHAT.index(of[0][1]))):
        about = {"service": service, "prefix": prefix, "what": what}
        largest = max((row for of in cell.levels.values() for row in of), key=lambda row: row["exact"])
        limit = cell.limit()
        limits.append(about | {
            "sources": cell.sources(False) + cell.sources(True), "p50": cell.quantile(0.5), "p99": cell.quantile(0.99),
            "most": largest["exact"], "most_of": largest["one"], "asked": cell.asked(False) + cell.asked(True),
            "limit": limit, "flapping": cell.sources(True), "asked_by_flapping": cell.asked(True),
            "flapping_over": None if limit is None else cell.sources(True, limit),
            "refused_of_flapping": None if limit is None else cell.refused(True, limit),
        })  # fmt: skip
        value = 1
        while value < largest["exact"]:
            tried.append(about | {
                "limit": value, "over": cell.sources(False, value), "flapping_over": cell.sources(True, value),
                "refused": cell.refused(False, value), "refused_of_flapping": cell.refused(True, value),
            })  # fmt: skip
            value = preferred(value + 1)
    return limits, tried
