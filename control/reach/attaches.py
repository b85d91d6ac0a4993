# SPDX-License-Identifier: Apache-2.0
"""The record of attaches: a row for each server that asked for a client, by the proxy or by a router's door.

A server that came by a door is the engine's alone, which tells what became of it (ROOST_EV_SERVED). One that came by
the proxy is answered here; when the client's first byte came the engine tells, by the token of the command that linked
the two. So the row waits for that: as long as the client says nothing, or until the link ends.
"""

from __future__ import annotations

import socket
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import errorcode
from itertools import accumulate
from typing import Any, Final, Protocol

from appliance.frontends.target import Target, target_text
from appliance.wire import Event, Key, endpoint_text
from control.core.states import State
from control.reach.attach_request import AttachRequest
from control.store.appended import Attach
from control.store.schema import KEY, address_text

WAITING: Final = 65_536
"""Rows that wait for a client's first byte; the oldest of more is written without."""

EARLY: Final = 1024
"""What the engine told before its command was known to be answered; of commands that are no server's, it stays until so
many others have come."""


BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
"""Up to how many seconds an answer took, in each place of its histogram."""


class Took:
    """How long it took, as a histogram."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_ms = 0

    def count(self, took_ms: int) -> None:
        self._counts[bisect_left(BOUNDS_S, took_ms / 1000)] += 1
        self._sum_ms += took_ms

    def status(self) -> dict[str, Any]:
        """buckets: how many took so many seconds at most."""
        bounds = (*map(str, BOUNDS_S), "+Inf")
        return {"buckets": dict(zip(bounds, accumulate(self._counts), strict=True)), "sum_s": self._sum_ms / 1000}


class Rows(Protocol):
    """The store, as far as it takes rows."""

    def append(self, row: Attach) -> None: ...


class Attaches:
    """`served` belongs to the dispatcher's thread; the others may be called from any. The store has a row before it is
    one of `waiting` no more: who looks there first and then in the store finds it."""

    def __init__(self, store: Rows) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[int, Attach] = {}
        self._early: dict[int, Event] = {}
        self._counting = threading.Lock()
        self._took: dict[str, Took] = defaultdict(Took)
        self._failed = Counter[str]()

    @contextmanager
    def asked(self, way: str, target: Target, request: AttachRequest) -> Iterator[None]:
        """For a `with` in which a server that came by the proxy is answered."""
        at, began = time.time_ns() // 1_000_000, time.monotonic()
        try:
            yield
        finally:
            took_ms = round((time.monotonic() - began) * 1000)
            row = Attach(
                at=at,
                way=way,
                server=_peer(request.sock),
                target=target_text(target),
                step=request.step,
                id=request.id,
                client=Key.unpack(request.key).client_text if request.key else "",
                service=request.service,
                found=State.NONE,
                error=request.error,
                answer_ms=took_ms,
                first_ms=took_ms if request.spoken else None,
            )
            self._answered(row, request.token)

    def _write(self, row: Attach) -> None:
        self._store.append(row)
        with self._counting:
            if row.error:
                self._failed[errorcode.get(row.error, str(row.error))] += 1
            else:
                self._took[State(row.found).label].count(row.answer_ms)

    def _answered(self, row: Attach, token: int) -> None:
        if row.error or not token:
            self._write(row)
            return
        with self._lock:
            if event := self._early.pop(token, None):
                self._write(_completed(row, event))
                return
            self._waiting[token] = row
            if len(self._waiting) > WAITING:
                self._write(self._waiting.pop(next(iter(self._waiting))))

    def served(self, event: Event) -> None:
        """An event of type SERVED."""
        if not event.token:
            self._write(_by_door(event))
            return
        with self._lock:
            row = self._waiting.pop(event.token, None)
            if row is None:
                self._early[event.token] = event
                if len(self._early) > EARLY:
                    del self._early[next(iter(self._early))]
            else:
                self._write(_completed(row, event))

    def waiting(self) -> list[Attach]:
        """Servers that are linked to clients which have said nothing since, in the order in which they were linked."""
        with self._lock:
            return list(self._waiting.values())

    def status(self) -> dict[str, Any]:
        """Since the start, of the rows that were written: how long servers waited for their answer, by the state in
        which their client was found, and how many were refused, by the error's name."""
        with self._counting:
            return {"took": {found: took.status() for found, took in self._took.items()}, "failed": dict(self._failed)}

    def close(self) -> None:
        """What waits for a first byte is written without: the daemon ends."""
        with self._lock:
            for row in self._waiting.values():
                self._write(row)
            self._waiting.clear()


def _completed(row: Attach, event: Event) -> Attach:
    served = event.served
    return row._replace(id=event.id, client=_client_of(event), service=served.service, found=event.from_state,
                        first_ms=served.first_ms)  # fmt: skip


def _by_door(event: Event) -> Attach:
    """By place, not by name: a router may have thousands a second."""
    server, port, service, first_ms = event.served
    target = _client_of(event)
    return Attach(
        event.at_ms, "address", address_text(server, port) if port else "", target, "", event.id,
        "" if event.error else target, service, event.from_state, event.error, event.count, first_ms,
    )  # fmt: skip


def _client_of(event: Event) -> str:
    address, _, port, _ = KEY.unpack(event.record.key_raw)
    return address_text(address, port)


def _peer(sock: socket.socket) -> str:
    with suppress(OSError, ValueError, IndexError):
        host, port = sock.getpeername()[:2]
        return endpoint_text((host, port))
    return ""  # it has gone
