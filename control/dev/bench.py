# SPDX-License-Identifier: Apache-2.0
"""`roost bench`: the benches of tests/bench, each a module of its own that is imported when it is called."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from control.dev.lint import require_checkout


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


_JSON = click.Option(
    ["--json", "as_json"], is_flag=True, help="Print the figures as one JSON object, the last line of standard output."
)


def _number(flag: str, default: float, why: str = "", least: float = 1, name: str = "") -> click.Option:
    """An option, whole when its default is; `name` is that of run()'s parameter, where it is another."""
    kind = click.IntRange(int(least)) if isinstance(default, int) else click.FloatRange(least)
    return click.Option([flag, *([name] if name else [])], type=kind, default=default, show_default=True, help=why)


def _bench(name: str, purpose: str, *options: click.Option) -> None:
    command.add_command(click.Command(name, callback=partial(_measure, name), params=[*options, _JSON], help=purpose))


_bench("chaos", "Freeze and thaw connections in the middle of their traffic; not a byte may be lost.",
       _number("--seconds", 60.0, "How long to freeze."), _number("--clients", 320, least=16),
       click.Option(["--mode"], type=click.Choice(["service", "router", "proxy", "persistent"]), default="service",
                    show_default=True,
                    help="How clients reach their server: by an address of the appliance, or by the server's own (and "
                    "servers come by the clients'); proxy: as service, and servers come by HTTP CONNECT; persistent: "
                    "as service, and both legs freeze together."))  # fmt: skip
_bench("churn", "What a freeze and a thaw cost, and how many of both the engine does in a second.",
       _number("--connections", 10_000, least=16), _number("--batch", 2000, "Commands in one batch."),
       _number("--runs", 5))  # fmt: skip
_bench("wake", "How much longer than usual the first answer takes a client that was asleep.",
       _number("--wakeups", 5000, "From IDLE.", 100), _number("--sleep-wakeups", 2000, "From SLEEP.", 100),
       _number("--ready-wakeups", 1000, "With links that are ready, and as many without.", 0),
       _number("--runs", 5, "Into which they are divided."),
       _number("--asleep", 0, "Others that sleep all the time, simulated.", 0, "asleep_beside"))  # fmt: skip
_bench("attach", "How long a server takes to reach a client that sleeps: through the router, and through the proxy.",
       _number("--attaches", 5000, "From each state.", 100),
       _number("--runs", 5, "Into which they are divided."))  # fmt: skip
_bench("relay", "What going through Roost costs a connection, beside HAProxy and beside plain routing.",
       _number("--seconds", 2.0, "Each measurement.", 0.1), _number("--runs", 5))  # fmt: skip
_bench("hold", "What an IDLE connection costs, and that every one of them is kept alive.",
       _number("--connections", 100_000, least=100),
       _number("--minutes", 2.0, "How long to listen to keep-alives.", 0.1),
       click.Option(["--simulated"], is_flag=True,
                    help="Clients that are no kernel sockets, and sleep from birth; as ever with more than 200,000. "
                    "Each is kept alive three times, however long that takes."))  # fmt: skip
_bench("storm", "Handshakes a second on one core, when all clients come back at once; beside HAProxy.",
       _number("--clients", 1_000_000, "In each run.", 1000), _number("--runs", 5))  # fmt: skip
_bench("keepalive", "What answering a keep-alive costs, beside a bare reflector and beside kernel sockets.",
       _number("--clients", 1_000_000, "Asleep.", 1000),
       _number("--kernel-clients", 100_000, "Of kernel sockets.", 1000), _number("--runs", 5))  # fmt: skip
_bench("probe", "What share of a core the appliance's own keep-alive probes take.",
       _number("--connections", 10_000_000, least=1000),
       _number("--interval", 60, "Between probes, seconds.", name="interval_s"),
       _number("--seconds", 60.0, "How long to look on."))  # fmt: skip
_bench("flood", "Forged SYNs and segments: nobody is lost or woken, and a relay hardly notices.",
       _number("--connections", 1_000_000, least=1000), _number("--seconds", 30.0, "Each flood."),
       _number("--rate", 0.0, "Frames a second; 0: all it can.", 0))  # fmt: skip
