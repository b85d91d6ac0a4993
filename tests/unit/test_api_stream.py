# SPDX-License-Identifier: Apache-2.0
"""The stream of what happens: every row once and in order, for whoever listens, from wherever, whatever happens
meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from ipaddress import ip_network
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from appliance.wire import NO_ENDS
from control.api import stream as module
from control.api.database import Database as ApiDatabase
from control.api.stream import Stream, Wanted, read_query
from control.core.states import Cause, State
from control.store import history
from control.store.database import parse_url
from control.store.history import RemovedError
from control.store.schema import HISTORY
from control.store.store import Store
from tests.databases import Database, Sqlite
from tests.unit.fake_engine import key

EVERYTHING = Wanted()


class Source:
    """Rows 1 to `last`; those before `first` were removed."""

    def __init__(self) -> None:
        self.first, self.last = 1, 0
        self.asked = 0
        self.problem: Exception | None = None

    def service_names(self) -> dict[int, str]:
        return {1: "alarms", 2: "meters"}

    def last_row(self) -> int:
        return self.last

    def rows_after(self, seq: int, most: int) -> list[Sequence[Any]]:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        if self.first > seq + 1:
            raise RemovedError(self.first)
        return [self.row(number) for number in range(seq + 1, min(self.last, seq + most) + 1)]

    @staticmethod
    def row(number: int) -> tuple[Any, ...]:
        client = f"10.0.{number % 3}.7:{number}"
        to = State.IDLE if number % 2 else State.SLEEP
        return (number, number * 10, 1000 + number, client, number % 3, State.ACTIVE, to, Cause.QUIET, 1, 2, 3, None, 0,
                None, None)  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_S", 0.001)
    monkeypatch.setattr(module, "AT_ONCE", 10)
    monkeypatch.setattr(module, "KEPT", 50)
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)


def parsed(data: bytes) -> Iterator[tuple[str, int, Any]]:
    """(kind, id, data) of server-sent events; kind "": a comment, with the number that it brings."""
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        yield fields.get("event", ""), int(fields.get("id", -1)), json.loads(fields.get("data", "null"))


class Listener:
    def __init__(self, stream: Stream, after: int, newest: int, wanted: Wanted = EVERYTHING) -> None:
        self.parts: AsyncGenerator[bytes] = stream.follow(after, newest, wanted)
        self.events: list[tuple[str, int, Any]] = []

    async def until(self, number: int) -> None:
        """Listen until this one is told, or that there is none up to it."""
        while max((at for _, at, _ in self.events), default=0) < number:
            self.events += parsed(await anext(self.parts))

    async def until_told(self, number: int) -> None:
        while number not in self.numbers:
            self.events += parsed(await anext(self.parts))

    @property
    def numbers(self) -> list[int]:
        return [number for kind, number, _ in self.events if kind == "transition"]

    async def close(self) -> None:
        await self.parts.aclose()


def test_whoever_listens_gets_each_row_once_and_the_newest_are_read_once_for_all() -> None:
    source = Source()
    stream = Stream(source)

    async def scene() -> None:
        source.last = 5
        listeners = [Listener(stream, 5, 5) for _ in range(20)]
        tasks = [asyncio.ensure_future(one.until(300)) for one in listeners]
        await asyncio.sleep(0.01)
        while source.last < 300:
            source.last += 7
            await asyncio.sleep(0.002)
        await asyncio.gather(*tasks)
        assert all(one.numbers[:295] == list(range(6, 301)) for one in listeners)
        assert stream.counts() == {"subscribers": 20, "rows": sum(len(one.numbers) for one in listeners)}
        for one in listeners:
            await one.close()
        assert stream.counts()["subscribers"] == 0

    asyncio.run(scene())
    assert source.asked < 1000, "not by each of them"


@pytest.mark.parametrize("after", [0, 3, 180, 199, 200])
def test_who_is_behind_catches_up_with_the_others(after: int) -> None:
    source = Source()
    stream = Stream(source)

    async def scene() -> None:
        source.last = 200
        first, late = Listener(stream, 200, 200), Listener(stream, after, 200)
        tasks = [asyncio.ensure_future(one.until(260)) for one in (first, late)]
        for _ in range(60):
            source.last += 1
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        assert first.numbers == list(range(201, 261))
        assert late.numbers == list(range(after + 1, 261))
        await first.close()
        await late.close()

    asyncio.run(scene())


def test_those_who_are_equally_far_behind_read_the_history_together() -> None:
    source = Source()
    source.last = 1000
    stream = Stream(source)

    async def scene() -> None:
        listeners = [Listener(stream, after, 1000) for after in (0, 3, 7, 0, 5, 11, 2, 1, 9, 4)]
        await asyncio.gather(*(one.until(1000) for one in listeners))
        for one in listeners:
            assert one.numbers == list(range(one.numbers[0], 1001))
            await one.close()
        assert [one.numbers[0] for one in listeners] == [1, 4, 8, 1, 6, 12, 3, 2, 10, 5]
        assert len(stream._shared) == 0

    asyncio.run(scene())
    assert source.asked < 300, "each of them by itself: 1000"


def test_one_that_takes_nothing_for_long_loses_nothing_and_holds_nobody_up() -> None:
    source = Source()
    stream = Stream(source)

    async def scene() -> None:
        slow, quick = Listener(stream, 0, 0), Listener(stream, 0, 0)
        source.last = 1
        await slow.until(1)
        reading = asyncio.ensure_future(quick.until(500))
        while source.last < 500:
            source.last += 9
            await asyncio.sleep(0.001)
        await reading
        assert len(stream._kept) <= 50
        await slow.until(500)
        assert slow.numbers[:500] == quick.numbers[:500] == list(range(1, 501))
        await slow.close()
        await quick.close()

    asyncio.run(scene())


def test_only_what_is_wanted_is_told_and_up_to_where_there_was_nothing() -> None:
    source = Source()
    source.last = 100

    async def scene() -> None:
        for wanted, expected in (
            (Wanted(services=frozenset({"alarms"})), range(1, 101, 3)),
            (Wanted(client="10.0.2."), range(2, 101, 3)),
            (Wanted(network=ip_network("10.0.0.0/23")), [n for n in range(1, 101) if n % 3 != 2]),
            (Wanted(network=ip_network("2001:db8::/32")), []),
            (Wanted(to=frozenset({"SLEEP"})), range(2, 101, 2)),
            (Wanted(services=frozenset({"alarms"}), to=frozenset({"SLEEP"})), range(4, 101, 6)),
        ):
            one = Listener(Stream(source), 0, 100, wanted)
            await one.until(100)
            assert one.numbers == list(expected), wanted
            kind, _, told = one.events[1] if expected else ("transition", 0, {"to": "SLEEP"})
            assert (kind, told["to"] in ("SLEEP", "IDLE")) == ("transition", True)
            await one.close()

    asyncio.run(scene())


def test_up_to_where_there_was_nothing_is_told_while_there_is_more_and_more_for_others() -> None:
    source = Source()

    async def scene() -> None:
        one = Listener(Stream(source), 0, 0, Wanted(client="nothing"))
        listening = asyncio.ensure_future(one.until(1))
        async with asyncio.timeout(10):
            while not listening.done():
                source.last += 1
                await asyncio.sleep(0.001)
        assert 0 < one.events[-1][1] <= source.last
        await one.close()

    asyncio.run(scene())


def test_a_client_whose_port_is_0_is_told_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    monkeypatch.setattr(source, "row", lambda number: (*Source.row(number)[:3], "10.0.0.7:0", *Source.row(number)[4:]))
    source.last = 5

    async def scene() -> None:
        one = Listener(Stream(source), 0, 5, Wanted(network=ip_network("10.0.0.0/24")))
        await one.until(5)
        assert one.numbers == [1, 2, 3, 4, 5]
        await one.close()

    asyncio.run(scene())


def test_what_is_not_kept_any_more_is_said_and_it_goes_on_behind_it() -> None:
    source = Source()
    source.first, source.last = 41, 60

    async def scene() -> None:
        one = Listener(Stream(source), 7, 60)
        await one.until(60)
        assert one.events[1] == ("removed", 40, {"first": 41, "count": 33})
        assert one.numbers == list(range(41, 61))
        await one.close()

    asyncio.run(scene())


class Earlier(Source):
    """Of another server: other rows have the same numbers from 51 on."""

    earlier = False

    def service_names(self) -> dict[int, str]:
        return {1: "meters", 2: "alarms"} if self.earlier else super().service_names()

    def rows_after(self, seq: int, most: int) -> list[Sequence[Any]]:
        rows = super().rows_after(seq, most)
        return [(row[0], row[1], row[2] + 1, *row[3:]) if self.earlier and row[0] > 50 else row for row in rows]


@pytest.mark.parametrize("last", [0, 50, 60, 99, 100, 500])
def test_who_listens_is_told_that_numbers_are_given_again(last: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the other rows have come as far, or beyond it, before it is looked."""
    source = Earlier()
    source.last = 100
    stream = Stream(source)

    async def scene() -> None:
        listeners = [Listener(stream, after, 100) for after in (0, 90, 100)]
        for one in listeners:
            await one.until(100)
            one.events.clear()
        waiting = [asyncio.ensure_future(one.until_told(last + 30)) for one in listeners]
        async with asyncio.timeout(10):
            before = source.asked
            while source.asked < before + 3:  # row 100 was read
                await asyncio.sleep(0.001)
            source.earlier, source.last = True, last
            while "the database is an earlier one" not in caplog.text:
                await asyncio.sleep(0.001)
        source.last = last + 30
        for one, task in zip(listeners, waiting, strict=True):
            await asyncio.wait_for(task, 10)
            assert [event for event in one.events if event[0] == "reset"] == [("reset", last, {"last": last})]
            assert one.numbers == list(range(last + 1, last + 31))
            services = {at: row["service"] for kind, at, row in one.events if kind == "transition"}
            assert services == {at: ("#0", "meters", "alarms")[at % 3] for at in one.numbers}, "as numbered there"
            await one.close()

    asyncio.run(scene())
    assert caplog.text.count("the database is an earlier one") == 1


