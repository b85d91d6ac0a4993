# SPDX-License-Identifier: Apache-2.0
"""`roost show ID`."""

from __future__ import annotations

import click
from rich.table import Table

from control.cli import completing
from control.cli.client import Client, connection_path, daemon_options, json_option, print_json
from control.cli.table import console, ends_text, local_time


@click.command("show")
@click.argument("connection", metavar="ID", shell_complete=completing.connections)
@daemon_options
@json_option
def command(connection: str, daemon: Client, as_json: bool) -> None:
    """Everything known about one connection: ID is its number, client-address:port, or name.domain.

    \b
    Example:
      roost show 4711
      roost show [2001:db8::7]:40123
      roost show thermostat-17.roost
    """
    shown = daemon.get(connection_path(connection))
    if as_json:
        print_json(shown)
        return
    out = console()
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in shown.items():
        if isinstance(value, dict):
            for inner, number in value.items():
                table.add_row(f"{name}.{inner}", str(number))
        elif name.endswith("_at_ms"):
            table.add_row(name.removesuffix("_ms"), local_time(value))
        elif name != "history":
            table.add_row(name, "" if value is None else str(value))
    out.print(table)
    if shown.get("history"):
        past = Table(box=None, pad_edge=False, title="history", title_justify="left")
        for title in ("at", "from", "to", "cause", "from client", "to client", "quiet before", ""):
            past.add_column(title)
        for row in shown["history"]:
            sizes = (f"{row['rx_bytes']:,} B", f"{row['tx_bytes']:,} B", f"{row['gap_ms'] / 1000:,.1f} s")
            past.add_row(local_time(row["at_ms"]), row["from"], row["to"], row["cause"], *sizes, ends_text(row))
        out.print(past)
