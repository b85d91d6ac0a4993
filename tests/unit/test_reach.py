# SPDX-License-Identifier: Apache-2.0
"""The parts of reaching clients that need no network: which client is to stay, what is waited for, what may be
dialled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import ssl
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from errno import EACCES, EAGAIN, EBADF, ECONNREFUSED, EEXIST, EMFILE, ENOENT, EPERM
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from appliance.agent.roost_agent import ProtocolError, encode
from appliance.bounds import Turns
from appliance.frontends.target import Address
from appliance.wire import Command, Event, EventType, Key, OnServerClose, Op, Record
from control.clients.registry import Registry
from control.config import Absent, parse
from control.core.ports import Outcome
from control.core.states import Cause, State
from control.dispatch.dispatcher import Dispatcher
from control.policy.services import service_spec
from control.reach import daemon_links, telling
from control.reach import dialled as dialled_module
from control.reach.agent_channel import AgentChannel
from control.reach.arrivals import Arrivals
from control.reach.daemon_links import DaemonLinks, Link
from control.reach.dialled import Dialled
from control.reach.dialling import Dialler, Dialling
from control.reach.tls import TlsState, server_context
from control.store.store import Store
from tests.certificates import make_certificate
from tests.databases import written
from tests.unit.fake_engine import FakeEngine, event, key, record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(f"sqlite:///{tmp_path}/roost.db", lambda slept: None)
    made.open()
    made.start()
    yield made
    made.close(3)


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store, FakeEngine())


# -- who is to stay connected -----------------------------------------------------------------------------------------


def test_failures_past_the_threshold_make_a_client_be_told_once(store: Store, registry: Registry) -> None:
    dialled = Dialled(store, registry, stay_after=3)
    registry.give("meter", key(1).pack(), 1)
    for _ in range(2):
        dialled.failed("meter")
    assert dialled.due(["meter"]) == []
    dialled.failed("meter")
    dialled.failed("meter")
    assert dialled.stays("meter")
    assert dialled.due_among({1: key(1), 2: key(2)}) == {1: ["meter"]}
    assert dialled.due(["camera", "meter"]) == ["meter"]
    dialled.told(["meter"])
    assert (dialled.any_due, dialled.due_among({1: key(1)})) == (False, {}), "once is enough"
    (row,) = dialled.all()
    assert (row["client"], row["failures"], row["stay"]) == ("meter", 4, "told")


def test_a_client_without_a_name_is_known_by_its_address_whatever_its_port(store: Store, registry: Registry) -> None:
    dialled = Dialled(store, registry, stay_after=1)
    dialled.failed("192.0.0.7")
    assert dialled.due_among({8: key(7, port=41234)}) == {8: ["192.0.0.7"]}


def test_a_successful_dial_out_resets_the_count_and_the_mark(store: Store, registry: Registry) -> None:
    dialled = Dialled(store, registry, stay_after=2)
    dialled.failed("meter")
    dialled.succeeded("meter")
    dialled.failed("meter")
    assert not dialled.stays("meter")
    dialled.failed("meter")
    assert dialled.due(["meter"]) == ["meter"]
    dialled.succeeded("meter")
    dialled.told(["meter"])  # by the one that had asked before
    assert (dialled.all(), dialled.stays("meter")) == ([], False)


def test_counts_are_in_the_store_and_bounded(store: Store, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialled_module, "BOUND", 2)
    dialled = Dialled(store, registry, stay_after=2)
    for client in ("a", "b", "a", "c"):
        dialled.failed(client)
    assert written(store)
    again = Dialled(store, registry, stay_after=2)
    again.load()
    assert {row["client"]: row["stay"] for row in again.all()} == {"a": "due", "c": "no"}
    assert again.due("abc") == ["a"]


def test_zero_tells_nobody(store: Store, registry: Registry) -> None:
    dialled = Dialled(store, registry, stay_after=0)
    for _ in range(50):
        dialled.failed("meter")
    assert not dialled.stays("meter")


class Telling:
    """control.reach.telling with an engine that notes the commands. Of the two services only 1 lets clients be told."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self.engine = FakeEngine(carry_out=False)
        self.dispatcher = Dispatcher(self.engine, store, 1000)
        self.dialled = Dialled(store, registry, stay_after=1)
        self.work: list[Callable[[], None]] = []
        config = parse(STAY)
        services = dict(enumerate(config.service, 1))
        self.telling = telling.Telling(self.engine, self.dispatcher, registry, self.dialled, services,
                                         self.work.append)  # fmt: skip
        self.dispatcher.listen(self.telling.hear)
        registry.listen(self.telling.named)

    def turn(self, *events: Event) -> None:
        """What the dispatcher does, and then what would keep it waiting for the database."""
        self.dispatcher.turn(events)
        while self.work:
            self.work.pop()()

    def answer(self, error: int = 0) -> None:
        """What the engine says to its one command."""
        (command,) = self.engine.commands
        assert command.op == Op.TELL
        self.engine.commands.clear()
        kind = EventType.REFUSED if error else EventType.DONE
        said = {"op": Op.TELL, "token": command.token, "error": error}
        assert isinstance(command.key, Key)
        self.dispatcher.turn([event(kind, command.key, command.id, **said)])

    def stay(self) -> str:
        return str(self.dialled.all()[0]["stay"])


