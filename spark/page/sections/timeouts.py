# SPDX-License-Identifier: Apache-2.0
"""For how long the networks before the clients bear that a connection is silent: spark/jobs/timeouts, recommending."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from spark.page import figure, text
from spark.page.section import Column, Kind, Panel, Plot, Row, Section, Tables, known, largest, shown

TABLES: Final = ("timeouts", "loss_by_silence", "expected", "lost_by_network", "probes_by_day")

TIMES_OTHERS, LEAST_LOST = 2, 20
"""A finding is a network that lost so many, and so many times as often as others."""
TOLD, DRAWN = 5, 6
"""Services with rules that findings are of; that plots are of."""

_SAYS: Final = {
    "found": "silent connections are lost after {timeout} (the 95 % interval is {low} to {high})",
    "between": "silent connections are lost after some time between {low} and {high}",
    "longer": "no time-out was seen: silences of up to {low} were borne",
    "shorter": "nearly all connections were lost by the first probe, so the time-out is shorter than {high}",
    "unknown": "there were too few probes to know a time-out",
}
METHOD: Final = text.paragraphs("""
A probe after a silence finds the path alive or lost, and never tells when it was lost: current status data. The chance
of loss by silence is their non-parametric maximum likelihood (isotonic regression), with intervals by the likelihood
ratio of Banerjee and Wellner. A time-out is a step in it, beside what is lost at any age, such as clients that were
switched off: both by maximum likelihood, the time-out's interval by its profile and a twentieth of a class of silences.

Taking a lost probe's silence for the moment of the loss, as the estimator of Kaplan and Meier would, is biased: where
it would put one loss in a hundred stands in the table, for comparison.

What a client says by itself is no observation, since its own packet may open again what the network had closed. The two
directions cannot be told apart: each segment of TCP that arrives is acknowledged, so what refreshes a path from outside
refreshes it from inside, too.

A recommended interval is the longest that is clear of the time-out's interval and was borne. Where only one interval
was ever used, nothing longer can be known to be safe: experiments.json proposes a few clients whose intervals are
chosen at random, which the rules can run.
""")
CAVEATS: Final = text.paragraphs("""
Networks are told apart by rules that give different values: clients of a rule that stand behind several networks
have one estimate, of the time-out that ends most of them. What is bearable then still follows the shortest one.

What is lost by network is told for networks that are as large as it allows: one is cut in halves, and these again,
where their rates differ by more than chance would have it. Connections that were lost together, in a power cut, make
a rate differ, too.

