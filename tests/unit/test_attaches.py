# SPDX-License-Identifier: Apache-2.0
"""The record of attaches: when a row of a server is written, and what the store does with it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from errno import ECANCELED, ENOENT
from typing import Any

import pytest

from appliance.frontends.target import Address, Name, Target
from appliance.wire import KA, NO_FIRST_BYTE, SERVED, Event, EventType, Record, pack_address
from control.clients.view import View
from control.core.states import State
from control.reach import attaches as module
from control.reach.attach_request import AttachRequest
from control.reach.attaches import Attaches
from control.store import appended as attaches_of_store
from control.store import queues
from control.store import store as store_module
from control.store.appended import ROW_BYTES, Attach
from control.store.store import Store
from tests.databases import Database, written
from tests.unit.fake_engine import event, key
from tests.unit.test_history import prune_until
from tests.unit.test_store import sleeper, until

DAY_MS = 86_400_000


class Rows(list[Attach]):
    """In place of the store."""


@pytest.fixture
def rows() -> Rows:
    return Rows()


def served(token: int, first_ms: int | None = 30, number: int = 7, error: int = 0, server: str = "") -> Event:
    """What the engine tells of a server that it has linked, or refused at a door."""
    told = event(EventType.SERVED, key(number), number, token=token, from_state=State.SLEEP, count=12, error=error)
    address = pack_address(server) if server else bytes(16)
    packed = SERVED.pack(address, 4711 if server else 0, 3, NO_FIRST_BYTE if first_ms is None else first_ms)
    return told._replace(record=Record(key(number).pack(), packed + bytes(KA.size - SERVED.size), told.record.rest))


CLIENT = Address("192.0.0.7", 40000)


def ask(attaches: Attaches, token: int, error: int = 0, target: Target = CLIENT) -> None:
    """A server that comes by the proxy, and is answered at once."""
    near, far = socket.socketpair()
    request = AttachRequest(near, b"", b"", 5)
    with near, far, attaches.asked("connect", target, request):
        request.token, request.error = token, error


# -- when a row is written --------------------------------------------------------------------------------------------


def test_a_row_waits_for_the_client_s_first_byte(rows: Rows) -> None:
    attaches = Attaches(rows)
    ask(attaches, token=5)
    assert rows == []
    (waiting,) = attaches.waiting()
    assert (waiting.target, waiting.error, waiting.first_ms) == ("192.0.0.7:40000", 0, None)
    attaches.served(served(5))
    (row,) = rows
    assert (row.id, row.client, row.service, row.found, row.first_ms) == (7, "192.0.0.7:40000", 3, State.SLEEP, 30)
    assert attaches.waiting() == []


def test_what_the_engine_tells_before_the_answer_is_known_is_not_lost(rows: Rows) -> None:
    attaches = Attaches(rows)
    attaches.served(served(5, first_ms=None))
    assert rows == []
    ask(attaches, token=5)
    (row,) = rows
    assert (row.found, row.first_ms) == (State.SLEEP, None)


@pytest.mark.parametrize(("token", "error"), [(0, ENOENT), (5, ENOENT), (0, 0)])
def test_a_refusal_and_a_link_of_the_daemon_s_own_are_written_at_once(rows: Rows, token: int, error: int) -> None:
    attaches = Attaches(rows)
    ask(attaches, token, error, Name("meter.roost", 80))
    (row,) = rows
    assert (row.way, row.target, row.error, row.found, row.first_ms) == ("connect", "meter.roost:80", error, 0, None)
    assert attaches.waiting() == []


def test_a_request_that_is_broken_off_is_written_as_a_failure(rows: Rows) -> None:
    with socket.socket() as sock, pytest.raises(ZeroDivisionError):
        with Attaches(rows).asked("socks5", Name("a.roost"), AttachRequest(sock, b"", b"", 5)):
            _ = 1 // 0
    assert [(row.way, row.error, row.server) for row in rows] == [("socks5", ECANCELED, "")]


def test_a_door_is_the_engine_s_alone(rows: Rows) -> None:
    attaches = Attaches(rows)
    attaches.served(served(0, server="10.20.0.1"))
    attaches.served(served(0, first_ms=None, error=ENOENT, server="2001:db8::1"))
    linked, refused = rows
    assert (linked.way, linked.server, linked.target) == ("address", "10.20.0.1:4711", "192.0.0.7:40000")
    assert (linked.client, linked.answer_ms, linked.first_ms) == ("192.0.0.7:40000", 12, 30)
    assert (refused.server, refused.client, refused.error) == ("[2001:db8::1]:4711", "", ENOENT)


def test_what_waits_is_bounded(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 3)
    monkeypatch.setattr(module, "EARLY", 3)
    attaches = Attaches(rows)
    for token in range(1, 6):
        ask(attaches, token, target=Address("192.0.0.7", token))
    assert [row.target for row in rows] == ["192.0.0.7:1", "192.0.0.7:2"], "the oldest are written without"
    assert len(attaches.waiting()) == 3
    for token in range(100, 200):  # commands that are no server's
        attaches.served(served(token))
    assert len(attaches._early) == 3
    attaches.close()
    assert [row.target for row in rows[2:]] == ["192.0.0.7:3", "192.0.0.7:4", "192.0.0.7:5"]
    assert attaches.waiting() == []


def test_answers_and_events_of_two_threads_make_each_row_once(rows: Rows) -> None:
    attaches = Attaches(rows)

    def tell() -> None:
        for token in range(1, 501):
            attaches.served(served(token))

    other = threading.Thread(target=tell)
    other.start()
    for token in range(1, 501):
        ask(attaches, token, target=Address("192.0.0.7", token))
    other.join()
    assert sorted(int(row.target.rpartition(":")[2]) for row in rows) == list(range(1, 501))
    assert {row.first_ms for row in rows} == {30}


# -- what is shown of it ----------------------------------------------------------------------------------------------


def shown(store: Any, attaches: Attaches) -> list[tuple[str, int | None]]:
    """Of each server that is shown, what it asked for and when the client said its first word."""
    nobody: Any = None
    view = View(nobody, store, nobody, {}, nobody, attaches.waiting)
    return [(row["target"], row["first_ms"]) for row in view.attaches(100, failed=False)]


@pytest.mark.parametrize("read_first", [False, True])
def test_a_row_that_is_completed_while_it_is_looked_for_is_shown_once(rows: Rows, read_first: bool) -> None:
    attaches = Attaches(rows)

    class Stored:
        def recent_attaches(self, limit: int, failed: bool) -> list[Attach]:
            before = list(rows)
            attaches.served(served(5))
            return before if read_first else list(rows)

    ask(attaches, token=5)
    said = 30 if not read_first else None
    assert shown(Stored(), attaches) == [("192.0.0.7:40000", said)]


def test_a_row_waits_until_the_store_has_it() -> None:
    """Whoever looks at both meanwhile finds it in one of them."""
    seen: list[tuple[list[Attach], int]] = []

    def look() -> None:
        seen.append((attaches.waiting(), len(rows)))

    class Slow(Rows):
        def append(self, row: Attach) -> None:
            looks = threading.Thread(target=look)
            looks.start()
            looks.join(0.2)
            super().append(row)

    rows = Slow()
    attaches = Attaches(rows)
    ask(attaches, token=5)
    attaches.served(served(5))
    until(lambda: seen)
    assert seen == [([], 1)]


# -- in the store -----------------------------------------------------------------------------------------------------


def row(number: int, at: int = 1000, error: int = 0) -> Attach:
    return Attach(at, "connect", "10.20.0.1:4711", "meter.roost:80", "", number, "", 1, State.SLEEP, error, 3, 30)


def numbers(database: Database) -> list[int]:
    return [seq for (seq,) in database.execute("SELECT seq FROM attaches ORDER BY seq")]


def test_rows_are_kept_in_the_order_in_which_they_came(make: Callable[..., Store], database: Database) -> None:
    store = make()
    for number in range(1, 101):
        store.append(row(number, error=number % 2))
    assert [one.id for one in store.recent_attaches(5)] == [96, 97, 98, 99, 100]
    assert [one.id for one in store.recent_attaches(3, failed=True)] == [95, 97, 99]
    assert store.recent_attaches(1) == [row(100)]
    assert numbers(database) == list(range(1, 101))


def test_refusals_are_looked_for_among_the_newest(make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaches_of_store, "LOOKED_AT", 10)
    store = make()
    for number in range(1, 31):
        store.append(row(number, error=number % 2))
    assert [one.id for one in store.recent_attaches(100, failed=True)] == [21, 23, 25, 27, 29]


def test_what_could_not_be_written_is_written_later_and_once(make: Callable[..., Store], database: Database) -> None:
    store = make()
    store.append(row(1))
    assert written(store)
    with database.locked():
        store.add(upserts=[sleeper(1, 1)])  # of whose table the lock is, with some
        for number in range(2, 50):
            store.append(row(number))
        until(lambda: "lock" in store.status.error)
    until(lambda: store.status.text == "ok")
    assert [one.id for one in store.recent_attaches(100)] == list(range(1, 50))
    assert numbers(database) == list(range(1, 50)), "without a gap"


def test_rows_past_the_bound_are_dropped_counted_and_said(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queues, "APPENDED_BOUND", 10)
    store = make()
    database.take_away()
    store.add(upserts=[sleeper(1, 1)])
    until(lambda: store.status.error)
    for number in range(30):
        store.append(row(number))
    assert store.status.dropped_attaches == 20
    assert len([one for one in caplog.records if "rows of attaches wait" in one.getMessage()]) == 1
    database.give_back()
    until(lambda: store.status.text == "ok")
    if database.survives:
        assert [one.id for one in store.recent_attaches(100)] == list(range(10)), "the first are kept"


def test_old_rows_are_removed_and_their_numbers_not_given_again(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PRUNE_ROWS", 7)
    store = make(keep_days=1)
    now = time.time_ns() // 1_000_000
    for number in range(1, 31):
        store.append(row(number, at=now - 2 * DAY_MS if number <= 20 else now))
    assert written(store)
    prune_until(store, lambda: numbers(database) == list(range(21, 31)))
    database.execute("DELETE FROM attaches")
    store.close()
    again = make(keep_days=1)
    again.append(row(31))
    assert written(again)
    assert numbers(database) == [31]


def test_more_rows_than_there_is_room_for_are_removed_the_oldest_first(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PRUNE_ROWS", 7)
    store = make(keep_bytes=10 * ROW_BYTES[Attach])
    for number in range(1, 31):
        store.append(row(number, at=time.time_ns() // 1_000_000))
    assert written(store)
    prune_until(store, lambda: numbers(database) == list(range(21, 31)))


def test_a_row_takes_about_as_much_as_is_said(make: Callable[..., Store], database: Database) -> None:
    if database.name != "sqlite":
        pytest.skip("it is said of SQLite's file")
    store = make()
    (before,) = database.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
    for number in range(5000):
        store.append(row(number)._replace(at=10**12 + number, client="192.0.2.7:40123"))
    assert written(store)
    (after,) = database.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
    assert 0.6 < (after[0] - before[0]) / 5000 / ROW_BYTES[Attach] < 1.2


def test_what_waits_at_the_end_is_written(database: Database) -> None:
    if database.name != "sqlite":
        pytest.skip("close() does the same with every database")
    store = Store(database.url, lambda slept: None)
    store.open()
    store.start()
    store.append(row(1))
    assert store.close() == 0
    assert numbers(database) == [1]
