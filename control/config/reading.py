# SPDX-License-Identifier: Apache-2.0
"""Reads the file. A wrong key or value is answered with the file, the key and what was probably meant."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from control.config.config import LISTS, SECTIONS, Config, Conflict, ConflictError
from control.config.places import Location, line_and_column, places
from control.config.reference import HEADINGS, TOP
from control.config.sections import Policy, Section, section_of

ALIKE: Final = 0.9
"""Keys of different sections that differ by a letter: each may be meant."""

_KINDS: Final = {
    "string_type": "must be text, in quotes",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
}
_NUMBERS: Final = re.compile(r"\d+")
_QUOTED: Final = re.compile(r'"[^"]*"')
_WORD: Final = re.compile(r"[a-z_]+")


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong, a sentence, and where; without a line: with the file as a whole."""

    file: str
    line: int | None
    column: int | None
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{f'{self.line}:{self.column}:' if self.line else ''} {self.sentence}"


Check = Callable[[Config], Iterable[Conflict]]
"""What is wrong with a configuration that can be read."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names file, line and key, one mistake a line."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


def parse(text: str, source: str = "configuration") -> Config:
    """The configuration in `text`; raises ConfigError, whose message begins with `source`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, _, where = str(error).removesuffix(")").partition(" (at ")
        line, column = map(int, _NUMBERS.findall(where)) if "line" in where else line_and_column(text, len(text))
        raise ConfigError([Mistake(source, line, column, f"not TOML: {message}")]) from None
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        conflicts = [each for detail in error.errors() for each in _told(detail, data)]
    raise ConfigError(_mistakes(conflicts, text, source))


