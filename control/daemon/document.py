# SPDX-License-Identifier: Apache-2.0
"""The document of the API, made by a process beside the daemon when it is asked for the first time: nothing of what
makes it is in the daemon, nor takes the processor from it."""

from __future__ import annotations

import asyncio
import logging
from asyncio.subprocess import DEVNULL, PIPE
from typing import Final

from control.core.errors import OperationError
from control.daemon import beside

log = logging.getLogger("roost.daemon")

MADE_S: Final = 30.0


class Document:
    """What `roost api --openapi` prints. Within the event loop."""

    def __init__(self) -> None:
        self._made = b""
        self._making = asyncio.Lock()

    async def read(self) -> bytes:
        """JSON. Raises OperationError."""
        async with self._making:
            if not self._made:
                self._made = await _make()
        return self._made


async def _make() -> bytes:
    why = f"it took longer than {MADE_S:.0f} s"
    try:
        process = await beside.begin(*beside.roost("api"), "--openapi", stdin=DEVNULL, stdout=PIPE)
        try:
            async with asyncio.timeout(MADE_S):
                made, _ = await process.communicate()
            if process.returncode == 0:
                return made
            why = f"its process ended with status {process.returncode}"
        finally:
            await beside.kill(process)
    except TimeoutError:
        pass
    except OSError as error:
        why = f"its process could not be begun: {error.strerror}"
    log.error("the document of the API could not be made: %s", why)
    raise OperationError(503, f"the document of the API could not be made: {why}")
