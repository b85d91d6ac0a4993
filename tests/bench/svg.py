# SPDX-License-Identifier: Apache-2.0
"""As much of SVG as two kinds of picture need: bars beside bars, and lines over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

FONT = "font-family='sans-serif'"
INK, FAINT, PAPER = "#222222", "#cccccc", "#ffffff"
LETTER = 7  # pixels that a letter of 12 takes, about


def number(value: float) -> str:
    """For people: three digits that mean something."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(slots=True)
class Picture:
    """Shapes on white paper; pixels from the upper left corner."""

    width: int
    height: int
    _shapes: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, size: int = 12, anchor: str = "start", bold: bool = False) -> None:
        weight = " font-weight='bold'" if bold else ""
        self._shapes.append(f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' fill='{INK}' "
                            f"{FONT}{weight}>{escape(words)}</text>")  # fmt: skip

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._shapes.append(f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' "
                            f"fill='{colour}'/>")  # fmt: skip

    def line(self, points: Sequence[tuple[float, float]], colour: str = INK, width: float = 1) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._shapes.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{width:g}'/>")

    def dot(self, x: float, y: float, colour: str) -> None:
        self._shapes.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>")

    def __str__(self) -> str:
        paper = f"<rect width='{self.width}' height='{self.height}' fill='{PAPER}'/>"
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{self.width}' height='{self.height}' "
            f"viewBox='0 0 {self.width} {self.height}'>"
        )
        return "\n".join([head, paper, *self._shapes, "</svg>", ""])


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


def bars(title: str, groups: Sequence[Group], width: int = 760) -> Picture:
    """Each group on a scale of its own, from 0 on."""
    names = max(len(bar.name) for group in groups for bar in group.bars) * LETTER + 24
    room = width - names - 150
    picture = Picture(width, 50 + sum(34 + 22 * len(group.bars) for group in groups))
    picture.text(16, 26, title, 16, bold=True)
    y = 58.0
    for group in groups:
        picture.text(16, y, group.title, 13, bold=True)
        y += 10
        most = max(bar.value for bar in group.bars) or 1
        for bar in group.bars:
            picture.text(names - 8, y + 13, bar.name, 12, "end")
            length = max(1.0, room * bar.value / most)
            picture.bar(names, y, length, 17, bar.colour)
            picture.text(names + length + 6, y + 13, f"{number(bar.value)} {group.unit}")
            y += 22
        y += 24
    return picture


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


def panels(title: str, below: str, each: Sequence[Panel], width: int = 760) -> Picture:
    """One above the other."""
    high, left, right = 210, 76, 40
    picture = Picture(width, 56 + high * len(each))
    picture.text(16, 26, title, 16, bold=True)
    for nth, panel in enumerate(each):
        top, bottom = 56 + high * nth + 24, 56 + high * (nth + 1) - 44
        _panel(picture, panel, left, width - right, top, bottom)
        picture.text((left + width - right) / 2, bottom + 34, below, 12, "middle")
    return picture


def _panel(picture: Picture, panel: Panel, left: float, right: float, top: float, bottom: float) -> None:
    first, last = (math.log10(panel.points[end].x) for end in (0, -1))
    most = _round_up(max(point.high for point in panel.points))

    def at(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(x) - first) / (last - first) if last > first else 0.5
        return left + share * (right - left), bottom - y / most * (bottom - top)

    picture.text(left, top - 10, f"{panel.title}, {panel.unit}", 13, bold=True)
    for part in range(5):
        value = most * part / 4
        picture.line([(left, at(panel.points[0].x, value)[1]), (right, at(panel.points[0].x, value)[1])], FAINT)
        picture.text(left - 8, at(panel.points[0].x, value)[1] + 4, number(value), 12, "end")
    picture.line([at(point.x, point.middle) for point in panel.points], panel.colour, 2)
    for point in panel.points:
        picture.line([at(point.x, point.low), at(point.x, point.high)], panel.colour, 1.5)
        picture.dot(*at(point.x, point.middle), panel.colour)
        x, y = at(point.x, point.high)
        picture.text(x, y - 8, number(point.middle), 12, "middle")
        picture.text(x, bottom + 16, number(point.x), 12, "middle")


def _round_up(value: float) -> float:
    """A little more, of which a quarter is a round number."""
    step: float = 10.0 ** math.floor(math.log10(value or 1)) / 2.5
    return math.ceil(value * 1.1 / step) * step
