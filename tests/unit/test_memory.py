# SPDX-License-Identifier: Apache-2.0
"""appliance/box/memory.py."""

from __future__ import annotations

import subprocess
import sys

from tests.mutants import ROOT

MB = 1 << 20

PROGRAM = """
from pathlib import Path
from appliance.box.memory import give_back

def resident() -> int:
    words = Path("/proc/self/smaps_rollup").read_text().split()
    return int(words[words.index("Rss:") + 1]) * 1024

print(resident())
blocks = [bytes(2000) for _ in range(16_000)]
last = bytes(2000)
del blocks
print(resident())
give_back()
print(resident(), bool(last))
"""


def test_what_lies_below_a_living_allocation_is_given_back() -> None:
    """In a process of its own: this one's heap may have room for all of it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    before, kept, left = (int(line.split()[0]) for line in done.stdout.splitlines())
    assert kept > before + 24 * MB, "the library keeps it"
    assert left < before + 8 * MB
