# SPDX-License-Identifier: Apache-2.0
"""`roost agents`."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from control.cli.client import Client, daemon_options, json_option, print_json


@click.command("agents")
@daemon_options
@json_option
def command(config_path: str | None, socket_path: str | None, as_json: bool) -> None:
    """The clients that agents speak for: servers reach them as NAME.roost, too.

    \b
    Example:
      roost agents
      roost agents --json | jq -r '.[] | select(.connected | not) | .name'
    """
    rows = Client.find(config_path, socket_path).get("/v1/agents")
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False)
    for title in ("client", "agent", "connected", "how", "stay"):
        table.add_column(title)
    for row in rows:
        how = f"connects to {row['connects_to']}" if row["connects_to"] else "accepts"
        connected = "yes" if row["connected"] else "no"
        table.add_row(row["name"], row["agent"], connected, how, "to stay connected" if row["stay"] else "")
    Console(highlight=False, markup=False).print(table)
