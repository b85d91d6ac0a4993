# SPDX-License-Identifier: Apache-2.0
"""The store: commit before SLEEP, the last word about a 4-tuple wins, and what happens when the database does not.

Every test runs on SQLite and on PostgreSQL but those whose names say which one they are about."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from appliance.paths import LOCAL
from appliance.wire import KA, LOW_BITS, NO_ENDS, ROW_BITS, Key
from control.core.states import Cause, State
from control.export.export import Export
from control.store import file, reading, schema, sleeping
from control.store import store as module
from control.store.appended import Snapshot
from control.store.database import (
    SERVER_LIMITS,
    StoreError,
    get_meta,
    open_engine,
    parse_url,
    set_meta,
    without_secrets,
)
from control.store.schema import (
    AGENT,
    DIALLED,
    HISTORY,
    KA_BYTES,
    KEYED,
    NAMED,
    OVERRIDDEN,
    OVERRIDES_BYTES,
    SCHEMA_VERSION,
    SUCCESSOR,
    Keyed,
    address_text,
)
from control.store.sleeping import Committed
from control.store.starting import wall_offset_ms
from control.store.statements import STATEMENT_ROWS, write_keyed
from control.store.store import Store
from tests.databases import Database, Postgres, written
from tests.unit.fake_engine import key, record
from tests.unit.test_migrations import make_sleeping_before

OLD_KA = struct.Struct("=IIIIIIHHHBBI")  # until schema 4

on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


class Recorder:
    def __init__(self) -> None:
        self.slept: list[tuple[bytes, int]] = []
        self.generations: list[tuple[bytes, int, int]] = []

    def __call__(self, slept: list[Committed]) -> None:
        self.slept += [(key, number) for key, number, _, _ in slept]
        self.generations += [(key, number, generation) for key, number, generation, _ in slept]


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def row(number: int, identity: int, source: State = State.STANDBY, target: State = State.IDLE, at: int = 0) -> bytes:
    at = at or time.time_ns() // 1_000_000
    return HISTORY.pack(identity, at, key(number).pack(), 1, source, target, Cause.QUIET, 10, 20, 30, NO_ENDS)


def sleeper(number: int, identity: int, by_key: bool = False) -> tuple[bytes, bytes]:
    r = record(key(number), identity, by_key=by_key)
    return r.key_raw, r.ka + r.rest


@pytest.fixture
def slept() -> Recorder:
    return Recorder()


@pytest.fixture
def make(database: Database, slept: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Store]]:
    monkeypatch.setattr(module, "BACKOFF_S", (0.05,))
    monkeypatch.setattr(module, "LOCK_S", 0.2)
    made: list[Store] = []

    def build(**options: Any) -> Store:
        store = Store(options.pop("url", database.url), slept, **options)
        made.append(store)
        store.open()
        store.service_indexes(["a"])
        store.start()
        return store

    yield build
    for store in made:
        store.close(2.0)


def test_a_record_comes_back_as_it_was_and_only_after_its_commit(make: Callable[..., Store], slept: Recorder) -> None:
    store = make()
    packed, value = sleeper(1, 11)
    store.add(upserts=[(packed, value)])
    until(lambda: slept.slept)
    assert slept.slept == [(packed, 11)]
    assert store.read({packed: 11, b"x" * 36: 0}) == {packed: (value[:KA_BYTES], value[KA_BYTES:])}
    found = store.sleeping_by_id(11)
    assert found is not None
    assert (found.service, Key.unpack(found.key)) == (1, key(1))
    assert store.sleeping_ids({packed: 11}) == {packed: 11}


def test_who_is_asleep_is_known_once_all_about_him_is_written(
    make: Callable[..., Store], slept: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    sleepers = [sleeper(number, 10 + number, by_key=True) for number in range(1, 5)]
    packed, value = sleepers[0]
    nobody = key(9).pack()
    store.add(upserts=sleepers)
    until(lambda: len(slept.slept) == len(sleepers))
    until(lambda: store.status.pending_sleep == 0)  # settled only after the engine has heard of them
    assert store.asleep([packed, nobody]) == {packed: (value[:KA_BYTES], value[KA_BYTES:]), nobody: None}

    writing, write = threading.Event(), Store._write
    resume = threading.Event()

    def held_up(self: Store, batch: Any) -> None:
        writing.set()
        assert resume.wait(10)
        write(self, batch)

    monkeypatch.setattr(Store, "_write", held_up)
    store.add(deletes=[(packed, 11)], stale=[one for one in slept.generations if one[0] == sleepers[1][0]])
    assert writing.wait(10)  # neither waits any more, and neither is written
    store.add(upserts=[sleepers[2]])
    keys = [key for key, _ in sleepers]
    assert list(store.asleep(keys)) == [sleepers[3][0]], "of the others nobody can say yet"
    resume.set()
    until(lambda: len(store.asleep(keys)) == len(keys))
    assert [key for key, row in store.asleep(keys).items() if row] == [sleepers[2][0], sleepers[3][0]]


def test_rows_of_an_earlier_boot_say_nothing_about_who_is_asleep(make: Callable[..., Store], slept: Recorder) -> None:
    store = make()
    packed, value = sleeper(1, 11, by_key=True)
    store.add(upserts=[(packed, value)])
    until(lambda: slept.slept)
    store._boot_id = "another-boot"
    assert store.asleep([packed]) == {}
    assert store.read({packed: 0})


def test_the_last_word_about_a_4_tuple_wins(make: Callable[..., Store], slept: Recorder) -> None:
    store = make()
    packed, first = sleeper(1, 11)
    _, second = sleeper(1, 12)
    with store._wake:  # the writer takes neither before the other
        store.add(upserts=[(packed, first)])
        store.add(deletes=[(packed, 11)])
    store.add([row(2, 2)])
    until(lambda: store.status.written_history == 1)
    assert store.read({packed: 11}) == {}
    assert slept.slept == [], "a row that was never written must not count as SLEEP"
    store.add(upserts=[(packed, second)], deletes=[(packed, 11)])
    until(lambda: slept.slept)
    assert slept.slept == [(packed, 12)], "forgetting the old connection keeps the new one with the same 4-tuple"
    store.add(upserts=[(packed, second)], deletes=[(packed, 12)])
    until(lambda: len(slept.slept) == 2)
    assert store.read({packed: 12}), "what wakes and is to sleep again, in one call, is to sleep"


@pytest.mark.parametrize("reference", [LOW_BITS | 11, 0], ids=["by low bits", "by key"])
def test_forgetting_asks_for_what_is_known_of_the_number(
    make: Callable[..., Store], slept: Recorder, reference: int
) -> None:
    store = make()
    packed, value = sleeper(1, 11, by_key=not reference)
    store.add(upserts=[(packed, value)])
    until(lambda: slept.slept)
    store.add([row(1, 1)], deletes=[(packed, 99), (key(2).pack(), reference)])
    until(lambda: store.status.written_history == 1)
    assert store.read({packed: reference})
    store.add([row(1, 1)], deletes=[(packed, reference)])
    until(lambda: store.status.written_history == 2)
    assert store.read({packed: reference}) == {}


EPOCH = 1 << ROW_BITS


def test_a_number_is_told_by_its_low_bits_and_its_key(make: Callable[..., Store], slept: Recorder) -> None:
    """Of those that a daemon has not written, too: it reads which high bits there are."""
    sleepers = {n * EPOCH + 11: sleeper(n + 1, n * EPOCH + 11) for n in (0, 1, 3, 1500)}
    store = make()
    store.add(upserts=sleepers.values())
    until(lambda: len(slept.slept) == len(sleepers))
    store.add([row(2, LOW_BITS | 11, State.SLEEP, State.CLOSED)], deletes=[(sleepers[EPOCH + 11][0], LOW_BITS | 11)])
    until(lambda: store.status.written_history == 1)
    assert [r["id"] for r in store.recent_history()] == [EPOCH + 11]
    del sleepers[EPOCH + 11]
    for where in (store, make()):
        sought = {packed: LOW_BITS | 11 for packed, _ in sleepers.values()}
        assert where.sleeping_ids(sought) == {packed: number for number, (packed, _) in sleepers.items()}
        assert where.read({key(2).pack(): LOW_BITS | 11, sleepers[11][0]: LOW_BITS | 12}) == {}
        store.close()


def test_a_number_that_another_connection_has_in_the_database_is_not_put_to_sleep(
    make: Callable[..., Store], slept: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins of an instance that had another database: their IDLE connections have numbers of that one."""
    store = make()
    store.add(upserts=[sleeper(1, 11)])
    until(lambda: slept.slept)
    store.add(upserts=[sleeper(2, 11)])
    until(lambda: "1 connections stay IDLE" in caplog.text)
    store.add(upserts=[sleeper(2, 11), sleeper(3, 12), sleeper(4, 12)])
    until(lambda: len(slept.slept) == 2)
    store.add([row(2, 11)], deletes=[(sleeper(2, 11)[0], 11), (sleeper(2, 11)[0], LOW_BITS | 11)])
    until(lambda: store.status.written_history == 1)
    assert slept.slept == [(sleeper(1, 11)[0], 11), (sleeper(3, 12)[0], 12)]
    assert [(r.id, r.key) for r in store.sleeping_rows()] == [(12, sleeper(3, 12)[0]), (11, sleeper(1, 11)[0])]
    assert "2 connections stay IDLE" in caplog.text


