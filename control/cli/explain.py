# SPDX-License-Identifier: Apache-2.0
"""`roost explain ID`."""

from __future__ import annotations

import textwrap

import click

from control.cli import completing
from control.cli.client import Client, connection_path, daemon_options, json_option, print_json


@click.command("explain")
@click.argument("connection", metavar="ID", shell_complete=completing.connections)
@daemon_options
@json_option
def command(connection: str, daemon: Client, as_json: bool) -> None:
    """Why a connection is not asleep, or does not wake: ID is its number, client-address:port, or name.domain.

    \b
    Example:
      roost explain 4711
      roost explain thermostat-17.roost
    """
    told = daemon.get(f"{connection_path(connection)}/explain")
    if as_json:
        print_json(told)
        return
    number = f"{told['id']} " if told["id"] else ""
    click.echo(f"{number}{told['client']}, service {told['service']}: {told['state']}")
    for sentence in told["sentences"]:
        click.echo(textwrap.fill(sentence, 100, initial_indent="- ", subsequent_indent="  "))