STAY = """
[[service]]
name = "stays"
listen = "192.0.2.1:5"
server = "192.0.2.2:6"
in_band = { stay = true }
[[service]]
name = "other"
listen = "192.0.2.1:6"
server = "192.0.2.2:6"
"""


@pytest.fixture
def told(store: Store, registry: Registry) -> Telling:
    return Telling(store, registry)


def test_a_client_is_told_in_band_when_it_connects_and_counts_as_told_when_that_is_done(told: Telling) -> None:
    told.turn(appears(1))
    assert told.engine.commands == [], "nobody dialled it"
    told.dialled.failed("192.0.0.1")
    told.dispatcher.turn([appears(1), appears(1), appears(2)])
    assert told.engine.commands == [], "the dispatcher reads no database"
    told.turn()
    assert told.stay() == "due"
    told.answer()
    assert told.stay() == "told"
    told.turn(appears(1))
    assert told.engine.commands == []


@pytest.mark.parametrize("error", [ENOENT, EPERM, EAGAIN])
def test_a_client_that_the_engine_could_not_tell_is_told_the_next_time(told: Telling, error: int) -> None:
    told.dialled.failed("192.0.0.1")
    told.turn(appears(1))
    told.answer(error)
    assert told.stay() == "due"
    woken = event(
        EventType.TRANSITION, key(1), 1, from_state=State.SLEEP, to_state=State.ACTIVE, cause=Cause.CLIENT_DATA
    )
    told.turn(woken)
    told.answer()
    assert told.stay() == "told"


def test_a_client_is_told_when_it_gets_the_name_by_which_it_was_dialled(told: Telling, registry: Registry) -> None:
    told.dialled.failed("meter")
    for number, state in ((1, State.STANDBY), (2, State.IDLE)):
        told.engine.add(key(number), number, state)
    told.turn(appears(1))
    registry.give("meter", key(2).pack(), 2)
    assert told.engine.commands == [], "it sleeps; it is told when it wakes"
    registry.give("camera", key(1).pack(), 1)
    assert told.engine.commands == [], "another one"
    registry.give("meter", key(1).pack(), 1)
    told.answer()
    assert told.stay() == "told"


def test_a_service_whose_clients_do_not_understand_it_is_left_alone(told: Telling) -> None:
    told.dialled.failed("192.0.0.1")
    other = appears(1)._replace(record=record(key(1), 1, service=2))
    told.turn(other)
    assert (told.engine.commands, told.stay()) == ([], "due")


# -- arrivals ---------------------------------------------------------------------------------------------------------


def appears(number: int, service: int = 1) -> Any:
    made = event(EventType.TRANSITION, key(number), number, to_state=State.ACTIVE, cause=Cause.CLIENT_CONNECT)
    assert made.service == service
    return made


