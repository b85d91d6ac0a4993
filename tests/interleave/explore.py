# SPDX-License-Identifier: Apache-2.0
"""Build the model and explore its scenarios."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import ROOT, is_made_from

_GENERATED = ROOT / "build/generated"

_LOOP = "tests/interleave/loop.c"
# What runs in the scenarios' threads and looks at memory that they share, or that outlives the engine: each access of
# it is a point where threads may be switched, or the engine killed.
_EXPLORED = (
    "tests/interleave/product.c",
    "tests/interleave/product_guard.c",
    _LOOP,
    "cext/commands.c",
    *(f"cext/table/{name}.c" for name in ("endpoints", "filter", "table")),
    *(f"cext/conn/{name}.c" for name in ("candidates", "classes", "connection", "events", "find", "legs", "waiting")),
    *(f"cext/life/{name}.c" for name in ("ask", "attach", "births", "crowd", "freeze", "growth", "held", "insert")),
    *(f"cext/life/{name}.c" for name in ("limits", "next", "pressure", "recall", "received", "sweep", "thaw")),
)
# What the engine thread has to itself, and what is made of the rest of the machine.
_AROUND = (
    *(f"cext/base/{name}.c" for name in ("address", "hash", "mailbox", "wheel", "workers")),
    *(f"cext/socket/{name}.c" for name in ("segment", "spares")),
    *(f"cext/table/{name}.c" for name in ("connected", "hosts", "interned", "rules")),
    *(f"tests/interleave/{name}.c" for name in ("absent", "machine", "model", "scheduler")),
    "tests/fuzz/host/kernel.c",
)
# Without position-independent code an address in a schedule is one that addr2line knows. What is not called is left
# out, and with it what it would need. The maps of product.c and product_guard.c are the same ones (-fcommon).
_FLAGS = ("-std=gnu11", "-g", "-fcommon", "-fno-pie", "-ffunction-sections")
_WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-sign-compare", "-Werror")
_WRAPPED = (
    "memcpy",
    "memset",
    "memcmp",
    "bpf_map_lookup_elem",
    "roost_mailbox_post",
    "roost_mailbox_post_row",
)
_LINE = re.compile(r"(?P<name>.+): (?P<schedules>\d+) schedules, at most (?P<preemptions>\d+) preemptions")


@dataclass(frozen=True, slots=True)
class Explored:
    """A scenario and how many schedules of it there are, all of them run."""

    name: str
    schedules: int
    preemptions: int


class BrokenClaimError(AssertionError):
    """A schedule in which something does not hold: the claim, and the schedule with its places in the sources."""


def build(
    out: Path, root: Path = ROOT, changed: str | None = None, made: Path | None = None, *, in_order: bool = True
) -> Path:
    """Compile the model from the checkout at `root` into the directory `out`; the executable's path.

    in_order: for a processor that keeps loads in order; else the programs have more barriers, and loads are reordered.
    With `changed`, the one file there that differs from this checkout's, of which the directory `made` has the objects.
    """
    # Each run begins with a table of its own, of which unused classes would be most.
    header, all_classes = "ebpf/shared/class.h", "ROOST_CLASSES = 4096"
    text = (root / header).read_text()
    assert all_classes in text
    fewer = out / "class.h"
    fewer.write_text(text.replace(all_classes, "ROOST_CLASSES = ROOST_CLASS_SERVICES + 64"))
    objects = []
    warnings = _WARNINGS if root == ROOT else ("-w",)  # a planted bug may leave a variable unused
    for source in (*_EXPLORED, *_AROUND):
        name = f"{source.replace('/', '-')}.o"
        if changed and made and not is_made_from(made / name, changed):
            objects.append(str(made / name))
            continue
        target = str(out / name)
        how = ["-O1", "-fsanitize=thread"] if source in _EXPLORED else ["-O2"]
        how += ["-include", str(fewer), *(["-DROOST_LOADS_IN_ORDER"] if in_order else [])]
        if source.startswith("cext/") or source == _LOOP:
            # _GNU_SOURCE: in front of what heap.h includes.
            how += ["-D_GNU_SOURCE=", "-DROOST_ENGINE_HEAP", "-include", str(root / "tests/interleave/heap.h")]
        where = (f"-I{root / 'tests/fuzz/host'}", f"-I{root}", f"-I{_GENERATED}")
        command = ["clang", *_FLAGS, *warnings, *how, *where, "-MMD", "-c", str(root / source), "-o", target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{source} does not compile:\n{done.stderr}")
        objects.append(target)
    executable = out / "model"
    options = ["-no-pie", "-Wl,--gc-sections", *(f"-Wl,--wrap={name}" for name in _WRAPPED)]
    subprocess.run(["clang", *objects, *options, "-lm", "-o", str(executable)], check=True)
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
