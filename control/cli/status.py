# SPDX-License-Identifier: Apache-2.0
"""`roost status`."""

from __future__ import annotations

from typing import Any, Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import console
from control.core.text import sentence, span

SHARED_BY: Final = 1000
"""Of fewer connections, what one costs says only that the tables have a size of their own."""


@click.command("status")
@daemon_options
@json_option
def command(daemon: Client, as_json: bool) -> None:
    """How many connections are in which state, what they cost, and what the packets met.

    \b
    Example:
      roost status -c roost.toml
      roost status --json | jq .connections.SLEEP
    """
    status = daemon.get("/v1/status")
    if as_json:
        print_json(status)
    else:
        _show(status, console(markup=True))


def _show(status: dict[str, Any], console: Console) -> None:
    memory, store = status["memory"], status["store"]
    console.print(
        f"[bold]{escape(status['instance'])}[/]  roost {status['version']}, pid {status['pid']}, "
        f"up {span(status['uptime_s'])}"
    )
    states = Table(box=None, pad_edge=False)
    for name in status["connections"]:
        states.add_column(name, justify="right")
    states.add_row(*(f"{number:,}" for number in status["connections"].values()))
    console.print(states)
    console.print(f"awake {status['awake']:,} of {status['max_awake']:,}")
    inactive = status["connections"]["IDLE"] + status["connections"]["SLEEP"]
    each = memory["maps_bytes_per_inactive"] if inactive >= SHARED_BY else None
    console.print(
        f"memory: tables {memory['maps_bytes'] / 1e6:.1f} MB"
        + (f" ({each:,.0f} B for each inactive connection)" if each else "")
        + f", daemon {memory['daemon_rss_bytes'] / 1e6:.0f} MB"
    )
    colour = "green" if store["state"] == "ok" else "red"
    console.print(f"store: [{colour}]{escape(store['state'])}[/]", end="")
    console.print(f"  (waiting: {store['pending_sleep']:,} to sleep, {store['pending_history']:,} of history)", end="")
    dropped = store["dropped_history"]
    console.print(f"  [red]{dropped:,} rows of history were dropped[/]" if dropped else "")
    policy = status["policy"]
    console.print(f"policy: {policy['rules']:,} rules, version {policy['version']}")
    for one in status["attention"]:
        console.print(f"[yellow]attention[/] {escape(sentence(one))}")
    if not status["attention"]:
        console.print("attention: nothing")
    for name, mode in status["interfaces"].items():
        console.print(f"interface {escape(name)}: XDP {mode}")
    for service in status["services"]:
        _show_service(service, console)
    for address, port in status.get("attach", []):
        names = " and ".join({"connect": "HTTP CONNECT", "socks5": "SOCKS5"}[p] for p in status["attach_protocols"])
        console.print(f"attach: {names} at {escape(f'[{address}]' if ':' in address else address)}:{port}")
    counters = Table(box=None, pad_edge=False)
    counters.add_column("counter")
    counters.add_column("", justify="right")
    for name, value in {**status["counters"], **status["control"]}.items():
        if value:
            counters.add_row(name, f"{value:,}")
    console.print(counters)


def _show_service(service: dict[str, Any], console: Console) -> None:
    servers = service["servers"]
    where = service["balance"] if len(servers) > 1 else service["server"]
    leaving = ", [yellow]leaving[/]: it takes no new clients" if service["leaving"] else ""
    console.print(f"service {escape(service['name'])}: {escape(service['listen'])} -> {escape(where)}{leaving}")
    for row in servers if len(servers) > 1 or any(row["state"] != "up" for row in servers) else ():
        colour = {"up": "green", "down": "red"}.get(row["state"], "yellow")
        reason = f": {row['reason']}" if row["reason"] else ""
        console.print(
            f"  {escape(row['server'])} [{colour}]{row['state']}{escape(reason)}[/], "
            f"{row['links']:,} links ({row['linked']:,} made, {row['failed']:,} failed)"
        )
