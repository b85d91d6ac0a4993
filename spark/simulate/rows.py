# SPDX-License-Identifier: Apache-2.0
"""Cycles to rows of the tables. Frames that are to be written have no `seq`, but what they are to be ordered by: t
(ms), client, k, place."""

from __future__ import annotations

import math
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from control.core.states import Cause, State
from spark.simulate.cycles import AFTER_RESTART_S, normal, pushed, state_at, uniform
from spark.simulate.fleet import HOUR_MS, Fleet, Plan
from spark.simulate.probing import ANSWERED, LOST, SPOKE
from spark.stays import CAUSES, STATES

CELL_STATES: Final = (State.ACTIVE, State.STANDBY, State.IDLE, State.SLEEP)
BYTES: Final = {"ACTIVE": 24_000, "STANDBY": 9_000, "IDLE": 81, "SLEEP": 46, "born": 41}
"""Of memory that a connection takes."""
RESIDENT: Final = 60_000_000
"""Of the daemon without connections, bytes."""


def transitions(fleet: Fleet, plan: Plan, cycles: DataFrame) -> DataFrame:
    """id, client, network, k, place, t, from, to, cause (numbers), gap_ms, silence_s, probes, error, born, dropped."""
    end_at = F.coalesce("end.at", "e")
    before = F.coalesce("gone", end_at)
    nothing = F.lit(None)

    def row(place: int, when: Column, at: Column, source: Column, target: int, cause: Column,
            gap_s: Column = nothing, silence_s: Column = nothing, probes: Column = nothing,
            error: Column = nothing) -> Column:  # fmt: skip
        return F.when(when, F.struct(
            F.lit(place).cast("byte").alias("place"), at.cast("long").alias("t"), source.cast("byte").alias("from"),
            F.lit(target).cast("byte").alias("to"), cause.cast("byte").alias("cause"),
            F.greatest(gap_s * 1000, F.lit(0)).cast("long").alias("gap_ms"),
            F.floor(silence_s).cast("long").alias("silence_s"), probes.cast("int").alias("probes"),
            error.cast("string").alias("error"),
        ))  # fmt: skip

    def is_in(state: State, column: str = "source") -> Column:
        return F.col(column) == int(state)

    quiet, born, b = F.lit(int(Cause.QUIET)), F.col("born"), F.col("b")
    new = is_in(State.CLOSED)
    asleep = F.col("source").isin(int(State.IDLE), int(State.SLEEP))
    woken = F.when(F.col("wake"), int(Cause.SERVER_ATTACH)).otherwise(int(Cause.CLIENT_DATA))
    source = F.when(new, int(State.NONE)).otherwise(F.col("source"))
    gap, silence = F.col("gap_before"), F.when(asleep, F.col("tail_before"))
    left = F.when(F.col("t1") < F.col("t2"), int(State.STANDBY)).otherwise(int(State.ACTIVE))
    last = F.when(F.col("gone").isNotNull(), int(State.ACTIVE)).otherwise(state_at(end_at))
    rows = F.array(
        row(0, new & born, F.col("s"), F.lit(int(State.NONE)), State.IDLE, F.lit(int(Cause.CLIENT_CONNECT))),
        row(0, ~born & ~is_in(State.ACTIVE), F.col("s"), source, State.ACTIVE,
            F.when(new, int(Cause.CLIENT_CONNECT)).otherwise(woken), gap, silence),
        row(1, (F.col("t1") < before) & (F.col("t1") < F.col("t2")), F.col("t1"), F.lit(int(State.ACTIVE)),
            State.STANDBY, quiet, (F.col("t1") - b) / 1000),
        row(2, F.col("t2") < before, F.col("t2"), left, State.IDLE, F.col("down"), (F.col("t2") - b) / 1000),
        row(3, F.col("t3") < before, F.col("t3"), F.lit(int(State.IDLE)), State.SLEEP, quiet,
            (F.col("t3") - b) / 1000, (F.col("t3") - b) / 1000 - F.col("heard")),
        row(4, F.col("gone").isNotNull(), F.col("gone"), state_at(F.col("gone")), State.ACTIVE,
            F.lit(int(Cause.SERVER_ATTACH)), (F.col("gone") - b) / 1000, F.col("tail") - 90),
        row(5, F.col("end").isNotNull(), F.col("end.at"), last, State.CLOSED, F.col("end.cause"),
            (F.col("end.at") - b) / 1000, F.col("end.silence_s"), F.col("end.probes"), F.col("end.error")),
    )  # fmt: skip
    of = ("id", "client", "network", "k", "born")
    return _in_time(fleet, plan, cycles.select(*of, F.explode(rows).alias("row")).where(F.col("row").isNotNull())
                    .select(*of, "row.*"))  # fmt: skip


