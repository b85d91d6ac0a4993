# SPDX-License-Identifier: Apache-2.0
"""Agents as the daemon sees them, without a network: whose hello is good, for how long, and what else they may say."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from errno import ECONNREFUSED, ENOTCONN
from pathlib import Path

import pytest

from appliance.agent.roost_agent import encode, token_digest
from appliance.frontends.frontend import MAX_OF_SOURCE
from appliance.frontends.target import Name
from appliance.wire import EventType, Key, Op
from control.clients.locate import Locator
from control.clients.naming import Naming
from control.clients.registry import Registry
from control.config import Config, parse
from control.core.errors import OperationError
from control.core.states import Cause, State
from control.dispatch.dispatcher import Dispatcher
from control.reach import agents, attach_request, daemon_links
from control.reach.agent_sessions import Session
from control.reach.attach_request import AttachRequest
from control.reach.daemon_links import Link
from control.reach.reach import Reach
from control.reach.tls import server_context
from control.store.store import Store
from tests.certificates import make_certificate
from tests.unit.fake_engine import FakeEngine, event, key, record
from tests.unit.test_absence import absence

SERVICE = """
[[service]]
name = "agents"
listen = "10.0.0.1:7100"
kind = "agents"
"""
SITE = '[[agent]]\nname = "{2}"\ntoken = "{0}"\nclients = [{1}]\n'
AGENTS = 1


def site(token: str, clients: str) -> str:
    return SITE.format(token_digest(token), clients, token)


def configured(token: str = "old", clients: str = '"camera-*"') -> Config:
    return parse(SERVICE + site(token, clients))


def hello(*clients: str, token: str = "old") -> bytes:
    return encode({"roost-agent": 1, "token": token, "clients": {name: {} for name in clients}})


class Daemon:
    """One run of a daemon, within its event loop; its links' far ends are agents."""

    def __init__(self, store: Store, engine: FakeEngine, config: Config, tls: ssl.SSLContext | None = None) -> None:
        self.store, self.engine = store, engine
        self.dispatcher = Dispatcher(engine, store, 1000)
        names, services = Registry(store, engine), {AGENTS: config.service[0]}
        locator = Locator(engine, store, names, services, "roost", [])
        self.reach = Reach(config, engine, self.dispatcher, store, names, services, locator,
                           absence(store, names, services, config), tls)  # fmt: skip
        self.agents = self.reach.agents
        self.naming = Naming(store, names, locator, "roost", lambda _: None, self.reach.spoken_for)
        self.ends: list[socket.socket] = []

    def link(self, number: int, said: bytes = b"") -> socket.socket:
        """A client of the service is linked to the daemon, and says this."""
        if key(number) not in self.engine.connections:
            self.engine.add(key(number), number, State.ACTIVE)
        end, theirs = socket.socketpair()
        end.setblocking(False)
        self.ends.append(end)
        end.sendall(said)
        linked = event(EventType.LINK, key(number), number, count=theirs.detach())
        self.reach.links.linked(linked._replace(record=record(key(number), number, AGENTS)))
        return end

    async def registered(self, number: int, *clients: str, token: str = "old") -> socket.socket:
        end = self.link(number, hello(*clients, token=token))
        assert (await heard(end)).startswith(b'{"welcome":1')
        return end

    def spoken_for(self) -> dict[str, bool]:
        """Whether the agent of each client is connected, by name."""
        return {row["name"]: row["connected"] for row in self.agents.clients()}

    def closed(self) -> list[int]:
        return [command.id for command in self.engine.commands if command.op == Op.CLOSE]

    async def until_closed(self, *numbers: int) -> None:
        while self.closed() != [*numbers]:
            await asyncio.sleep(0.005)

    async def ask(self, client: str) -> int:
        """What a server is told that wants this client."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            return await self.agents.reach(client, AttachRequest(ours, b"", b"", 5.0), 5.0)


async def heard(end: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(end, 65536)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(f"sqlite:///{tmp_path}/roost.db", lambda slept: None)
    made.open()
    made.start()
    yield made
    made.close(3)


Start = Callable[..., Daemon]


@asynccontextmanager
async def started(
    store: Store, engine: FakeEngine, config: Config, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Daemon]:
    daemon = Daemon(store, engine, config, tls)
    daemon.reach.begin()
    try:
        yield daemon
    finally:
        await daemon.reach.close()
        for end in daemon.ends:
            end.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(scenario())


# -- tokens that are withdrawn ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "now",
    [configured("new"), configured("old", '"meter-*"'), parse(SERVICE + site("a", '"camera-1"'))],
    ids=["another token", "other clients", "another agent"],
)
def test_an_agent_that_may_not_speak_for_its_client_any_more_is_neither_heard_nor_asked_after_a_restart(
    store: Store, now: Config
) -> None:
    engine = FakeEngine()

    async def work() -> None:
        async with started(store, engine, configured()) as before:
            await before.registered(7, "camera-1")
            await before.registered(8, "camera-1x")
        async with started(store, engine, now) as after:
            asked = asyncio.create_task(after.ask("camera-1"))
            while not (asked.done() or after.closed()):
                await asyncio.sleep(0.005)
            assert not asked.done() or await asked == ENOTCONN
            asked.cancel()
            engine.commands.clear()
            after.link(8, b"{}\n")
            await after.until_closed(8)

    run(work)


def test_an_agent_that_may_still_speak_goes_on_over_a_restart(store: Store) -> None:
    engine = FakeEngine()
    both = parse(SERVICE + site("new", '"meter-*"') + site("old", '"camera*"'))

    async def work() -> None:
        async with started(store, engine, configured()) as before:
            await before.registered(7, "camera-1")
        async with started(store, engine, both) as after:
            assert await asyncio.to_thread(after.agents.forget_withdrawn) == 0
            after.link(7, hello("camera-2"))
            while "camera-2" not in after.spoken_for():
                await asyncio.sleep(0.005)
            assert after.closed() == []

    run(work)


def test_a_reload_closes_agents_whose_token_is_withdrawn_and_forgets_what_no_agent_may_speak_for(store: Store) -> None:
    engine = FakeEngine()
    both = site("kept", '"meter-*"') + site("new", '"camera-*"')

    async def work() -> None:
        async with started(
            store, engine, parse(SERVICE + site("kept", '"meter-*"')
                                 + site("old", '"camera-*", "door"'))
        ) as daemon:  # fmt: skip
            await daemon.registered(7, "camera-1", "camera-2")
            await daemon.registered(8, "door")
            await daemon.registered(9, "meter-1", token="kept")
            for number, client in ((20, "camera-1"), (21, "door"), (22, "meter-1")):
                daemon.agents._sessions.add(key(number).pack(), Session("nonce", client))
            await daemon.reach.take_over(parse(SERVICE + both))
            closed = [command for command in engine.commands if command.op == Op.CLOSE]
            assert sorted(command.id for command in closed if command.id) == [7, 8]
            assert {command.key for command in closed if not command.id} == {key(20).pack(), key(21).pack()}
            assert daemon.spoken_for() == {"camera-1": False, "camera-2": False, "meter-1": True}
            engine.commands.clear()
            daemon.link(10, hello("camera-1"))
            await daemon.until_closed(10)
            await daemon.registered(11, "camera-1", token="new")

    run(work)


def test_one_that_said_hello_to_a_daemon_that_kept_no_tokens_says_it_again(store: Store) -> None:
    engine = FakeEngine()

    async def work() -> None:
        async with started(store, engine, configured()) as daemon:
            engine.add(key(7), 7, State.IDLE)
            daemon.reach.spoken_for.give("camera-1", key(7).pack(), 7)
            assert await asyncio.to_thread(daemon.agents.forget_withdrawn) == 0, "an upgrade ends none"
            daemon.link(7, b"{}\n")
            await daemon.until_closed(7)
            await daemon.registered(8, "camera-1")

    run(work)


def test_the_name_of_an_agents_client_is_forgotten_by_command_unless_the_agent_is_connected(store: Store) -> None:
    engine = FakeEngine()

    async def work() -> None:
        async with started(store, engine, configured()) as daemon:
            await daemon.registered(7, "camera-1")
            with pytest.raises(OperationError, match="connected") as caught:
                await asyncio.to_thread(daemon.naming.forget, "camera-1")
            assert caught.value.status == 409
            del engine.connections[key(7)]
            assert await asyncio.to_thread(daemon.naming.forget, "Camera-1") == {"name": "camera-1"}
            assert daemon.spoken_for() == {}
            with pytest.raises(OperationError, match="no client has the name"):
                await asyncio.to_thread(daemon.naming.forget, "camera-1")

    run(work)


def test_agents_that_are_known_and_speak_at_once_do_not_crowd_each_other_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was a stranger until it was looked up: of 700 that spoke in one instant 444 were reset."""
    monkeypatch.setattr(daemon_links, "MAX_STRANGERS", 2)
    engine = FakeEngine()

    async def work() -> None:
        async with started(store, engine, configured()) as before:
            for number in range(1, 9):
                await before.registered(number, f"camera-{number}")
        async with started(store, engine, configured()) as daemon:
            known = [daemon.link(number, hello(f"camera-{number}")) for number in range(1, 9)]
            for agent in known:
                assert (await heard(agent)).startswith(b'{"welcome":1')
            assert (daemon.closed(), daemon.reach.links.crowded_out) == ([], 0)

    run(work)


