# SPDX-License-Identifier: Apache-2.0
"""Numbers and findings as people read them."""

from __future__ import annotations

from collections.abc import Mapping


def span(seconds: float) -> str:
    """A duration: 1.5 s, 3m 20s, 2d 4h."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    shown = [f"{number}{unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")) if number]
    return " ".join(shown[:2])


def sentence(found: Mapping[str, str]) -> str:
    """What an operator should look at (control/channel/attention.py): the object, what happened, and what to do."""
    return f"{found['object']}: {found['what'].removesuffix('.')}. {found['do'][0].upper()}{found['do'][1:]}."


def escaped(text: str, keep: str = "") -> str:
    """Nothing in it moves a terminal's cursor, turns what is beside it, or begins a line. keep: what stays."""
    if text.isprintable():
        return text
    kept = (one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)
    return "".join(kept)
