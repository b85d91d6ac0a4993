# SPDX-License-Identifier: Apache-2.0
"""Awake connections on their way from a daemon that ends to the next one (cext/handover/)."""

from __future__ import annotations

import os
from typing import Any, Final

from appliance.engine.library import EngineError, ffi, lib

CONNECTION: Final = 1
LISTENER: Final = 2


class Bridge:
    """Awake connections and listening sockets that no engine has. `start`: a thread moves their bytes; `stop`, and an
    engine that takes them over, ends it. What is left at `close` ends."""

    def __init__(self) -> None:
        self.raw: Any = lib.roost_bridge_open()
        if not self.raw:
            raise MemoryError("no memory to hand connections over")

    def receive(self, fd: int) -> int:
        """Take all that waits in this socket; how many messages were of no use. Raises EngineError."""
        refused = ffi.new("uint32_t *")
        _checked(lib.roost_bridge_receive(self.raw, fd, refused), "cannot take over connections")
        return int(refused[0])

    def send(self, fd: int) -> None:
        """Put all of it into this socket. Raises EngineError, and what was not sent is still here."""
        _checked(lib.roost_bridge_send(self.raw, fd), "cannot hand over connections")

    def start(self) -> None:
        """Raises EngineError; then what is here waits for an engine, as it does after `stop`."""
        _checked(lib.roost_bridge_start(self.raw), "cannot relay connections between two daemons")

    def stop(self) -> None:
        """Moves no bytes from now on."""
        lib.roost_bridge_stop(self.raw)

    def count(self, kind: int = CONNECTION) -> int:
        """How many are here that no engine has."""
        return int(lib.roost_bridge_count(self.raw, kind))

    def close(self) -> None:
        """Ends what is here."""
        lib.roost_bridge_close(self.raw)
        self.raw = ffi.NULL


def _checked(result: int, failed: str) -> int:
    if result < 0:
        raise EngineError(f"{failed}: {os.strerror(-result)}", -result)
    return result
