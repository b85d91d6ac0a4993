# SPDX-License-Identifier: Apache-2.0
"""What a lab leaves outside its namespaces: a working directory and pins in bpffs. Both carry the owner's process id
and start time, so that the next lab can tell a dead owner's from a living one's and remove them.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

BPFFS: Final = Path("/sys/fs/bpf")
_NAME: Final = re.compile(r"roost-lab-(\d+)-(\d+)-\d+(?:-\d+)?")  # the last: a second daemon of one lab
_numbers = itertools.count(1)


def _start_time(pid: int) -> int | None:
    """Clock ticks after boot at which the process started; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the command name in brackets may hold anything
    return None if fields[0] in "ZX" else int(fields[19])


def owner(name: str) -> int | None:
    """The process whose lab has this name; None when it is gone, or when this is no lab's name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and _start_time(int(match[1])) == int(match[2]) else None


def new_name() -> str:
    """roost-lab-PID-START-NUMBER: unique among all labs of the machine."""
    pid = os.getpid()
    return f"roost-lab-{pid}-{_start_time(pid)}-{next(_numbers)}"


def workspace(name: str) -> Path:
    return Path(tempfile.gettempdir()) / name


def unpin(pin_dir: Path, later: bool = False) -> None:
    """Detach and remove what a lab's daemon pinned. Imported late: a lab needs no compiled engine until it has one.
    later: leave it if there is no way into its namespace, which sockets keep while they have something to send."""
    if pin_dir.exists():
        from appliance.engine import EngineError
        from appliance.engine import unpin as engine_unpin

        try:
            # In a thread, since it enters the namespace: names.take would end a process that lives there.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(engine_unpin, str(pin_dir)).result()
        except EngineError as problem:
            if not later or problem.number != errno.ENOENT:
                raise
        else:
            if pin_dir.exists():
                pin_dir.rmdir()


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time, of all on this machine; the kernel ends it with the process."""
    directory = os.open(BPFFS, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def reap() -> list[str]:
    """Remove what dead owners left, if it can be done yet; the names removed."""
    with _alone():
        remains = [
            entry
            for directory in (Path(tempfile.gettempdir()), BPFFS)
            for entry in directory.iterdir()
            if _NAME.fullmatch(entry.name) and owner(entry.name) is None
        ]
        for entry in remains:
            if entry.parent == BPFFS:
                unpin(entry, later=True)
            else:
                shutil.rmtree(entry, ignore_errors=True)
    return [entry.name for entry in remains if not entry.exists()]
