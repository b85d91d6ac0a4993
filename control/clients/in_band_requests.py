# SPDX-License-Identifier: Apache-2.0
"""In-band requests (docs/in-band.md) that the engine cannot carry out itself: names of clients, and the status, which
tells the name.

An end that asks is not read until it is answered, so no more than two requests of a connection are ever under way. The
answer to `name` waits for the database, as that of `roost name` does; names that come together are written together.
"""

from __future__ import annotations

import logging
from errno import EINVAL, EIO
from queue import Empty, SimpleQueue

from appliance.wire import Command, Event, Op, Verb
from control.clients.registry import Registry, RegistryError, canonical
from control.core.ports import EnginePort

log = logging.getLogger("roost.in_band")


class InBandRequests:
    """`ask` is for the dispatcher (Dispatcher.handle); `run` needs a thread of its own."""

    def __init__(self, engine: EnginePort, registry: Registry, domain: str) -> None:
        self._engine = engine
        self._registry = registry
        self._domain = domain
        self._names: SimpleQueue[Event | None] = SimpleQueue()

    def ask(self, event: Event) -> None:
        """An event of type IN_BAND."""
        if event.op == Verb.NAME:
            self._names.put(event)
        else:
            self._engine.submit([_answer(event, 0, self._registry.name_at(event.record.key_raw) or "")])

    def run(self) -> None:
        """Give names until `stop`."""
        while (first := self._names.get()) is not None:
            events = [first]
            try:
                while (event := self._names.get_nowait()) is not None:
                    events.append(event)
                self._names.put(None)  # for the next turn
            except Empty:
                pass
            self._engine.submit(self.give(events))

    def stop(self) -> None:
        """Let `run` return once what was asked is answered."""
        self._names.put(None)

    def give(self, events: list[Event]) -> list[Command]:
        """Give the names that are asked for; the answers, once all are written."""
        errors = [self._give(event) for event in events]
        try:
            if 0 in errors:
                self._registry.commit()
        except RegistryError as error:
            log.warning("in band: %s", error)
            errors = [code or EIO for code in errors]
        return [_answer(event, error) for event, error in zip(events, errors, strict=True)]

    def _give(self, event: Event) -> int:
        client = event.record.key.client_text
        try:
            self._registry.give(canonical(event.name, self._domain), event.record.key_raw, event.id)
        except ValueError as error:
            log.info("in band: %s asks for a name that is none: %s", client, error)
            return EINVAL
        except RegistryError as error:
            log.warning("in band: %s gets no name: %s", client, error)
            return EIO
        return 0


def _answer(event: Event, error: int, name: str = "") -> Command:
    return Command(op=Op.ANSWER, id=event.id, count=event.count, error=error, preamble=name.encode("ascii"))