def test_who_waits_is_told_of_what_it_waits_for_and_nothing_stays_behind() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        arrivals.begin()
        client, port = key(1).client, key(1).client_port.to_bytes(2, "big")
        with (
            arrivals.expect(("address", client, port)) as by_address,
            arrivals.expect(("service", client, 1), ("name", "meter")) as by_service,
            arrivals.expect(("service", client, 2)) as other_service,
            arrivals.expect(("key", key(1).pack())) as by_key,
            arrivals.expect(("name", "meter")) as by_name,
        ):
            arrivals.hear([appears(2)])
            arrivals.named("agent", "meter")
            await asyncio.sleep(0)
            assert not any(one.done() for one in (by_address, by_service, other_service, by_key, by_name))
            arrivals.hear([appears(1)])
            arrivals.named("name", "meter")
            for one in (by_address, by_service, by_key):
                assert await one == key(1).pack()
            assert await by_name == b""
            assert not other_service.done()
        assert arrivals._waiting == {}

    asyncio.run(scenario())


def test_a_connection_that_only_changes_its_state_is_no_arrival() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        arrivals.begin()
        with arrivals.expect(("service", key(1).client, 1)) as future:
            moved = event(EventType.TRANSITION, key(1), 1, from_state=State.IDLE, to_state=State.ACTIVE)
            arrivals.hear([moved])
            await asyncio.sleep(0.01)
            assert not future.done()

    asyncio.run(scenario())


# -- links ------------------------------------------------------------------------------------------------------------


async def linked(links: DaemonLinks, n: int) -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return links.at(key(n).pack()) is not None


def test_a_link_that_comes_before_the_event_loop_is_served_once_it_runs() -> None:
    async def scenario() -> None:
        arrivals = Arrivals()
        links = DaemonLinks(FakeEngine(), arrivals, {1: "held"}, lambda _: 60.0)
        ours, theirs = socket.socketpair()
        links.linked(event(EventType.LINK, key(1), 1, count=theirs.detach()))
        assert not await linked(links, 1)
        arrivals.begin()
        links.serve()
        assert await linked(links, 1)
        await links.close()
        assert ours.recv(1) == b""
        ours.close()

    asyncio.run(scenario())


class Links:
    """DaemonLinks of a service of held clients (1) and one of agents (2), and the far ends of their links."""

    def __init__(self, hold_s: float = 60.0) -> None:
        self.engine, self.arrivals = FakeEngine(), Arrivals()
        self.arrivals.begin()
        self.all = DaemonLinks(self.engine, self.arrivals, {1: "held", 2: "agents"}, lambda _: hold_s)
        self.all.serve()
        self.ends: dict[int, socket.socket] = {}

    def come(self, service: int, *numbers: int) -> None:
        for n in numbers:
            self.ends[n], theirs = socket.socketpair()
            linked = event(EventType.LINK, key(n), n, count=theirs.detach())
            self.all.linked(linked._replace(record=record(key(n), n, service)))

    async def there(self) -> list[int]:
        return [n for n in self.ends if await linked(self.all, n)]

    def rejected(self) -> list[int]:
        return [command.id for command in self.engine.commands if command.op == Op.CLOSE]

    async def close(self) -> None:
        await self.all.close()
        for end in self.ends.values():
            assert end.recv(1) == b""
            end.close()


