# SPDX-License-Identifier: Apache-2.0
"""Which client networks lose connections, out of the history; networks are as large as the losses allow.

Connections that a probe found gone are counted by /24 and /48. A larger network is cut in halves, and these again,
while that pays: while the parts, each with a rate of its own, explain by the logarithm of Poisson's likelihood what was
lost so much better than one rate does that it is worth a price for each part. The price is the logarithm of TIMES the
number of networks that there are to choose from (as Foster and George's risk inflation criterion, and more where they
are few), so that parts which differ by chance stay together. Of all ways to cut, the best one is found from the
smallest networks upwards: a half without a difference in itself is cut where it takes that to part a small network from
its neighbours.

Connections of a place that are lost together, in a power cut, make its rate differ, too.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from control.core.states import Cause, State
from spark.jobs.dwell import with_network

DEPTH: Final = 16
WIDEST: Final = {4: 8, 6: 32}
"""Length of prefix, by the version of IP: of depth 0. Of DEPTH: 24 and 48."""

TIMES: Final = 10
"""By it none of 1,500 services is cut that have 4 to 1,024 networks and these one rate."""

WANTED_SHARE: Final = 0.02
"""Of a service's connections: for an experiment."""


def by_place(stays: DataFrame) -> DataFrame:
    """service, network (/24, /48), lost (connections that a probe found gone), hours (in IDLE and SLEEP, of all),
    connections (that began)."""
    asleep = F.col("state").isin(int(State.IDLE), int(State.SLEEP)) & F.col("ended").isNotNull()
    lost = asleep & (F.col("next") == int(State.CLOSED)) & (F.col("by") == int(Cause.PROBE_TIMEOUT))
    return with_network(stays, *(length + DEPTH for length in WIDEST.values())).groupBy("service", "network").agg(
        F.count_if(F.coalesce(lost, F.lit(False))).alias("lost"),
        (F.sum(F.when(asleep, F.col("ended") - F.col("began")).otherwise(0)) / 3_600_000).alias("hours"),
        F.count_if(F.col("cause") == int(Cause.CLIENT_CONNECT)).alias("connections"),
    )  # fmt: skip


def lost_by_network(places: DataFrame) -> DataFrame:
    """Of `by_place`: service, network (CIDR; they do not overlap), lost, hours, lost_per_1000_h, times_others (its rate
    over that of the service's others; null: there are none, or they lost none). The most first."""
    cut = _cut(places)
    found = cut.groupBy("service", _text().alias("network")).agg(
        F.sum("lost").alias("lost"), F.sum("hours").alias("hours")
    )
    lost, hours = (F.sum(name).over(Window.partitionBy("service")) - F.col(name) for name in ("lost", "hours"))
    rate = F.try_divide(1000 * F.col("lost"), F.col("hours"))
    return found.select(
        "*", rate.alias("lost_per_1000_h"), F.try_divide(rate, F.try_divide(1000 * lost, hours)).alias("times_others")
    ).orderBy(F.desc("lost"), "service", "network")  # fmt: skip


def _cut(places: DataFrame) -> DataFrame:
    """The same, and: six, number (the bits of its network), depth (of the network that it becomes a part of)."""
    price = F.log(TIMES * F.count("*").over(Window.partitionBy("service")))

    def cost(lost: Column, hours: Column) -> Column:
        """Of a network that is not split; 3 s: what was lost at once was not there for no time."""
        return price - F.when(lost > 0, lost * F.log(lost / F.greatest(hours, F.lit(3 / 3600)))).otherwise(0.0)

    known = places.withColumns({"six": F.col("network").contains(":"), "number": _number()})
    known = known.withColumns({f"n{depth}": _above(F.lit(depth)) for depth in range(DEPTH)})
    # best: of what a network is cut into; many: of its places, each of which has that in its row.
    known = known.withColumns(
        {"best": cost(F.col("lost"), F.col("hours")), "many": F.lit(1), "depth": F.lit(DEPTH)}
    )  # fmt: skip
    for depth in reversed(range(DEPTH)):
        # Sorted once: a network's rows are beside each other, whichever its length.
        network = Window.partitionBy("service", "six", *(f"n{one}" for one in range(depth + 1)))
        known = known.withColumns({
            "split": F.sum(F.col("best") / F.col("many")).over(network), "many": F.count("*").over(network),
            "whole": cost(*(F.sum(name).over(network) for name in ("lost", "hours"))),
        }).withColumns({
            "depth": F.when(F.col("whole") < F.col("split") - 1e-9, depth).otherwise(F.col("depth")),
            "best": F.least("whole", "split"),
        })  # fmt: skip
    return known


def _number() -> Column:
    """The bits of `network`; null: it is none."""
    octets = F.split("network", "[./]")
    groups = F.split(F.substring_index("network", "::", 1), ":")
    four = (F.get(octets, F.lit(at)).try_cast("long") * (1 << 16 - 8 * at) for at in range(3))
    six = (F.coalesce(F.conv(F.get(groups, F.lit(at)), 16, 10).try_cast("long"), F.lit(0)) * (1 << 32 - 16 * at)
           for at in range(3))  # fmt: skip
    return F.when(F.col("network").contains(":"), sum(six, F.lit(0))).otherwise(sum(four, F.lit(0)))


def _above(depth: Column) -> Column:
    """The bits of the network of this depth that `number` is in, the first of them alone."""
    return F.call_function("shiftright", F.col("number"), DEPTH - depth)


def _text() -> Column:
    """The network that a row of `_cut` is in."""
    bits = F.call_function("shiftleft", _above(F.col("depth")), DEPTH - F.col("depth"))
    octets = [(F.shiftright(bits, 16 - 8 * at) % 256).cast("string") for at in range(3)]
    groups = F.concat_ws(":", *(F.lower(F.hex(F.shiftright(bits, 32 - 16 * at) % 65_536)) for at in range(3)))
    length = {version: F.concat(F.lit("/"), F.col("depth") + widest) for version, widest in WIDEST.items()}
    six = F.concat(F.regexp_replace(groups, "(^|:)0(:0)*$", ""), F.lit("::"), length[6])
    four = F.concat(F.concat_ws(".", *octets, F.lit("0")), length[4])
    return F.coalesce(F.when(F.col("number").isNull(), F.col("network")), F.when(F.col("six"), six).otherwise(four))


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
