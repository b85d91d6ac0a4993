# SPDX-License-Identifier: Apache-2.0
"""What of the configuration is not there yet, as at boot, or has gone: interfaces, addresses, routes, names of servers.

All else goes on meanwhile. The log tells what is waited for when that begins or changes, and again every REMIND_S; the
status always does. How long it may take is for the operator to say.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from errno import ENOBUFS
from typing import Final

from appliance.engine import EngineError
from control.daemon.error import DaemonError

log = logging.getLogger("roost.daemon")

RETRY_S: Final = 1.0
REMIND_S: Final = 60.0


NEWS_BYTES: Final = 1 << 16
RTMGRP_LINK: Final = 1
"""linux/rtnetlink.h"""


def _news_of_links() -> socket.socket:
    """Each message says that an interface came, went or changed (rtnetlink(7))."""
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    news = socket.socket(socket.AF_NETLINK, kind, socket.NETLINK_ROUTE)
    news.bind((0, RTMGRP_LINK))
    return news


async def _read(news: socket.socket) -> None:
    """One message, or the fact that some were lost."""
    try:
        await asyncio.get_running_loop().sock_recv(news, NEWS_BYTES)
    except OSError as error:
        if error.errno != ENOBUFS:
            raise


class NotYetError(Exception):
    """Something that a step needs is not there; the message says what, and how people can see it."""


class Waiting:
    """Steps that are tried again until they can be made. All of it runs in one thread at a time."""

    def __init__(self) -> None:
        self._steps: dict[str, Callable[[], None]] = {}
        self._reasons: dict[str, str] = {}
        self._looks: list[Callable[[], None]] = []
        self.told: list[str] = []
        """A sentence for each thing that is waited for, for the status; always the same list."""

    @property
    def steps(self) -> tuple[str, ...]:
        """What they are for, of those that wait."""
        return tuple(self._steps)

    def attempt(self, what: str, step: Callable[[], None]) -> None:
        """Make a step now, or when what it needs is there. Raises what it raises but NotYetError."""
        try:
            step()
        except NotYetError as error:
            self._steps[what] = step
            self.missing(what, str(error))

    def begin_again(self, what: str, step: Callable[[], None], reason: str) -> None:
        """What this step had made is lost; make it again when what it needs is there."""
        self._steps[what] = step
        self.missing(what, reason)

    def drop(self, what: str) -> None:
        """A step that is not to be made any more, if it waits."""
        self._steps.pop(what, None)
        if self._reasons.pop(what, None) is not None:
            self._tell()

    def before_each(self, look: Callable[[], None]) -> None:
        """Call this before steps are tried again: it may find that some must `begin_again`."""
        self._looks.append(look)

    def missing(self, what: str, reason: str) -> None:
        """It is waited for; `there` says when that is over."""
        if self._reasons.get(what) != reason:
            log.warning("%s waits: %s", what, reason)
        self._reasons[what] = reason
        self._tell()

    def there(self, what: str) -> None:
        """It is waited for no longer, if it was."""
        if self._reasons.pop(what, None) is not None:
            log.info("%s is there now", what)
            self._tell()

    def look(self) -> None:
        """Whether something has gone."""
        for look in self._looks:
            look()

    def again(self) -> bool:
        """Try each step that waits; whether one was made. One that fails for another reason is tried again as well:
        clients are served already."""
        made = False
        self.look()
        for what, step in list(self._steps.items()):
            try:
                step()
            except (NotYetError, DaemonError, EngineError) as error:
                self.missing(what, str(error))
                continue
            made = True
            del self._steps[what]
            self.there(what)
        return made

    async def run(self, then: Callable[[], None]) -> None:
        """Try them again and again, and call `then` after one was made. Whether something has gone is looked at as soon
        as an interface comes, goes or changes, too."""
        told = time.monotonic()
        with closing(_news_of_links()) as news:
            while True:
                # A step waits for its time, even if what it needs has come: an interface is still being set up then.
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        while True:
                            await _read(news)
                            self.look()
                if self.again():
                    then()
                if time.monotonic() - told >= REMIND_S:
                    told = time.monotonic()
                    for sentence in self.told:
                        log.warning("still waiting: %s", sentence)

    def _tell(self) -> None:
        self.told[:] = [f"{what}: {reason}" for what, reason in self._reasons.items()]
