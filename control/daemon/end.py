# SPDX-License-Identifier: Apache-2.0
"""The end of a daemon: what it waits for, and the freezing of what is awake then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from appliance.wire import Command, Op, Sought
from control.core.ports import BATCH, EnginePort
from control.core.states import AWAKE, Cause, State
from control.dispatch.dispatcher import Dispatcher
from control.store.store import Store

log = logging.getLogger("roost.daemon")

FREEZE_S: Final = 8.0
"""How long SIGTERM waits for connections with bytes in flight to become quiet enough to be frozen."""

STILL_MOVES_S: Final = 1
"""So long after its last byte a connection is left alone where there is time: half a request may have come, whose end
would begin another link when the client is awake again."""

MACHINE_S: Final = 60.0
"""How long the end of a machine waits for rows; the service manager kills what takes 90 s (roost.service)."""

DRAIN_S: Final = 600.0
"""How long all of it may take where another machine is to take over."""

GONE_S: Final = 10.0
"""The same where the other one has the address already, and waits for the lease: clients have no answers meanwhile."""

FROZEN_S: Final = 20.0
"""So long of it is for what is awake to be frozen, at a time, and a quarter of it at most."""

STILL_S: Final = 10.0
"""Without a new row for so long, there is none to come."""

PAGE: Final = 20_000
"""So many are asked for at a time."""


class End:
    """Comes by a signal, or by a defect without which the daemon is of no use: `reason` says which. `fail` may be
    called from any thread, the rest belongs to the event loop."""

    def __init__(self) -> None:
        self.reason = ""
        self.drains = False
        """All that this machine has is to be in the database, for another one to take over."""
        self.anew = False
        """The daemon is to begin again, and to stand by."""
        self._has_come = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Waiting for it happens in the running loop."""
        self._loop = asyncio.get_running_loop()

    def fail(self, reason: str) -> None:
        """End because of this, unless there is a reason already."""
        self.reason = self.reason or reason
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the end has begun already
                self._loop.call_soon_threadsafe(self._has_come.set)

    def come(self) -> None:
        """End in good order."""
        self._has_come.set()

    def drain(self, anew: bool = False) -> None:
        """End so that another machine can take over."""
        self.drains, self.anew = True, anew
        self.come()

    @property
    def has_come(self) -> bool:
        """From any thread."""
        return self._has_come.is_set()

    async def wait(self) -> None:
        """Until it comes."""
        await self._has_come.wait()


def freeze_all(engine: EnginePort, dispatcher: Dispatcher, end: End, services: Collection[int] | None = None,
               within_s: float = FREEZE_S) -> None:  # fmt: skip
    """Take every awake connection out of the kernel, as far as the time allows; close the others. services: of these
    alone."""

    def meant(quiet_s: int = 0) -> list[int]:
        awake = engine.list(Sought(states=tuple(AWAKE), quiet_s=quiet_s))
        return [event.id for event in awake if services is None or event.service in services]

    deadline = time.monotonic() + within_s
    left = 0
    while True:
        awake = meant()
        left = len(awake)
        if not left or time.monotonic() > deadline or end.reason:
            break
        if time.monotonic() < deadline - within_s / 4:
            awake = meant(STILL_MOVES_S)
        for start in range(0, len(awake), BATCH):
            engine.submit([Command(op=Op.IDLE, cause=Cause.SHUTDOWN, id=one) for one in awake[start : start + BATCH]])
        # Those with bytes in flight are refused and asked again; the pause also keeps freezes in large batches.
        pause = time.monotonic() + 0.5
        while (
            time.monotonic() < min(pause, deadline)
            and dispatcher.states[State.ACTIVE] + dispatcher.states[State.STANDBY] > 0
        ):
            time.sleep(0.02)
    if left:
        log.warning("%d connections could not be frozen and are closed", left)
        engine.submit([Command(op=Op.CLOSE, cause=Cause.SHUTDOWN, id=number) for number in awake])
        until = time.monotonic() + 1.0
        while time.monotonic() < until and meant():
            time.sleep(0.05)


def _write(engine: EnginePort, store: Store, dispatcher: Dispatcher, end: End, within_s: float,
           but: int = 0) -> int:  # fmt: skip
    """What is in IDLE gets a row, but for so many; how many have none."""

    def without_row() -> int:  # those that never spoke are the engine's to count
        return dispatcher.states[State.IDLE] + engine.stats()["born"]

    first = left = without_row()
    asked = 0
    now = moved = time.monotonic()
    deadline = now + within_s
    while left > but and now < min(deadline, moved + STILL_S) and not end.reason and not store.status.error:
        waited_for = max(asked - (first - left), 0)
        # The store's queues take a page, and would refuse all at once, and drop what the history has of them.
        if waited_for <= PAGE // 2 and store.status.pending_history <= PAGE:
            engine.submit([Command(op=Op.DESCEND, cause=Cause.SHUTDOWN, count=PAGE - waited_for)])
            asked += PAGE - waited_for
        time.sleep(0.02)
        now, before, left = time.monotonic(), left, without_row()
        if left < before:
            moved = now
    return left


def drain(engine: EnginePort, store: Store, dispatcher: Dispatcher, end: End, within_s: float,
          fall_silent: Callable[[], None]) -> int:  # fmt: skip
    """The tables are about to be gone: all that there is gets a row, what wakes meanwhile as well. How many have none.
    fall_silent: is called when most have theirs, and clients are not to be served any more."""
    deadline = time.monotonic() + within_s
    if not end.anew:  # else another machine has their addresses already
        _write(engine, store, dispatcher, end, within_s / 2, PAGE)
    fall_silent()
    left = 1
    while left and time.monotonic() < deadline and not end.reason and not store.status.error:
        freeze_all(engine, dispatcher, end, within_s=min(FROZEN_S, within_s / 4, deadline - time.monotonic()))
        if idle := _write(engine, store, dispatcher, end, deadline - time.monotonic()):
            log.warning("%d connections in IDLE have no row: the database takes none, or not so many in %d s", idle,
                        within_s)  # fmt: skip
        left = sum(dispatcher.states[state] for state in (*AWAKE, State.IDLE)) + engine.stats()["born"]
    return left