@pytest.mark.parametrize("by_key", [True, False])
def test_a_row_that_a_kill_has_left_of_a_candidate_goes_when_its_4_tuple_sleeps_again(
    make: Callable[..., Store], slept: Recorder, by_key: bool
) -> None:
    store, packed = make(), key(1).pack()
    store.add(upserts=[sleeper(1, 11, by_key=True)])
    until(lambda: slept.slept)
    store.add(upserts=[sleeper(1, 12, by_key)])
    until(lambda: len(slept.slept) == 2)
    assert [r.id for r in store.sleeping_rows()] == [12]
    found = store.asleep([packed])[packed]
    assert (found is not None) == by_key


def test_a_4_tuple_has_the_row_of_its_last_connection_alone(make: Callable[..., Store], slept: Recorder) -> None:
    """However the words about them come together, and though a write fails in between."""
    store, (packed, first), (_, second) = make(), sleeper(1, 11), sleeper(1, 12)
    store.add(upserts=[(packed, first)])
    until(lambda: slept.slept)
    with store._wake:
        store.add(deletes=[(packed, LOW_BITS | 11)])
        store.add(upserts=[(packed, second)])
        batch = store._queues.take(1)
        store.add(deletes=[(packed, 99)])
        store._queues.put_back(batch)
        store.add(upserts=[(packed, second)])
    until(lambda: len(slept.slept) == 2)
    assert [(r.id, r.key) for r in store.sleeping_rows()] == [(12, packed)]


def test_a_row_written_in_vain_is_removed_but_not_a_later_one(make: Callable[..., Store], slept: Recorder) -> None:
    store = make()
    for count in (1, 2):
        store.add(upserts=[sleeper(1, 11)])
        until(lambda: len(slept.slept) >= count)  # noqa: B023
    store.add([row(1, 1)], stale=[slept.generations[0]])
    until(lambda: store.status.written_history == 1)
    assert store.sleeping_by_id(11)
    store.add([row(1, 1)], stale=[slept.generations[1]])
    until(lambda: store.status.written_history == 2)
    assert not store.sleeping_by_id(11)


