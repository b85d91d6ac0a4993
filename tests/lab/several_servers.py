# SPDX-License-Identifier: Apache-2.0
"""Several servers of one service, each of which can be shut and opened again."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from appliance.wire import ServerAddress, ServerStatus
from tests.lab.engine_lab import SERVICE, EngineLab


class Servers:
    """Servers on ports of the LAN, for a box's service; each can be shut, and opened again."""

    def __init__(self, box: EngineLab, family: int, count: int, stack: ExitStack, **service: Any) -> None:
        self.box, self.family = box, family
        self._stack = stack
        self.all: list[ServerAddress] = [(box.lab.address("lan", "eth0", family), 9001 + n) for n in range(count)]
        self._listeners: dict[ServerAddress, socket.socket] = {}
        for server in self.all:
            self.open(server)
        self.use(self.all, **service)

    def use(self, servers: Sequence[ServerAddress], **service: Any) -> None:
        self.box.engine.update_service(self.box.spec(self.family, servers=tuple(servers), **service))

    def open(self, server: ServerAddress) -> None:
        with self.box.lab.enter("lan"):
            listener = socket.create_server(
                server, family=socket.AF_INET6 if self.family == 6 else socket.AF_INET, backlog=100
            )
        self._listeners[server] = self._stack.enter_context(listener)

    def shut(self, server: ServerAddress) -> None:
        self._listeners.pop(server).close()

    def accept(self, timeout_s: float = 5.0) -> tuple[ServerAddress, socket.socket]:
        """The next link, and whose it is."""
        ready = select.select(list(self._listeners.values()), [], [], timeout_s)[0]
        assert ready, f"no link within {timeout_s} s"
        link = self._stack.enter_context(ready[0].accept()[0])
        link.settimeout(5)
        return next(server for server, listener in self._listeners.items() if listener is ready[0]), link

    def dial(self, **options: Any) -> socket.socket:
        return self.box.dial(self.family, **options)

    def status(self) -> dict[ServerAddress, ServerStatus]:
        return {status.server: status for status in self.box.engine.servers(SERVICE[self.family])}

    def links(self) -> dict[ServerAddress, int]:
        return {server: status.links for server, status in self.status().items()}


@contextmanager
def servers_of(box: EngineLab, family: int, count: int = 2, **service: Any) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(box, family, count, stack, **service)
