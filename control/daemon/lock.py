# SPDX-License-Identifier: Apache-2.0
"""One daemon for each instance, and for each set of pins."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from appliance.engine import EngineError, make_pin_dir
from control.config import Config
from control.daemon.error import DaemonError


class InstanceLock:
    """Held by the daemon of an instance for as long as it lives. The kernel lets go of it with the process, so a lock
    file that was left behind means nothing. It goes with the lock, and so does a directory for pins without any."""

    def __init__(self, config: Config) -> None:
        self._path = Path(config.control_socket + ".lock")
        self._pin_dir = config.pin_dir
        self._file = self._pins = -1
        self._file, free = _take(self._open_file)
        if not free:
            holder = os.pread(self._file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            self._let_go()
            if _is_gone(holder):
                raise DaemonError(
                    f"another process holds the lock {self._path}: the daemon whose lock it was (pid {holder}) is "
                    "gone. Find it and end it: lslocks -o PID,COMMAND,PATH"
                )
            raise DaemonError(
                f'instance "{config.instance}" is running already (pid {holder}, lock {self._path}), or another one, '
                "with the same [paths] control_socket: stop it first, or give this instance a path of its own"
            )
        os.truncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        # The pins themselves too: another instance may have been given the same pin_dir.
        try:
            self._pins, free = _take(self._open_pins)
        except EngineError as error:
            self.release()
            raise DaemonError(str(error)) from None
        if not free:
            os.close(self._pins)
            self._pins = -1
            self.release()
            raise DaemonError(f"another daemon uses the pins in {config.pin_dir}; give this instance its own pin_dir")

    def _open_file(self) -> int:
        """Makes the directory that it stands in, too, but none above that: the path may be mistyped."""
        try:
            self._path.parent.mkdir(exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(fd, 0o600)  # an earlier version's could be read, and so be locked, by any user
            return fd
        except OSError as error:
            hint = ". Run it as root: sudo ./roost up ..." if isinstance(error, PermissionError) else ""
            if isinstance(error, FileNotFoundError):
                hint = f": make {self._path.parent.parent}, or mend [paths] control_socket"
            raise DaemonError(f"cannot make the lock {self._path}: {error.strerror}{hint}") from None

    def _open_pins(self) -> int:
        make_pin_dir(self._pin_dir)
        return os.open(self._pin_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def release(self) -> None:
        if self._pins >= 0:
            with contextlib.suppress(OSError):
                os.rmdir(self._pin_dir)  # noqa: PTH106
        self._path.unlink(missing_ok=True)
        self._let_go()

    def _let_go(self) -> None:
        for fd in (self._pins, self._file):
            if fd >= 0:
                os.close(fd)
        self._pins = self._file = -1


def _take(open_it: Callable[[], int]) -> tuple[int, bool]:
    """A descriptor, and whether it is locked now. One that lost its name before it was locked is no lock any more."""
    while True:
        fd = open_it()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return fd, False
        if os.fstat(fd).st_nlink:
            return fd, True
        os.close(fd)


def _is_gone(pid: str) -> bool:
    """Whether there is no such process; not, where that is no number."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except (PermissionError, ValueError):
        pass
    return False
