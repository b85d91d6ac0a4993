# SPDX-License-Identifier: Apache-2.0
"""`roost agents`."""

from __future__ import annotations

from typing import Any

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import show_table


@click.command("agents")
@daemon_options
@json_option
def command(daemon: Client, as_json: bool) -> None:
    """The clients that agents speak for: servers reach them as NAME.roost, too.

    \b
    Example:
      roost agents
      roost agents --json | jq -r '.[] | select(.connected | not) | .name'
    """
    rows = daemon.get("/v1/agents")
    if as_json:
        print_json(rows)
        return
    show_table(("client", "agent", "connected", "how", "stay"), map(_shown, rows))


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    how = f"connects to {row['connects_to']}" if row["connects_to"] else "accepts"
    connected = "yes" if row["connected"] else "no"
    return row["name"], row["agent"], connected, how, "to stay connected" if row["stay"] else ""
