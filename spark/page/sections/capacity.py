# SPDX-License-Identifier: Apache-2.0
"""How many connections there are and will be, and when this box is full: spark/jobs/capacity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from spark.page import figure, text
from spark.page.section import Column, Kind, Panel, Plot, Row, Section, Tables, shown

TABLES: Final = ("capacity", "forecast", "forecast_quality", "full")

DRAWN: Final = 6
POINTS: Final = 400
"""Of a line; of more hours, each so manieth."""

_QUANTITY: Final = "connections"
METHOD: Final = text.paragraphs("""
Forecasts are of each hour: the recent level and the usual shape of a week (hour by hour, shrunk towards that of a day),
with or without a trend, or what was a week before, or the last value: the one with the least error on weeks that were
held out. Intervals are quantiles of the errors there. They are in UTC, and know neither holidays nor what will be sold.
""")
CAVEATS: Final = text.paragraphs("""
The same held-out weeks choose the model and state its error, which is slightly optimistic.

A table is full by the slots that it has now; where the configuration lets it grow, it is full later.
""")
_WHOSE: Final = (Column("service", "service", Kind.SERVICE), Column("quantity", "quantity"))
_TABLES: Final = {
    "full": ("When this box is full", (
        Column("limit", "limit"), Column("used_percent", "used now", Kind.NUMBER, "%"),
        Column("end_percent", "at the end of the forecast", Kind.NUMBER, "%"),
        Column("end_high_percent", "at most (95 %)", Kind.NUMBER, "%"), Column("full_at", "full", Kind.TIME),
        Column("earliest", "earliest", Kind.TIME), Column("latest", "latest", Kind.TIME), Column("says", ""),
    )),
    "forecast_quality": ("How good the forecasts were on held-out weeks", (
        *_WHOSE, Column("model", "model"), Column("held_out_weeks", "weeks", Kind.NUMBER),
        Column("mae", "mean error", Kind.NUMBER), Column("mae_naive", "of the week before", Kind.NUMBER),
        Column("coverage80", "within 80 %", Kind.SHARE), Column("coverage95", "within 95 %", Kind.SHARE),
        Column("says", ""),
    )),
}  # fmt: skip

_Key = str | None


def section(tables: Tables) -> Section:
    """Of the tables that are there."""
    there, coming = _by_service(tables.get("capacity", ())), _by_service(tables.get("forecast", ()))
    full = tables.get("full", ())
    findings = [*_full(full), *_growth(there, coming), *_quality(tables.get("forecast_quality", ()))]
    names = sorted(there, key=lambda name: -(there[name][-1][_QUANTITY] or 0))[:DRAWN]
    panels = [_panel(f"capacity-{at}", name, there[name], coming.get(name, ())) for at, name in enumerate(names)
              if len(there[name]) > 1]  # fmt: skip
    plot = Plot(
        "Connections, and what is to be expected",
        "Hourly averages; each panel has a scale of its own. The band is the interval of 95 %.",
        panels,
        [("blue", "there were"), ("vermillion", "forecast"), ("orange", "its 95 % interval")],
    )
    nothing = ["There are too few snapshots to say how many connections there will be."]
    return Section("capacity", "How many there are and will be", findings or nothing, [plot] if panels else [],
                   tables=shown(tables, _TABLES), method=METHOD, caveats=CAVEATS)  # fmt: skip


def _by_service(rows: Sequence[Row]) -> dict[_Key, list[Row]]:
    found: defaultdict[_Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row.get("quantity", _QUANTITY) == _QUANTITY:
            found[row["service"]].append(row)
    return {name: sorted(some, key=lambda row: row["hour"]) for name, some in found.items()}


def _full(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        limit = text.clean(row["limit"])
        if row["full_at"] is not None:
            spread = ""
            if row["earliest"] is not None and row["latest"] is not None:
                spread = f", between {text.moment(row['earliest'])} and {text.moment(row['latest'])} at 95 %"
            yield f"{limit}: full on {text.moment(row['full_at'])} UTC{spread}."
        elif row["end_percent"] is not None:
            used, then = (text.number(row[key]) for key in ("used_percent", "end_percent"))
            yield (f"{limit}: {used} % used, and {then} % expected at the end of the forecast "
                   f"({text.moment(row['end'])}).")  # fmt: skip


def _growth(there: dict[_Key, list[Row]], coming: dict[_Key, list[Row]]) -> Iterator[str]:
    for name, rows in coming.items():
        if name == "(appliance)" and (before := there.get(name)):
            now = sum(row[_QUANTITY] or 0 for row in before[-24:]) / len(before[-24:])
            then = sum(row["value"] for row in rows[-24:]) / len(rows[-24:])
            yield (f"The appliance held {text.rough(now)} connections on average in its last day, and is expected to "
                   f"hold {text.rough(then)} in the last day of the forecast.")  # fmt: skip


def _quality(rows: Sequence[Row]) -> Iterator[str]:
    known = [row for row in rows if row["mae"] is not None and row["mae_naive"]]
    if known:
        better = sum(row["mae"] < row["mae_naive"] for row in known)
        yield (f"On held-out weeks, {better:,} of {len(known):,} forecasts were better than saying that it will be as "
               "it was a week before; the others say just that, or the last value.")  # fmt: skip


def _panel(identity: str, name: _Key, rows: Sequence[Row], coming: Sequence[Row]) -> Panel:
    plot = figure.axes()
    some, later = rows[:: -(-len(rows) // POINTS)], coming[:: -(-len(coming) // POINTS) or 1]
    hours = [figure.hour(row["hour"]) for row in some]
    plot.plot(hours, [row[_QUANTITY] for row in some], color=figure.PALETTE["blue"], linewidth=1.6)
    if later:
        ahead = [figure.hour(row["hour"]) for row in later]
        plot.fill_between(ahead, [max(row["low95"], 0) for row in later], [row["high95"] for row in later],
                          facecolor=figure.PALETTE["orange"], edgecolor="none")  # fmt: skip
        plot.plot(ahead, [row["value"] for row in later], color=figure.PALETTE["vermillion"], linewidth=1.6)
        hours += ahead
    figure.hours(plot, hours[0], max(hours[-1], hours[0] + 1))
    figure.counts(plot)
    title = "the appliance" if name == "(appliance)" else f"service {text.service(name)}"
    said = f"From {text.rough(rows[0][_QUANTITY] or 0)} to {text.rough(rows[-1][_QUANTITY] or 0)} connections."
    if coming:
        said += f" Expected at the end of the forecast: {text.rough(coming[-1]['value'])}."
    return Panel(title, figure.svg(plot, identity, f"Connections of {title}", said), said)
