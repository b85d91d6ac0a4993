# SPDX-License-Identifier: Apache-2.0
"""`roost standby|idle|sleep|wake|close ID`: one thing done to one connection."""

from __future__ import annotations

import click

from control.cli import completing
from control.cli.client import Client, connection_path, daemon_options, json_option, print_json


def _command(action: str, help_text: str) -> click.Command:
    """Says what became of it."""

    @click.command(action, help=f"{help_text}\n\n\b\nExample:\n  roost {action} 4711\n  roost {action} 192.0.2.7:40123")
    @click.argument("connection", metavar="ID", shell_complete=completing.connections)
    @daemon_options
    @json_option
    def command(connection: str, daemon: Client, as_json: bool) -> None:
        result = daemon.send("POST", f"{connection_path(connection)}/{action}")
        if as_json:
            print_json(result)
        elif result["before"] == result["state"]:
            click.echo(f"{result['id']} {result['client']}: is {result['state']} already")
        else:
            click.echo(f"{result['id']} {result['client']}: {result['before']} -> {result['state']}")

    return command


standby = _command("standby", "Close a connection's link to its server and keep its socket (ACTIVE to STANDBY).")
idle = _command(
    "idle", "Take a connection out of the kernel (to IDLE). It wakes when the client speaks or a server attaches."
)
sleep = _command("sleep", "Move a connection's record to the database (to SLEEP), by way of IDLE.")
wake = _command("wake", "Put a connection back into the kernel (IDLE or SLEEP to STANDBY).")
close = _command("close", "Close a connection whatever its state; client and server are told with an RST.")
