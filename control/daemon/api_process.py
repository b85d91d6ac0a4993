# SPDX-License-Identifier: Apache-2.0
"""The API's process (control/api/), begun with the daemon, again where it ends, and ended with it."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from control.config import Api, Config
from control.core.access import DATABASE, LOG, SOCKET
from control.daemon import beside

log = logging.getLogger("roost.daemon")

LOOK_S: Final = 1.0
PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Before it is begun again; from the first on, once it has run for STEADY_S."""

STEADY_S: Final = 60.0


def group_of(api: Api) -> int:
    """Whose members may open the socket and read the database: the group of the user that the API's process runs as.
    0, root's, where there is no API, or no such user, which the process says itself."""
    if not api.listen:
        return 0
    try:
        return (pwd.getpwuid(int(api.user)) if api.user.isdecimal() else pwd.getpwnam(api.user)).pw_gid
    except (KeyError, OverflowError):
        return 0


class ApiProcess:
    """wanted: what the configuration says now. share: let the members of a group, no group where it is 0, have what the
    process needs. command: the program, and its arguments. environment: is added to the daemon's own. apart: another
    one begins it."""

    def __init__(self, wanted: Callable[[], Config], share: Sequence[Callable[[int], None]], command: Sequence[str],
                 environment: Mapping[str, str], apart: bool = False) -> None:  # fmt: skip
        self._wanted = wanted
        self._environment = environment
        self._share = share
        self._shared = 0
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._apart = apart
        self._failures = 0
        self._ended = 0

    @classmethod
    def of(cls, config_path: str, config: Config, wanted: Callable[[], Config],
           share: Sequence[Callable[[int], None]], apart: bool) -> ApiProcess:  # fmt: skip
        """With `roost api` of this daemon's file, its socket, database and log, whatever the file says by now."""
        environment = {SOCKET: config.control_socket, DATABASE: config.database_url,
                       LOG: config.log.model_dump_json()}  # fmt: skip
        return cls(wanted, share, (*beside.roost("api"), "-c", str(Path(config_path).absolute())), environment, apart)

    def status(self) -> dict[str, Any]:
        """Where it listens, its pid, None: it does not run, or is apart, and how often it has ended by itself."""
        process = self._process
        return {"listen": list(self._wanted().api.listen), "pid": process.pid if process else None,
                "ended": self._ended}  # fmt: skip

    async def run(self) -> None:
        """Keep it running, for ever."""
        while True:
            config = self._wanted()
            await asyncio.to_thread(self._share_with, config.api)
            if self._apart or not config.api.listen:
                await asyncio.sleep(LOOK_S)
                continue
            began = time.monotonic()
            why = await self._once(config)
            if not why:
                continue
            self._ended += 1
            self._failures = 0 if time.monotonic() - began >= STEADY_S else self._failures + 1
            pause = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
            log.error("the API's process %s; it is begun again in %g s", why, pause)
            await asyncio.sleep(pause)

    def _share_with(self, api: Api) -> None:
        group = group_of(api)
        if group == self._shared:
            return
        try:
            for share in self._share:
                share(group)
            self._shared = group
        except OSError as error:
            log.error("the API's process cannot be given access: %s: %s", error.filename, error.strerror)

    async def _once(self, config: Config) -> str:
        """Begin it, and wait for its end: how it ended; "": another configuration is wanted."""
        begun_for = await asyncio.to_thread(_what_counts, config)
        try:
            process = self._process = await beside.begin(*beside.GENTLY, *self._command, stdin=DEVNULL, stdout=DEVNULL,
                                                         env={**os.environ, **self._environment})  # fmt: skip
        except OSError as error:
            return f"could not be begun: {error.filename}: {error.strerror}"
        try:
            while process.returncode is None:
                if await asyncio.to_thread(_what_counts, self._wanted()) != begun_for:
                    process.terminate()
                    await self._wait(process, 5)
                    return ""
                await self._wait(process, LOOK_S)
        finally:
            self._process = None
            await beside.kill(process)
        return f"ended with status {process.returncode}"

    @staticmethod
    async def _wait(process: asyncio.subprocess.Process, most_s: float) -> None:
        try:
            async with asyncio.timeout(most_s):
                await process.wait()
        except TimeoutError:
            pass


def _what_counts(config: Config) -> tuple[object, ...]:
    """With its files: certificates are renewed."""
    return config.api, config.api.changed_at(), config.network.interfaces
