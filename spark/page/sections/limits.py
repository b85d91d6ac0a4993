# SPDX-License-Identifier: Apache-2.0
"""What each source used of what can be limited, and whom limits would have refused: spark/jobs/limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from spark.page import text
from spark.page.section import Column, Kind, Row, Section, Tables, by_service, known, largest, shown, total

TABLES: Final = ("limits", "limits_tried", "sources")

TOLD: Final = 5
"""Of each kind, what findings are of."""

WHAT: Final = {
    "connections": "connections at once",
    "connects": "new connections in a second",
    "births": "connections accepted asleep in a second",
    "wakes": "wake-ups in a second",
    "attaches": "attaches in a second",
}
METHOD: Final = text.paragraphs("""
A source is an address (/32, /64) or a network (/24, /48) of a service; of attaches it is the server's. What it used is
counted by the second. Nothing in a record says who attacks: those that flap are known (see above), and all others are
taken for honest, above all networks of many clients behind one address. The limit that is named is twice the most that
a source used which does not flap, rounded up to 1, 2 or 5 times a power of ten.
""")
CAVEATS: Final = text.paragraphs("""
What a limit would have refused is what was asked for above it, second by second. Who is refused asks again, and a limit
may let pass a burst; so it is a measure and not what would have come. Values above 100 are rounded up to two digits.

One attacker who does not flap makes the limits that are named here too high: look at the sources that used the most.

A network is said to flap if an address does that is of it.
""")
_CELL: Final = (
    Column("service", "service", Kind.SERVICE), Column("prefix", "of each"), Column("what", "what is limited"),
)  # fmt: skip
_TABLES: Final = {
    "limits": ("Limits that all bear that do not flap", (
        *_CELL, Column("sources", "sources", Kind.COUNT), Column("p50", "half used", Kind.COUNT, "at most"),
        Column("p99", "99 % used", Kind.COUNT, "at most"), Column("most", "all used", Kind.COUNT, "at most"),
        Column("most_of", "the most"), Column("limit", "limit", Kind.COUNT), Column("flapping", "flap", Kind.COUNT),
        Column("flapping_over", "of these over it", Kind.COUNT),
        Column("asked_by_flapping", "they asked for", Kind.COUNT),
        Column("refused_of_flapping", "refused", Kind.COUNT),
    )),
    "sources": ("Sources that used the most", (
        *_CELL, Column("source", "source"), Column("most", "most", Kind.COUNT), Column("asked", "in all", Kind.COUNT),
        Column("flapping", "flaps"),
    )),
    "limits_tried": ("Limits that were tried", (
        *_CELL, Column("limit", "limit", Kind.COUNT), Column("over", "sources over it", Kind.COUNT, "that do not flap"),
        Column("refused", "refused", Kind.COUNT), Column("flapping_over", "sources over it", Kind.COUNT, "that flap"),
        Column("refused_of_flapping", "refused", Kind.COUNT),
    )),
}  # fmt: skip
_BY: Final = {"limits": "refused_of_flapping"}


def section(tables: Tables) -> Section:
    """Of the tables that are there."""
    rows = tables.get("limits", ())
    findings = [*_stopped(rows), *_not_stopped(rows), *_most(rows)]
    return Section(
        "limits", "What limits by source would have refused", findings or ["No source used anything that is limited."],
        tables=shown(tables, _TABLES, _BY), method=METHOD, caveats=CAVEATS,
    )  # fmt: skip


def _of(row: Row) -> str:
    return f"{WHAT.get(row['what'], text.clean(row['what']))} for each {text.clean(row['prefix'])}"


def _stopped(rows: Sequence[Row]) -> Iterator[str]:
    """Limits that those meet that flap, and no others."""
    for row in largest(rows, "refused_of_flapping")[:TOLD]:
        if refused := known(row, "refused_of_flapping"):
            yield (f"Of {text.of_service(row['service'])} a limit of {text.rough(known(row, 'limit') or 0)} {_of(row)} "
                   f"would have refused {text.rough(refused)} of {text.rough(known(row, 'asked_by_flapping') or 0)} "
                   "that flapping ones asked for, and nothing of others.")  # fmt: skip


def _not_stopped(rows: Sequence[Row]) -> Iterator[str]:
    """Services of which no limit stops those that flap."""
    services = [
        text.of_service(service) for service, its in by_service(rows).items()
        if total(its, "flapping") and not total(its, "refused_of_flapping")
    ]  # fmt: skip
    if services:
        more = f" and {len(services) - TOLD:,} more" if len(services) > TOLD else ""
        yield (f"Of {text.listed(services[:TOLD])}{more}, those that flap used no more at a time than others do: no "
               "limit that all others bear would have refused them anything.")  # fmt: skip


def _most(rows: Sequence[Row]) -> Iterator[str]:
    for prefix in ("address", "network"):
        held = [row for row in rows if (row["what"], row["prefix"]) == ("connections", prefix)]
        for row in largest(held, "most")[:1]:
            if most := known(row, "most"):
                yield (f"The most that one {prefix} held at once were {text.rough(most)} connections, of "
                       f"{text.of_service(row['service'])}: {text.clean(row['most_of'])}.")  # fmt: skip
