# SPDX-License-Identifier: Apache-2.0
"""Linking a server to a client that is connected: by the engine, in place of its present link."""

from __future__ import annotations

import asyncio
import os
from errno import EBUSY, ECONNRESET, ETIMEDOUT
from typing import Final

from appliance.wire import Command, Key, Op
from control.core.ports import CommandsPort
from control.core.states import Cause, State
from control.reach.arrivals import Arrivals
from control.reach.attach_request import AttachRequest
from control.reach.daemon_links import DaemonLinks, Link

AGAIN_S: Final = 0.05
"""How long a link that cannot be ended yet (bytes are on their way through it) is given before it is tried again."""


class Linker:
    """All of it runs in one event loop. Every method returns 0 or an errno of appliance.frontends.handshake.ANSWERS,
    and leaves the server's socket to its caller."""

    def __init__(self, dispatcher: CommandsPort, arrivals: Arrivals, links: DaemonLinks) -> None:
        self._dispatcher = dispatcher
        self._arrivals = arrivals
        self._links = links

    async def link(self, key: Key, server: AttachRequest, push: bool = False) -> int:
        """Link it to the client's connection, waking that. EBUSY: it is linked to another server. push: that link is
        ended first, once nothing is on its way through it."""
        if (link := self._links.at(key.pack())) is not None:
            return await self.hand_over(link, server)
        first = [Command(op=Op.STANDBY, cause=Cause.COMMAND, key=key)] if push else []
        return await self._attach(key, server, server.preamble, first)

    async def link_adopted(self, server: AttachRequest, key: Key, adopt: Command) -> int:
        """The same for the connection that this command adopts: it has its server before it can say anything to
        another one. OSError: the server has gone, and nothing was done."""
        return await self._attach(key, server, server.preamble, [adopt])

    async def link_when_free(self, key: Key, server: AttachRequest, deadline: float, push: bool = False) -> int:
        """The same; waits until the client is free. deadline: of the event loop's clock."""
        loop = asyncio.get_running_loop()
        while True:
            with self._arrivals.expect(("key", key.pack())) as changed:
                error = await self.link(key, server, push)
                left = deadline - loop.time()
                if error != EBUSY or left <= 0:
                    return error
                await asyncio.wait({changed}, timeout=min(left, AGAIN_S) if push else left)

    async def link_at_once(self, key: Key, service: int, server: AttachRequest, deadline: float) -> int:
        """The same for a client that has connected because it was told to for this server: the link that every client
        gets when it connects is ended."""
        if self._links.kind(service) == "held":
            try:
                async with asyncio.timeout_at(deadline):
                    return await self.hand_over(await self._links.wait_for(key.pack()), server)
            except TimeoutError:
                return ETIMEDOUT
        return await self.link_when_free(key, server, deadline, push=True)

    async def hand_over(self, link: Link, server: AttachRequest) -> int:
        """Link it to the client that is linked to the daemon (daemon_links.py says in which order)."""
        self._links.take(link)
        deadline = asyncio.get_running_loop().time() + server.timeout_s
        rest = asyncio.ensure_future(link.read_all())
        try:
            while True:
                end = Command(op=Op.STANDBY, cause=Cause.COMMAND, id=link.number, key=link.key)
                attached = asyncio.ensure_future(self._attach(link.key, server, b"", [end]))
                await asyncio.wait({rest, attached}, return_when=asyncio.FIRST_COMPLETED)
                if rest.done():
                    server.token, server.spoken = 0, bool(rest.result())
                    await asyncio.get_running_loop().sock_sendall(server.sock, server.preamble + rest.result())
                    link.sock.close()
                    await attached
                    return 0  # whatever comes now, the server was told that it has its client
                error = attached.result()
                if error != EBUSY or asyncio.get_running_loop().time() > deadline:
                    return error
                await asyncio.sleep(AGAIN_S)  # bytes are on their way through the link: it is being read meanwhile
        except OSError:
            # The server went away, or too much was on its way. The client's bytes are lost, so it must not go on.
            return ECONNRESET
        finally:
            rest.cancel()
            link.sock.close()

    async def _attach(self, key: Key, server: AttachRequest, preamble: bytes, first: list[Command]) -> int:
        fd = os.dup(server.sock.fileno())  # the engine's from the command on, which closes it when it refuses
        command = Command(
            op=Op.ATTACH, cause=Cause.SERVER_ATTACH, key=key, fd=fd, preamble=preamble, early=server.early,
            count=round(server.timeout_s * 1000),
        )  # fmt: skip
        future = self._dispatcher.command(command, [State.ACTIVE], server.timeout_s, first)
        server.key, server.token = key.pack(), command.token
        outcome = await asyncio.wrap_future(future)
        server.id = outcome.id
        if not outcome.error and outcome.state != State.ACTIVE:
            return ECONNRESET  # CLOSED on the way up
        return outcome.error