def test_held_clients_and_strangers_have_places_of_their_own_and_the_oldest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eighty-five connections a second that say nothing kept every agent out."""
    monkeypatch.setattr(daemon_links, "MAX_HELD", 2)
    monkeypatch.setattr(daemon_links, "MAX_STRANGERS", 3)

    async def scenario() -> None:
        links = Links()

        async def serve(link: Link) -> None:
            links.all.keep_stranger(link)
            await link.ended()

        links.all.serve_agent = serve
        links.come(1, 1, 2, 3)
        links.come(2, 11, 12, 13)
        assert (await links.there(), links.rejected()) == ([2, 3, 11, 12, 13], [1])
        links.come(2, *range(14, 25))  # more than there is room for come in one turn of the loop
        assert (await links.there(), links.rejected()) == ([2, 3, 22, 23, 24], [1, *range(11, 22)])
        links.all.take(links.all.at(key(2).pack()) or pytest.fail("not there"))
        links.come(1, 4)
        assert (await links.there(), links.all.crowded_out) == ([3, 22, 23, 24, 4], 12)
        links.ends.pop(2).close()
        await links.close()

    asyncio.run(scenario())


NONCE = b"n" * daemon_links.NONCE_LENGTH + b"\n"


@pytest.mark.parametrize("cuts", [[], [1], [7, 20], list(range(1, 30))])
def test_a_client_that_says_its_nonce_first_is_known_and_no_server_sees_it(cuts: list[int]) -> None:
    said = NONCE + b"hello"

    async def scenario() -> None:
        links = Links()
        with links.arrivals.expect(("said", NONCE)) as comes:
            links.come(1, 1, 2)
            assert await links.there() == [1, 2]
            for begin, end in itertools.pairwise([0, *cuts, len(said)]):
                assert not comes.done() or begin >= len(NONCE)
                links.ends[2].sendall(said[begin:end])
                await asyncio.sleep(0.002)
            assert await comes == key(2).pack()
        link = links.all.at(key(2).pack())
        assert link is not None
        links.all.take(link)
        links.ends[2].shutdown(socket.SHUT_WR)
        assert await link.read_all() == b"hello"
        link.sock.close()
        await links.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("said", [b"x" * 22 + b"\n" + b"hello", b" " + NONCE, NONCE[:-1] + b"\r\n", NONCE[:-1], b"GET"])
def test_one_that_does_not_say_the_nonce_first_is_held_like_any_other_and_reset_in_time(said: bytes) -> None:
    async def scenario() -> None:
        links = Links(hold_s=0.1)
        with links.arrivals.expect(("said", NONCE)) as comes:
            links.come(1, 1, 2)
            assert await links.there() == [1, 2]
            link = links.all.at(key(1).pack())
            assert link is not None
            links.ends[1].sendall(said)
            async with asyncio.timeout(5):
                while not links.rejected():
                    await asyncio.sleep(0.01)
            assert (links.rejected(), comes.done()) == ([1], False)
            assert link.waiting == said[: len(NONCE)], "it is kept as it came, and no more is read"
        links.ends.pop(1).close()  # with bytes that were not read it is reset
        await links.close()

    asyncio.run(scenario())


def test_one_that_says_byte_after_byte_gains_no_time() -> None:
    async def scenario() -> None:
        links = Links(hold_s=0.2)
        links.come(1, 1)
        assert await links.there() == [1]
        began = asyncio.get_running_loop().time()
        while not links.rejected():
            with contextlib.suppress(OSError):  # it was reset
                links.ends[1].send(b"n")
            await asyncio.sleep(0.05)
            assert asyncio.get_running_loop().time() < began + 5
        links.ends.pop(1).close()  # with bytes that were not read it is reset
        await links.close()

    asyncio.run(scenario())


def test_an_agent_that_is_known_keeps_its_place_and_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_links, "MAX_STRANGERS", 2)
    monkeypatch.setattr(daemon_links, "MAX_INTRODUCED", 2)

    async def scenario() -> None:
        links, served = Links(), list[int]()

        async def serve(link: Link) -> None:
            if link.number >= 20:
                links.all.keep_stranger(link)
            else:
                await links.all.introduce(link)
                await links.all.introduce(link)  # each hello does
                served.append(link.number)
            await link.ended()

        links.all.serve_agent = serve
        for n in range(11, 15):
            links.come(2, n)
            await links.there()
        links.come(2, *range(21, 31))
        assert await links.there() == [11, 12, 13, 14, 29, 30], "no stranger takes an agent's place"
        assert (served, links.rejected()) == ([11, 12], list(range(21, 29)))
        links.ends.pop(11).close()
        async with asyncio.timeout(5):
            while len(served) < 3:
                await asyncio.sleep(0.01)
        assert served == [11, 12, 13]
        await links.close()

    asyncio.run(scenario())


def test_those_that_are_being_looked_up_have_places_of_their_own_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_links, "MAX_UNKNOWN", 3)
    monkeypatch.setattr(daemon_links, "MAX_STRANGERS", 1)

    async def scenario() -> None:
        links, looked_up = Links(), asyncio.Event()

        async def serve(link: Link) -> None:
            await looked_up.wait()
            links.all.keep_stranger(link)
            await link.ended()

        links.all.serve_agent = serve
        links.come(2, 11, 12, 13, 14)
        assert (await links.there(), links.rejected()) == ([12, 13, 14], [11])
        looked_up.set()
        assert (await links.there(), links.rejected()) == ([14], [11, 12, 13])
        await links.close()

    asyncio.run(scenario())


def test_what_is_on_its_way_through_a_link_that_is_handed_over_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what nobody wants is read without being kept: 12 sessions of one agent took the daemon 350 MB."""
    monkeypatch.setattr(daemon_links, "MOST_REST", 1000)

    async def scenario(sent: int, read: Callable[[Link], Awaitable[bytes | None]]) -> bytes | None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        link = Link(theirs, key(1), 1, 1)
        link.waiting = b"first "
        with ours, theirs:
            ours.sendall(bytes(sent))
            ours.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(5):
                return await read(link)

    assert asyncio.run(scenario(994, Link.read_all)) == b"first " + bytes(994)
    with pytest.raises(OSError, match="1000 bytes"):
        asyncio.run(scenario(995, Link.read_all))
    assert asyncio.run(scenario(100_000, Link.ended)) is None