# -- what an agent that is known says ---------------------------------------------------------------------------------


def test_an_agent_that_talks_without_end_is_turned_away_and_holds_up_nothing_meanwhile(store: Store) -> None:
    """What it had said already was read in one turn of the loop: a server waited 12 s for another agent's client."""
    engine = FakeEngine()

    async def work() -> None:
        async with started(store, engine, configured()) as daemon:
            agent = await daemon.registered(7, "camera-1")
            agent.sendall(b"{}\n" * 5000)
            turns = 0
            while not daemon.closed():
                turns += 1
                await asyncio.sleep(0)
            assert daemon.closed() == [7]
            assert turns >= agents.WRONG_MAX, "a turn for others behind each message"

    run(work)


def test_answers_that_come_too_late_are_no_nonsense(store: Store) -> None:
    engine = FakeEngine()

    async def work() -> None:
        async with started(store, engine, configured()) as daemon:
            agent = await daemon.registered(7, "camera-1")
            agent.sendall(encode({"nonce": "late", "error": "no answer"}) * 64 + hello("camera-2"))
            assert (await heard(agent)).startswith(b'{"welcome":1')
            assert daemon.closed() == []
            agent.sendall(encode({"nonce": "late", "error": "no answer"}) * (agents.LATE_MAX + 1))
            await daemon.until_closed(7)

    run(work)


