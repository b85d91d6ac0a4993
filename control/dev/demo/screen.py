# SPDX-License-Identifier: Apache-2.0
"""How the demo looks: live on a terminal, a line for each step elsewhere, nothing for programs; its summary; and a
picture of both."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from control.dev.demo.outcome import Outcome, Step
from control.dev.demo.story import View

_STATES: Final = (
    ("ACTIVE", "linked to a server", "green"),
    ("STANDBY", "a socket, no server", "yellow"),
    ("IDLE", "a record in memory", "blue"),
    ("SLEEP", "a record on disk", "magenta"),
)


PICTURE_COLUMNS: Final = 120


class LineView(View):
    """Where nothing can be drawn over: a line when a step begins, and one when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def began(self, title: str) -> None:
        self._console.print(f"... {title}", markup=False, soft_wrap=True)

    def ended(self, step: Step) -> None:
        said = f"{'ok ' if step.ok else 'NO '} {step.sentence} ({step.seconds:.1f} s)"
        self._console.print(said, markup=False, soft_wrap=True)


class LiveView(View):
    """A terminal: the clients in their states, what they cost, and what has happened. Use as a context."""

    def __init__(self, console: Console, clients: int) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._done: list[Text] = []
        self._spinner: Spinner | None = None
        self._status: Mapping[str, Any] | None = None
        self._kernel_socket = 0.0
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._render, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._spinner = None
            done = list(self._done)
        self._live.stop()
        for line in done:  # the drawing goes, what was done stays
            self._live.console.print(line)

    def began(self, title: str) -> None:
        with self._lock:
            self._spinner = Spinner("dots", Text(title))

    def ended(self, step: Step) -> None:
        with self._lock:
            self._done.append(_line(step))
            self._spinner = None

    def status(self, status: Mapping[str, Any] | None) -> None:
        with self._lock:
            self._status = status

    def kernel_socket(self, size: float) -> None:
        with self._lock:
            self._kernel_socket = size

    def _render(self) -> RenderableType:
        with self._lock:
            parts: list[RenderableType] = [*self._done]
            if self._spinner is not None:
                parts.append(self._spinner)
            parts.append(Text())
            if self._status is None:
                parts.append(Text("no daemon", style="bold red"))
            else:
                parts += [self._states(self._status), Text(), self._cost(self._status)]
            return Group(*parts)

    def _states(self, status: Mapping[str, Any]) -> Table:
        grid = Table.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column(style="dim")
        grid.add_column(justify="right", width=9)
        grid.add_column()
        for name, meaning, colour in _STATES:
            present = status["connections"][name]
            bar = ProgressBar(total=self._clients, completed=present, width=40, complete_style=colour,
                              finished_style=colour)  # fmt: skip
            grid.add_row(Text(name, style=f"bold {colour}"), meaning, f"{present:,}", bar)
        return grid

    def _cost(self, status: Mapping[str, Any]) -> Table:
        present = sum(status["connections"].values())
        inactive = status["connections"]["IDLE"] + status["connections"]["SLEEP"]
        tables = status["memory"]["maps_bytes"]
        grid = Table.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column(justify="right")
        grid.add_column(justify="right")
        sockets = f"{self._kernel_socket * present / 1e6:,.1f} MB"
        grid.add_row(f"as kernel sockets, {present:,} clients cost", sockets, f"{self._kernel_socket:,.0f} B each")
        each = f"{tables / inactive:,.0f} B each" if inactive else ""
        grid.add_row(f"Roost's tables, {inactive:,} asleep in them", f"{tables / 1e6:,.1f} MB", each)
        return grid


def _line(step: Step) -> Text:
    mark = ("✔ ", "green") if step.ok else ("✘ ", "bold red")
    return Text.assemble(mark, step.sentence, (f"  {step.seconds:.1f} s", "dim"))


def draw(outcome: Outcome, path: Path) -> None:
    """What a terminal shows in the end, as an SVG image that loads nothing, fonts neither."""
    console = Console(file=StringIO(), record=True, width=PICTURE_COLUMNS, highlight=False, force_terminal=True,
                      color_system="truecolor")  # fmt: skip
    for step in outcome.steps:
        console.print(_line(step))
    show_summary(outcome, console)
    picture = console.export_svg(title="sudo ./roost demo", unique_id="demo")
    picture = re.sub(r"@font-face {.*?}\n", "", picture, flags=re.S)
    path.write_text("\n".join(line.rstrip() for line in picture.splitlines() if line.strip()) + "\n", encoding="utf-8")


def show_summary(outcome: Outcome, console: Console) -> None:
    """The table at the end: what was expected, what was found; then the figures."""
    checks = Table(box=None, pad_edge=False)
    for title in ("", "what was claimed", "expected", "measured"):
        checks.add_column(title, justify="right" if title in ("expected", "measured") else "left")
    for check in outcome.checks:
        mark = Text("✔", style="green") if check.ok else Text("✘", style="bold red")
        checks.add_row(mark, check.claim, check.expected, check.measured)
    console.print()
    console.print(checks)
    console.print()
    console.print(_figures(outcome))
    console.print()
    if outcome.ok:
        console.print(f"[bold green]All of it held[/], in {outcome.seconds:.0f} s.")
    elif not outcome.finished:
        console.print("[bold red]The demo ended early[/]: see the last line above that did not hold.")
    else:
        console.print("[bold red]Not all of it held.[/]")


def _figures(outcome: Outcome) -> Table:
    figures = Table(box=None, pad_edge=False, show_header=False)
    figures.add_column()
    figures.add_column(justify="right")
    figures.add_column(style="dim")
    awake = f"of {outcome.max_awake:,} that the descriptor limit allows"
    figures.add_row("clients with a socket, at most", f"{outcome.peak_awake:,}", awake)
    if (memory := outcome.memory) is not None:
        whole = f"{memory.kernel_socket * memory.connections / 1e6:,.1f} MB for {memory.connections:,}"
        figures.add_row("a kernel socket", f"{memory.kernel_socket:,.0f} B", f"{whole}; a proxy holds two a client")
        figures.add_row("a sleeping client, in the tables", f"{memory.tables_each:,.0f} B",
                        f"{memory.tables / 1e6:,.1f} MB, ring buffer and programs included")  # fmt: skip
        figures.add_row("a sleeping client, the daemon's growth added", f"{memory.all_each:,.0f} B",
                        f"{memory.daemon_growth / 1e6:,.1f} MB; buffers of the burst, mostly")  # fmt: skip
        figures.add_row("the daemon, resident", f"{memory.daemon_rss / 1e6:,.0f} MB", "the tables, mapped, included")
    for title, reached in (("a sleeping client's answer", outcome.reached_asleep),
                           ("the same, after the crash", outcome.reached_after_crash)):  # fmt: skip
        if reached is not None and reached.latency_us:
            f = reached.as_dict()
            spread = ", ".join(f"{name[:-3]} {f[name] / 1000:.1f}" for name in ("p90_us", "p99_us", "max_us"))
            figures.add_row(title, f"{f['p50_us'] / 1000:.1f} ms", f"p50; {spread} ms; CONNECT and wake-up included")
    if outcome.absence is not None and outcome.absence.seconds:
        figures.add_row("without a daemon", f"{outcome.absence.seconds:.1f} s",
                        f"{outcome.absence.keepalives_answered:,} keep-alives answered")  # fmt: skip
    return figures