# -- dialling ---------------------------------------------------------------------------------------------------------


class Adopting:
    """The engine and the dispatcher, as a dialler has them: every connection is adopted, or refused with `error`."""

    def __init__(self, dialled: Dialled, *networks: str, limit: int = 256, error: int = 0) -> None:
        self.engine = FakeEngine(carry_out=False)
        self.adopted: list[Command] = []
        self.error = error
        policy = Absent.model_validate(
            {"dial_networks": networks, "dial_ports": ["1-65535"], "dial_timeout": "1s", "dial_limit": limit}
        )
        self.dialler = Dialler(policy, self.engine, self, {4: 3, 6: 3}, dialled, lambda host: host == "192.0.2.1")

    def command(self, command: Command, states: Iterable[State], timeout_s: float,
                first: Sequence[Command] = ()) -> Future[Outcome]:  # fmt: skip
        assert (command.op, command.cause, command.count) == (Op.ADOPT, Cause.SERVER_ATTACH, 3)
        self.adopted.append(command)
        if not self.error:
            self.engine.add(Key.unpack(cast(bytes, command.key)), 7, State.STANDBY)
        future: Future[Outcome] = Future()
        future.set_result(Outcome(self.error, 0 if self.error else State.STANDBY, 0 if self.error else 7))
        return future

    def sleep(self, record: Record, timeout_s: float) -> Future[Outcome]:
        raise NotImplementedError

    def close(self) -> None:
        for command in self.adopted:
            os.close(command.fd)


@pytest.fixture
def dialled(store: Store, registry: Registry) -> Dialled:
    return Dialled(store, registry, 1)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


NOBODY = bytes(16)


def test_what_may_be_dialled(dialled: Dialled) -> None:
    made = Adopting(dialled, "192.0.2.0/24", "127.0.0.0/8", "2001:db8::/32", "0.0.0.0/8").dialler
    assert made.may(Address("192.0.2.7", 80))
    assert made.may(Address("2001:db8::7", 80))
    for host, port in [("192.0.2.7", 0), ("192.0.2.1", 80), ("192.0.3.7", 80), ("127.0.0.1", 80), ("0.0.0.0", 80),
                       ("2001:db9::1", 80)]:  # fmt: skip
        assert not made.may(Address(host, port))
    policy = Absent.model_validate({"dial_networks": ["192.0.2.0/24"], "dial_port": 80})
    only6 = Dialler(policy, FakeEngine(), Adopting(dialled), {6: 3}, dialled, lambda host: False)
    assert not only6.may(Address("192.0.2.7", 80)), "no service has such clients"


