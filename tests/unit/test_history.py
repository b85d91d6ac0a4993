# SPDX-License-Identifier: Apache-2.0
"""The history's parts: how they are filled, found and removed."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from errno import ECONNRESET
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.paths import engine_library
from appliance.wire import ENDS, LOW_BITS, NO_ENDS, pack_address
from control.core.states import Cause, State
from control.export.rows import SOURCES, chunks_after
from control.store import database as database_module
from control.store import history as module
from control.store import history_rows, sleeping
from control.store import store as store_module
from control.store.database import TAKES_PACKED, fetch, parse_url
from control.store.history import History
from control.store.history_rows import history_values
from control.store.numbers import Numbers
from control.store.schema import HISTORY, KEY, MAPPED, SUCCESSOR, references_of
from control.store.store import Store
from tests.databases import Database, Sqlite, written
from tests.unit.fake_engine import key
from tests.unit.test_store import Recorder, on_postgresql, row, sleeper, until

DAY_MS = 86_400_000
PART = 50


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_ROWS", PART)
    monkeypatch.setattr(module, "LOADED_ROWS", PART // 2)


@pytest.fixture
def writer(sqlite: Sqlite) -> Iterator[sa.Connection]:
    """Of a store, as it writes."""
    made = Store(sqlite.url, lambda slept: None)
    assert made.open() == ""
    with made._writer_engine.connect() as connection:
        yield connection
    made.close()


def parts(database: Database) -> list[int]:
    return [first for (first,) in database.execute("SELECT first FROM history_parts ORDER BY first")]


def prune_until(store: Store, condition: Callable[[], object]) -> None:
    """What is to be removed is, at once; said again and again, since the writer may be about to say when it is next."""

    def met() -> object:
        store._next_prune = 0.0
        return condition()

    until(met)


def tables(database: Database) -> set[str]:
    kept = "sqlite_schema WHERE type = 'table'" if database.name == "sqlite" else "pg_tables"
    column = "name" if database.name == "sqlite" else "tablename"
    found = {name for (name,) in database.execute(f"SELECT {column} FROM {kept}")}
    return {name for name in found if name.startswith("history_") and name != "history_parts"}


def test_rows_are_found_in_whichever_part_they_are(make: Callable[..., Store], database: Database) -> None:
    luck = random.Random(1)
    ids = [luck.randrange(1, 20) for _ in range(8 * PART + 7)]
    store = make(batch=70, keep_days=0)
    for at in range(0, len(ids), 90):
        store.add([row(number, number, at=at + n) for n, number in enumerate(ids[at : at + 90], 1)])
        assert written(store)
    assert parts(database) == list(range(1, len(ids), PART))
    assert [(r["seq"], r["id"]) for r in store.recent_history(1000)] == list(enumerate(ids, 1))
    assert [r["seq"] for r in store.recent_history(60)] == list(range(len(ids) - 59, len(ids) + 1))
    for number in range(21):
        of_it = [seq for seq, one in enumerate(ids, 1) if one == number]
        assert [r["seq"] for r in store.history_of(number)] == of_it
        assert [r["seq"] for r in store.history_of(number, 3)] == of_it[-3:]
    assert database.execute("SELECT seq, id FROM history ORDER BY seq") == list(enumerate(ids, 1)), "the view has all"


def test_a_connection_is_not_looked_for_before_its_birth(
    make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    store.add([row(n, n) for n in range(100, 100 + 8 * PART)])
    store.add([row(1, 1, State.NONE, State.ACTIVE), row(1, 1)])
    store.add([row(n, n) for n in range(600, 600 + PART)])
    assert written(store)
    said: list[str] = []

    def fetched(connection: sa.Connection, text: str, values: list[Any]) -> Any:
        said.append(text)
        return fetch(connection, text, values)

    monkeypatch.setattr(module, "fetch", fetched)
    assert [r["seq"] for r in store.history_of(1)] == [8 * PART + 1, 8 * PART + 2]
    assert [re.findall(r"FROM (history_\d+)", one) for one in said if "history_" in one] == [
        ["history_451"],
        ["history_401", "history_351", "history_301", "history_251"],
    ]


def test_the_next_run_goes_on_with_a_part_that_has_few_rows_and_ends_one_that_has_many(
    make: Callable[..., Store], database: Database
) -> None:
    rows_of_runs = (10, 10, 10, 30)
    for run, rows in enumerate(rows_of_runs):
        store = make()
        assert store.status.kept_history == sum(rows_of_runs[:run])
        store.add([row(n, n) for n in range(1, rows + 1)])
        assert written(store)
        assert len(store.history_of(7)) == run + 1
        store.close()
    assert parts(database) == [1, 31]
    store = make()
    assert parts(database) == [1, 31, 61]
    assert len(store.history_of(7)) == 4
    assert len(store.recent_history(100)) == 60


def as_of_layout_1(database: Database, *firsts: int) -> None:
    """Parts as an earlier version has left them."""
    database.execute("DROP VIEW history")
    for first in firsts:
        for column in ("server", "error", "probes", "silence_s"):
            database.execute(f"ALTER TABLE history_{first} DROP COLUMN {column}")
        database.execute(f"UPDATE history_parts SET layout = 1 WHERE first = {first}")


def with_ends(n: int) -> bytes:
    ends = ENDS.pack(pack_address("192.0.2.1"), 80, ECONNRESET, 3, 4711)
    return HISTORY.pack(n, 1000 + n, key(n).pack(), 1, State.ACTIVE, State.CLOSED, Cause.SERVER_CLOSE, 1, 2, 3, ends)


def test_parts_of_an_earlier_layout_stay_as_they_are_and_are_read_beside_new_ones(
    make: Callable[..., Store], database: Database
) -> None:
    store = make()
    store.add([row(n, n) for n in range(1, 2 * PART + 8)])
    assert written(store)
    store.close()
    as_of_layout_1(database, 1, PART + 1, 2 * PART + 1)
    store = make()
    store.add([with_ends(7)])
    assert written(store)
    last = 2 * PART + 8
    assert parts(database) == [1, PART + 1, 2 * PART + 1, last]
    told = ("192.0.2.1:80", ECONNRESET, 3, 4711)
    ends = [tuple(r[name] for name in ("server", "error", "probes", "silence_s")) for r in store.history_of(7)]
    assert ends == [(None, None, None, None), told]
    assert [r["seq"] for r in store.recent_history(1000)] == list(range(1, last + 1))
    columns = "seq, server, error, probes, silence_s"
    assert database.execute(f"SELECT {columns} FROM history WHERE seq >= {last - 1} ORDER BY seq") == [
        (last - 1, None, None, None, None),
        (last, *told),
    ]
    reader = sa.create_engine(parse_url(database.url))
    with reader.connect() as connection:
        (source,) = (one for one in SOURCES if one.name == "history")
        rows = [tuple(one) for _, batches in chunks_after(connection, source, 1) for batch in batches for one in batch]
    reader.dispose()
    assert (len(rows), rows[6][-4:], rows[-1][-4:]) == (last, (None,) * 4, told)


@pytest.mark.parametrize("rows", [0, PART])
def test_an_empty_part_of_an_earlier_layout_is_begun_anew(
    make: Callable[..., Store], database: Database, rows: int
) -> None:
    store = make()
    store.add([row(n, n) for n in range(1, rows + 1)])
    assert written(store)
    store.close()
    store = make()
    store.close()  # it has begun a part, where one was full
    assert parts(database)[-1] == rows + 1
    as_of_layout_1(database, *parts(database))
    for number in (1, 2):
        store = make()
        assert store.status.text == "ok"
        store.add([with_ends(7)])
        assert written(store)
        assert [r["seq"] for r in store.history_of(7) if r["server"]] == list(range(rows + 1, rows + 1 + number))
        store.close()


def test_a_transaction_that_fails_while_a_part_ends_leaves_each_row_once(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(batch=3 * PART)
    monkeypatch.setattr(store_module, "BACKOFF_S", (0.01,))
    fail, insert = [2, 3], history_rows.insert_history

    def sometimes(connection: sa.Connection, part: sa.Table, first: int, packed: bytes) -> None:
        insert(connection, part, first, packed)
        if fail and first > 1:
            fail.pop()
            raise database.Error("broken off")

    monkeypatch.setattr(module, "insert_history", sometimes)
    store.add([row(n, n) for n in range(1, 3 * PART)])
    until(lambda: store.status.written_history == 3 * PART - 1)
    assert fail == []
    assert [(r["seq"], r["id"]) for r in store.recent_history(1000)] == [(n, n) for n in range(1, 3 * PART)]
    assert parts(database) == [1, PART + 1, 2 * PART + 1]
    assert [r["seq"] for r in store.history_of(2 * PART + 5)] == [2 * PART + 5]


def test_what_was_not_committed_is_forgotten(
    make: Callable[..., Store], database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    store = make()
    with store._writer_engine.connect() as connection:  # which ends without a commit
        store._history.write(connection, b"".join(row(n, n) for n in range(1, PART + 5)))
        connection.rollback()
    store.add([row(7, 7)])
    assert written(store)
    assert [(r["seq"], r["id"]) for r in store.recent_history()] == [(1, 7)]
    assert (parts(database), caplog.messages) == ([1], [])


def test_a_part_ends_with_its_day(make: Callable[..., Store], database: Database) -> None:
    now = time.time_ns() // 1_000_000
    store = make()
    store.add([row(1, 1, at=now + n) for n in (0, DAY_MS - 100_000, DAY_MS + 100_000)])
    assert written(store)
    assert parts(database) == [1], "of one batch"
    store.add([row(1, 1, at=now + DAY_MS + 200_000)])
    assert written(store)
    assert parts(database) == [1, 4]


def test_parts_that_are_too_old_are_removed_whole(make: Callable[..., Store], database: Database) -> None:
    now = time.time_ns() // 1_000_000
    store = make(keep_days=1)
    store.add([row(n, n, at=now - 2 * DAY_MS) for n in range(1, 2 * PART + 1)])
    store.add([row(n, n, at=now - 2 * DAY_MS if n < 150 else now) for n in range(101, 201)])
    assert written(store)
    prune_until(store, lambda: store.status.kept_history == 100)  # what is removed is so before it is told
    assert tables(database) == {"history_101", "history_151"}
    assert parts(database) == [101, 151]
    assert [r["id"] for r in store.recent_history(1000)] == list(range(101, 201)), "one of its rows is young"
    assert store.history_of(7) == []
    assert database.execute("SELECT count(*) FROM history") == [(100,)]


def test_all_of_it_is_removed_when_all_is_too_old_and_numbers_go_on(
    make: Callable[..., Store], database: Database
) -> None:
    old = time.time_ns() // 1_000_000 - 2 * DAY_MS
    store = make(keep_days=1)
    store.add([row(n, n, at=old) for n in range(1, 11)])
    assert written(store)
    prune_until(store, lambda: tables(database) == {"history_11"})
    assert store.recent_history() == []
    store.close()
    store = make(keep_days=1)
    store.add([row(1, 1)])
    assert written(store)
    assert [r["seq"] for r in store.recent_history()] == [11]


def test_who_reads_between_the_removal_of_a_part_and_its_end_in_memory_finds_none(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    settle = module.History.settle

    def read_first(history: module.History) -> bool:
        try:
            found.append([one["id"] for one in store.recent_history()])
        except Exception as error:
            found.append(error)
        return settle(history)

    store = make(keep_days=1)
    store.add([row(n, n, at=time.time_ns() // 1_000_000 - 2 * DAY_MS) for n in range(1, 11)])
    assert written(store)
    monkeypatch.setattr(module.History, "settle", read_first)
    prune_until(store, lambda: tables(database) == {"history_11"})
    until(lambda: found and ([] in found or isinstance(found[-1], Exception)))
    assert [one for one in found if isinstance(one, Exception)] == []


def test_history_over_its_bytes_is_removed_and_it_is_said(
    make: Callable[..., Store], database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    store = make(keep_bytes=4 * PART * module.ROW_BYTES)
    store.add([row(n, n) for n in range(1, 10 * PART + 1)])
    assert written(store)
    prune_until(store, lambda: store.status.kept_history <= 4 * PART)
    assert parts(database)[0] == 6 * PART + 1
    assert [said for said in caplog.messages if "younger than [history] keep_days" in said] == [
        "history: what is younger than [history] keep_days is removed: it is over keep_bytes, 200 rows"
    ]


def test_a_large_part_of_an_earlier_version_is_removed_some_rows_at_a_time(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = time.time_ns() // 1_000_000 - 2 * DAY_MS
    with monkeypatch.context() as patch:
        patch.setattr(module, "PART_ROWS", 10 * PART)
        store = make(keep_days=1)
        store.add([row(n, n, at=old) for n in range(1, 10 * PART)])
        assert written(store)
        store.close()
    monkeypatch.setattr(store_module, "PRUNE_ROWS", PART)
    store, removed = make(keep_days=1), []
    sa.event.listen(store._writer_engine, "before_cursor_execute",
                    lambda *args: removed.append(args[2]) if "DELETE FROM history_1" in args[2] else None)  # fmt: skip
    prune_until(store, lambda: tables(database) == {f"history_{10 * PART}"})
    assert len(removed) == 10


def test_what_the_last_run_left_open_is_found_in_all_parts(
    make: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHOWN_PARTS", 2)
    luck, last = random.Random(2), dict[int, State]()
    store = make()
    assert store.begin_run() == (0, 0)
    rows = []
    for _ in range(7 * PART):
        number = luck.randrange(1, 60)
        last[number] = luck.choice([State.CLOSED, State.IDLE])
        rows.append(row(number, number, State.STANDBY, last[number]))
    store.add(rows)
    assert written(store)
    store.close()
    store = make()
    found = list(store.last_states(*store.begin_run()))
    live = {number for number, state in last.items() if state != State.CLOSED}
    assert sorted(found) == [(n, key(n).client_text, 1, State.IDLE) for n in sorted(live)]


def test_whoever_is_let_go_fills_a_part_of_its_own_and_numbers_go_on(
    make: Callable[..., Store], database: Database
) -> None:
    store = make()
    store.add([row(1, 1)], [sleeper(n, n) for n in range(1, 3 * PART)])
    assert written(store)
    until(lambda: len(store.sleeping_rows()) == 3 * PART - 1)
    store.close()
    assert make().let_go() == 3 * PART - 1
    store = make()
    store.add([row(2, 2)])
    assert written(store)
    found = store.recent_history(1000)
    assert [r["seq"] for r in found] == list(range(1, 3 * PART + 2))
    assert {(r["to"], r["cause"]) for r in found[1:-1]} == {(State.CLOSED, Cause.COMMAND)}
    assert [r["seq"] for r in store.history_of(2)] == [3 * PART - 1, 3 * PART + 1]


def test_a_part_that_is_removed_while_it_is_read_is_left_out(make: Callable[..., Store], database: Database) -> None:
    store = make()
    store.add([row(n, n) for n in range(1, 2 * PART + 11)])
    assert written(store)
    seen = store._history.see(None, 1000)
    store._history._keep_rows = PART + 10
    prune_until(store, lambda: tables(database) == {"history_51", "history_101"})
    with store._reading() as connection:
        found = store._history.rows(connection, seen, None, 1000)
        assert [one["seq"] for one in found] == list(range(110, 50, -1))
        of_one = store._history.rows(connection, store._history.see(60, 10)._replace(parts=seen.parts), 60, 10)
        assert [one["seq"] for one in of_one] == [60], "of parts that are asked together"


@pytest.mark.parametrize("keep", [{"keep_days": 1}, {"keep_days": 0, "keep_bytes": 2 * PART * module.ROW_BYTES}],
                         ids=["days", "bytes"])  # fmt: skip
def test_which_connection_followed_which_is_forgotten_with_the_history_some_rows_at_a_time(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch, keep: dict[str, Any]
) -> None:
    monkeypatch.setattr(store_module, "PRUNE_ROWS", 10)
    store, removed = make(**keep), list[int]()

    def noting(*args: Any) -> None:
        if "DELETE FROM successors" in args[2]:
            removed.append(args[1].rowcount)

    sa.event.listen(store._writer_engine, "after_cursor_execute", noting)
    now = time.time_ns() // 1_000_000
    times = [*(now - 3 * DAY_MS + n for n in range(2 * PART)), *(now - PART + n for n in range(PART))]
    store.add([row(n, n, at=at) for n, at in enumerate(times, 1)],
              keyed={("successors", n): SUCCESSOR.pack(n + 1, at) for n, at in enumerate(times, 1)})  # fmt: skip
    assert written(store)
    store.add([row(1, 1, at=now)])
    prune_until(store, lambda: parts(database)[0] == 2 * PART + 1)
    prune_until(store, lambda: database.execute("SELECT min(id) FROM successors") == [(2 * PART + 1,)])
    assert (max(removed), sum(removed)) == (10, 2 * PART)


@pytest.mark.parametrize("ahead_ms", [-3 * DAY_MS, DAY_MS], ids=["older than its part", "by a clock that was ahead"])
def test_which_connection_followed_which_is_kept_while_the_oldest_row_tells_of_no_later_time(
    make: Callable[..., Store], database: Database, ahead_ms: int
) -> None:
    store, now = make(), time.time_ns() // 1_000_000
    store.add([row(1, 1, at=now + ahead_ms)], keyed={("successors", 1): SUCCESSOR.pack(2, now - 2 * DAY_MS)})
    assert written(store)
    store._prune()
    assert database.execute("SELECT id FROM successors") == [(1,)]


@on_postgresql
@pytest.mark.parametrize("relation", ["history_1", "history"], ids=["part", "view"])
def test_a_long_reader_on_postgresql_delays_the_removal_of_parts_and_nothing_else(
    make: Callable[..., Store], database: Database, caplog: pytest.LogCaptureFixture, relation: str
) -> None:
    store, slept = make(keep_bytes=2 * PART * module.ROW_BYTES), Recorder()
    store._on_slept = slept
    store.add([row(n, n) for n in range(1, PART + 1)])
    assert written(store)
    reader = sa.create_engine(parse_url(database.url).update_query_dict({"application_name": "report"}))
    with reader.connect() as connection:
        session = connection.scalar(sa.text(f"SELECT pg_backend_pid() FROM {relation} LIMIT 1"))
        for begin in range(PART + 1, 6 * PART, PART):
            packed, value = sleeper(begin, begin)
            store.add([row(n, n) for n in range(begin, begin + PART)], [(packed, value)])
            assert written(store)
            until(partial(slept.slept.__contains__, (packed, begin)))
        until(lambda: any("history_1 " in said for said in caplog.messages))
        assert store.status.text == "ok"
        assert "history_1" in tables(database)
        (said,) = (said for said in caplog.messages if "history_1 " in said)
        assert said == ("history: history_1 stays for now, though it is to go: it is being read by PostgreSQL's "
                        f"session {session} (report); it is removed afterwards")  # fmt: skip
    reader.dispose()
    prune_until(store, lambda: tables(database) == {"history_251", "history_201"})
    assert database.execute("SELECT min(seq), max(seq) FROM history") == [(4 * PART + 1, 6 * PART)]


def test_a_new_part_is_a_reason_to_look_whether_there_are_too_many(
    make: Callable[..., Store], database: Database
) -> None:
    store = make(keep_bytes=2 * PART * module.ROW_BYTES)
    for begin in range(0, 10 * PART, PART):
        store.add([row(n, n) for n in range(begin + 1, begin + PART + 1)])
        assert written(store)
    store.add([row(1, 1)])
    until(lambda: store.status.kept_history <= 2 * PART)
    until(lambda: store._next_prune > time.monotonic() + 60)  # in an hour again


def test_a_row_takes_as_many_bytes_as_keep_bytes_counts(sqlite: Sqlite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_ROWS", 5000)
    store = Store(sqlite.url, lambda slept: None)
    assert store.open() == ""
    store.start()
    (empty,) = sqlite.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    now, luck = time.time_ns() // 1_000_000, random.Random(3)
    for _ in range(10):
        store.add([
            HISTORY.pack(luck.randrange(1, 10_000_000), now, key(n % 65536, 40000).pack(), 1, State.STANDBY, State.IDLE,
                         Cause.QUIET, luck.randrange(5000), luck.randrange(5000), luck.randrange(600_000),
                         ENDS.pack(pack_address("192.0.2.1"), 8080, 0, 0, 0) if n % 4 == 0 else NO_ENDS)
            for n in range(2000)
        ])  # fmt: skip
        assert written(store)
    (full,) = sqlite.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    assert (full[0] - empty[0]) / 20_000 == pytest.approx(module.ROW_BYTES, rel=0.15)
    store.close()


@given(st.lists(st.sampled_from([1, 256, 1 << 16, 1 << 56, 0x0101010101010101]), max_size=40), st.integers(1, 5))
def test_numbers_in_memory_are_found_at_their_places_alone(ids: list[int], limit: int) -> None:
    history = History(1, 0)
    history._parts = (module.Part(sa.Table("t", sa.MetaData()), 10, 0),)
    history._ids.extend(Numbers(ids))
    for number in {*ids, 2}:
        wanted = [10 + place for place, one in enumerate(ids) if one == number][::-1][:limit]
        assert history.see(number, limit).rows == wanted


ADDRESSES = st.one_of(
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=4, max_size=4).map(lambda ipv4: MAPPED + ipv4),
    st.binary(min_size=4, max_size=4).map(lambda low: bytes(12) + low),
    st.lists(st.sampled_from([b"\0\0", b"\0\1", b"\xab\xcd"]), min_size=8, max_size=8).map(b"".join),
)
PORTS = st.integers(0, 2**16 - 1)
BYTES = st.integers(0, 2**8 - 1)
COUNTS = st.integers(0, 2**63 - 1)
ROWS = st.builds(
    lambda number, at, client, client_port, service, states, counts, server, server_port, ends: HISTORY.pack(
        number, at, KEY.pack(client, bytes(16), client_port, 443), service, *states, *counts,
        ENDS.pack(server, server_port, *ends),
    ),
    COUNTS, COUNTS, ADDRESSES, PORTS, PORTS, st.tuples(BYTES, BYTES, BYTES), st.tuples(COUNTS, COUNTS, COUNTS),
    ADDRESSES, PORTS, st.tuples(BYTES, BYTES, st.integers(0, 2**32 - 1)),
)  # fmt: skip


@given(st.lists(ROWS, max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sqlite_takes_packed_rows_apart_as_python_does(writer: sa.Connection, rows: list[bytes]) -> None:
    assert writer.info[TAKES_PACKED]
    found = writer.exec_driver_sql("SELECT rowid, * FROM roost_history(?)", (b"".join(rows),))
    assert [tuple(row) for row in found] == [
        (index, *values) for index, values in enumerate(history_values(b"".join(rows)))
    ]


@pytest.mark.parametrize("argument", [bytes(HISTORY.size - 1), bytes(HISTORY.size + 1), "x" * HISTORY.size, 7, None])
def test_what_is_no_packed_rows_is_refused(writer: sa.Connection, argument: Any) -> None:
    with pytest.raises(sa.exc.OperationalError, match=f"are no rows of {HISTORY.size}"):
        writer.exec_driver_sql("SELECT * FROM roost_history(?)", (argument,))


def test_without_an_argument_there_are_no_rows_to_take_apart(writer: sa.Connection) -> None:
    with pytest.raises(sa.exc.OperationalError, match="no query solution"):
        writer.exec_driver_sql("SELECT * FROM roost_history")


def test_rows_are_taken_apart_once_for_each_argument_of_a_join(writer: sa.Connection) -> None:
    one, two = (b"".join(row(n, n) for n in range(count)) for count in (1, 2))
    text = "SELECT given, count(*) FROM (SELECT ? AS given UNION ALL SELECT ?), roost_history(given) GROUP BY 1"
    found = [(len(packed) // HISTORY.size, count) for packed, count in writer.exec_driver_sql(text, (one, two))]
    assert sorted(found) == [(1, 1), (2, 2)]


def test_a_python_that_loads_no_extensions_writes_the_same(sqlite: Sqlite, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(sqlite3.Connection):
        @property
        def enable_load_extension(self) -> None:  # type: ignore[override]
            raise AttributeError

    monkeypatch.setattr("sqlite3.dbapi2.connect", partial(sqlite3.connect, factory=Plain))
    store = Store(sqlite.url, lambda slept: None)
    assert store.open() == ""
    store.start()
    store.add([row(n, n) for n in range(1, 2 * PART)])
    assert written(store)
    with store._writer_engine.connect() as connection:
        assert TAKES_PACKED not in connection.info
    assert [r["id"] for r in store.recent_history(1000)] == list(range(1, 2 * PART))
    store.close()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the engine's library lies: a copy, which is still to be made."""
    path = tmp_path / "engine.so"
    monkeypatch.setattr(database_module, "engine_library", lambda: path)
    database_module.extension.cache_clear()
    yield path
    database_module.extension.cache_clear()


