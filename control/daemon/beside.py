# SPDX-License-Identifier: Apache-2.0
"""Processes beside the daemon's own, for what takes a processor or speaks to the network. They are ended with it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import Any, Final

KILLED_S: Final = 1.0
_WITH_US: Final = ("setpriv", "--pdeathsig=KILL", "--")
"""The kernel ends it with the thread that started it, which is the daemon's first."""
GENTLY: Final = ("nice", "-n", "10")


def roost(command: str) -> tuple[str, ...]:
    """The program and the arguments that begin a command of `roost`."""
    return sys.executable, "-P", "-m", "control.cli.main", command


async def begin(*command: str, **pipes: Any) -> asyncio.subprocess.Process:
    """Start it. Raises OSError."""
    creation = asyncio.ensure_future(asyncio.create_subprocess_exec(*_WITH_US, *command, **pipes))
    try:
        return await asyncio.shield(creation)
    except asyncio.CancelledError:  # cancelled itself it would reap the process, which the loop does
        with suppress(OSError):
            await kill(await creation)
        raise


async def kill(process: asyncio.subprocess.Process) -> None:
    """End it now, if it has not ended."""
    if process.returncode is None:  # Process.kill() would reap it, too
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    # A disk that hangs holds it, and must not hold the daemon. wait_for() loses a cancellation that comes with the end.
    with suppress(TimeoutError):
        async with asyncio.timeout(KILLED_S):
            await process.wait()