def test_a_port_is_dialled_only_where_the_configuration_names_it(dialled: Dialled) -> None:
    def may(port: int, **policy: object) -> bool:
        absent = Absent.model_validate({"steps": ["dial"], "dial_networks": ["192.0.2.0/24"], **policy})
        dialler = Dialler(absent, FakeEngine(), Adopting(dialled), {4: 3}, dialled, lambda host: False)
        return dialler.may(Address("192.0.2.7", port))

    ports = [443, "8000-8099"]
    assert [may(port, dial_ports=ports) for port in (443, 8000, 8099)] == [True] * 3
    assert [may(port, dial_ports=ports) for port in (0, 22, 442, 444, 7999, 8100, 65535)] == [False] * 7
    assert [may(port, dial_port=443) for port in (443, 22)] == [True, False]


def test_who_wants_the_same_client_at_once_gets_the_same_connection_and_the_rest_is_bounded(
    dialled: Dialled, listener: socket.socket
) -> None:
    async def scenario() -> None:
        made, where = Adopting(dialled, limit=1), Address(*listener.getsockname())
        dials = made.dialler.dial("meter", where, NOBODY), made.dialler.dial("meter", where, NOBODY)
        one, same, other = await asyncio.gather(*dials, made.dialler.dial("lock", Address("127.0.0.1", 9), NOBODY))
        assert one == same == (0, Key.of("127.0.0.1", where.port, "10.0.0.1", 7000).pack(), None)
        assert other.error == EMFILE
        (command,) = made.adopted
        client, _ = listener.accept()
        with client:
            assert os.write(command.fd, b"there?") == 6, "it is connected"
            assert client.recv(10) == b"there?"
        assert (made.dialler.made, dialled.all()) == (1, []), "a limit is nobody's failure"
        made.close()

    asyncio.run(scenario())


def test_who_dials_has_the_client_before_that_can_speak_to_another_one(
    dialled: Dialled, listener: socket.socket
) -> None:
    async def scenario() -> None:
        made, where = Adopting(dialled), Address(*listener.getsockname())
        linked: list[Command] = []

        async def link(key: Key, adopt: Command) -> int:
            assert adopt.key == key.pack()
            linked.append(adopt)
            made.engine.add(key, 7, State.ACTIVE)
            await asyncio.sleep(0.01)
            return EPERM

        async def gone(key: Key, adopt: Command) -> int:
            raise OSError(EBADF, "it has gone")

        first = made.dialler.dial("meter", where, NOBODY, link)
        one, other = await asyncio.gather(first, made.dialler.dial("meter", where, NOBODY, link))
        assert (one.error, one.linked) == (0, EPERM)
        assert (other.error, other.linked, other.key) == (0, None, one.key), "it links itself"
        assert (len(linked), made.adopted) == (1, []), "in one batch"
        os.close(linked[0].fd)
        made.engine.connections.clear()
        assert not made.dialler.busy
        assert (await made.dialler.dial("meter", where, NOBODY, gone)).linked is None
        assert len(made.adopted) == 1, "the client is there all the same"
        made.close()

    asyncio.run(scenario())


def test_a_connection_that_has_ended_before_who_dialled_it_is_told_is_no_other_one_s(
    dialled: Dialled, listener: socket.socket
) -> None:
    """The server may be done with its client before the event loop hears that it was linked."""

    async def scenario() -> None:
        made, where = Adopting(dialled), Address(*listener.getsockname())
        linked: list[Command] = []
        ending = asyncio.Event()

        async def link(key: Key, adopt: Command) -> int:
            linked.append(adopt)
            await asyncio.sleep(0.01)
            ending.set()
            return 0

        async def at_its_end() -> Dialling:
            await ending.wait()
            return await made.dialler.dial("meter", where, NOBODY, link)

        at_once = [made.dialler.dial("meter", where, NOBODY, link) for _ in range(2)]
        assert [one.linked for one in await asyncio.gather(at_its_end(), *at_once)] == [0, 0, 0]
        for adopted in linked:
            os.close(adopted.fd)

    asyncio.run(scenario())


