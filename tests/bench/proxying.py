# SPDX-License-Identifier: Apache-2.0
"""The proxy's front end over an engine by itself, for benches that have no daemon."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from errno import ENOENT, ETIMEDOUT
from itertools import count

from appliance.engine import Engine
from appliance.frontends.frontend import Frontend, Settings, bind
from appliance.frontends.target import Address, Target
from appliance.lab import Lab, endpoint
from appliance.wire import Command, Event, EventType, Key, Op
from control.core.states import Cause

PORT = 3128
TIMEOUT_S = 10.0


class Attaching:
    """Links servers to clients by their address; `see` is given the engine's events."""

    def __init__(self, engine: Engine, clients: dict[str, Key]) -> None:
        self._engine = engine
        self._clients = clients
        self._tokens = count(1)
        self._waiting: dict[int, Future[int]] = {}

    async def attach(self, target: Target, sock: socket.socket, preamble: bytes, early: bytes, timeout_s: float,
                     protocol: str) -> int:  # fmt: skip
        """See appliance.frontends.frontend.Attacher."""
        key = self._clients.get(endpoint(target.host, target.port)) if isinstance(target, Address) else None
        if key is None:
            return ENOENT
        future: Future[int] = Future()
        token = next(self._tokens)
        self._waiting[token] = future
        fd = os.dup(sock.fileno())
        command = Command(
            Op.ATTACH, cause=Cause.SERVER_ATTACH, key=key, fd=fd, token=token, preamble=preamble, early=early
        )
        self._engine.submit([command])
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
        except TimeoutError:
            return ETIMEDOUT

    def see(self, event: Event) -> None:
        if event.type in (EventType.TRANSITION, EventType.REFUSED) and event.token:
            future = self._waiting.pop(event.token, None)
            if future is not None and not future.done():
                future.set_result(event.error)


@contextmanager
def running_proxy(lab: Lab, attaching: Attaching) -> Iterator[tuple[str, int]]:
    """A proxy on the appliance's side of the servers; its address and port."""
    loop = asyncio.new_event_loop()
    address = lab.address("box", "lan0")
    with lab.enter("box"):
        listener = bind(address, PORT)

    async def make() -> Frontend:
        frontend = Frontend(attaching, Settings(TIMEOUT_S))
        frontend.serve(listener)
        return frontend

    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    frontend = asyncio.run_coroutine_threadsafe(make(), loop).result()
    try:
        yield address, PORT
    finally:
        asyncio.run_coroutine_threadsafe(frontend.close(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
