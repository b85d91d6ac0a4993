# SPDX-License-Identifier: Apache-2.0
"""`roost lint` fails on an import that runs up, across, or in a circle (the contracts of pyproject.toml)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from control.dev.floors import render
from control.dev.lint import Tool, run_tool, tools
from tests.mutants import ROOT

PLANTED = {
    "up": ("control/store/schema.py", "control.daemon.daemon", "control.store is not allowed to import control.daemon"),
    "up, in a function": (
        "control/core/states.py",
        "control.policy.decisions",
        "control.core is not allowed to import",
    ),
    "across": ("control/reach/linker.py", "control.channel.status", "control.reach is not allowed to import"),
    "out of appliance/": (
        "appliance/wire/record.py",
        "control.core.states",
        "appliance is not allowed to import control",
    ),
    "to the engine": (
        "control/cli/status.py",
        "appliance.engine",
        "control.cli is not allowed to import appliance.engine",
    ),
    "to the engine, by way of the daemon": ("control/cli/show.py", "control.daemon.limits", "control.cli.show"),
    "to the lab": ("control/daemon/limits.py", "appliance.lab.names", "is not allowed to import appliance.lab"),
    "in a circle": ("control/core/states.py", "control.core.ports", "control.core.states imports control.core.ports"),
    "in a circle with its package": ("control/config/values.py", "control.config", "imports control.config"),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("floors")
    for part in ("spark", "control", "appliance", "cext"):
        shutil.copytree(ROOT / part, made / part, ignore=shutil.ignore_patterns("*.so", "*.o", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", made)
    return made


def linter() -> Tool:
    (found,) = (tool for tool in tools(ROOT) if tool.name == "import-linter")
    return found


def test_the_house_keeps_its_contracts(tree: Path) -> None:
    passed, said, _ = run_tool(linter(), tree)
    assert passed, said


@pytest.mark.parametrize("kind", list(PLANTED))
def test_a_planted_arrow_is_found(tree: Path, kind: str) -> None:
    name, imported, words = PLANTED[kind]
    file = tree / name
    text = file.read_text(encoding="utf-8")
    file.write_text(f"{text}\n\ndef planted() -> None:\n    import {imported}\n", encoding="utf-8")
    try:
        passed, said, _ = run_tool(linter(), tree)
    finally:
        file.write_text(text, encoding="utf-8")
    assert not passed
    assert words in " ".join(said.split())


def test_a_new_package_must_get_its_floor(tree: Path) -> None:
    new = tree / "control" / "somewhere"
    new.mkdir()
    try:
        (new / "__init__.py").write_text("")
        passed, said, _ = run_tool(linter(), tree)
    finally:
        shutil.rmtree(new)
    assert not passed
    assert "somewhere" in said


def test_the_picture_in_the_docs_is_that_of_the_contracts() -> None:
    docs = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"```\n{render(ROOT)}```" in docs, "run: python -m control.dev.floors"
