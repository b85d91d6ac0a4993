# SPDX-License-Identifier: Apache-2.0
"""`roost connections`."""

from __future__ import annotations

import json
from typing import Any

import click

from control.cli.client import Client, daemon_options, json_option
from control.cli.table import show_table


@click.command("connections")
@click.option("--state", type=click.Choice(["ACTIVE", "STANDBY", "IDLE", "SLEEP"], case_sensitive=False),
              help="Only those in this state.")  # fmt: skip
@click.option("--client", metavar="PREFIX", default="", help="Only clients whose address:port begins so.")
@click.option("--limit", type=click.IntRange(0), help="At most this many; 1,000 on a screen, all with --json.")
@daemon_options
@json_option
def command(state: str | None, client: str, limit: int | None, daemon: Client, as_json: bool) -> None:
    """List connections. With --json one object a line.

    \b
    Example:
      roost connections --state SLEEP --client 192.0.2.
      roost connections --json | jq -r 'select(.quiet_s > 3600) | .id'
    """
    bound = limit if limit is not None or as_json else 1000
    rows = daemon.lines("/v1/connections", state=state.upper() if state else None, client=client, limit=bound)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    number = show_table(
        ("ID", "state", "client", "local", "service", "quiet"), map(_shown, rows), right=("ID", "quiet")
    )
    if limit is None and number == bound:
        click.echo(f"The first {number:,}. More with --limit, all with --json.")


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    quiet = "" if row["quiet_s"] is None else f"{row['quiet_s']:,.1f} s"
    return str(row["id"] or "?"), row["state"], row["client"], row["local"], row["service"], quiet
