# SPDX-License-Identifier: Apache-2.0
"""How many of the product's lines the tests run: a line for Python and one for C before pytest's own closing line.

Python's are counted by coverage.py while unit tests run that are about Python, in this process: a daemon of the lab is
not, and a test that calls C is slowed down for nothing. C's are counted by the sanitized engine
(tests/security/test_sanitized.py), which reports them as the property `lines` of its test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

from tests.mutants import ROOT

TREES: Final = tuple(str(ROOT / tree) for tree in ("appliance", "control"))

Lines = dict[str, dict[bool, int]]
"""Of each folder, how many lines have run (True), and how many have not."""


class LineCounter:
    """A plugin for pytest. Made before the product is imported, since an import runs lines, too."""

    def __init__(self) -> None:
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source=TREES)
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])  # by a test of the tests
        self._counted = 0
        self._coverage.start()

    def pytest_collection_finish(self) -> None:
        self._coverage.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        module = item.getparent(pytest.Module)
        if item.path.parent.name != "unit" or hasattr(module and module.obj, "lib"):
            return (yield)
        self._counted += 1
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if told is not None:  # a worker of pytest-xdist
            told["lines"] = self._coverage.get_data().dumps() if self._counted else b""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; one that crashed has told nothing."""
        if told := getattr(node, "workeroutput", {}).get("lines"):
            data = coverage.CoverageData(no_disk=True)
            data.loads(told)
            self._coverage.get_data().update(data)
            self._counted += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._counted:
            terminalreporter.write_line(said("Python, by unit tests", self._python()))
        for reports in terminalreporter.stats.values():
            for report in reports:
                for name, value in getattr(report, "user_properties", ()):
                    if name == "lines" and report.when == "call":
                        terminalreporter.write_line(said("C, by the sanitized engine", value))

    def _python(self) -> Lines:
        files = {}
        for tree in TREES:
            for path in Path(tree).rglob("*.py"):
                _, statements, _, missing, _ = self._coverage.analysis2(str(path))
                files[str(path.relative_to(ROOT))] = {True: len(statements) - len(missing), False: len(missing)}
        return by_folder(files)


def by_folder(files: Mapping[str, Mapping[bool, int]]) -> Lines:
    """The same of folders, in plain types, which a worker can tell."""
    folders: dict[str, Counter[bool]] = {}
    for name, lines in files.items():
        folders.setdefault(str(Path(name).parent), Counter()).update(lines)
    return {folder: {True: lines[True], False: lines[False]} for folder, lines in folders.items() if lines.total()}


def said(what: str, folders: Lines) -> str:
    """`coverage  C, by the sanitized engine: 71 % of 9100 lines; cext 80, cext/base 91`."""
    run, missed = (sum(lines[which] for lines in folders.values()) for which in (True, False))
    each = (
        f"{folder} {100 * lines[True] // (lines[True] + lines[False])}" for folder, lines in sorted(folders.items())
    )
    return f"coverage  {what}: {100 * run // (run + missed)} % of {run + missed} lines; {', '.join(each)}"
