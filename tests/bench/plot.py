# SPDX-License-Identifier: Apache-2.0
"""Pictures, and a table, of what the benches measured: `roost bench plot`, `roost bench table`.

From the JSON lines that benches print with --json: `growth.svg`, how the cost of a connection grows with their
number, and `peers.svg`, each figure beside those of others in the same run. Which of the two are drawn follows from
what was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.bench.svg import Bar, Group, Panel, Point, bars, number, panels

OURS, OTHERS, BARE = "#1f6fb2", "#d08a2e", "#8a8a8a"
Figures = Mapping[str, Mapping[str, Any]]


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


def draw(files: Iterable[Path], directory: Path) -> list[Path]:
    """Draw what the files have; the pictures."""
    found = results(files)
    pictures = {}
    if "growth" in found:
        pictures["growth.svg"] = panels("Cost of a sleeping connection", "connections", growth_panels(found["growth"]))
    if groups := peer_groups(found):
        pictures["peers.svg"] = bars("Roost and others, on one machine in one run", groups)
    if not pictures:
        raise PlotError(
            f"nothing to draw of {', '.join(found) or 'no bench'}: give growth, hold, storm, keepalive, relay"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (directory / name).write_text(str(picture))
    return [directory / name for name in pictures]