def load(path: str | Path, *checks: Check) -> Config:
    """The configuration in the file at `path`; raises ConfigError, for what the checks find, too."""
    text = _text(path)
    config = parse(text, str(path))
    if conflicts := [conflict for check in checks for conflict in check(config)]:
        raise ConfigError(_mistakes(conflicts, text, str(path)))
    return config


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([Mistake(str(path), None, None, f"cannot read it: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode()
        where = line_and_column(before, len(before))
        raise ConfigError([Mistake(str(path), *where, f"not UTF-8: {error.reason}")]) from None


def _mistakes(conflicts: Iterable[Conflict], text: str, source: str) -> list[Mistake]:
    """In the order of their places."""
    found = places(text)
    mistakes = []
    for sentence, location in conflicts:
        place = _place(sentence, location, found)
        line, column = (None, None) if place is None else line_and_column(text, place)
        mistakes.append(Mistake(source, line, column, sentence))
    return sorted(mistakes, key=lambda each: (each.line or 0, each.column or 0))


def _place(sentence: str, location: Location, found: Mapping[Location, int]) -> int | None:
    """Of a table: where the key of it stands that the sentence names first. Else of the table or key itself, or of what
    it would stand in."""
    for word in _WORD.findall(_QUOTED.sub("", sentence)) if _is_table(location) else ():
        for key in ((*location, word), ("policy", word)):  # a service has the keys of [policy], too
            if key in found and (key[:-1] == location or location[0] == "service"):
                return found[key]
    inwards = (location[:length] for length in range(len(location), 0, -1))
    return next((found[each] for each in inwards if each in found), None)


def _where(location: tuple[int | str, ...], data: dict[str, Any]) -> str:
    if not location:
        return "at the top level"
    if location[0] in LISTS and len(location) > 1 and isinstance(location[1], int):
        name = data[str(location[0])][location[1]]
        name = name.get("name") if isinstance(name, dict) else None
        part = f"[service.{location[2]}] of " if location[2:3] in (("health",), ("in_band",), ("limits",)) else ""
        return part + (f'[[{location[0]}]] "{name}"' if name else f"[[{location[0]}]] number {location[1] + 1}")
    return f"[{location[0]}]"


def _told(detail: ErrorDetails, data: dict[str, Any]) -> Sequence[Conflict]:
    """Sentences for a person out of one pydantic error, and what each is about."""
    error, location = detail.get("ctx", {}).get("error"), detail["loc"]
    if isinstance(error, ConflictError):
        return error.found
    if isinstance(error, ValueError) and _is_table(location):
        return [(f"{_where(location, data)}: {error}", location)]
    return [(_explain(detail, data), location)]


def _explain(detail: ErrorDetails, data: dict[str, Any]) -> str:
    location = detail["loc"]
    message = problem(detail)
    if detail["type"] == "extra_forbidden":
        key = str(location[-1])
        return f"unknown key `{key}` {_in(location[:-1], data)}; {hint(key, _model_at(location[:-1]))}"
    if detail["type"] == "missing":
        return f"{_where(location[:-1], data)}: the key `{location[-1]}` is missing"
    names = [str(part) for part in location if isinstance(part, str)]
    key = names[-1] if len(names) > 1 or location[0] not in SECTIONS else str(location[0])
    given = detail.get("input")
    # A password or a token written in place of its hash does not belong in a log.
    secret = location[:2] == ("attach", "users") or (location[0] == "agent" and location[-1] == "token")
    told = isinstance(given, str | int | float) and str(given) not in message and not secret
    shown = f" (it is {given!r})" if told else ""
    return f"`{key}` {_in(location[:-1], data)}: {message}{shown}"


def problem(detail: ErrorDetails) -> str:
    """What is wrong with a value, in the words of the file."""
    location, given, context = detail["loc"], detail.get("input"), detail.get("ctx", {})
    match detail["type"]:
        case "tuple_type" if location[-1] in LISTS:
            return f"must be written as [[{location[-1]}]]"
        case "tuple_type":
            example = f": [{json.dumps(given, ensure_ascii=False)}]" if isinstance(given, str | int | float) else ""
            return f"must be a list, in brackets{example}"
        case "model_type" | "dict_type":
            return f"must be a table: [{'.'.join(part for part in location if isinstance(part, str))}]"
        case "too_short" | "too_long" as kind:
            least, most = context.get("min_length"), context.get("max_length")
            count = least if kind == "too_short" else most
            return f"must have at {'least' if kind == 'too_short' else 'most'} {count} item{'' if count == 1 else 's'}"
        case kind:
            return _KINDS.get(kind) or detail["msg"].removeprefix("Value error, ")


def hint(key: str, model: type[Section], but: Collection[str] = ()) -> str:
    """What was probably meant by a key that this section does not know. but: keys that it cannot have meant."""
    if key in model.moved:
        return f"it is {model.moved[key]}"
    names = [name for name in model.model_fields if name not in but]
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if not close:  # "qiet" is far from "active_quiet" as a whole, near to its last word
        words = {word: name for name in names for word in (name, *name.split("_"))}
        close = [words[word] for word in difflib.get_close_matches(key, list(words), n=1, cutoff=0.6)]
    if elsewhere := [place for place, other in HEADINGS.items() if key in other.model_fields]:
        belongs = f"belongs {'at' if elsewhere == [TOP] else 'in'} {' or '.join(elsewhere)}"
        if close and difflib.SequenceMatcher(None, key, close[0]).ratio() > ALIKE:
            return f"did you mean `{close[0]}`? (`{key}` {belongs})"
        return f"it {belongs}"
    known = sorted(names, key=lambda name: name in Policy.model_fields)  # a service's own come first
    return f"did you mean `{close[0]}`?" if close else f"known keys: {', '.join(known)}"


def _model_at(location: tuple[int | str, ...]) -> type[Section]:
    """The section that a place in the file belongs to."""
    model: type[Section] = Config
    for part in location:
        model = section_of(model, part) or model
    return model


def _is_table(location: Location) -> bool:
    if len(location) == 2 and location[0] in LISTS:
        return isinstance(location[1], int)
    return bool(location) and section_of(_model_at(location[:-1]), location[-1]) is not None


def _in(location: tuple[int | str, ...], data: dict[str, Any]) -> str:
    place = _where(location, data)
    return f"in {place}" if place[0] == "[" else place
