# SPDX-License-Identifier: Apache-2.0
"""How long connections stay in each state, what ends their stays, how many there are hour by hour: spark/jobs/dwell."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from control.core.states import State
from spark.page import figure, text
from spark.page.section import Column, Kind, Matrix, Panel, Plot, Row, Section, Table, Tables, by_service, largest

TABLES: Final = (
    "dwell_by_service", "dwell_by_network", "dwell_by_tag", "dwell_by_rules", "transitions", "transitions_by_tag",
    "transitions_by_rules", "hours",
)  # fmt: skip

STATES: Final = tuple(state.label for state in (State.ACTIVE, State.STANDBY, State.IDLE, State.SLEEP))
AWAKE, ASLEEP = STATES[:2], STATES[2:]
NEXT: Final = (*STATES, State.CLOSED.label)

TOLD, DRAWN = 3, 6
"""Services that findings are of; that plots are of."""
SOME: Final = 20
"""Rows of a table by tag or by rules that are shown."""
BINS: Final = 170
"""Of the level axis: of more hours, several are one."""
OTHERS: Final = "other services"
WAKES: Final = {
    "client-data": "by the client",
    "client-connect": "by the client",
    "server-attach": "by a server",
    "server-data": "by a server",
    "command": "by an operator",
}
ENDS: Final = {
    "client-close": "closed by the client",
    "server-close": "closed by the server",
    "client-connect": "replaced, since the client had come back by another one",
    "probe-timeout": "given up, since the client no longer answered",
    "write-timeout": "given up, since an end no longer took what was sent",
    "pressure": "closed for want of memory, descriptors or processor time",
    "command": "closed by an operator",
    "restore": "lost with a daemon that was killed",
    "shutdown": "closed when the daemon ended",
}
MATRICES: Final = (
    "What follows each state",
    "Of the stays in a state whose end was seen, the share that ended by each transition, and its most frequent cause.",
)
METHOD: Final = text.paragraphs("""
A stay is the time from one transition of a connection to its next one. One whose end was not seen, since the record or
a daemon ended before it, is censored: it lasted so long at least. How long stays last is estimated by the product of
Kaplan and Meier, for which a censored stay counts as long as it was watched, and neither as ended nor not at all.

The mean is the time watched over the stays whose end was seen: what a stay lasts, were its end as likely at any age.
Durations are counted in eighths of an octave; a quantile is the upper end of its class, up to 9 % too long.

