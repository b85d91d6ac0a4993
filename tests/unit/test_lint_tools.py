# SPDX-License-Identifier: Apache-2.0
"""`roost lint`: how its tools are run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from control.dev import lint
from control.dev.lint import Tool, run_tool
from tests.mutants import ROOT


def test_a_tool_of_ours_is_found_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the checkout, though ./roost has Python look nowhere else but there where PYTHONPATH says."""
    (tmp_path / "ours.py").write_text("print('found')\n")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    passed, output, _ = run_tool(Tool("ours", (sys.executable, "-m", "ours"), None), tmp_path)
    assert (passed, output) == (True, "found\n")


def test_every_script_of_the_machines_is_checked() -> None:
    scripts = {f"vagrant/{path.name}" for path in (ROOT / "vagrant").glob("*.sh")}
    assert scripts <= set(lint.SHELL_SCRIPTS)