def test_a_transition_without_a_number_gets_it_from_the_sleeping_row(
    make: Callable[..., Store], slept: Recorder
) -> None:
    store = make()
    packed, value = sleeper(1, 11, by_key=True)
    store.add(upserts=[(packed, value)])
    until(lambda: slept.slept)
    store.add([row(1, 0, State.SLEEP, State.CLOSED)], deletes=[(packed, 0)])
    until(lambda: store.status.written_history == 1)
    assert [(r["id"], r["from"], r["to"]) for r in store.history_of(11)] == [(11, State.SLEEP, State.CLOSED)]


def cut(page: Any, *columns: Any) -> Any:
    """What an SQLite makes of it that ends text at the first NUL."""
    keys, numbers = packed_page(page, *columns).selected_columns
    return sa.select(sa.func.substr(keys, 1, 1), numbers)


packed_page = reading._packed
WAYS: dict[str, dict[str, Any]] = {"row by row": {"_PACKING": frozenset()}, "cut": {"_packed": cut}}


def test_who_sleeps_is_read_page_by_page_with_its_number(
    make: Callable[..., Store], slept: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ascending numbers, which is another order than that of the keys; keys have any bytes."""
    store, count = make(), 2 * 7 + 3
    sleepers = {identity: sleeper(256 * identity % 999, identity) for identity in range(1, count + 1)}
    monkeypatch.setattr(reading, "SCAN_ROWS", 7)
    assert list(store.sleeping_numbers()) == []
    store.add(upserts=sleepers.values())
    until(lambda: len(slept.slept) == count)
    pages = list(store.sleeping_numbers())
    assert [len(numbers) for _, numbers in pages] == [7, 7, 3]
    assert [number for _, numbers in pages for number in numbers] == sorted(sleepers)
    assert b"".join(keys for keys, _ in pages) == b"".join(sleepers[number][0] for number in sorted(sleepers))


@on_sqlite
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_sqlite_packs_a_page_of_who_sleeps_and_does_without_where_it_cannot(
    make: Callable[..., Store], slept: Recorder, monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]
) -> None:
    for name, value in way.items():
        monkeypatch.setattr(reading, name, value)
    test_who_sleeps_is_read_page_by_page_with_its_number(make, slept, monkeypatch)


def test_a_key_of_another_length_is_an_error_and_shifts_no_other(make: Callable[..., Store], slept: Recorder) -> None:
    store = make()
    store.add(upserts=[sleeper(1, 1), sleeper(2, 2)])
    until(lambda: len(slept.slept) == 2)
    with store._writer_engine.begin() as connection:
        connection.execute(sa.update(schema.sleeping).where(schema.sleeping.c.id == 1).values(key=b"\0"))
    with pytest.raises(StoreError, match="row 1 is not 36 bytes"):
        list(store.sleeping_numbers())


def test_services_keep_their_numbers_when_they_are_reordered(make: Callable[..., Store]) -> None:
    first = make().service_indexes(["a", "b", "c"])
    again = make().service_indexes(["new", "c", "a"])
    assert {name: again[name] for name in "ac"} == {name: first[name] for name in "ac"}
    assert again["new"] not in first.values()


def test_a_service_that_comes_while_the_daemon_runs_has_a_number_of_its_own(
    make: Callable[..., Store], database: Database
) -> None:
    store = make()
    store.service_indexes(["a", "b"])
    numbers = store.number_services(["c", "a"])
    assert numbers["a"] == 1
    assert numbers["c"] == 3
    assert store.number_services(["c"]) == {"c": 3}
    assert make().service_indexes(["c", "d"])["c"] == 3
    with pytest.raises(StoreError):
        Store(database.url, lambda _slept: None).number_services(["e"])


def test_numbers_of_connections_go_on_after_a_restart(make: Callable[..., Store]) -> None:
    store = make()
    assert store.next_id() == 1
    store.add([row(1, 500)])
    until(lambda: store.status.written_history == 1)
    assert store.next_id() > 500
    store.close()
    assert make().next_id() > 500


def test_closing_writes_what_is_pending(make: Callable[..., Store], slept: Recorder) -> None:
    store = make(batch=100)
    store.add([row(n, n) for n in range(1, 1001)], [sleeper(n, n) for n in range(1, 501)])
    assert store.close() == 0
    assert len(slept.slept) == 500
    assert len(make().recent_history(2000)) == 1000


def test_a_database_that_cannot_be_used_stops_sleep_and_says_so_and_comes_back(
    make: Callable[..., Store], slept: Recorder, database: Database
) -> None:
    """SQLite's file is no database, until it is removed; PostgreSQL's server is down, until it is started."""
    database.take_away()
    store = make()
    assert database.away in store.status.text
    assert "\n" not in store.status.text
    assert store.sleep_allowed is False
    store.add([row(1, 1)], [sleeper(1, 11)])
    time.sleep(0.3)
    assert slept.slept == []
    assert store.status.pending_sleep == 1
    with pytest.raises(StoreError):
        store.read({sleeper(1, 11)[0]: 11})
    database.give_back()
    until(lambda: slept.slept)
    until(lambda: store.sleep_allowed)
    assert store.read({sleeper(1, 11)[0]: 11})


def test_a_database_that_goes_away_while_in_use_loses_no_queued_row(
    make: Callable[..., Store], slept: Recorder, database: Database
) -> None:
    store = make()
    store.add([row(1, 1)], [sleeper(1, 1)])
    until(lambda: slept.slept and store.status.written_history)
    if database.name == "sqlite":
        store._writer_engine.dispose()  # a process that has the file open keeps it
    database.take_away()
    store.add([row(2, 2)], [sleeper(2, 2)])
    until(lambda: store.status.error)
    database.give_back()
    until(lambda: len(slept.slept) == 2)
    assert [r["id"] for r in store.recent_history()] == ([1, 2] if database.survives else [2])
    assert store.sleeping_by_id(2)


@on_postgresql
def test_a_restart_of_postgresql_costs_no_reader_more_than_one_error(
    make: Callable[..., Store], slept: Recorder, database: Postgres
) -> None:
    store = make()
    wanted = sleeper(1, 1)
    store.add(upserts=[wanted])
    until(lambda: slept.slept)
    assert store.read({wanted[0]: 1})
    database.take_away()
    with pytest.raises(StoreError):
        store.read({wanted[0]: 1})
    with pytest.raises(StoreError):
        list(store.sleeping_numbers())
    database.give_back()
    assert store.read({wanted[0]: 1})
    assert store.sleeping_ids({wanted[0]: 1}) == {wanted[0]: 1}


@on_postgresql
def test_a_connection_to_postgresql_that_is_cut_is_made_anew(
    make: Callable[..., Store], slept: Recorder, database: Postgres
) -> None:
    store = make()
    wanted = sleeper(1, 1)
    store.add(upserts=[wanted])
    until(lambda: slept.slept)
    assert store.read({wanted[0]: 1})
    assert database.cut() >= 2, "the writer's and a reader's"
    store.add([row(2, 2)], [sleeper(2, 2)])
    until(lambda: len(slept.slept) == 2)
    assert [r["id"] for r in store.recent_history()] == [2]
    with pytest.raises(StoreError, match="terminat"):
        store.read({wanted[0]: 1})
    assert store.read({wanted[0]: 1}), "the next attempt has a connection of its own"


@on_postgresql
def test_a_batch_that_postgresql_cuts_short_is_written_once(
    make: Callable[..., Store], slept: Recorder, database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut within the transaction: after its history, before its record."""
    store, cuts, clock = make(), [1], sleeping.clock

    def cut_off(*arguments: Any) -> Any:
        if cuts:
            cuts.pop()
            database.cut()
        return clock(*arguments)

    monkeypatch.setattr(sleeping, "clock", cut_off)
    store.add([row(1, 1)], [sleeper(1, 1)])
    until(lambda: slept.slept)
    assert (len(slept.slept), len(store.recent_history()), cuts) == (1, 1, [])


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
def test_a_batch_whose_commit_is_not_answered_is_written_once(
    make: Callable[..., Store], slept: Recorder, database: Database, monkeypatch: pytest.MonkeyPatch, commits: bool
) -> None:
    """The server has it, or not: the connection ends before it says so."""
    store = make()
    store.add([row(1, 1)])
    assert written(store)
    dialect, losses = store._writer_engine.dialect, [1]
    end = dialect.do_commit if commits else dialect.do_rollback

    def lose_the_answer(connection: Any) -> None:
        if not losses:
            return dialect_commit(connection)
        losses.pop()
        end(connection)
        raise database.Error("the answer is lost")

    dialect_commit = dialect.do_commit
    monkeypatch.setattr(dialect, "do_commit", lose_the_answer)
    store.append(Snapshot(10**12, 60_000, 1, "", "{}"))
    store.add([row(2, 2), row(3, 3)], [sleeper(2, 2)])
    until(lambda: slept.slept)
    assert written(store)
    assert losses == []
    assert [row["id"] for row in store.recent_history()] == [1, 2, 3]
    assert len(database.execute("SELECT * FROM snapshots")) == 1
    assert slept.slept == [(sleeper(2, 2)[0], 2)]
    assert (store.status.written_history, store.status.pending_history, store.status.text) == (3, 0, "ok")


def test_rows_behind_an_empty_commit_without_an_answer_are_kept(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease was renewed, or not, and the database is away when the next rows are to be written."""
    store, losses, absences = make(), [1], [1]
    dialect, prepare = store._writer_engine.dialect, store._prepare
    commit = dialect.do_commit

    def lose_the_answer(connection: Any) -> None:
        commit(connection)
        if losses:
            losses.pop()
            store.add([row(1, 1)])
            raise database.Error("the answer is lost")

    def away() -> None:
        if absences:
            absences.pop()
            raise StoreError("away")
        prepare()

    monkeypatch.setattr(store, "_prepare", away)
    monkeypatch.setattr(dialect, "do_commit", lose_the_answer)
    store._ownership._renewed = -1e9
    until(lambda: not absences)
    until(lambda: len(store.recent_history()) == 1 and written(store))
    assert database.execute("SELECT count(*) FROM history") == [(1,)]


def test_a_lock_held_by_another_process_delays_sleep_but_not_reading(
    make: Callable[..., Store], slept: Recorder, database: Database
) -> None:
    store = make()
    early, late = sleeper(1, 1), sleeper(2, 2)
    store.add(upserts=[early])
    until(lambda: slept.slept)
    with database.locked():
        store.add(upserts=[late])
        until(lambda: "lock" in store.status.error)
        assert store.read({early[0]: 1}), "whoever stood behind the lock would give up with StoreError"
        assert slept.slept == [(early[0], 1)]
    until(lambda: len(slept.slept) == 2)
    until(lambda: store.status.text == "ok")


def test_a_full_disk_is_an_error_of_the_store_and_ends_with_it(
    make: Callable[..., Store], slept: Recorder, database: Database
) -> None:
    if database.name == "postgresql" and os.geteuid() != 0:
        pytest.skip("only root can mount a disk that is small enough to be filled up")
    store = make()
    with database.full(store._writer_engine):
        store.add([row(n, n) for n in range(1, 2001)], [sleeper(n, n) for n in range(1, 2001)])
        until(lambda: store.status.error)
        assert database.no_room in store.status.error
        assert slept.slept == []
    until(lambda: len(slept.slept) == 2000)
    until(lambda: store.status.pending_history == 0)  # only after the engine has heard of them
    assert len(store.recent_history(5000)) == 2000, "each row exactly once, however often it was tried"


def test_history_that_does_not_fit_is_dropped_and_counted(make: Callable[..., Store], database: Database) -> None:
    database.take_away()
    store = make(history_bound=10)
    store.add([row(n, n) for n in range(8)])
    store.add([row(n, n) for n in range(8)])
    until(lambda: store.status.pending_history == 10)
    assert store.status.dropped_history == 6


def test_reading_waits_for_no_writer(make: Callable[..., Store], slept: Recorder) -> None:
    store = make()
    wanted = sleeper(1, 1)
    store.add(upserts=[wanted])
    until(lambda: slept.slept)
    with store._writer_engine.connect() as writer:
        # A reader that stood behind this transaction would give up with StoreError: nothing ends it.
        writer.execute(sa.delete(schema.sleeping))
        assert list(store.read({wanted[0]: 1})) == [wanted[0]]
        writer.rollback()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mysql://h/d", "not in mysql"),
        (
            "postgresql+psycopg2://h/d",
            "not in postgresql.psycopg2: write a path, or a URL that begins with postgresql://",
        ),
        ("postgres://h/d", "begins with postgresql://"),
        ("postgresql://user:sec@ret:secret@h:port/d", "cannot be read"),
        ("no url", "cannot be read"),
    ],
)
def test_other_databases_are_refused_by_name_and_no_password_is_said(text: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as error:
        Store(text, Recorder())
    assert "secret" not in str(error.value)


def test_nothing_of_postgresql_is_imported_for_a_database_of_sqlite(tmp_path: Path) -> None:
    code = f"""
import sys, control.daemon.daemon, control.api.process
from control.store.store import Store
store = Store("sqlite:///{tmp_path}/roost.db", lambda slept: None)
store.open()
store.start()
store.close(3)
print(*sorted(sys.modules))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "sqlalchemy.dialects.sqlite" in found
    assert not [name for name in found if name.startswith("sqlalchemy.dialects.postgresql")]


def test_postgresql_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # what an import of it finds
    with pytest.raises(StoreError, match=r"PostgreSQL needs psycopg .*: python3 -m pip install 'psycopg\[binary\]'"):
        Store("postgresql://h/d", Recorder())
    monkeypatch.setattr(sys, "path", [*sys.path, LOCAL])  # an installed one
    with pytest.raises(StoreError, match=r"pip install --target /usr/local/lib/roost 'psycopg\[binary\]'"):
        Store("postgresql://h/d", Recorder())


@on_postgresql
@pytest.mark.parametrize(
    ("user", "password", "name", "said"),
    [
        ("careful", "wrong", "postgres", 'password authentication failed for user "careful"'),
        ("careful", "", "postgres", "no password supplied"),
        ("stranger", "", "postgres", 'role "stranger" does not exist'),
        ("roost", "", "nowhere", 'database "nowhere" does not exist'),
        ("careful", "right", "postgres", "permission denied for schema public"),
    ],
)
def test_postgresql_that_refuses_says_why_on_one_line_and_no_password(
    make: Callable[..., Store], database: Postgres, caplog: pytest.LogCaptureFixture,
    user: str, password: str, name: str, said: str,
) -> None:  # fmt: skip
    store = make(url=database.cluster.url(name, user, password))
    assert said in store.status.text
    assert "\n" not in store.status.text
    assert said in caplog.text
    assert not password or password not in caplog.text


@on_postgresql
def test_a_password_in_the_query_of_the_url_is_not_said(
    make: Callable[..., Store], database: Postgres, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    url = database.cluster.url("postgres", "careful", "") + "&password=hunter2&sslpassword=hunter3"
    make(url=url)
    with pytest.raises(StoreError, match="cannot read the history in postgresql://careful@/postgres") as error:
        Export(tmp_path / "out").add(url, None, None, lambda _table, _rows: None)
    assert "store: postgresql://careful@/postgres?" in caplog.text
    assert "hunter" not in caplog.text + str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("postgresql://h/d?user=u&password=hunter2", "postgresql://h/d?user=u"),
        ("postgresql+psycopg://u:hunter2@h:5/d?passfile=/p&sslpassword=hunter2&password=hunter2",
         "postgresql://u@h:5/d?passfile=%2Fp"),
        ("postgresql://h/d?scram_client_key=hunter2&PASSWORD=hunter2&oauth_client_secret=hunter2", "postgresql://h/d"),
        ("sqlite:////var/lib/roost/main.db", "sqlite:////var/lib/roost/main.db"),
    ],
)  # fmt: skip
def test_a_url_is_told_without_its_secrets(text: str, told: str) -> None:
    assert without_secrets(parse_url(text)) == told


def test_a_postgresql_that_accepts_and_says_nothing_is_waited_for_some_seconds_only(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / ".s.PGSQL.5432"))
        deaf.listen()
        store = Store(f"postgresql://h@/d?host={tmp_path}&connect_timeout=2", Recorder())
        began = time.monotonic()
        assert "timeout" in store.open()
        assert time.monotonic() - began < 2 * SERVER_LIMITS["connect_timeout"]
        assert store.close() == 0