def test_a_library_that_cannot_be_loaded_keeps_nothing_from_being_written(
    sqlite: Sqlite, library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library.write_text("no library")
    store = Store(sqlite.url, lambda slept: None)
    assert store.open() == ""
    store.start()
    store.add([row(n, n) for n in range(1, 2 * PART)])
    assert written(store)
    with store._writer_engine.connect() as connection:
        assert TAKES_PACKED not in connection.info
        with pytest.raises(sa.exc.DatabaseError, match="not authorized"):
            connection.exec_driver_sql("SELECT load_extension('x')")
    assert [r["id"] for r in store.recent_history(1000)] == list(range(1, 2 * PART))
    assert [said for said in caplog.messages if "history is written more slowly" in said]
    store.close()


def test_a_library_that_is_replaced_while_the_daemon_runs_stays_the_one_that_it_began_with(
    sqlite: Sqlite, library: Path
) -> None:
    library.write_bytes(engine_library().read_bytes())
    store = Store(sqlite.url, lambda slept: None)
    assert store.open() == ""
    library.unlink()
    library.write_text("of another version")
    store._writer_engine.dispose()  # as after an error: the next connection is a new one
    with store._writer_engine.connect() as connection:
        assert connection.info[TAKES_PACKED]
    store.close()


def test_connections_of_one_4_tuple_keep_their_numbers(make: Callable[..., Store]) -> None:
    """The first has ended, and its row is there still, when the next one falls asleep."""
    store = make()
    with store._writer_engine.begin() as connection:
        for number in (5, 6):
            raw, packed = sleeper(1, number)
            sleeping.put(connection, store._epochs, [(raw, number, 1, packed)], 0, 1)
        rows = b"".join(row(1, LOW_BITS | number) for number in (5, 6, 5))
        numbered = history_rows.with_numbers(connection, store._epochs, rows)
    assert list(references_of(numbered)) == [5, 6, 5]
