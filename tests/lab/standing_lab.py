# SPDX-License-Identifier: Apache-2.0
"""`roost lab`, as a person uses it, for a lab of the tests' own name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self

import pytest

from appliance.lab.names import in_use
from appliance.lab.processes import ROOT, python_environment
from appliance.lab.standing import link_of, take_down
from tests.lab.traces import MARK, leftovers_of, started_by

NAME = f"roost-test-{os.getpid()}"
ROOST = [sys.executable, "-m", "control.cli.main"]


class StandingLab:
    """At its end the lab is taken down."""

    def __init__(self) -> None:
        self.mark = str(time.monotonic_ns())
        config = str(link_of(NAME) / "roost.toml")
        self.environment = python_environment({MARK: self.mark, "ROOST_CONFIG": config})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        take_down(NAME)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*ROOST, "lab", *words, "--name", NAME], env=self.environment, capture_output=True,
                              text=True, timeout=60, check=False)  # fmt: skip

    def up(self, mode: str = "proxy") -> dict[str, Any]:
        done = self.run("up", "--mode", mode, "--json")
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def shell(self, script: str) -> str:
        """What a script prints; each of its commands must go well. It may name the lab `roost`, as people do."""
        script = re.sub(r"\broost lab (up|down)", rf"roost lab \1 --name {NAME}", script)
        script = re.sub(r"\broost-(wan\b|nat\b|box\b|lan\b|lab\b|\$)", rf"{NAME}-\1", script)
        script = script.replace("./roost ", f"{' '.join(ROOST)} ")  # without its set-up
        try:
            done = self._capture(["bash", "-e", "-o", "pipefail", "-c", script], 60)
        except subprocess.TimeoutExpired as late:
            asked = (("connections",), ("attaches",), ("events", "-n", "100"))
            shown = [self._capture([*ROOST, *words], 10) for words in asked]
            told = (late.stdout, late.stderr, *(one.stdout + one.stderr for one in shown))
            pytest.fail("\n".join([f"{script}\nafter 60 s:", *((part or b"").decode() for part in told)]))
        assert done.returncode == 0, f"{script}\n{done.stdout.decode()}{done.stderr.decode()}"
        return done.stdout.decode()

    def _capture(self, argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(argv, env=self.environment, timeout=timeout_s, cwd=ROOT, capture_output=True, check=False)

    def traces(self, holder: int | None = None) -> list[object]:
        """What is there of the lab: processes, names, the link, directories and pins."""
        found: list[object] = [*started_by(self.mark)]
        found += in_use(NAME)
        found += [link_of(NAME)] if link_of(NAME).is_symlink() else []
        return found + (leftovers_of(holder) if holder else [])
