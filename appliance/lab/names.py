# SPDX-License-Identifier: Apache-2.0
"""Names for a lab's namespaces, so that `ip netns exec` finds them; and a lab's end, also after its process was killed.

A name is a bind mount in /run/netns. It keeps its namespace alive after the lab's owner died, and so does every process
that were started inside.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from pyroute2 import netns

from appliance.lab.namespaces import Namespace

NETNS: Final = Path(netns.NETNS_RUN_DIR)
SPACES: Final = ("wan", "nat", "box", "lan")
_PATIENCE_S: Final = 2.0  # after SIGTERM


def names(prefix: str) -> dict[str, str]:
    """{"wan": "PREFIX-wan", ...}"""
    return {space: f"{prefix}-{space}" for space in SPACES}


def in_use(prefix: str) -> list[str]:
    """Those of the names that namespaces have already."""
    return [name for name in names(prefix).values() if (NETNS / name).exists()]


def give(space: Namespace, name: str) -> None:
    """Name a namespace."""
    with space.entered():
        netns.attach(name, threading.get_native_id())


def take(prefix: str) -> list[int]:
    """Take all names with this prefix away, and end the processes still inside; their ids."""
    present = [NETNS / name for name in in_use(prefix)]
    with ExitStack() as stack:
        # Two may take them away at once: as long as they are open here, no other namespace gets their numbers, whose
        # processes would be taken for theirs.
        kept = [_open(path, stack) for path in present]
        strangers = _end_inhabitants({_identity(fd) for fd in kept if fd is not None})
    for path in present:
        with suppress(FileNotFoundError):
            netns.remove(path.name)
    return strangers


def _open(path: Path, stack: ExitStack) -> int | None:
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        return fd
    return None


def _identity(namespace: Path | int) -> tuple[int, int]:
    found = os.stat(namespace)  # noqa: PTH116 (or a descriptor)
    return found.st_dev, found.st_ino


def inhabitants(spaces: set[tuple[int, int]]) -> list[int]:
    """Processes, but this one, that live in one of these namespaces (device and inode)."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with suppress(OSError):  # it ended while we looked
                if _identity(process / "ns" / "net") in spaces:
                    found.append(int(process.name))
    return found


def _end_inhabitants(spaces: set[tuple[int, int]]) -> list[int]:
    """SIGTERM, and SIGKILL for those that do not end."""
    spaces = spaces - {_identity(Path("/proc/self/ns/net"))}  # when a lab is ended from inside it
    ended: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_S
    while present := inhabitants(spaces):
        late = time.monotonic() > deadline
        for pid in present if late else set(present) - ended:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        ended.update(present)
        time.sleep(0.02)
    return sorted(ended)
