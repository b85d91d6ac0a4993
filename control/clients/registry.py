# SPDX-License-Identifier: Apache-2.0
"""Names of clients: which connection a name stands for.

A table of the store is the truth: giving a name waits for its commit. Looking one up is done in memory, since a
server waits for it. A name outlives its connection, and a 4-tuple may be another connection's by then (a NAT gives
ports again), so two dicts say different things:

    _named   name -> key, id, since: the connection that it was given to last, whether or not it lives
    _at      key -> its names with blanks between them, only while that very connection lives

Neither holds anything for a connection without a name. What they hold is bytes and text, which Python's collector of
cycles does not walk: a million names must not become a pause for the clients that wake.

There are two registries: of names that stand for a client's own connection (`names`), and of the clients that an agent
speaks for, where all names of an agent stand for its control connection (`agents`).
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy.exc import SQLAlchemyError

from appliance.wire import Command, Event, Op
from control.clients.living import living
from control.core.ports import EnginePort
from control.core.states import Cause, State
from control.store.database import reason
from control.store.schema import KEYED, NAME_LENGTH, SUCCESSOR, Keyed
from control.store.store import Store

log = logging.getLogger("roost.registry")

COMMIT_S: Final = 5.0
_NAME: Final = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{NAME_LENGTH - 1}}}")


class RegistryError(Exception):
    """The database cannot be read or written, so that no name can be given or known."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for; since: wall clock, ms. connected False: that connection is closed. service: of an agent's
    client, the one by which it connects by itself (0: it accepts connections)."""

    key: bytes
    id: int
    since: int
    connected: bool
    service: int = 0


def canonical(name: str, domain: str) -> str:
    """The form in which a name is kept: lower case, without the domain. ValueError with a sentence when it is none."""
    lower = name.lower()
    if not name.isascii() or not _NAME.fullmatch(lower):
        raise ValueError(
            f"a client's name is 1 to {NAME_LENGTH} letters, digits, `.`, `_` and `-`, a letter or digit first"
        )
    if lower.endswith(f".{domain}"):
        raise ValueError(f'"{name}": the name is given without the domain, .{domain}')
    return lower


class Registry:
    """The names of one daemon's clients. May be called from any thread. `kind`: of schema.KEYED."""

    def __init__(self, store: Store, engine: EnginePort, kind: Literal["names", "agents"] = "names") -> None:
        self._store = store
        self._engine = engine
        self._kind = kind
        self._form = KEYED[kind][1]
        self._listeners: tuple[Callable[[str], None], ...] = ()
        self._lock = threading.Lock()
        self._named: dict[str, bytes] = {}
        self._at: dict[bytes, str] = {}
        self.loaded = False
        """False: the database could not be read yet, and every name is unknown."""

    # -- at start -----------------------------------------------------------------------------------------------------

    def load(self) -> bool:
        """Read the names, and find out whose connections live; whether it succeeded. Once: names are given since."""
        if self.loaded:
            return True
        try:
            rows = list(self._store.keyed(self._kind))
            owners = [self._form.unpack(named)[:2] for _, named in rows]
            alive = living(self._engine, self._store, owners)
        except SQLAlchemyError as error:
            log.error("names cannot be read: %s", reason(error))
            return False
        at: dict[bytes, str] = {}
        for (name, _), (key, _), lives in zip(rows, owners, alive, strict=True):
            if lives:
                at[key] = f"{at[key]} {name}" if key in at else name
        with self._lock:
            self._named, self._at = dict(rows), at
            self.loaded = True
        return True

    # -- names --------------------------------------------------------------------------------------------------------

    def give(self, name: str, key: bytes, number: int) -> None:
        """From now on the name (in its canonical form) stands for the connection with this key and number, and for no
        other; a name that this connection had is forgotten. An older connection that loses its last name so is closed:
        its client has come back by this one. `commit` waits until that is written.

        Raises RegistryError, and then nothing has changed."""
        self.give_all({name: 0}, key, number)

    def give_all(self, services: Mapping[str, int], key: bytes, number: int) -> None:
        """The same for any number of names at once, each with its service (see Named)."""
        self._writable()
        since = time.time_ns() // 1_000_000
        with self._lock:
            changes: dict[Keyed, bytes | None] = {}
            older: list[Command] = []
            for before in self._at.get(key, "").split():
                if before not in services and self._number(before) == number:
                    del self._named[before]
                    changes[self._kind, before] = None
            for name, service in services.items():
                if (left := self._leave(name)) is not None and left[0] != key and left[1] < number:
                    older.append(Command(op=Op.CLOSE, cause=Cause.CLIENT_CONNECT, key=left[0], id=left[1]))
                    changes["successors", left[1]] = SUCCESSOR.pack(number, since)
                named = self._form.pack(key, number, since, *([service] if self._kind == "agents" else []))
                self._named[name] = changes[self._kind, name] = named
            self._at[key] = " ".join(services)
            self._store.add(keyed=changes)
        if older:
            log.info("%s: connected again, by connection %d: connection %s is closed", ", ".join(services), number,
                     ", ".join(str(command.id) for command in older))  # fmt: skip
            self._engine.submit(older)
        for name in services:
            for listener in self._listeners:
                listener(name)

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with each name that is given, in the giver's thread. For the life of the registry."""
        self._listeners += (listener,)

    def remove(self, name: str) -> bool:
        """Forget a name; whether there was one. Raises RegistryError."""
        self._writable()
        with self._lock:
            if name not in self._named:
                return False
            self._leave(name)
            del self._named[name]
            self._store.add(keyed={(self._kind, name): None})
            return True

    def commit(self) -> None:
        """Wait until what was given and removed is written. Raises RegistryError when that takes too long."""
        if not self._store.flush(COMMIT_S):
            raise RegistryError(f"the name is not written yet, but will be: store: {self._store.status.text}")

    def _writable(self) -> None:
        if self._store.status.error or not self.loaded:
            raise RegistryError(f"names cannot be changed now: store: {self._store.status.text}")

    def _leave(self, name: str) -> tuple[bytes, int] | None:
        """The name's connection has it no more; the caller holds the lock. Key and number of that connection, if it
        lives and has no other name."""
        if (named := self._named.get(name)) is None:
            return None
        key, number = self._form.unpack(named)[:2]
        names = self._at.get(key, "").split()
        if name not in names:
            return None
        names.remove(name)
        if names:
            self._at[key] = " ".join(names)
            return None
        del self._at[key]
        return key, number

    def _number(self, name: str) -> int:
        """The number of the connection that a name was given to."""
        return int(self._form.unpack(self._named[name])[1])

    # -- looking up ---------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Named | None:
        """What the name stands for; None when it stands for nothing."""
        with self._lock:
            if (named := self._named.get(name)) is None:
                return None
            key, number, since, *service = self._form.unpack(named)
            return Named(key, number, since, name in self._at.get(key, "").split(), *service)

    def name_at(self, key: bytes) -> str | None:
        """The name of the connection that has this key; the first, where it has several."""
        return names[0] if (names := self.names_at(key)) else None

    def names_at(self, key: bytes) -> list[str]:
        """The names of the connection that has this key."""
        return self._at.get(key, "").split()

    def all(self) -> list[str]:
        """Every name there is."""
        with self._lock:
            return list(self._named)

    # -- the life of connections --------------------------------------------------------------------------------------

    def hear(self, transitions: Iterable[Event]) -> None:
        """A batch of transitions (TransitionsPort.listen)."""
        if not self._at:
            return
        for event in transitions:
            key = event.record.key_raw
            if key not in self._at:
                continue
            with self._lock:
                if not (names := self.names_at(key)):
                    continue
                number = self._number(names[0])
                # The engine does not know the number of a SLEEP connection that it closes (0). Numbers grow: a larger
                # one is a newer connection with this 4-tuple, a smaller one an older that has not been heard of yet.
                if event.id > number or (event.to_state == State.CLOSED and event.id in (0, number)):
                    del self._at[key]
