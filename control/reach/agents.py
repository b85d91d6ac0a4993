# SPDX-License-Identifier: Apache-2.0
"""Agents: they say which clients they speak for, and are asked for one when a server wants it (docs/agents.md).

An agent's control connection is a client's connection like any other, to a service of the kind `agents`, and sleeps
like any other; nothing is kept here for it but its rows in the registry (and its TLS state, where TLS is used). It is
the engine that knows the connection by its 4-tuple and number, so one hello on it is enough.

    agent                                          appliance
      | {"roost-agent":1,"token":..,"clients":{..}} ->|  hello
      |<- {"welcome":1,"stay":[..]}                   |  the link is closed; the connection may sleep
      |                                               |  a server asks for "camera": it is woken
      |<- {"attach":"camera","nonce":".."}            |  with "say", too, for a client that connects by itself
      | {"roost-agent":1,"nonce":".."}              ->|  on a new connection, which becomes the client's; or
      | {"nonce":"..","error":".."}                 ->|  on the control connection
      |<- {"end":"..","bytes":n}                      |  the server is gone, it had sent n bytes

What is no such message, or comes with a wrong token, or too late, is answered by a reset, always the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from errno import EBUSY, ECONNREFUSED, ENOTCONN, ETIMEDOUT
from typing import Any, Final
from weakref import WeakValueDictionary

from appliance.agent.roost_agent import MAX_SESSIONS, VERSION, ProtocolError
from appliance.bounds import Rates, Turns
from appliance.wire import Command, Event, Key, Limited, Op, unpack_address
from control.clients.registry import Gift, Named, Registry, RegistryError
from control.core.logs import about
from control.core.ports import CommandsPort, EnginePort
from control.core.states import INACTIVE, Cause, State
from control.reach.agent_channel import AgentChannel
from control.reach.agent_hello import Settings, agent_of, may_be_spoken_for, may_speak_for, wanted_clients
from control.reach.agent_sessions import AgentSessions, Session
from control.reach.arrivals import Arrivals, What
from control.reach.attach_request import AttachRequest
from control.reach.daemon_links import MAX_STRANGERS, DaemonLinks, Link
from control.reach.dialled import Dialled
from control.reach.linker import AGAIN_S, Linker
from control.reach.tls import HANDSHAKE, TlsState

log = logging.getLogger("roost.agents")

GOODBYE_S: Final = 1.0
"""How long a link to an agent is kept for what it may still say, when nothing is expected any more."""

GATHER_S: Final = 0.01
"""How long hellos gather for one commit."""

HANDSHAKES_EACH: Final = MAX_STRANGERS // 2
"""TLS handshakes of one source that may wait for a thread; what comes beyond gives its place back at once."""

NEW_NAMES_MAX: Final = 65_536
"""Clients that an [[agent]] may begin to speak for in an hour, with all its connections."""

HOUR_S: Final = 3600.0

ASK_S: Final = 10.0
"""How long it may take to wake an agent's control connection."""


WRONG_MAX: Final = 20
"""Messages on one link that mean nothing; then it is reset."""

LATE_MAX: Final = MAX_SESSIONS
"""Answers on one link that nothing waits for any more, as after a long outage of the agent's clients."""

WITHDRAWN: Final = "its token is withdrawn, or was said to a daemon that kept none: it says hello anew"