Bytes saved are those of a probe and its answer, 104 together.
""")
_WHOSE: Final = (Column("service", "service", Kind.SERVICE), Column("rules", "rules"))
_TABLES: Final = {
    "timeouts": ("Time-outs", (
        *_WHOSE, Column("known", "known"), Column("timeout_s", "time-out", Kind.DURATION),
        Column("timeout_low_s", "at least", Kind.DURATION), Column("timeout_high_s", "at most", Kind.DURATION),
        Column("share", "of connections", Kind.SHARE), Column("bearable_s", "bearable", Kind.DURATION),
        Column("kaplan_meier_s", "by Kaplan and Meier", Kind.DURATION),
        Column("interval_s", "probed after", Kind.DURATION),
        Column("recommended_s", "recommended", Kind.DURATION),
        Column("lost_by_timeout_a_day", "lost by it", Kind.NUMBER, "a day"),
        Column("lost_anyway_a_day", "lost anyway", Kind.NUMBER, "a day"),
        Column("probes_a_day", "probes", Kind.NUMBER, "a day"),
        Column("probes_a_day_then", "probes then", Kind.NUMBER, "a day"),
    )),
    "expected": ("What came of earlier recommendations", (
        Column("rule", "rule"), Column("version", "version", Kind.COUNT), Column("at", "applied", Kind.TIME),
        *(Column(f"{what}_a_day_{when}", f"{what}, {when}", Kind.NUMBER, "a day")
          for what in ("probes", "lost") for when in ("before", "expected", "after")),
    )),
    "lost_by_network": ("Connections that did not answer, by network", (
        Column("service", "service", Kind.SERVICE), Column("network", "network"), Column("lost", "lost", Kind.COUNT),
        Column("hours", "asleep", Kind.NUMBER, "h"), Column("lost_per_1000_h", "lost", Kind.NUMBER, "in 1,000 h"),
        Column("times_others", "times others", Kind.NUMBER),
    )),
}  # fmt: skip


def section(tables: Tables) -> Section:
    """Of the tables that are there."""
    rows = largest(tables.get("timeouts", ()), "probes_a_day")
    worst = largest(rows, "lost_by_timeout_a_day")
    findings = [
        *_savings(rows),
        *(_finding(row) for row in worst[:TOLD]),
        *_apart(tables.get("lost_by_network", ())),
        *_came(tables.get("expected", ())),
    ]
    plot = _losses(worst, tables.get("loss_by_silence", ()))
    return Section(
        "timeouts",
        "How long the networks bear silence",
        findings or ["No probe was counted: there are no snapshots of these times, or no client was probed."],
        [plot] if plot.panels else [],
        tables=shown(tables, _TABLES, {"timeouts": "probes_a_day"}),
        method=METHOD,
        caveats=CAVEATS,
    )


def _whose(row: Row) -> str:
    rules = f" under {text.clean(row['rules'])}" if row["rules"] else ""
    return f"{text.service(row['service'])}{rules}"


def _finding(row: Row) -> str:
    spans = {
        key: text.NONE if row[name] is None else text.duration(row[name])
        for key, name in (("timeout", "timeout_s"), ("low", "timeout_low_s"), ("high", "timeout_high_s"))
    }
    told = f"{_whose(row)}: {_SAYS.get(row['known'], _SAYS['unknown']).format(**spans)}"
    if row["lost_by_timeout_a_day"]:
        told += f", {text.rough(row['lost_by_timeout_a_day'])} of them a day"
    if row["recommended_s"]:
        told += f"; probe them after {text.duration(row['recommended_s'])} and not {text.duration(row['interval_s'])}"
    elif row["known"] in ("longer", "shorter"):
        told += "; other intervals were not tried, so that no other one is known to be safe"
    return f"{told}."


def _savings(rows: Sequence[Row]) -> Iterator[str]:
    changed = [row for row in rows if row["recommended_s"]]
    if not changed:
        return
    saved = sum(row["probes_a_day"] - row["probes_a_day_then"] for row in changed)
    lost = sum(row["lost_by_timeout_a_day"] or 0 for row in changed)
    size = text.size(abs(sum(row["bytes_saved_a_day"] for row in changed)))
    what = "saves" if saved >= 0 else "costs"
    yield (f"Following all recommendations {what} {text.rough(abs(saved))} probes, radio wake-ups of clients, and "
           f"{size} a day, and keeps {text.rough(lost)} connections a day from being lost.")  # fmt: skip


def _apart(rows: Sequence[Row]) -> Iterator[str]:
    """Networks that lose more than others, and might have a time-out of their own."""
    apart = [row for row in rows if row["lost"] >= LEAST_LOST and (known(row, "times_others") or 0) >= TIMES_OTHERS]
    for row in largest(apart, "times_others")[:TOLD]:
        yield (f"Of clients of {text.of_service(row['service'])} in {text.clean(row['network'])}, "
               f"{text.number(row['times_others'])} times as many were lost in an hour asleep as of its others: a rule "
               "for this network would have its time-out estimated apart from theirs.")  # fmt: skip


def _came(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows[:TOLD]:
        if row["probes_a_day_after"] is not None:
            before = "" if row["lost_a_day_before"] is None else f", {text.rough(row['lost_a_day_before'])} before"
            probes, came = (text.rough(row[f"probes_a_day_{when}"]) for when in ("expected", "after"))
            yield (f"Rule {text.clean(row['rule'])} was changed on a report's advice: of {probes} probes a day that "
                   f"were expected {came} came, and "
                   f"{text.rough(row['lost_a_day_after'])} connections a day are lost{before}.")  # fmt: skip


def _losses(rows: Sequence[Row], losses: Sequence[Row]) -> Plot:
    of: defaultdict[tuple[str | None, str | None], list[Row]] = defaultdict(list)
    for loss in losses:
        of[loss["service"], loss["rules"]].append(loss)
    several = [(row, some) for row in rows if len(some := of.get((row["service"], row["rules"]), ())) > 1][:DRAWN]
    panels = [_panel(number, row, sorted(some, key=lambda one: one["from_s"]))
              for number, (row, some) in enumerate(several)]  # fmt: skip
    return Plot(
        "The chance that a probe finds the connection lost",
        "By how long the client had been silent, on a logarithmic scale. Dots are the shares in each class; the "
        "estimate never falls.",
        panels,
        [("blue", "estimated chance"), ("orange", "time-out, its 95 % interval")],
    )


def _panel(number: int, row: Row, some: Sequence[Row]) -> Panel:
    plot = figure.axes()
    figure.durations(plot, some[0]["from_s"], some[-1]["to_s"])
    plot.set_ylim(0, 1.05)
    plot.set_yticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "25 %", "50 %", "75 %", "100 %"])
    plot.grid(axis="y")
    if row["timeout_s"] is not None:
        low, high = row["timeout_low_s"] or row["timeout_s"], row["timeout_high_s"] or row["timeout_s"]
        plot.axvspan(low, max(high, low * 1.01), facecolor=figure.PALETTE["orange"], edgecolor="none")
    edges = [max(one["from_s"], 0.5) for one in some] + [some[-1]["to_s"]]
    shares = [one["share_lost"] for one in some]
    plot.step(edges, [*shares, shares[-1]], where="post", color=figure.PALETTE["blue"], linewidth=2)
    middle = [(max(one["from_s"], 0.5) * one["to_s"]) ** 0.5 for one in some]
    raw = [one["lost"] / (one["answered"] + one["lost"]) for one in some]
    plot.plot(middle, raw, linestyle="none", marker="o", markersize=3, color=figure.PALETTE["ink"])
    title = _whose(row)
    first, last = some[0], some[-1]
    rises = (f"The chance of loss is {text.percent(shares[0])} after {text.duration(first['from_s'])} and "
             f"{text.percent(shares[-1])} after {text.duration(last['from_s'])}.")  # fmt: skip
    return Panel(title, figure.svg(plot, f"loss-{number}", title, rises), rises)
