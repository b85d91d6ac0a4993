# SPDX-License-Identifier: Apache-2.0
"""Finding awake and IDLE connections by their numbers, of which the engine has no index: it looks at each. One look is
for all requests that come before it begins, so that their count makes no difference."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from appliance.wire import Event, Sought
from control.core.errors import OperationError
from control.core.ports import EnginePort
from control.core.states import AWAKE, State

WANTED_MAX: Final = 1 << 16
"""Numbers that one look is for."""

REST: Final = 3
"""After a look there is none for so many times as long: the engine's thread stands still for parts of each."""

_STATES: Final = (*sorted(AWAKE), State.IDLE)


class Numbered:
    """`find` may be called from any thread; looks have a thread of their own."""

    def __init__(self, engine: EnginePort) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "roost-numbered")
        self._changing = threading.Lock()
        self._wanted = set[int]()
        self._look: Future[dict[int, Event]] | None = None
        """That which has not begun."""
        self._rested_s = 0.0
        """When the next may begin, by time.monotonic()."""
        self._over = threading.Event()

    def stop(self) -> None:
        """Waits for a look; none begins any more, and who waits for one is told that it is cancelled."""
        self._over.set()
        self._thread.shutdown(cancel_futures=True)

    def find(self, numbers: Collection[int]) -> Future[dict[int, Event]]:
        """By number, those of these that are awake or in IDLE, and maybe others. Several callers may get the same
        future, which is not to be cancelled. Raises OperationError, 429."""
        if not numbers:
            nothing = Future[dict[int, Event]]()
            nothing.set_result({})
            return nothing
        with self._changing:
            if len(self._wanted) + len(numbers) > WANTED_MAX:
                raise OperationError(429, "too many connections are being looked for by their numbers already; an "
                                          "address is found at once")  # fmt: skip
            self._wanted.update(numbers)
            if self._over.is_set():
                raise OperationError(503, "the daemon ends")
            self._look = self._look or self._thread.submit(self._find)
            return self._look

    def _find(self) -> dict[int, Event]:
        if self._over.wait(max(self._rested_s - time.monotonic(), 0)):
            raise OperationError(503, "the daemon ends")
        with self._changing:
            wanted, self._wanted, self._look = frozenset(self._wanted), set(), None
        found, began_s = dict[int, Event](), time.monotonic()
        try:
            for event in self._engine.list(Sought(states=_STATES, numbers=wanted)):
                found[event.number] = event
                if len(found) == len(wanted):
                    break
            return found
        finally:
            ended_s = time.monotonic()
            self._rested_s = ended_s + REST * (ended_s - began_s)