def test_a_client_that_cannot_be_dialled_is_counted(dialled: Dialled, listener: socket.socket) -> None:
    async def scenario() -> None:
        where = Address(*listener.getsockname())
        made = Adopting(dialled, error=EEXIST)
        assert (await made.dialler.dial("meter", where, NOBODY)).error == EEXIST
        assert not dialled.stays("meter"), "it could be dialled; that the engine did not take it is not its fault"
        there = Key.of("127.0.0.1", where.port, "10.0.0.1", 7000)
        made.engine.add(there, 5, State.SLEEP)
        assert await made.dialler.dial("meter", where, NOBODY) == (0, there.pack(), None)
        del made.engine.connections[there]
        listener.close()
        assert (await made.dialler.dial("meter", where, NOBODY)).error == ECONNREFUSED
        assert dialled.stays("meter")
        made.close()

    asyncio.run(scenario())


def test_a_router_s_server_waits_no_longer_when_its_client_may_not_or_cannot_be_dialled(
    dialled: Dialled, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        made, client = Adopting(dialled), Key.of("127.0.0.1", listener.getsockname()[1], "10.0.0.1", 7000)
        made.dialler.begin()
        answers = made.engine.commands

        async def told() -> list[tuple[Op, Key, int]]:
            await asyncio.to_thread(made.dialler.wanted, event(EventType.WANTED, client))
            await asyncio.sleep(0)
            while made.dialler.busy:
                await asyncio.sleep(0.01)
            return [(one.op, cast(Key, one.key), one.error) for one in answers]

        assert await told() == [(Op.ADOPT, client, EACCES)], "loopback"
        monkeypatch.setattr(made.dialler, "may", lambda where: True)
        monkeypatch.setattr(made.dialler, "_may_for_doors", lambda host: host != "127.0.0.1")
        answers.clear()
        assert await told() == [(Op.ADOPT, client, EACCES)], "the policy"
        monkeypatch.setattr(made.dialler, "_may_for_doors", lambda host: True)
        answers.clear()
        assert await told() == []
        assert len(made.adopted) == 1
        made.engine.connections.clear()
        listener.close()
        assert await told() == [(Op.ADOPT, client, ECONNREFUSED)]
        made.close()

    asyncio.run(scenario())


# -- TLS, and the configuration ---------------------------------------------------------------------------------------


def test_a_tls_session_goes_on_over_any_number_of_links_and_costs_little(tmp_path: Path) -> None:
    names = make_certificate(tmp_path)
    context = server_context(str(names[0]), str(names[1]))
    state = TlsState(context, 7)
    to, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(names[0])).wrap_bio(back, to, server_hostname="roost.test")
    for _ in range(10):
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            assert state.receive(to.read()) == b""
            back.write(state.outgoing())
    client.write(b"hello")
    data = to.read()
    assert state.receive(data[:10]) + state.receive(data[10:]) == b"hello"
    state.seal(b"welcome")
    back.write(state.outgoing())
    assert client.read(100) == b"welcome"
    with pytest.raises(ssl.SSLError):
        TlsState(context, 8).receive(b"\x16\x03\x01\x00\x05nonsense")

    def size(count: int) -> float:
        tracemalloc.start()
        many = [TlsState(context, number) for number in range(count)]
        traced = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return traced / len(many)

    # What counts the lines that run allocates, too, when it takes its counting out of some.
    assert min(size(100) for _ in range(3)) < 4000, "Python's share of it"


