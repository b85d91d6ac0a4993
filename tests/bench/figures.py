# SPDX-License-Identifier: Apache-2.0
"""What every bench hands back: figures with their spread, beside the targets they are held against.

A figure is what was measured in one run or several; its median is what counts. A *zero* is a count that must be 0 in
every run: one that is not makes the bench fail, however good its speed.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """What the runs measured, in `unit`."""

    median: float
    min: float
    max: float
    runs: int
    unit: str

    @classmethod
    def of(cls, values: Sequence[float], unit: str) -> Figure:
        """The figure of one value a run."""
        if not values:
            raise ValueError("a figure needs at least one run")
        low, middle, high = (_rounded(v) for v in (min(values), statistics.median(values), max(values)))
        return cls(middle, low, high, len(values), unit)


def _rounded(value: float) -> float:
    """Whole numbers stay whole; others keep what a measurement can mean."""
    return value if isinstance(value, int) or value.is_integer() else round(value, 3)


@dataclass(frozen=True, slots=True)
class Target:
    """What the median of a figure must not pass."""

    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("a target is either at_most or at_least")

    def met(self, figure: Figure) -> bool:
        return figure.median <= self.at_most if self.at_most is not None else figure.median >= (self.at_least or 0)

    def __str__(self) -> str:
        return f"<= {_number(self.at_most)}" if self.at_most is not None else f">= {_number(self.at_least or 0)}"


@dataclass(slots=True)
class Report:
    """One bench: what was done, its figures in the order they were added, and what they are held against."""

    bench: str
    did: str = ""
    figures: dict[str, Figure] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    """Sentences about what went wrong: a bench that has one failed."""

    def add(self, key: str, values: float | Sequence[float], unit: str, target: Target | None = None) -> None:
        """A figure: one value, or one for each run."""
        if key in self.figures:
            raise ValueError(f"the figure {key} is there already")
        self.figures[key] = Figure.of(values if isinstance(values, Sequence) else [values], unit)
        if target is not None:
            self.targets[key] = target

    def add_zero(self, key: str, values: int | Sequence[int], unit: str) -> None:
        """A count that must be 0 in every run."""
        self.add(key, values, unit)
        self.zeros.add(key)

    def broken(self) -> list[str]:
        """The zeros that are not zero."""
        return [key for key in self.figures if key in self.zeros and (self.figures[key].min or self.figures[key].max)]

    def missed(self) -> list[str]:
        """The figures that miss their targets."""
        return [key for key, target in self.targets.items() if not target.met(self.figures[key])]

    @property
    def passed(self) -> bool:
        return not (self.broken() or self.missed() or self.problems)

    def as_json(self) -> str:
        """The one line for programs."""
        figures = {key: asdict(figure) for key, figure in self.figures.items()}
        return json.dumps({"bench": self.bench, "machine": machine(), "figures": figures})

    def show(self, console: Console) -> None:
        """The table for people."""
        on = machine()
        console.print(f"[bold]{escape(self.bench)}[/]  {escape(self.did)}")
        console.print(
            f"on Linux {escape(str(on['kernel']))}, {escape(str(on['cpu']))} with {on['cores']} cores, "
            f"{on['memory_mb']:,} MB, Python {on['python']}"
        )
        table = Table(box=None, pad_edge=False)
        table.add_column("figure", no_wrap=True)
        for title in ("median", "min", "max", "runs", "target"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("unit", no_wrap=True)
        bad = {*self.broken(), *self.missed()}
        for key, figure in self.figures.items():
            held = key in self.targets or key in self.zeros
            target = str(self.targets[key]) if key in self.targets else "0" if key in self.zeros else ""
            colour = "red" if key in bad else "green" if held else "default"
            spread = [_number(figure.min), _number(figure.max), str(figure.runs)] if figure.runs > 1 else ["", "", ""]
            table.add_row(escape(key), f"[{colour}]{_number(figure.median)}[/]", *spread, target, escape(figure.unit))
        console.print(table)
        for problem in self.problems:
            console.print(f"[red]{escape(problem)}[/]")


def _number(value: float) -> str:
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not pass (nearest rank)."""
    if not values:
        raise ValueError("no values, no percentile")
    if not 0 < percent <= 100:
        raise ValueError(f"{percent} is no percentage above 0")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[int(rank) - 1]


class Stolen:
    """What the host of a virtual machine takes from its processors, from here on (proc_stat(5), `steal`)."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before = self._read()

    def _read(self) -> tuple[int, int]:
        """(stolen, all) clock ticks since boot. Time of guests is counted in that of users."""
        ticks = [int(word) for word in self._stat.read_text().split("\n", 1)[0].split()[1:9]]
        return ticks[7], sum(ticks)

    def percent(self) -> float:
        """Share of all processors' time so far."""
        stolen, total = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return 100 * stolen / max(total, 1)


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str | int]:
    """The machine that the figures are of."""
    return {
        "kernel": platform.release(),
        "cpu": _cpu_model(cpuinfo.read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        "python": platform.python_version(),
    }


def _cpu_model(cpuinfo: str) -> str:
    """The model's name; arm64 kernels tell none, and there the architecture has to do."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
