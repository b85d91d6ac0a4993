# SPDX-License-Identifier: Apache-2.0
"""`roost events`."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from control.cli.client import Client, daemon_options, json_option
from control.cli.table import ends_text, local_time


@click.command("events")
@click.option("-f", "--follow", is_flag=True, help="Go on with transitions as they happen.")
@click.option("-n", "--last", type=click.IntRange(0, 10_000), default=20, show_default=True, help="Past ones to show.")
@click.option("--id", "number", type=click.IntRange(1, 2**53 - 1), metavar="NUMBER",
              help="Past ones of this connection alone, ended or not; `roost show` has them.")  # fmt: skip
@daemon_options
@json_option
def command(follow: bool, last: int, number: int | None, daemon: Client, as_json: bool) -> None:
    """The transitions of connections, as they happened and as they happen. With --json one object a line.

    \b
    Example:
      roost events --id 4711
      roost events --follow
      roost events -n 1000 --json | jq -r .cause | sort | uniq -c
    """
    if follow and number is not None:
        raise click.UsageError("--id is for what has happened; --follow goes on with those of all")
    if not follow:
        for row in daemon.get("/v1/history", limit=last, id=number):
            _print(row, as_json)
        return
    try:
        for event in daemon.events(last or None):
            if event.kind == "transition":
                _print(event.data, as_json)
            elif event.kind == "reset":
                click.echo("transitions may be missing here: the database is an earlier one", err=True)
            else:
                click.echo(f"{event.data['count']:,} transitions were left out: {_LOST[event.kind]}", err=True)
    except KeyboardInterrupt:
        return


_LOST: Final = {"dropped": "they came faster than they were read", "removed": "they are not kept any more"}


def _print(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(row))
        return
    at = local_time(row["at_ms"], "milliseconds")
    click.echo(
        f"{at} {row['id']:>8} {row['client']:<22} {row['from']:>7} -> {row['to']:<7} {row['cause']:<14} "
        f"{row['service']}  rx {row['rx_bytes']:,} B, tx {row['tx_bytes']:,} B, quiet {row['gap_ms'] / 1000:.1f} s"
        + "".join(f", {text}" for text in (ends_text(row),) if text)
        + (f", came back as {row['successor']}" if "successor" in row else "")
    )
