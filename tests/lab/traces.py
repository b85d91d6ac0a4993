# SPDX-License-Identifier: Apache-2.0
"""What a program that makes a lab may leave behind, and must not."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from appliance.paths import BPFFS

MARK = "ROOST_TEST_MARK"
"""A variable for the program's environment, to be recognised by in all that it starts."""


def leftovers_of(pid: int) -> list[str]:
    """Working directories and pins of a process's labs."""
    mine = re.compile(rf"roost-lab-{pid}-")
    places = (Path(tempfile.gettempdir()), BPFFS)
    return [str(entry) for place in places for entry in place.iterdir() if mine.match(entry.name)]


def started_by(mark: str) -> list[int]:
    """Processes with this MARK: the program's, and all that it started."""
    variable = f"{MARK}={mark}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if variable in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is shielded and so none of ours
    return found
