# SPDX-License-Identifier: Apache-2.0
"""Pictures, and a table, of what the benches measured: `roost bench plot`, `roost bench table`.

From the JSON lines that benches print with --json: `growth.svg`, how the cost of a connection grows with their
number, and `peers.svg`, each figure beside those of others in the same run. Which of the two are drawn follows from
what was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from spark.page.figure import PALETTE, drawing

OURS, OTHERS, BARE = PALETTE["blue"], PALETTE["orange"], PALETTE["grey"]
WIDTH: Final = 760
"""Pixels."""
Figures = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that was measured."""

    name: str
    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that are compared with one another, and with no others."""

    title: str
    unit: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Point:
    """A median with its spread."""

    x: float
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Panel:
    """A line over a logarithmic axis, with its own scale from 0 on."""

    title: str
    unit: str
    points: Sequence[Point]
    colour: str


class PlotError(Exception):
    """There is nothing to draw; the message says what was missing."""


def results(files: Iterable[Path]) -> dict[str, Figures]:
    """The figures of each bench, by its name: of each file the last line, as --json prints it."""
    found: dict[str, Figures] = {}
    for file in files:
        lines = [line for line in file.read_text().splitlines() if line.strip()]
        try:
            last: dict[str, Any] = json.loads(lines[-1])
            found[last["bench"]] = last["figures"]
        except (IndexError, KeyError, TypeError, ValueError) as problem:
            raise PlotError(f"{file} does not end with the JSON of a bench ({problem!r}); see --json") from None
    return found


def growth_panels(figures: Figures) -> list[Panel]:
    """Memory and time, by number of connections."""

    def points(prefix: str) -> list[Point]:
        sizes = sorted(int(key.removeprefix(prefix)) for key in figures if key.removeprefix(prefix).isdigit())
        each = [(size, figures[f"{prefix}{size}"]) for size in sizes]
        return [Point(size, figure["min"], figure["median"], figure["max"]) for size, figure in each]

    return [
        Panel("Memory of a connection", "bytes", points("bytes_"), OURS),
        Panel("Processor time of a keep-alive's answer", "ns", points("ns_"), OURS),
    ]


WHAT: tuple[tuple[str, str, str, tuple[tuple[str, str, str], ...]], ...] = (
    ("storm", "Handshakes in a second of one core (more is better)", "/s",
     (("Roost", "handshakes_per_core_s", OURS), ("HAProxy", "haproxy_per_core_s", OTHERS))),
    ("keepalive", "Processor time of a keep-alive's answer (less is better)", "ns",
     (("Roost", "core_ns", OURS), ("bare XDP_TX reflector", "reflector_core_ns", BARE),
      ("kernel socket", "kernel_core_ns", OTHERS))),
    ("relay", "Throughput, one stream (more is better)", "Gbit/s",
     (("Roost", "throughput_1_gbit_s", OURS), ("HAProxy", "haproxy_throughput_1_gbit_s", OTHERS),
      ("only routed", "routed_throughput_1_gbit_s", BARE))),
    ("relay", "Throughput, 64 streams (more is better)", "Gbit/s",
     (("Roost", "throughput_64_gbit_s", OURS), ("HAProxy", "haproxy_throughput_64_gbit_s", OTHERS),
      ("only routed", "routed_throughput_64_gbit_s", BARE))),
    ("relay", "Round trip of 64 bytes, p50 (less is better)", "µs",
     (("Roost", "rtt_us_p50", OURS), ("HAProxy", "haproxy_rtt_us_p50", OTHERS),
      ("only routed", "routed_rtt_us_p50", BARE))),
    ("relay", "New connections (more is better)", "/s",
     (("Roost", "connects_per_s", OURS), ("HAProxy", "haproxy_connects_per_s", OTHERS),
      ("only routed", "routed_connects_per_s", BARE))),
)  # fmt: skip
"""Bench, title, unit, and what is compared, by which figure."""


def peer_groups(found: Mapping[str, Figures]) -> list[Group]:
    """What there are figures for."""
    groups = []
    if hold := found.get("hold"):
        socket = hold["kernel_sockets_mb"]["median"] * 1e6 / hold["idle"]["median"]
        pair = (
            Bar("Roost, asleep", hold["bytes_per_connection"]["median"], OURS),
            Bar("kernel socket", socket, OTHERS),
        )
        groups.append(Group("Memory of an idle connection (less is better)", "bytes", pair))
    for bench, title, unit, who in WHAT:
        if figures := found.get(bench):
            each = [Bar(name, figures[key]["median"], colour) for name, key, colour in who]
            groups.append(Group(title, unit, each))
    return groups


def table(found: Mapping[str, Figures]) -> str:
    """All figures in Markdown."""
    lines = ["| bench | figure | median | least to most | runs | unit |", "|---|---|---:|---:|---:|---|"]
    for bench, figures in found.items():
        for key, figure in figures.items():
            spread = f"{number(figure['min'])} to {number(figure['max'])}" if figure["runs"] > 1 else ""
            lines.append(
                f"| `{bench}` | `{key}` | {number(figure['median'])} | {spread} | {figure['runs']} | {figure['unit']} |"
            )
    return "\n".join(lines)


def number(value: float) -> str:
    """For people: three digits that mean something."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _figure(title: str, height: int) -> Figure:
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout=ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.12))
    figure.suptitle(title, x=0.01, ha="left", size=15, weight="bold")
    return figure


