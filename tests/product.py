# SPDX-License-Identifier: Apache-2.0
"""Which files an installed Roost has in its library, and which a checkout alone has: of wheel, install.sh, package."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

from tests.mutants import ROOT

WANTED: Final = (
    "control/cli/main.py",
    "control/api/console/*",
    "spark/page/style.css",
    *(f"appliance/bpf/{path.stem}.o" for path in sorted(ROOT.glob("ebpf/*/*.bpf.c"))),
)
ENGINE: Final = "cext/_engine*.so"
NOT_WANTED: Final = (
    "appliance/lab/*", "appliance/peers/*", "control/dev/*", "spark/simulate*", "tests/*",
    "*_inner*.so", "*_simulator*.so",
)  # fmt: skip


def faults(files: Iterable[str], engine: bool = True) -> list[str]:
    """What is missing in a library of these files, and what is there and must not. engine: it has the compiled one."""
    there = list(files)
    wanted = (*WANTED, ENGINE) if engine else WANTED
    missing = [f"{each} is missing" for each in wanted if not any(fnmatchcase(one, each) for one in there)]
    return missing + [one for one in there if any(fnmatchcase(one, each) for each in NOT_WANTED)]
