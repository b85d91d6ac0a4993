# SPDX-License-Identifier: Apache-2.0
"""The fenced blocks of a document, and what it says that they print."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.mutants import ROOT


@dataclass(frozen=True)
class Block:
    """Of kind sh, python, toml, nft or text; tags: the words behind it; section: the title that it stands below."""

    kind: str
    tags: tuple[str, ...]
    text: str
    section: str


def blocks(name: str) -> list[Block]:
    """Of docs/NAME, in their order."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    found = []
    section = ""
    for title, kind, tags, block in re.findall(r"^## ([^\n]*)$|^```(\w+)((?: \w+)*)\n(.*?)^```$", text, re.M | re.S):
        section = title or section
        if kind:
            found.append(Block(kind, tuple(tags.split()), block, section))
    assert text.count("\n```") == 2 * len(found), "each block says what it is"
    return found


def promised(block: str) -> list[str]:
    """What a block says that it prints. A comment that ends with a colon says what comes next."""
    said = [line.removeprefix("# ") for line in block.splitlines() if line.startswith("# ")]
    return [line for line in said if not line.endswith(":")]


def missing(expected: list[str], printed: str) -> list[str]:
    """The first of the expected texts that is not there, after the ones before it, and all that follow."""
    at = 0
    for index, text in enumerate(expected):
        found = printed.find(text, at)
        if found < 0:
            return expected[index:]
        at = found + len(text)
    return []