def test_who_resumes_behind_a_row_that_is_not_there_yet_is_told(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    source.last = 7

    async def scene() -> None:
        one = Listener(Stream(source), 30, 7)
        listening = asyncio.ensure_future(one.until_told(40))
        await asyncio.sleep(0.01)
        source.last = 40
        await asyncio.wait_for(listening, 10)
        assert one.events[:2] == [("", 30, None), ("reset", 7, {"last": 7})]
        assert one.numbers == list(range(8, 41))
        await one.close()

    asyncio.run(scene())
    assert "earlier" not in caplog.text


def test_while_the_database_cannot_be_read_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    stream = Stream(source)

    async def scene() -> None:
        ahead, behind = Listener(stream, 0, 0), Listener(stream, 0, 0)
        source.last = 30
        await ahead.until(30)
        source.problem = OperationalError("", {}, Exception("the disk is gone"))
        source.last = 200
        waiting = [asyncio.ensure_future(one.until(200)) for one in (ahead, behind)]
        await asyncio.sleep(0.1)
        assert not any(one.done() for one in waiting)
        source.problem = None
        await asyncio.gather(*waiting)
        assert ahead.numbers == behind.numbers == list(range(1, 201))
        await ahead.close()
        await behind.close()

    asyncio.run(scene())
    assert caplog.text.count("the disk is gone") == 1


def test_after_an_error_that_none_foresaw_listeners_are_told_again(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    stream = Stream(source)

    async def scene() -> None:
        one = Listener(stream, 0, 0)
        source.last = 30
        await one.until(30)
        source.problem = ZeroDivisionError("a defect")
        waiting = asyncio.ensure_future(one.until(60))
        while "a defect" not in caplog.text:
            await asyncio.sleep(0.001)
        source.last, source.problem = 60, None
        await asyncio.wait_for(waiting, 10)
        assert one.numbers == list(range(1, 61))
        await one.close()

    asyncio.run(scene())
    assert "the history cannot be told behind row 30" in caplog.text
    assert "a defect" in caplog.text


def test_nothing_is_read_while_nobody_listens() -> None:
    source = Source()
    stream = Stream(source)

    async def scene() -> None:
        for _ in range(3):
            one = Listener(stream, source.last, source.last)
            await asyncio.ensure_future(one.until(source.last))
            await one.close()
            await asyncio.sleep(0.02)
            before = source.asked
            source.last += 1000
            await asyncio.sleep(0.05)
            assert source.asked == before

    asyncio.run(scene())


# -- what is asked for ------------------------------------------------------------------------------------------------


def asked(query: str, resumed: str | None = None, services: Sequence[str] | None = None) -> tuple[int, Wanted]:
    return read_query(QueryParams(query), resumed, 100, services, ["alarms", "meters"])


def test_where_it_begins() -> None:
    assert [asked(query)[0] for query in ("", "last=30", "last=500", "after=0", "after=100", "after=7&last=3")] == [
        100, 70, 0, 0, 100, 7]  # fmt: skip
    assert asked("after=7", resumed="90")[0] == 90, "a browser resumes with the same query"


def test_what_is_wanted() -> None:
    assert asked("")[1] == EVERYTHING
    query = "service=alarms&service=meters&client=10.&network=10.0.0.0/8&to=SLEEP&to=IDLE"
    assert asked(query)[1] == Wanted(frozenset({"alarms", "meters"}), "10.", ip_network("10.0.0.0/8"),
                                     frozenset({"SLEEP", "IDLE"}))  # fmt: skip
    assert asked("", services=["meters"])[1] == Wanted(frozenset({"meters"}))
    assert asked("service=meters", services=["meters", "alarms"])[1] == Wanted(frozenset({"meters"}))


@pytest.mark.parametrize(("query", "resumed", "services", "status", "why"), [
    ("limit=3", None, None, 422, "limit: there is no such key"),
    ("last=-1", None, None, 422, "last: a number from 0 to 10000"),
    ("last=10001", None, None, 422, "last"),
    ("after=9007199254740992", None, None, 422, "after: a number from 0 to 9007199254740991"),
    ("after=", None, None, 422, "after"),
    ("after=٣", None, None, 422, "after"),
    ("", "x", None, 422, "Last-Event-ID"),
    ("", "9" * 5000, None, 422, "Last-Event-ID"),
    ("network=10.0.0.1/8", None, None, 422, "host bits"),
    ("network=10.0.0.0/8&network=10.0.0.0/8", None, None, 422, "network: once"),
    ("to=CLOSD", None, None, 422, '"CLOSD" is no state'),
    ("service=alarms", None, ["meters"], 404, 'no service "alarms"'),
    ("service=alarms&service=alarm", None, None, 404, 'no service "alarm"'),
])  # fmt: skip
def test_what_is_refused(query: str, resumed: str | None, services: Any, status: int, why: str) -> None:
    with pytest.raises(HTTPException) as refused:
        asked(query, resumed, services)
    assert (refused.value.status_code, why in refused.value.detail) == (status, True), refused.value.detail


# -- of a real database -----------------------------------------------------------------------------------------------


class Kept:
    """A daemon's store, and what the API's process reads of it."""

    def __init__(self, database: Database) -> None:
        self.store = Store(database.url, lambda _: None, keep_days=0.0)
        assert self.store.open() == ""
        self.service = self.store.service_indexes(["meters"])["meters"]
        self.store.start()
        self.read = ApiDatabase(parse_url(database.url))
        self.written = 0

    def write(self, count: int) -> None:
        said = State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT, 0, 0, 0, NO_ENDS
        some = range(self.written + 1, self.written + count + 1)
        self.store.add([HISTORY.pack(n, 1000 + n, key(n).pack(), self.service, *said) for n in some])
        assert self.store.flush()
        self.written += count

    def close(self) -> None:
        self.read.close_readers()
        self.store.close(3)


@pytest.fixture
def kept(database: Database) -> Iterator[Kept]:
    kept = Kept(database)
    yield kept
    kept.close()


def test_rows_are_read_across_parts_of_the_history(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PART_ROWS", 20)
    assert (kept.read.last_row(), kept.read.rows_after(0, 10)) == (0, [])
    kept.write(95)
    assert kept.read.last_row() == 95
    found: list[Any] = []
    while rows := kept.read.rows_after(found[-1][0] if found else 0, 7):
        found += rows
    assert [row[:3] for row in map(list, found)] == [[n, n, 1000 + n] for n in range(1, 96)]
    assert found[0][3] == key(1).client_text
    assert kept.read.service_names() == {kept.service: "meters"}
    assert kept.read.rows_after(95, 7) == kept.read.rows_after(1000, 7) == []

    async def scene() -> None:
        one = Listener(Stream(kept.read), 90, 95)
        await one.until(95)
        assert one.numbers == [91, 92, 93, 94, 95]
        assert {told["service"] for kind, _, told in one.events if kind == "transition"} == {"meters"}
        await one.close()

    asyncio.run(scene())


@pytest.mark.parametrize("after", [15, 20, 40])
def test_who_listens_is_told_what_comes_behind_the_end_of_a_part(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Also who begins with the last row of one."""
    monkeypatch.setattr(history, "PART_ROWS", 20)
    kept.write(after)

    async def scene() -> None:
        one = Listener(Stream(kept.read), after, after)
        listening = asyncio.ensure_future(one.until_told(after + 75))
        for _ in range(15):
            await asyncio.sleep(0.01)
            await asyncio.to_thread(kept.write, 5)
        await asyncio.wait_for(listening, 10)
        assert one.numbers == list(range(after + 1, after + 76))
        assert not [kind for kind, _, _ in one.events if kind == "reset"]
        await one.close()

    asyncio.run(scene())


def test_of_rows_that_were_removed_it_is_said_which_is_the_first(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PART_ROWS", 20)
    kept = Kept(database)
    kept.write(90)
    every_column, removed_parts = history._all_columns, iter(range(1))

    def remove_first(part: Any) -> str:
        """Between the look at which parts there are and the one at this part."""
        text = every_column(part)
        for _ in removed_parts:
            with kept.store._writing() as connection:
                kept.store._history.begin()
                kept.store._history._remove(connection, kept.store._history._draft[0])
        return text

    monkeypatch.setattr(history, "_all_columns", remove_first)
    with pytest.raises(RemovedError) as removed:
        kept.read.rows_after(5, 10)
    assert removed.value.first == 21
    assert kept.read.rows_after(20, 1)[0][0] == 21
    kept.close()


def test_a_database_in_the_place_of_another_is_read_from_then_on(sqlite: Sqlite) -> None:
    kept = Kept(cast(Database, sqlite))
    kept.write(3)
    assert kept.read.last_row() == 3
    kept.store.close(3)
    for suffix in ("", "-wal", "-shm"):
        sqlite.file.with_name(f"{sqlite.file.name}{suffix}").unlink(missing_ok=True)
    other = Kept(cast(Database, sqlite))
    other.write(1)
    assert kept.read.last_row() == 1
    kept.read.close_readers()
    other.close()


def test_a_stream_that_is_left_is_over() -> None:
    source = Source()
    stream = Stream(source)

    async def scene() -> None:
        async with aclosing(stream.follow(0, 0, EVERYTHING)) as parts:
            assert (await anext(parts)).startswith(b":")
            assert stream._listeners == 1
        assert stream._listeners == 0
        await asyncio.sleep(0.05)
        assert stream._reading is None

    asyncio.run(scene())
