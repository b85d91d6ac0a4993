# SPDX-License-Identifier: Apache-2.0
"""Which servers are up: active checks, and what the engine met when it made links.

    up    -> down   fall failed checks in a row; or the engine says that max_fails links in a row failed, and gives the
                    server no more
    down  -> up     rise checks in a row; without active checks, after fail_timeout

The engine is told each change (roost_server_mark), and people by a line in the log. All of it runs in the daemon's
event loop, but `link_failed`, which the dispatcher's thread calls.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from appliance.box.checks import CheckFailed, check, failure
from appliance.wire import Event, ServerAddress, ServerStatus, endpoint_text, unpack_address
from control.config import Health as Settings
from control.config import Service, parse_endpoint
from control.core.logs import about
from control.core.ports import ServersPort

log = logging.getLogger("roost.health")

AT_ONCE: Final = 64
"""Checks under way; the others wait for their turn. Each has a descriptor, of the daemon's spare ones."""


@dataclass(slots=True)
class Tally:
    """Counts checks; a server is up until it is known to be down."""

    rise: int
    fall: int
    up: bool = True
    against: int = 0
    """Checks in a row that say the contrary of `up`."""

    def heard(self, passed: bool) -> bool:
        """Count a check; whether `up` is another now."""
        self.against = self.against + 1 if passed != self.up else 0
        if self.against < (self.fall if self.up else self.rise):
            return False
        self.turn(not self.up)
        return True

    def turn(self, up: bool) -> None:
        """It is up, or down, for another reason."""
        self.up, self.against = up, 0


@dataclass(slots=True)
class _Watched:
    service: int
    name: str
    server: ServerAddress
    kind: str
    settings: Settings
    tally: Tally
    reason: str = ""
    task: asyncio.Task[None] | None = None
    trial: asyncio.TimerHandle | None = None

    @property
    def about(self) -> dict[str, Any]:
        """Of a line of the log."""
        return about(service=self.name, server=endpoint_text(self.server))

    @property
    def text(self) -> str:
        return f'server {endpoint_text(self.server)} of service "{self.name}"'

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()
        if self.trial is not None:
            self.trial.cancel()


class Health:
    """Watches the servers of all services."""

    def __init__(self, engine: ServersPort) -> None:
        self._engine = engine
        self._watched: dict[tuple[int, ServerAddress], _Watched] = {}
        self._failed: deque[tuple[int, ServerAddress, str]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns = asyncio.Semaphore(AT_ONCE)

    def watch(self, services: Mapping[int, Service]) -> None:
        """Watch these services' servers from now on, in the running event loop. A server that was watched in the same
        way stays what it is; any other begins as one that is up."""
        self._loop = asyncio.get_running_loop()
        before, self._watched = self._watched, {}
        for index, service in services.items():
            for server in map(parse_endpoint, service.every_server):
                key = (index, server)
                old = before.get(key)
                if old is not None and (old.kind, old.settings) == (service.check, service.health):
                    self._watched[key] = before.pop(key)
                    continue
                settings = service.health
                tally = Tally(settings.rise, settings.fall)
                new = self._watched[key] = _Watched(index, service.name, server, service.check, settings, tally)
                self._engine.mark_server(index, server, True)
                if new.kind != "none":
                    new.task = self._loop.create_task(self._check_always(new))
        for gone in before.values():
            gone.end()
        self._hear_failures()

    def repeat(self) -> None:
        """Tell the engine again which servers are down: it was told of a service only now."""
        for watched in self._watched.values():
            if not watched.tally.up:
                self._engine.mark_server(watched.service, watched.server, False)

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop = None
        for watched in self._watched.values():
            watched.end()
        self._watched = {}

    def link_failed(self, event: Event) -> None:
        """The engine took a server down. Called by the dispatcher's thread; there may be no event loop yet."""
        key = event.record.key
        why = f"{failure(event.error)} ({_times(event.count, 'link')})"
        self._failed.append((event.service, (unpack_address(key.local), key.local_port), why))
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(self._hear_failures)
            except RuntimeError:
                return  # the loop has ended, and so does the daemon

    def _hear_failures(self) -> None:
        while self._failed:
            service, server, why = self._failed.popleft()
            watched = self._watched.get((service, server))
            if watched is None:
                continue  # it has left the configuration
            self._down(watched, why)
            if watched.kind == "none" and self._loop is not None:
                if watched.trial is not None:
                    watched.trial.cancel()
                watched.trial = self._loop.call_later(watched.settings.fail_timeout, self._up, watched)

    async def _check_always(self, watched: _Watched) -> None:
        settings = watched.settings
        await asyncio.sleep(random.uniform(0, settings.interval))
        while True:
            why = ""
            try:
                async with self._turns:
                    await check(watched.server, watched.kind, settings.path, settings.timeout)
            except CheckFailed as failed:
                why = str(failed)
            except OSError as error:
                log.warning("%s is not checked: %s", watched.text, error.strerror, extra=watched.about)
                await asyncio.sleep(settings.interval)
                continue
            if watched.tally.heard(not why):
                if why:
                    self._down(watched, f"{why} ({_times(settings.fall, 'check')})")
                else:
                    self._up(watched)
            await asyncio.sleep(settings.interval)

    def _down(self, watched: _Watched, why: str) -> None:
        watched.tally.turn(False)
        watched.reason = why
        self._engine.mark_server(watched.service, watched.server, False)
        log.warning("%s is down: %s", watched.text, why, extra=watched.about)
        others = [one for one in self._watched.values() if one.service == watched.service]
        if not any(one.tally.up for one in others):
            log.error('service "%s" has no server that is up', watched.name, extra=about(service=watched.name))

    def _up(self, watched: _Watched) -> None:
        watched.tally.turn(True)
        watched.reason = ""
        self._engine.mark_server(watched.service, watched.server, True)
        log.info("%s is up again", watched.text, extra=watched.about)

    def rows(self, service: int) -> list[dict[str, Any]]:
        """The servers of a service as people and programs see them. From any thread."""
        return [self._row(service, status) for status in self._engine.servers(service)]

    def _row(self, service: int, status: ServerStatus) -> dict[str, Any]:
        watched = self._watched.get((service, status.server))
        return {
            "server": endpoint_text(status.server),
            "state": "leaving" if status.leaving else "up" if status.up else "down",
            "reason": watched.reason if watched is not None and not status.up else "",
            "links": status.links,
            "ready": status.ready,
            "linked": status.linked,
            "failed": status.failed,
        }


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'} in a row"
