# SPDX-License-Identifier: Apache-2.0
"""Finding a connection: by its number, by ``client-address:port``, or by its name with the domain.

Where it is found depends on its state: awake and IDLE ones by the engine, the numbers of SLEEP ones by the store alone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from errno import ELOOP, ENOENT, ENOTCONN
from typing import Final

from appliance.frontends.target import Address, Name, Target, parse_address
from appliance.wire import Event, Key, pack_address
from control.clients.local_addresses import LocalAddresses
from control.clients.numbered import Numbered
from control.clients.registry import Named, Registry
from control.clients.scope import SCOPE, in_scope
from control.config import Service, parse_endpoint
from control.core.errors import OperationError
from control.core.ports import EnginePort
from control.core.states import State
from control.store.store import Store

TOLD: Final = 8
"""Of several connections of one client's port."""

LOOK_S: Final = 5.0
"""How long a thread waits until connections have been looked for by their numbers."""

WAITING: Final = 16
"""Threads that wait so at once: the event loop has 40 for all that may block."""

DIGITS: Final = 19
"""Of the largest number. Python reads some thousand at most, and fails then."""


@dataclass(frozen=True, slots=True)
class Located:
    """A connection that was found; id 0 when it is unknown (SLEEP without a database)."""

    id: int
    state: State
    event: Event

    @property
    def key(self) -> Key:
        return self.event.record.key


def _sleeping_ids(store: Store, events: Iterable[Event]) -> dict[bytes, int]:
    """key -> number of those that sleep. Without the database there are none: the table can still be shown, and the
    status says that the database is missing."""
    sought = {event.record.key_raw: event.reference for event in events}
    if not sought or store.status.error:
        return {}
    return store.sleeping_ids(sought)


def _looked(look: Future[dict[int, Event]]) -> dict[int, Event]:
    """What a look found, for a thread. Raises OperationError, 429, 503."""
    try:
        return look.result(LOOK_S)
    except TimeoutError:
        raise OperationError(429, f"connections are still being looked for by their numbers after {LOOK_S:g} s; an "
                                  "address is found at once") from None  # fmt: skip
    except CancelledError:
        raise OperationError(503, "the daemon ends") from None


def _number(name: str) -> int | None:
    """None: it is no number; 0: none that a connection can have."""
    if not name.isascii() or not name.isdigit():
        return None
    number = int(name) if len(name) <= DIGITS else 0
    return number if number < 2**63 else 0


