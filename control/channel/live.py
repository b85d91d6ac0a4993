# SPDX-License-Identifier: Apache-2.0
"""Transitions as they happen, for one who listens at the local socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final, Protocol

from appliance.wire import Event
from control.core.ports import TransitionsPort

BOUND: Final = 20_000
"""Transitions that wait for a listener, beyond which they are dropped, and it is told how many."""

HEARTBEAT_S: Final = 5.0


class Shown(Protocol):
    """What a listener is told; `recent` blocks, and raises SQLAlchemyError, StoreError."""

    def recent(self, limit: int) -> list[dict[str, Any]]: ...

    def transition_event(self, event: Event) -> dict[str, Any]: ...


async def live(view: Shown, source: TransitionsPort, last: int) -> AsyncGenerator[bytes]:
    """Server-sent events of the last so many transitions in the first part, and then of each as it happens, once. The
    first part raises what `recent` raises."""
    loop = asyncio.get_running_loop()
    waiting: list[Event] = []
    dropped = 0
    ready = asyncio.Event()

    def take(batch: list[Event]) -> None:
        nonlocal dropped
        room = max(BOUND - len(waiting), 0)
        waiting.extend(batch[:room])
        dropped += max(len(batch) - room, 0)
        ready.set()

    def hear(transitions: Iterable[Event]) -> None:  # in the dispatcher's thread
        # RuntimeError: the loop is closed; the daemon is at its end and the listener is removed right after.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(take, list(transitions))

    end = source.listen(hear)  # before the past is read: what happens meanwhile may be in both
    try:
        past = await asyncio.to_thread(view.recent, last) if last else []
        told = {_mark(row) for row in past}
        yield b": roost transitions\n\n" + b"".join(_sse("transition", row) for row in past)
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):  # wait_for() loses a cancellation that comes with an event
                    await ready.wait()
            except TimeoutError:
                told.clear()
                yield b": still here\n\n"
                continue
            ready.clear()
            batch, waiting[:] = list(waiting), []
            rows = map(view.transition_event, batch)
            if new := [_sse("transition", row) for row in rows if not told or _mark(row) not in told]:
                yield b"".join(new)
            if dropped:
                yield _sse("dropped", {"count": dropped})
                dropped = 0
    finally:
        end()


def _mark(row: dict[str, Any]) -> tuple[Any, ...]:
    """By which a transition is known again."""
    return row["id"], row["at_ms"], row["client"], row["from"], row["to"]


def _sse(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
