# SPDX-License-Identifier: Apache-2.0
"""How many of the product's lines the tests run: a line for Python and one for C before pytest's own closing line.

Python's are counted by SlipCover while there are unit tests, in this process: a daemon of the lab is another one. It
takes its counting out of what has run; coverage.py, which traces all of it, made unit tests take half as long again.
C's are counted by the sanitized engine (tests/security/test_sanitized.py), which reports them as the property `lines`
of its test.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from slipcover.importer import FileMatcher, ImportManager
from slipcover.slipcover import Slipcover

from tests.mutants import ROOT

TREES: Final = [str(ROOT / tree) for tree in ("appliance", "control")]

Lines = dict[str, dict[bool, int]]
"""Of each folder, how many lines have run (True), and how many have not."""


class LineCounter:
    """A plugin for pytest. Made before the product is imported, since an import runs lines, too."""

    def __init__(self) -> None:
        self._counter = Slipcover()
        ImportManager(self._counter, FileMatcher(TREES)).__enter__()  # for as long as there is this process
        self._run = defaultdict[str, set[int]](set)
        self._counts = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._counts = any(item.path.parent.name == "unit" for item in session.items)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._add({name: lines["executed_lines"] for name, lines in self._files().items()})
        told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if told is not None:  # a worker of pytest-xdist
            told["lines"] = {name: sorted(lines) for name, lines in self._run.items()} if self._counts else {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; one that crashed has told nothing."""
        if told := getattr(node, "workeroutput", {}).get("lines"):
            self._counts = True
            self._add(told)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._counts:
            terminalreporter.write_line(said("Python, in the tests' processes", self._python()))
        for reports in terminalreporter.stats.values():
            for report in reports:
                for name, value in getattr(report, "user_properties", ()):
                    if name == "lines" and report.when == "call":
                        terminalreporter.write_line(said("C, by the sanitized engine", value))

    def _add(self, run: Mapping[str, list[int]]) -> None:
        for name, lines in run.items():
            self._run[name].update(lines)

    def _files(self) -> dict[str, dict[str, list[int]]]:
        files: dict[str, dict[str, list[int]]] = self._counter.get_coverage()["files"]
        return {os.path.relpath(name, ROOT): lines for name, lines in files.items()}

    def _python(self) -> Lines:
        self._counter.source = TREES  # those that were not imported, too
        files = {}
        for name, lines in self._files().items():
            every = {*lines["executed_lines"], *lines["missing_lines"]}
            run = every & self._run[name]
            files[name] = {True: len(run), False: len(every - run)}
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
