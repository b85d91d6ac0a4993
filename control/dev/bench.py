# SPDX-License-Identifier: Apache-2.0
"""`roost bench`: the benches of tests/bench, each a module of its own that is imported when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from control.dev.lint import require_checkout

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the figures as one JSON object, the last line of standard output."
)


@click.group("bench")
def command() -> None:
    """Measure, with real clients in a network of this machine's own (root). What it takes is a few minutes each.

    Progress goes to standard error. The exit code is 1 when a target is missed, or when a count that must be zero is
    not. Figures mean something on a machine that does nothing else.

    \b
    Example:
      sudo ./roost bench churn
      sudo ./roost bench chaos --seconds 60 --json | tail -n 1 | jq .figures.pairs
    """


def _measure(name: str, as_json: bool, **options: Any) -> None:
    require_checkout("Benching")
    if os.geteuid() != 0:
        raise click.ClickException(f"a bench needs root, to make its network: sudo ./roost bench {name}")
    report = importlib.import_module(f"tests.bench.{name}").run(**options)
    if as_json:
        for sentence in (*report.problems, *(f"{key} is not zero" for key in report.broken())):
            click.echo(sentence, err=True)
        for key in report.missed():
            click.echo(f"{key} misses its target, {report.targets[key]}", err=True)
        click.echo(report.as_json())
    else:
        from rich.console import Console

        report.show(Console(highlight=False))
    sys.exit(0 if report.passed else 1)


@command.command()
@click.option("--seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, help="How long to freeze.")
@click.option("--clients", type=click.IntRange(min=16), default=320, show_default=True)
@click.option(
    "--mode",
    type=click.Choice(["service", "router", "proxy", "persistent"]),
    default="service",
    show_default=True,
    help="How clients reach their server: by an address of the appliance, or by the server's own (and servers come by "
    "the clients'); proxy: as service, and servers come by HTTP CONNECT; persistent: as service, and both legs freeze "
    "together.",
)
@json_option
def chaos(seconds: float, clients: int, mode: str, as_json: bool) -> None:
    """Freeze and thaw connections in the middle of their traffic; not a byte may be lost."""
    _measure("chaos", as_json, seconds=seconds, clients=clients, mode=mode)


@command.command()
@click.option("--connections", type=click.IntRange(min=16), default=10_000, show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=2000, show_default=True, help="Commands in one batch.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@json_option
def churn(connections: int, batch: int, runs: int, as_json: bool) -> None:
    """What a freeze and a thaw cost, and how many of both the engine does in a second."""
    _measure("churn", as_json, connections=connections, batch=batch, runs=runs)


@command.command()
@click.option("--wakeups", type=click.IntRange(min=100), default=5000, show_default=True, help="From IDLE.")
@click.option("--sleep-wakeups", type=click.IntRange(min=100), default=2000, show_default=True, help="From SLEEP.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Into which they are divided.")
@click.option(
    "--asleep",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Others that sleep all the time, simulated.",
)
@json_option
def wake(wakeups: int, sleep_wakeups: int, runs: int, asleep: int, as_json: bool) -> None:
    """How much longer than usual the first answer takes a client that was asleep."""
    _measure("wake", as_json, wakeups=wakeups, sleep_wakeups=sleep_wakeups, runs=runs, asleep_beside=asleep)


@command.command()
@click.option("--attaches", type=click.IntRange(min=100), default=5000, show_default=True, help="From each state.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Into which they are divided.")
@json_option
def attach(attaches: int, runs: int, as_json: bool) -> None:
    """How long a server takes to reach a client that sleeps: through the router, and through the proxy."""
    _measure("attach", as_json, attaches=attaches, runs=runs)


@command.command()
@click.option("--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Each measurement.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@json_option
def relay(seconds: float, runs: int, as_json: bool) -> None:
    """What going through Roost costs a connection, beside HAProxy and beside plain routing."""
    _measure("relay", as_json, seconds=seconds, runs=runs)


@command.command()
@click.option("--connections", type=click.IntRange(min=100), default=100_000, show_default=True)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="How long to listen to keep-alives.",
)
@click.option(
    "--simulated",
    is_flag=True,
    help="Clients that are no kernel sockets, and sleep from birth; as ever with more than 200,000. Each is kept alive "
    "three times, however long that takes.",
)
@json_option
def hold(connections: int, minutes: float, simulated: bool, as_json: bool) -> None:
    """What an IDLE connection costs, and that every one of them is kept alive."""
    _measure("hold", as_json, connections=connections, minutes=minutes, simulated=simulated)


@command.command()
@click.option("--clients", type=click.IntRange(min=1000), default=1_000_000, show_default=True, help="In each run.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@json_option
def storm(clients: int, runs: int, as_json: bool) -> None:
    """Handshakes a second on one core, when all clients come back at once; beside HAProxy."""
    _measure("storm", as_json, clients=clients, runs=runs)


@command.command()
@click.option("--clients", type=click.IntRange(min=1000), default=1_000_000, show_default=True, help="Asleep.")
@click.option(
    "--kernel-clients", type=click.IntRange(min=1000), default=100_000, show_default=True, help="Of kernel sockets."
)
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@json_option
def keepalive(clients: int, kernel_clients: int, runs: int, as_json: bool) -> None:
    """What answering a keep-alive costs, beside a bare reflector and beside kernel sockets."""
    _measure("keepalive", as_json, clients=clients, kernel_clients=kernel_clients, runs=runs)


def _connections(default: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option of benches with simulated clients."""
    return click.option("--connections", type=click.IntRange(min=1000), default=default, show_default=True)


