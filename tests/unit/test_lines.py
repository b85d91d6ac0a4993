# SPDX-License-Identifier: Apache-2.0
"""What the tests say of the lines that they run (tests/lines.py)."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.lines import by_folder, said
from tests.mutants import ROOT


def test_lines_are_added_up_by_folder() -> None:
    files = {
        "cext/engine.c": {True: 3, False: 1},
        "cext/base/wheel.c": {True: 5, False: 0},
        "cext/base/x.c": {False: 5},
    }
    folders = by_folder({**files, "cext/empty.c": {}})
    assert folders == {"cext": {True: 3, False: 1}, "cext/base": {True: 5, False: 5}}
    assert said("C", folders) == "coverage  C: 57 % of 14 lines; cext 75, cext/base 50"


@pytest.mark.parametrize(
    ("file", "counted"),
    [("test_config.py", True), ("test_wheel.py", False)],
    ids=["a test of Python", "a test of C"],
)
def test_lines_of_python_are_counted_where_a_test_is_about_python(file: str, counted: bool) -> None:
    argv = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/unit/{file}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    found = re.search(
        r"^coverage  Python, by unit tests: .* control/config (\d+), .*control/dev (\d+)", done.stdout, re.M
    )
    assert bool(found) == counted
    assert not found or int(found[1]) > 80 > 5 > int(found[2])
