# SPDX-License-Identifier: Apache-2.0
"""Names of clients: which connection a name stands for.

The store has them, and it alone: a name is looked up there, by itself or by its connection's number, in what is
committed and in what waits to be (Store.named), and giving one waits for its commit. Nothing is kept here, nor read at
start.

A name outlives its connection, and a 4-tuple may be another connection's by then (a NAT gives ports again). Whether the
one that it was given to lives is asked when it is looked up (living.py): numbers are never used again.

There are two registries: of names that stand for a client's own connection (`names`), and of the clients that an agent
speaks for, where all names of an agent stand for its control connection (`agents`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from errno import EIO
from itertools import compress
from typing import Final, Literal, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from appliance.wire import KEY, Command, Key, Op
from control.clients.living import living, numbers_at
from control.core.errors import OperationError
from control.core.logs import about
from control.core.names import NAME_LENGTH, STARS_MAX, is_name, is_pattern
from control.core.ports import BATCH, EnginePort
from control.core.states import Cause
from control.store.database import reason
from control.store.schema import IN_BAND_NAME, KEYED, SUCCESSOR, Keyed
from control.store.store import Store

log = logging.getLogger("roost.registry")

PATIENCE_S: Final = 5.0
"""How long the database may take to say what a name stands for, or to commit one."""


class RegistryError(OperationError):
    """The database cannot be read or written, so that no name can be given or known."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message)


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for; since: wall clock, ms. connected False: that connection is closed. service: of an agent's
    client, the one by which it connects by itself (0: it accepts connections). token: of an agent's client, the SHA-256
    of what the agent said; zeros: it is not known."""

    key: bytes
    id: int
    since: int
    connected: bool
    service: int = 0
    token: bytes = b""


DIGEST_BYTES: Final = 32

FOR_EVER_MS: Final = 1 << 61
"""Gift.kept_ms."""

Hear = Callable[[Collection[tuple[bytes, int]]], None]
"""Is told of connections, each a packed key and a number."""


class Gift(NamedTuple):
    """Names for a connection, each with its service (see Named). kept_ms: of those that are given in band, how long
    they are kept without it; None: an operator or the daemon gives them, and they are kept until they are removed.
    token: of an agent, its SHA-256."""

    services: Mapping[str, int]
    key: bytes
    number: int
    kept_ms: int | None = None
    token: bytes = b""


def canonical(name: str, domain: str) -> str:
    """The form in which a name is kept: lower case, without the domain. ValueError with a sentence when it is none."""
    lower = name.lower()
    if not name.isascii() or not is_name(lower):
        raise ValueError(
            f"a client's name is 1 to {NAME_LENGTH} letters, digits, `.`, `_` and `-`, a letter or digit first"
        )
    if lower.endswith(f".{domain}"):
        raise ValueError(f'"{name}": the name is given without the domain, .{domain}')
    return lower


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        raise RegistryError(f"names cannot be read: store: {reason(error)}") from error


def judge(pattern: str, tag: str) -> None:
    """Raises OperationError, 400, when one is no pattern, or no tag."""
    if not is_pattern(pattern):
        raise OperationError(400, f"`name` is a client's name without the domain, with `?` and at most {STARS_MAX} "
                                  "`*` in it")  # fmt: skip
    if tag and not is_name(tag):
        raise OperationError(400, "`tag` is a tag of a name, in full")


class Registry:
    """The names of one daemon's clients. `kind`: of schema.KEYED. May be called from any thread; all but `listen` and
    `look_up` block for as long as the database takes, and raise RegistryError."""

    def __init__(self, store: Store, engine: EnginePort, kind: Literal["names", "agents"] = "names") -> None:
        self._store = store
        self._engine = engine
        self._kind: Final = kind
        self._form = KEYED[kind][1]
        self._listeners: tuple[Callable[[str], None], ...] = ()
        self._losing: tuple[Hear, ...] = ()
        self._renamed: tuple[Hear, ...] = ()
        self.changing = threading.RLock()
        """Is held by one who looks and then gives, so that nothing is given in between."""

    # -- giving -------------------------------------------------------------------------------------------------------

    def give(self, name: str, key: bytes, number: int) -> None:
        """From now on the name (in its canonical form) stands for the connection with this key and number, and for no
        other; a name that this connection had is forgotten. An older connection that loses its last name so is closed:
        its client has come back by this one. `commit` waits until that is written.

        Raises RegistryError, and then nothing has changed."""
        self.give_all([Gift({name: 0}, key, number)])

    @_reading()
    def give_all(self, gifts: Sequence[Gift]) -> None:
        """The same for any number of names of any number of connections, one connection after the other."""
        self._writable()
        since = time.time_ns() // 1_000_000
        changes: dict[Keyed, bytes | None] = {}
        older: dict[tuple[bytes, int], tuple[str, int]] = {}
        with self.changing:
            owners = self._owners(gifts)
            touched = {*owners.values(), *((gift.key, gift.number) for gift in gifts)}
            names: defaultdict[int, set[str]] = defaultdict(set)
            for name, (_, number) in owners.items():
                names[number].add(name)
            for services, key, number, kept_ms, token in gifts:
                for before in names[number] - services.keys():
                    del owners[before]
                    changes |= self._row(before, None)
                for name, service in services.items():
                    if left := owners.get(name):
                        names[left[1]].remove(name)
                        if left[0] != key and left[1] < number and not names[left[1]]:
                            older[left] = name, number
                    owners[name] = key, number
                    of_agent = [service] if self._kind == "agents" else []
                    packed = self._form.pack(key + token, number, since, *of_agent)
                    own = IN_BAND_NAME.pack(kept_ms, since + 2 * kept_ms) if kept_ms is not None else None
                    changes |= self._row(name, packed, own)
                names[number] = set(services)
            alive = compress(older.items(), living(self._engine, self._store, list(older)))
            commands = []
            for (key, number), (name, by) in alive:
                log.info("%s: connected again, by connection %d: this one is closed", name, by,
                         extra=about(connection=number, client=Key.unpack(key), name=name))  # fmt: skip
                changes["successors", number] = SUCCESSOR.pack(by, since)
                commands.append(Command(op=Op.CLOSE, cause=Cause.CLIENT_CONNECT, key=key, id=number))
            for hear in self._losing:
                hear([one for one in touched if not names[one[1]]])
            self._store.add(keyed=changes)
        for hear in self._renamed:
            hear(touched)
        if commands:
            self._engine.submit(commands)
        for gift in gifts:
            for name in gift.services:
                for listener in self._listeners:
                    listener(name)

    def _owners(self, gifts: Sequence[Gift]) -> dict[str, tuple[bytes, int]]:
        """What all names stand for that may be changed by this: those that are given, and those of connections that
        get one or lose one."""
        rows = self._store.named(self._kind, [name for gift in gifts for name in gift.services])
        numbers = {gift.number for gift in gifts}.union(self._form.unpack(packed)[1] for packed in rows.values())
        rows |= self._store.named(self._kind, numbers=list(numbers))
        return {name: (_key(packed), self._form.unpack(packed)[1]) for name, packed in rows.items()}

    def _row(self, name: str, packed: bytes | None, in_band: bytes | None = None) -> dict[Keyed, bytes | None]:
        """What is written of a name; None: nothing stands there from then on."""
        row: dict[Keyed, bytes | None] = {(self._kind, name): packed}
        return row | {("in_band_names", name): in_band} if self._kind == "names" else row

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with each name that is given, in the giver's thread. For the life of the registry."""
        self._listeners += (listener,)

    def listen_to_connections(self, losing: Hear, renamed: Hear) -> None:
        """Call `losing` before connections lose their last name, `renamed` after the names of connections changed."""
        self._losing += (losing,)
        self._renamed += (renamed,)

    @_reading()
    def remove(self, name: str) -> bool:
        """Forget a name; whether there was one."""
        self._writable()
        with self.changing:
            found = self._store.named(self._kind, [name]).get(name)
            if found is None:
                return False
            connection = _key(found), self._form.unpack(found)[1]
            for hear in self._losing:
                hear([connection])
            self._store.add(keyed=self._row(name, None))
        for hear in self._renamed:
            hear([connection])
        return True

    @_reading()
    def given_in_band(self, names: Sequence[str]) -> set[str]:
        """Those of these names that clients were given in band."""
        return set(self._store.named("in_band_names", names))

    @_reading()
    def give_way(self, names: Sequence[str]) -> None:
        """An agent speaks for these from now on: those that clients were given in band are forgotten."""
        for name in self.given_in_band(names):
            log.info("%s: an agent speaks for it: the client that gave itself this name has it no more", name)
            self.remove(name)

    @_reading()
    def expire(self, now_ms: int) -> int:
        """Forget names whose time without their connection is over (Gift.kept_ms), unless they have tags; how many. Of
        a connection that lives the time begins anew: it is twice as long, so that one which ends before it is looked at
        again has at least once as long. now_ms: wall clock."""
        after, gone = "", 0
        while True:
            with self.changing:
                self.commit()  # what is due is read from what is written
                page = self._store.names_due(now_ms, after, BATCH)
                found = self.find_all([name for name, *_ in page])
                changes: dict[Keyed, bytes | None] = {}
                for name, kept, until, tagged in page:
                    if name in found and (tagged or found[name].connected):
                        changes["in_band_names", name] = IN_BAND_NAME.pack(kept, now_ms + 2 * kept)
                    elif until <= now_ms:
                        changes |= self._row(name, None)
                        gone += 1
                self._store.add(keyed=changes)
            if len(page) < BATCH:
                return gone
            after = page[-1][0]

    @_reading()
    def shed(self, most: int) -> int:
        """Forget clients of agents that are not connected, where there are more than so many of one token, those that
        were spoken for longest ago; how many."""
        away: defaultdict[bytes, list[tuple[int, str]]] = defaultdict(list)
        with self.changing:
            for name, named in self.all().items():
                if not named.connected:
                    away[named.token].append((named.since, name))
            gone = [name for rows in away.values() for _, name in sorted(rows)[: max(len(rows) - most, 0)]]
            self._store.add(keyed={(self._kind, name): None for name in gone})
        return len(gone)

    def commit(self) -> None:
        """Wait until what was given and removed is written. Raises RegistryError when that takes too long."""
        if not self._store.flush(PATIENCE_S):
            raise RegistryError(f"the name is not written yet, but will be: store: {self._store.status.text}")

    def _writable(self) -> None:
        if self._store.status.error:
            raise RegistryError(f"names cannot be changed now: store: {self._store.status.text}")

    # -- looking up ---------------------------------------------------------------------------------------------------

    @_reading()
    def find(self, name: str) -> Named | None:
        """What the name stands for; None when it stands for nothing, as all that is no name."""
        if not is_name(name):
            return None  # nor would every database take it
        return self.find_all([name]).get(name)

    @_reading()
    def find_all(self, names: Sequence[str]) -> dict[str, Named]:
        """What those of these names that stand for something stand for."""
        return self._read(self._store.named(self._kind, names))

    async def look_up(self, name: str) -> Named | None:
        """`find` for an event loop: in a thread. Raises OSError, EIO, also when the database takes too long."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.to_thread(self.find, name)
        except (RegistryError, TimeoutError) as error:
            raise OSError(EIO, str(error) or "the database takes too long") from error

    @_reading()
    def names_of(self, numbers: Sequence[int]) -> dict[int, list[str]]:
        """The names of the connections with these numbers, of those that have any."""
        found: dict[int, list[str]] = {}
        for name, packed in sorted(self._store.named(self._kind, numbers=numbers).items()):
            found.setdefault(self._form.unpack(packed)[1], []).append(name)
        return found

    @_reading()
    def tokens_of(self, number: int) -> dict[str, bytes]:
        """The clients that the agent at the connection with this number speaks for, each with the SHA-256 of the token
        that the agent said; zeros: it is not known."""
        return {name: _token(packed) for name, packed in self._store.named(self._kind, numbers=[number]).items()}

    @_reading()
    def tags_of(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The tags of these names, of those that have any."""
        return self._store.tags_of(names)

    @_reading()
    def nameless(self, keys: Sequence[bytes]) -> list[bytes]:
        """Those of these keys whose connection has no name."""
        numbers = numbers_at(self._engine, self._store, dict.fromkeys(keys, 0))
        known_as = self.names_of([number for number in numbers.values() if number])
        return [key for key, number in numbers.items() if number not in known_as]

    @_reading()
    def like(self, pattern: str, tag: str, after: str, limit: int) -> dict[str, Named]:
        """Names that are as the pattern says (`*`: any text, `?`: a character), those after one, in their order; tag:
        of those that have it, "": of all. Raises OperationError, 400, when one is no pattern or no tag."""
        judge(pattern, tag)
        self._store.flush(PATIENCE_S)
        return self._read(self._store.names_like(pattern, tag, after, limit))

    @_reading()
    def all(self) -> dict[str, Named]:
        """Every name there is, and what it stands for."""
        self._store.flush(PATIENCE_S)
        return self._read(dict(self._store.keyed(self._kind)))

    def _read(self, rows: Mapping[str, bytes]) -> dict[str, Named]:
        found = [(_key(packed), *self._form.unpack(packed)[1:]) for packed in rows.values()]
        alive = living(self._engine, self._store, [(key, number) for key, number, *_ in found])
        return {
            name: Named(key, number, since, lives, *service, *([_token(packed)] if service else []))
            for (name, packed), (key, number, since, *service), lives in zip(rows.items(), found, alive, strict=True)
        }


def _key(packed: bytes) -> bytes:
    return packed[: KEY.size]


def _token(packed: bytes) -> bytes:
    return packed[KEY.size : KEY.size + DIGEST_BYTES]
