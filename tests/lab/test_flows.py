# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/flows.md, run as they stand there, print what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from appliance.lab.processes import ROOT
from tests.lab.standing_lab import StandingLab


def blocks() -> dict[str, str]:
    """The shell commands of each section that has some, by its title."""
    found = {}
    for section in re.split(r"^## ", (ROOT / "docs" / "flows.md").read_text(), flags=re.M)[1:]:
        title = section.splitlines()[0]
        for block in re.findall(r"^```sh\n(.*?)^```$", section, flags=re.M | re.S):
            assert title not in found, f"{title}: one block of commands a section"
            found[title] = block
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


@pytest.fixture
def lab() -> Iterator[StandingLab]:
    with StandingLab() as lab:
        yield lab


@pytest.mark.parametrize("title", blocks())
def test_the_commands_print_what_the_document_says(lab: StandingLab, title: str) -> None:
    block = blocks()[title]
    expected = promised(block)
    printed = lab.shell(block)
    assert missing(expected, printed) == [], printed
    assert lab.traces() == [], "the block ends with `roost lab down`"


def test_what_is_missing_is_found() -> None:
    assert missing(["a", "b"], "x a y b") == []
    assert missing(["b", "a"], "x a y b") == ["a"]
