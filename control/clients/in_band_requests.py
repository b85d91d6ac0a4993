# SPDX-License-Identifier: Apache-2.0
"""In-band requests (docs/in-band.md) that the engine cannot carry out itself: names of clients, and the status, which
tells the name.

An end that asks is not read until it is answered, so no more than two requests of a connection are ever under way. The
answer to `name` waits for the database, as that of `roost name` does; names that come together are written together.
"""

from __future__ import annotations

import contextlib
import logging
from errno import EINVAL, EIO
from queue import Empty, SimpleQueue

from appliance.wire import Command, Event, Op, Verb
from control.clients.registry import Gift, Registry, RegistryError, canonical
from control.core.logs import about
from control.core.ports import BATCH, EnginePort

log = logging.getLogger("roost.in_band")


class InBandRequests:
    """`ask` is for the dispatcher (Dispatcher.handle); `run` needs a thread of its own."""

    def __init__(self, engine: EnginePort, registry: Registry, domain: str) -> None:
        self._engine = engine
        self._registry = registry
        self._domain = domain
        self._asked: SimpleQueue[Event | None] = SimpleQueue()

    def ask(self, event: Event) -> None:
        """An event of type IN_BAND."""
        self._asked.put(event)

    def run(self) -> None:
        """Answer until `stop`."""
        while (event := self._asked.get()) is not None:
            events = [event]
            with contextlib.suppress(Empty):
                while len(events) < BATCH and (event := self._asked.get_nowait()) is not None:
                    events.append(event)
            for verb, answer in ((Verb.STATUS, self.tell), (Verb.NAME, self.give)):  # this one waits for the commit
                if some := [one for one in events if one.op == verb]:
                    self._engine.submit(answer(some))
            if event is None:
                return

    def stop(self) -> None:
        """Let `run` return once what was asked is answered."""
        self._asked.put(None)

    def tell(self, events: list[Event]) -> list[Command]:
        """The names of connections whose status is asked for."""
        try:
            names = self._registry.names_of([event.id for event in events])
        except RegistryError as error:
            log.warning("in band: no status is told: %s", error)
            return [_answer(event, EIO) for event in events]
        return [_answer(event, 0, next(iter(names.get(event.id, ())), "")) for event in events]

    def give(self, events: list[Event]) -> list[Command]:
        """Give the names that are asked for; the answers, once all are written."""
        errors = [0] * len(events)
        gifts = []
        for i, event in enumerate(events):
            try:
                gifts.append(Gift({canonical(event.name, self._domain): 0}, event.record.key_raw, event.id))
            except ValueError as error:
                log.info("in band: %s asks for a name that is none: %s", event.record.key.client_text, error,
                         extra=about(connection=event.id, client=event.record.key))  # fmt: skip
                errors[i] = EINVAL
        try:
            if gifts:
                self._registry.give_all(gifts)
                self._registry.commit()
        except RegistryError as error:
            log.warning("in band: %d clients get no name: %s", len(gifts), error)
            errors = [code or EIO for code in errors]
        return [_answer(event, error) for event, error in zip(events, errors, strict=True)]


def _answer(event: Event, error: int, name: str = "") -> Command:
    return Command(op=Op.ANSWER, id=event.id, count=event.count, error=error, preamble=name.encode("ascii"))
