# SPDX-License-Identifier: Apache-2.0
"""What clients do: a row for each *cycle*, from one message of a client to the one before its next.

Messages are a renewal process in a time of its own, which a monotone function makes daily and weekly cycles of; a
client speaks when it speaks, whatever became of its connection, so that cycles do not depend on each other but by the
state in which the one before ended. All chance is by hash of the seed, the client and the cycle's number: the same
however Spark divides the work.

In a cycle the connection goes down as the policy says, is probed after each silence, and may be lost:

    id               of the connection
    client, network  numbers
    born             it never speaks
    s, e             begins, and the next one does; ms since 1970, as all times
    b                the last payload
    t1, t2, t3, down when it left ACTIVE, STANDBY, IDLE, and by which cause it came to IDLE
    source           the state before; CLOSED: there was no connection
    gap_before, tail_before   s since the last payload, and since the client was heard, when the cycle begins
    end              struct of at, cause, error, probes, silence_s: how the connection ended; null: it did not
    gone             when a server woke it in vain, 60 s before the end; null: none did
    wake             whether a server is the reason of the message
    tail             seconds from when the client was heard last to e
    heard            likewise, to t3
    state            at the end
    packs            what the silences came to: hour since 1970 << 20 | kind << 18 | seconds
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, LongType, StructType

from control.core.states import Cause, State
from spark.simulate.fleet import DAY_S, HABITS, HOUR_MS, Event, Fleet, Plan
from spark.simulate.probing import LONGEST_S, SPOKE, probed

ARRIVE_S: Final = 7200
"""Within which all clients come at the beginning."""
AFTER_OUTAGE_S: Final = 600
"""Within which those come that would have come in an outage."""
AFTER_RESTART_S: Final = 60
PEAK_H: Final = 14
PEAK_DAY: Final = 5.5
"""1970 began with a Thursday: Tuesday noon."""
RESET_S: Final = 120
PAUSE_S: Final = 60
"""From a lost connection to the next one, of clients that never speak; from a vain wake to the next connection."""

_TWO_53: Final = 2.0**-53


def uniform(seed: int, purpose: str, *of: Column) -> Column:
    """In (0, 1), by hash."""
    bits = F.shiftrightunsigned(F.xxhash64(F.lit(seed).cast("long"), F.lit(purpose), *of), 11)
    return (bits.cast("double") + 0.5) * _TWO_53


def normal(seed: int, purpose: str, *of: Column) -> Column:
    radius = F.sqrt(-2 * F.log(uniform(seed, f"{purpose} radius", *of)))
    return radius * F.cos(2 * math.pi * uniform(seed, f"{purpose} angle", *of))


def chosen(number: Column, values: Sequence[float]) -> Column:
    return F.element_at(F.lit([float(value) for value in values]), number.cast("int") + 1)


def pushed(t: Column, begin: Column, length: float, after: float) -> Column:
    """What happens in `length` ms from `begin` on happens in `after` ms behind them, in order."""
    within = (t > begin) & (t < begin + length + after)
    return F.when(within, begin + length + F.floor((t - begin) * after / (length + after))).otherwise(t).cast("long")


def _waves(fleet: Fleet) -> list[tuple[float, float, float]]:
    """Height (s), angular frequency (1/s) and phase of what is added to the renewals' time."""
    made = []
    for depth, period, peak in ((fleet.daily, DAY_S, PEAK_H * 3600), (fleet.weekly, 7 * DAY_S, PEAK_DAY * DAY_S)):
        turn = 2 * math.pi / period
        made.append((depth / turn, turn, math.pi - turn * ((peak - fleet.begin_ms / 1000) % period)))
    return made


def warped(fleet: Fleet, passed: Column) -> Column:
    """Seconds of the renewals' time since the fleet's begin to true ones, by which rates have their cycles."""
    waves = _waves(fleet)
    low, high = -7.0 * DAY_S, 7.0 * DAY_S
    for _ in range(60):  # where the renewals' time is when the fleet begins
        middle = (low + high) / 2
        early = middle + sum(height * math.sin(turn * middle + phase) for height, turn, phase in waves) < 0
        low, high = (middle, high) if early else (low, middle)
    s = passed + high
    return sum((height * F.sin(turn * s + phase) for height, turn, phase in waves), s)


def _most(of: Sequence[Event]) -> int:
    """In one network."""
    return max(Counter(one.network for one in of).values(), default=0)


