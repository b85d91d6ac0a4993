# SPDX-License-Identifier: Apache-2.0
"""After which silence connections should go down a step: spark/jobs/quiet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from spark.page import figure, text
from spark.page.section import (
    Column,
    Kind,
    Panel,
    Plot,
    Row,
    Section,
    Tables,
    by_service,
    known,
    largest,
    shown,
    total,
)

TABLES: Final = ("quiet_intervals", "quiet_costs", "gap_distribution")

TOLD, DRAWN = 3, 6
"""Services that findings are of, of those with a recommendation and of those without; that plots are of."""
POINTS: Final = 200
"""Of a line."""
LOWEST_S: Final = 0.001
"""On a logarithmic scale."""

DAY_S: Final = 86_400
STATES: Final = {"active_quiet": "ACTIVE", "standby_quiet": "STANDBY", "idle_quiet": "IDLE"}
"""That an interval lets a connection leave."""
METHOD: Final = text.paragraphs("""
To stay in a state costs memory each second, to leave it costs processor time if the connection wakes afterwards: ski
rental with several slopes. The cost of an interval is, on average over all silences, the memory that its step would
save until then, and the wake-ups after it. A microsecond of a processor counts as much as 12,885 bytes for a second,
since the machine that was measured has 12 GiB for each processor.

A silence ends by waking or by the connection's end. These are competing risks (Aalen and Johansen): a connection that
is closed asleep is never woken. A silence whose end was not seen is censored; one is seen from the moment its
connection leaves ACTIVE, not from its last byte, so that it is truncated on the left.

Intervals are chosen on the first 70 % of the record (in whole days, of four days or more) and judged on the rest,
which is held out. They are recommended where this has 200 silences at least, and the cost there falls by 5 % at least.
Hindsight is what no interval can be better than: each silence goes at once to the state that is the cheapest for it.
""")
CAVEATS: Final = text.paragraphs("""
What is shorter than the intervals in force is not seen, so that nothing shorter can be judged. Costs, memory and
wake-ups count from the shortest interval that can be: where this is the recommended one ("lower"), a still shorter one
may be cheaper, which a report after the change will tell.

Memory is what is above that of SLEEP. Memory and processor time are those of one machine that was measured, and the
processor's are upper bounds.

