# SPDX-License-Identifier: Apache-2.0
"""Attach by the API: who may be told of a client gets a ticket, which is good once, at a listener on loopback.

API's process, or a command             daemon
  | POST /v1/connections/ID/attach ------>|  who may see the client is known there
  |<- ticket -----------------------------|
  | CONNECT TICKET:1 (loopback, TCP) ---->|  the front end of all attaches; the name is the ticket
  |<- 200, then bytes, both ways ---------|
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from contextvars import Context, copy_context
from errno import ENOENT
from typing import Any, Final, NamedTuple

from appliance.frontends.frontend import MAX_HANDSHAKES, Frontend, Settings, bind
from appliance.frontends.target import Address, Name, Target, host_target, parse_authority, target_text
from appliance.wire import endpoint_text, unpack_address
from control.clients.locate import Located, Locator
from control.clients.scope import SCOPE
from control.config import Attach
from control.core.errors import OperationError
from control.reach.attaching import Attaching

GOOD_S: Final = 10.0
"""How long a ticket may be used."""

HANDSHAKE_S: Final = 1.0
"""How long one on this machine may take to say its ticket. All of them are one source: any local user may come, and
silent ones make room for others."""

MOST: Final = 1024
MOST_EACH: Final = 64
"""Tickets that are not used yet, of all and of one who asks."""

WAY: Final = "api"
"""What the record of attaches has in place of a protocol."""

_HOST: Final = "127.0.0.1"
_PORT: Final = 1  # CONNECT needs one


class _Issued(NamedTuple):
    """meant: the connection whose number was said; None: it is for whichever the target means then. who: the asker's
    name."""

    target: Target
    meant: Located | None
    who: str
    context: Context


class Tickets:
    """Within the event loop, but for what says otherwise. attaching: links whoever has a ticket. listening: where
    attach listens, for servers without one, (address, port); as whoever listens fills it in."""

    def __init__(self, attaching: Attaching, locator: Locator, attach: Attach) -> None:
        self._attaching = attaching
        self._locator = locator
        self._attach = attach
        self.listening: list[list[Any]] = []
        self._tickets: dict[str, _Issued] = {}
        settings = Settings(
            attach.timeout, ("connect",), handshake_s=HANDSHAKE_S, released_s=attach.released_for,
            max_of_source=MAX_HANDSHAKES, max_places_of_source=MAX_HANDSHAKES, makes_room=True,
        )  # fmt: skip
        self._frontend = Frontend(self, settings)
        self._at: tuple[str, int] | None = None

    async def offer(self, name: str) -> dict[str, Any]:
        """Where to connect to reach a client: its number, ``client-address:port``, or name with its domain, also of one
        that is not connected, and perhaps ``:port``, at which it is dialled. Raises OperationError."""
        located, target = await self._find(name)
        return {
            "id": located.id or None if located else None,
            "client": located.key.client_text if located else None,
            "state": located.state.label if located else None,
            "target": target_text(target),
            "at": [endpoint_text((host, port)) for host, port in self.listening],
            "protocols": list(self._attach.protocols),
            "credentials": self._attach.auth != "none",
        }

    async def issue(self, name: str, who: str) -> dict[str, Any]:
        """A ticket for a client, named as for `offer`, within the scope of whoever asks. Raises OperationError."""
        located, target = await self._find(name)
        if sum(one.who == who for one in self._tickets.values()) >= MOST_EACH or len(self._tickets) >= MOST:
            raise OperationError(429, "too many attaches were asked for that have not begun yet")
        if self._at is None:
            try:
                self._at = self._frontend.serve(bind(_HOST, 0))
            except OSError as error:
                raise OperationError(503, f"no attach can be taken by the API now: {error.strerror}") from None
        ticket = secrets.token_hex(16) + ".t"  # no name ends in digits alone
        meant = located if _target(name) is None else None
        self._tickets[ticket] = _Issued(target, meant, who, copy_context())
        asyncio.get_running_loop().call_later(GOOD_S, self._tickets.pop, ticket, None)
        return {"address": f"{_HOST}:{self._at[1]}", "authority": f"{ticket}:{_PORT}", "good_s": GOOD_S}

    async def _find(self, name: str) -> tuple[Located | None, Target]:
        target = _target(name)
        try:
            located = await self._locator.located(target.text if isinstance(target, Name) else name)
        except OperationError as error:
            if error.status != 404 or SCOPE.get() is not None or target is None:
                raise
            return None, target
        return located, target or Address(unpack_address(located.key.client), located.key.client_port)

    def is_of(self, fd: int) -> bool:
        """Whether the socket of a server came by a ticket. From any thread."""
        server = socket.socket(fileno=fd)
        try:
            at: tuple[str, int] = server.getsockname()[:2]
            return at == self._at
        except OSError:
            return False
        finally:
            server.detach()

    def take_back(self, fd: int) -> None:
        """The socket of a server that came by a ticket and has released its client. It needs another one. From any
        thread."""
        self._frontend.take_back(fd)

    async def close(self) -> None:
        """Take no more."""
        await self._frontend.close()

    async def attach(self, target: Target, sock: socket.socket, preamble: bytes, early: bytes, timeout_s: float,
                     protocol: str) -> int:  # fmt: skip
        """frontend.Attacher. target: the ticket."""
        found = self._tickets.pop(target.text, None) if isinstance(target, Name) else None
        if found is None:
            return ENOENT
        work = self._attaching.attach(found.target, sock, preamble, early, timeout_s, WAY, found.meant)
        return await asyncio.get_running_loop().create_task(work, context=found.context)


def _target(name: str) -> Target | None:
    """None: it is the number of a connection."""
    try:
        return parse_authority(name)
    except ValueError:
        pass
    try:
        return host_target(name, _PORT)
    except ValueError:
        return None
