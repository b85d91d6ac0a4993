# SPDX-License-Identifier: Apache-2.0
"""`roost connections`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from control.cli import completing
from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import show_table

_TITLES = ("ID", "state", "client", "local", "service", "quiet", "name")


_WANTED = (
    click.option("--state", type=click.Choice(["ACTIVE", "STANDBY", "IDLE", "SLEEP"], case_sensitive=False),
                 help="Only those in this state."),
    click.option("--client", metavar="PREFIX", default="", help="Only clients whose address:port begins so."),
    click.option("--network", metavar="NETWORK", default="", help="Only clients in it: 192.0.2.0/24, 2001:db8::/32."),
    click.option("--service", metavar="NAME", default="", help="Only those that came in by this service."),
    click.option("--name", metavar="PATTERN", default="",
                 help="Only clients with such names, without the domain: `*` is any text, `?` a character."),
    click.option("--tag", metavar="TAG", shell_complete=completing.tags, default="",
                 help="Only clients whose name has this tag (roost tag)."),
    click.option("--quiet", type=click.IntRange(0), metavar="SECONDS",
                 help="Only those without payload for so long at least."),
    click.option("--silence", type=click.IntRange(0), metavar="SECONDS",
                 help="Only those that sleep and were not heard for so long at least, keep-alives included."),
    click.option("--rule", metavar="NAME", default="",
                 help="Only those to whom this rule of the policy gives a value."),
)  # fmt: skip


def wanted_options(function: Callable[..., None]) -> Callable[..., None]:
    """The filters of GET /v1/connections. The command is given them by their names, None: there is none."""
    for option in reversed(_WANTED):
        function = option(function)
    return function


@click.command("connections")
@wanted_options
@click.option("--limit", type=click.IntRange(0),
              help="At most this many; 1,000 on a screen, all with --json; 100 of a page.")  # fmt: skip
@click.option("--after", metavar="PLACE", help="A page: `first`, or the place that the page before ended with.")
@daemon_options
@json_option
def command(limit: int | None, after: str | None, daemon: Client, as_json: bool, **wanted: str | int | None) -> None:
    """List connections. With --json one object a line; of a page, one object with `connections` and `next`.

    \b
    Example:
      roost connections --state SLEEP --network 192.0.2.0/24
      roost connections --name 'camera-*' --silence 86400
      roost connections --tag basement --state SLEEP
      roost connections --rule cellular --state ACTIVE
      roost connections --json | jq -r 'select(.quiet_s > 3600) | .id'
      roost connections --after first --limit 50
    """
    query = {key: value or None for key, value in wanted.items()}
    if after is not None:
        page = daemon.get("/v1/connections", **query, limit=limit, after=after)
        if as_json:
            print_json(page)
            return
        show_table(_TITLES, map(_shown, page["connections"]), right=("ID", "quiet"))
        click.echo(f"More with --after {page['next']}" if page["next"] else "There are no more.")
        return
    bound = limit if limit is not None or as_json else 1000
    rows = daemon.lines("/v1/connections", **query, limit=bound)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    number = show_table(_TITLES, map(_shown, rows), right=("ID", "quiet"))
    if limit is None and number == bound:
        click.echo(f"The first {number:,}. More with --limit or --after first, all with --json.")


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    quiet = "" if row["quiet_s"] is None else f"{row['quiet_s']:,.1f} s"
    return str(row["id"] or "?"), row["state"], row["client"], row["local"], row["service"], quiet, row["name"] or ""