def _in_time(fleet: Fleet, plan: Plan, rows: DataFrame) -> DataFrame:
    """The daemon makes what happens while there is none once it has begun; `dropped`: and has no room for it."""
    t, dropped = F.col("t"), F.lit(False)
    for one in plan.restarts:
        t = pushed(t, F.lit(one.begin_ms), one.end_ms - one.begin_ms, AFTER_RESTART_S * 1000)
    rows = rows.withColumn("t", t).where(F.col("t") < fleet.until_ms)
    for one in plan.drops:
        dropped = dropped | ((F.col("t") >= one.begin_ms) & (F.col("t") < one.end_ms))
    return rows.withColumn("dropped", dropped)


def told(plan: Plan, fleet: Fleet, t: Column) -> Column:
    """The time, ms, as the appliance's clock has it."""
    for one in plan.steps:
        t = t - F.when(F.col("t") >= one.begin_ms, fleet.step_s * 1000).otherwise(0)
    return t


def told_ms(plan: Plan, fleet: Fleet, t: int) -> int:
    return t - sum(fleet.step_s * 1000 for one in plan.steps if t >= one.begin_ms)


def address(fleet: Fleet, plan: Plan) -> Column:
    """Of a row's client."""

    def of_network(values: list[int]) -> Column:
        return F.element_at(F.lit(values), F.col("network") + 1)

    place = F.col("client") - of_network([one.first for one in plan.networks])
    block = of_network([one.block for one in plan.networks]) + F.floor(place / 65_000)
    host = place % 65_000 + 257
    octets = (10 + F.floor(block / 256), block % 256, F.floor(host / 256), host % 256)
    return F.array_join(F.array(*(octet.cast("string") for octet in octets)), ".")


def service(plan: Plan) -> Column:
    return F.element_at(F.lit([one.service for one in plan.networks]), F.col("network") + 1)


def port(fleet: Fleet) -> Column:
    return (1024 + F.floor(60_000 * uniform(fleet.seed, "port", F.col("id")))).cast("int")


def _payload(fleet: Fleet, direction: str, median: float) -> Column:
    """Bytes of a transition."""
    size = F.exp(math.log(median) + 0.7 * normal(fleet.seed, direction, F.col("id"), F.col("t")))
    awake = F.col("from").isin(int(State.ACTIVE), int(State.STANDBY)) | (F.col("to") == int(State.ACTIVE))
    spoke = (F.col("from") == int(State.ACTIVE)) & (F.col("cause") != int(Cause.WRITE_TIMEOUT))
    first = (F.col("cause") == int(Cause.CLIENT_DATA)) & (direction == "rx")
    return F.when(awake & spoke, size).when(first, 60).otherwise(0).cast("long")