@command.command()
@_connections(10_000_000)
@click.option("--interval", type=click.IntRange(min=1), default=60, show_default=True, help="Between probes, seconds.")
@click.option("--seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, help="How long to look on.")
@json_option
def probe(connections: int, interval: int, seconds: float, as_json: bool) -> None:
    """What share of a core the appliance's own keep-alive probes take."""
    _measure("probe", as_json, connections=connections, interval_s=interval, seconds=seconds)


@command.command()
@_connections(1_000_000)
@click.option("--seconds", type=click.FloatRange(min=1), default=30.0, show_default=True, help="Each flood.")
@click.option(
    "--rate", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Frames a second; 0: all it can."
)
@json_option
def flood(connections: int, seconds: float, rate: float, as_json: bool) -> None:
    """Forged SYNs and segments: nobody is lost or woken, and a relay hardly notices."""
    _measure("flood", as_json, connections=connections, seconds=seconds, rate=rate)


@command.command()
@_connections(10_000_000)
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Of each kind of end.")
@json_option
def restart(connections: int, runs: int, as_json: bool) -> None:
    """How long sleeping clients are without a daemon that is stopped or killed, and started."""
    _measure("restart", as_json, connections=connections, runs=runs)


@command.command()
@_connections(100_000)
@click.option("--runs", type=click.IntRange(min=1), default=6, show_default=True)
@json_option
def policy(connections: int, runs: int, as_json: bool) -> None:
    """How long until every sleeping client obeys a changed policy."""
    _measure("policy", as_json, connections=connections, runs=runs)


@command.command()
@_connections(10_000_000)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Of keep-alives, each size.")
@click.option(
    "--answers", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="In a round, at the least."
)
@json_option
def growth(connections: int, rounds: int, answers: int, as_json: bool) -> None:
    """What memory and time a connection takes, from 10,000 connections on."""
    _measure("growth", as_json, connections=connections, rounds=rounds, answers=answers)


_results = click.argument(
    "results", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


@command.command()
@_results
def table(results: tuple[Path, ...]) -> None:
    """Print what benches measured as a table in Markdown: files with what they printed with --json.

    \b
    Example:
      ./roost bench table storm.json growth.json
    """
    require_checkout("Printing results")
    from tests.bench import plot

    try:
        click.echo(plot.table(plot.results(results)))
    except plot.PlotError as problem:
        raise click.ClickException(str(problem)) from None


@command.command()
@_results
@click.option(
    "--to",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/pictures"),
    show_default=True,
    help="Where the pictures go.",
)
def plot(results: tuple[Path, ...], directory: Path) -> None:
    """Draw pictures (SVG) of what benches measured: files with what they printed with --json.

    \b
    Example:
      sudo ./roost bench growth --json > growth.json
      ./roost bench plot growth.json
    """
    require_checkout("Drawing")
    from tests.bench.plot import PlotError, draw

    try:
        for picture in draw(results, directory):
            click.echo(str(picture))
    except PlotError as problem:
        raise click.ClickException(str(problem)) from None
