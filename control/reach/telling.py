# SPDX-License-Identifier: Apache-2.0
"""Clients that could not be dialled are told in band to stay connected (docs/in-band.md, `stay`), on connections of
services whose policy says that they understand it: when they connect or wake, or get the name by which they were
dialled. A client counts as told once the engine has written it; else it is told the next time."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final

from appliance.wire import Command, Event, Key, Op
from control.clients.registry import Registry, RegistryError
from control.config import Service
from control.core.logs import about
from control.core.ports import BATCH, DispatcherPort, EnginePort, Outcome
from control.core.states import AWAKE, State
from control.reach.dialled import Dialled

log = logging.getLogger("roost.reach")

TELL_S: Final = 10.0
WAITING: Final = 8 * BATCH
"""Clients that wait to be looked up; past it, the first is told the next time."""


class Telling:
    """May be called from any thread. services: by number, as the daemon keeps them. later: runs what may block, in
    another thread."""

    def __init__(self, engine: EnginePort, dispatcher: DispatcherPort, names: Registry, dialled: Dialled,
                 services: Mapping[int, Service], later: Callable[[Callable[[], None]], object]) -> None:  # fmt: skip
        self._engine = engine
        self._dispatcher = dispatcher
        self._names = names
        self._dialled = dialled
        self._services = services
        self._later = later
        self._lock = threading.Lock()
        self._awake: deque[Event] = deque(maxlen=WAITING)
        self._under_way: set[str] = set()

    def hear(self, transitions: Iterable[Event]) -> None:
        """A batch of transitions (TransitionsPort.listen)."""
        if not self._dialled.any_due or not any(service.in_band.stay for service in tuple(self._services.values())):
            return
        if awake := [event for event in transitions if event.to_state == State.ACTIVE and self._understands(event)]:
            self._awake.extend(awake)
            self._later(self._tell)

    def named(self, name: str) -> None:
        """A name was given (Registry.listen)."""
        if not self._dialled.due([name]):
            return
        try:
            named = self._names.find(name)
        except RegistryError:
            return  # it is told when it wakes, as one that is asleep
        event = self._engine.find(Key.unpack(named.key)) if named is not None else None
        if event is not None and event.to_state in AWAKE and self._understands(event):
            self._awake.append(event)
            self._tell()

    def _understands(self, event: Event) -> bool:
        service = self._services.get(event.service)
        return service is not None and service.in_band.stay

    def _tell(self) -> None:
        awake = {}
        with contextlib.suppress(IndexError):
            while event := self._awake.popleft():
                awake[event.id] = event.record.key
        try:
            due = self._dialled.due_among(awake)
        except RegistryError as error:
            log.warning("%d clients are not told to stay connected now: %s", len(awake), error)
            return
        for number, known_as in due.items():
            with self._lock:
                clients = [client for client in known_as if client not in self._under_way]
                self._under_way.update(clients)
            if clients:
                told = self._dispatcher.command(Command(op=Op.TELL, id=number, key=awake[number]), [], TELL_S)
                told.add_done_callback(partial(self._told, clients, number))

    def _told(self, clients: list[str], number: int, future: Future[Outcome]) -> None:
        error = future.result().error
        names = ", ".join(clients)
        if error:
            log.info("%s cannot be told to stay connected now: %s", names, os.strerror(error),
                     extra=about(connection=number))  # fmt: skip
        else:
            self._dialled.told(clients)
            log.info("%s was told to stay connected", names, extra=about(connection=number))
        with self._lock:
            self._under_way.difference_update(clients)
