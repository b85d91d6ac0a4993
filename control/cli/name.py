# SPDX-License-Identifier: Apache-2.0
"""`roost name ID NAME`."""

from __future__ import annotations

from urllib.parse import quote

import click

from control.cli import completing
from control.cli.client import Client, connection_path, daemon_options, json_option, print_json


@click.command("name")
@click.argument("words", nargs=-1, required=True, metavar="[ID] NAME", shell_complete=completing.connections)
@click.option("--remove", is_flag=True, help="Forget NAME, whether or not its client is connected.")
@daemon_options
@json_option
def command(words: tuple[str, ...], remove: bool, daemon: Client, as_json: bool) -> None:
    """Give a client a name: servers then reach it as NAME.roost, whatever its address. Given again, a name moves.

    \b
    Example:
      roost name 4711 thermostat-17
      roost name 192.0.2.7:40123 thermostat-17
      roost name --remove thermostat-17
    """
    if len(words) != (1 if remove else 2):
        raise click.UsageError("roost name --remove takes a NAME" if remove else "roost name takes an ID and a NAME")
    if remove:
        result = daemon.send("DELETE", f"/v1/names/{quote(words[0], safe='')}")
    else:
        result = daemon.send("PUT", f"{connection_path(words[0])}/name", {"name": words[1]})
    if as_json:
        print_json(result)
    elif remove:
        click.echo(f"{result['name']}: no client's name now")
    else:
        click.echo(f"{result['id']} {result['client']}: {result['target']}")