By rules, the mean is the time that all connections were in a state together, over those that left it (Little's law), as
the snapshots counted both: a transition does not say which rules its connection had.
""")
CAVEATS: Final = text.paragraphs("""
A connection that made no transition in the times of this report is in none of these figures: those that sleep all the
time are missing, and shares of sleep are higher than what stands here.

A stay that a daemon found when it began is of unknown age, and left out of the lengths.

By rules, the time in SLEEP is without that of connections that sleep in the filter alone, which are counted for the
whole appliance only. By tag, a client has the tags that its name had when the export was made.
""")
_QUANTILES: Final = (("p50_s", "half"), ("p90_s", "90 %"), ("p99_s", "99 %"))
_MARKERS: Final = (("o", 7, "ink"), ("|", 12, "ink"), ("o", 7, "paper"))
"""Of each quantile: its shape, pixels, and the colour within."""
_SERVICE: Final = Column("service", "service", Kind.SERVICE)
_DURATIONS: Final = [
    Column("stays", "stays", Kind.COUNT),
    Column("censored", "of which censored", Kind.COUNT),
    Column("total_s", "watched", Kind.DURATION),
    Column("mean_s", "mean", Kind.DURATION),
    *(Column(key, f"{share} last up to", Kind.DURATION) for key, share in _QUANTILES),
]
_OF_RULES: Final = (_SERVICE, Column("rules", "rules"))
_STEP: Final = (
    Column("state", "from"), Column("next", "to"), Column("cause", "cause"), Column("count", "transitions", Kind.COUNT),
    Column("share", "share of the state's", Kind.SHARE),
)  # fmt: skip

Services = Mapping[str | None, Sequence[Row]]


def section(tables: Tables) -> Section:
    """Of the tables that are there."""
    dwell = _by_service(tables.get("dwell_by_service", ()), "stays")
    ended = _by_service(tables.get("transitions", ()), "count")
    there = _by_service(tables.get("hours", ()), "connections")
    findings = [*_asleep(dwell), *_busiest(there), *_each_service(dwell, ended), *_ends(ended)]
    plots = [plot for plot in (_hours(there), _stays(dwell)) if plot.panels]
    return Section(
        "dwell",
        "How long connections stay in each state",
        findings or ["No stay was seen."],
        plots,
        [_matrix(service, ended[service]) for service in list(ended)[:TOLD]],
        MATRICES,
        [_tables[name](rows) for name, rows in tables.items()],
        METHOD,
        [*_censored(dwell), *CAVEATS],
    )


def _by_service(rows: Sequence[Row], size: str) -> Services:
    """The largest service first."""
    groups = by_service(rows)
    sums = {service: sum(row[size] or 0 for row in some) for service, some in groups.items()}
    names = sorted(groups, key=lambda service: (-sums[service], service is None, service or ""))
    return {service: groups[service] for service in names}


# -- findings ----------------------------------------------------------------------------------------------------------


def _asleep(dwell: Services) -> Iterator[str]:
    """For how much of their time connections need no socket."""
    watched: Counter[str] = Counter()
    for rows in dwell.values():
        for row in rows:
            watched[row["state"]] += row["total_s"] or 0
    if total := watched.total():
        asleep = sum(watched[state] for state in ASLEEP) / total
        parts = [f"{text.percent(seconds / total)} in {text.clean(state)}" for state, seconds in watched.most_common()
                 if seconds]  # fmt: skip
        yield (f"Connections are without a socket for {text.percent(asleep)} of the time that they were watched: "
               f"they spend {text.listed(parts)}.")  # fmt: skip


def _busiest(there: Services) -> Iterator[str]:
    """The hour with most connections."""
    totals: Counter[datetime] = Counter()
    for rows in there.values():
        for row in rows:
            totals[row["hour"]] += row["connections"]
    if totals:
        most = max(totals.values())
        when = min(hour for hour, count in totals.items() if count == most)
        yield (f"There were {text.rough(totals.total() / len(totals))} connections on average, and "
               f"{text.rough(most)} in the hour with most of them, from {text.moment(when)} UTC on.")  # fmt: skip


def _each_service(dwell: Services, ended: Services) -> Iterator[str]:
    """Of the services with most stays: how long these last, and what wakes connections."""
    for service in list(dwell or ended)[:TOLD]:
        said = list(_lengths(service, _in_order(dwell.get(service, ()))))
        said += _wakes("" if said else f" of {text.of_service(service)}", ended.get(service, ()))
        if said:
            yield " ".join(said)


def _lengths(service: str | None, rows: Sequence[Row]) -> Iterator[str]:
    stays = sum(row["stays"] for row in rows)
    parts = []
    for key, share in (("p50_s", "half"), ("p90_s", "9 of 10")):
        known = [f"{text.duration(row[key])} in {text.clean(row['state'])}" for row in rows if row[key] is not None]
        if known:
            parts.append(f"{share} last at most {text.listed(known)}")
    if parts:
        yield f"Of {text.rough(stays)} stays of connections of {text.of_service(service)}, {'; '.join(parts)}."


def _wakes(whose: str, rows: Sequence[Row]) -> Iterator[str]:
    """What wakes connections without a socket. whose: ' of service meter', or nothing where that was said."""
    woken: Counter[str] = Counter()
    for row in rows:
        if row["state"] in ASLEEP and row["next"] in AWAKE:
            woken[WAKES.get(row["cause"], f"by {text.clean(row['cause'])}")] += row["count"]
    if total := woken.total():
        (first, count), *rest = woken.most_common()
        more = [f"{text.percent(other / total)} {who}" for who, other in rest]
        yield (f"Of {text.rough(total)} wake-ups{whose}, "
               f"{text.listed([f'{text.of_ten(count / total)} are {first}', *more])}.")  # fmt: skip


def _ends(ended: Services) -> Iterator[str]:
    """How connections come to their end, of all services."""
    ends: Counter[str] = Counter()
    for rows in ended.values():
        for row in rows:
            if row["next"] == State.CLOSED.label:
                ends[ENDS.get(row["cause"], f"ended by {text.clean(row['cause'])}")] += row["count"]
    if total := ends.total():
        parts = [f"{'all' if count == total else text.percent(count / total)} were {how}"
                 for how, count in ends.most_common(4)]  # fmt: skip
        yield f"Of {text.rough(total)} connections that ended, {text.listed(parts)}."


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """By state, as a connection goes down."""
    return sorted(rows, key=lambda row: STATES.index(row["state"]) if row["state"] in STATES else len(STATES))


# -- plots -------------------------------------------------------------------------------------------------------------


def _hours(there: Services) -> Plot:
    """Connections by state, stacked, over the hours; of more than DRAWN services the last panel has the rest."""
    names = list(there)
    alone = names if len(names) <= DRAWN else names[: DRAWN - 1]
    groups = [(text.of_service(name), there[name]) for name in alone]
    if rest := [row for name in names[len(alone) :] for row in there[name]]:
        groups.append((f"{len(names) - len(alone):,} {OTHERS}, summed", rest))
    numbers = [figure.hour(row["hour"]) for rows in there.values() for row in rows]
    panels: list[Panel] = []
    width = 1
    if numbers:
        edges, width = figure.edges(min(numbers), max(numbers) + 1, BINS)
        panels = [_hours_panel(f"hours-{at}", title, rows, edges) for at, (title, rows) in enumerate(groups)]
    caption = ("Connections in each state, each hour's average; times are UTC, and each service has a scale of its own."
               + (f" {width} hours are drawn as one." if width > 1 else ""))  # fmt: skip
    legend = [(figure.STATE_COLOURS[state], state) for state in STATES]
    return Plot("Connections by state, hour by hour", caption, panels, legend)


def _hours_panel(identity: str, title: str, rows: Sequence[Row], edges: Sequence[int]) -> Panel:
    layers = {state: [0.0] * (len(edges) - 1) for state in STATES}
    for row in rows:
        if row["state"] in layers:
            at = bisect_right(edges, figure.hour(row["hour"])) - 1
            layers[row["state"]][at] += row["connections"] / (edges[at + 1] - edges[at])
    order = STATES[::-1]  # those that are most are below
    plot = figure.axes()
    figure.stacked(plot, edges, [(figure.STATE_COLOURS[state], layers[state]) for state in order])
    figure.hours(plot, edges[0], edges[-1])
    figure.counts(plot)
    means = [f"{state} {text.rough(sum(values) / len(values))}, at most {text.rough(max(values))}"
             for state, values in layers.items()]  # fmt: skip
    description = f"Connections on average: {'; '.join(means)}."
    return Panel(title, figure.svg(plot, identity, f"Connections by state of {title}", description), description)


def _stays(dwell: Services) -> Plot:
    """How long stays last: each state's quantiles, on one scale for all services."""
    names = list(dwell)[:DRAWN]
    known = [row[key] for name in names for row in dwell[name] for key, _ in _QUANTILES if row[key] is not None]
    panels = [_stays_panel(f"stays-{at}", text.of_service(name), _in_order(dwell[name]), min(known), max(known))
              for at, name in enumerate(names)] if known else []  # fmt: skip
    left_out = len(dwell) - len(names)
    some = f" The {len(names)} services with most stays are shown, of {len(dwell):,}." if left_out else ""
    caption = ("How long a stay lasts, on a logarithmic scale. A line that ends in dots goes on: fewer than that share "
               f"of the stays were seen to end.{some}")  # fmt: skip
    legend = [("dot", "half of the stays last up to this (p50)"), ("stroke", "90 % (p90)"), ("ring", "99 % (p99)"),
              ("dots", "not seen to end")]  # fmt: skip
    return Plot("How long stays last", caption, panels, legend)


def _stays_panel(identity: str, title: str, rows: Sequence[Row], low: float, high: float) -> Panel:
    plot = figure.axes(height=44 + 34 * max(len(rows), 1), left=70)
    figure.durations(plot, low, high)
    end = plot.get_xlim()[1]
    for at, row in enumerate(rows):
        values = [row[key] for key, _ in _QUANTILES]
        known = [value for value in values if value is not None]
        if known:
            colour = figure.PALETTE[figure.STATE_COLOURS.get(row["state"], "grey")]
            plot.plot([known[0], known[-1]], [at, at], color=colour, linewidth=6, solid_capstyle="butt")
        if len(known) < len(values):
            from_here = known[-1] if known else low
            plot.plot([from_here, end], [at, at], color=figure.PALETTE["quiet"], linewidth=1.6, linestyle=(0, (1, 2)))
        for value, (marker, size, face) in zip(values, _MARKERS, strict=True):
            if value is not None:
                plot.plot([value], [at], marker, color=figure.PALETTE["ink"], markersize=size,
                          markerfacecolor=figure.PALETTE[face], markeredgewidth=1.8)  # fmt: skip
    plot.set_yticks(range(len(rows)), labels=[text.clean(row["state"]) for row in rows])
    plot.set_ylim(len(rows) - 0.5, -0.5)
    description = f"{'; '.join(map(_said_of, rows))}."
    return Panel(title, figure.svg(plot, identity, f"How long stays of {title} last", description), description)


def _said_of(row: Row) -> str:
    """What a line of a plot shows."""
    shown = [f"for {share} it is not known" if row[key] is None else f"{share} last up to {text.duration(row[key])}"
             for key, share in _QUANTILES]  # fmt: skip
    return f"{text.clean(row['state'])}: {', '.join(shown)}"


def _matrix(service: str | None, rows: Sequence[Row]) -> Matrix:
    """What follows each state, and by which cause most often."""
    counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row["state"], row["next"]][row["cause"]] += row["count"]
    states = [state for state in STATES if any(source == state for source, _ in counts)]
    cells: list[list[tuple[float, str] | None]] = []
    for state in states:
        total = sum(causes.total() for (source, _), causes in counts.items() if source == state)
        line: list[tuple[float, str] | None] = []
        for after in NEXT:
            causes = counts.get((state, after))
            if causes is None:
                line.append(None)
            else:
                share = causes.total() / total
                line.append((share, f"{text.percent(share)}\n{text.clean(causes.most_common(1)[0][0])}"))
        cells.append(line)
    return Matrix(text.of_service(service), "from ↓ to →", states, NEXT,
                  cells)  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------------


