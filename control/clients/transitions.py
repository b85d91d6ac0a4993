# SPDX-License-Identifier: Apache-2.0
"""Transitions as people and programs read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from errno import errorcode
from typing import Any, Final

from control.core.states import Cause, State

_STATES: Final = [state.label for state in State]
_CAUSES: Final = [cause.label for cause in Cause]


def error_text(number: int | None) -> str | None:
    """The name of an errno; None: of none."""
    return errorcode.get(number, str(number)) if number else None


def transition(row: Mapping[str, Any], service_name: Callable[[int], str]) -> dict[str, Any]:
    """Of a row of history, by column. service_name: of a number."""
    return {
        "at_ms": row["at"],
        "id": row["id"],
        "client": row["client"],
        "service": service_name(row["service"]),
        "from": _STATES[row["from"]],
        "to": _STATES[row["to"]],
        "cause": _CAUSES[row["cause"]],
        "rx_bytes": row["rx_bytes"],
        "tx_bytes": row["tx_bytes"],
        "gap_ms": row["gap_ms"],
        "server": row["server"],
        "error": error_text(row["error"]),
        "probes": row["probes"],
        "silence_s": row["silence_s"],
        **({"successor": row["successor"]} if row.get("successor") else {}),
    }