def panels(title: str, below: str, each: Sequence[Panel]) -> Figure:
    """One above the other; below: what the level axis is."""
    figure = _figure(title, 40 + 210 * len(each))
    for (axes,), panel in zip(figure.subplots(len(each), 1, squeeze=False), each, strict=True):
        xs, middles = [point.x for point in panel.points], [point.middle for point in panel.points]
        spread = ([point.middle - point.low for point in panel.points],
                  [point.high - point.middle for point in panel.points])  # fmt: skip
        axes.set_title(f"{panel.title}, {panel.unit}", loc="left", weight="bold")
        axes.set_xscale("log")
        axes.errorbar(xs, middles, spread, color=panel.colour, marker="o", linewidth=2, elinewidth=1.5)
        for point in panel.points:
            axes.annotate(number(point.middle), (point.x, point.high), (0, 7), textcoords="offset points", ha="center")
        axes.set_xticks(xs, labels=[number(x) for x in xs])
        axes.set_xticks([], minor=True)
        axes.set_ylim(0, max(point.high for point in panel.points) * 1.2)
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        axes.grid(axis="y")
        axes.set_xlabel(below)
    return figure


def bars(title: str, groups: Sequence[Group]) -> Figure:
    """Each group on a scale of its own, from 0 on."""
    sizes = [len(group.bars) + 1 for group in groups]
    figure = _figure(title, 50 + 24 * sum(sizes))
    plots = figure.subplots(len(groups), 1, squeeze=False, height_ratios=sizes)
    for (axes,), group in zip(plots, groups, strict=True):
        values = [bar.value for bar in group.bars]
        axes.set_title(group.title, loc="left", weight="bold")
        drawn = axes.barh([bar.name for bar in group.bars], values, color=[bar.colour for bar in group.bars])
        axes.bar_label(drawn, [f"{number(value)} {group.unit}" for value in values], padding=6)
        axes.set_xlim(0, (max(values) or 1) * 1.2)
        axes.invert_yaxis()
        axes.xaxis.set_visible(False)
        axes.spines[:].set_visible(False)
    return figure


def draw(files: Iterable[Path], directory: Path) -> list[Path]:
    """Draw what the files have; the pictures."""
    found = results(files)
    groups = peer_groups(found)
    if not groups and "growth" not in found:
        raise PlotError(
            f"nothing to draw of {', '.join(found) or 'no bench'}: give growth, hold, storm, keepalive, relay"
        )
    directory.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with drawing():
        if "growth" in found:
            each = growth_panels(found["growth"])
            drawn["growth.svg"] = panels("Cost of a sleeping connection", "connections", each)
        if groups:
            drawn["peers.svg"] = bars("Roost and others, on one machine in one run", groups)
        for name, figure in drawn.items():
            figure.savefig(directory / name, facecolor=PALETTE["paper"], metadata={"Date": None})
    return [directory / name for name in drawn]
