# SPDX-License-Identifier: Apache-2.0
"""What one batch of events adds up to: commands for the engine, rows for the store, transitions for listeners."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from appliance.wire import NO_ENDS, ROW, Command, Event, transitions
from control.core.ports import Outcome
from control.core.states import Cause, State
from control.store.schema import HISTORY

if ROW.format != HISTORY.format:
    raise ImportError("the engine's rows of history are not the store's: rebuild the extension")


class Transitions:
    """Those of one batch, in order. Packed ones are unpacked when a listener looks at them: few look at most."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[Event | bytes] = []

    def add(self, part: Event | bytes) -> None:
        """One, or some that are packed as ROW."""
        self._parts.append(part)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __iter__(self) -> Iterator[Event]:
        for part in self._parts:
            if isinstance(part, bytes):
                yield from transitions(part)
            else:
                yield part


@dataclass(slots=True)
class Turn:
    """One batch."""

    commands: list[Command] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    upserts: list[tuple[bytes, bytes]] = field(default_factory=list)
    deletes: list[tuple[bytes, int]] = field(default_factory=list)
    stale: list[tuple[bytes, int, int]] = field(default_factory=list)
    transitions: Transitions = field(default_factory=Transitions)
    candidates: list[bytes] = field(default_factory=list)
    """Keys of connections that may be asleep without a slot."""
    outcomes: list[tuple[int, Outcome, int | None]] = field(default_factory=list)
    """Arguments of Waiters.resolve. A waiter may queue a new row at once, and must find the old one's removal in the
    queue: after it, that removal would take the new row of the same connection away."""


@dataclass(slots=True)
class Counters:
    """Counted since the daemon's start."""

    transitions: int = 0
    illegal: int = 0
    refused: int = 0
    restored: int = 0
    lost_records: int = 0
    strangers: int = 0
    unanswered: int = 0
    """Connections in SLEEP, or that may be, whose row could not be read in READ_PATIENCE_S."""
    sleep_deferred: int = 0
    batches: int = 0


def history_row(number: int, key: bytes, service: int, source: State, target: State) -> bytes:
    """A packed row of history for a transition by `restore`, which the engine has not reported."""
    said = source, target, Cause.RESTORE, 0, 0, 0, NO_ENDS
    return HISTORY.pack(number, time.time_ns() // 1_000_000, key, service, *said)
