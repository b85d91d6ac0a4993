# SPDX-License-Identifier: Apache-2.0
"""`roost top`: how the daemon stands, each second. What is shown is a dict (Look.told), which --json prints."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import threading
import time
import tty
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from control.cli.client import Client, daemon_options, json_option
from control.cli.table import console
from control.core.text import escaped, sentence, span

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

EVERY_S: Final = 1.0

TALKED_S: Final = 60.0
"""For so long what a client said counts."""

TALKED: Final = 200_000
"""Transitions that count, at most."""

SORTS: Final = {"1": "bytes", "2": "rx_bytes", "3": "tx_bytes", "4": "transitions"}
"""Of talkers, by the key that is pressed."""

MOST: Final = 100
"""Talkers that are told."""

RATES: Final = {
    "accepted": ("accepted", "born_ipv4", "born_ipv6"),
    "closed": ("closed",),
    "woken": ("thawed",),
    "frozen": ("frozen",),
    "linked": ("linked",),
    "keepalives": ("keepalives_answered",),
    "probes": ("probes_sent",),
    "rx_bytes": ("bytes_from_clients",),
    "tx_bytes": ("bytes_to_clients",),
}
"""What is told for each second, and the counters that grow by it."""


class Look:
    """What is known. Times are of a clock in s."""

    def __init__(self) -> None:
        self._before: Mapping[str, Any] | None = None
        self._now: Mapping[str, Any] = {}
        self._talked: deque[tuple[float, str, int, int]] = deque(maxlen=TALKED)

    def take(self, status: Mapping[str, Any]) -> None:
        """As GET /v1/status has it."""
        self._before = self._now if self._now.get("pid") == status["pid"] else None
        self._now = status

    def hear(self, row: Mapping[str, Any], now_s: float) -> None:
        """A transition. From any thread."""
        self._talked.append((now_s, row["client"], row["rx_bytes"], row["tx_bytes"]))

    def told(self, sort: str, now_s: float) -> dict[str, Any]:
        """rates: a second, null at the first look; states: by how much each grew. wake_us: µs of a processor that a
        wake-up took the engine, null: there was none. talkers: those with the most since TALKED_S, by transitions."""
        now, before = self._now, self._before
        rates, states, wake_us = None, None, None
        if before is not None:
            took_s = max(now["uptime_s"] - before["uptime_s"], 0.001)
            grown = {key: value - before["counters"].get(key, 0) for key, value in now["counters"].items()}
            rates = {key: sum(grown.get(one, 0) for one in names) / took_s for key, names in RATES.items()}
            states = {key: (now["connections"][key] - was) / took_s for key, was in before["connections"].items()}
            wake_us = grown["thaw_ns"] / grown["thawed"] / 1000 if grown["thawed"] else None
        kept = ("instance", "version", "uptime_s", "connections", "awake", "max_awake", "memory", "store", "pressure")
        return {
            "at_ms": time.time_ns() // 1_000_000, **{key: now[key] for key in kept}, "rates": rates, "states": states,
            "wake_us": wake_us, "attention": now["attention"], "talkers": self._talkers(sort, now_s),
        }  # fmt: skip

    def _talkers(self, sort: str, now_s: float) -> list[dict[str, Any]]:
        while self._talked and self._talked[0][0] < now_s - TALKED_S:
            self._talked.popleft()
        found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for _, client, rx_bytes, tx_bytes in self._talked.copy():
            one = found[client]
            one[0], one[1], one[2] = one[0] + rx_bytes, one[1] + tx_bytes, one[2] + 1
        rows = [
            {"client": client, "bytes": rx + tx, "rx_bytes": rx, "tx_bytes": tx, "transitions": times}
            for client, (rx, tx, times) in found.items()
        ]
        return sorted(rows, key=lambda row: row[sort], reverse=True)[:MOST]  # type: ignore[arg-type, return-value]


@click.command("top")
@click.option("--once", is_flag=True, help="One look, and no more; where there is no terminal, too.")
@daemon_options
@json_option
def command(once: bool, daemon: Client, as_json: bool) -> None:
    """How many connections are in which state, what happens each second, what runs short, and who talks most: by the
    bytes that clients sent and got until their transitions of the last minute. With --json one object a second.

    \b
    Keys: q quits; p pauses; 1 to 4 sort by bytes, bytes from clients, bytes to clients, transitions

    \b
    Examples:
      roost top
      roost top --json --once | jq .rates
    """
    look = Look()
    look.take(daemon.get("/v1/status"))
    threading.Thread(target=_listen, args=(daemon, look), daemon=True).start()
    with suppress(KeyboardInterrupt):
        if as_json:
            while True:
                time.sleep(EVERY_S)
                look.take(daemon.get("/v1/status"))
                click.echo(json.dumps(look.told("bytes", time.monotonic())))
                if once:
                    return
        if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            time.sleep(EVERY_S)
            look.take(daemon.get("/v1/status"))
            console().print(frame(look.told("bytes", time.monotonic()), "bytes", 1000))
            return
        _screen(daemon, look)


def _listen(daemon: Client, look: Look) -> None:
    """In a thread: who talks, whatever becomes of the daemon."""
    while True:
        with suppress(click.ClickException):
            for event in daemon.events():
                if event.kind == "transition":
                    look.hear(event.data, time.monotonic())
        time.sleep(EVERY_S)


def _screen(daemon: Client, look: Look) -> None:
    from rich.live import Live

    sort, paused, problem, due_s = "bytes", False, "", time.monotonic() + EVERY_S
    with _keys() as key_within, Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            if not paused:
                shown = look.told(sort, time.monotonic())
                live.update(frame(shown, sort, live.console.height, problem), refresh=True)
            key = key_within(max(due_s - time.monotonic(), 0))
            if key == "q":
                return
            paused ^= key == "p"
            sort = SORTS.get(key, sort)
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + EVERY_S
                try:
                    look.take(daemon.get("/v1/status"))
                    problem = ""
                except click.ClickException as error:
                    problem = error.message


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """What gives the key that is pressed within some seconds; empty: none is."""
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def within(seconds: float) -> str:
        return os.read(stdin, 1).decode(errors="replace") if select.select([stdin], [], [], seconds)[0] else ""

    try:
        tty.setcbreak(stdin)
        yield within
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def frame(told: Mapping[str, Any], sort: str, height: int, problem: str = "") -> RenderableType:
    """What is told, in so many lines. problem: why it is of an earlier moment."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = list(_lines(told, problem))
    left = height - len(lines) - 2
    table = Table(box=None, pad_edge=False)
    for key, title in (("client", "client"), *((key, f"{number} {key}") for number, key in SORTS.items())):
        justify: JustifyMethod = "left" if key == "client" else "right"
        table.add_column(f"{title} ▼" if key == sort else title, justify=justify, no_wrap=True)
    for row in told["talkers"][: max(left, 0)]:
        table.add_row(row["client"], *(f"{row[key]:,}" for key in SORTS.values()))
    shown: list[RenderableType] = [Text(escaped(line), no_wrap=True, overflow="ellipsis") for line in lines[:height]]
    if left > 0:
        shown += [Text(""), table]
    return Group(*shown)


