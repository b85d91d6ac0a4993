# SPDX-License-Identifier: Apache-2.0
"""What a chunk of an export says of itself, in `_chunks`: what writes it (chunks.py) and what reads it (spark/)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class File:
    """Of a chunk; path: below the directory."""

    path: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows first..last of the table, as far as they are of the times that are exported. last_row: (seq, mark, at) of
    the last one that there was, to know the database by."""

    first: int
    last: int
    rows: int
    last_row: tuple[int, int, int]
    files: list[File]

    @property
    def name(self) -> str:
        return f"{self.first:018d}-{self.last:018d}"


CHUNK: Final = TypeAdapter(Chunk)