def _service_table(rows: Sequence[Row]) -> Table:
    ordered = [row for some in _by_service(rows, "stays").values() for row in _in_order(some)]
    columns = [_SERVICE, Column("state", "state"), *_DURATIONS]
    return Table("Lengths of stays by service", "dwell_by_service.csv", columns, ordered, "by stays of the service",
                 note=_NOT_SEEN)  # fmt: skip


def _network_table(rows: Sequence[Row]) -> Table:
    columns = [_SERVICE, Column("network", "network"), Column("state", "state"), *_DURATIONS]
    return Table("Lengths of stays by client network", "dwell_by_network.csv", columns, largest(rows, "stays"),
                 "by stays", note=_NOT_SEEN)  # fmt: skip


def _tag_table(rows: Sequence[Row]) -> Table:
    columns = [Column("tag", "tag"), Column("state", "state"), *_DURATIONS]
    return Table("Lengths of stays by tag", "dwell_by_tag.csv", columns, largest(rows, "stays"), "by stays",
                 shown=SOME, note=f"A connection counts for each tag of its client. {_NOT_SEEN}")  # fmt: skip


def _rules_table(rows: Sequence[Row]) -> Table:
    columns = [*_OF_RULES, Column("state", "state"), Column("ended", "stays that ended", Kind.COUNT), *_DURATIONS[2:4]]
    return Table("Lengths of stays by rules", "dwell_by_rules.csv", columns, largest(rows, "total_s"),
                 "by the time watched", SOME, _COUNTED)  # fmt: skip


