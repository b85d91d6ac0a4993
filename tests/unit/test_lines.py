# SPDX-License-Identifier: Apache-2.0
"""What the tests say of the lines that they run (tests/lines.py)."""

from __future__ import annotations

import re
import subprocess
import sys

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


def counted(*arguments: str) -> tuple[int, int] | None:
    """Per cent of the lines of control/config and of control/dev."""
    argv = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    wanted = r"^coverage  Python, in the tests' processes: .* control/config (\d+), .*control/dev (\d+)"
    line = re.search(wanted, done.stdout, re.M)
    return (int(line[1]), int(line[2])) if line else None


def test_lines_of_python_are_counted_where_there_are_unit_tests() -> None:
    found = counted("-n", "1", "tests/unit/test_config.py")
    assert found, "a worker has told its lines"
    assert found[0] > 80 > 5 > found[1]
    assert counted("tests/lab/test_programs.py") is None
