# SPDX-License-Identifier: Apache-2.0
"""`roost token`: by which it is known who asks by the API ([api])."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import local_time, show_table
from control.core.access import Role

NEVER = "never"


@click.group("token")
def command() -> None:
    """Tokens, by which it is known who asks by the API ([api] listen), and what they may do.

    \b
    viewer    reads
    operator  changes what connections, names and rules are, too
    admin     makes tokens, too, and reads the record of changes
    server    reads and changes the connections of its own services alone
    """


@command.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice([role.value for role in Role]), required=True, help="What it may do.")
@click.option("--service", "services", multiple=True, metavar="NAME", help="Of a server: a service of its. Repeatable.")
@click.option("--days", type=click.IntRange(1, 36_500), default=90, show_default=True, help="For how long it is good.")
@click.option("--forever", is_flag=True, help="It is good until it is revoked.")
@daemon_options
@json_option
def create(name: str, role: str, services: tuple[str, ...], days: int, forever: bool, daemon: Client,
           as_json: bool) -> None:  # fmt: skip
    """Make a token. It is shown now, and never again: what is kept is a hash.

    \b
    Examples:
      roost token create ann --role operator
      roost token create alarm-centre --role server --service alarms --forever
    """
    expires_s = None if forever else days * 86_400
    wanted = {"name": name, "role": role, "services": services, "expires_s": expires_s}
    made = daemon.send("POST", "/v1/tokens", wanted)
    if as_json:
        print_json(made)
        return
    click.echo(made["token"])
    click.echo(f"{made['role']} {made['name']}, good until {_until(made)}; it is not shown again", err=True)


@command.command("list")
@daemon_options
@json_option
def list_them(daemon: Client, as_json: bool) -> None:
    """The tokens there are, and those that ended in the last 90 days."""
    rows = daemon.get("/v1/tokens")
    if as_json:
        print_json(rows)
        return
    show_table(("id", "name", "role", "services", "made", "by", "good until"), map(_shown, rows))


@command.command("revoke")
@click.argument("which", metavar="NAME-OR-ID")
@daemon_options
@json_option
def revoke(which: str, daemon: Client, as_json: bool) -> None:
    """Let a token be good no more, within two seconds."""
    gone = daemon.send("DELETE", f"/v1/tokens/{quote(which, safe='')}")
    print_json(gone) if as_json else click.echo(f"{gone['name']} ({gone['id']}) is good no more")


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    services = ", ".join(row["services"]) if row["services"] is not None else "all"
    return row["id"], row["name"], row["role"], services, local_time(row["made_at_ms"]), row["made_by"], _until(row)


def _until(row: dict[str, Any]) -> str:
    if row["revoked_at_ms"] is not None:
        return f"revoked {local_time(row['revoked_at_ms'])}"
    ends = row["expires_at_ms"]
    return NEVER if ends is None else local_time(ends) if row["good"] else f"expired {local_time(ends)}"
