# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md against the tree: each bad day names tests that exist."""

from __future__ import annotations

import re

from tests.mutants import ROOT

TEXT = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)


def test_each_test_that_is_named_is_there() -> None:
    assert len(NAMED) > 30
    for path, name in NAMED:
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_each_row_has_its_tests_and_each_of_those_has_a_row() -> None:
    rows = [row for row in TEXT.splitlines() if row.startswith("| **")]
    listed = [int(number) for number in re.findall(r"^(\d+)\. `", TEXT, re.M)]
    assert [int(number) for row in rows for number in re.findall(r"\[(\d+)\]\(#tests\)", row)] == listed
    assert listed == list(range(1, len(rows) + 1))
