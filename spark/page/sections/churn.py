# SPDX-License-Identifier: Apache-2.0
"""What failed together, what died silently, and what reconnects too often: spark/jobs/churn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from spark.page import figure, text
from spark.page.section import Column, Kind, Panel, Plot, Row, Section, Tables, by_service, known, largest, shown, total
from spark.page.sections.dwell import ENDS

TABLES: Final = ("failures", "silent_deaths", "flapping_clients", "flapping_networks")

TOLD, DRAWN = 3, 6
"""Of each kind, what findings are of; services that plots are of."""
POINTS: Final = 200
"""Of a plot: the largest failures."""
MOST: Final = 1000
"""Of the flapping ones, the job keeps as many."""

LIKELY: Final = {
    "server": ("vermillion", "the server closed them"),
    "network": ("blue", "their path did not answer"),
    "client reset": ("orange", "their clients reset them"),
    "client close": ("sky", "their clients closed them"),
    "client came anew": ("green", "their clients had come by other connections"),
    "appliance": ("purple", "the appliance ended or ran short"),
    "operator": ("grey", "an operator closed them"),
}
"""Colour, and what it means, of a failure's likely cause."""
METHOD: Final = text.paragraphs("""
Connections that end are counted by minute for each service and network (/16, /48). What is usual is the median of the
minutes of an hour, and of this hour's and its two neighbours' the median again. A minute fails with 20 ends at least,
where even twice what is usual makes so many all but impossible: 0.01 such minutes are to be expected by chance in a
month of 23,000 networks (Chernoff's bound of Poisson's distribution). Minutes that follow each other are one failure;
findings take those of several networks as one which overlap, or follow each other, and have the same likely cause.

A connection died silently if keep-alive probes were not answered, or what was sent was never acknowledged. Until then
nobody knew, for as long as its client had been silent.

A client is a service and an address, behind which many may be. It reconnects as often as connections both begin and end
there in an hour, the lesser of the two. It is granted three times what is usual among the service's addresses for as
many connections as it holds, or for as short as connections last. It flaps where it makes six reconnects in an hour for
each connection held at least, and so many more than are granted that of all addresses of the service 0.01 at most are
to be expected to come out so by chance (Bonferroni). A network is tested likewise.
""")
CAVEATS: Final = text.paragraphs("""
Not found are: one client that flaps among thousands behind one address; a client that connects more often than others
for as short as they do, which is what many clients behind one address look like; and a service in which those that flap
hold connections for half of the time of all.

Causes are likely ones: of most of the connections that ended, not of all. How many addresses failed is known to some
5 %.

How long nobody knew is counted up to six days, and without the time in which no daemon probed.

Connections that made no transition in the times of this report are not counted as connected.
""")
_WHOSE: Final = (Column("service", "service", Kind.SERVICE), Column("network", "network"))
_FLAPPING: Final = (
    Column("begun", "begun", Kind.COUNT), Column("ended", "ended", Kind.COUNT),
    Column("most_per_hour", "begun at most", Kind.COUNT, "an hour"), Column("held", "held on average", Kind.NUMBER),
    Column("times_usual", "reconnects", Kind.NUMBER, "times the usual"),
    Column("median_life_s", "half last up to", Kind.DURATION), Column("likely_cause", "mostly ended by"),
    Column("score", "sureness", Kind.NUMBER, "-log10 of chance"),
)  # fmt: skip
_TABLES: Final = {
    "failures": ("Connections that ended together", (
        *_WHOSE, Column("began", "began", Kind.TIME), Column("minutes", "minutes", Kind.COUNT),
        Column("ended", "connections", Kind.COUNT), Column("addresses", "addresses", Kind.COUNT, "about"),
        Column("usual_per_minute", "usual", Kind.NUMBER, "a minute"),
        Column("connected_share", "of those connected", Kind.SHARE), Column("likely_cause", "likely cause"),
        Column("cause_share", "ended by it", Kind.SHARE),
    )),
    "silent_deaths": ("Connections that died silently", (
        *_WHOSE, Column("ended", "connections", Kind.COUNT), Column("of_ends", "of all that ended", Kind.SHARE),
        Column("by_probes", "by probes", Kind.COUNT), Column("by_timeout", "by ETIMEDOUT", Kind.COUNT),
        Column("known", "silence known", Kind.COUNT), Column("p50_s", "half silent up to", Kind.DURATION),
        Column("p90_s", "90 %", Kind.DURATION), Column("p99_s", "99 %", Kind.DURATION),
        Column("most_s", "at most", Kind.DURATION),
    )),
    "flapping_clients": ("Clients that reconnect too often", (_WHOSE[0], Column("address", "client"), *_FLAPPING)),
    "flapping_networks": ("Networks that reconnect too often", (*_WHOSE, *_FLAPPING)),
}  # fmt: skip
_BY: Final = {
    "failures": "ended", "silent_deaths": "ended", "flapping_clients": "score", "flapping_networks": "score",
}  # fmt: skip


