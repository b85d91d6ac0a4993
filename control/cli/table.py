# SPDX-License-Identifier: Apache-2.0
"""Lists for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table


def show_table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> int:
    """Print rows under their titles; those in `right` have numbers below them. Returns how many rows there were."""
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
    return table.row_count
