# SPDX-License-Identifier: Apache-2.0
"""Where keys and tables stand in a TOML file, beside what tomllib reads in it."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.config.places import Location, line_and_column, places

KEYS = st.sampled_from(["a", "b-c", "1", "_", "é", "a.b", "", '"', "'", "=", "[x]", "#", "\\", "a b", "true"])
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        st.none(),
        lambda inner: (
            st.dictionaries(KEYS, inner, max_size=3)
            | st.lists(inner, max_size=3)
            | st.lists(st.dictionaries(KEYS, inner, max_size=3), min_size=1, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)
"""None: a value."""

VALUES = ("{}", "-{}", "{}.5", "{}e+2", "{}-05-27 07:32:00", "{}-05-27T07:32:00Z", "'{} [x] = # \"'",
          r'"{} \" = [ # \\"', '"""\n[{}]\na = 1 # \\"""\n""x""""', "'''\n[{}]\n'a' = ''\\''''",
          '"""{}"""', "'''\\\n{}\n'''")  # fmt: skip
"""With a number of four digits, which tells them apart."""

Path = tuple[str, ...]


class Writer:
    """Writes a tree as TOML, as it may be written."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self._number = itertools.count(1000)

    def _one_of(self, *ways: str) -> str:
        return self._data.draw(st.sampled_from(ways))

    def _space(self) -> str:
        return self._one_of("", " ", "\t")

    def _key(self, *path: str) -> str:
        def one(key: str) -> str:
            ways = [json.dumps(key, ensure_ascii=False)]
            ways += [key] if re.fullmatch("[A-Za-z0-9_-]+", key) else []
            return self._one_of(*ways, *([] if "'" in key else [f"'{key}'"]))

        return f"{self._space()}.{self._space()}".join(map(one, path))

    def _inline(self, value: Any) -> str:
        if value is None:
            return self._one_of(*VALUES).format(next(self._number))
        if isinstance(value, dict):
            pairs = (
                f"{self._key(key)}{self._space()}={self._space()}{self._inline(one)}" for key, one in value.items()
            )
            return f"{{{self._space()}{f',{self._space()}'.join(pairs)} }}"
        between = self._one_of(" ", "\n", " # [,]\n")
        return f"[{between}{f'{between},{between}'.join(map(self._inline, value))}{between}]"

    def table(self, tree: dict[str, Any], path: Path = ()) -> Iterator[str]:
        """Lines: pairs, and then the tables in it."""
        later: list[tuple[str, Any]] = []
        for key, value in tree.items():
            if isinstance(value, dict) and value and self._one_of("dotted", "") and not path:
                yield from self._dotted((key,), value)
            elif value and not isinstance(value, str) and self._one_of("header", "") and (
                    isinstance(value, dict) or all(isinstance(one, dict) for one in value)):  # fmt: skip
                later.append((key, value))
            else:
                yield f"{self._space()}{self._key(key)}{self._space()}={self._space()}{self._inline(value)}"
        for key, value in later:
            inner = (*path, key)
            several = isinstance(value, list)
            for one in value if several else [value]:
                header = f"{self._space()}{self._key(*inner)}{self._space()}"
                yield f"{self._space()}[[{header}]]" if several else f"[{header}] # {{"
                yield from self.table(one, inner)

    def _dotted(self, path: Path, tree: dict[str, Any]) -> Iterator[str]:
        for key, value in tree.items():
            if isinstance(value, dict) and value and self._one_of("dotted", ""):
                yield from self._dotted((*path, key), value)
            else:
                yield f"{self._key(*path, key)} = {self._inline(value)}"


def walk(value: Any, path: Location = ()) -> Iterator[tuple[Location, Any]]:
    """Everything in what tomllib has read."""
    if path:
        yield path, value
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from walk(one, (*path, key))


KEY = r"""("(?:\\.|[^"\\])*"|'[^']*'|[A-Za-z0-9_-]+)"""


@given(TREES, st.data())
def test_everything_that_tomllib_finds_is_found_where_it_stands(tree: dict[str, Any], data: st.DataObject) -> None:
    between, end = data.draw(st.sampled_from(["\n", "\n\n", " # x = [\n"])), data.draw(st.sampled_from(["\n", "\r\n"]))
    text = between.join(Writer(data).table(tree)).replace("\n", end)
    read, found = dict(walk(tomllib.loads(text))), places(text)
    assert set(found) == set(read), text
    for path, value in read.items():
        rest, key = text[found[path] :], path[-1]
        if rest[0] == "[" and isinstance(value, dict):
            name = re.findall(KEY, rest.split("\n")[0].rpartition("]")[0])[-1]
        elif isinstance(key, str):
            name = re.match(KEY, rest)[0]  # type: ignore[index]
        else:
            name = ""
        if isinstance(key, str):
            assert tomllib.loads(f"key = {name}")["key"] == key if name[0] in "\"'" else name == key, (path, text)
        if not isinstance(value, dict | list):
            number = re.search(r"\d{4}", str(value))
            assert number
            written = rest[len(name) :].lstrip(" \t=") if name else rest
            assert re.search(r"\d{4}", written)[0] == number[0], (path, text)  # type: ignore[index]


@pytest.mark.parametrize(
    ("location", "place"),
    [
        (("a",), (1, 1)),
        (("a", "b"), (1, 5)),
        (("many",), (2, 3)),
        (("many", 0), (2, 1)),
        (("many", 1), (5, 2)),
        (("many", 0, "inner"), (3, 1)),
        (("many", 0, "inner", "x"), (4, 3)),
        (("many", 1, "list"), (6, 1)),
        (("many", 1, "list", 0), (7, 2)),
        (("many", 1, "list", 1, "deep"), (8, 4)),
        (("above", "below"), (9, 1)),
        (("above",), (10, 1)),
    ],
)
def test_places_are_those_that_an_editor_jumps_to(location: Location, place: tuple[int, int]) -> None:
    text = ('a . "b" = 1\n[[many]]\n[many.inner]\n  x = "[[many]]"\n [[many]]\nlist = [ # 1,\n 7,\n { deep = 2 }]\n'
            "[above.below]\n[above]")  # fmt: skip
    assert line_and_column(text, places(text)[location]) == place