@given(st.ip_addresses(), st.integers(0, 65535))
def test_addresses_are_written_as_people_write_them(address: Any, port: int) -> None:
    packed = address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed
    text = address_text(packed, port)
    if not getattr(address, "ipv4_mapped", None):
        assert text == (f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}")


def test_whoever_asks_for_history_sees_what_waits_for_a_slow_commit(
    make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write, taken, go_on = make(), Store._write, threading.Event(), threading.Event()

    def slow(self: Store, batch: Any) -> None:
        taken.set()
        assert go_on.wait(30)
        write(self, batch)

    store.add([row(1, 1)])
    assert written(store)
    monkeypatch.setattr(Store, "_write", slow)
    store.add([row(2, 2), row(1, 1)])
    assert taken.wait(30)
    store.add([row(3, 3)], keyed={("successors", 3): SUCCESSOR.pack(4, 5)})
    store.add([row(3, 3, State.IDLE, State.CLOSED)])
    for _ in range(2):
        found = store.recent_history()
        assert [(r["seq"], r["id"], r["successor"]) for r in found] == [
            (1, 1, None), (2, 2, None), (3, 1, None), (4, 3, None), (5, 3, 4)]  # fmt: skip
        assert [r["seq"] for r in store.history_of(1)] == [1, 3]
        assert [r["seq"] for r in store.history_of(3, 1)] == [5]
        assert [r["seq"] for r in store.recent_history(2)] == [4, 5]
        go_on.set()
        assert written(store)


def test_history_is_not_hurried_but_whoever_asks_sees_all_of_it(
    make: Callable[..., Store], slept: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RELAXED_GATHER_S", 10.0)
    store = make()
    began = time.monotonic()
    store.add([row(1, 1)])
    time.sleep(module.GATHER_S * 3)
    assert [r["id"] for r in store.recent_history()] == [1]
    assert store.status.pending_history == 1, "history alone is written in few commits"
    assert time.monotonic() - began < module.RELAXED_GATHER_S
    began = time.monotonic()
    store.add([row(2, 2)], [sleeper(2, 2)])
    until(lambda: slept.slept)
    assert time.monotonic() - began < module.RELAXED_GATHER_S, "whoever is to sleep waits for no history"
    assert not store.status.pending_history


def test_a_burst_of_history_is_written_batch_after_batch(
    make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RELAXED_GATHER_S", 3600.0)
    store = make(batch=100)
    store.add([row(n, n) for n in range(1, 2001)])
    until(lambda: store.status.written_history == 2000, 30)


@pytest.mark.parametrize("count", [STATEMENT_ROWS - 1, STATEMENT_ROWS, 2 * STATEMENT_ROWS + 1])
def test_every_row_of_history_is_written_once_and_in_order(make: Callable[..., Store], count: int) -> None:
    store = make()
    store.add([row(n, n, at=n) for n in range(1, count + 1)])
    until(lambda: store.status.written_history == count)
    found = store.recent_history(1000)
    assert [(r["id"], r["at"], r["client"]) for r in found] == [(n, n, key(n).client_text) for n in range(1, count + 1)]


def named(number: int, identity: int) -> bytes:
    return NAMED.pack(key(number).pack(), identity, 1000 + number)


def names(changes: Mapping[str, bytes | None]) -> dict[Keyed, bytes | None]:
    return {("names", name): packed for name, packed in changes.items()}


def test_the_last_word_about_a_name_is_what_stays(make: Callable[..., Store]) -> None:
    store = make()
    store.add(keyed=names({"a": named(1, 11), "b": named(2, 12)}))
    store.add(keyed=names({"a": named(3, 13), "c": named(4, 14)}))
    assert written(store)
    store.add(keyed=names({"b": None, "never": None}))
    store.add(keyed=names({"c": None}))
    store.add(keyed=names({"c": named(5, 15)}))
    assert written(store)
    assert dict(store.keyed("names")) == {"a": named(3, 13), "c": named(5, 15)}
    store.close()
    assert dict(make().keyed("names")) == {"a": named(3, 13), "c": named(5, 15)}


def test_a_name_is_written_at_once(make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RELAXED_GATHER_S", 3600.0)
    store = make()
    store.add(keyed=names({"a": named(1, 11)}))
    assert written(store)


@on_sqlite
def test_sqlite_syncs_a_name(make: Callable[..., Store]) -> None:
    store = make()
    said: list[str] = []
    sa.event.listen(store._writer_engine, "before_cursor_execute", lambda *args: said.append(args[2]))
    store.add(keyed=names({"a": named(1, 11)}))
    assert written(store)
    assert "PRAGMA synchronous=FULL" in said


@on_postgresql
def test_postgresql_syncs_what_is_committed_though_it_be_told_not_to(
    make: Callable[..., Store], database: Postgres
) -> None:
    database.execute("ALTER DATABASE postgres SET synchronous_commit = off")
    assert database.execute("SHOW synchronous_commit") == [("off",)]
    with make()._writer_engine.connect() as connection:
        assert connection.scalar(sa.text("SHOW synchronous_commit")) == "on"


def test_names_wait_for_a_database_that_is_locked_and_the_last_word_wins_then(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    store.add(keyed=names({"a": named(1, 11), "b": named(2, 12)}))
    assert written(store)
    meanwhile = [{"a": named(4, 14)}]  # said while the batch with the word before it is being written

    def locked(*_: object) -> None:
        if meanwhile:
            store.add(keyed=names(meanwhile.pop()))
        raise database.Error("database is locked")

    monkeypatch.setattr(module, "write_keyed", locked)
    store.add(keyed=names({"a": named(3, 13), "b": None}))
    until(lambda: "locked" in store.status.error)
    assert store.flush() is False
    assert dict(store.keyed("names")) == {"a": named(1, 11), "b": named(2, 12)}
    monkeypatch.setattr(module, "write_keyed", write_keyed)
    until(lambda: not store.status.error)
    assert written(store)
    assert dict(store.keyed("names")) == {"a": named(4, 14)}
    assert written(store), "what was tried twice is counted once"


@contextmanager
def opened(database: Database) -> Iterator[sa.Connection]:
    """The database, by another than the store."""
    if database.name == "sqlite":
        file.prepare(database.url.removeprefix("sqlite:///"))
    engine = open_engine(sa.make_url(database.url), timeout_s=2.0, writer=True)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def sleep_as_before(old: sa.Connection, ka: bytes) -> None:
    """The table of sleepers as it was until revision 0010, with what is in it now."""
    clocks = schema.clocks.c
    of_each = sa.select(schema.sleeping, clocks.boot_id, clocks.wall_offset_ms)
    rows = old.execute(of_each.where(clocks.clock == schema.sleeping.c.clock)).all()
    before = make_sleeping_before(old)
    for row in rows:
        kept = "key", "id", "generation", "slept_at", "boot_id", "wall_offset_ms", "rest"
        texts = {"client": "", "local": "", "service": 3, "ka": ka}
        old.execute(sa.insert(before).values(**{name: getattr(row, name) for name in kept}, **texts))


@pytest.mark.parametrize(
    ("version", "lacks"),
    [
        (1, ("names", "agents", "dialled", "overrides")),
        (2, ("agents", "dialled", "overrides")),
        (3, ("overrides",)),
        (4, ()),
        (5, ()),
    ],
)
def test_a_database_of_an_earlier_version_is_upgraded_in_place(
    make: Callable[..., Store], slept: Recorder, database: Database, version: int, lacks: tuple[str, ...]
) -> None:
    store = make()
    store.add([row(1, 1)], [sleeper(1, 11)])
    until(lambda: slept.slept and store.status.written_history)
    store.close()
    with opened(database) as old:
        old.execute(sa.text("DROP VIEW history"))
        old.execute(sa.text("ALTER TABLE history_1 RENAME TO history"))
        for table in (
            *lacks,
            "attaches",
            "snapshots",
            "audit",
            "tokens",
            "tags",
            "in_band_names",
            "groups",
            "history_parts",
            "runs",
            "owner",
            "successors",
            "rules",
            "alembic_version",
        ):
            old.execute(sa.text(f"DROP TABLE {table}"))
        for index in ("ix_names_id", "ix_agents_id"):
            old.execute(sa.text(f"DROP INDEX IF EXISTS {index}"))
        ka = OLD_KA.pack(2, 1000, 2000, 0, 0, 500, 512, 3, 60, 0, 0, 0)
        if version == 5:
            ka = KA.pack(2, 1000, 2000, 0, 0, 500 << 12, 512, 60, 0, 3, 0)
        sleep_as_before(old, ka)
        set_meta(old, "schema", version)
    store = make()
    assert store.status.text == "ok"
    found = store.sleeping_by_id(11)
    assert found is not None
    assert KA.unpack(found.ka) == (2, 1000, 2000, 0, 0, 500 << 12, 512, 60, 0, 3, 0)
    assert (found.boot_id, abs(found.wall_offset_ms - wall_offset_ms()) < 1000) == (store._boot_id, True)
    packed, _ = sleeper(1, 11)
    assert store.asleep([packed]) == {packed: (found.ka, found.rest)}, "its slot does not know its number"
    assert [r["id"] for r in store.recent_history()] == [1]
    added: dict[Keyed, bytes | None] = {
        ("names", "a"): named(1, 11),
        ("agents", "a"): AGENT.pack(key(1).pack(), 7, 1000, 2),
        ("dialled", "a"): DIALLED.pack(3, 1, 2000),
        ("overrides", key(1).pack()): OVERRIDDEN.pack(11, b"o" * OVERRIDES_BYTES),
        ("successors", 7): SUCCESSOR.pack(11, 3000),
    }
    store.add(keyed=added)
    assert written(store)
    assert {(kind, found): packed for kind in KEYED for found, packed in store.keyed(kind)} == added
    with opened(database) as new:
        assert get_meta(new, "schema") == SCHEMA_VERSION


def test_what_the_last_run_left_open_is_found_by_the_next(make: Callable[..., Store]) -> None:
    store = make()
    assert store.begin_run() == (0, 0)
    store.add([row(1, 1), row(2, 2), row(1, 1, State.IDLE, State.SLEEP), row(2, 2, State.IDLE, State.CLOSED)])
    assert written(store)
    store.close()
    first, last = make().begin_run()
    assert last - first == 3
    assert list(make().last_states(first, last)) == [(1, key(1).client_text, 1, State.SLEEP)]
    assert list(make().last_states(first, last - 2)) == [(n, key(n).client_text, 1, State.IDLE) for n in (1, 2)]


def runs(database: Database) -> list[tuple[Any, ...]]:
    """(run, first, whether it ended, dropped)."""
    return database.execute("SELECT run, first, ended IS NOT NULL, dropped FROM runs ORDER BY run")


def test_each_run_is_kept_with_its_first_row_its_end_and_what_it_dropped(
    make: Callable[..., Store], database: Database
) -> None:
    store = make()
    store.begin_run()
    store.add([row(n, n) for n in range(1, 4)])
    assert written(store)
    assert runs(database) == [(1, 1, False, 0)]
    store.close()
    assert runs(database) == [(1, 1, True, 0)]
    killed = make(history_bound=5)
    assert killed.begin_run() == (1, 3)
    killed.note_caught_up(3)
    with database.locked():
        killed.add([row(n, n) for n in range(1, 8)], [sleeper(1, 1)])
        until(lambda: killed.status.error)
        killed.add([row(n, n) for n in range(1, 8)])
    until(lambda: not killed.status.error and not killed.status.pending_history)
    lost = killed.status.dropped_history
    assert runs(database)[1:] == [(2, 4, False, lost)]
    assert lost >= 7
    with killed._wake:  # as if it were gone
        killed._run_number = None
    killed.close()
    next_one = make()
    assert next_one.begin_run()[0] == 4
    assert [run[:3] for run in runs(database)] == [(1, 1, True), (2, 4, False), (3, next_one._history.next_row, False)]


def test_what_a_run_left_open_is_known_if_its_history_has_all_of_it(
    make: Callable[..., Store], database: Database
) -> None:
    def next_run(**options: Any) -> Store:
        store = make(**options)
        store.begin_run()
        return store

    first = next_run()
    assert first.left_open() == -1, "there was none before"
    first.close(left_open=7)
    second = next_run(history_bound=0)
    assert second.left_open() == 7
    second.add([row(1, 1)])  # for which there is no room
    assert second.status.dropped_history == 1
    second.close(left_open=8)
    killed = next_run()
    assert killed.left_open() == -1
    with killed._wake:  # as if it were gone
        killed._run_number = None
    killed.close(left_open=9)
    assert next_run().left_open() == -1


def test_a_run_that_ended_before_it_had_caught_up_leaves_that_to_the_next(make: Callable[..., Store]) -> None:
    killed = make()
    killed.begin_run()
    killed.add([row(1, 1)])
    assert written(killed)
    with killed._wake:  # as if it were gone
        killed._run_number = None
    killed.close()
    late = make()
    assert late.begin_run() == (1, 1)
    late.add([row(2, 2)])
    assert written(late)
    late.close(left_open=1)
    last = make()
    assert last.begin_run() == (1, 2)
    assert last.left_open() == -1
    last.note_caught_up(2)
    last.close(left_open=0)
    assert make().begin_run() == (3, 2)


def test_a_run_that_begins_while_the_database_is_away_is_kept_once_it_is_there(
    make: Callable[..., Store], database: Database
) -> None:
    database.take_away()
    store = make()
    store.add([row(1, 1)])
    time.sleep(0.1)
    database.give_back()
    until(lambda: store.status.written_history == 1)
    assert runs(database) == [(1, 1, False, 0)]


def test_rows_of_another_boot_are_looked_for_until_there_are_none(make: Callable[..., Store], slept: Recorder) -> None:
    store = make()
    store.add(upserts=[sleeper(1, 11)])
    until(lambda: slept.slept)
    assert store.has_rows_of_another_boot("another-boot")
    assert not store.has_rows_of_another_boot(store._boot_id)
    assert not store.has_rows_of_another_boot(store._boot_id)


def test_who_is_let_go_is_closed_in_the_history_and_has_no_row(make: Callable[..., Store], slept: Recorder) -> None:
    store = make()
    store.add(upserts=[sleeper(1, 11), sleeper(2, 12)])
    until(lambda: len(slept.slept) == 2)
    store.close()
    store = make()
    assert (store.let_go(), store.let_go()) == (2, 0)
    assert store.sleeping_rows() == []
    transitions = [(r["id"], r["client"], r["from"], r["to"], r["cause"]) for r in store.recent_history()]
    assert sorted(transitions) == [
        (10 + n, key(n).client_text, State.SLEEP, State.CLOSED, Cause.COMMAND) for n in (1, 2)
    ]


def test_who_sleeps_is_paged_by_numbers_and_who_has_no_slot_by_keys(
    make: Callable[..., Store], slept: Recorder
) -> None:
    store, sleepers = make(), dict(sleeper(256 * n % 999, n, by_key=n % 2 == 0) for n in range(1, 8))
    store.add(upserts=sleepers.items())
    until(lambda: len(slept.slept) == 7)
    first = store.sleeping_rows(limit=4)
    rest = store.sleeping_rows(first[-1].id, limit=4)
    assert [(row.id, row.key) for row in first + rest] == list(enumerate(sleepers, 1))[::-1]
    assert store.sleeping_rows(rest[-1].id) == []
    assert [row.id for row in store.rows_numbered([3, 9, 5])] == [3, 5]
    by_key = store.rows_by_key(limit=2)
    by_key += store.rows_by_key(by_key[-1].key, limit=2)
    assert [row.key for row in by_key] == sorted(packed for n, packed in enumerate(sleepers, 1) if n % 2 == 0)
    wanted = {first[0].key: 7, first[1].key: 0, rest[0].key: LOW_BITS | 3, rest[1].key: 1, b"x" * 36: 0}
    found = {row.key: row.ka + row.rest for row in store.rows_at(wanted)}
    assert found == {k: sleepers[k] for k in list(wanted)[:3]}


def test_texts_of_different_tables_are_different_rows(make: Callable[..., Store]) -> None:
    store = make()
    agent, dial = AGENT.pack(key(1).pack(), 7, 1000, 2), DIALLED.pack(3, 1, 2000)
    store.add(keyed={("names", "a"): named(1, 11), ("agents", "a"): agent, ("dialled", "a"): dial})
    assert written(store)
    store.add(keyed={("names", "a"): None})
    assert written(store)
    assert [dict(store.keyed(kind)) for kind in ("names", "agents", "dialled")] == [{}, {"a": agent}, {"a": dial}]


def test_a_database_of_a_later_version_is_left_alone(make: Callable[..., Store], database: Database) -> None:
    with opened(database) as later:
        schema.meta.create(later)
        set_meta(later, "schema", 99)
    store = make()
    assert store.status.text == f"error: the database has schema 99, this roost writes {SCHEMA_VERSION}"
    with opened(database) as later:
        assert sa.inspect(later).get_table_names() == ["meta"]
