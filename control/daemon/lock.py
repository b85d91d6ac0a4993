# SPDX-License-Identifier: Apache-2.0
"""One daemon for each instance, and for each set of pins."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TextIO

from control.config import Config
from control.daemon.error import DaemonError


class InstanceLock:
    """Held by the daemon of an instance for as long as it lives. The kernel lets go of it with the process, so a lock
    file that was left behind means nothing."""

    def __init__(self, config: Config) -> None:
        path = Path(config.control_socket + ".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = path.open("a+", encoding="ascii")
        except OSError as error:
            hint = ". Run it as root: sudo ./roost up ..." if isinstance(error, PermissionError) else ""
            raise DaemonError(f"cannot make the lock {path}: {error.strerror}{hint}") from None
        self._pins = -1
        if not _lock(self._file.fileno()):
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise DaemonError(f'instance "{config.instance}" is running already (pid {holder}, lock {path})')
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()
        # The pins themselves too: another instance may have been given the same pin_dir. Without a bpffs there is no
        # such directory yet, and nothing to share; the engine says what is missing.
        with contextlib.suppress(OSError):
            os.makedirs(config.pin_dir, exist_ok=True)  # noqa: PTH103
            self._pins = os.open(config.pin_dir, os.O_RDONLY | os.O_DIRECTORY)
        if self._pins >= 0 and not _lock(self._pins):
            self.release()
            raise DaemonError(f"another daemon uses the pins in {config.pin_dir}; give this instance its own pin_dir")

    def release(self) -> None:
        if self._pins >= 0:
            os.close(self._pins)
            self._pins = -1
        self._file.close()


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
