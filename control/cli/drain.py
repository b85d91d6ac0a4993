# SPDX-License-Identifier: Apache-2.0
"""`roost drain`: another machine is to have all connections."""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path

import click

from control.cli.client import Client, daemon_options, json_option


@click.command("drain")
@daemon_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--timeout", "timeout_s", default=660, show_default=True, help="How long to wait for it, seconds.")
@json_option
def command(daemon: Client, yes: bool, timeout_s: int, as_json: bool) -> None:
    """End the daemon of this machine so that another one has all of its connections: each gets its row in the database,
    and this machine answers for none any more. `roost up`, or its service, on another machine with the same database
    takes them over; then that one gets the addresses that clients connect to.

    What is awake is frozen first; what cannot be within seconds, since bytes are in flight, is closed. For an hour the
    kernel of this machine answers no client and no server by a reset.

    \b
    Example:
      sudo ./roost drain --yes && ssh other systemctl start roost
    """
    status = daemon.get("/v1/status")
    there = dict(status["connections"])
    total = sum(there.values())
    if not yes:
        click.confirm(
            f"The daemon ends, and this machine answers for none of {total:,} connections. Go on?", abort=True
        )
    pid, pins = int(status["pid"]), Path(status["pin_dir"])
    try:
        process = os.pidfd_open(pid)
        signal.pidfd_send_signal(process, signal.SIGUSR1)
    except (ProcessLookupError, PermissionError) as error:
        raise click.ClickException(f"the daemon (pid {pid}) cannot be told: {error.strerror}; run it on its machine, "
                                   "as root") from None  # fmt: skip
    if not select.select([process], [], [], timeout_s)[0]:  # it has ended, whether or not its parent has heard
        raise click.ClickException(f"the daemon (pid {pid}) still writes rows after {timeout_s} s; its log says more")
    if (pins / "tables4").exists():
        raise click.ClickException(f"no other machine may have the connections: they are asleep in {pins}. Its "
                                   "log says why; begin the daemon again, unless its service manager does")  # fmt: skip
    if as_json:
        click.echo(json.dumps({"drained": total, "connections": there}))
    else:
        click.echo(f"{total:,} connections are left to another machine: start Roost there, then give it the addresses")
