# SPDX-License-Identifier: Apache-2.0
"""`roost tag NAME TAG`."""

from __future__ import annotations

from urllib.parse import quote

import click

from control.cli import completing
from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import show_table


@click.command("tag")
@click.argument("name", required=False, shell_complete=completing.names)
@click.argument("tags", nargs=-1, metavar="[TAG]...", shell_complete=completing.tags)
@click.option("--remove", is_flag=True, help="Take these tags away.")
@click.option("--after", metavar="TAG", default="", help="Of all: those behind this one.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Of all: at most so many."
)
@daemon_options
@json_option
def command(name: str | None, tags: tuple[str, ...], remove: bool, after: str, limit: int, daemon: Client,
            as_json: bool) -> None:  # fmt: skip
    """Give a name tags, which stay with its client however often it connects. Without TAG: those that it has; without
    NAME: all there are.

    \b
    Example:
      roost tag thermostat-17 basement winter
      roost tag --remove thermostat-17 winter
      roost tag
    """
    if remove and not tags:
        raise click.UsageError("roost tag --remove takes a NAME and the tags that it is to lose")
    if name is None:
        found = daemon.get("/v1/tags", after=after, limit=limit)
        if as_json:
            print_json(found)
        else:
            show_table(("tag", "names"), ((one["tag"], f"{one['names']:,}") for one in found), right=("names",))
        return
    path = f"/v1/names/{quote(name, safe='')}/tags"
    result = daemon.send("PUT", path, {"remove" if remove else "add": list(tags)}) if tags else daemon.get(path)
    if as_json:
        print_json(result)
    else:
        click.echo(f"{result['name']}: {', '.join(result['tags']) or 'no tags'}")
