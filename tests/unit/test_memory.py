# SPDX-License-Identifier: Apache-2.0
"""appliance/box/memory.py."""

from __future__ import annotations

from pathlib import Path

from appliance.box.memory import give_back

MB = 1 << 20


def resident() -> int:
    """Bytes."""
    words = Path("/proc/self/smaps_rollup").read_text().split()
    return int(words[words.index("Rss:") + 1]) * 1024


def test_what_lies_below_a_living_allocation_is_given_back() -> None:
    before = resident()
    blocks = [bytes(2000) for _ in range(32 * MB // 2000)]
    last = bytes(2000)
    del blocks
    assert resident() > before + 24 * MB, "the library keeps it"
    give_back()
    assert resident() < before + 8 * MB
    assert last
