# SPDX-License-Identifier: Apache-2.0
"""`roost attaches`."""

from __future__ import annotations

from typing import Any

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import local_time, show_table


@click.command("attaches")
@click.option("-n", "--last", type=click.IntRange(0, 10_000), default=20, show_default=True, help="How many to show.")
@click.option("--failed", is_flag=True, help="Only servers that were refused, among the last 1,000,000.")
@daemon_options
@json_option
def command(last: int, failed: bool, daemon: Client, as_json: bool) -> None:
    """The last servers that asked for a client, by the proxy or by its address, and what became of it: the state in
    which the client was found, how long the answer took, and how long it was until the client's first byte.

    \b
    Examples:
      roost attaches --failed
      roost attaches -n 1000 --json | jq '[.[] | select(.found == "SLEEP") | .first_ms] | add / length'
    """
    rows = daemon.get("/v1/attaches", limit=last, failed=failed or None)
    if as_json:
        print_json(rows)
        return
    titles = ("asked at", "server", "by", "for", "client", "found", "answer", "after ms", "first byte ms")
    show_table(titles, map(_shown, rows), right=("after ms", "first byte ms"))


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    client = f"{row['id']} {row['client']}" if row["id"] else row["client"] or ""
    by = f"{row['way']}, {row['step']}" if row["step"] else row["way"]
    return (
        local_time(row["at_ms"], "milliseconds"), row["server"], by, row["target"], client, row["found"] or "",
        row["reason"] or "linked", f"{row['answer_ms']:,}", "" if row["first_ms"] is None else f"{row['first_ms']:,}",
    )  # fmt: skip
