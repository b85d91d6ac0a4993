# SPDX-License-Identifier: Apache-2.0
"""`roost trace`."""

from __future__ import annotations

import ipaddress
import json
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from appliance.box.tracepoints import TRACEPOINTS, Seen, Tracer, TracingError, problem
from control.cli.client import Client, connection_path, daemon_options, json_option
from control.cli.table import local_time
from control.core.names import is_like

POLL_MS: Final = 100
PATIENCE_S: Final = 0.5
"""How long an event waits until the daemon knows its connection: it accepts a moment after the kernel."""

FRESH_S: Final = 10.0
"""Then it is asked again: a client may have got a name."""

PAGE: Final = 100
"""4-tuples of a request."""

KNOWN_MAX: Final = 1_000_000

Ends = tuple[str, str]
Row = dict[str, Any]


class Known:
    """Which connection has a 4-tuple (local, client), as the daemon says. Of one that has ended: what was said last."""

    def __init__(self, daemon: Client) -> None:
        self._daemon = daemon
        self._rows: dict[Ends, tuple[float, Row]] = {}

    def learn(self, rows: Iterable[Row]) -> None:
        """These are connections."""
        now = time.monotonic()
        for row in rows:
            self._rows[row["local"], row["client"]] = now, row
            if len(self._rows) > KNOWN_MAX:
                del self._rows[next(iter(self._rows))]

    def forget(self, ends: Ends) -> None:
        """Another connection has it from now on."""
        self._rows.pop(ends, None)

    def ask(self, wanted: Iterable[Ends]) -> None:
        """About those that are not known, or not any more."""
        now = time.monotonic()
        asked = iter({ends for ends in wanted if now - self._rows.get(ends, (-FRESH_S, {}))[0] >= FRESH_S})
        while page := list(islice(asked, PAGE)):
            for ends in page:
                if (row := self.row(ends)) is not None:
                    self._rows[ends] = now, row
            keys = ";".join(f"{client},{local}" for local, client in page)
            self.learn(self._daemon.lines("/v1/connections", keys=keys))

    def row(self, ends: Ends) -> Row | None:
        return self._rows[ends][1] if ends in self._rows else None


def wanted_by(connection: str, name: str, service: str, network: str) -> Callable[[Row], bool]:
    """Whether a row is of a connection that is to be shown; what is empty does not matter. Raises ValueError."""
    within = ipaddress.ip_network(network) if network else None

    def fits(row: Row) -> bool:
        address = row["client"].rpartition(":")[0].strip("[]")
        return (
            connection in ("", str(row["id"]))
            and (not name or is_like(row["name"] or "", name))
            and service in ("", row["service"])
            and (within is None or ipaddress.ip_address(address) in within)
        )

    return fits


class Trace:
    """What is seen, in its order: shown once it is known whose it is. others: of no connection, too."""

    def __init__(self, known: Known, fits: Callable[[Row], bool], others: bool,
                 show: Callable[[Seen, Row | None], None]) -> None:  # fmt: skip
        self._known = known
        self._fits = fits
        self._others = others
        self._show = show
        self._waiting: deque[tuple[float, Seen]] = deque()
        self.counts: Counter[str] = Counter()
        self.not_shown = 0

    def hear(self, seen: Seen) -> None:
        if seen.old.startswith("SYN_") and seen.new == "ESTABLISHED":
            self._known.forget((seen.local, seen.remote))
        self._waiting.append((time.monotonic() + PATIENCE_S, seen))

    def turn(self) -> None:
        """Ask whose they are, and show those of which it is known, or that have waited long enough."""
        ends = ((seen.local, seen.remote) for _, seen in self._waiting)
        self._known.ask(two for two in ends if not any(end.endswith(":0") for end in two))
        now = time.monotonic()
        while self._waiting:
            due, seen = self._waiting[0]
            row = self._known.row((seen.local, seen.remote))
            if row is None and now < due:
                return
            self._waiting.popleft()
            if row is None and not self._others:
                self.not_shown += 1
            elif row is None or self._fits(row):
                self.counts[seen.event] += 1
                self._show(seen, row)


