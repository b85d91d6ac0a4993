# SPDX-License-Identifier: Apache-2.0
"""What runs short of this process and its machine: memory, by the limit of a cgroup or the machine's, descriptors, and
time in which tasks stall (PSI, https://docs.kernel.org/accounting/psi.html)."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path("/")


class _Hierarchy(NamedTuple):
    """Of cgroups: the controllers by which /proc/self/cgroup names it, where it may be mounted below /sys/fs/cgroup,
    and what its files are called."""

    controllers: str
    mounts: tuple[str, ...]
    limit: str
    used: str
    files: str


_HIERARCHIES: Final = (
    _Hierarchy("", ("", "unified"), "memory.max", "memory.current", "inactive_file"),
    _Hierarchy("memory", ("memory",), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Shares from 0 to 1; None: this kernel does not tell. memory: in use, without what the kernel would give up of
    files. descriptors: open. memory_stall, cpu_stall: of the last 10 s in which a task of our cgroup, or where that
    does not tell, of the machine, waited for it."""

    memory: float | None
    descriptors: float | None
    memory_stall: float | None
    cpu_stall: float | None


def read(root: Path = ROOT) -> Shortage:
    """What is so now; it takes some 0.2 ms. root: of the file system that is read."""
    proc = root / "proc"
    groups = list(_groups(root))
    total = _numbers(proc / "meminfo").get("MemTotal:", 0) * 1024
    shares = [_memory_of_machine(proc), *(_memory_of(group, hierarchy, total) for group, hierarchy in groups)]
    own = [group for group, hierarchy in groups if not hierarchy.controllers]
    return Shortage(
        memory=max((share for share in shares if share is not None), default=None),
        descriptors=_descriptors(proc),
        memory_stall=_stall(*(group / "memory.pressure" for group in own[:1]), proc / "pressure" / "memory"),
        cpu_stall=_stall(*(group / "cpu.pressure" for group in own[:1]), proc / "pressure" / "cpu"),
    )


def _groups(root: Path) -> Iterator[tuple[Path, _Hierarchy]]:
    """The directories of our cgroups, each before those that it lies in: the limits of all of them hold."""
    with suppress(OSError):
        lines = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
        paths = {name: line[2] for line in lines if len(line) == 3 for name in line[1].split(",")}
        for hierarchy in _HIERARCHIES:
            tops = [root / "sys/fs/cgroup" / mount for mount in hierarchy.mounts if hierarchy.controllers in paths]
            for top in tops:
                own = top / paths[hierarchy.controllers].lstrip("/")
                if (own / "cgroup.procs").exists():
                    yield from ((group, hierarchy) for group in (own, *own.parents) if group.is_relative_to(top))
                    break


def _memory_of(group: Path, hierarchy: _Hierarchy, total: int) -> float | None:
    """None: it has no limit, or one that is more than the machine has."""
    try:
        limit = int((group / hierarchy.limit).read_text())
        used = int((group / hierarchy.used).read_text())
    except (OSError, ValueError):  # "max"
        return None
    files = _numbers(group / "memory.stat").get(hierarchy.files, 0)
    return max(used - files, 0) / limit if 0 < limit < total else None


def _memory_of_machine(proc: Path) -> float | None:
    found = _numbers(proc / "meminfo")
    total, available = found.get("MemTotal:", 0), found.get("MemAvailable:")
    return 1 - available / total if total and available is not None else None


def _numbers(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    try:
        return {words[0]: int(words[1]) for words in map(str.split, path.read_text().splitlines()) if len(words) > 1}
    except (OSError, ValueError):
        return {}


def _descriptors(proc: Path) -> float | None:
    """Since Linux 6.2 the size of the directory is how many there are."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        count = os.stat(proc / "self" / "fd").st_size  # noqa: PTH116
    except OSError:
        return None
    return count / limit if count and limit > 0 else None


def _stall(*paths: Path) -> float | None:
    """Of the first that tells."""
    for path in paths:
        with suppress(OSError, ValueError, IndexError):
            return float(path.read_text().splitlines()[0].split()[1].removeprefix("avg10=")) / 100
    return None
