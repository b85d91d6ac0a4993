# SPDX-License-Identifier: Apache-2.0
"""docs/contributing.md against the tree: it names the ten longest files, and rooms that exist."""

from __future__ import annotations

import re

from tests.mutants import ROOT

TEXT = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
TREES = ("appliance", "cext", "control", "ebpf", "examples", "spark")
GENERATED = ("cext/_engine.c", "appliance/lab/simulator/_simulator.c")


def section(title: str) -> str:
    return TEXT.split(f"## {title}")[1].split("\n## ")[0]


def test_the_ten_longest_files_are_named_with_their_job() -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for tree in TREES
        for suffix in ("py", "c", "h")
        for path in (ROOT / tree).rglob(f"*.{suffix}")
    }
    written = {name: count for name, count in lines.items() if name not in GENERATED}
    named = re.findall(r"^\| `([^`]+)` \| .+ \|$", section("The ten longest files"), re.M)
    assert len(set(named)) == 10
    # of files that are equally long, any may be the tenth
    assert sorted(written[name] for name in named) == sorted(written.values())[-10:]


def test_ten_changes_name_five_rooms_at_most_and_each_is_there() -> None:
    rows = re.findall(r"^\| (\w[^|]*) \| (`[^|]*) \|$", section("Ten changes"), re.M)
    assert len(rows) == 10
    for change, text in rows:
        rooms = re.findall(r"`([^`]+)`", text)
        assert 1 <= len(rooms) <= 5, change
        assert all((ROOT / room).exists() for room in rooms), change