def history(fleet: Fleet, plan: Plan, rows: DataFrame) -> DataFrame:
    """Of `transitions`, without those that were dropped, with the columns of an export."""
    names = {"from": STATES, "to": STATES, "cause": CAUSES}
    texts = {name: F.element_at(F.lit(list(of)), F.col(name).cast("int") + 1) for name, of in names.items()}
    server = F.concat(F.lit("192.0.2."), (F.col("client") % 20 + 1).cast("string"), F.lit(":7000"))
    return rows.withColumns({
        "rx_bytes": _payload(fleet, "rx", 400), "tx_bytes": _payload(fleet, "tx", 150),
        "server": F.when(F.col("from") == int(State.ACTIVE), server),
        "silence_s": F.when(F.col("silence_s") >= 1, F.col("silence_s")),
        "at": F.timestamp_millis(told(plan, fleet, F.col("t"))), "address": address(fleet, plan),
        "port": port(fleet), "service": service(plan), "gap_ms": F.coalesce("gap_ms", F.lit(0).cast("long")),
    }).withColumns(texts)  # fmt: skip


# -- attaches ---------------------------------------------------------------------------------------------------------


def attaches(fleet: Fleet, plan: Plan, cycles: DataFrame) -> DataFrame:
    """A row for each wake by a server, and for each that was refused."""
    seed, of = fleet.seed, (F.col("client"), F.col("k"))
    nothing, state = F.lit(0), F.col("source")
    closed = state == int(State.CLOSED)

    def row(place: int, when: Column, at: Column, state: Column, error: str | None, there: bool, answers: bool,
            wait_ms: Column) -> Column:  # fmt: skip
        return F.when(when, F.struct(
            F.lit(place).cast("byte").alias("place"), at.cast("long").alias("t"), state.cast("byte").alias("state"),
            F.lit(error).alias("error"), F.lit(there).alias("there"), F.lit(answers).alias("answers"),
            wait_ms.alias("answer"),
        ))  # fmt: skip

    def log_normal(purpose: str, median: Column, sigma: float) -> Column:
        return median * F.exp(sigma * normal(seed, purpose, *of))

    slow = F.when(state == int(State.SLEEP), 6.0).when(state == int(State.IDLE), 3.0).otherwise(1.0)
    answer = log_normal("answer", slow, 0.5)
    connected = state.isin(int(State.STANDBY), int(State.IDLE), int(State.SLEEP))
    refused = uniform(seed, "refused", *of) < fleet.refused
    rows = F.array(
        row(0, F.col("wake") & connected, F.col("s"), state, None, True, True, answer),
        row(1, F.col("wake") & connected & refused, F.col("s") - 5000, nothing, "EBUSY", True, False, answer),
        row(2, F.col("wake") & closed, F.col("s") - 5000, nothing, "ENOENT", False, False, answer),
        row(3, F.col("gone").isNotNull(), F.col("gone"), state_at(F.col("gone")), None, True, False, answer),
    )  # fmt: skip
    rtt = F.element_at(F.lit([one.rtt_ms for one in plan.networks]), F.col("network") + 1)
    made = cycles.select("id", "client", "network", "k", F.explode(rows).alias("row"), log_normal("first", rtt, 0.4)
                         .alias("first")).where(F.col("row").isNotNull())  # fmt: skip
    made = made.select("id", "client", "network", "k", "first", "row.*")
    made = made.where((F.col("t") < fleet.until_ms) & (F.col("t") >= fleet.begin_ms))
    there = F.col("there")
    return made.withColumns({
        "at": F.timestamp_millis(told(plan, fleet, F.col("t"))), "way": F.lit("connect"), "step": nothing,
        "server": F.concat(F.lit("192.0.2."), (F.col("client") % 20 + 1).cast("string"), F.lit(":7000")),
        "target": F.concat(address(fleet, plan), F.lit(":7000")), "port": F.when(there, port(fleet)),
        "address": F.when(there, address(fleet, plan)), "service": F.when(there, service(plan)),
        "found": F.when(F.col("state") != 0, F.element_at(F.lit(STATES), F.col("state").cast("int") + 1)),
        "answer_ms": F.ceil("answer"), "id": F.when(there, F.col("id")),
        "first_ms": F.when(F.col("answers"), F.ceil(F.col("answer") + F.col("first"))),
    })  # fmt: skip


# -- snapshots --------------------------------------------------------------------------------------------------------