class SlowTls(TlsState):
    """Takes a fiftieth of a second for each part of a handshake; counts by source how many do so at once."""

    lock = threading.Lock()
    now: ClassVar = Counter[str]()
    most: ClassVar = Counter[str]()
    order: ClassVar[list[str]] = []

    def __init__(self, context: ssl.SSLContext, number: int, source: str) -> None:
        super().__init__(context, number)
        self.source = source

    def receive(self, data: bytes) -> bytes:
        if self.shaken:
            return super().receive(data)
        keys = self.source, "all"
        with SlowTls.lock:
            SlowTls.order.append(self.source)
            for one in keys:
                SlowTls.now[one] += 1
                SlowTls.most[one] = max(SlowTls.most[one], SlowTls.now[one])
        time.sleep(0.02)
        with SlowTls.lock:
            SlowTls.now.subtract(keys)
        return super().receive(data)


def test_tls_handshakes_hold_up_neither_the_loop_nor_those_of_other_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    names = make_certificate(tmp_path)
    context = server_context(str(names[0]), str(names[1]))
    trust = ssl.create_default_context(cafile=str(names[0]))
    messages = [{"roost-agent": 1, "n": n} for n in range(50)]

    def speak(end: socket.socket) -> bytes:
        with end, trust.wrap_socket(end, server_hostname="roost.test") as tls:
            for message in messages:
                tls.sendall(encode(message))
            return tls.recv(100)

    async def agent(turns: Turns, source: str) -> list[object]:
        ours, theirs = socket.socketpair()
        theirs.settimeout(10)
        ours.setblocking(False)
        speaking = asyncio.ensure_future(asyncio.to_thread(speak, theirs))
        with ours:
            link = Link(ours, Key.of(source, 40000, "10.0.0.1", 7100), 1, 1)
            link.waiting = await link.read()  # as of an agent that is not known yet
            channel = AgentChannel(link, turns, SlowTls(context, 1, source))
            heard: list[object] = [await channel.next() for _ in messages]
            await channel.write({"welcome": 1})
            assert await speaking == encode({"welcome": 1})
        return heard

    async def scenario() -> None:
        turns = Turns("handshakes", 8)
        agents = asyncio.gather(*(agent(turns, source) for source in ["192.0.2.1"] * 6 + ["192.0.2.2"] * 2))
        looked = 0
        while not agents.done():
            await asyncio.sleep(0.002)
            looked += SlowTls.now["all"] > 0
        turns.close()
        assert await agents == [messages] * 8, "in order, whatever thread opened them"
        assert looked > 5, "a loop that is held up looks only between handshakes"
        assert dict(SlowTls.most) == {"192.0.2.1": 1, "192.0.2.2": 1, "all": 2}
        assert "192.0.2.2" not in SlowTls.order[-4:], "it does not wait for all of the other one's"

    asyncio.run(scenario())


def test_more_tls_handshakes_of_a_source_than_may_wait_are_turned_away(tmp_path: Path) -> None:
    names = make_certificate(tmp_path)
    context = server_context(str(names[0]), str(names[1]))

    async def scenario() -> None:
        turns = Turns("handshakes", 1)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            link = Link(ours, Key.of("2001:db8::7", 40000, "2001:db8:1::1", 7100), 1, 1)
            link.waiting = b"\x16\x03\x01"
            async with turns.of("2001:db8::/64"):
                with pytest.raises(ProtocolError, match="too many TLS handshakes from its address"):
                    await AgentChannel(link, turns, TlsState(context, 1)).next()
        turns.close()

    asyncio.run(scenario())


AGENTS = """
[[agent]]
name = "site"
token = "{0}"
clients = ["camera-*"]
[[service]]
name = "agents"
listen = "0.0.0.0:7100"
kind = "agents"
[[service]]
name = "held"
listen = "0.0.0.0:7200"
kind = "held"
active_quiet = "1s"
on_server_close = "close"
""".replace("{0}", "0" * 64)


def test_services_of_agents_and_held_clients_have_the_daemon_for_their_server() -> None:
    config = parse(AGENTS)
    specs = [service_spec(service, 1, config) for service in config.service]
    for spec in specs:
        assert (spec.servers, spec.by_daemon, spec.on_server_close) == ((), True, OnServerClose.STANDBY)
    assert specs[1].standby_quiet_ms >= specs[1].connect_timeout_ms, "a held client that spoke is not unlinked unheard"
