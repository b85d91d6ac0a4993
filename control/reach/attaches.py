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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

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

    def _answered(self, row: Attach, token: int) -> None:
        if row.error or not token:
            self._store.append(row)
            return
        with self._lock:
            if event := self._early.pop(token, None):
                self._store.append(_completed(row, event))
                return
            self._waiting[token] = row
            if len(self._waiting) > WAITING:
                self._store.append(self._waiting.pop(next(iter(self._waiting))))

    def served(self, event: Event) -> None:
        """An event of type SERVED."""
        if not event.token:
            self._store.append(_by_door(event))
            return
        with self._lock:
            row = self._waiting.pop(event.token, None)
            if row is None:
                self._early[event.token] = event
                if len(self._early) > EARLY:
                    del self._early[next(iter(self._early))]
            else:
                self._store.append(_completed(row, event))

    def waiting(self) -> list[Attach]:
        """Servers that are linked to clients which have said nothing since, in the order in which they were linked."""
        with self._lock:
            return list(self._waiting.values())

    def close(self) -> None:
        """What waits for a first byte is written without: the daemon ends."""
        with self._lock:
            for row in self._waiting.values():
                self._store.append(row)
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
