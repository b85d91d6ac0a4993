# SPDX-License-Identifier: Apache-2.0
"""Signals that an event loop is to act upon."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def on_signal(loop: asyncio.AbstractEventLoop, number: int, callback: Callable[..., object], *args: object) -> None:
    """Call it in the loop, that of the main thread, whenever the signal comes. loop.add_signal_handler loses one that
    comes while other threads have filled the pipe by which they wake the loop, as they do in a flood of connections."""

    def come(*_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback, *args)

    signal.signal(number, come)