def test_an_agent_that_comes_again_while_it_is_asked_can_say_that_its_client_cannot_be_had(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual way behind a restart, where agents speak TLS."""

    async def work() -> None:
        async with started(store, FakeEngine(), configured()) as daemon:
            await daemon.registered(1, "camera-1")
            tried = asyncio.Event()

            async def say_at(_to: Key, number: int, message: Mapping[str, object]) -> bool:
                """The agent is at its second connection, and answers there."""
                tried.set()
                if number == 2:
                    daemon.link(2, encode({"nonce": message["nonce"], "error": "it is switched off"}))
                return number == 2

            monkeypatch.setattr(daemon.agents, "_say_at", say_at)
            asking = asyncio.ensure_future(daemon.ask("camera-1"))
            await tried.wait()
            await daemon.registered(2, "camera-1")
            assert await asyncio.wait_for(asking, 3) == ECONNREFUSED

    run(work)


def test_an_agent_that_ends_before_its_hello_is_worked_out_leaves_no_tls_session(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such kept a place until a restart; when all were taken no agent could come."""
    engine = FakeEngine()
    certificate, private_key = make_certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(certificate))
    one = parse(SERVICE + site("old", '"camera-*"') + "[agents]\ntls_sessions = 1\n")

    def speak(end: socket.socket, said: bytes) -> bytes:
        end.settimeout(10)
        with trust.wrap_socket(end, server_hostname="roost.test") as tls:
            tls.sendall(said)
            return tls.recv(100)

    async def work() -> None:
        async with started(store, engine, one, server_context(str(certificate), str(private_key))) as daemon:
            introduce = daemon.reach.links.introduce

            async def late(link: Link) -> None:
                monkeypatch.setattr(daemon.reach.links, "introduce", introduce)
                engine.move(engine.connections[link.key], State.CLOSED, Cause.CLIENT_CLOSE)
                daemon.dispatcher.turn(engine.batch(timeout_ms=0))
                await introduce(link)

            monkeypatch.setattr(daemon.reach.links, "introduce", late)
            gone = asyncio.create_task(asyncio.to_thread(speak, daemon.link(7), hello("camera-1")))
            await daemon.until_closed(7)
            assert daemon.spoken_for() == {}
            said = await asyncio.to_thread(speak, daemon.link(8), hello("camera-1"))
            assert said.startswith(b'{"welcome":1')
            await asyncio.wait({gone})
            gone.exception()

    run(work)


