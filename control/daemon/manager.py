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
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Final

from control.daemon.notify import notify

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
        self._unit = environment.pop("ROOST_UNIT", "")
        within_us, whose = (environment.pop(f"WATCHDOG_{name}", "") for name in ("USEC", "PID"))
        is_ours = whose in ("", str(os.getpid())) and within_us.isdecimal()
        self._within_s = int(within_us) / 1e6 if is_ours else 0.0

    def ready(self, status: str) -> None:
        """It serves. status: a sentence for `systemctl status`."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """It is to be told `ready` afterwards."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, within_s: float = 0) -> None:
        """It ends in good order. within_s: and may take longer than its unit says."""
        longer = [f"EXTEND_TIMEOUT_USEC={round(within_s * 1e6)}"] if within_s else []
        self._tell("STOPPING=1", "STATUS=freezing what can be frozen", *longer)

    def machine_stops(self) -> bool:
        """Whether the whole machine goes down, and not this service alone."""
        return _asked("is-system-running").strip() == "stopping" if self._path else False

    def restarts(self) -> bool:
        """Whether this service ends to be begun again, by a manager that keeps its connections meanwhile."""
        if not self._path or not self._unit:
            return False
        jobs = (line.split() for line in _asked("list-jobs", "--plain", "--no-legend", "--full").splitlines())
        return any(job[1:3] == [self._unit, "restart"] for job in jobs)

    def lives(self) -> None:
        """Give a sign of life."""
        if self._within_s:
            self._tell("WATCHDOG=1")

    @contextmanager
    def living(self) -> Iterator[None]:
        """Give signs of life by a thread of its own, for what may take long and does not serve."""
        ended = threading.Event()

        def run() -> None:
            while self._within_s and not ended.wait(self._within_s / A_PERIOD):
                self.lives()

        thread = threading.Thread(target=run, name="roost-living", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    async def run(self) -> None:
        """Give signs of life, for ever, or until the end where nobody waits for any."""
        while self._within_s:
            await asyncio.to_thread(self._alive)
            self.lives()
            await asyncio.sleep(self._within_s / A_PERIOD)

    def _tell(self, *lines: str) -> None:
        notify(self._path, *lines)


def _asked(*arguments: str) -> str:
    """What systemctl says; "": nothing."""
    try:
        return subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False,
                              timeout=ANSWER_S).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("why this service ends is not known: systemctl %s: %s", arguments[0], error)
        return ""