def silences(cycles: DataFrame, fleet: Fleet) -> DataFrame:
    """network, hour, name, count: what was answered, lost and spoken after, and probes."""
    packs = cycles.select("network", F.explode("packs").alias("pack"))
    seconds = F.col("pack").bitwiseAND((1 << 18) - 1)
    kind = F.shiftright("pack", 18).bitwiseAND(3)
    octave = F.floor(F.log2(seconds + 0.5)).cast("int")
    fine = F.when(seconds < 16, seconds - seconds % 2).otherwise(
        seconds - seconds % F.expr("shiftleft(1L, octave - 3)")
    )
    coarse = F.when(seconds < 16, 0).otherwise(F.expr("shiftleft(1L, octave)"))
    classed = packs.withColumn("octave", octave).select(
        "network", F.shiftright("pack", 20).alias("hour"), kind.alias("kind"),
        F.when(kind == SPOKE, coarse).otherwise(fine).alias("after"),
    ).where(F.col("hour") < fleet.until_ms // HOUR_MS)  # fmt: skip
    counted = classed.groupBy("network", "hour", "kind", "after").count()
    names = {ANSWERED: "answered", LOST: "lost", SPOKE: "spoke"}
    name = F.element_at(F.lit([names[at] for at in sorted(names)]), F.col("kind").cast("int") + 1)
    by_class = counted.select("network", "hour", F.concat_ws(" after ", name, F.col("after").cast("string"))
                              .alias("name"), "count")  # fmt: skip
    sent = F.sum(F.when(F.col("kind") == ANSWERED, F.col("count")).when(F.col("kind") == LOST,
                 fleet.retries * F.col("count")).otherwise(0))  # fmt: skip
    probes = counted.groupBy("network", "hour").agg(sent.alias("count")).withColumn("name", F.lit("probes"))
    return by_class.unionByName(probes)


def moves(fleet: Fleet, plan: Plan, rows: DataFrame) -> DataFrame:
    """network, hour, run (of the daemon), dropped, from, to, cause, born, count, left_ms, rx_bytes, tx_bytes: sums of
    `transitions`; left_ms: to the end of the hour."""
    hour, run = F.floor(F.col("t") / HOUR_MS).cast("long"), F.lit(0)
    for one in plan.restarts:
        run = run + (F.col("t") >= one.end_ms).cast("int")
    found = rows.withColumns({"rx": _payload(fleet, "rx", 400), "tx": _payload(fleet, "tx", 150), "hour": hour,
                              "run": run})  # fmt: skip
    return found.groupBy("network", "hour", "run", "dropped", "from", "to", "cause", "born").agg(
        F.count("*").alias("count"), F.sum((F.col("hour") + 1) * HOUR_MS - F.col("t")).alias("left_ms"),
        F.sum("rx").alias("rx_bytes"), F.sum("tx").alias("tx_bytes"),
    )  # fmt: skip


def _hours(spark: SparkSession, fleet: Fleet, plan: Plan) -> DataFrame:
    """network, hour: all of them."""
    first, last = fleet.begin_ms // HOUR_MS, fleet.until_ms // HOUR_MS - 1
    hours = F.explode(F.sequence(F.lit(first).cast("long"), F.lit(last).cast("long"))).alias("hour")
    return spark.range(len(plan.networks)).select(F.col("id").cast("int").alias("network")).select("network", hours)


def states(spark: SparkSession, fleet: Fleet, plan: Plan, moved: DataFrame) -> DataFrame:
    """network, hour, name (of a state), count: of connections, on average. moved: of `moves`."""
    of = ("network", "hour")

    def label(column: str) -> Column:
        named = F.when(F.col("born"), "born").otherwise(F.element_at(F.lit(STATES), F.col(column).cast("int") + 1))
        return F.when(F.col(column).isin([int(state) for state in CELL_STATES]), named)

    def steps(column: str, sign: int) -> DataFrame:
        return moved.select(*of, label(column).alias("name"), (sign * F.col("count")).alias("step"),
                            (sign * F.col("left_ms")).alias("ms")).where(F.col("name").isNotNull())  # fmt: skip

    none = _hours(spark, fleet, plan).select(
        *of, F.explode(F.lit([*BYTES])).alias("name"), F.lit(0).cast("long").alias("step"),
        F.lit(0).cast("long").alias("ms"),
    )  # fmt: skip
    changed = steps("from", -1).unionByName(steps("to", 1)).unionByName(none)
    changed = changed.groupBy(*of, "name").agg(F.sum("step").alias("step"), F.sum("ms").alias("ms"))
    earlier = Window.partitionBy("network", "name").orderBy("hour").rowsBetween(Window.unboundedPreceding, -1)
    there = F.coalesce(F.sum("step").over(earlier), F.lit(0)) + F.col("ms") / HOUR_MS
    return changed.select(*of, "name", F.round(there).cast("long").alias("count"))


def snapshots(spark: SparkSession, fleet: Fleet, plan: Plan, moved: DataFrame, states: DataFrame,
              silent: DataFrame) -> DataFrame:  # fmt: skip
    """With seq. moved: of `moves`, states: of `states`, silent: of `silences`."""
    of = ("network", "hour")
    name = F.concat_ws(" ", *(F.element_at(F.lit(list(texts)), F.col(column).cast("int") + 1)
                              for column, texts in (("from", STATES), ("to", STATES), ("cause", CAUSES))))  # fmt: skip
    kinds = moved.groupBy(*of, name.alias("name")).agg(F.sum("count").alias("count"))
    payload = moved.groupBy(*of).agg(F.sum("rx_bytes").alias("rx_bytes"), F.sum("tx_bytes").alias("tx_bytes"))
    payload = payload.unpivot([*of], ["rx_bytes", "tx_bytes"], "name", "count")
    entries = kinds.unionByName(payload).unionByName(states).unionByName(silent).where(F.col("count") > 0)
    maps = entries.groupBy(*of).agg(
        F.map_from_entries(F.collect_list(F.struct("name", "count"))).alias("counts")
    )  # fmt: skip
    cells = _hours(spark, fleet, plan).join(maps, [*of], "left").select(
        "hour", F.col("network").alias("place"), service(plan).alias("service"),
        F.element_at(F.lit([one.rule for one in plan.networks]), F.col("network") + 1).alias("rules"),
        F.coalesce("counts", F.create_map().cast("map<string, bigint>")).alias("counts"),
    )  # fmt: skip
    awake = F.col("name").isin("ACTIVE", "STANDBY")

    def bytes_of(which: Column) -> Column:
        size = F.element_at(F.lit(list(BYTES.values())), F.array_position(F.lit([*BYTES]), F.col("name")).cast("int"))
        return F.sum(F.when(which, F.col("count") * size).otherwise(0)).cast("long")

    sums = states.groupBy("hour").agg(bytes_of(~awake).alias("maps"), (bytes_of(awake) + RESIDENT).alias("rss"))
    used = F.floor((F.col("maps") + F.col("rss")) * 1000 / fleet.memory_bytes).cast("long")
    appliance = sums.select(
        "hour", F.lit(len(plan.networks)).alias("place"), F.lit(None).cast("string").alias("service"),
        F.lit(None).cast("string").alias("rules"),
        F.create_map(F.lit("maps_bytes"), F.col("maps"), F.lit("rss_bytes"), F.col("rss"),
                     F.lit("memory_permille"), used).alias("counts"),
    )  # fmt: skip
    t = (F.col("hour") + 1) * HOUR_MS - 1
    return cells.unionByName(appliance).withColumn("t", t).withColumns({
        "seq": (F.col("hour") - fleet.begin_ms // HOUR_MS) * (len(plan.networks) + 1) + F.col("place") + 1,
        "at": F.timestamp_millis(told(plan, fleet, F.col("t"))), "span_ms": F.lit(HOUR_MS).cast("long"),
    })  # fmt: skip
