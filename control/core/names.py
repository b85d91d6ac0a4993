# SPDX-License-Identifier: Apache-2.0
"""What names of clients and their tags are made of, and patterns of names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Final

NAME_LENGTH: Final = 63
STARS_MAX: Final = 4
"""In a pattern: each one more makes it slower to compare."""

_NAME: Final = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{NAME_LENGTH - 1}}}")
_PATTERN: Final = re.compile(rf"[a-z0-9._*?-]{{1,{NAME_LENGTH}}}")


def is_name(text: str) -> bool:
    """Whether it is a client's name, or a tag of one, in the form in which they are kept."""
    return bool(_NAME.fullmatch(text))


def is_pattern(text: str) -> bool:
    """Whether it is a pattern of names: `*` stands for any text, `?` for one character."""
    return bool(_PATTERN.fullmatch(text)) and text.count("*") <= STARS_MAX


@lru_cache(maxsize=10_000)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.replace("[", "[[]")))  # which never goes back behind a `*` that is met


def is_like(name: str, pattern: str) -> bool:
    """Whether a name is as the pattern says."""
    return _expression(pattern).fullmatch(name) is not None


def may_be(name: str, patterns: Iterable[str]) -> bool:
    """Whether a configuration that lists these patterns means the name, which is lower case."""
    return any(fnmatchcase(name, pattern.lower()) for pattern in patterns)


def literals(pattern: str) -> int:
    """How many characters of a pattern stand for themselves."""
    return len(pattern) - pattern.count("*") - pattern.count("?")


@lru_cache(maxsize=10_000)
def _places(pattern: str) -> dict[str, int]:
    """By each character that stands in a pattern, bits: the places where it stands."""
    found: dict[str, int] = {}
    for place, one in enumerate(pattern):
        found[one] = found.get(one, 0) | 1 << place
    return found


@lru_cache(maxsize=100_000)
def may_both_be_like(one: str, other: str) -> bool:
    """Whether there is a text that is as both patterns say."""
    other = re.sub(r"\*+", "*", other)
    places, end = _places(other), 1 << len(other)
    stars, any_one = places.get("*", 0), places.get("?", 0)
    met = 1 | (stars & 1) << 1  # bits: of how much of the other a text may be that is as the first one up to here
    for letter in one:
        if letter == "*":
            met = -(met & -met) & (2 * end - 1)  # from the least one on
            continue
        fitting = end - 1 - stars if letter == "?" else places.get(letter, 0) | any_one
        met = met & stars | (met & fitting) << 1
        met |= (met & stars) << 1
        if not met:
            return False
    return bool(met & end)
