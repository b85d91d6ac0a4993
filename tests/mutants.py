# SPDX-License-Identifier: Apache-2.0
"""Bugs to plant into a copy of the sources. A test that does not find its mutants proves nothing by finding nothing."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("ebpf", "cext", "tests/fuzz", "tests/interleave")


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `file`, `old` (which must stand there exactly once) becomes `new`; `target` must find it, saying `says`."""

    name: str
    target: str
    file: str
    old: str
    new: str
    says: str


def is_made_from(target: Path, changed: str) -> bool:
    """Whether the file `changed` of this checkout is in the object `target`, beside which the compiler has left what it
    was made from (-MMD)."""
    made_from = target.with_suffix(".d").read_text().split()
    return str(ROOT / changed) in map(os.path.normpath, made_from)


def plant(mutant: Mutant, tree: Path) -> Path:
    """A copy of the sources below `tree`, with the bug in it; its root."""
    built = shutil.ignore_patterns("*.o", "*.so", "_engine.c", "__pycache__")
    for part in PARTS:
        shutil.copytree(ROOT / part, tree / part, ignore=built)
    file = tree / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise LookupError(f"{mutant.file}: what {mutant.name!r} would change is there {text.count(mutant.old)} times")
    file.write_text(text.replace(mutant.old, mutant.new))
    return tree