def _lines(told: Mapping[str, Any], problem: str) -> Iterator[str]:
    yield f"{told['instance']}  roost {told['version']}, up {span(told['uptime_s'])}  {problem}".rstrip()
    yield "  ".join(f"{name} {count:,}{_grown(told, name)}" for name, count in told["connections"].items())
    reached = ", ".join(f"{key} {share:.0f} %" for key, share in told["pressure"]["reached"].items())
    yield f"awake {told['awake']:,} of {told['max_awake']:,}; pressure: {reached or 'none'}"
    if told["rates"] is not None:
        rate = {key: f"{value:,.0f}" for key, value in told["rates"].items()}
        each = f", {told['wake_us']:,.0f} µs each" if told["wake_us"] is not None else ""
        ended = f"{rate['accepted']} new; {rate['closed']} closed; {rate['linked']} linked"
        yield f"each second: {rate['woken']} woken{each}; {rate['frozen']} frozen; {ended}"
        sizes = f"{rate['rx_bytes']} B from clients; {rate['tx_bytes']} B to clients"
        yield f"             {sizes}; {rate['keepalives']} keep-alives answered; {rate['probes']} probes"
    store, memory = told["store"], told["memory"]
    yield f"memory: tables {memory['maps_bytes'] / 1e6:.1f} MB, daemon {memory['daemon_rss_bytes'] / 1e6:.0f} MB"
    waiting = f"{store['pending_sleep']:,} to sleep and {store['pending_history']:,} of history wait"
    yield f"store: {store['state']}; {waiting}; last commit {store['last_commit_ms']:.0f} ms"
    yield from [f"attention: {sentence(one)}" for one in told["attention"]] or ["attention: nothing"]


def _grown(told: Mapping[str, Any], name: str) -> str:
    by = told["states"][name] if told["states"] is not None else 0
    return f" ({by:+,.0f}/s)" if round(by) else ""