# -- a server that leaves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["agent", "wait"])
def test_a_server_that_goes_while_it_waits_for_its_client_waits_no_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its place is another one's then: 1,024 that had gone kept all others out."""
    monkeypatch.setattr(attach_request, "LOOK_S", 0.01)
    engine = FakeEngine()
    absent = f'[absent]\nsteps = ["{step}"]\nagent_timeout = "10s"\nwait = "10s"\n'

    async def work() -> None:
        async with started(store, engine, parse(SERVICE + site("old", '"camera-*"') + absent)) as daemon:
            agent = await daemon.registered(7, "camera-1")
            ours, theirs = socket.socketpair()
            with theirs:
                target = Name("camera-1.roost")
                asked = asyncio.create_task(daemon.reach.attaching.attach(target, theirs, b"", b"", 10.0, "connect"))
                while step == "agent" and b"attach" not in await heard(agent):
                    pass
                while step == "wait" and not daemon.reach.arrivals.waits(("name", "camera-1")):
                    await asyncio.sleep(0.005)
                assert not asked.done()
                ours.close()
                assert await asked == ENOTCONN

    run(work)


def test_no_local_user_keeps_tickets_from_being_used(store: Store) -> None:
    """All of this machine are one source: 128 connections that said nothing kept all others out."""

    async def work() -> None:
        async with started(store, FakeEngine(), configured()) as daemon:
            ticket = await daemon.reach.tickets.issue("camera-1.roost", "ann")
            host, _, port = ticket["address"].rpartition(":")
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(MAX_OF_SOURCE + 1)]
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"CONNECT {ticket['authority']} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 404 "), "there is no such client, which it was told"
            for _, one in (*silent, (reader, writer)):
                one.close()

    run(work)


# -- how many names ---------------------------------------------------------------------------------------------------


def test_an_agent_may_speak_for_so_many_new_names_an_hour(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "NEW_NAMES_MAX", 3)
    both = parse(SERVICE + site("old", '"camera-*"') + site("other", '"meter-*"'))

    async def work() -> None:
        async with started(store, FakeEngine(), both) as daemon:
            await daemon.registered(1, "camera-1", "camera-2")
            await daemon.registered(2, "camera-1", "camera-2")
            await daemon.registered(3, "camera-3")
            daemon.engine.commands.clear()
            daemon.link(4, hello("camera-4"))
            await daemon.until_closed(4)
            await daemon.registered(5, "camera-3")
            await daemon.registered(6, "meter-1", token="other")
            assert "camera-4" not in daemon.spoken_for()

    run(work)


def test_of_the_clients_of_agents_that_are_away_so_many_are_kept_of_each_token(store: Store) -> None:
    engine = FakeEngine()
    both = parse(SERVICE + site("old", '"camera-*"') + site("other", '"meter-*"'))

    async def work() -> None:
        async with started(store, engine, both) as daemon:
            for number in range(1, 6):
                await daemon.registered(number, f"camera-{number}")
            await daemon.registered(6, "meter-1", token="other")
            for number in (2, 3, 4, 5, 6):
                del engine.connections[key(number)]
            shed = daemon.reach.spoken_for.shed
            assert [await asyncio.to_thread(shed, most) for most in (2, 2)] == [2, 0]
            assert daemon.spoken_for() == {"camera-1": True, "camera-4": False, "camera-5": False, "meter-1": False}

    run(work)
