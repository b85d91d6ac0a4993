# SPDX-License-Identifier: Apache-2.0
"""Data connections that agents have opened for servers, until their ends: when a server is gone its agent is told, and
closes the data connection, since the agent alone knows when it has all bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from appliance.wire import Command, Event, Op
from control.core.ports import EnginePort
from control.core.states import Cause, State
from control.reach.arrivals import Arrivals
from control.reach.daemon_links import DaemonLinks

END_S: Final = 10.0
"""How long an agent may take to close a data connection whose server is gone; then it is reset."""

Say = Callable[[str, Mapping[str, object]], Awaitable[None]]


@dataclass(slots=True)
class Session:
    """A data connection. linked: a server has it now. size: bytes that servers have sent, as far as it is known."""

    nonce: str
    client: str
    linked: bool = False
    size: int = 0


class AgentSessions:
    """All of it runs in one event loop, but for `hear` and `closing`. say: sends a message to the agent of a client, by
    its name."""

    def __init__(self, engine: EnginePort, arrivals: Arrivals, links: DaemonLinks, say: Say) -> None:
        self._engine = engine
        self._arrivals = arrivals
        self._links = links
        self._say = say
        self._sessions: dict[bytes, Session] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._sessions

    def add(self, key: bytes, session: Session) -> None:
        """An agent has opened the connection with this key."""
        self._sessions[key] = session

    def forget(self, key: bytes) -> None:
        """It has come to nothing."""
        self._sessions.pop(key, None)

    def closing(self, clients: Container[str]) -> list[Command]:
        """What closes the data connections for these clients; from any thread."""
        return [Command(op=Op.CLOSE, cause=Cause.COMMAND, key=key) for key, session in [*self._sessions.items()]
                if session.client in clients]  # fmt: skip

    def hear(self, transitions: Iterable[Event]) -> None:
        """A batch of transitions (TransitionsPort.listen)."""
        if not self._sessions:
            return
        for event in transitions:
            key = event.record.key_raw
            if (session := self._sessions.get(key)) is None:
                continue
            if event.to_state == State.CLOSED:
                self._sessions.pop(key, None)
            elif event.cause == Cause.SERVER_ATTACH:
                session.linked, session.size = True, event.tx_bytes  # those that came with its request
            elif session.linked and event.from_state == State.ACTIVE:
                session.linked = False
                session.size += event.tx_bytes
                self._arrivals.call(self._session_over, key, event.id)

    def _session_over(self, key: bytes, number: int) -> None:
        if (session := self._sessions.get(key)) is not None:
            self._links.begin(self._end(key, number, session))

    async def _end(self, key: bytes, number: int, session: Session) -> None:
        """The server of a data connection is gone."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(END_S):
                await self._say(session.client, {"end": session.nonce, "bytes": session.size})
                while key in self._sessions:
                    with self._arrivals.expect(("key", key)) as changed:
                        if key in self._sessions:
                            await changed
                return
        self._engine.submit([Command(op=Op.CLOSE, cause=Cause.COMMAND, id=number, key=key)])
        self._sessions.pop(key, None)
