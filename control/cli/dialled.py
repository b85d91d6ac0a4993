# SPDX-License-Identifier: Apache-2.0
"""`roost dialled`."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import show_table

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
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at_ms"] / 1000))
    return row["client"], str(row["failures"]), at, STAY[row["stay"]]
