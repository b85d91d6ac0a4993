# SPDX-License-Identifier: Apache-2.0
"""In-band requests (docs/in-band.md) that the engine cannot carry out itself: names of clients, and the status, which
tells the name.

An end that asks is not read until it is answered, so no more than two requests of a connection are ever under way. The
answer to `name` waits for the database, as that of `roost name` does; names that come together are written together.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from errno import EINVAL, EIO, EPERM
from queue import Empty, SimpleQueue
from typing import Final

from appliance.bounds import Rates, source_of
from appliance.wire import Command, Event, Key, Op, Verb, unpack_address
from control.clients.registry import FOR_EVER_MS, Gift, Named, Registry, RegistryError, canonical
from control.config import Service
from control.core.logs import about
from control.core.names import may_be
from control.core.ports import BATCH, EnginePort

log = logging.getLogger("roost.in_band")


FIRST_LOOK_S: Final = 60.0
LOOK_EVERY_S: Final = 3600.0
"""For names whose time is over."""

HOUR_S: Final = 3600.0

AGENTS_KEPT: Final = 65_536
"""Clients of agents that are away, of each token."""


class InBandRequests:
    """`ask` is for the dispatcher (Dispatcher.handle); `run` needs a thread of its own. spoken_for: the
    registry of the kind `agents`. services: by number, as the daemon keeps them. clock: s."""

    def __init__(self, engine: EnginePort, registry: Registry, spoken_for: Registry, services: Mapping[int, Service],
                 domain: str, clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._engine = engine
        self._registry = registry
        self._spoken_for = spoken_for
        self._services = services
        self._domain = domain
        self._clock = clock
        self._new_names: dict[tuple[str, int], Rates] = {}
        self._asked: SimpleQueue[Event | None] = SimpleQueue()

    def ask(self, event: Event) -> None:
        """An event of type IN_BAND."""
        self._asked.put(event)

    def run(self) -> None:
        """Answer until `stop`, and let names go whose time is over."""
        look_at = time.monotonic() + FIRST_LOOK_S
        while True:
            if time.monotonic() >= look_at:
                self._expire()
                look_at = time.monotonic() + LOOK_EVERY_S
            try:
                event = self._asked.get(timeout=max(look_at - time.monotonic(), 0))
            except Empty:
                continue
            if event is None:
                return
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
        """Give the names that are asked for, as far as they may be; the answers, once all are written."""
        errors = [0] * len(events)
        wanted: dict[int, str] = {}
        for i, event in enumerate(events):
            try:
                wanted[i] = canonical(event.name, self._domain)
            except ValueError as error:
                errors[i] = _refuse(event, EINVAL, str(error))
        gifts = []
        try:
            with self._registry.changing:
                owners = self._registry.find_all(list(wanted.values()))
                agents = self._spoken_for.find_all(list(wanted.values()))
                operators = owners.keys() - self._registry.given_in_band([*owners])
                places = self._engine.find_many([events[i].record.key_raw for i in wanted])
                for (i, name), place in zip(wanted.items(), places, strict=True):
                    event, service = events[i], self._services.get(place.service) if place is not None else None
                    if service is None:
                        errors[i] = _refuse(event, EPERM, "it has ended")
                    elif name in agents:
                        errors[i] = _refuse(event, EPERM, f'an agent speaks for "{name}": `roost agents`')
                    elif why := self._forbidden(name, event.record.key, service, owners.get(name), name in operators):
                        errors[i] = _refuse(event, EPERM, why)
                    else:
                        owners[name] = Named(event.record.key_raw, event.id, 0, connected=True)
                        kept_ms = None if name in operators else round(service.names_kept * 1000) or FOR_EVER_MS
                        gifts.append(Gift({name: 0}, event.record.key_raw, event.id, kept_ms))
                if gifts:
                    self._registry.give_all(gifts)
            if gifts:
                self._registry.commit()
        except RegistryError as error:
            log.warning("in band: %d clients get no name: %s", len(wanted), error)
            errors = [code or EIO for code in errors]
        return [_answer(event, error) for event, error in zip(events, errors, strict=True)]

    def _forbidden(self, name: str, key: Key, service: Service, owner: Named | None, operators: bool) -> str:
        """Why a client of the service may not give itself this name; empty: it may, and that is counted. owner: what
        the name stands for. One at the same source is taken for the same client. operators: an operator or the
        daemon gave the name."""
        if not may_be(name, service.names):
            return f'no pattern of `names` of [[service]] "{service.name}" is like "{name}"'
        source = _source(key)
        if owner is not None and _source(Key.unpack(owner.key)) == source:
            return ""
        if owner is not None and (owner.connected or operators) and not service.names_roam:
            whose = "that lives" if owner.connected else "that was given it by an operator, or dialled"
            return (f'"{name}" is the name of connection {owner.id}, at another address, {whose}; it moves by '
                    f'`roost name`, or with names_roam = true of [[service]] "{service.name}"')  # fmt: skip
        each = service.names_each
        rates = self._new_names.setdefault((service.name, each), Rates(each / HOUR_S, each, self._clock))
        if wait_s := rates.wait_s(source):
            return (f'{source} was given as many new names as [[service]] "{service.name}" has for a source '
                    f"(names_each = {each} an hour); again in {wait_s:.0f} s")  # fmt: skip
        rates.take(source)
        return ""

    def _expire(self) -> None:
        try:
            if gone := self._registry.expire(time.time_ns() // 1_000_000):
                log.info("%d names that were given in band are forgotten: their connections are closed", gone)
        except RegistryError as error:
            log.warning("names that were given in band are kept for another hour: %s", error)
        try:
            if gone := self._spoken_for.shed(AGENTS_KEPT):
                log.info("%d clients are forgotten: their agents are away, and spoke for %d later", gone, AGENTS_KEPT)
        except RegistryError as error:
            log.warning("clients of agents that are away are kept for another hour: %s", error)


def _source(key: Key) -> str:
    return source_of(unpack_address(key.client))


def _refuse(event: Event, error: int, why: str) -> int:
    log.info("in band: %s gets no name: %s", event.record.key.client_text, why,
             extra=about(connection=event.id, client=event.record.key))  # fmt: skip
    return error


def _answer(event: Event, error: int, name: str = "") -> Command:
    return Command(op=Op.ANSWER, id=event.id, count=event.count, error=error, preamble=name.encode("ascii"))
