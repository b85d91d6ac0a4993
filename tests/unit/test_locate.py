# SPDX-License-Identifier: Apache-2.0
"""Looking for connections by their numbers: many at once, of which others notice nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import pytest

from appliance.engine import EngineError
from appliance.wire import Event, Sought
from control.clients import locate, numbered
from control.clients.giving import Giving
from control.config import parse
from control.core.errors import OperationError
from control.core.states import State
from control.reach.tickets import Tickets
from tests.databases import Database, Sqlite
from tests.unit.fake_engine import key
from tests.unit.test_registry import CONFIG, Rig

MANY = 64
"""More than the threads that the event loop has for what may block."""

ABSENT = "99"


@pytest.fixture
def rig(sqlite: Sqlite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(numbered, "REST", 0)
    made = Rig(cast(Database, sqlite))
    made.engine.add(key(1), 1, State.IDLE)
    made.naming.give("1", "a")
    yield made
    made.close()


class Looks:
    """Looks at all connections of the engine, which end when `end` is set."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[Sought] = []
        self.asked = 0
        self._find = rig.locator._numbered.find
        monkeypatch.setattr(rig.locator._numbered, "find", self._count)
        self.end = threading.Event()
        self._list = rig.engine.list
        self._first = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(rig.engine, "list", self._look)

    def _count(self, numbers: Collection[int]) -> Future[dict[int, Event]]:
        found = self._find(numbers)
        self.asked += 1
        return found

    def _look(self, sought: Sought = Sought()) -> Iterator[Event]:  # noqa: B008 (frozen)
        self.begun.append(sought)
        self._loop.call_soon_threadsafe(self._first.set)
        self.end.wait(60)
        return self._list(sought)

    async def first(self) -> None:
        await self._first.wait()

    async def all_asked(self, most: int) -> None:
        while self.asked < most:
            await asyncio.sleep(0.001)


Ask = Callable[[Rig], Coroutine[Any, Any, Any]]
ASK: dict[str, Ask] = {
    "wake": lambda rig: rig.moving.act(ABSENT, "wake"),
    "policy": lambda rig: Giving(cast(Any, None), rig.locator).give(ABSENT, {"idle_quiet": "1h"}, "ann", ""),
    "attach": lambda rig: Tickets(rig.attaching, rig.locator, parse(CONFIG).attach).offer(ABSENT),
}


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_many_that_look_for_a_number_hold_no_thread_that_others_need(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    """A server that wants a client by its name, and the watchdog, have the same threads."""

    async def scenario() -> None:
        looks = Looks(rig, monkeypatch)
        asking = [asyncio.create_task(ask(rig)) for _ in range(MANY)]
        try:
            await looks.first()
            named = await rig.registry.look_up("a")
            assert named is not None
            assert named.id == 1
            await asyncio.to_thread(rig.engine.stats)
            assert not any(one.done() for one in asking)
            await looks.all_asked(MANY)
        finally:
            looks.end.set()
            answers = await asyncio.gather(*asking, return_exceptions=True)
        assert {getattr(one, "status", one) for one in answers} == {404}
        assert len(looks.begun) <= 2, "the first is for one, the second for all that came meanwhile"
        assert State.SLEEP not in looks.begun[0].states, "of those the store has the numbers"

    asyncio.run(scenario())


def test_a_look_is_for_each_that_waits_for_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.engine.add(key(2), 2, State.ACTIVE)
    rig.engine.add(key(3), 3, State.STANDBY)

    async def scenario() -> None:
        looks = Looks(rig, monkeypatch)
        first = asyncio.create_task(rig.locator.located("1"))
        await looks.first()
        gone, *others = (asyncio.create_task(rig.locator.located(name)) for name in "123")
        blocking = asyncio.create_task(asyncio.to_thread(rig.locator.locate, "2"))
        await looks.all_asked(5)
        gone.cancel()
        looks.end.set()
        found = await asyncio.gather(first, *others, blocking)
        assert [(one.id, one.state) for one in found] == [
            (1, State.IDLE), (2, State.ACTIVE), (3, State.STANDBY), (2, State.ACTIVE)]  # fmt: skip
        assert gone.cancelled()
        assert [one.numbers for one in looks.begun] == [{1}, {1, 2, 3}]

    asyncio.run(scenario())


def test_so_many_numbers_may_wait_and_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered, "WANTED_MAX", 2)

    async def scenario() -> None:
        looks = Looks(rig, monkeypatch)
        first = asyncio.create_task(rig.locator.located("1"))
        await looks.first()
        with pytest.raises(OperationError, match="too many connections are being looked for") as refused:
            list(rig.locator.locate_many(["97", "98", "99"]))
        assert refused.value.status == 429
        looks.end.set()
        assert (await first).id == 1
        assert [isinstance(one, OperationError) for _, one in rig.locator.locate_many(["1", "99"])] == [False, True]

    asyncio.run(scenario())


def test_a_thread_waits_for_a_look_no_longer_than_it_may(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "LOOK_S", 0.01)

    async def scenario() -> None:
        looks = Looks(rig, monkeypatch)
        with pytest.raises(OperationError, match="an address is found at once") as refused:
            await asyncio.to_thread(rig.locator.locate, "1")
        assert refused.value.status == 429
        looks.end.set()

    asyncio.run(scenario())


def test_so_many_threads_wait_for_a_look_and_no_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "LOOK_S", 60.0)
    address = key(1).client_text

    async def scenario() -> None:
        looks = Looks(rig, monkeypatch)
        with ThreadPoolExecutor(MANY) as threads:
            waiting = [threads.submit(rig.locator.locate, "1") for _ in range(locate.WAITING)]
            await looks.first()
            await looks.all_asked(locate.WAITING)
            try:
                while rig.locator._room.acquire(blocking=False):  # until the last of them waits
                    rig.locator._room.release()
                    await asyncio.sleep(0.001)
                with pytest.raises(OperationError, match="an address is found at once") as refused:
                    rig.locator.locate("1")
                assert refused.value.status == 429
                assert rig.locator.locate(address).id == 1
            finally:
                looks.end.set()
            assert {one.result().id for one in waiting} == {1}
        assert rig.locator.locate("1").id == 1

    asyncio.run(scenario())


def test_the_end_waits_for_a_look_and_refuses_those_that_have_not_begun(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the engine would be closed while it is asked."""

    async def scenario() -> None:
        looks = Looks(rig, monkeypatch)
        first = asyncio.create_task(rig.locator.located("1"))
        await looks.first()
        late = asyncio.create_task(asyncio.to_thread(rig.locator.locate, "1"))
        await looks.all_asked(2)
        ending = asyncio.create_task(asyncio.to_thread(rig.locator.stop))
        with pytest.raises(OperationError, match="the daemon ends"):
            await late
        assert not ending.done()
        looks.end.set()
        await ending
        assert (await first).id == 1
        with pytest.raises(OperationError, match="the daemon ends"):
            rig.locator.locate("1")

    asyncio.run(scenario())


def test_a_look_that_fails_is_told_and_the_next_one_begins(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_sought: Sought) -> Iterator[Event]:
        raise EngineError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(rig.engine, "list", fails)
        with pytest.raises(EngineError):
            asyncio.run(rig.locator.located("1"))
    assert rig.locator.locate("1").id == 1


@pytest.mark.parametrize("name", ["0", str(2**63), str(2**64), "9" * 5000])
def test_what_no_connection_can_have_for_its_number_is_looked_for_nowhere(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delattr(type(rig.engine), "list")
    with pytest.raises(OperationError) as refused:
        rig.locator.locate(name)
    assert refused.value.status == 404
