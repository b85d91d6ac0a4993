# SPDX-License-Identifier: Apache-2.0
"""Plots by matplotlib as SVG that is part of a page: its colours are the page's variables, and its font the page's.

A service of a legend or a title is in the HTML beside a plot, so that it wraps; a plot has the texts of its axes only.
A plot is PANEL wide, as wide as the text of a phone.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import pairwise
from typing import Any, Final, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from spark.page import text

PALETTE: Final = {
    "ink": "#1b2430", "quiet": "#4f5b69", "line": "#d3d9e0", "paper": "#ffffff",
    "vermillion": "#d55e00", "orange": "#e69f00", "sky": "#56b4e9", "blue": "#0072b2",
    "green": "#009e73", "purple": "#cc79a7", "grey": "#8a8f98",
}  # fmt: skip
"""Names that style.css has for either scheme; the hues are of Okabe and Ito, which all people can tell apart."""
STATE_COLOURS: Final = {"ACTIVE": "vermillion", "STANDBY": "orange", "IDLE": "sky", "SLEEP": "blue"}

PANEL: Final = (340, 200)
"""Pixels."""
LEFT, RIGHT, TOP, BOTTOM = 50, 22, 8, 26

_NAMES: Final = {colour: name for name, colour in PALETTE.items()}
_COLOUR: Final = re.compile(r"#[0-9a-f]{6}")
_DIGITS: Final = re.compile(r"-?\d+\.\d+")
_LINK: Final = re.compile(r"url\(#(\w+)\)")

_TICKS: Final = {
    0.001: "1 ms", 0.01: "10 ms", 0.1: "0.1 s", 1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h",
    36_000: "10 h", 86_400: "1 d", 864_000: "10 d", 8_640_000: "100 d", 86_400_000: "1,000 d",
}  # fmt: skip
_MORE_TICKS: Final = sorted({*_TICKS, *(tick * more for tick, after in pairwise(_TICKS) for more in (2, 5)
                                        if tick * more < after)})  # fmt: skip
_POWERS: Final = [10.0**power for power in range(13)]
_MORE_POWERS: Final = [power * more for power in _POWERS for more in (1, 1.5, 2, 3, 5, 7)]
_MONTHS: Final = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
STEPS_H: Final = (1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 672, 1344, 2688, 5376, 10_752)
HOUR: Final = timedelta(hours=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@contextmanager
def drawing() -> Iterator[None]:
    """Whatever is drawn and saved, is drawn so: the same each time, whoever's configuration is there."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({
            "svg.fonttype": "none", "svg.hashsalt": "roost", "text.parse_math": False, "font.size": 11,
            "axes.edgecolor": PALETTE["quiet"], "axes.labelcolor": PALETTE["quiet"], "text.color": PALETTE["ink"],
            "xtick.color": PALETTE["quiet"], "ytick.color": PALETTE["quiet"], "grid.color": PALETTE["line"],
            "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.axisbelow": True,
            "axes.titlesize": 11, "ytick.major.size": 0, "xtick.major.size": 4, "grid.linewidth": 1,
        })  # fmt: skip
        yield


def axes(height: int = PANEL[1], left: int = LEFT) -> Axes:
    """One plot in a figure of its own; pixels."""
    width = PANEL[0]
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    rectangle = (left / width, BOTTOM / height, (width - left - RIGHT) / width, (height - BOTTOM - TOP) / height)
    return figure.add_axes(rectangle)


def counts(plot: Axes) -> None:
    """The upright axis counts from 0 on."""
    plot.set_ylim(bottom=0)
    plot.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text.short(value)))
    plot.grid(axis="y")