What a client waits for a wake-up, 0.08 ms from IDLE, and what a server pays for a new link are in none of the costs.
""")
_HELD_OUT: Final = {
    "optimum": "cheapest", "ski_rental": "ski rental", "best": "best there", "offline": "hindsight",
}  # fmt: skip
_WHICH: Final = (("now", "now"), ("optimum", "cheapest"))
_SERVICE: Final = Column("service", "service", Kind.SERVICE)
_TABLES: Final = {
    "quiet_intervals": ("Intervals", (
        _SERVICE, Column("interval", "interval"), Column("steps", "steps down", Kind.COUNT),
        Column("in_force_s", "in force", Kind.DURATION), Column("recommended_s", "recommended", Kind.DURATION),
        Column("optimum_s", "cheapest", Kind.DURATION), Column("bound", "bound"),
        Column("ski_rental_s", "ski rental's", Kind.DURATION),
        *(Column(f"memory_{which}", "memory", Kind.BYTES, said) for which, said in _WHICH),
        *(Column(f"wakes_per_day_{which}", "wake-ups", Kind.NUMBER, said) for which, said in _WHICH),
    )),
    "quiet_costs": ("What a silence costs in the days held out", (
        _SERVICE, Column("gaps", "silences", Kind.COUNT), Column("woke", "woke", Kind.COUNT),
        Column("truncated_s", "judged from", Kind.DURATION), Column("held_out_gaps", "held out", Kind.COUNT),
        Column("cost_held_out_now", "cost now", Kind.NUMBER, "bytes × s"),
        *(Column(f"share_{which}", said, Kind.SHARE, "% of now") for which, said in _HELD_OUT.items()),
        Column("reason", "not recommended, since"),
    )),
}  # fmt: skip
_NOTES: Final = {
    "quiet_costs": "A silence's cost with the intervals in force; beside it with those that were the cheapest on the "
    "days before, with ski rental's, with the best ones of the days held out themselves, and with hindsight.",
    "quiet_intervals": "Memory is the average, and wake-ups are of a day. lower, upper: the cheapest is the shortest "
    "or the longest that can be judged.",
}


def section(tables: Tables) -> Section:
    """Of the tables that are there."""
    intervals, costs, ages = (by_service(tables.get(name, ())) for name in TABLES)
    cost = {service: rows[0] for service, rows in costs.items()}
    names = sorted({**costs, **intervals, **ages}, key=lambda name: -total(costs.get(name, ()), "gaps"))
    known_of = [name for name in names if name in costs or name in intervals]
    advised = [name for name in known_of if _is_advised(intervals.get(name, ()), cost.get(name, {}))]
    others = [name for name in known_of if name not in advised]
    findings = [
        *_summary(advised, others, cost),
        *(_advice(name, intervals.get(name, ()), cost.get(name, {})) for name in advised[:TOLD]),
        *(_kept(name, cost.get(name, {})) for name in others[:TOLD]),
    ]
    drawn = islice(((name, some) for name in names if (some := _in_order(ages.get(name, ())))), DRAWN)
    panels = [_panel(f"gaps-{at}", name, some, intervals.get(name, ())) for at, (name, some) in enumerate(drawn)]
    plot = Plot(
        "How long silences last, and how many wake afterwards",
        "By the age of a silence, on a logarithmic scale, of those that reach the shortest age that can be judged. "
        "Below, for each state, the age at which a silent connection leaves it.",
        panels,
        [("blue", "still silent"), ("orange", "will still wake"), ("ring", "interval in force"),
         ("dot", "recommended")],
    )  # fmt: skip
    nothing = "how long silences last, and not what intervals cost" if ages else "of no silence that could be judged"
    return Section(
        "quiet", "After which silence connections should go down a step",
        findings or [f"This report tells {nothing}: no interval is recommended."], [plot] if panels else [],
        tables=shown(_more(tables), _TABLES, notes=_NOTES), method=METHOD, caveats=CAVEATS,
    )  # fmt: skip


def _is_advised(rows: Sequence[Row], cost: Row) -> bool:
    """rows: of quiet_intervals; where they are not there, its cost tells."""
    return bool(_changed(rows)) if rows else cost.get("recommended") is True


def _changed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if known(row, "recommended_s") is not None]


def _more(tables: Tables) -> Tables:
    """The same, and what follows from their columns: memory_now, _optimum, bytes; share_WHICH, of the cost now."""
    intervals = [
        {**row, **{f"memory_{which}": _memory([row], which) for which in ("now", "optimum")}}
        for row in tables.get("quiet_intervals", ())
    ]
    costs = [{**row, **{f"share_{which}": _of_now(row, which) for which in _HELD_OUT}}
             for row in largest(tables.get("quiet_costs", ()), "gaps")]  # fmt: skip
    return {"quiet_intervals": intervals, "quiet_costs": costs}


def _memory(rows: Sequence[Row], which: str) -> float:
    """Bytes on average."""
    return total(rows, f"byte_s_per_day_{which}") / DAY_S


def _of_now(cost: Row, which: str) -> float | None:
    """What a silence of the days held out costs, over what it costs with the intervals in force; None: not known."""
    now, then = known(cost, "cost_held_out_now"), known(cost, f"cost_held_out_{which}")
    return then / now if now and then is not None else None


# -- findings ----------------------------------------------------------------------------------------------------------


def _summary(advised: Sequence[str | None], others: Sequence[str | None],
             cost: Mapping[str | None, Row]) -> Iterator[str]:  # fmt: skip
    count = len(advised) + len(others)
    if not count:
        return
    sums = {"now": 0.0, "optimum": 0.0}
    for row in (cost[name] for name in advised if name in cost and _of_now(cost[name], "optimum") is not None):
        for which in sums:
            sums[which] += row[f"cost_held_out_{which}"] * (known(row, "held_out_gaps") or 0)
    saved = 1 - sums["optimum"] / sums["now"] if sums["now"] else 0
    there = f": there memory and wake-ups cost {text.percent(saved)} less" if saved > 0 else ""
    yield f"Other intervals are recommended for {len(advised) or 'none'} of {text.plural(count, 'service')}{there}."


def _advice(name: str | None, rows: Sequence[Row], cost: Row) -> str:
    same: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for row in _changed(rows):
        before, after = known(row, "in_force_s"), row["recommended_s"]
        place = "one that was never reached" if before is None else text.duration(before)
        same[text.duration(after), place].append(text.clean(row["interval"]))
    parts = [f"{text.listed(some)} of {after} in place of {before}" for (after, before), some in same.items()]
    said = [f"For {text.of_service(name)}: {text.listed(parts) if parts else 'other intervals are cheaper'}."]
    if (share := _of_now(cost, "optimum")) is not None:
        said.append(f"That lowers the cost of the days held out by {text.percent(max(1 - share, 0))}{_best(cost)}.")
    if rows:
        then, now = (text.size(_memory(rows, which)) for which in ("optimum", "now"))
        begin = known(cost, "truncated_s")
        since = "" if begin is None else f" and after the first {text.duration(begin)} of a silence"
        said.append(f"Memory above that of SLEEP{since} would be {then} on average instead of {now}{_wakes(rows)}.")
    if any(row.get("bound") == "lower" for row in _changed(rows)):
        said.append("Shorter intervals cannot be judged yet.")
    return " ".join(said)


def _best(cost: Row) -> str:
    share = _of_now(cost, "offline")
    return "" if share is None else f", where hindsight would lower it by {text.percent(max(1 - share, 0))}"


def _wakes(rows: Sequence[Row]) -> str:
    """Of connections without a socket: those that went down to IDLE."""
    of = {row["interval"]: row for row in rows}
    row = of.get("standby_quiet") or of.get("active_quiet") or {}
    now, then = (known(row, f"wakes_per_day_{which}") for which in ("now", "optimum"))
    if now is None or then is None:
        return ""
    times, before = text.rough(then), text.rough(now)
    than = ", as they do now" if times == before else f" instead of {before}"
    return f"; connections without a socket would wake {times} times a day{than}"


def _kept(name: str | None, cost: Row) -> str:
    reason = cost.get("reason")
    why = "no other interval is known to be cheaper" if reason is None else text.clean(reason)
    share = _of_now(cost, "offline")
    best = "" if share is None else f" Hindsight would lower the cost by {text.percent(max(1 - share, 0))}."
    return f"Nothing is recommended for {text.of_service(name)}: {why}.{best}"


# -- plot --------------------------------------------------------------------------------------------------------------


def _in_order(ages: Sequence[Row]) -> list[Row]:
    """Rows of gap_distribution that can be drawn."""
    needed = ("from_s", "to_s", "silent", "woken")
    return sorted((row for row in ages if all(known(row, key) is not None for key in needed)),
                  key=lambda row: row["from_s"])  # fmt: skip


def _panel(identity: str, name: str | None, ages: Sequence[Row], rows: Sequence[Row]) -> Panel:
    """ages: in order. rows: the service's intervals."""
    wakes = ages[-1]["woken"]
    points = [(ages[0]["from_s"], 1.0, wakes), *((row["to_s"], row["silent"], wakes - row["woken"]) for row in ages)]
    some = [*points[:: -(-len(points) // POINTS)], points[-1]]
    rows = [row for row in rows if row["interval"] in STATES]
    marks = [(known(row, "in_force_s"), known(row, "recommended_s")) for row in rows]
    drawn = [max(at, LOWEST_S) for at in (some[0][0], some[-1][0], *sum(marks, ())) if at is not None]
    plot = figure.axes(height=figure.PANEL[1] + 20 * len(rows), left=70)
    figure.durations(plot, min(drawn), max(drawn))
    edges = [max(at, LOWEST_S) for at, _, _ in some]
    for colour, values in (("blue", [silent for _, silent, _ in some]), ("orange", [waking for _, _, waking in some])):
        plot.plot(edges, values, color=figure.PALETTE[colour], linewidth=2)
    ink, paper = figure.PALETTE["ink"], figure.PALETTE["paper"]
    lines = [-0.2 * (at + 1) for at in range(len(rows))]
    for line, row, pair in zip(lines, rows, marks, strict=True):
        colour = figure.PALETTE[figure.STATE_COLOURS[STATES[row["interval"]]]]
        places = [max(at, LOWEST_S) for at in pair if at is not None]
        plot.plot(places, [line] * len(places), color=colour, linewidth=6, solid_capstyle="butt")
        for at, face in zip(pair, (paper, ink), strict=True):
            if at is not None:
                plot.plot([max(at, LOWEST_S)], [line], "o", color=ink, markersize=7, markerfacecolor=face,
                          markeredgewidth=1.8)  # fmt: skip
    states = [STATES[row["interval"]] for row in rows]
    plot.set_yticks([0, 0.25, 0.5, 0.75, 1, *lines], labels=["0", "25 %", "50 %", "75 %", "100 %", *states])
    plot.set_ylim(min(lines, default=0) - 0.1, 1.05)
    plot.grid(axis="y")
    title = text.of_service(name)
    said = _said(points, rows)
    return Panel(title, figure.svg(plot, identity, f"How long silences of {title} last", said), said)


def _said(points: Sequence[tuple[float, float, float]], rows: Sequence[Row]) -> str:
    half = next((text.duration(at) for at, silent, _ in points if silent <= 0.5), None)
    lasts = f"half last up to {half}" if half else f"more than half last longer than {text.duration(points[-1][0])}"
    marks = [f"{row['interval']}: {Kind.DURATION.show(row['in_force_s'])} in force, "
             f"{Kind.DURATION.show(row['recommended_s'])} recommended" for row in rows]  # fmt: skip
    first = f"Of silences of {text.duration(points[0][0])} or more, {lasts}, and {text.percent(points[0][2])} wake"
    return f"{'; '.join([first, *marks])}."
