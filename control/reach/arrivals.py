# SPDX-License-Identifier: Apache-2.0
"""Waiting for what happens to clients, without asking the engine again and again: transitions tell.

What can be waited for is a tuple:

    ("address", client, port)       a connection of this client (16 bytes) and port (2 bytes, network order) appears
    ("service", client, index)      a connection of this client to this service appears
    ("name", text)                  a name is given to a connection
    ("agent", text)                 an agent says that it speaks for the client of this name
    ("link", key)                   the connection with this key is linked to the daemon
    ("said", line)                  a connection to a service of held clients says this first
    ("key", key)                    anything happens to the connection with this key (36 bytes)

Nothing is kept for what is not waited for, and a batch of transitions costs one look at an empty dict then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from appliance.wire import Event
from control.core.states import State

What = tuple[str, bytes, bytes] | tuple[str, bytes, int] | tuple[str, str] | tuple[str, bytes]

_CLIENT: Final = slice(0, 16)
_PORT: Final = slice(32, 34)


class Arrivals:
    """`begin`, `expect` and `happened` belong to one event loop; the others may be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[What, list[asyncio.Future[bytes]]] = {}

    def begin(self) -> None:
        """What waits does so in the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def expect(self, *what: What) -> Iterator[asyncio.Future[bytes]]:
        """A future of the key of the connection, or b"" for a name: the first of these that happens, from now on."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        for one in what:
            self._waiting.setdefault(one, []).append(future)
        try:
            yield future
        finally:
            future.cancel()
            for one in what:
                waiting = self._waiting[one]
                waiting.remove(future)
                if not waiting:
                    del self._waiting[one]

    def waits(self, what: What) -> bool:
        """Whether anything waits for this."""
        return what in self._waiting

    def hear(self, transitions: Iterable[Event]) -> None:
        """A batch of transitions (TransitionsPort.listen)."""
        if not self._waiting:
            return
        for event in transitions:
            key = event.record.key_raw
            happened: list[What] = [("key", key)]
            if event.from_state == State.NONE:
                happened += [("address", key[_CLIENT], key[_PORT]), ("service", key[_CLIENT], event.service)]
            for what in happened:
                if what in self._waiting:
                    self.call(self.happened, what, key)

    def named(self, kind: str, name: str) -> None:
        """A name was given: kind "name" or "agent"."""
        if (kind, name) in self._waiting:
            self.call(self.happened, (kind, name), b"")

    def call(self, what: Callable[..., None], *arguments: object) -> None:
        """Call it in the loop soon, from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon ends
                self._loop.call_soon_threadsafe(what, *arguments)

    def happened(self, what: What, key: bytes) -> None:
        """What waits for this goes on, with the key."""
        for future in self._waiting.get(what, ()):
            if not future.done():
                future.set_result(key)
