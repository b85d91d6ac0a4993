# SPDX-License-Identifier: Apache-2.0
"""Where the keys and tables of a TOML file stand, which tomllib does not tell."""

from __future__ import annotations

import re
import tomllib
from collections import deque
from typing import Final

Location = tuple[str | int, ...]
"""Keys, and indices of lists: ("service", 0, "listen")."""

_TOKEN: Final = re.compile(
    r"""(?P<skipped>[ \t\r]+|\#[^\n]*)
    |\"{3}(?:\\.|[^\\])*?\"{3}(?!\")|'{3}.*?'{3}(?!')
    |"(?:\\.|[^"\\])*"|'[^']*'
    |[^\s=,.\[\]{}\#"']+
    |.""",
    re.DOTALL | re.VERBOSE,
)
_ENDS: Final = frozenset({",", "]", "}", "\n"})
"""What stands behind a value."""


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Both from 1, in characters."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def places(text: str) -> dict[Location, int]:
    """The offset of each table, key and element of a list in `text`, which tomllib can read. A table has that of its
    header, and without one that of the first key that names it."""
    tokens = deque(token for token in _TOKEN.finditer(text) if token["skipped"] is None)
    found: dict[Location, int] = {}
    last: dict[Location, int] = {}  # of [[tables]]: the index of the one that is read

    def read_key(path: Location) -> Location:
        while True:
            token = tokens.popleft()
            key = tomllib.loads(f"key = {token[0]}")["key"] if token[0][0] in "\"'" else token[0]
            path = (*path, last[path], key) if path in last else (*path, key)
            found.setdefault(path, token.start())
            if tokens[0][0] != ".":
                return path
            tokens.popleft()

    def read_pair(path: Location) -> None:
        path = read_key(path)
        tokens.popleft()  # =
        read_value(path)

    def skip_to_next() -> str:
        while tokens[0][0] in (",", "\n"):
            tokens.popleft()
        return tokens[0][0]

    def read_value(path: Location) -> None:
        begun = tokens.popleft()[0]
        if begun == "{":
            while skip_to_next() != "}":
                read_pair(path)
            tokens.popleft()
        elif begun == "[":
            index = 0
            while skip_to_next() != "]":
                found[(*path, index)] = tokens[0].start()
                read_value((*path, index))
                index += 1
            tokens.popleft()
        else:  # a date has a space in it, a number a point
            while tokens and tokens[0][0] not in _ENDS:
                tokens.popleft()

    table: Location = ()
    while tokens:
        if tokens[0][0] == "\n":
            tokens.popleft()
        elif tokens[0][0] == "[":
            begun = tokens.popleft().start()
            if several := tokens[0][0] == "[":
                tokens.popleft()
            table = read_key(())
            if several:
                last[table] = last.get(table, -1) + 1
                table = (*table, last[table])
            found[table] = begun
            while tokens and tokens[0][0] != "\n":
                tokens.popleft()
        else:
            read_pair(table)
    return found
