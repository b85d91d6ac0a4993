# SPDX-License-Identifier: Apache-2.0
"""Linking a server that asks by the proxy to the client that it wants: the Attacher of appliance.frontends.frontend."""

from __future__ import annotations

import socket
from errno import EIO, ENOENT
from typing import Final

from appliance.frontends.target import Target
from appliance.wire import SecondServer
from control.clients.locate import Located, Locator
from control.clients.scope import SCOPE
from control.core.ports import EnginePort
from control.reach.absent import Absent
from control.reach.attach_request import AttachRequest
from control.reach.attaches import Attaches
from control.reach.linker import Linker

SETTLE_S: Final = 2.0
"""A link that ends for the sake of another server is looked at once a second."""


class Attaching:
    """engine: has the policy in force for each client."""

    def __init__(self, locator: Locator, engine: EnginePort, linker: Linker, absent: Absent,
                 attaches: Attaches) -> None:  # fmt: skip
        self._locator = locator
        self._engine = engine
        self._linker = linker
        self._absent = absent
        self._attaches = attaches

    async def attach(self, target: Target, sock: socket.socket, preamble: bytes, early: bytes, timeout_s: float,
                     protocol: str, meant: Located | None = None) -> int:  # fmt: skip
        """Link a server's socket to a client, waking it; 0 or an errno. The socket stays the caller's. meant: the one
        connection that is meant, where it was said by its number: no other one is waited for, or dialled."""
        request = AttachRequest(sock, preamble, early, timeout_s)
        with self._attaches.asked(protocol, target, request):
            request.error = await self._attach(target, request, meant)
        return request.error

    async def _attach(self, target: Target, request: AttachRequest, meant: Located | None) -> int:
        timeout_s = request.timeout_s
        try:
            candidates = await self._locator.wanted(target, meant)
        except OSError as why:
            return await self._without(target, meant, why.errno or EIO, request)
        for wanted in candidates:
            policy = self._engine.find_class(wanted.record.key_raw)
            request.service = wanted.service
            may_wait = policy["second_server"] != SecondServer.REFUSED
            # The engine keeps to it, and says so when it is over.
            request.timeout_s = timeout_s + (policy["second_server_ms"] / 1000 + SETTLE_S if may_wait else 0.0)
            error = await self._linker.link(wanted.record.key, request)
            if error != ENOENT or not wanted.candidate:  # else it was a false positive of the filter
                return error
        return await self._without(target, meant, ENOENT, request)

    async def _without(self, target: Target, meant: Located | None, error: int, request: AttachRequest) -> int:
        """There is no connection. Whose a client is that has none cannot be told."""
        return error if meant or SCOPE.get() is not None else await self._absent.reach(target, error, request)