def section(tables: Tables) -> Section:
    """Of the tables that are there. What was found is told before what was not."""
    failures, deaths = (tables.get(name, ()) for name in TABLES[:2])
    found = [*_failures(failures), *_deaths(deaths)]
    nothing = []
    if "failures" in tables and not failures:
        nothing.append("At no time did unusually many connections end together.")
    if "silent_deaths" in tables and not deaths:
        nothing.append("No connection died silently.")
    for name, what, key in (("flapping_clients", "client", "address"), ("flapping_networks", "network", "network")):
        if rows := tables.get(name):
            found += _flapping(largest(rows, "score"), what, key)
        elif name in tables:
            nothing.append(f"No {what} reconnects unusually often.")
    plot = _plot(failures)
    return Section(
        "churn", "What failed together, died silently or reconnects too often", [*found, *nothing],
        [plot] if plot.panels else [], tables=shown(tables, _TABLES, _BY), method=METHOD, caveats=CAVEATS,
    )  # fmt: skip


# -- findings ----------------------------------------------------------------------------------------------------------


def _incidents(rows: Sequence[Row]) -> list[list[Row]]:
    """Failures of several networks that overlap and have the same likely cause are one; the largest first."""
    timed = [row for row in rows if row["began"] is not None]
    found: list[list[Row]] = []
    until = None
    for row in sorted(timed, key=lambda row: (str(row["likely_cause"]), row["began"])):
        ends = row["began"] + timedelta(minutes=known(row, "minutes") or 1)
        if until is not None and found[-1][0]["likely_cause"] == row["likely_cause"] and row["began"] <= until:
            found[-1].append(row)
            until = max(until, ends)
        else:
            found.append([row])
            until = ends
    return sorted(found, key=lambda some: (-total(some, "ended"), some[0]["began"]))


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    incidents = _incidents(rows)
    times = "once" if len(incidents) == 1 else f"{len(incidents):,} times"
    yield f"Unusually many connections ended together {times}, {text.rough(total(rows, 'ended'))} in all."
    yield from map(_incident, incidents[:TOLD])


def _incident(some: Sequence[Row]) -> str:
    first, ended = some[0], total(some, "ended")
    by_cause = sum((known(row, "ended") or 0) * (known(row, "cause_share") or 0) for row in some)
    services = [text.of_service(name) for name in by_service(some)]
    whose = services[0] if len(services) == 1 else text.plural(len(services), "service")
    networks = {row["network"] for row in some}
    where = text.named("network", first["network"]) if len(networks) == 1 else text.plural(len(networks), "network")
    share = known(first, "connected_share") if len(some) == 1 else None
    of = "" if share is None else f", {text.percent(share)} of those connected,"
    cause = LIKELY.get(first["likely_cause"], ("", f"likely cause {Kind.TEXT.show(first['likely_cause'])}"))[1]
    return (f"On {text.moment(first['began'])} UTC {text.rough(ended)} connections of {whose} in {where}{of} ended "
            f"together: {cause}" + (f" ({text.percent(by_cause / ended)})." if ended else "."))  # fmt: skip


