# SPDX-License-Identifier: Apache-2.0
"""What a report is about, and what was set aside or is not known: report.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark.page import text
from spark.page.section import Column, Kind, Section, Table

KINDS: Final = {
    "missing": "files that the export names, and that are not there",
    "unlisted": "files that the export does not name: one was cut off, or is at work",
    "changed": "files that were changed since they were exported, or are there in part",
    "unreadable": "lists or tables that are not as an export writes them",
    "version": "exports of a version that this Roost does not read",
    "impossible": "rows that tell of what cannot be, a transition that no connection can make for instance",
    "no time": "rows without a time, or of a clock that was not set",
    "no connection": "rows without a connection's number",
    "doubled": "rows that are there twice",
    "too many": "services and rules, those with the fewest probes, whose time-outs are not estimated",
}
UNKNOWN: Final = {
    "lost": "stays whose end is not in the record: rows between were dropped, or set aside",
    "clock": "stays that would end before they began: the clock was set back",
}
DROPPED: Final = "transitions that the daemon had no room for while its database could not be written"
METHOD: Final = text.paragraphs("""
What is not as it was exported, or cannot be, is set aside and counted; the report is made of the rest. A connection
that made no transition in the times of this report is in none of its tables.
""")


def period(told: Mapping[str, Any]) -> str:
    """From when to when, a line."""
    if told.get("from") is None or told.get("to") is None:
        return "There is no transition in the times of this report."
    return f"{text.moment(told['from'])} to {text.moment(told['to'])} UTC"


def about(told: Mapping[str, Any], problems: Sequence[str]) -> Section:
    """The first section. problems: sentences of who read the tables."""
    rows: int = told.get("rows", 0)
    if not rows:
        said = "The export has no transition in the times of this report, so that there is nothing to tell."
    else:
        said = f"This report is made of {text.plural(rows, 'transition')} between states: {period(told)}."
    return Section("about", "What this report is about", [said, _left_out(told), *problems])


def _left_out(told: Mapping[str, Any]) -> str:
    """In a sentence."""
    aside, unknown, dropped = _sum(told, "set_aside"), _sum(told, "unknown"), int(told.get("dropped", 0))
    parts = [
        f"{text.plural(aside, 'file or row').replace('file or rows', 'files or rows')} set aside" if aside else "",
        f"{text.plural(unknown, 'stay')} of unknown length" if unknown else "",
        f"{text.plural(dropped, 'transition')} never written, for want of room" if dropped else "",
    ]
    said = [part for part in parts if part]
    return (
        f"Not in it: {text.listed(said)}." if said else "Nothing was set aside, and no part of the record is missing."
    )


def _sum(told: Mapping[str, Any], key: str) -> int:
    return sum(told.get(key, {}).values())


def set_aside(told: Mapping[str, Any], problems: Sequence[str]) -> Section:
    """The last section. problems: likewise."""
    counts = {**told.get("set_aside", {}), **told.get("unknown", {})}
    rows = [{"kind": kind, "count": count, "meaning": {**KINDS, **UNKNOWN}.get(kind.rpartition(", ")[2], "")}
            for kind, count in counts.items()]  # fmt: skip
    if told.get("dropped"):
        rows.append({"kind": "dropped", "count": told["dropped"], "meaning": DROPPED})
    reasons = [{"kind": kind, "reason": reason} for kind, some in told.get("reasons", {}).items() for reason in some]
    tables = []
    if rows:
        columns = [Column("kind", "kind"), Column("count", "how many", Kind.COUNT), Column("meaning", "meaning")]
        tables.append(Table("How many, by kind", "report.json", columns, rows))
    if reasons:
        tables.append(Table("The first of each kind", "report.json",
                            [Column("kind", "kind"), Column("reason", "reason")], reasons, shown=60))  # fmt: skip
    return Section(
        "aside", "Set aside and not known", [_left_out(told), *problems], tables=tables, method=METHOD,
    )  # fmt: skip