@dataclass(slots=True)
class _Ask:
    """A server that waits for the client of an agent. key: the agent's connection, by which it was told last. answer:
    the data connection's link, or an errno."""

    key: bytes
    answer: asyncio.Future[Link | int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Agents:
    """All of it runs in one event loop, but for `hear`, and for `forget_strays`, `forget_withdrawn` and `clients`,
    which block for as long as the database takes. registry: the one of the kind `agents`."""

    def __init__(self, settings: Settings, engine: EnginePort, dispatcher: CommandsPort, registry: Registry,
                 names: Registry, arrivals: Arrivals, dialled: Dialled, links: DaemonLinks,
                 linker: Linker) -> None:  # fmt: skip
        self._settings = settings
        self._engine = engine
        self._dispatcher = dispatcher
        self._registry = registry
        self._names = names
        self._arrivals = arrivals
        self._dialled = dialled
        self._links = links
        self._linker = linker
        self._channels: dict[bytes, AgentChannel] = {}
        self._tls: dict[bytes, TlsState] = {}
        self._handshakes = Turns("roost-handshake", HANDSHAKES_EACH)
        self._new_names = Rates(NEW_NAMES_MAX / HOUR_S, NEW_NAMES_MAX)
        self._asks: dict[str, _Ask] = {}
        self._turns: WeakValueDictionary[tuple[bytes, int], asyncio.Lock] = WeakValueDictionary()
        self._sessions = AgentSessions(engine, arrivals, links, self._say)
        self._commit: asyncio.Task[None] | None = None
        self.counts = {"hellos": 0, "rejected": 0, "asked": 0, "answered": 0}

    # -- an agent that speaks -----------------------------------------------------------------------------------------

    async def serve(self, link: Link) -> None:
        """One link of a client of the service: of a control connection, of a data connection to be, or of neither."""
        if link.packed in self._sessions:
            await link.ended()  # its server is gone, and so is what the client still says
            return
        try:
            if tokens := await asyncio.to_thread(self._registry.tokens_of, link.number):
                if not all(may_speak_for(self._settings, name, token) for name, token in tokens.items()):
                    raise ProtocolError(WITHDRAWN)
                await self._links.introduce(link)
                tls = self._tls.get(link.packed)
                if self._settings.tls and (tls is None or tls.number != link.number):
                    self._reject(link, "its TLS session is forgotten")  # it comes again
                    return
                await self._listen(AgentChannel(link, self._handshakes, tls))
            else:
                self._links.keep_stranger(link)
                await self._introduce(link)
        except (ProtocolError, ssl.SSLError, OSError, TimeoutError, RegistryError, ValueError) as error:
            self._reject(link, str(error) or "too slow")

    def _reject(self, link: Link, why: str) -> None:
        self.counts["rejected"] += 1
        log.info(
            "%s is turned away: %s", link.key.client_text, why, extra=about(connection=link.number, client=link.key)
        )
        self._links.reject(link)

    async def _introduce(self, link: Link) -> None:
        """The first message of a connection."""
        if not self._engine.within_limit(Limited.AGENTS, unpack_address(link.key.client)):
            raise ProtocolError("its source does more than [limits] agents allows")
        async with asyncio.timeout(self._settings.hello_s):
            if not link.waiting and not (await link.readable()):
                raise ProtocolError("it said nothing")
            link.waiting = link.waiting or await link.read()
            tls = None
            if self._settings.tls and link.waiting[:1] == bytes([HANDSHAKE]):
                tls = TlsState(self._settings.tls, link.number)
            channel = AgentChannel(link, self._handshakes, tls)
            message = await channel.next()
        if message is None or message.get("roost-agent") != VERSION:
            raise ProtocolError("no hello")
        if "nonce" in message:
            ask = self._asks.get(message["nonce"]) if isinstance(message["nonce"], str) else None
            if ask is None or ask.answer.done() or tls:
                raise ProtocolError("no server waits for this data connection")
            link.waiting = channel.lines.unfinished
            self._links.take(link)
            ask.answer.set_result(link)
            return
        if self._settings.tls and tls is None:
            raise ProtocolError("no TLS")
        await self._hello(channel, message)
        await self._listen(channel)

    async def _hello(self, channel: AgentChannel, message: Mapping[str, Any]) -> None:
        """Raises ProtocolError, ValueError or RegistryError."""
        agent = agent_of(self._settings, message.get("token"))
        link, services = channel.link, wanted_clients(self._settings, agent, message.get("clients"))
        gift = Gift(services, link.packed, link.number, token=bytes.fromhex(agent.token))
        await self._links.introduce(link)
        if channel.tls is not None:
            if len(self._tls) >= self._settings.tls_sessions and link.packed not in self._tls:
                raise ProtocolError("too many TLS sessions: [agents] tls_sessions")
            self._tls[link.packed] = channel.tls
            event = self._engine.find(link.key)
            if event is None or event.number not in (0, link.number):  # `hear` was told before there was anything here
                self._tls.pop(link.packed, None)
                raise ProtocolError("it has ended")
        for _ in services.keys() - await asyncio.to_thread(self._registry.find_all, list(services)):
            if self._new_names.wait_s(agent.name):
                raise ProtocolError(f"the agent {agent.name} began to speak for {NEW_NAMES_MAX} clients in an hour")
            self._new_names.take(agent.name)
        await asyncio.to_thread(self._registry.give_all, [gift])
        await asyncio.to_thread(self._names.give_way, list(services))
        await self._committed()
        self.counts["hellos"] += 1
        log.info("agent %s at %s speaks for %s", agent.name, link.key.client_text, ", ".join(services),
                 extra=about(connection=link.number, client=link.key, agent=agent.name))  # fmt: skip
        stay = self._dialled.due(services)
        await channel.write({"welcome": VERSION, "stay": stay})
        self._dialled.told(stay)

    async def _committed(self) -> None:
        """Until what was given by now is written. All that say hello at about the same time wait in one thread: after a
        reboot agents come by the thousand."""
        if self._commit is None:
            self._commit = asyncio.ensure_future(self._commit_soon())
        await asyncio.shield(self._commit)

    async def _commit_soon(self) -> None:
        await asyncio.sleep(GATHER_S)
        self._commit = None  # a hello from now on waits for the next commit
        await asyncio.to_thread(self._registry.commit)

    async def _listen(self, channel: AgentChannel) -> None:
        """What an agent that is known says. Nothing is expected of it but answers to what it is asked."""
        key, wrong, late = channel.link.packed, 0, 0
        self._channels[key] = channel
        try:
            while True:
                async with asyncio.timeout(None if self._asked(key) else GOODBYE_S):
                    message = await channel.next()
                if message is None:
                    return
                if message.get("roost-agent") == VERSION and "nonce" not in message:
                    await self._hello(channel, message)
                elif "nonce" not in message:
                    wrong += 1
                elif not self._answer(channel.link, message):
                    late += 1
                if wrong > WRONG_MAX or late > LATE_MAX:
                    raise ProtocolError(f"{wrong} messages that mean nothing, {late} answers to nothing")
                await asyncio.sleep(0)  # a link that sends without end would keep the others from their turn
        except TimeoutError:
            if channel.lines.unfinished:
                raise
            self._leave(channel)
            channel.finish()
            await channel.link.ended()
        finally:
            self._leave(channel)

    def _leave(self, channel: AgentChannel) -> None:
        if self._channels.get(channel.link.packed) is channel:
            del self._channels[channel.link.packed]

    def _asked(self, key: bytes) -> bool:
        return any(ask.key == key and not ask.answer.done() for ask in self._asks.values())

    def _answer(self, link: Link, message: Mapping[str, Any]) -> bool:
        """Whether something waits for it."""
        ask = self._asks.get(message["nonce"]) if isinstance(message["nonce"], str) else None
        if ask is not None and ask.key == link.packed and not ask.answer.done() and "error" in message:
            log.info("an agent cannot reach its client: %.200r", message["error"],
                     extra=about(connection=link.number, client=link.key))  # fmt: skip
            ask.answer.set_result(ECONNREFUSED)
            return True
        return False

    # -- an agent that is spoken to -----------------------------------------------------------------------------------

    async def reach(self, name: str, server: AttachRequest, timeout_s: float) -> int:
        """Let the agent of the client with this name bring the client, and link it to the server. 0, or an errno:
        ENOTCONN no agent speaks for it now, ECONNREFUSED the agent could not, ETIMEDOUT. Raises OSError, ENOTCONN when
        the server has gone."""
        named = await self._registry.look_up(name)
        if named is None or not named.connected or not may_be_spoken_for(self._settings, name):
            return ENOTCONN
        self.counts["asked"] += 1
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                came: Link | Key | int
                if named.service:
                    came = await self._told_to_connect(name, named, server)
                else:
                    came = await self._told_to_open(name, named, server)
        except TimeoutError:
            return ETIMEDOUT
        if isinstance(came, int):
            return came
        if isinstance(came, Link):
            return await self._join(came, server)
        return await self._meet(name, came, named.service, server, deadline)

    async def _told_to_open(self, name: str, named: Named, server: AttachRequest) -> Link | int:
        """The data connection that an agent has opened, or an errno."""
        with self._asking(named.key) as (nonce, ask):
            await self._say(name, {"attach": name, "nonce": nonce}, ask)
            await server.wait(ask.answer)
            link = ask.answer.result()
            if isinstance(link, Link):
                self._sessions.add(link.packed, Session(nonce, name))
            return link

    async def _told_to_connect(self, name: str, named: Named, server: AttachRequest) -> Key | int:
        """The connection that a client has made by itself, or an errno."""
        if self._settings.says_nonce(named.service):
            say = secrets.token_urlsafe(16)
            return await self._told(name, named.key, server, {"say": say}, ("said", say.encode() + b"\n"))
        # Behind one address the next connection to the service is the client's that was told last: one by one.
        client = named.key[:16]
        async with self._turns.setdefault((client, named.service), asyncio.Lock()):
            return await self._told(name, named.key, server, {}, ("service", client, named.service))

    async def _told(self, name: str, agent: bytes, server: AttachRequest, more: Mapping[str, str],
                    comes: What) -> Key | int:  # fmt: skip
        """The same: the first for which this comes to pass, or which has the name. more: members of the message."""
        with self._asking(agent) as (nonce, ask), self._arrivals.expect(comes, ("name", name)) as arrival:
            await self._say(name, {"attach": name, "nonce": nonce, **more}, ask)
            await server.wait(arrival, ask.answer)
            if not arrival.done():
                return ECONNREFUSED
            if not (key := arrival.result()):  # it has the name now
                named_now = await self._names.look_up(name)
                key = named_now.key if named_now else b""
            return Key.unpack(key)

    @contextlib.contextmanager
    def _asking(self, key: bytes) -> Iterator[tuple[str, _Ask]]:
        nonce, ask = secrets.token_urlsafe(16), _Ask(key)
        self._asks[nonce] = ask
        try:
            yield nonce, ask
        except BaseException:  # too late, by an instant
            if ask.answer.done() and not ask.answer.cancelled() and isinstance(link := ask.answer.result(), Link):
                self._links.reject(link)
                link.sock.close()
            raise
        finally:
            del self._asks[nonce]
            ask.answer.cancel()
            if not self._asked(ask.key) and (channel := self._channels.pop(ask.key, None)) is not None:
                channel.finish()

    async def _say(self, name: str, message: Mapping[str, object], ask: _Ask | None = None) -> None:
        """A message on the control connection of a client's agent, which is woken, and may have come again meanwhile.
        Cancel it when it lasts too long. Raises OSError."""
        while True:
            with self._arrivals.expect(("agent", name)) as comes:
                named = await self._registry.look_up(name)
                if named is not None and named.connected:
                    if not may_speak_for(self._settings, name, named.token):
                        self._engine.submit([_close(named)])  # the one that may comes, and then it is asked
                    else:
                        if ask is not None:
                            ask.key = named.key
                        if await self._say_at(Key.unpack(named.key), named.id, message):
                            return
                    await asyncio.wait({comes}, timeout=AGAIN_S)
                else:
                    await comes

    async def _say_at(self, key: Key, number: int, message: Mapping[str, object]) -> bool:
        """False: not now."""
        packed = key.pack()
        if (channel := self._channels.get(packed)) is not None:
            try:
                await channel.write(message)
            except OSError:
                return False
            return True
        tls = self._tls.get(packed)
        if self._settings.tls and (tls is None or tls.number != number):
            # A daemon before this one had its TLS session. The agent comes again, and then it is asked.
            self._engine.submit([Command(op=Op.CLOSE, cause=Cause.COMMAND, key=key)])
            return False
        ours, engines = socket.socketpair()
        ours.setblocking(False)
        command = Command(op=Op.ATTACH, cause=Cause.SERVER_ATTACH, key=key, fd=engines.detach())
        outcome = await asyncio.wrap_future(self._dispatcher.command(command, [State.ACTIVE], ASK_S))
        if outcome.error or outcome.state != State.ACTIVE:
            ours.close()
            if outcome.error != EBUSY:
                log.debug("the agent at %s cannot be asked: errno %d", key.client_text, outcome.error,
                          extra=about(connection=number, client=key))  # fmt: skip
            return False
        link = Link(ours, key, number, 0)
        channel = AgentChannel(link, self._handshakes, tls)
        await channel.write(message)
        self._channels[packed] = channel
        self._links.begin(self._hear_out(channel))
        return True

    async def _hear_out(self, channel: AgentChannel) -> None:
        try:
            await self._listen(channel)
        except (ProtocolError, ssl.SSLError, OSError, TimeoutError, RegistryError, ValueError) as error:
            self._reject(channel.link, str(error) or "too slow")
        finally:
            channel.link.sock.close()

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def _join(self, link: Link, server: AttachRequest) -> int:
        """Give the server the data connection that an agent has opened for it."""
        error = await self._linker.hand_over(link, server)
        if error:
            self._sessions.forget(link.packed)
            self._links.reject(link)
        else:
            self.counts["answered"] += 1
        return error

    async def _meet(self, name: str, key: Key, service: int, server: AttachRequest, deadline: float) -> int:
        """Give the server the connection that a client has made by itself."""
        error = await self._linker.link_at_once(key, service, server, deadline)
        if error:
            return error
        self.counts["answered"] += 1
        event = self._engine.find(key)
        if event is not None and event.id:
            try:
                await asyncio.to_thread(self._name, name, key.pack(), event.id)
            except RegistryError as why:
                log.warning("%s: %s", name, why, extra=about(connection=event.id, client=key, name=name))
        return 0

    def _name(self, name: str, key: bytes, number: int) -> None:
        """Until this connection ends, servers that ask for the name get it."""
        if not self._names.names_of([number]):
            self._names.give(name, key, number)

    def hear(self, transitions: Iterable[Event]) -> None:
        """A batch of transitions (TransitionsPort.listen)."""
        self._sessions.hear(transitions)
        if not self._tls:
            return
        for event in transitions:
            key = event.record.key_raw
            if (
                event.to_state == State.CLOSED
                and (tls := self._tls.get(key)) is not None
                and event.id in (0, tls.number)
            ):
                self._tls.pop(key, None)

    def forget_strays(self) -> int:
        """Close the connections of the services of agents that no agent said hello on: data connections of sessions
        that ended with a daemon before this one. How many; it looks at every connection once. Raises RegistryError."""
        keys = [
            event.record.key_raw
            for event in self._engine.list()
            if self._links.kind(event.service) == "agents" and event.to_state in INACTIVE
        ]
        nameless = self._registry.nameless(keys)
        strays = [Command(op=Op.CLOSE, cause=Cause.RESTORE, key=key) for key in nameless]
        self._engine.submit(strays)
        return len(strays)

    def forget_withdrawn(self) -> int:
        """Close the connections of agents that may not speak for a client any more that they spoke for, how many, and
        the data connections for that client. The names that no agent may speak for are forgotten. One whose token is
        not known is closed when it next speaks or is wanted. Raises RegistryError."""
        withdrawn, names = dict[int, Command](), set[str]()
        for name, named in self._registry.all().items():
            if not (known := may_be_spoken_for(self._settings, name)):
                self._registry.remove(name)
            withdrawn_token = any(named.token) and not may_speak_for(self._settings, name, named.token)
            if withdrawn_token or not known:
                names.add(name)
                if named.connected:
                    withdrawn[named.id] = _close(named)
        self._engine.submit([*withdrawn.values(), *self._sessions.closing(names)])
        return len(withdrawn)

    def close(self) -> None:
        """Begin no other handshake."""
        self._handshakes.close()

    # -- looking ------------------------------------------------------------------------------------------------------

    def clients(self) -> list[dict[str, Any]]:
        """The clients that agents speak for, as programs read it."""
        names = {index: name for name, index in self._settings.services().items()}
        return [
            {
                "name": name,
                "agent": Key.unpack(named.key).client_text,
                "id": named.id,
                "connected": named.connected,
                "connects_to": names.get(named.service) if named.service else None,
                "stay": self._dialled.stays(name),
                "since_ms": named.since,
            }
            for name, named in self._registry.all().items()
        ]


def _close(named: Named) -> Command:
    return Command(op=Op.CLOSE, cause=Cause.COMMAND, key=Key.unpack(named.key), id=named.id)