def _deaths(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    by_probes, by_timeout = (text.rough(total(rows, key)) for key in ("by_probes", "by_timeout"))
    count = total(rows, "ended")
    yield (f"{text.rough(count)} {'connection' if count == 1 else 'connections'} died silently, since the client no "
           f"longer answered: {by_probes} were found out by keep-alive probes, {by_timeout} since what was sent was "
           f"not acknowledged.{_unnoticed(rows)}")  # fmt: skip
    worst = [_network(row) for row in largest(rows, "ended")[:TOLD]]
    yield f"Most of them: {'; '.join(worst)}."


def _unnoticed(rows: Sequence[Row]) -> str:
    """For how long nobody knew: quantiles of several networks cannot be added up."""
    parts = []
    for key, share in (("p50_s", "half"), ("p99_s", "99 %")):
        values = [value for row in rows if (value := known(row, key)) is not None]
        if values:
            low, high = text.duration(min(values)), text.duration(max(values))
            spread = "" if low == high else f" in the best network and {high} in the worst one"
            parts.append(f"of {share} of them for up to {low}{spread}")
    return f" Nobody knew {text.listed(parts)}." if parts else ""


def _network(row: Row) -> str:
    parts = []
    if (share := known(row, "of_ends")) is not None:
        parts.append(f"{text.percent(share)} of all that ended there")
    if (half := known(row, "p50_s")) is not None and (most := known(row, "p99_s")) is not None:
        parts.append(f"half unnoticed for up to {text.duration(half)}, 99 % for up to {text.duration(most)}")
    more = f" ({', '.join(parts)})" if parts else ""
    where = f"{text.named('network', row['network'])} of {text.of_service(row['service'])}"
    return f"{text.rough(known(row, 'ended') or 0)} in {where}{more}"


def _flapping(rows: Sequence[Row], what: str, key: str) -> Iterator[str]:
    """rows: the surest first."""
    count = f"{MOST:,} or more" if len(rows) >= MOST else f"{len(rows):,}"
    yield f"{count} {f'{what} reconnects' if len(rows) == 1 else f'{what}s reconnect'} too often."
    for row in rows[:TOLD]:
        cause, _, error = str(row["likely_cause"] or "").partition(" ")
        ends = ENDS.get(cause, f"ended by {text.clean(cause)}") + (f" ({text.clean(error)})" if error else "")
        parts = [
            f"{text.rough(times)} times as often as usual" if (times := known(row, "times_usual")) else "",
            f"up to {text.rough(most)} new connections in an hour" if (most := known(row, "most_per_hour")) else "",
            f"most were {ends}" if cause else "",
        ]
        told = ", ".join(part for part in parts if part) or "unusually often"
        yield f"{text.named(what, row[key])} of {text.of_service(row['service'])}: {told}."


# -- plot --------------------------------------------------------------------------------------------------------------


def _plot(rows: Sequence[Row]) -> Plot:
    """A dot for each failure, of the services with most connections that ended so. A few need no plot."""
    timed = [row for row in rows if row["began"] is not None and known(row, "ended")]
    of = {name: some for name, some in by_service(timed).items() if len(some) > TOLD}
    names = sorted(of, key=lambda name: -total(of[name], "ended"))[:DRAWN]
    drawn = [row for name in names for row in of[name]]
    hours = [figure.hour(row["began"]) for row in drawn]
    span = (min(hours), max(hours) + 1) if hours else (0, 1)
    panels = [_panel(f"failures-{at}", name, of[name], span) for at, name in enumerate(names)]
    causes = {row["likely_cause"] for row in drawn}
    legend = [(colour, means) for cause, (colour, means) in LIKELY.items() if cause in causes]
    return Plot(
        "Connections that ended together",
        "Each dot is a failure of one network: when it began, in UTC, and how many connections ended, on a logarithmic "
        f"scale of each service's own. Services with {TOLD + 1} failures or more are shown; of more than {POINTS} "
        "failures the largest.",
        panels,
        legend,
    )


def _panel(identity: str, name: str | None, rows: Sequence[Row], span: tuple[int, int]) -> Panel:
    """span: hours since 1970."""
    plot = figure.axes()
    some = largest(rows, "ended")[:POINTS]
    figure.hours(plot, *span)
    figure.magnitudes(plot, some[-1]["ended"], some[0]["ended"])
    for colour in (*(colour for colour, _ in LIKELY.values()), "ink"):
        of = [row for row in some if LIKELY.get(row["likely_cause"], ("ink", ""))[0] == colour]
        times = [figure.hour(row["began"]) + row["began"].minute / 60 for row in of]
        plot.plot(times, [row["ended"] for row in of], "o", color=figure.PALETTE[colour], markersize=8, clip_on=False,
                  markeredgecolor=figure.PALETTE["paper"], markeredgewidth=0.8)  # fmt: skip
    title = text.of_service(name)
    most = some[0]
    said = (f"{text.plural(len(rows), 'failure')}; the largest one is of {text.rough(most['ended'])} connections, on "
            f"{text.moment(most['began'])}.")  # fmt: skip
    return Panel(title, figure.svg(plot, identity, f"Failures of {title}", said), said)
