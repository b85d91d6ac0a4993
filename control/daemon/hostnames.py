# SPDX-License-Identifier: Apache-2.0
"""The addresses of servers that are configured by name: asked for at start, and again and again.

A name that cannot be resolved keeps its last addresses. The resolver may take as long as it likes: each question is a
thread of its own, which holds up neither the others nor the end of the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final

from control.daemon.waiting import Waiting

log = logging.getLogger("roost.daemon")

Answer = tuple[str, ...] | str
"""Addresses, or why there are none."""

ANSWER_S: Final = 5.0
"""How long one round waits for answers; one that comes later counts in the next round."""


class Hostnames:
    """names: tells which are configured now. known: the addresses of each name, in order, as far as there was an
    answer."""

    def __init__(self, waiting: Waiting, names: Collection[str] = ()) -> None:
        self._waiting = waiting
        self.names: Callable[[], Collection[str]] = lambda: names
        self._asked: dict[str, asyncio.Future[Answer]] = {}
        self._failing: set[str] = set()
        self._hurry = asyncio.Event()
        self.known: dict[str, tuple[str, ...]] = {}

    async def ask(self) -> None:
        """Ask for every name, and wait ANSWER_S at most."""
        loop = asyncio.get_running_loop()
        names = sorted(self.names())
        for name in names:
            future = self._asked.get(name)
            if future is None or future.get_loop() is not loop:
                self._asked[name] = loop.create_future()
                threading.Thread(target=_resolve, args=(name, loop, self._asked[name]), daemon=True).start()
        if names:
            await asyncio.wait([self._asked[name] for name in names], timeout=ANSWER_S)
        for name in names:
            self._hear(name)
        self._forget(names)

    def _hear(self, name: str) -> None:
        found = self._asked.pop(name).result() if self._asked[name].done() else f"no answer within {ANSWER_S:g} s"
        if isinstance(found, str):
            self._failed(name, found)
            return
        if self.known.get(name) != found:
            log.info("the name %s has the addresses %s", name, " ".join(found))
        self.known[name] = found
        self._failing.discard(name)
        self._waiting.there(_what(name))

    def _failed(self, name: str, reason: str) -> None:
        if name not in self.known:
            self._waiting.missing(_what(name), reason)
        elif name not in self._failing:
            log.warning("the name %s keeps its addresses, %s: %s", name, " ".join(self.known[name]), reason)
        self._failing.add(name)

    def _forget(self, names: Iterable[str]) -> None:
        """What is not configured any more."""
        for name in (self.known.keys() | self._failing) - set(names):
            self.known.pop(name, None)
            self._failing.discard(name)
            self._waiting.there(_what(name))

    async def run(self, interval_s: float, then: Callable[[], None]) -> None:
        """Ask again and again, in the running event loop, and call `then` each time; at once after `hurry`."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._hurry.wait()
            self._hurry.clear()
            await self.ask()
            then()

    def hurry(self) -> None:
        """There are names that were not asked for."""
        self._hurry.set()


def _what(name: str) -> str:
    return f"the name {name}"


def _resolve(name: str, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Answer]) -> None:
    answer: Answer
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
        answer = tuple(sorted(address for address in found if "%" not in address)) or "it has no address"
    except (OSError, UnicodeError) as error:
        answer = getattr(error, "strerror", None) or str(error)
    with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon has ended, or asks anew in another one
        loop.call_soon_threadsafe(future.set_result, answer)