def _print(seen: Seen, row: Row | None) -> None:
    states = f"{seen.old} -> {seen.new}" if seen.event == "state" else seen.new
    whose = f"{row['id'] or '?'} {row['service']} {row['name'] or ''}" if row else "-"
    at = local_time(seen.at_ms, "milliseconds")
    click.echo(f"{at} {seen.event:<14} {seen.remote:<22} {seen.local:<22} {states:<24} {whose}".rstrip())


def _print_json(seen: Seen, row: Row | None) -> None:
    told: Mapping[str, Any] = row or {}
    click.echo(json.dumps({
        "at_ms": seen.at_ms, "event": seen.event, "client": seen.remote, "local": seen.local, "from": seen.old or None,
        "to": seen.new or None, **{key: told.get(key) for key in ("id", "name", "service")},
    }))  # fmt: skip


def _netns(daemon: Client) -> int:
    pid = daemon.get("/v1/status").get("pid")
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        raise click.ClickException("the daemon runs on another machine: trace where it runs") from None


def _number(daemon: Client, connection: str) -> str:
    return str(daemon.get(connection_path(connection))["id"]) if connection else ""


@click.command("trace")
@click.option("--connection", metavar="ID", default="", help="Only this one: a number, address:port or name.")
@click.option("--name", metavar="PATTERN", default="", help="Only clients with such names: `*` is any text.")
@click.option("--service", metavar="NAME", default="", help="Only those that came in by this service.")
@click.option("--network", metavar="NETWORK", default="", help="Only clients in it: 192.0.2.0/24, 2001:db8::/32.")
@click.option("--all", "others", is_flag=True, help="TCP that is no client's, too: links to servers, SSH.")
@click.option("--rate", type=click.IntRange(1), default=1000, show_default=True, help="Events a second at most.")
@daemon_options
@json_option
def command(connection: str, name: str, service: str, network: str, others: bool, rate: int, daemon: Client,
            as_json: bool) -> None:  # fmt: skip
    """What the kernel's TCP does with clients' sockets, until ^C: retransmissions, resets, changes of state, each with
    the connection's number and name. Needs root and bcc (python3-bpfcc), and runs where the daemon does.

    A client that is frozen goes ESTABLISHED -> CLOSE, one that is woken CLOSE -> SYN_SENT -> ESTABLISHED. While it
    sleeps, the kernel has no socket of it, and nothing to tell.

    \b
    Example:
      sudo roost trace --name 'camera-*'
      sudo roost trace --network 192.0.2.0/24 --json | jq -r 'select(.event != "state")'
    """
    if others and (connection or name or service or network):
        raise click.UsageError("--all shows what is no connection's: it goes with no filter")
    if missing := problem():
        raise click.ClickException("\n".join(missing))
    try:
        fits = wanted_by(_number(daemon, connection), name.lower(), service, network)
    except ValueError as error:
        raise click.UsageError(f"--network: {error}") from None
    known = Known(daemon)
    trace = Trace(known, fits, others, _print_json if as_json else _print)
    try:
        tracer = Tracer(_netns(daemon), rate, trace.hear)
    except TracingError as error:
        raise click.ClickException(str(error)) from None
    try:
        for state in ("ACTIVE", "STANDBY"):
            known.learn(daemon.lines("/v1/connections", state=state))
        _follow(tracer, trace)
        _say(tracer, trace)
    finally:
        tracer.close()


def _follow(tracer: Tracer, trace: Trace) -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # KeyboardInterrupt would be lost in what bcc's library calls
        signal.signal(number, lambda _number, _frame: ended.set())
    click.echo("tracing; ^C ends it", err=True)
    left_out, say_at = 0, time.monotonic() + 1
    while not ended.is_set():
        tracer.poll(POLL_MS)
        trace.turn()
        if time.monotonic() >= say_at:
            say_at = time.monotonic() + 1
            if (now := tracer.left_out) > left_out:
                click.echo(f"{now - left_out:,} events not shown: more than --rate", err=True)
                left_out = now


def _say(tracer: Tracer, trace: Trace) -> None:
    counts = ", ".join(f"{trace.counts[event]:,} {event}" for event in TRACEPOINTS)
    others = f"; {trace.not_shown:,} of no connection" if trace.not_shown else ""
    fast = f"; {tracer.left_out:,} not shown" if tracer.left_out else ""
    click.echo(f"{counts}{others}{fast}", err=True)
