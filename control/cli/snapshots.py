# SPDX-License-Identifier: Apache-2.0
"""`roost snapshots`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import click

from control.cli.client import Client, daemon_options, json_option, print_json
from control.cli.table import local_time, show_table
from control.core.states import AWAKE, INACTIVE, State

_STATES: Final = tuple(state.label for state in (State.ACTIVE, State.STANDBY, State.IDLE, State.SLEEP))
_NUMBERS: Final = (*_STATES, "born", "woken", "closed", "probes")


@click.command("snapshots")
@click.option("-n", "--last", type=click.IntRange(0, 1440), default=1, show_default=True,
              help="Of how many moments, a minute apart.")  # fmt: skip
@daemon_options
@json_option
def command(last: int, daemon: Client, as_json: bool) -> None:
    """How many connections were in each state, and what happened since the snapshot before: by service, and by the
    rules that gave connections their policy. The daemon takes one each minute.

    With --json all that was counted, that of the appliance included (service null): docs/export.md says what.

    
    Examples:
      roost snapshots
      roost snapshots -n 60 --json | jq '.[] | select(.service == null) | .counts.keepalives_answered'
    """
    rows = daemon.get("/v1/snapshots", limit=last)
    if as_json:
        print_json(rows)
        return
    if not rows and last:
        click.echo("none yet: the daemon takes the first one a minute after its start")
        return
    show_table(("at", "service", "rules", *_NUMBERS), map(_shown, filter(_has_connections, rows)), right=_NUMBERS)


def _has_connections(row: Mapping[str, Any]) -> bool:
    return row["service"] is not None


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    counts = Counter(row["counts"])
    for name, count in row["counts"].items():
        match name.split():
            case [_, State.CLOSED.name, _]:
                counts["closed"] += count
            case [source, target, _] if State[source] in INACTIVE and State[target] in AWAKE:
                counts["woken"] += count
    numbers = (f"{counts[name]:,}" for name in _NUMBERS)
    return local_time(row["at_ms"]), row["service"], row["rules"] or "", *numbers
