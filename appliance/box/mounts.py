# SPDX-License-Identifier: Apache-2.0
"""Which mount a path lies on, and whether it stays when this process ends: proc_pid_mountinfo(5).

``ip netns exec`` gives its program a mount namespace with a /sys of its own: a bpffs that is mounted there ends with
the program. A mount that process 1 has, too, does not. Inside of a container process 1 is the container's.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VOLATILE: Final = frozenset({"bpf", "ramfs", "tmpfs"})
"""Kinds of file systems that are in memory alone."""


@dataclass(frozen=True, slots=True)
class Mount:
    """device: ``major:minor`` of the file system. point: where it is mounted. kind: ``tmpfs``."""

    device: str
    point: str
    kind: str


def parse(mountinfo: str) -> list[Mount]:
    """The mounts in the text of /proc/PID/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        found.append(Mount(fields[2], point, after.split()[0]))
    return found


def mount_of(path: str | Path, mounts: list[Mount]) -> Mount:
    """The mount that a path lies on, whether or not it exists."""
    real = os.path.realpath(path)
    above = [one for one in mounts if one.point == "/" or real == one.point or real.startswith(one.point + "/")]
    return max(reversed(above), key=lambda one: len(one.point))  # of several at one point the last hides the others


def _read(process: str) -> list[Mount]:
    return parse(Path(f"/proc/{process}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def kind_of(path: str | Path) -> str:
    """The kind of the file system that a path lies on."""
    return mount_of(path, _read("self")).kind


def cgroup2() -> str | None:
    """Where the control groups of version 2 begin; None: they are not mounted."""
    return next((mount.point for mount in _read("self") if mount.kind == "cgroup2"), None)


def ends_with_this_process(path: str | Path) -> bool:
    """Whether the path lies in memory, in a file system that process 1 does not have. False where nobody may look at
    what that has."""
    mount = mount_of(path, _read("self"))
    if mount.kind not in VOLATILE:
        return False
    try:
        lasting = _read("1")
    except OSError:
        return False
    return bool(lasting) and mount.device not in {one.device for one in lasting}
