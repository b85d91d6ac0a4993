# SPDX-License-Identifier: Apache-2.0
"""How servers that asked for a client were served: spark/jobs/attaches."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from spark.page import figure, text
from spark.page.section import Column, Kind, Panel, Plot, Row, Section, Tables, by_service, known, largest, shown, total

TABLES: Final = ("attaches", "attaches_by_network", "attaches_by_hour", "attach_refusals")

TOLD, DRAWN = 5, 3
"""Of each kind, what findings are of; services that plots are of."""
BINS: Final = 170
"""Of the level axis: of more hours, several are one."""
LEAST_MS: Final = 1
"""On a logarithmic scale: times are in whole milliseconds."""

WAYS: Final = {"connect": "HTTP CONNECT", "socks5": "SOCKS5", "address": "its address", "api": "the API"}
REASONS: Final = {
    "ENOENT": "there was no such client",
    "EBUSY": "the client was linked to another server",
    "ETIMEDOUT": "the client did not answer",
    "ECANCELED": "the daemon ended meanwhile",
}
METHOD: Final = text.paragraphs("""
A server asks for its client by the proxy or by the client's address, and is told yes, and linked, or is refused. Times
are from asking: to the answer, of those linked, and to the client's first byte, where there was one.

A client was gone if the server was linked, the client never said a byte, and its connection then ended as only one that
is not there any more lets it: its path did not answer, it did not take what was sent, it answered by RST or another
error, or it had come by another connection. Not counted are an end by FIN, since that client was there, one after the
client was heard again, and one that came more than 1,000 s after the answer.
""")
CAVEATS: Final = text.paragraphs("""
A client that was not found is of no known service and network, so that the shares of a service or of a network leave
out servers that were refused for that. A share of refusals is of all servers that asked by that way.