def _transition_table(rows: Sequence[Row]) -> Table:
    columns = [_SERVICE, *_STEP, Column("mean_s", "mean stay before", Kind.DURATION)]
    return Table("What ends stays", "transitions.csv", columns, largest(rows, "count"), "by count")


def _tag_transition_table(rows: Sequence[Row]) -> Table:
    columns = [Column("tag", "tag"), *_STEP, Column("mean_s", "mean stay before", Kind.DURATION)]
    return Table("What ends stays, by tag", "transitions_by_tag.csv", columns, largest(rows, "count"), "by count", SOME)


def _rules_transition_table(rows: Sequence[Row]) -> Table:
    return Table("What ends stays, by rules", "transitions_by_rules.csv", [*_OF_RULES, *_STEP],
                 largest(rows, "count"), "by count", SOME, _COUNTED)  # fmt: skip


def _hour_table(rows: Sequence[Row]) -> Table:
    """The hours of each service and state together: the plot has them one by one."""
    groups: defaultdict[tuple[Any, Any], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["service"], row["state"]].append(row)
    sums = [{"service": service, "state": state, "mean": sum(row["connections"] for row in some) / len(some),
             "most": max(row["connections"] for row in some), "began": sum(row["began"] for row in some)}
            for (service, state), some in groups.items()]  # fmt: skip
    columns = [
        _SERVICE, Column("state", "state"), Column("mean", "connections on average", Kind.NUMBER),
        Column("most", "in the hour with most", Kind.NUMBER), Column("began", "stays that began", Kind.COUNT),
    ]  # fmt: skip
    return Table("Connections by state", "hours.csv", columns, largest(sums, "mean"), "by connections",
                 note="The file has each hour.")  # fmt: skip


_COUNTED: Final = "Counted by the appliance minute by minute, in its snapshots."
_NOT_SEEN: Final = "–: fewer than that share of the stays were seen to end."
_tables: Final = {
    "dwell_by_service": _service_table,
    "dwell_by_network": _network_table,
    "dwell_by_tag": _tag_table,
    "dwell_by_rules": _rules_table,
    "transitions": _transition_table,
    "transitions_by_tag": _tag_transition_table,
    "transitions_by_rules": _rules_transition_table,
    "hours": _hour_table,
}


# -- caveats ----------------------------------------------------------------------------------------------------------


def _censored(dwell: Services) -> Iterator[str]:
    """Where the ends of many stays are not known."""
    for service in list(dwell)[:TOLD]:
        for row in _in_order(dwell[service]):
            if row["stays"] and row["censored"] / row["stays"] >= 0.2:
                share = text.percent(row["censored"] / row["stays"])
                yield (f"Of the stays in {text.clean(row['state'])} of {text.of_service(service)}, {share} had not "
                       "ended when they were last watched: what is said of the longest ones rests on few.")  # fmt: skip
