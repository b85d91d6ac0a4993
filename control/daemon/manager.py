# SPDX-License-Identifier: Apache-2.0
"""The service manager, as systemd is one (sd_notify(3)): it is told when the daemon serves and ends, and that it lives.

The daemon lives while its event loop goes round and the engine gives its lock away, which a turn of the engine thread
holds. Where one of them fails for WATCHDOG_USEC, the manager kills it and begins the next one: connections that are
asleep stay, and those that are awake end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, MutableMapping
from typing import Final

log = logging.getLogger("roost.daemon")

A_PERIOD: Final = 3
"""So many signs of life within the time after which there is none."""

ANSWER_S: Final = 10.0


class Manager:
    """alive: takes the engine's lock, and returns. environment: what the manager says in it is taken out, since it is
    not for the daemon's own processes."""

    def __init__(self, alive: Callable[[], object], environment: MutableMapping[str, str] = os.environ) -> None:
        self._alive = alive
        self._path = environment.pop("NOTIFY_SOCKET", "")
        within_us, whose = (environment.pop(f"WATCHDOG_{name}", "") for name in ("USEC", "PID"))
        is_ours = whose in ("", str(os.getpid())) and within_us.isdecimal()
        self._within_s = int(within_us) / 1e6 if is_ours else 0.0

    def ready(self, status: str) -> None:
        """It serves. status: a sentence for `systemctl status`."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """It is to be told `ready` afterwards."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """It ends in good order."""
        self._tell("STOPPING=1", "STATUS=freezing what can be frozen")

    def machine_stops(self) -> bool:
        """Whether the whole machine goes down, and not this service alone."""
        if not self._path:
            return False
        try:
            told = subprocess.run(["systemctl", "is-system-running"], capture_output=True, text=True, check=False,
                                  timeout=ANSWER_S)  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("whether the machine goes down is not known: %s", error)
            return False
        return told.stdout.strip() == "stopping"

    async def run(self) -> None:
        """Give signs of life, for ever, or until the end where nobody waits for any."""
        while self._within_s:
            await asyncio.to_thread(self._alive)
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._within_s / A_PERIOD)

    def _tell(self, *lines: str) -> None:
        if not self._path:
            return
        where = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
                told.setblocking(False)  # a manager that does not listen holds up nothing
                told.sendto("\n".join(lines).encode(), where)
        except OSError as error:
            log.warning("the service manager cannot be told %s: %s: %s", lines[0], self._path, error.strerror or error)
