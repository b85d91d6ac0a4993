# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/flows.md, run as they stand there, print what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.lab.documents import blocks, missing, promised
from tests.lab.standing_lab import StandingLab

BLOCKS: Final = {block.section: block.text for block in blocks("flows.md")}


@pytest.fixture
def lab() -> Iterator[StandingLab]:
    with StandingLab() as lab:
        yield lab


@pytest.mark.parametrize("title", BLOCKS)
def test_the_commands_print_what_the_document_says(lab: StandingLab, title: str) -> None:
    block = BLOCKS[title]
    expected = promised(block)
    printed = lab.shell(block)
    assert missing(expected, printed) == [], printed
    assert lab.traces() == [], "the block ends with `roost lab down`"


def test_a_section_has_one_block_at_most() -> None:
    assert len(BLOCKS) == len(blocks("flows.md"))


def test_what_is_missing_is_found() -> None:
    assert missing(["a", "b"], "x a y b") == []
    assert missing(["b", "a"], "x a y b") == ["a"]
