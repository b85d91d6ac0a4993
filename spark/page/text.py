# SPDX-License-Identifier: Apache-2.0
"""Values in words for people. All of them are text, not HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

GAP: Final = "\u00a0"
"""Between a number and its unit, where no line ends."""
NONE: Final = "–"
"""In a cell: there is no value."""
LONGEST: Final = 100
"""Characters of a text from data."""

_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\ufffe\uffff]"
)
"""Characters that no XML has, that end lines, or that change the order of others."""

_UNITS: Final = ((1e9, "billion"), (1e6, "million"))
_SHORT: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_TIMES: Final = ((172_800.0, 86_400.0, "d"), (7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.9995, 1.0, "s"))
"""From so many seconds on, in units of so many."""


def clean(value: Any) -> str:
    """A value from data in one line that is no longer than LONGEST."""
    text = _HIDDEN.sub("\ufffd", str(value))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def word(value: Any) -> str:
    """Of any kind that has no form of its own."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else clean(value)


def service(name: str | None) -> str:
    return "(not known any more)" if name is None else clean(name) or "(no name)"


def of_service(name: str | None) -> str:
    """In a sentence: service meter."""
    return "services that are not known any more" if name is None else f"service {service(name)}"


def named(what: str, name: object) -> str:
    """In a sentence: network 10.1.0.0/16."""
    return f"an unknown {what}" if name is None else f"{what} {clean(name)}"


def number(value: float) -> str:
    """Three digits that mean something, all of them before the point: 1,234; 12.3; 0.123."""
    if not math.isfinite(value):
        return NONE
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def rough(value: float) -> str:
    """In a sentence: 1.2 million."""
    for limit, unit in _UNITS:
        if abs(value) >= limit:
            return f"{value / limit:.3g}{GAP}{unit}"
    return number(round(value) if abs(value) >= 10 else value)


def short(value: float) -> str:
    """At an axis: 12k."""
    for limit, unit in _SHORT:
        if abs(value) >= limit * (10 if unit == "k" else 1):
            return f"{value / limit:.4g}{unit}"
    return number(value)


def duration(seconds: float) -> str:
    """Two digits that mean something: 40 s, 5.2 h."""
    if not math.isfinite(seconds):
        return NONE
    for limit, unit, name in _TIMES:
        if abs(seconds) >= limit:
            value = seconds / unit
            return f"{value:,.0f}{GAP}{name}" if abs(value) >= 9.95 else f"{value:.2g}{GAP}{name}"
    return f"{seconds * 1000:.2g}{GAP}ms" if abs(seconds) < 0.0995 else f"{seconds * 1000:.0f}{GAP}ms"


def size(count: float) -> str:
    """Bytes: 1.2 MB."""
    for limit, unit in _BYTES:
        if abs(count) >= limit:
            return f"{count / limit:.3g}{GAP}{unit}"
    return f"{number(count)}{GAP}B"


def percent(share: float) -> str:
    """87 %; only none is 0 %, and only all are 100 %."""
    if not math.isfinite(share):
        return NONE
    value = share * 100
    if 0 < value < 0.1:
        return f"<{GAP}0.1{GAP}%"
    if 99.5 <= value < 100:
        return f">{GAP}99{GAP}%"
    return f"{value:.1f}{GAP}%" if 0 < value < 9.95 else f"{value:.0f}{GAP}%"


def of_ten(share: float) -> str:
    """How many of many, at the beginning of a sentence: '9 of 10'."""
    tenths = share * 10
    if share in (0, 0.5, 1):
        return {0: "none", 0.5: "half", 1: "all"}[share]
    return f"{tenths:.0f} of 10" if abs(tenths - round(tenths)) < 0.15 and 0.5 < tenths < 9.5 else percent(share)


def moment(when: datetime | str | None) -> str:
    """In UTC, to the minute; without a zone it is UTC."""
    if when is None:
        return NONE
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    utc = when.astimezone(UTC) if when.tzinfo else when
    return f"{utc:%Y-%m-%d %H:%M}"


def listed(items: Sequence[str], last: str = "and") -> str:
    """a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def paragraphs(text: str) -> tuple[str, ...]:
    """Those of a text of the source, each in one line; an empty line is between two."""
    return tuple(" ".join(one.split()) for one in text.split("\n\n"))


def plural(count: int, what: str) -> str:
    """1 row; 1,234 rows."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")