class Locator:
    """services: by number, as the daemon keeps them. domain: of names. attach_at: where servers ask for clients.
    `wanted` is for servers, all others are for the operator; `locate` and `locate_many` may block for as long as engine
    and database take."""

    def __init__(self, engine: EnginePort, store: Store, names: Registry, services: Mapping[int, Service], domain: str,
                 attach_at: Iterable[str]) -> None:  # fmt: skip
        self._engine = engine
        self._store = store
        self._names = names
        self._services = services
        self._domain = domain
        self._attach_at = tuple(attach_at)
        self.addresses = LocalAddresses()
        self._numbered = Numbered(engine)
        self._room = threading.BoundedSemaphore(WAITING)

    # -- for servers --------------------------------------------------------------------------------------------------

    async def wanted(self, target: Target, meant: Located | None = None) -> list[Event]:
        """The connection that a server means, or those of which one may be (`candidate`), at least one; of a client
        that has the same port at several services, that of the first of the asker's services before the others.
        meant: the one connection that is meant, if any. Raises OSError: ENOENT, ENOTCONN, ELOOP or EIO, as
        appliance.frontends.handshake.ANSWERS explains them."""
        if meant is not None:
            event = self._engine.find(meant.key)
            if event is None or event.number not in (0, meant.id):
                raise OSError(ENOENT, "no such connection")
            return self._reachable([event])
        if isinstance(target, Address):
            if self._is_own(target):
                raise OSError(ELOOP, "the target is the appliance itself")
            events = self._find(target.host, target.port, one=SCOPE.get() is None)
            if events and self._is_of_an_agent(events[0]):  # there may be one of another service
                events = self._find(target.host, target.port)
            if not events:
                raise OSError(ENOENT, "no such connection")
            return self._reachable(events)
        if target.text == "localhost" or target.text.endswith(".localhost"):  # RFC 6761 6.3
            raise OSError(ELOOP, "the target is the appliance itself")
        if (named := await self.named(target)) is None:
            raise OSError(ENOENT, "no such name")
        if (event := self._event_of(named)) is None:
            raise OSError(ENOTCONN, "the client of this name is not connected")
        return self._reachable([event])

    def _reachable(self, events: Sequence[Event]) -> list[Event]:
        """They; but a server must not speak to an agent, which obeys what it is told on its control connection."""
        own = [event for event in events if self._is_for_asker(event)]
        if not own:
            raise OSError(ENOENT, "no such connection")
        reachable = [event for event in own if not self._is_of_an_agent(event)]
        if not reachable:
            raise OSError(ELOOP, "the target is an agent's connection to the appliance itself")
        return reachable

    def _is_of_an_agent(self, event: Event) -> bool:
        service = self._services.get(event.service)
        return service is not None and service.kind == "agents"

    def local_name(self, target: Name) -> str | None:
        """The name without the domain; None: it is of another one."""
        name, dot, domain = target.text.rpartition(f".{self._domain}")
        return name if dot and not domain else None

    async def named(self, target: Name) -> Named | None:
        """What the name stands for. Raises OSError, EIO, when that cannot be read."""
        name = self.local_name(target)
        return await self._names.look_up(name) if name is not None else None

    def _event_of(self, named: Named) -> Event | None:
        """The connection of a name, if it lives."""
        event = self._engine.find(Key.unpack(named.key)) if named.connected else None
        return event if event is not None and event.number in (0, named.id) else None

    def _is_own(self, target: Address) -> bool:
        """Whether the address is one that this appliance listens on."""
        ip = ipaddress.ip_address(target.host)
        for host, port in map(
            parse_endpoint, (*self._attach_at, *(one.listen for one in tuple(self._services.values())))
        ):
            listening = ipaddress.ip_address(host)
            if port != target.port or listening.version != ip.version:
                continue
            everywhere = listening.is_unspecified and (ip.is_loopback or self.addresses.has(target.host))
            if ip == listening or ip.is_unspecified or everywhere:
                return True
        return False

    def _find(self, address: str, port: int, one: bool = False) -> Sequence[Event]:
        return self._engine.find_client(pack_address(address), port, self.addresses.packed(), one)

    # -- for the operator ---------------------------------------------------------------------------------------------

    def locate(self, name: str) -> Located:
        """The connection with this number, ``client-address:port``, or name with its domain."""
        asleep, look = self._by_number([name])
        if look.done():  # or there is none
            return self._locate(name, asleep | _looked(look))
        if not self._room.acquire(blocking=False):
            raise OperationError(429, f"{WAITING} requests wait for connections that are being looked for by their "
                                      "numbers already; an address is found at once")  # fmt: skip
        try:
            found = _looked(look)
        finally:
            self._room.release()
        return self._locate(name, asleep | found)

    def stop(self) -> None:
        """Numbered.stop."""
        self._numbered.stop()

    async def located(self, name: str) -> Located:
        """`locate`, for an event loop: no thread waits for a look at the engine's connections."""
        asleep, look = await asyncio.to_thread(self._by_number, [name])
        found = await asyncio.shield(asyncio.wrap_future(look))
        return await asyncio.to_thread(self._locate, name, asleep | found)

    def _by_number(self, names: Sequence[str]) -> tuple[dict[int, Event], Future[dict[int, Event]]]:
        """Those that are named by their numbers: what sleeps, and what is awake or in IDLE, when it has been found."""
        numbers = {number for name in names if (number := _number(name))}
        asleep = {number: event for number in numbers if (event := self._asleep_numbered(number)) is not None}
        return asleep, self._numbered.find(numbers - asleep.keys())

    def _locate(self, name: str, by_number: Mapping[int, Event], numbers_wanted: bool = True) -> Located:
        """by_number: what was found so. numbers_wanted: else it may be 0."""
        event: Event | None = None
        number = 0
        if (numbered := _number(name)) is not None:
            number = numbered
            event = by_number.get(number) or self._asleep_numbered(number)  # since it went to SLEEP meanwhile
        elif (local := self.local_name(Name(name.lower()))) is not None:
            if (named := self._names.find(local)) is not None:
                event, number = self._event_of(named), named.id
        else:
            try:
                client = parse_address(name)
            except ValueError:
                message = f'"{name}" is no number of a connection, no client-address:port, and no client\'s name.'
                raise OperationError(400, f"{message}{self._domain}") from None
            event = self._only_one(name, self._find(client.host, client.port))
        key = event.record.key_raw if event is not None else b""
        if event is not None:
            number = number or event.number
            if not number and (numbers_wanted or event.candidate):
                number = _sleeping_ids(self._store, [event]).get(key, 0)
            if event.candidate and not number and not self._store.status.error:
                event = None  # a false positive of the filter
        if event is None or not self._is_for_asker(event):
            raise OperationError(404, f'no connection "{name}"')
        return Located(number, State(event.to_state), event)

    def locate_many(self, names: Sequence[str]) -> Iterator[tuple[str, Located | OperationError]]:
        """`locate`, of each; those that are awake or in IDLE are looked for by their numbers once, for all. What is not
        named by its number may have 0 for it."""
        asleep, look = self._by_number(names)
        by_number = asleep | _looked(look)
        for name in names:
            try:
                yield name, self._locate(name, by_number, numbers_wanted=False)
            except OperationError as error:
                yield name, error

    def _is_for_asker(self, event: Event) -> bool:
        service = self._services.get(event.record.service)
        return in_scope(service.name if service else None)

    def _asleep_numbered(self, number: int) -> Event | None:
        """The connection that a row of `sleeping` is about."""
        if self._store.status.error or not number or not (row := self._store.sleeping_by_id(number)):
            return None
        event = self._engine.find(Key.unpack(row.key))
        # The row may be about to be removed, and its 4-tuple another connection's by now.
        return event if event is not None and event.id in (0, number) else None

    def _only_one(self, name: str, events: Sequence[Event]) -> Event | None:
        """The asker's connection of this client; of several that may be asleep, the one that has a row (without the
        database, the first)."""
        own = [event for event in events if self._is_for_asker(event)]
        ids = _sleeping_ids(self._store, [one for one in own if not one.number]) if len(own) > 1 else {}
        found = [event for event in own if not event.candidate or event.record.key_raw in ids] or own[:1]
        if len(found) < 2:
            return found[0] if found else None
        told = found[:TOLD]
        numbers = (event.number or ids.get(event.record.key_raw) or "a connection" for event in told)
        each = [f"{number} at {event.record.key.local_text}" for number, event in zip(numbers, told, strict=True)]
        each += ["and more"] * (len(found) > TOLD)
        raise OperationError(409, f"{name} is the client of several connections: {', '.join(each)}. Name one by its "
                             "number")  # fmt: skip
