# SPDX-License-Identifier: Apache-2.0
"""Names of clients: which connection a name stands for.

The table `names` of the store is the truth: who gives a name waits for its commit. Looking one up is done in memory,
since a server waits for it. A name outlives its connection, and a 4-tuple may be another connection's by then (a NAT
gives ports again), so two dicts say different things:

    _named   name -> key, id, since (schema.NAMED): the connection that it was given to last, whether or not it lives
    _at      key -> name, only while that very connection lives

Neither holds anything for a connection without a name. What they hold is bytes and text, which Python's collector of
cycles does not walk: a million names must not become a pause for the clients that wake.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import dataclass
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from appliance.engine import Event
from control.living import living
from control.monitor import EnginePort
from control.states import State
from control.store.schema import NAME_LENGTH, NAMED
from control.store.store import Store

log = logging.getLogger("roost.registry")

COMMIT_S: Final = 5.0
_NAME: Final = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{NAME_LENGTH - 1}}}")


class RegistryError(Exception):
    """The database cannot be read or written, so that no name can be given or known."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for; since: wall clock, ms. connected False: that connection is closed."""

    key: bytes
    id: int
    since: int
    connected: bool


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
    """The names of one daemon's clients. May be called from any thread."""

    def __init__(self, store: Store, engine: EnginePort) -> None:
        self._store = store
        self._engine = engine
        self._lock = threading.Lock()
        self._named: dict[str, bytes] = {}
        self._at: dict[bytes, str] = {}
        self._loaded = False

    # -- at start -----------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        """False: the database could not be read yet, and every name is unknown."""
        return self._loaded

    def load(self) -> bool:
        """Read the names, and find out whose connections live; whether it succeeded. Once: names are given since."""
        if self._loaded:
            return True
        try:
            rows = list(self._store.named())
            owners = [NAMED.unpack(named)[:2] for _, named in rows]
            alive = living(self._engine, self._store, owners)
        except SQLAlchemyError as error:
            log.error("names cannot be read: %s", getattr(error, "orig", None) or error)
            return False
        with self._lock:
            self._named = dict(rows)
            self._at = {key: name for (name, _), (key, _), lives in zip(rows, owners, alive, strict=True) if lives}
            self._loaded = True
        return True

    # -- names --------------------------------------------------------------------------------------------------------

    def give(self, name: str, key: bytes, number: int) -> None:
        """From now on the name (in its canonical form) stands for the connection with this key and number, and for no
        other; a name that this connection had is forgotten. `commit` waits until that is written.

        Raises RegistryError, and then nothing has changed."""
        self._writable()
        named = NAMED.pack(key, number, time.time_ns() // 1_000_000)
        with self._lock:
            changes: dict[str, bytes | None] = {name: named}
            before = self._at.get(key)
            if before is not None and before != name and NAMED.unpack(self._named[before])[1] == number:
                del self._named[before]
                changes[before] = None
            self._leave(name)
            self._named[name] = named
            self._at[key] = name
            self._store.add(names=changes)

    def remove(self, name: str) -> bool:
        """Forget a name; whether there was one. Raises RegistryError."""
        self._writable()
        with self._lock:
            if name not in self._named:
                return False
            self._leave(name)
            del self._named[name]
            self._store.add(names={name: None})
            return True

    def commit(self) -> None:
        """Wait until what was given and removed is written. Raises RegistryError when that takes too long."""
        if not self._store.flush(COMMIT_S):
            raise RegistryError(f"the name is not written yet, but will be: store: {self._store.status.text}")

    def _writable(self) -> None:
        if self._store.status.error or not self._loaded:
            raise RegistryError(f"names cannot be changed now: store: {self._store.status.text}")

    def _leave(self, name: str) -> None:
        """The name's connection has it no more; the caller holds the lock."""
        if (named := self._named.get(name)) is not None:
            key = NAMED.unpack(named)[0]
            if self._at.get(key) == name:
                del self._at[key]

    # -- looking up ---------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Named | None:
        """What the name stands for; None when it is nobody's."""
        with self._lock:
            if (named := self._named.get(name)) is None:
                return None
            key, number, since = NAMED.unpack(named)
            return Named(key, number, since, self._at.get(key) == name)

    def name_at(self, key: bytes) -> str | None:
        """The name of the connection that has this key."""
        return self._at.get(key)

    # -- the life of connections --------------------------------------------------------------------------------------

    def hear(self, transitions: list[Event]) -> None:
        """A batch of the monitor's transitions (Monitor.listen)."""
        if not self._at:
            return
        for event in transitions:
            key = event.record.key_raw
            if key not in self._at:
                continue
            with self._lock:
                if (name := self._at.get(key)) is None:
                    continue
                number = NAMED.unpack(self._named[name])[1]
                # The engine does not know the number of a SLEEP connection that it closes (0). Numbers grow: a larger
                # one is a newer connection with this 4-tuple, a smaller one an older that has not been heard of yet.
                if event.id > number or (event.to_state == State.CLOSED and event.id in (0, number)):
                    del self._at[key]