What is told of an hour is of the servers that asked in it.
""")
_COUNTS: Final = (
    Column("requests", "asked", Kind.COUNT), Column("refused", "refused", Kind.COUNT),
    Column("linked_share", "linked", Kind.SHARE), Column("no_first_byte", "no first byte", Kind.COUNT),
    Column("gone", "client gone", Kind.COUNT),
    *(Column(f"{what}_p{share}_ms", said, Kind.MILLISECONDS, f"p{share}")
      for what, said in (("answer", "answer"), ("first", "first byte")) for share in (50, 99)),
)  # fmt: skip
_SERVICE: Final = Column("service", "service")
_TABLES: Final = {
    "attaches": ("Servers that asked for a client", (
        _SERVICE, Column("way", "way"), Column("found", "found in"), *_COUNTS,
    )),
    "attach_refusals": ("Why servers were refused", (
        _SERVICE, Column("way", "way"), Column("step", "step"), Column("error", "error"),
        Column("count", "refused", Kind.COUNT), Column("share", "of all by this way", Kind.SHARE),
    )),
    "attaches_by_network": ("By client network", (_SERVICE, Column("network", "network"), *_COUNTS)),
}  # fmt: skip
_BY: Final = {"attaches": "requests", "attach_refusals": "count", "attaches_by_network": "requests"}
_UNKNOWN: Final = "–: no client was found, or it is not known."
_TIMES: Final = f"{_UNKNOWN} p50: half took so long at most; p99: 99{text.GAP}%."
_NOTES: Final = {"attaches": _TIMES, "attach_refusals": _UNKNOWN, "attaches_by_network": _TIMES}


def section(tables: Tables) -> Section:
    """Of the tables that are there."""
    hours = [row for row in tables.get("attaches_by_hour", ()) if row["hour"] is not None]
    counted = next((tables[name] for name in TABLES[:3] if tables.get(name)), ())
    findings = [
        *_served(counted),
        *_refusals(tables.get("attach_refusals", ())),
        *_gone(counted, tables.get("attaches_by_network", ())),
        *_ways(tables.get("attaches", ())),
    ]
    plots = [plot for plot in (_requests(hours), _answers(hours)) if plot.panels]
    return Section(
        "attaches", "How servers were served that asked for a client", findings or ["No server asked for a client."],
        plots, tables=shown(tables, _TABLES, _BY, _NOTES), method=METHOD, caveats=CAVEATS,
    )  # fmt: skip


def _whose(service: str | None) -> str:
    """Of no service is a client that was not found."""
    return "no known service" if service is None else text.of_service(service)


# -- findings ----------------------------------------------------------------------------------------------------------


def _served(rows: Sequence[Row]) -> Iterator[str]:
    if asked := total(rows, "requests"):
        linked, refused = (total(rows, key) for key in ("linked", "refused"))
        yield (f"Of {text.rough(asked)} servers that asked for a client, {text.rough(linked)} "
               f"({text.percent(linked / asked)}) were linked, and {text.rough(refused)} refused.")  # fmt: skip


def _refusals(rows: Sequence[Row]) -> Iterator[str]:
    """Why, of all services and ways."""
    reasons: Counter[str] = Counter()
    for row in rows:
        error = text.clean(row["error"])
        reasons[f"{REASONS[error]} ({error})" if error in REASONS else error] += int(known(row, "count") or 0)
    if count := reasons.total():
        parts = [f"{text.percent(many / count)}: {reason}" for reason, many in reasons.most_common(TOLD) if many]
        yield f"Why {text.rough(count)} were refused: {'; '.join(parts)}."


def _gone(rows: Sequence[Row], networks: Sequence[Row]) -> Iterator[str]:
    """Servers that were told yes, and heard nothing."""
    if linked := total(rows, "linked"):
        gone = total(rows, "gone")
        silent = total(rows, "no_first_byte") - gone
        share = f" ({text.percent(gone / linked)} of those linked)" if gone else ""
        worst = largest(networks, "gone")[:1] if gone else []
        where = [f"; most in {text.named('network', row['network'])} of {_whose(row['service'])}: {text.rough(most)}"
                 for row in worst if (most := known(row, "gone"))]  # fmt: skip
        more = f" The clients of {text.rough(silent)} more said nothing, and are not known to have been gone."
        yield (f"{text.rough(gone) if gone else 'None'} were told yes though the client was gone{share}"
               f"{''.join(where)}.{more if silent > 0 else ''}")  # fmt: skip


def _ways(rows: Sequence[Row]) -> Iterator[str]:
    """How long it took, of the ways and states with most."""
    for row in [row for row in largest(rows, "linked") if known(row, "linked")][:TOLD]:
        way = WAYS.get(row["way"], text.clean(row["way"]))
        state = "" if row["found"] is None else f", in {text.clean(row['found'])}"
        times = [*_times(row, "answer", "the answer came"), *_times(row, "first", "the client's first byte")]
        took = f": {text.listed(times)}" if times else ""
        yield f"{text.rough(row['linked'])} were linked by {way} to a client of {_whose(row['service'])}{state}{took}."


def _times(row: Row, what: str, said: str) -> Iterator[str]:
    half, most = (known(row, f"{what}_p{share}_ms") for share in (50, 99))
    if half is not None and most is not None:
        yield f"{said} within {text.duration(half / 1000)} (half) and {text.duration(most / 1000)} (99 %)"


# -- plots -------------------------------------------------------------------------------------------------------------


def _largest(hours: Sequence[Row]) -> tuple[list[tuple[str | None, list[Row]]], list[int], str]:
    """The services with most servers that asked and their rows, the edges of what is drawn as one, and a sentence."""
    of = by_service(hours)
    names = sorted(of, key=lambda name: -total(of[name], "requests"))[:DRAWN]
    if not names:
        return [], [], ""
    numbers = [figure.hour(row["hour"]) for row in hours]
    edges, width = figure.edges(min(numbers), max(numbers) + 1, BINS)
    return [(name, of[name]) for name in names], edges, f" {width} hours are drawn as one." if width > 1 else ""


def _requests(hours: Sequence[Row]) -> Plot:
    some, edges, width = _largest(hours)
    return Plot(
        "Servers that asked for a client, hour by hour",
        f"How many an hour; times are UTC, and each service has a scale of its own.{width}",
        [_asked(f"asked-{at}", name, rows, edges) for at, (name, rows) in enumerate(some)],
        [("blue", "linked"), ("vermillion", "refused")],
    )


def _asked(identity: str, name: str | None, rows: Sequence[Row], edges: Sequence[int]) -> Panel:
    layers = {key: [0.0] * (len(edges) - 1) for key in ("linked", "refused")}
    for row in rows:
        at = bisect_right(edges, figure.hour(row["hour"])) - 1
        for key, values in layers.items():
            values[at] += (known(row, key) or 0) / (edges[at + 1] - edges[at])
    plot = figure.axes()
    figure.stacked(plot, edges, [("blue", layers["linked"]), ("vermillion", layers["refused"])])
    figure.hours(plot, edges[0], edges[-1])
    figure.counts(plot)
    title = _whose(name)
    means = [f"{key} {text.rough(sum(values) / len(values))}, at most {text.rough(max(values))}"
             for key, values in layers.items()]  # fmt: skip
    said = f"Servers an hour: {'; '.join(means)}."
    return Panel(title, figure.svg(plot, identity, f"Servers that asked for a client: {title}", said), said)


def _answers(hours: Sequence[Row]) -> Plot:
    some, edges, width = _largest([row for row in hours if known(row, "answer_p99_ms") is not None])
    worst = f"{width[:-1]}: the highest of each." if width else ""
    return Plot(
        "How long the answer took, hour by hour",
        f"Of those linked, from asking to the answer, on a logarithmic scale; times are UTC.{worst}",
        [_took(f"took-{at}", name, rows, edges) for at, (name, rows) in enumerate(some)],
        [("sky", "half up to (p50)"), ("vermillion", "99 % up to (p99)")],
    )


def _took(identity: str, name: str | None, rows: Sequence[Row], edges: Sequence[int]) -> Panel:
    lines = {50: [float("nan")] * (len(edges) - 1), 99: [float("nan")] * (len(edges) - 1)}
    for row in rows:
        at = bisect_right(edges, figure.hour(row["hour"])) - 1
        for share, line in lines.items():
            if (value := known(row, f"answer_p{share}_ms")) is not None:
                value = max(value, LEAST_MS) / 1000
                line[at] = value if line[at] != line[at] else max(line[at], value)
    drawn = [value for line in lines.values() for value in line if value == value]
    plot = figure.axes()
    figure.hours(plot, edges[0], edges[-1])
    figure.durations(plot, min(drawn), max(drawn), "y")
    for colour, share in (("sky", 50), ("vermillion", 99)):
        plot.stairs(lines[share], edges, baseline=None, color=figure.PALETTE[colour], linewidth=1.6)
    title = _whose(name)
    most = max(value for value in lines[99] if value == value)
    said = f"In the slowest hour, 99 % of those linked were answered within {text.duration(most)}."
    return Panel(title, figure.svg(plot, identity, f"How long the answer took: {title}", said), said)
