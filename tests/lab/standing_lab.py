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
        done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], env=self.environment, timeout=60,
                              cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def traces(self, holder: int | None = None) -> list[object]:
        """What is there of the lab: processes, names, the link, directories and pins."""
        found: list[object] = [*started_by(self.mark)]
        found += in_use(NAME)
        found += [link_of(NAME)] if link_of(NAME).is_symlink() else []
        return found + (leftovers_of(holder) if holder else [])
