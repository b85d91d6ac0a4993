# SPDX-License-Identifier: Apache-2.0
"""What the appliance held and did hour by hour, as its snapshots tell; how that goes on; and when it is full.

A snapshot is a row for the appliance and one for each service and the rules that give some of its connections values.
Of an hour, what there is of (connections, memory) is averaged over the time that its snapshots stand for; what happened
(wakes, probes) is summed. Hours without a snapshot have no row: no daemon ran, or its rows are missing. Who was there
is not known then, which is not nobody. A snapshot is of the hour in which it was taken.

What is set aside, and what is told beside it:

    no time     without a time, or before 2020, or more than a day later than the report's end: a clock was wrong
    doubled     a row that is there twice
    clock       not set aside: how often a snapshot is earlier than the one before; hours may have more than 60 minutes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from control.core.states import AWAKE, INACTIVE, LEGAL, Cause, State
from spark import forecast as forecasts_of
from spark.forecast import LEVELS, WEEK, Forecast, NoForecastError, reaches
from spark.stays import DAY_MS, is_time

APPLIANCE: Final = "(appliance)"
OTHERS: Final = "(others)"
"""No service can be named so."""

HOUR_MS: Final = 3_600_000
MINUTES: Final = 30
"""An hour of which less was seen is not known to the forecast."""
SERVICES: Final = 50
"""Those with most connections have a forecast each; the others one together."""
HOURS: Final = 2 * 365 * 24
"""The forecast looks at the last of them. Times SERVICES it is all that the driver is given, some 130 MB."""

_THERE: Final = {state.label.lower(): state.label for state in sorted(AWAKE | INACTIVE)} | {"born": "born"}
"""Columns, and their names in `counts`."""
_KINDS: Final[Mapping[str, frozenset[tuple[int, int, int]]]] = {
    "wakes": frozenset(one for one in LEGAL if one[0] > State.ACTIVE and one[1] == State.ACTIVE),
    "wakes_by_server": frozenset(
        one
        for one in LEGAL
        if one[0] > State.ACTIVE and one[1] == State.ACTIVE and one[2] in {Cause.SERVER_ATTACH, Cause.SERVER_DATA}
    ),
    "births": frozenset(one for one in LEGAL if one[0] == State.NONE and one[2] != Cause.RESTORE),
    "ends": frozenset(one for one in LEGAL if one[1] == State.CLOSED),
}
_SUMMED: Final = ("probes", "rx_bytes", "tx_bytes")

_OWN: Final = "rss_bytes"
"""What no row of the appliance is without."""
_OF_APPLIANCE: Final = ("filter_members", "maps_bytes", "rss_bytes")
_MOST: Final = ("memory_permille", "descriptors_permille", "table_ipv4", "table_ipv6", "idle_records")
_LAST: Final = ("ipv4_slots", "ipv6_slots", "idle_slots", "filter_slots")

QUANTITIES: Final = ("connections", "awake", "wakes", "probes")
"""That are forecast of each service; of the appliance, these, too:"""
QUANTITIES_OF_APPLIANCE: Final = (*_OF_APPLIANCE, *_MOST)

LIMITS: Final[Mapping[str, tuple[str, str | float]]] = {
    "memory": ("memory_permille", 1000.0),
    "descriptors": ("descriptors_permille", 1000.0),
    "table of IPv4": ("table_ipv4", "ipv4_slots"),
    "table of IPv6": ("table_ipv6", "ipv6_slots"),
    "records in IDLE": ("idle_records", "idle_slots"),
    "filter": ("filter_members", "filter_slots"),
}
"""What the appliance is full by: the quantity, and how much of it there may be, or the column that has that."""


class Told(NamedTuple):
    """See `tell`."""

    forecast: pa.Table
    quality: pa.Table
    full: pa.Table


def _labels(steps: frozenset[tuple[int, int, int]]) -> list[str]:
    """Names of transitions in `counts`."""
    return sorted(f"{State(source).label} {State(to).label} {Cause(cause).label}" for source, to, cause in steps)


def good(snapshots: DataFrame, until_ms: int) -> DataFrame:
    """Those that are not set aside, with

    hour, span      hours since 1970; for how long it stands, ms
    whole, service  whether it is the appliance's; null: not whole, and not known any more
    weight          a row that is there n times counts for 1/n each time: rows with their maps are not to be sorted

    The numbers of doubled rows are broadcast: 16 bytes each."""
    at = F.unix_millis("at")
    known = snapshots.where(is_time(at, until_ms + DAY_MS))
    # Of a service that is not known any more the row lacks what the daemon says of itself.
    whole = F.col("service").isNull() & F.map_contains_key("counts", F.lit(_OWN))
    return known.join(F.broadcast(_doubled(known)), "seq", "left").select(
        "seq", at.alias("at"), F.floor(at / HOUR_MS).cast("long").alias("hour"),
        F.greatest(F.coalesce("span_ms", F.lit(0)), F.lit(1)).cast("double").alias("span"),
        whole.alias("whole"), "service", (1 / F.coalesce("copies", F.lit(1))).alias("weight"), "counts",
    )  # fmt: skip


def _doubled(known: DataFrame) -> DataFrame:
    return known.groupBy("seq").agg(F.count("*").alias("copies")).where("copies > 1")


def aside(snapshots: DataFrame, until_ms: int) -> DataFrame:
    """How many rows are set aside, and how often the clock was set back: why, rows. None is left out."""
    is_known = is_time(F.unix_millis("at"), until_ms + DAY_MS)
    known = snapshots.where(is_known)
    # One of a minute: a window over half a million rows a year.
    taken = known.groupBy("at").agg(F.min("seq").alias("seq"))
    back = taken.select((F.lag("at").over(Window.orderBy("seq")) > F.col("at")).alias("back"))
    no_time = snapshots.where(~is_known).select(F.lit("no time").alias("why"), F.lit(1).cast("long").alias("rows"))
    doubled = _doubled(known).select(F.lit("doubled").alias("why"), (F.col("copies") - 1).alias("rows"))
    clock = back.where("back").select(F.lit("clock").alias("why"), F.lit(1).cast("long").alias("rows"))
    return no_time.unionByName(doubled).unionByName(clock).groupBy("why").agg(F.sum("rows").alias("rows"))


def hourly(snapshots: DataFrame, until_ms: int) -> DataFrame:
    """A row for each hour and service that was there, and for each hour one of the appliance:

        hour, service             when it begins; APPLIANCE: all of it; null: not known any more
        minutes                   for which snapshots of the hour stand: some 60, less where no daemon ran or rows are
                                  missing, more where the clock was set back
        connections               on average, of all states, of the appliance with filter_members
        active ... sleep, born    by state: as in the snapshots, idle without born, sleep without filter_members
        wakes, wakes_by_server    STANDBY, IDLE or SLEEP -> ACTIVE; of these, by a server's data or wish
        births, ends              NONE -> any, -> CLOSED
        probes, rx_bytes, tx_bytes
    and of the appliance alone:
        filter_members, maps_bytes, rss_bytes                                    on average
        memory_permille, descriptors_permille, table_ipv4, table_ipv6, idle_records   at most
        ipv4_slots, ipv6_slots, idle_slots, filter_slots                         as of the hour's last snapshot

    What happened is not scaled to a full hour. An hour of which nothing is told is missing. until_ms: the end of the
    record."""
    rows = good(snapshots, until_ms)
    kinds = {name: _labels(steps) for name, steps in _KINDS.items()} | {name: [name] for name in _SUMMED}
    own = (*_OF_APPLIANCE, *_MOST, *_LAST)
    names = {*_THERE.values(), *own, *(label for labels in kinds.values() for label in labels)}
    # By name first, which makes few rows of many: to look up each name in each row's map takes three times as long.
    value = F.col("value").cast("double")
    counted = (
        rows.select("hour", "whole", "service", "seq", "span", "weight", F.explode("counts").alias("name", "value"))
        .where(F.col("name").isin(sorted(names)))
        .groupBy("hour", "whole", "service", "name")
        .agg(
            F.sum(value * F.col("weight")).alias("sum"),
            F.sum(value * F.col("span") * F.col("weight")).alias("area"),
            F.sum(F.col("span") * F.col("weight")).alias("time"),
            F.max(value).alias("most"),
            F.max_by(value, "seq").alias("last"),
        )
    )
    whole, name = F.col("whole"), F.col("name")
    # The appliance's `born` is a gauge of the engine: those of all services, which are counted already.
    there = {column: (name == label) & ~(whole & (name == "born")) for column, label in _THERE.items()}
    happened = {column: name.isin(labels) for column, labels in kinds.items()}
    sums = [
        *(F.sum(F.when(one, F.col("area")).otherwise(0.0)).alias(column) for column, one in there.items()),
        *(F.sum(F.when(one, F.col("sum")).otherwise(0.0)).alias(column) for column, one in happened.items()),
    ]
    of_appliance = [
        *(F.max(F.when(whole & (name == one), F.col("area") / F.col("time"))).alias(one) for one in _OF_APPLIANCE),
        *(F.max(F.when(whole & (name == one), F.col("most"))).alias(one) for one in _MOST),
        *(F.max(F.when(whole & (name == one), F.col("last"))).alias(one) for one in _LAST),
    ]
    seen = rows.groupBy("hour", "at").agg(F.max("span").alias("span")).groupBy("hour").agg(F.sum("span").alias("seen"))
    # Each is of the appliance, and those of a service of that, too.
    one_of = F.when(whole, F.array(F.lit(APPLIANCE))).otherwise(F.array("service", F.lit(APPLIANCE)))
    summed = counted.withColumn("service", F.explode(one_of)).groupBy("hour", "service").agg(*sums, *of_appliance)
    both = summed.join(seen, "hour").withColumns({column: F.col(column) / F.col("seen") for column in _THERE})
    connections = sum((F.col(column) for column in _THERE), F.coalesce("filter_members", F.lit(0.0)))
    return both.select(
        F.timestamp_millis(F.col("hour") * HOUR_MS).alias("hour"), "service",
        (F.col("seen") / 60_000).alias("minutes"), connections.alias("connections"), *_THERE,
        *(F.round(column).try_cast("long").alias(column) for column in happened),
        *_OF_APPLIANCE, *(F.col(column).try_cast("long").alias(column) for column in (*_MOST, *_LAST)),
    )  # fmt: skip


def largest(hours: DataFrame, most: int = SERVICES) -> DataFrame:
    """Of `hourly`, the last HOURS, the appliance and the services with most connections as they are; the others summed,
    as OTHERS: hour (since 1970), service, minutes, connections, awake, wakes, ... A few names come to the driver."""
    hours = hours.withColumn("hour", F.floor(F.unix_millis("hour") / HOUR_MS).cast("long"))
    last = hours.agg(F.max("hour")).collect()[0][0] or 0
    hours = hours.where(F.col("hour") > last - HOURS)
    key = F.coalesce("service", F.lit(""))
    ranked = hours.where(key != APPLIANCE).groupBy(key.alias("key")).agg(F.sum("connections").alias("sum"))
    names = [row["key"] for row in ranked.orderBy(F.desc("sum"), "key").limit(most).collect()]
    kept = F.when(key.isin([*names, APPLIANCE]), F.col("service")).otherwise(OTHERS)
    summed = ("connections", "awake", "wakes", "probes")
    return (
        hours.withColumns({"service": kept, "awake": F.col("active") + F.col("standby")})
        .groupBy("hour", "service")
        .agg(
            F.max("minutes").alias("minutes"),
            *(F.sum(name).alias(name) for name in summed),
            *(F.max(name).alias(name) for name in (*QUANTITIES_OF_APPLIANCE, *_LAST)),
        )
    )


def tell(hours: DataFrame, weeks: int = 4, most: int = SERVICES) -> Told:
    """Of `hourly`, three tables:

    forecast    service, quantity, model, hour; value; low80, high80, low95, high95: an hour's value lies between, as
                often as that. For so many weeks after the last hour, and for no longer than there are data
    quality     service, quantity; model: with the least mean absolute error on held-out hours, null: there is no
                forecast, and why; season_hours; held_out_weeks, hours: how many were compared; mae, mae_trend,
                mae_flat, mae_naive, mae_last: of the model, and of each (spark/forecast.py); coverage80, coverage95:
                share of held-out hours that were within the interval, as it was known before them
    full        limit; used_percent: in the last hour that is known; end, end_percent, end_high_percent: at the end of
                the forecast, and below which it is at 95 %; full_at: when it reaches 100 %; earliest, latest: by the
                interval at 95 %; each null: not within the forecast; says: that, or why there is none. Tables are
                held against the places that they have now: one that may grow is full later

    `hours` are read three times: they are to be written, or cached, before. All that `largest` gives comes to the
    driver: 130 MB at most."""
    table = largest(hours, most).toArrow()
    return Told(*_told(table, weeks * WEEK))


# -- on the driver -----------------------------------------------------------------------------------------------------

_LIMITED: Final = ("low", "high")
FORECAST: Final = pa.schema(
    [("service", pa.string()), ("quantity", pa.string()), ("model", pa.string()), ("hour", pa.timestamp("ms", "UTC")),
     ("value", pa.float64()),
     *((f"{side}{round(level * 100)}", pa.float64()) for level in LEVELS for side in _LIMITED)]
)  # fmt: skip
QUALITY: Final = pa.schema(
    [("service", pa.string()), ("quantity", pa.string()), ("model", pa.string()), ("season_hours", pa.int32()),
     ("held_out_weeks", pa.float64()), ("hours", pa.int64()), ("mae", pa.float64()),
     *((f"mae_{model}", pa.float64()) for model in reversed(forecasts_of.MODELS)),
     *((f"coverage{round(level * 100)}", pa.float64()) for level in LEVELS), ("says", pa.string())]
)  # fmt: skip
FULL: Final = pa.schema(
    [("limit", pa.string()), ("used_percent", pa.float64()), ("end", pa.timestamp("ms", "UTC")),
     ("end_percent", pa.float64()), ("end_high_percent", pa.float64()), ("full_at", pa.timestamp("ms", "UTC")),
     ("earliest", pa.timestamp("ms", "UTC")), ("latest", pa.timestamp("ms", "UTC")), ("says", pa.string())]
)  # fmt: skip

_NOT_FULL: Final = {True: "not within the forecast", False: "not within the forecast, but within its interval"}

_Series = dict[str, forecasts_of.Floats]


def _told(table: pa.Table, ahead: int) -> tuple[pa.Table, pa.Table, pa.Table]:
    """table: of `largest`."""
    found: list[pa.Table] = []
    quality: list[dict[str, Any]] = []
    full: list[dict[str, Any]] = []
    for service, first, series in _by_service(table):
        of_appliance = service == APPLIANCE
        made: dict[str, Forecast] = {}
        begins = first + len(series["minutes"])
        for name in (*QUANTITIES, *(QUANTITIES_OF_APPLIANCE if of_appliance else ())):
            key = {"service": service, "quantity": name}
            if not np.isfinite(series[name]).any():
                continue  # not told, or a table that is not there
            try:
                one = made[name] = forecasts_of.forecast(series[name], ahead)
            except NoForecastError as error:
                quality.append(key | {"says": str(error)})
                continue
            found.append(_forecast_rows(key, begins, one))
            quality.append(key | _quality_row(one))
        if of_appliance:
            full = list(_full_rows(series, made, begins))
    return (
        pa.concat_tables([FORECAST.empty_table(), *found]),
        pa.Table.from_pylist(quality, QUALITY),
        pa.Table.from_pylist(full, FULL),
    )


def _by_service(table: pa.Table) -> Iterator[tuple[str | None, int, _Series]]:
    """Each with its first hour, and a value for each hour from then on to the last one of all; NaN: not known. The
    appliance is first, then by name."""
    columns = {name: table[name].cast(pa.float64()).to_numpy() for name in table.column_names if name != "service"}
    hours = columns.pop("hour").astype(np.int64)
    if not hours.size:
        return
    places: dict[str | None, list[int]] = {}
    for row, service in enumerate(table["service"].to_pylist()):
        places.setdefault(service, []).append(row)
    own = places.get(APPLIANCE, [])
    last = int(hours.max())
    start = int(hours.min())
    minutes = np.full(last - start + 1, np.nan)
    minutes[hours[own] - start] = columns["minutes"][own]
    own_seen = np.full(len(minutes), np.nan)
    own_seen[hours[own] - start] = np.where(np.isfinite(columns[_OWN][own]), 0.0, np.nan)
    for service in sorted(places, key=lambda name: (name != APPLIANCE, name or "")):
        rows_of_it = np.array(places[service])
        first = int(hours[rows_of_it].min())
        seen = minutes[first - start :]
        known = np.where(seen >= MINUTES, seen, np.nan)
        series: _Series = {"minutes": known}
        for name, column in columns.items():
            values = np.full(len(known), np.nan)
            values[hours[rows_of_it] - first] = column[rows_of_it]
            if name in QUANTITIES_OF_APPLIANCE:
                values = _or_zero(values) + own_seen[first - start :]
            elif name in QUANTITIES:
                values = _or_zero(values)
            series.setdefault(name, values + 0 * known)
        for name in ("wakes", "probes"):
            series[name] = series[name] * 60 / known
        yield service, first, series


def _or_zero(values: forecasts_of.Floats) -> forecasts_of.Floats:
    """What is 0 is not told, and a service without a connection has no row; what is never told stays unknown."""
    return np.where(np.isfinite(values), values, 0.0) if np.isfinite(values).any() else values


def _times(first: int, count: int) -> list[int]:
    return [(first + hour) * HOUR_MS for hour in range(count)]


def _forecast_rows(key: Mapping[str, Any], begins: int, one: Forecast) -> pa.Table:
    count = len(one.value)
    edges = [side for level in LEVELS for side in (one.low[level], one.high[level])]
    texts = ([text] * count for text in (key["service"], key["quantity"], one.model))
    return pa.table(
        [*(pa.array(text, pa.string()) for text in texts),
         pa.array(_times(begins, count), pa.timestamp("ms", "UTC")), one.value, *edges], FORECAST
    )  # fmt: skip


def _quality_row(one: Forecast) -> dict[str, Any]:
    told = one.quality
    return {
        "model": one.model, "season_hours": told.season, "held_out_weeks": told.origins * told.season / WEEK,
        "hours": told.hours, "mae": told.errors[one.model],
        **{f"mae_{model}": error for model, error in told.errors.items()},
        **{f"coverage{round(level * 100)}": share for level, share in told.coverage.items()},
    }  # fmt: skip


def _full_rows(series: _Series, made: Mapping[str, Forecast], begins: int) -> Iterator[dict[str, Any]]:
    """Counts are held against the places that there are now: a table that may grow is full later."""
    for limit, (name, of) in LIMITS.items():
        most = of if isinstance(of, float) else _last(series[of])
        used = _last(series[name])
        if not most or (used is None and isinstance(of, float)):
            continue  # there is no such table, or this kernel does not tell
        used = used or 0.0
        row: dict[str, Any] = {"limit": limit, "used_percent": 100 * used / most}
        if (one := made.get(name)) is None:
            yield row | {"says": "no forecast: it was never used, or there are too few hours"}
            continue
        sides = {"full_at": one.value, "earliest": one.high[0.95], "latest": one.low[0.95]}
        reached = {side: reaches(values, most) for side, values in sides.items()}
        yield row | {
            "end": (begins + len(one.value) - 1) * HOUR_MS,
            "end_percent": 100 * float(one.value[-1]) / most,
            "end_high_percent": 100 * float(one.high[0.95][-1]) / most,
            **{side: None if at is None else (begins + at) * HOUR_MS for side, at in reached.items()},
            "says": _NOT_FULL[reached["earliest"] is None] if reached["full_at"] is None else None,
        }  # fmt: skip


def _last(values: Sequence[float] | forecasts_of.Floats) -> float | None:
    """That is known."""
    known = np.asarray(values)[np.isfinite(values)]
    return float(known[-1]) if known.size else None
