# SPDX-License-Identifier: Apache-2.0
"""A service manager for a daemon of the lab: what a restart needs of systemd (sd_notify(3), sd_listen_fds(3))."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

from appliance.lab.daemon import DaemonHandle

UNIT: Final = "roost.service"
SYSTEMCTL: Final = """#!/bin/sh
case "$1" in
list-jobs) [ -e {job} ] && echo "7 {unit} $(cat {job}) running" ;;
is-system-running) [ -e {down} ] && echo stopping || echo running ;;
esac
"""
AS_SYSTEMD: Final = 'exec 3<&"$0"; LISTEN_PID=$$ exec "$@"'
"""Puts the descriptor where it belongs, in the process that the daemon will be."""


class ServiceManager:
    """Of one daemon, which is not started yet. directory: for its socket, and a systemctl that says what it does."""

    def __init__(self, daemon: DaemonHandle, directory: Path) -> None:
        self.daemon = daemon
        self.told: list[str] = []
        """All that the daemon has told it, a line each."""
        self.kept: dict[str, int] = {}
        """Descriptors by name."""
        self._job = directory / "job"
        self._down = directory / "down"
        systemctl = directory / "systemctl"
        systemctl.write_text(SYSTEMCTL.format(job=self._job, unit=UNIT, down=self._down))
        systemctl.chmod(0o755)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(directory / "notify"))
        self._socket.setblocking(False)
        self._environment = {"NOTIFY_SOCKET": str(directory / "notify"), "ROOST_UNIT": UNIT,
                             "PATH": f"{directory}:{os.environ['PATH']}"}  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        for fd in self.kept.values():
            os.close(fd)
        self._socket.close()

    def hear(self) -> None:
        """Take what the daemon has told meanwhile."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, 64)
            except BlockingIOError:
                return
            lines = data.decode().splitlines()
            self.told += lines
            fields = dict(line.partition("=")[::2] for line in lines)
            name = fields.get("FDNAME", "")
            if "FDSTOREREMOVE" in fields and name in self.kept:
                os.close(self.kept.pop(name))
            for fd in fds:
                self.kept[name] = fd

    def start(self, timeout_s: float = 30.0, options: Sequence[str] = (), under: Sequence[str] = (),
              environment: Mapping[str, str] = MappingProxyType({})) -> None:  # fmt: skip
        """With all that is kept, at most one descriptor. options: of `roost up`. under, environment: as
        DaemonHandle.start has them."""
        self.hear()
        self._job.unlink(missing_ok=True)
        self._down.unlink(missing_ok=True)
        program, told = ("-m", "control.cli.main", "up", *options), {**self._environment, **environment}
        if not self.kept:
            self.daemon.start(timeout_s, program, under, told)
            return
        ((name, fd),) = self.kept.items()
        passed = {"LISTEN_FDS": "1", "LISTEN_FDNAMES": name}
        self.daemon.start(timeout_s, program, ["bash", "-c", AS_SYSTEMD, str(fd), *under], told | passed, [fd])

    def stop(self, job: str = "stop", goes_down: bool = False, timeout_s: float = 60.0) -> int:
        """The exit status. job: of the manager, as it tells who asks. goes_down: with the whole machine."""
        self._job.write_text(job)
        if goes_down:
            self._down.touch()
        status = self.daemon.terminate(timeout_s)
        self.hear()
        return status

    def restart(self) -> None:
        """End it, and begin the next one."""
        self.stop("restart")
        self.start()
