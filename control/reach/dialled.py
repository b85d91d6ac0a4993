# SPDX-License-Identifier: Apache-2.0
"""What became of dialling clients, and which of them are told to stay connected since they cannot be dialled.

    failures in a row:  0 -> 1 -> ... -> stay_after: DUE -> (its next connection) -> TOLD
                        ^------------------- a dial-out succeeds ------------------------'

A client is known by its name where it has one, else by its address: its port is another one the next time. Several
clients behind one address are then told together, which does no harm.

Rows are few, since they are made by failure alone; past BOUND the one that was touched first is forgotten.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from appliance.frontends.target import parse_address
from appliance.wire import Key
from control.clients.registry import Registry
from control.core.logs import about
from control.store.database import reason
from control.store.schema import DIALLED, Keyed
from control.store.store import Store

log = logging.getLogger("roost.reach")

BOUND: Final = 100_000


class Stay(IntEnum):
    """Whether a client is to stay connected; the numbers of the column `stay`."""

    NO = 0
    DUE = 1
    TOLD = 2


class Dialled:
    """The table `dialled`. May be called from any thread."""

    def __init__(self, store: Store, registry: Registry, stay_after: int) -> None:
        self._store = store
        self._registry = registry
        self._stay_after = stay_after
        self._lock = threading.RLock()
        self._rows: dict[str, bytes] = {}
        self._due: set[str] = set()
        self._loaded = False

    def load(self) -> bool:
        """Read the table, once; whether that succeeded. What was counted since the start goes before it."""
        if self._loaded:
            return True
        try:
            rows = dict(self._store.keyed("dialled"))
        except SQLAlchemyError as error:
            log.error("dial-outs cannot be read: %s", reason(error))
            return False
        with self._lock:
            self._rows = rows | self._rows
            self._due = {client for client in self._rows if self._row(client)[1] == Stay.DUE}
        self._loaded = True
        return True

    # -- counting -----------------------------------------------------------------------------------------------------

    def failed(self, client: str) -> None:
        """A client, by its name or its address, could not be dialled."""
        with self._lock:
            failures, stay, _ = self._row(client)
            if not stay and 0 < self._stay_after <= failures + 1:
                stay = Stay.DUE
                log.info("%s was dialled in vain %d times: it will be told to stay connected", client, failures + 1,
                         extra=about(client=client))  # fmt: skip
            self._put(client, failures + 1, stay)

    def succeeded(self, client: str) -> None:
        """It could: nothing that was counted holds any more."""
        with self._lock:
            self._due.discard(client)
            if self._rows.pop(client, None) is not None:
                self._store.add(keyed={("dialled", client): None})

    # -- telling ------------------------------------------------------------------------------------------------------

    def due(self, clients: Iterable[str]) -> list[str]:
        """Those of the clients, by their names or addresses, that are to be told to stay connected."""
        with self._lock:
            return [client for client in clients if client in self._due]

    @property
    def any_due(self) -> bool:
        """Whether there are such clients."""
        return bool(self._due)

    def due_among(self, connections: Mapping[int, Key]) -> dict[int, list[str]]:
        """The same of the clients that have these connections, by their numbers: their names, and their addresses.
        Blocks for as long as the database takes, and raises RegistryError."""
        names = self._registry.names_of(list(connections))
        clients = {
            number: [*names.get(number, ()), parse_address(key.client_text).host] for number, key in connections.items()
        }
        return {number: due for number, known_as in clients.items() if (due := self.due(known_as))}

    def told(self, clients: Iterable[str]) -> None:
        """These that were due were told."""
        with self._lock:
            for client in self.due(clients):
                self._put(client, self._row(client)[0], Stay.TOLD)

    def stays(self, client: str) -> bool:
        """Whether the client, by its name or its address, is marked to stay connected, told or not."""
        with self._lock:
            return self._row(client)[1] != Stay.NO

    def all(self) -> list[dict[str, Any]]:
        """Every row, as programs read it."""
        with self._lock:
            rows = [(client, *DIALLED.unpack(packed)) for client, packed in self._rows.items()]
        return [
            {"client": client, "failures": failures, "stay": Stay(stay).name.lower(), "at_ms": at}
            for client, failures, stay, at in rows
        ]

    # -- rows; the caller holds the lock ------------------------------------------------------------------------------

    def _row(self, client: str) -> tuple[int, int, int]:
        failures, stay, at = DIALLED.unpack(self._rows.get(client, bytes(DIALLED.size)))
        return failures, stay, at

    def _put(self, client: str, failures: int, stay: int) -> None:
        self._rows.pop(client, None)  # a dict's order is that of the first insertion
        packed = self._rows[client] = DIALLED.pack(min(failures, 2**31 - 1), stay, time.time_ns() // 1_000_000)
        (self._due.add if stay == Stay.DUE else self._due.discard)(client)
        changes: dict[Keyed, bytes | None] = {("dialled", client): packed}
        if len(self._rows) > BOUND:
            oldest = next(iter(self._rows))
            del self._rows[oldest]
            self._due.discard(oldest)
            changes["dialled", oldest] = None
        self._store.add(keyed=changes)
