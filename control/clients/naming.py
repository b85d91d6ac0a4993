# SPDX-License-Identifier: Apache-2.0
"""Names that an operator gives to connections, and takes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from control.clients.locate import Locator
from control.clients.registry import Registry, canonical
from control.clients.scope import SCOPE
from control.core.errors import OperationError
from control.core.names import NAME_LENGTH, is_name
from control.store.database import StoreError
from control.store.store import Store
from control.store.tagging import NoSuchNameError, TooManyTagsError


class Naming:
    """domain: of names. tagged: is told of connections, each a packed key and a number, whose name's tags are others
    now. spoken_for: the registry of the kind `agents`. Everything may block until the database has it; raises
    OperationError."""

    def __init__(self, store: Store, names: Registry, locator: Locator, domain: str,
                 tagged: Callable[[Iterable[tuple[bytes, int]]], None], spoken_for: Registry) -> None:  # fmt: skip
        self._store = store
        self._names = names
        self._locator = locator
        self._domain = domain
        self._tagged = tagged
        self._spoken_for = spoken_for

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
        """Forget a name, whether or not its connection lives; or else that an agent spoke for it which has gone."""
        wanted = _canonical(name, self._domain)
        if not self._names.remove(wanted):
            agent = self._spoken_for.find(wanted)
            if agent is not None and agent.connected:
                raise OperationError(409, f'an agent that is connected speaks for "{name}": withdraw its token, and '
                                          "reload")  # fmt: skip
            if agent is None or not self._spoken_for.remove(wanted):
                raise OperationError(404, f'no client has the name "{name}"')
        self._names.commit()
        return {"name": wanted}

    def tag(self, name: str, add: Sequence[str], remove: Sequence[str]) -> dict[str, Any]:
        """Give a name tags, and take some away: labels that stay with the client however often it connects."""
        wanted = self._for_asker(name)
        added, removed = _tags(add), _tags(remove)
        if both := set(added) & set(removed):
            raise OperationError(422, f'the tag "{min(both)}" is to be given and taken away')
        self._names.commit()  # it may have been given just now
        with _changing():
            tags = self._store.change_tags(wanted, added, removed)
        if named := self._names.find(wanted):
            self._tagged([(named.key, named.id)])
        return {"name": wanted, "tags": tags}

    def tags_of(self, name: str) -> dict[str, Any]:
        """The tags of a name."""
        wanted = self._for_asker(name)
        if self._names.find(wanted) is None:
            raise OperationError(404, f'no client has the name "{name}"')
        return {"name": wanted, "tags": self._names.tags_of([wanted]).get(wanted, [])}

    def _for_asker(self, name: str) -> str:
        """The form in which it is kept. Who may see some services alone must be able to see its client, which is
        connected, then."""
        wanted = _canonical(name, self._domain)
        if SCOPE.get() is not None:
            self._locator.locate(f"{wanted}.{self._domain}")
        return wanted

    def tags(self, after: str, limit: int) -> list[dict[str, Any]]:
        """Tags in their order, those after one, and how many names have each."""
        return [{"tag": tag, "names": count} for tag, count in self._store.tag_counts(after, limit)]


@contextmanager
def _changing() -> Iterator[None]:
    try:
        yield
    except NoSuchNameError as error:
        raise OperationError(404, str(error)) from None
    except TooManyTagsError as error:
        raise OperationError(422, str(error)) from None
    except StoreError as error:
        raise OperationError(503, f"tags cannot be changed now: store: {error}") from None


def _tags(several: Sequence[str]) -> list[str]:
    for tag in several:
        if not is_name(tag.lower()):
            raise OperationError(422, f'"{tag[:NAME_LENGTH]}" is no tag: it has 1 to {NAME_LENGTH} letters, digits, '
                                      "`.`, `_` and `-`, a letter or digit first")  # fmt: skip
    return list(dict.fromkeys(tag.lower() for tag in several))


def _canonical(name: str, domain: str) -> str:
    try:
        return canonical(name, domain)
    except ValueError as error:
        raise OperationError(400, str(error)) from None
