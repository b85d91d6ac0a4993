# SPDX-License-Identifier: Apache-2.0
"""Build the model and explore its scenarios."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import ROOT

# What runs in the scenarios' threads and shares memory: each access of it is a point where threads may be switched.
_EXPLORED = (
    "tests/interleave/product.c",
    "tests/interleave/product_guard.c",
    "cext/table/table.c",
    "cext/table/endpoints.c",
    "cext/table/filter.c",
)
_AROUND = (
    "cext/base/hash.c",
    "cext/table/interned.c",
    "tests/interleave/scheduler.c",
    "tests/interleave/model.c",
    "tests/fuzz/host/kernel.c",
)
# Without position-independent code an address in a schedule is one that addr2line knows.
_FLAGS = (
    "-std=gnu11",
    "-O1",
    "-g",
    "-fno-pie",
    "-fcommon",  # the maps of product.c and product_guard.c are the same ones
)
_WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare", "-Werror")
_WRAPPED = "-Wl,--wrap=memcpy,--wrap=memset,--wrap=memcmp"
_LINE = re.compile(r"(?P<name>.+): (?P<schedules>\d+) schedules, at most (?P<preemptions>\d+) preemptions")


@dataclass(frozen=True, slots=True)
class Explored:
    """A scenario and how many schedules of it there are, all of them run."""

    name: str
    schedules: int
    preemptions: int


class BrokenClaimError(AssertionError):
    """A schedule in which something does not hold: the claim, and the schedule with its places in the sources."""


def build(out: Path, root: Path = ROOT, *, in_order: bool = True) -> Path:
    """Compile the model from the checkout at `root` into the directory `out`; the executable's path.

    in_order: for a processor that keeps loads in order; else the programs have more barriers, and loads are reordered.
    """
    objects = []
    for source in (*_EXPLORED, *_AROUND):
        target = out / f"{Path(source).stem}.o"
        warnings = _WARNINGS if root == ROOT else ("-w",)  # a planted bug may leave a variable unused
        command = ["clang", *_FLAGS, *warnings, *(["-DROOST_LOADS_IN_ORDER"] if in_order else [])]
        command += [f"-I{root / 'tests/fuzz/host'}", f"-I{root}", "-c", str(root / source), "-o", str(target)]
        command += ["-fsanitize=thread"] if source in _EXPLORED else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{source} does not compile:\n{done.stderr}")
        objects.append(str(target))
    executable = out / "model"
    subprocess.run(["clang", "-no-pie", *objects, _WRAPPED, "-o", str(executable)], check=True)
    return executable


def _with_places(executable: Path, schedule: str) -> str:
    """The schedule with `file:line` in the place of each code address."""
    addresses = sorted(set(re.findall(r"@(0x[0-9a-f]+)", schedule)))
    if not addresses:
        return schedule
    # A return address: the access itself stands before it.
    asked = [hex(int(address, 16) - 1) for address in addresses]
    command = ["addr2line", "-s", "-e", str(executable), *asked]
    places = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    known = {address: place.partition(" (")[0] for address, place in zip(addresses, places, strict=True)}
    return re.sub(r"@(0x[0-9a-f]+)", lambda match: known[match[1]], schedule)


def explore(executable: Path, *scenarios: str, deeper: bool = False) -> list[Explored]:
    """Run every schedule of the scenarios, or of all there are. Raises BrokenClaimError for the first that fails."""
    command = [str(executable), *(["--deeper"] if deeper else []), *scenarios]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokenClaimError(_with_places(executable, done.stderr))
    lines = [match for match in map(_LINE.match, done.stdout.splitlines()) if match]
    return [Explored(line["name"], int(line["schedules"]), int(line["preemptions"])) for line in lines]


def scenarios(executable: Path) -> list[str]:
    """The names of all scenarios."""
    done = subprocess.run([str(executable), "--list"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
