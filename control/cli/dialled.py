# SPDX-License-Identifier: Apache-2.0
"""`roost dialled`."""

from __future__ import annotations

from typing import Any, Final

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import local_time, show_table

STAY: Final = {"no": "", "due": "to be told to stay connected", "told": "was told to stay connected"}


@click.command("dialled")
@daemon_options
@json_option
def command(daemon: Client, as_json: bool) -> None:
    """The clients that were dialled in vain, and which of them are to stay connected.

    \b
    Example:
      roost dialled
      roost dialled --json | jq -r '.[] | select(.stay == "told") | .client'
    """
    rows = daemon.get("/v1/dialled")
    if as_json:
        print_json(rows)
        return
    show_table(("client", "failures in a row", "last", "stay"), map(_shown, rows))


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    return row["client"], str(row["failures"]), local_time(row["at_ms"]), STAY[row["stay"]]
