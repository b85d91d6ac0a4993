# SPDX-License-Identifier: Apache-2.0
"""Clients and networks that reconnect too often, fleets that fail together, and deaths that nobody noticed for long.

Nothing is sorted by connection: of the history, rows by which connections begin and end are read.

Flapping
========

A client is a service and an address, since its port is another one each time. Behind a carrier's NAT that is many
clients, so what counts is not how many connections began:

    reconnects    of an hour: the lesser of how many began (that the client made) and ended in it. Clients that come in
                  the morning, or leave in the evening, do not reconnect
    held          connections that the address had at the same time, on average: each of them may be another client
    usual         of the service's addresses the medians, each address with the weight of the time that it held
                  connections (else many addresses that were used once would say what is usual): reconnects for each
                  connection held (one at least), in the record and in an address's worst hour (one at least); and how
                  long a connection lasts

An address that holds L connections, each of which lasts W as is usual, begins L/W of them (Little). It is granted

    mu = 3 * max(max(held, 1) * usual reconnects, held * time / usual life)

three times what its clients would make were they like others, since clients differ. That n > mu reconnects happen by
chance, were they independent and mu of them to be expected (Poisson), has at most the probability

    exp(-(n ln(n/mu) - n + mu))

which is Chernoff's bound of the tail. It is tested for the record and for the address's worst hour. `chance` is the
lesser of the two, times 2, times the number of addresses of the service: of all of these at most as many would be
expected to come out so by chance (Bonferroni). An address flaps where chance <= ALARMS, 0.01, and it made LEAST
reconnects for each connection held (one at least) in an hour. The worst hour is chosen of all hours of the record: for
that, too, it is compared with others' worst hours. A network is tested likewise, against the addresses' medians.

Not found: one client that flaps among thousands behind one address (the network's others are as usual); a client that
connects more often than others for as short as they do, which is what many clients behind one address look like; and a
service in which those that flap hold connections for half of the time of all, since that is its usual. Nor are single
clients, unless they exceed an address of many, where most connections are of NATs and last for seconds.

Failing together
================

Connections that end are counted by minute. Usual is the median of the minutes of the hour, and of this hour's and its
two neighbours' the median again: an hour that fails as a whole does not tell what is usual, and a day's cycle changes
it by less than twice from hour to hour. A minute fails with 20 ends at least, where Chernoff's bound of the tail above
mu = 2 * usual (one at least) is at most ALARMS / LOOKED_AT: 0.01 minutes by chance in a month of 23,000 networks.
Minutes that follow each other are one failure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from control.core.states import LEGAL, Cause, State
from spark.jobs.dwell import HOUR_MS, QUANTILES, with_network
from spark.stays import CAUSES, DAY_MS, STATES, is_time

CLIENTS: Final = ("service", "address")
NETWORKS: Final = ("service", "network")

ALARMS: Final = 0.01
"""That are false: of addresses of a service, and of minutes of all networks, so many are expected at most."""

LEAST: Final = 6
"""Reconnects in an hour, for each connection held: fewer are no flapping, however unusual."""

TIMES_USUAL: Final = 3
TOP: Final = 1000

MINUTE_MS: Final = 60_000
LEAST_ENDS: Final = 20
TIMES_ENDS: Final = 2
LOOKED_AT: Final = 1e9

_LEGAL: Final = [
    f"{STATES[source]} {STATES[target]} {CAUSES[cause]}"
    for source, target, cause in sorted(LEGAL)
    if source == State.NONE or target == State.CLOSED
]
_PATH_ERRORS: Final = ("ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH")

SERVER, NETWORK, RESET, FIN, BACK, APPLIANCE, OPERATOR = (
    "server", "network", "client reset", "client close", "client came anew", "appliance", "operator",
)  # fmt: skip
LIKELY: Final = (SERVER, NETWORK, RESET, FIN, BACK, APPLIANCE, OPERATOR)


def beyond(count: Column, mu: Column) -> Column:
    """-ln of Chernoff's bound of P(X >= count), X of Poisson's distribution with the mean mu > 0; 0: count <= mu."""
    tail = count * F.log(count / mu) - count + mu
    return F.when(count > mu, tail).otherwise(F.lit(0.0))


def events(history: DataFrame, stays: DataFrame, first_ms: int, until_ms: int) -> DataFrame:
    """When connections of the record, first_ms..until_ms, begin and end. stays: all rows of spark.stays.of.

        id, service, address, network
        at              ms since 1970
        born            it began, or was there when the record began, at first_ms; else it ended. One that a restart put
                        back did neither
        by_client       it began, and the client made it
        cause, error    as in the history; null: it was there when the record began
        silence_s       of an end

    One that made no transition in the record is not known of. Rows of the history that are there twice count twice."""
    ends = F.col("to") == State.CLOSED.label
    begins = (F.col("from") == State.NONE.label) & (F.col("cause") != Cause.RESTORE.label)
    at = F.unix_millis("at")
    good = F.concat_ws(" ", "from", "to", "cause").isin(_LEGAL) & is_time(at, until_ms + DAY_MS) & (F.col("id") != 0)
    of_record = history.where((ends | begins) & good).select(
        "id", "service", "address", at.alias("at"), begins.alias("born"),
        (begins & (F.col("cause") == Cause.CLIENT_CONNECT.label)).alias("by_client"), "cause", "error", "silence_s",
    )  # fmt: skip
    there = stays.where(F.col("before").isNotNull()).select(
        "id", "service", "address", F.lit(first_ms).alias("at"), F.lit(True).alias("born"),
        F.lit(False).alias("by_client"),
    )  # fmt: skip
    return with_network(of_record.unionByName(there, allowMissingColumns=True))


def hours(found: DataFrame, by: Sequence[str], first_ms: int, until_ms: int) -> DataFrame:
    """Of `events`, for each of `by` and each hour of the record, first_ms..until_ms, in which there are some:

    hour            its number since 1970
    begun, ended    connections that clients made, and that ended
    before, step    connections that there are when it begins; how many more at its end. Those that were there when the
                    record began are in both of its first hour
    ms              what those that begin and end in it add to the time that connections were there, and take from it
    held            connections on average"""
    at = F.greatest(F.least(F.col("at"), F.lit(until_ms - 1)), F.lit(first_ms))
    hour = F.floor(at / HOUR_MS).cast("long")
    sign = F.when(F.col("born"), 1).otherwise(-1)
    counted = found.groupBy(*by, hour.alias("hour")).agg(
        F.count_if("by_client").alias("begun"),
        F.count_if(~F.col("born")).alias("ended"),
        F.sum(sign).alias("step"),
        F.count_if(F.col("cause").isNull()).alias("first"),
        F.sum(sign * (_ends(hour, until_ms) - at)).alias("ms"),
    )
    earlier = Window.partitionBy(*by).orderBy("hour").rowsBetween(Window.unboundedPreceding, -1)
    there = F.coalesce(F.sum("step").over(earlier), F.lit(0))
    lasts = _ends(F.col("hour"), until_ms) - F.greatest(F.col("hour") * HOUR_MS, F.lit(first_ms))
    known = counted.withColumn("there", there).withColumn("before", F.col("there") + F.col("first"))
    held = F.greatest(F.col("there") + F.col("ms") / lasts, F.lit(0.0))
    return known.withColumn("held", held).drop("there", "first")


def _ends(hour: Column, until_ms: int) -> Column:
    """When an hour ends in the record, ms since 1970."""
    return F.least((hour + 1) * HOUR_MS, F.lit(until_ms))


def totals(by_hour: DataFrame, by: Sequence[str], first_ms: int, until_ms: int) -> DataFrame:
    """Of `hours`, for each of `by`:

    begun, ended, most_per_hour    connections that clients made, and that ended; most that began in an hour
    reconnects, held               of the record: all of them; connections on average
    worst                          reconnects and held of the hour whose reconnects are the least likely ones
    worst_rate                     reconnects in an hour for each connection held (one at least), at most"""
    reconnects = F.least("begun", "ended")
    at_once = F.greatest("held", F.lit(1.0))
    unlikely = F.struct(beyond(reconnects, TIMES_USUAL * at_once), reconnects / at_once)
    ms = F.sum(F.col("ms") + F.col("step") * (until_ms - _ends(F.col("hour"), until_ms)))
    return by_hour.groupBy(*by).agg(
        F.sum("begun").alias("begun"),
        F.sum("ended").alias("ended"),
        F.max("begun").alias("most_per_hour"),
        F.sum(reconnects).alias("reconnects"),
        F.greatest(ms / (until_ms - first_ms), F.lit(0.0)).alias("held"),
        F.max_by(F.struct(reconnects.alias("reconnects"), "held"), unlikely).alias("worst"),
        F.max(reconnects / at_once).alias("worst_rate"),
    )


def usual(clients: DataFrame, first_ms: int, until_ms: int) -> DataFrame:
    """Of `totals` by CLIENTS, for each service the medians of its addresses, by the time that they held connections:

    of, clients     the service; how many addresses it has
    usual_record    reconnects in the record, for each connection held (one at least); one at least
    usual_worst     worst_rate; one at least
    usual_hours     how long a connection lasts: the time that connections were there over how many ended

    Each of them up to 2 % wrong: values are rounded, so that few are told apart."""
    weight = F.ceil(F.col("held") * 1000 + 1)

    def median(value: Column) -> Column:
        rounded = F.exp(F.round(F.log(F.greatest(value, F.lit(1e-6))) * 32) / 32)
        return F.percentile(rounded, 0.5, weight)

    lasts = F.col("held") * ((until_ms - first_ms) / HOUR_MS) / F.greatest("ended", F.lit(1))
    return clients.groupBy(F.col("service").alias("of")).agg(
        F.count("*").alias("clients"),
        F.greatest(median(F.col("reconnects") / F.greatest("held", F.lit(1.0))), F.lit(1.0)).alias("usual_record"),
        F.greatest(median(F.col("worst_rate")), F.lit(1.0)).alias("usual_worst"),
        F.greatest(median(lasts), F.lit(1e-6)).alias("usual_hours"),
    )


def flapping(found: DataFrame, total: DataFrame, usually: DataFrame, by: Sequence[str], first_ms: int,
             until_ms: int) -> DataFrame:  # fmt: skip
    """The TOP that flap most surely. found: `events`; total: `totals` by the same; usually: `usual`. For each of `by`:

    begun, ended, most_per_hour, held    see `totals`
    times_usual      its reconnects over what is usual, in the record or in the worst hour
    median_life_s    of connections that began and ended in the record; null: there are none
    likely_cause     cause and error of most of its ends
    score            -log10 of `chance` (see above); at least 2"""

    def granted(held: Column, reconnects: str, of_hours: float) -> Column:
        at_once = F.greatest(held, F.lit(1.0)) * F.col(reconnects)
        return TIMES_USUAL * F.greatest(at_once, held * of_hours / F.col("usual_hours"))

    tests = [
        (F.col("reconnects"), granted(F.col("held"), "usual_record", (until_ms - first_ms) / HOUR_MS)),
        (F.col("worst.reconnects"), granted(F.col("worst.held"), "usual_worst", 1.0)),
    ]
    score = (F.greatest(*(beyond(*test) for test in tests)) - F.log(2.0 * F.col("clients"))) / math.log(10)
    times = F.greatest(*(TIMES_USUAL * count / mu for count, mu in tests))
    named = (
        total.where(F.col("worst_rate") >= LEAST)
        .join(F.broadcast(usually), F.col("service").eqNullSafe(F.col("of")))
        .withColumns({"score": score, "times_usual": times})
        .where(F.col("score") >= -math.log10(ALARMS))
        .orderBy(F.desc("score"), *by)
        .limit(TOP)
        .select(F.struct(*by).alias("named"), "begun", "ended", "most_per_hour", "held", "times_usual", "score")
    )
    same = reduce(and_, (F.col(name).eqNullSafe(F.col(f"named.{name}")) for name in by))
    ended_ms, cause = (F.max(F.when(~F.col("born"), value)) for value in (F.col("at"), _cause()))
    life = (
        found.join(F.broadcast(named), same)
        .groupBy(*named.columns, "id")
        .agg(
            cause.alias("cause"),
            (ended_ms - F.min(F.when(F.col("born") & F.col("cause").isNotNull(), F.col("at")))).alias("ms"),
        )
    )
    of = ("begun", "ended", "most_per_hour", "held", "times_usual")
    return life.groupBy(*named.columns).agg(
        F.percentile_approx(F.when(F.col("ms") >= 0, F.col("ms") / 1000), 0.5, 10_000).alias("median_life_s"),
        F.mode("cause", True).alias("likely_cause"),
    ).select("named.*", *of, "median_life_s", "likely_cause", "score")  # fmt: skip


def _cause() -> Column:
    """Cause and error, a text."""
    return F.concat_ws(" ", "cause", "error")


def likely() -> Column:
    """Of LIKELY, what ended a connection, by its cause and error."""
    cause = F.col("cause")
    of_path = [one.label for one in (Cause.PROBE_TIMEOUT, Cause.WRITE_TIMEOUT)]
    of_client = cause == Cause.CLIENT_CLOSE.label
    return (
        F.when(cause == Cause.SERVER_CLOSE.label, SERVER)
        .when(cause.isin(of_path) | (of_client & F.col("error").isin(*_PATH_ERRORS)), NETWORK)
        .when(of_client & F.col("error").isNotNull(), RESET)
        .when(of_client, FIN)
        .when(cause == Cause.CLIENT_CONNECT.label, BACK)
        .when(cause == Cause.COMMAND.label, OPERATOR)
        .otherwise(APPLIANCE)
    )


def usual_ends(ends: DataFrame, by: Sequence[str], first_ms: int, until_ms: int) -> DataFrame:
    """For each of `by` and each hour in which some end:

    hour        its number since 1970
    minutes     of those with ends, an array of (ended, minute: its number since 1970)
    usual       ends in a minute, as is usual"""
    minute = F.floor(F.col("at") / MINUTE_MS).cast("long")
    counted = ends.groupBy(*by, minute.alias("minute")).agg(F.count("*").alias("ended"))
    per_hour = HOUR_MS // MINUTE_MS
    hour = F.floor(F.col("minute") / per_hour).cast("long")
    of_hour = counted.groupBy(*by, hour.alias("hour")).agg(
        F.sort_array(F.collect_list(F.struct("ended", "minute")), asc=False).alias("minutes")  # 60 at most
    )
    begins = F.greatest(F.col("hour") * per_hour, F.lit(first_ms // MINUTE_MS))
    ends_at = F.least((F.col("hour") + 1) * per_hour, F.lit((until_ms - 1) // MINUTE_MS + 1))
    middle = F.floor((ends_at - begins) / 2).cast("int")  # minutes without ends are the last
    median = F.coalesce(F.get("minutes", middle)["ended"], F.lit(0))
    found = of_hour.withColumn("median", median)
    ordered = Window.partitionBy(*by).orderBy("hour")

    def neighbour(other: Column, there: Column, away: int) -> Column:
        """The median of the hour before or after; null: the record has none."""
        is_next = F.coalesce(other["hour"] == F.col("hour") + away, F.lit(False))
        return F.when(there, F.when(is_next, other["median"]).otherwise(0))

    both = F.struct("hour", "median")
    medians = F.array(
        F.col("median"),
        neighbour(F.lag(both).over(ordered), F.col("hour") > first_ms // HOUR_MS, -1),
        neighbour(F.lead(both).over(ordered), F.col("hour") < (until_ms - 1) // HOUR_MS, 1),
    )
    sorted_ = F.sort_array(F.array_compact(medians))
    return found.withColumn("usual", sorted_[F.floor((F.size(sorted_) - 1) / 2).cast("int")]).drop("median")


def failures(found: DataFrame, by_hour: DataFrame, by: Sequence[str], first_ms: int, until_ms: int) -> DataFrame:
    """When many connections ended together. found: `events`; by_hour: `hours` by the same. For each of `by`:

    began, minutes       the first minute, a timestamp; how many
    ended, addresses     connections; how many clients' addresses they are of, to some 5 %
    usual_per_minute     connections that end
    connected_share      of the connections that there were when the hour began; null: none are known of
    likely_cause         of most: `server` (it closed), `network` (the path did not answer), `client reset`, `client
                         close` (by FIN), `client came anew` (by another connection), `appliance` (it ended, or ran
                         short), `operator`
    cause_share          of those that ended"""
    ends = found.where(~F.col("born"))
    mu = F.greatest(TIMES_ENDS * F.col("usual"), F.lit(1.0))
    failed = F.filter(
        "minutes",
        lambda one: (one["ended"] >= LEAST_ENDS) & (beyond(one["ended"], mu) >= math.log(LOOKED_AT / ALARMS)),
    )
    flagged = usual_ends(ends, by, first_ms, until_ms).select(
        F.struct(*by).alias("of"), "usual", F.explode(failed).alias("one")
    ).select("of", "usual", "one.minute")  # fmt: skip
    ordered = Window.partitionBy("of").orderBy("minute")
    new = F.coalesce(F.col("minute") - F.lag("minute").over(ordered) > 1, F.lit(True)).cast("int")
    flagged = flagged.withColumn("new", new).withColumn("nth", F.sum("new").over(ordered)).drop("new")
    same = [F.col(name).eqNullSafe(F.col(f"of.{name}")) for name in by]
    minute = F.floor(F.col("at") / MINUTE_MS).cast("long")
    counts = (F.struct(F.count_if(likely() == one).alias("count"), F.lit(one).alias("cause")) for one in LIKELY)
    events_of = (
        ends.join(flagged, reduce(and_, [*same, minute == F.col("minute")]))
        .groupBy("of", "nth")
        .agg(
            F.min("minute").alias("minute"),
            (F.max("minute") - F.min("minute") + 1).alias("minutes"),
            F.count("*").alias("ended"),
            F.approx_count_distinct("address").alias("addresses"),
            F.avg("usual").alias("usual_per_minute"),
            F.array_max(F.array(*counts)).alias("most"),
        )
        .withColumn("at_hour", F.floor(F.col("minute") * MINUTE_MS / HOUR_MS).cast("long"))
    )
    there = by_hour.select(*by, "hour", "before")
    known = events_of.join(there, reduce(and_, [*same, F.col("hour") == F.col("at_hour")]), "left")
    share = F.least(F.try_divide("ended", "before"), F.lit(1.0))
    return known.select(
        "of.*", F.timestamp_millis(F.col("minute") * MINUTE_MS).alias("began"), "minutes", "ended", "addresses",
        "usual_per_minute", share.alias("connected_share"), F.col("most.cause").alias("likely_cause"),
        (F.col("most.count") / F.col("ended")).alias("cause_share"),
    )  # fmt: skip


def silent_deaths(found: DataFrame, by: Sequence[str]) -> DataFrame:
    """Connections that ended since their clients answered no more, and how long nobody knew. For each of `by`:

    ended, of_ends          how many did; their share of all that ended
    by_probes, by_timeout   of them: by keep-alive probes; by ETIMEDOUT, since what was sent was not acknowledged
    known                   of how many it is known how long they had been silent
    p50_s .. p99_s, most_s  how long those had been silent when they ended"""
    ends = found.where(~F.col("born"))
    probes = F.col("cause") == Cause.PROBE_TIMEOUT.label
    timeout = (F.col("cause") == Cause.CLIENT_CLOSE.label) & F.coalesce(F.col("error") == "ETIMEDOUT", F.lit(False))
    silence_s = F.when(probes | timeout, F.col("silence_s"))
    counted = ends.groupBy(*by).agg(
        F.count_if(probes | timeout).alias("ended"),
        F.avg((probes | timeout).cast("int")).alias("of_ends"),
        F.count_if(probes).alias("by_probes"),
        F.count_if(timeout).alias("by_timeout"),
        F.count(silence_s).alias("known"),
        F.percentile_approx(silence_s, list(QUANTILES), 10_000).alias("quantiles"),
        F.max(silence_s).alias("most_s"),
    )
    quantiles = (F.col("quantiles")[at].alias(f"p{round(share * 100)}_s") for at, share in enumerate(QUANTILES))
    return counted.where("ended > 0").select(
        *by, "ended", "of_ends", "by_probes", "by_timeout", "known", *quantiles, "most_s"
    )