def networks(spark: SparkSession, plan: Plan) -> DataFrame:
    """Small. outages, flaps: arrays of (begin, end), ms."""

    def within(of: Sequence[Event], number: int) -> list[tuple[int, int]]:
        return [(one.begin_ms, one.end_ms) for one in of if one.network == number]

    rows = [(one.number, one.service == "alarm", one.timeout_s, one.share, float(one.probe_s), float(one.most_s),
             one.first, one.block, within(plan.outages, one.number), within(plan.flapping, one.number))
            for one in plan.networks]  # fmt: skip
    spans = "array<struct<begin: long, end: long>>"
    return spark.createDataFrame(
        rows, "network int, alarm boolean, timeout double, share double, probe double, most double, first long, "
              f"block int, outages {spans}, flaps {spans}"
    )  # fmt: skip


def _messages(spark: SparkSession, fleet: Fleet, plan: Plan) -> DataFrame:
    """client, network, habit, k, s: when cycles begin, in order of k; k < 0: a flapping one."""
    seed, client = fleet.seed, F.col("client")
    firsts = F.lit([one.first for one in plan.networks])
    number = F.size(F.filter(firsts, lambda first: first <= F.col("client"))) - 1
    clients = spark.range(fleet.clients).select(F.col("id").alias("client"), number.alias("network"))
    habit = F.when(uniform(seed, "silent", client) < fleet.silent, 2).when(F.col("alarm"), 1).otherwise(0)
    scale = F.exp(fleet.spread * normal(seed, "scale", client))
    moments = [habit.moments() for habit in HABITS]
    expected = fleet.days * DAY_S / scale / chosen(F.col("habit"), [mean for mean, _ in moments])
    wide = chosen(F.col("habit"), [deviation / mean for mean, deviation in moments])
    count = F.ceil(expected + 5 * wide * F.sqrt(expected) + 10).cast("int")
    flaps = F.aggregate(
        "flaps", F.lit(0).cast("long"), lambda sum_, one: sum_ + F.floor((one.end - one.begin) / 40_000)
    )
    flapping = (uniform(seed, "flapping", client) < 0.5) & (F.col("habit") < 2)
    found = clients.join(F.broadcast(networks(spark, plan).drop("block", "first")), "network")
    found = found.withColumn("habit", habit).withColumn("scale", scale).withColumn("flapping", flapping)
    k = F.explode(F.sequence(-F.when(F.col("flapping"), flaps).otherwise(0).cast("int"), count))
    found = found.select("client", "network", "habit", "scale", "flapping", "flaps", "outages", k.alias("k"))
    of = (client, F.col("k"))

    def mode(name: str) -> Column:
        return chosen(F.col("habit"), [getattr(habit, name) for habit in HABITS])

    often = uniform(seed, "mode", *of) < mode("often")
    gap = F.when(often, mode("short_s")).otherwise(mode("long_s")) * F.col("scale") * F.exp(
        F.when(often, mode("short_sigma")).otherwise(mode("long_sigma")) * normal(seed, "gap", *of)
    )  # fmt: skip
    step = F.when(F.col("k") < 0, 0.0).when(F.col("k") == 0, ARRIVE_S * uniform(seed, "arrive", client)).otherwise(gap)
    by_number = Window.partitionBy("client").orderBy("k")
    passed = F.sum(step).over(by_number.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    s = (fleet.begin_ms + F.round(warped(fleet, passed) * 1000)).cast("long")
    # Flaps one after the other, 40 s apart, each up to 10 s earlier or later.
    s = F.when(F.col("k") >= 0, s)
    place = -F.col("k") - 1
    for at in range(_most(plan.flapping)):
        one = F.try_element_at("flaps", F.lit(at + 1))
        much = F.coalesce(F.floor((one.end - one.begin) / 40_000), F.lit(0))
        jitter = (uniform(seed, "flap", *of) - 0.5) * 20_000
        here = (F.col("k") < 0) & (place >= 0) & (place < much)
        s = F.when(here, (one.begin + place * 40_000 + 20_000 + jitter).cast("long")).otherwise(s)
        place = place - much
    found = found.withColumn("s", s).where(F.col("s").isNotNull())
    inside = F.exists("flaps", lambda one: (one.begin <= F.col("s")) & (F.col("s") < one.end))
    found = found.where((F.col("k") < 0) | ~F.col("flapping") | ~inside)
    for at in range(_most(plan.outages)):
        one = F.try_element_at("outages", F.lit(at + 1))
        length = F.coalesce(one.end - one.begin, F.lit(0))
        moved = pushed(F.col("s"), one.begin, length, AFTER_OUTAGE_S * 1000)  # type: ignore[arg-type]
        found = found.withColumn("s", F.coalesce(moved, F.col("s")))
    return found.select("client", "network", "habit", "k", "s")


def made(spark: SparkSession, fleet: Fleet, plan: Plan) -> DataFrame:
    seed, client, k = fleet.seed, F.col("client"), F.col("k")
    of = (client, k)
    in_time = Window.partitionBy("client").orderBy("s", "k")
    found = _messages(spark, fleet, plan).withColumns({
        "e": F.lead("s").over(in_time),
        "server_next": F.lead((F.col("k") > 0) & (uniform(seed, "server", *of) < fleet.servers)).over(in_time),
    })  # fmt: skip
    found = found.where((F.col("s") < fleet.until_ms) & (F.col("e") > F.col("s")))
    found = found.join(F.broadcast(networks(spark, plan).drop("alarm", "block", "first", "flaps")), "network")
    born = F.col("habit") == 2
    burst = F.exp(F.log(F.lit(3000.0)) + 0.8 * normal(seed, "burst", *of))
    short = F.least(burst, (F.col("e") - F.col("s")) / 2).cast("long")
    keepalive = F.when(uniform(seed, "keepalive", client) < fleet.keepalives,
                       F.exp(math.log(300) + math.log(24) * uniform(seed, "keepalive interval", client)))  # fmt: skip
    closes = (k < 0) | (~born & (uniform(seed, "close", *of) < fleet.closing))
    found = found.withColumns({
        "born": born,
        "b": F.col("s") + F.when(born, 0).otherwise(short),
        "closes": closes,
        "wake": (k > 0) & ~born & (uniform(seed, "server", *of) < fleet.servers),
        "server_next": F.coalesce("server_next", F.lit(False)) & ~born,
        "behind": uniform(seed, "behind", client) < F.col("share"),
        "keepalive": F.when(~born, keepalive),
        "off": -F.log(uniform(seed, "off", *of)) * DAY_S / fleet.off_per_day if fleet.off_per_day else F.lit(1e18),
    })  # fmt: skip
    quiet = fleet.quiet_s
    ends, kill = [F.when(born, F.greatest(F.col("e") - PAUSE_S * 1000, F.col("s") + 1))], F.lit(None).cast("long")
    found = found.withColumns({
        f"t{at}": F.when(~born, F.col("b") + seconds * 1000) for at, seconds in enumerate(quiet, 1)
    }).withColumn("down", F.lit(int(Cause.QUIET)))  # fmt: skip
    for one in plan.restarts:
        awake = F.coalesce((F.col("s") <= one.begin_ms) & (F.col("t2") > one.begin_ms), F.lit(False)) & (
            F.col("e") > one.begin_ms + 1) & ~(F.col("closes") & (F.col("b") <= one.begin_ms))  # fmt: skip
        if one.killed:
            kill = F.when(awake, one.begin_ms + 1).otherwise(kill)
        else:
            found = found.withColumns({
                "t2": F.when(awake, one.begin_ms).otherwise(F.col("t2")),
                "down": F.when(awake, int(Cause.SHUTDOWN)).otherwise(F.col("down")),
            })  # fmt: skip
    reset = F.aggregate(
        "outages", F.lit(None).cast("long"),
        lambda first, one: F.when((one.begin > F.col("s")) & (one.begin < F.col("e")), F.least(first, one.begin))
        .otherwise(first),
    ) + F.floor(RESET_S * 1000 * uniform(seed, "reset", *of))  # fmt: skip
    found = found.withColumns({"kill": kill, "reset": F.when(reset < F.col("e"), reset)})
    hard = F.least(F.col("e"), F.col("kill"), F.col("reset"), *ends)
    found = found.withColumn(
        "length", F.when(F.col("closes"), 0.0).otherwise(F.greatest((hard - F.col("b")) / 1000, F.lit(0.0)))
    )
    found = _probed(fleet, found)
    found = _ended(fleet, found)
    t = F.col("end.at")
    left = F.when(t.isNotNull(), int(State.CLOSED)).otherwise(state_at(F.col("e")))
    found = found.withColumn("state", left.cast("byte"))
    source = F.coalesce(F.lag("state").over(in_time), F.lit(int(State.CLOSED)).cast("byte"))
    found = found.withColumns({
        "source": source,
        "gap_before": (F.col("s") - F.lag("b").over(in_time)) / 1000,
        "tail_before": F.lag("tail").over(in_time),
    })  # fmt: skip
    life = F.sum((F.col("source") == int(State.CLOSED)).cast("long")).over(
        in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    spoke = F.col("end").isNull() & ~F.col("server_next") & F.col("state").isin(int(State.IDLE), int(State.SLEEP))
    last = F.array(pack(F.col("e"), SPOKE, F.col("tail")))
    return found.select(
        (F.shiftleft(client, 20) + life).alias("id"), "client", "network", "born", "k", "s", "e", "b", "t1", "t2", "t3",
        "down", "source", "gap_before", "tail_before", "end", "gone", "wake", "tail", "heard", "state",
        F.when(spoke, F.concat("packs", last)).otherwise(F.col("packs")).alias("packs"),
    )  # fmt: skip


def pack(at: Column, kind: int, seconds: Column) -> Column:
    hour = F.shiftleft(F.floor(at / HOUR_MS).cast("long"), 20)
    return hour + (kind << 18) + F.least(F.floor(seconds), F.lit(LONGEST_S)).cast("long")


def state_at(t: Column) -> Column:
    """Of a connection that has not ended by then."""
    return (
        F.when(F.col("born"), int(State.IDLE))
        .when(F.col("t3") < t, int(State.SLEEP))
        .when(F.col("t2") < t, int(State.IDLE))
        .when(F.col("t1") < t, int(State.STANDBY))
        .otherwise(int(State.ACTIVE))
    )


def _probed(fleet: Fleet, found: DataFrame) -> DataFrame:
    """And what probing.probed adds."""
    found = found.drop("outages")
    schema = StructType(found.schema.fields.copy())
    for name in ("cum", "lost", "heard"):
        schema.add(name, DoubleType())
    return found.mapInArrow(probed(fleet), schema.add("packs", ArrayType(LongType())))


def _ended(fleet: Fleet, found: DataFrame) -> DataFrame:
    """And end, gone, tail: the first of what ends the connection."""
    gave_up = fleet.retry_s * fleet.retries
    e, length = F.col("e"), (F.col("e") - F.col("b")) / 1000
    tail = length - F.col("cum")
    expired = F.coalesce(F.col("behind") & (tail - 1.5 * PAUSE_S >= F.col("timeout")), F.lit(False))
    alone = F.col("kill").isNull() & F.col("reset").isNull() & ~F.col("closes") & ~F.col("born")
    vain = alone & F.col("server_next") & expired & (F.col("lost") < 0) & (e - 90_000 > F.col("t2")) & (
        F.abs(e - 90_000 - F.col("t3")) > 1000)  # fmt: skip
    off = alone & (length >= F.col("off")) & F.col("t2").isNotNull() & (e > F.col("t2"))
    nothing = F.lit(None)

    def end(at: Column, cause: Cause, error: str | None = None, silence: Column = nothing) -> Column:
        probes = F.when(silence.isNotNull(), fleet.retries) if cause is Cause.PROBE_TIMEOUT else nothing
        return F.struct(at.cast("long").alias("at"), F.lit(int(cause)).alias("cause"), F.lit(error).alias("error"),
                        probes.cast("int").alias("probes"), silence.cast("long").alias("silence_s"))  # fmt: skip

    lost_at = F.round(F.col("b") + (F.col("cum") + F.col("lost") + gave_up) * 1000)
    reset_error = "ECONNRESET"
    return found.withColumns({
        "tail": tail,
        "gone": F.when(vain, e - 90_000),
        "end": F.when(F.col("kill").isNotNull() & (F.coalesce(F.col("reset"), e) > F.col("kill")),
                      end(F.col("kill"), Cause.RESTORE))
        .when(F.col("closes") & (F.coalesce(F.col("reset"), e) > F.col("b")),
              F.when(F.col("k") < 0, end(F.col("b"), Cause.CLIENT_CLOSE, reset_error))
              .otherwise(end(F.col("b"), Cause.CLIENT_CLOSE)))
        .when(F.col("lost") > 0, end(lost_at, Cause.PROBE_TIMEOUT, "ETIMEDOUT", F.col("lost") + gave_up))
        .when(F.col("reset").isNotNull(), end(F.col("reset"), Cause.CLIENT_CLOSE, reset_error))
        .when(vain, end(e - 30_000, Cause.WRITE_TIMEOUT, "ETIMEDOUT"))
        .when(F.col("born"), end(F.greatest(e - PAUSE_S * 1000, F.col("s") + 1), Cause.CLIENT_CLOSE))
        .when(off, end(e, Cause.CLIENT_CONNECT)),
    })  # fmt: skip