_bench("abuse", "What one source that does its worst, in ten ways, costs the clients of other networks.",
       _number("--seconds", 20.0, "Each, and as long before it.", 0.1),
       _number("--clients", 50_000, "Simulated ones, in each part.", 100))  # fmt: skip
_bench("restart", "How long sleeping clients are without a daemon that is stopped or killed, and started.",
       _number("--connections", 10_000_000, least=1000), _number("--runs", 3, "Of each kind of end."),
       click.Option(["--reboot"], is_flag=True,
                    help="Reboot the machine instead: how long until all rows are back."))  # fmt: skip
_bench("upgrade", "Restart the service with awake connections: none is lost, nor a byte, and what a byte waits.",
       _number("--connections", 5000, "ACTIVE.", 100), _number("--runs", 5))  # fmt: skip
_bench("takeover", "The machine with the connections loses its power, and the one that stood by answers for them.",
       _number("--connections", 1_000_000, "In SLEEP.", 100), _number("--runs", 3))  # fmt: skip
_ROOT = click.Option(["--root"], type=click.Path(exists=True, file_okay=False),
                     help="What vagrant/rootfs.sh has made, instead of making it.")  # fmt: skip
_bench("boot", "Boot a Debian with Roost as its service in the place of the lab's appliance; upgrade and remove it.",
       _number("--connections", 150, least=9), _ROOT)  # fmt: skip
_bench("reboot", "The same machine is rebooted, loses its power, and finds its clock an hour late, and early.",
       _number("--connections", 150, least=9), _ROOT,
       _number("--probe", 30.0, "Seconds between a client's keep-alives.", name="probe_s"))  # fmt: skip
_bench("soak", "Days, compressed, of an appliance to which everything happens that may: none is lost.",
       _number("--minutes", 45.0, least=0.1), _number("--clients", 50_000, "Real ones.", 50),
       _number("--simulated", 1_000_000, "Born asleep.", 1000), _number("--seed", 1, "Of all that is at random.", 0),
       click.Option(["--faults"], default="", metavar="NAMES", help="Those that come, separated by commas; else all."),
       click.Option(["--log"], type=click.Path(dir_okay=False, writable=True),
                    help="A file for what happened, in Markdown."))  # fmt: skip
_bench("policy", "How long until every sleeping client obeys a rule, and a changed policy.",
       _number("--connections", 100_000, least=1000), _number("--runs", 3),
       _number("--spoken", 1000, "Of them that are in SLEEP; the others are born asleep."))  # fmt: skip
_bench("pressure", "What goes down when something runs short, and what those that wake meanwhile notice.",
       _number("--connections", 20_000, "In IDLE.", 1000))  # fmt: skip
_bench("control", "How long the API takes, beside the writing of history and with very many connections.",
       _number("--connections", 1_000_000, least=1000), _number("--runs", 3),
       click.Option(["--kill"], is_flag=True, help="Stop and kill the API at full load, too."))  # fmt: skip
_bench("persist", "What the database takes: transitions, sleepers and wakes a second.",
       _number("--rows", 1_000_000, "Of history.", 1000), _number("--sleepers", 1_000_000, least=1000),
       _number("--runs", 3))  # fmt: skip
_bench("export", "How long the record takes to become Parquet; each row once, whatever is killed.",
       _number("--rows", 10_000_000, "Transitions.", 1000))  # fmt: skip
_bench("report", "How long a report takes, beside DuckDB.", _number("--rows", 100_000_000, "Transitions.", 10_000))
_bench("truth", "What a report finds of a simulated fleet whose truth is known.",
       _number("--rows", 20_000_000, "Transitions, about.", 10_000),
       _number("--seed", 1, "Of the fleet.", 0))  # fmt: skip
_bench("growth", "What memory and time a connection takes, from 10,000 connections on.",
       _number("--connections", 10_000_000, least=1000), _number("--rounds", 5, "Of keep-alives, each size."),
       _number("--answers", 1_000_000, "In a round, at the least."))  # fmt: skip


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
