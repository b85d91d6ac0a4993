# SPDX-License-Identifier: Apache-2.0
"""Names that an operator gives to connections, and takes back."""

from __future__ import annotations

from typing import Any

from control.clients.locate import Locator
from control.clients.registry import Registry, canonical
from control.core.errors import OperationError
from control.store.store import Store


class Naming:
    """domain: of names. Everything may block until the database has it; raises OperationError."""

    def __init__(self, store: Store, names: Registry, locator: Locator, domain: str) -> None:
        self._store = store
        self._names = names
        self._locator = locator
        self._domain = domain

    def give(self, connection: str, name: str) -> dict[str, Any]:
        """Let a name stand for a connection; returns when that is written."""
        wanted = _canonical(name, self._domain)
        located = self._locator.locate(connection)
        if not located.id:
            raise OperationError(503, f"the connection's number is unknown: store: {self._store.status.text}")
        self._names.give(wanted, located.key.pack(), located.id)
        self._names.commit()
        target = f"{wanted}.{self._domain}"
        return {"id": located.id, "client": located.key.client_text, "name": wanted, "target": target}

    def take(self, connection: str) -> dict[str, Any]:
        """Forget the name of a connection."""
        located = self._locator.locate(connection)
        if not (found := self._names.names_of([located.id])):
            raise OperationError(404, f'the connection "{connection}" has no name')
        return self.forget(found[located.id][0])

    def forget(self, name: str) -> dict[str, Any]:
        """Forget a name, whether or not its connection lives."""
        wanted = _canonical(name, self._domain)
        if not self._names.remove(wanted):
            raise OperationError(404, f'no client has the name "{name}"')
        self._names.commit()
        return {"name": wanted}


def _canonical(name: str, domain: str) -> str:
    try:
        return canonical(name, domain)
    except ValueError as error:
        raise OperationError(400, str(error)) from None