def hours(plot: Axes, first: int, until: int) -> None:
    """The level axis is in hours since 1970, UTC."""
    step = step_h(first, until, 4.5)
    # Weeks begin on a Monday; 1970 began on a Thursday.
    shift = 96 if step >= 168 else 0
    ticks = range(-((shift - first) // step) * step + shift, until + 1, step)
    plot.set_xlim(first, until)
    plot.set_xticks([tick for tick in ticks if first <= tick <= until],
                    labels=[_hour(tick) for tick in ticks if first <= tick <= until])  # fmt: skip


def hour(at: datetime) -> int:
    """Its number since 1970; without a zone it is UTC."""
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // HOUR


def step_h(first: int, until: int, most: float) -> int:
    """Hours, so that there are at most so many steps between the two."""
    return next((one for one in STEPS_H if (until - first) / one <= most), STEPS_H[-1])


def edges(first: int, until: int, most: int) -> tuple[list[int], int]:
    """Hours since 1970 between which values are drawn as one, at most so many, and how many hours these are."""
    width = step_h(first, until, most)
    return [first, *range((first // width + 1) * width, until, width), until], width


def _hour(number: int) -> str:
    at = EPOCH + number * HOUR
    return f"{at.day} {_MONTHS[at.month - 1]}" if at.hour == 0 else f"{at:%H:%M}"


def durations(plot: Axes, low: float, high: float, side: Literal["x", "y"] = "x") -> None:
    """This axis is in seconds, on a logarithmic scale, and reaches over these."""
    _logarithmic(plot, side, max(low, 0.001) / 1.6, max(high, 0.002) * 1.6, [*_TICKS], _MORE_TICKS, _tick)


def magnitudes(plot: Axes, low: float, high: float) -> None:
    """The upright axis counts on a logarithmic scale, and reaches over these."""
    _logarithmic(plot, "y", max(low, 1) / 1.6, max(high, 1) * 1.6, _POWERS, _MORE_POWERS, text.short)


def _logarithmic(plot: Axes, side: Literal["x", "y"], low: float, high: float, ticks: Sequence[float],
                 more: Sequence[float], label: Callable[[float], str]) -> None:  # fmt: skip
    """more: for where there are too few of the ticks."""
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) < 3:
        inside = [tick for tick in more if low <= tick <= high]
    step = -(-len(inside) // 5) or 1
    plot.set(**{f"{side}scale": "log", f"{side}lim": (low, high)})
    axis = plot.xaxis if side == "x" else plot.yaxis
    axis.set_ticks(inside[::step], labels=[label(tick) for tick in inside[::step]])
    axis.set_ticks([], minor=True)
    plot.grid(axis=side)


def _tick(seconds: float) -> str:
    return _TICKS.get(seconds) or text.duration(seconds)


def stacked(plot: Axes, edges: Sequence[float], layers: Sequence[tuple[str, Sequence[float]]]) -> None:
    """Areas on top of each other, each of a colour, with a value between each two edges."""
    below = [0.0] * (len(edges) - 1)
    for colour, values in layers:
        above = [low + value for low, value in zip(below, values, strict=True)]
        plot.fill_between(edges, [*below, below[-1]], [*above, above[-1]], step="post", facecolor=PALETTE[colour],
                          edgecolor=PALETTE["paper"], linewidth=0.4)  # fmt: skip
        below = above


def svg(plot: Axes, identity: str, title: str, description: str) -> str:
    """An element of a page. identity: no other of the page has it."""
    file = io.StringIO()
    figure = plot.figure
    assert isinstance(figure, Figure)
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    _plain(root)
    view = root.get("viewBox", "")
    used = {name for one in root.iter() for value in one.attrib.values() for name in _LINK.findall(value)}
    used |= {one.get("href", "")[1:] for one in root.iter("use")}
    for one in root.iter():
        _adapt(one, identity, used)
    inner = "".join(ElementTree.tostring(one, encoding="unicode") for one in root)
    # A new line between elements is none of the picture.
    inner = re.sub(r">\s+<", "><", inner).strip()
    return (f'<svg class="plot" role="img" viewBox="{view}" aria-labelledby="{identity}-title {identity}-text">'
            f'<title id="{identity}-title">{escape(title)}</title>'
            f'<desc id="{identity}-text">{escape(description)}</desc>{inner}</svg>')  # fmt: skip


def _plain(element: Any) -> None:
    """Without names of namespaces, which HTML has no use for, and what is said of the file."""
    for child in list(element):
        child.tag = child.tag.rpartition("}")[2]
        if child.tag in ("metadata", "style"):  # the style would be all the page's
            element.remove(child)
        else:
            _plain(child)
    for name in list(element.attrib):
        if "}" in name:
            element.set(name.rpartition("}")[2], element.attrib.pop(name))


def _adapt(one: Any, identity: str, used: set[str]) -> None:
    if (own := one.attrib.pop("id", None)) in used:
        one.set("id", f"{identity}-{own}")
    for name, value in one.attrib.items():
        if name == "href":
            one.set(name, f"#{identity}-{value[1:]}")
        elif name == "style":
            kept = "; ".join(part for part in value.split("; ") if not part.startswith("font-family"))
            one.set(name, _COLOUR.sub(lambda found: f"var(--{_NAMES[found[0]]})", kept))
        else:
            value = _LINK.sub(rf"url(#{identity}-\1)", value)
            if name != "viewBox":
                value = _DIGITS.sub(lambda found: f"{round(float(found[0]), 1) + 0:g}", value)
            one.set(name, " ".join(value.split()))
