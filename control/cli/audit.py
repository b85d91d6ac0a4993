# SPDX-License-Identifier: Apache-2.0
"""`roost audit`."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import local_time, show_table

SHOWN = 60
"""Characters of a body in the table; --json has what there is."""


@click.command("audit")
@click.option("-n", "--last", type=click.IntRange(0, 10_000), default=20, show_default=True, help="How many to show.")
@click.option("--who", metavar="NAME", help="Only what this one asked for, among the last 1,000,000.")
@click.option("--refused", is_flag=True, help="Only what was refused or failed, among the last 1,000,000.")
@daemon_options
@json_option
def command(last: int, who: str | None, refused: bool, daemon: Client, as_json: bool) -> None:
    """The last changes that the daemon was asked for: who, from where, what, and what came of it.

    \b
    Examples:
      roost audit
      roost audit --who ann --refused
    """
    rows = daemon.get("/v1/audit", limit=last, who=who, refused=refused or None)
    if as_json:
        print_json(rows)
        return
    show_table(("at", "who", "from", "request", "with", "result"), map(_shown, rows))


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    request = f"{row['method']} {quote(row['path'], safe='/:[]@,')}"
    body = row["body"] if len(row["body"]) <= SHOWN else f"{row['body'][:SHOWN]}…"
    result = f"{row['status']} {row['error']}" if row["status"] >= 400 else "done"
    return local_time(row["at_ms"], "milliseconds"), row["who"], row["origin"], request, body, result
