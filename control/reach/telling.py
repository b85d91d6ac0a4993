# SPDX-License-Identifier: Apache-2.0
"""Clients that could not be dialled are told in band to stay connected (docs/in-band.md, `stay`), on connections of
services whose policy says that they understand it: when they connect or wake, or get the name by which they were
dialled. A client counts as told once the engine has written it; else it is told the next time."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Final

from appliance.wire import Command, Event, Key, Op
from control.clients.registry import Registry
from control.config import Service
from control.core.ports import DispatcherPort, EnginePort, Outcome
from control.core.states import AWAKE, State
from control.reach.dialled import Dialled

log = logging.getLogger("roost.reach")

TELL_S: Final = 10.0


class Telling:
    """May be called from any thread. services: by number, as the daemon keeps them."""

    def __init__(self, engine: EnginePort, dispatcher: DispatcherPort, names: Registry, dialled: Dialled,
                 services: Mapping[int, Service]) -> None:  # fmt: skip
        self._engine = engine
        self._dispatcher = dispatcher
        self._names = names
        self._dialled = dialled
        self._services = services
        self._lock = threading.Lock()
        self._under_way: set[str] = set()

    def hear(self, transitions: Iterable[Event]) -> None:
        """A batch of transitions (TransitionsPort.listen)."""
        if not any(service.in_band.stay for service in self._services.values()):
            return
        for event in transitions:
            if event.to_state == State.ACTIVE:
                self._tell(event)

    def named(self, name: str) -> None:
        """A name was given (Registry.listen)."""
        if not self._dialled.due([name]) or (named := self._names.find(name)) is None:
            return
        event = self._engine.find(Key.unpack(named.key))
        if event is not None and event.to_state in AWAKE:  # else it is told when it wakes
            self._tell(event)

    def _tell(self, event: Event) -> None:
        service = self._services.get(event.service)
        if service is None or not service.in_band.stay:
            return
        key = event.record.key_raw
        with self._lock:
            clients = [client for client in self._dialled.due_at(key) if client not in self._under_way]
            self._under_way.update(clients)
        if clients:
            told = self._dispatcher.command(Command(op=Op.TELL, id=event.id, key=key), [], TELL_S)
            told.add_done_callback(lambda future: self._told(clients, future))

    def _told(self, clients: list[str], future: Future[Outcome]) -> None:
        error = future.result().error
        names = ", ".join(clients)
        if error:
            log.info("%s cannot be told to stay connected now: %s", names, os.strerror(error))
        else:
            self._dialled.told(clients)
            log.info("%s was told to stay connected", names)
        with self._lock:
            self._under_way.difference_update(clients)
