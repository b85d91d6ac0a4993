# SPDX-License-Identifier: Apache-2.0
"""Lists and times for people."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from control.cli.escaping import STAYS, terminal
from control.core.text import escaped, span

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDE: Final = 100_000
"""Columns of what is no terminal: what reads it there cuts it where it likes."""


def console(markup: bool = False) -> Console:
    """Where to print: as wide as the terminal, and without end in a pipe or a file. Colours are those of styles and
    markup, and text is escaped."""
    from rich.console import Console

    class Escaped(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(escaped(text, STAYS), **how)

    width = None if sys.stdout.isatty() else WIDE
    return Escaped(highlight=False, markup=markup, width=width, file=terminal(sys.stdout))


def show_table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> int:
    """Print rows under their titles; those in `right` have numbers below them. Returns how many rows there were."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left")
    for row in rows:
        table.add_row(*map(escaped, row))
    console().print(table)
    return table.row_count


def local_time(at_ms: float, to: str = "seconds") -> str:
    """Milliseconds since 1970 as a local time with its zone, RFC 3339: ``2023-11-15 03:58:20+05:45``. to: `seconds` or
    `milliseconds`."""
    return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(sep=" ", timespec=to)


def ends_text(row: Mapping[str, Any]) -> str:
    """What a row of history says of the connection's ends: the server, the error, how long the client was silent."""
    probes, silence_s = row.get("probes"), row.get("silence_s")
    unanswered = f"{probes} probe{'s' if probes != 1 else ''} unanswered" if probes else ""
    silent = f"silent for {span(silence_s)}" if silence_s else ""
    server = f"server {row['server']}" if row.get("server") else ""
    return ", ".join(filter(None, (server, row.get("error"), silent, unanswered)))
