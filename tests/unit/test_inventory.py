# SPDX-License-Identifier: Apache-2.0
"""What a daemon finds of its predecessor: table and store compared, and what the history lacks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from appliance.wire import NO_ENDS, Event, Key, Record, Sought
from appliance.wire.record import PAIRED
from control.core.states import Cause, State
from control.daemon import inventory
from control.daemon.end import End
from control.daemon.inventory import Inventory, catch_up, record_of, tables_of, take_inventory
from control.daemon.reconcile import Reconciler
from control.store import history, starting
from control.store import reading as reading_module
from control.store.database import fetch
from control.store.schema import HISTORY
from control.store.sleeping import References, SleepingRow
from control.store.store import Store
from tests.reboot import age, age_all
from tests.unit.fake_engine import key, record
from tests.unit.test_dispatcher import Rig, until


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "roost.db")
    yield made
    made.close()


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Rig]:
    """Commands are noted, not carried out; the test turns the crank."""
    made = Rig(tmp_path / "roost.db", carry_out=False)
    yield made
    made.close()


def put_row(rig: Rig, number: int) -> Key:
    k = key(number)
    r = record(k, number)
    rig.store.add(upserts=[(k.pack(), r.ka + r.rest)])
    until(lambda: rig.store.sleeping_by_id(number))
    return k


def forget_row(rig: Rig, number: int) -> None:
    rig.store.add(deletes=[(key(number).pack(), number)])
    until(lambda: not rig.store.sleeping_by_id(number))


def test_the_inventory_tells_slots_without_rows_from_rows_without_slots(still: Rig) -> None:
    still.engine.add(put_row(still, 1), 1, State.SLEEP)  # good
    put_row(still, 2)  # its slot is gone
    still.engine.add(put_row(still, 3), 3, State.IDLE)  # committed, never slept
    lost = still.engine.add(key(4), 4, State.SLEEP)  # its row is gone
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert found.without_row == [lost.key.pack()]
    assert (len(found.lost), found.other_boot, list(found.sleep_ids), list(found.idle_ids)) == (1, 0, [1], [3])
    until(lambda: not still.store.sleeping_by_id(2) and not still.store.sleeping_by_id(3))
    assert catch_up(still.store, found, [], 0, 0) == 1
    until(lambda: still.history())
    assert still.history() == [(2, "SLEEP", "CLOSED", "restore")]


def test_the_inventory_finds_those_that_sleep_without_a_slot(still: Rig) -> None:
    for number in (1, 2):
        put_row(still, number)
    still.engine.without_slot = {key(1): 1, key(7): 7}
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert (found.states[State.SLEEP], list(found.sleep_ids), len(found.lost)) == (1, [1], 1)


def test_the_inventory_goes_through_all_pages_and_looks_closer_only_at_rows_that_are_odd(
    still: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "SCAN_ROWS", 3)
    rows_numbered, looked_at = still.store.rows_numbered, list[int]()

    def looking(numbers: Sequence[int]) -> Iterator[SleepingRow]:
        looked_at.extend(numbers)
        return rows_numbered(numbers)

    for number in range(1, 12):
        put_row(still, number)
    for number in (1, 2, 4, 8, 9):
        still.engine.add(key(number), number, State.SLEEP)
    still.engine.without_slot = {key(number): number for number in (3, 5, 7, 10, 11)}
    monkeypatch.setattr(still.store, "rows_numbered", looking)
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert looked_at == [6], "it is nowhere"
    assert list(found.sleep_ids) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert (found.states[State.SLEEP], len(found.lost), found.without_row) == (10, 1, [])


def test_the_inventory_finds_a_slot_without_row_beside_rows_without_slot(still: Rig) -> None:
    for number in (1, 2, 3):
        put_row(still, number)
    still.engine.add(key(1), 1, State.SLEEP)
    still.engine.without_slot = {key(2): 2, key(3): 3}
    for number in (8, 9):
        still.engine.add(key(number), number, State.SLEEP)
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert sorted(found.without_row) == [key(8).pack(), key(9).pack()]
    assert (found.states[State.SLEEP], list(found.sleep_ids)) == (5, [1, 2, 3])


def test_a_slot_without_row_is_looked_for_among_a_few_keys_at_a_time(
    still: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be ten million of them: neither all keys are kept at once, nor is each asked for by itself."""
    monkeypatch.setattr(inventory, "READ_CHUNK", 3)
    everybody, ids, listed, kept = still.engine.list, still.store.sleeping_ids, list[Event](), list[int]()

    def listing(sought: Sought = Sought()) -> Iterator[Event]:  # noqa: B008 (frozen)
        for one in everybody(sought):
            listed.append(one)
            yield one

    def asking(sought: References) -> dict[bytes, int]:
        kept.append(len(listed))
        listed.clear()
        return ids(sought)

    monkeypatch.setattr(still.engine, "list", listing)
    monkeypatch.setattr(still.store, "sleeping_ids", asking)
    for number in range(1, 12):
        k = key(number) if number == 7 else put_row(still, number)
        still.engine.add(k, number, State.SLEEP)
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert found.without_row == [key(7).pack()]
    assert kept == [3, 3, 3, 2]


def test_of_two_rows_with_the_same_key_the_one_that_the_slot_has_the_number_of_is_asleep(still: Rig) -> None:
    """A kill may leave the row of an earlier connection."""
    put_row(still, 1)
    later = record(key(1), 2)
    still.store.add(upserts=[(later.key_raw, later.ka + later.rest)])
    until(lambda: still.store.sleeping_by_id(2))
    still.engine.add(key(1), 2, State.SLEEP)
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert (found.states[State.SLEEP], list(found.sleep_ids), len(found.lost), found.without_row) == (1, [2], 1, [])
    until(lambda: not still.store.sleeping_by_id(1))
    assert catch_up(still.store, found, [], 0, 0) == 1
    until(lambda: still.history())
    assert still.history()[-1] == (1, "SLEEP", "CLOSED", "restore")
    assert still.store.sleeping_by_id(2)


def test_rows_of_another_boot_are_looked_for_until_there_are_none(still: Rig, tmp_path: Path) -> None:
    put_row(still, 1)
    assert still.store.has_rows_of_another_boot("the next")
    assert still.store.has_rows_of_another_boot("the next")
    assert not still.store.has_rows_of_another_boot(still.store._boot_id)
    with sqlite3.connect(tmp_path / "roost.db") as database:
        assert database.execute("SELECT count(*) FROM meta WHERE key = 'boot'").fetchone() == (1,)
        age(database)
    assert still.store.has_rows_of_another_boot(still.store._boot_id)


def test_without_the_database_the_filter_says_how_many_sleep(still: Rig) -> None:
    still.engine.without_slot = {key(1): 1, key(7): 7}
    still.store._status.error = "locked"
    assert take_inventory(still.engine, still.store, still.store._boot_id).states[State.SLEEP] == 2


def test_rows_of_another_boot_are_kept_to_be_put_back(rig: Rig) -> None:
    put_row(rig, 1)
    found = take_inventory(rig.engine, rig.store, "another-boot")
    assert (found.other_boot, len(found.lost)) == (1, 0)
    rig.start()
    row = rig.store.sleeping_by_id(1)
    assert row is not None
    rig.dispatcher.sleepers.insert([record(key(1), 1)])
    until(lambda: rig.engine.connections)
    until(lambda: rig.history())
    assert rig.engine.connections[key(1)].state is State.SLEEP
    assert rig.history() == [(1, "NONE", "SLEEP", "restore")]


def test_rows_for_tables_that_are_gone_are_put_back_though_the_boot_is_the_same(rig: Rig) -> None:
    boot = rig.store._boot_id
    assert take_inventory(rig.engine, rig.store, boot, 1).other_boot == 0
    for number in (1, 2):
        put_row(rig, number)
    found = take_inventory(rig.engine, rig.store, boot, 2)
    assert (found.other_boot, len(found.lost)) == (2, 0)
    offset = starting.wall_offset_ms()
    assert all(abs(row.wall_offset_ms - offset) < 1000 for row in rig.store.sleeping_rows())
    assert take_inventory(rig.engine, rig.store, boot, 2).other_boot == 2, "until they are put back"
    rig.start()
    rig.dispatcher.sleepers.insert([record(key(number), number) for number in (1, 2)])
    until(lambda: len(rig.engine.connections) == 2)
    found = take_inventory(rig.engine, rig.store, boot, 2)
    assert (found.other_boot, len(found.lost), list(found.sleep_ids)) == (0, 0, [1, 2])


def test_rows_whose_connections_ended_are_forgotten_while_the_tables_are_the_same(still: Rig) -> None:
    boot = still.store._boot_id
    take_inventory(still.engine, still.store, boot, 1)
    put_row(still, 1)
    found = take_inventory(still.engine, still.store, boot, 1)
    assert (found.other_boot, len(found.lost)) == (0, 1)


def test_of_two_rows_with_the_same_key_the_later_connection_is_put_back(rig: Rig, tmp_path: Path) -> None:
    """Its client has connected again after a reboot: while the database was away, or before it was put back."""

    def sleep(number: int, where: int, by_key: bool = False) -> None:
        row = record(key(where), number, by_key=by_key)
        rig.store.add(upserts=[(row.key_raw, row.ka + row.rest)])
        until(lambda: rig.store.sleeping_by_id(number))
        until(lambda: number in [command.id for command in rig.engine.commands])  # else it is carried out later

    rig.engine.carry_out, rig.engine.filters = False, True
    for number, where, by_key in ((11, 1, False), (12, 1, False), (13, 2, False), (15, 3, False), (16, 3, True)):
        sleep(number, where, by_key)
    with sqlite3.connect(tmp_path / "roost.db") as database:
        age(database)
    sleep(14, 2, by_key=True)  # in this boot
    rig.engine.carry_out, rig.engine.without_slot = True, {key(2): 14}
    rig.start()
    engine, nobody = cast(Any, rig.engine), cast(Any, None)
    reconciler = Reconciler(
        engine, rig.store, rig.dispatcher, nobody, nobody, nobody, nobody, End(), Inventory(), (0, 0), nobody
    )
    assert reconciler._put_back() == 2
    until(lambda: [row.id for row in rig.store.sleeping_rows()] == [16, 14, 12])
    closed = {11, 13, 15}
    until(lambda: {number for number, _, target, _ in rig.history() if target == "CLOSED"} == closed)
    assert {c.key: c.id for c in rig.engine.connections.values()} == {key(1): 12}
    assert rig.engine.without_slot == {key(2): 14, key(3): 16}


def test_the_tables_of_other_pins_are_others(tmp_path: Path) -> None:
    assert tables_of(str(tmp_path)) == 0
    for name in ("tables4", "tables6"):
        (tmp_path / name).touch()
    first = tables_of(str(tmp_path))
    assert first == tables_of(str(tmp_path)) != 0
    (tmp_path / "another").touch()  # so that the inode is not given again
    (tmp_path / "another").rename(tmp_path / "tables4")
    assert tables_of(str(tmp_path)) not in (0, first)


def test_a_reboot_does_not_close_those_that_slept_through_it(still: Rig) -> None:
    put_row(still, 1)
    slept = HISTORY.pack(1, 5, key(1).pack(), 1, State.IDLE, State.SLEEP, Cause.QUIET, 0, 0, 0, NO_ENDS)
    still.store.add([slept])
    until(lambda: still.store.status.written_history == 1)
    first, last = still.store.begin_run()
    found = take_inventory(still.engine, still.store, "another-boot")
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 0


def test_a_client_that_came_back_after_the_reboot_closes_its_old_connection(rig: Rig) -> None:
    rig.start()
    rig.engine.add(key(1), 77, State.ACTIVE)
    rig.dispatcher.sleepers.insert([record(key(1), 1)])
    until(lambda: rig.history())
    until(lambda: rig.store.sleeping_by_id(1) is None)
    assert rig.engine.connections[key(1)].state is State.ACTIVE


def test_what_a_killed_predecessor_could_not_write_is_added(still: Rig) -> None:
    def wrote(number: int, source: State, target: State) -> bytes:
        return HISTORY.pack(number, 5, key(number).pack(), 1, source, target, Cause.CLIENT_CONNECT, 0, 0, 0, NO_ENDS)

    words = [(1, State.ACTIVE), (2, State.STANDBY), (3, State.STANDBY), (4, State.IDLE), (5, State.CLOSED)]
    still.store.add([wrote(number, State.NONE, State.ACTIVE) for number, _ in words])
    still.store.add([wrote(number, State.ACTIVE, state) for number, state in words])
    until(lambda: still.store.status.written_history == 10)
    first, last = still.store.begin_run()
    still.engine.add(key(3), 3, State.IDLE)
    still.engine.add(put_row(still, 4), 4, State.SLEEP)
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 4
    until(lambda: still.store.status.written_history == 14)
    assert sorted(still.history()[10:]) == [
        (1, "ACTIVE", "CLOSED", "restore"),
        (2, "STANDBY", "CLOSED", "restore"),
        (3, "STANDBY", "IDLE", "restore"),
        (4, "IDLE", "SLEEP", "restore"),
    ]
    first, last = still.store.begin_run()
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 0


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
def test_a_client_whose_port_is_0_ends_no_start(still: Rig, address: str) -> None:
    """Linux takes its handshake; the history says ``address:0``."""
    client = Key.of(address, 0, "10.0.0.1", 8000) if "." in address else Key.of(address, 0, "fd00::1", 8000)
    begins = State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT, 0, 0, 0, NO_ENDS
    still.store.add([HISTORY.pack(1, 5, client.pack(), 1, *begins)])
    until(lambda: still.store.status.written_history == 1)
    first, last = still.store.begin_run()
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 1
    until(lambda: still.store.status.written_history == 2)
    assert still.history()[-1] == (1, "ACTIVE", "CLOSED", "restore")


def test_a_sleeper_that_a_killed_predecessor_put_to_sleep_and_does_not_name_was_idle_before(still: Rig) -> None:
    def wrote(number: int, target: State) -> bytes:
        return HISTORY.pack(number, 5, key(number).pack(), 1, State.NONE, target, Cause.RESTORE, 0, 0, 0, NO_ENDS)

    still.store.add([wrote(1, State.IDLE), wrote(2, State.SLEEP), wrote(3, State.IDLE)])
    until(lambda: still.store.status.written_history == 3)
    still.store.begin_run()
    still.store.note_caught_up(3)
    for number in (1, 2):  # the second one's row was put anew, as after a reboot
        still.engine.add(put_row(still, number), number, State.SLEEP)
    put_row(still, 3)  # it woke, and ended
    first, last = still.store.begin_run()
    assert first > last, "the run that was killed wrote no transition"
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 2
    until(lambda: still.store.status.written_history == 5)
    assert still.history()[3:] == [(1, "IDLE", "SLEEP", "restore"), (3, "IDLE", "CLOSED", "restore")]
    first, last = still.store.begin_run()
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 0


def reconcile(rig: Rig, found: Inventory, span: tuple[int, int]) -> None:
    """All of it, with parts of the daemon that have nothing to read."""
    engine, nothing, filled = cast(Any, rig.engine), Mock(), Mock()
    reconciler = Reconciler(
        engine, rig.store, rig.dispatcher, nothing, nothing, nothing, nothing, End(), found, span, filled
    )
    reconciler.run()
    assert filled.called


def test_rows_are_put_back_before_the_history_of_a_killed_run_is_read(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.store.begin_run()
    step = State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT, 0, 0, 0, NO_ENDS
    rig.store.add([HISTORY.pack(1, 5, key(1).pack(), 1, *step)])
    rig.engine.carry_out = False
    for number in (11, 12):
        put_row(rig, number)
    until(lambda: rig.store.status.written_history == 1)
    with sqlite3.connect(tmp_path / "roost.db") as database:
        age(database)
    rig.engine.carry_out = True
    rig.start()
    rig.store.hold_history()
    span = rig.store.begin_run()
    found = take_inventory(rig.engine, rig.store, rig.store._boot_id)
    read, asleep = rig.store.last_states, list[set[int]]()

    def reading(first: int, last: int) -> Iterator[tuple[int, str, int, int]]:
        asleep.append({c.id for c in rig.engine.connections.values() if c.state is State.SLEEP})
        return read(first, last)

    monkeypatch.setattr(rig.store, "last_states", reading)
    reconcile(rig, found, span)
    assert asleep == [{11, 12}]
    until(lambda: rig.store.status.written_history == 2)
    assert rig.history()[1:] == [(1, "ACTIVE", "CLOSED", "restore")]
    assert rig.store.begin_run()[0] == 2, "what the killed run left is not read again"


@pytest.mark.parametrize("reading", ["left_open", "put_last", "last_states"])
def test_a_history_that_cannot_be_read_is_read_at_the_next_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reading: str
) -> None:
    rig.store.begin_run()
    step = State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT, 0, 0, 0, NO_ENDS
    rig.store.add([HISTORY.pack(1, 5, key(1).pack(), 1, *step)])
    until(lambda: rig.store.status.written_history == 1)
    rig.start()

    def start(read: Callable[..., Any]) -> None:
        monkeypatch.setattr(rig.store, reading, read)
        rig.store.hold_history()
        first, _ = span = rig.store.begin_run()
        assert first == 1
        reconcile(rig, take_inventory(rig.engine, rig.store, rig.store._boot_id), span)
        rig.store.add([HISTORY.pack(2, 6, key(2).pack(), 1, *step)])
        assert rig.store.flush(10), "history is not held any more"

    whole, away = getattr(rig.store, reading), sa.exc.OperationalError("SELECT", None, Exception("the server has gone"))
    start(Mock(side_effect=away))
    assert "then, since the database could not be read: the server has gone" in caplog.text
    start(whole)
    assert (1, "ACTIVE", "CLOSED", "restore") in rig.history()
    assert rig.store.begin_run()[0] > 1, "nothing is read again"


@pytest.mark.parametrize("lost", [False, True])
def test_the_history_of_a_run_that_ended_in_good_order_is_read_only_if_connections_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    before = Store(f"sqlite:///{tmp_path}/roost.db", lambda slept: None)
    assert before.open() == ""
    before.service_indexes(["a"])
    before.begin_run()
    before.start()
    for number in (1, 2):
        steps = State.STANDBY, State.IDLE, Cause.QUIET, 0, 0, 0, NO_ENDS
        before.add([HISTORY.pack(number, 5, key(number).pack(), 1, *steps)])
    before.close(left_open=2)
    still = Rig(tmp_path / "roost.db", carry_out=False)
    for number in (1,) if lost else (1, 2):
        still.engine.add(key(number), number, State.IDLE)
    still.store.hold_history()
    span = still.store.begin_run()
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    said: list[str] = []
    sa.event.listen(still.store._reader_engine, "before_cursor_execute", lambda *args: said.append(args[2].lower()))

    def fetched(connection: sa.Connection, text: str, values: list[Any]) -> Any:
        said.append(text)
        return fetch(connection, text, values)

    monkeypatch.setattr(history, "fetch", fetched)
    reconcile(still, found, span)
    assert any("history_1" in one for one in said) == lost
    until(lambda: still.store.status.written_history == lost)
    assert still.history()[2:] == [(2, "IDLE", "CLOSED", "restore")] * lost
    still.close()


def before_that_run(still: Rig, source: State, target: State, cause: Cause) -> None:
    """The history says this of connection 1; then a run begins, which will have been killed."""
    still.store.add([HISTORY.pack(1, 5, key(1).pack(), 1, source, target, cause, 0, 0, 0, NO_ENDS)])
    until(lambda: still.store.status.written_history == 1)
    still.store.begin_run()


def test_one_that_has_woken_and_lost_its_row_before_it_is_asked_about_slept_all_the_same(still: Rig) -> None:
    before_that_run(still, State.NONE, State.IDLE, Cause.RESTORE)
    still.engine.add(put_row(still, 1), 1, State.SLEEP)
    first, last = still.store.begin_run()
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    still.store.hold_history()
    named = still.store.put_last()
    forget_row(still, 1)
    assert catch_up(still.store, found, named, first, last) == 1
    still.store.release_history()
    until(lambda: still.store.status.written_history == 2)
    assert still.history()[1] == (1, "IDLE", "SLEEP", "restore")


def test_one_that_slept_before_that_run_and_is_idle_now_woke_in_it(still: Rig) -> None:
    before_that_run(still, State.IDLE, State.SLEEP, Cause.QUIET)
    still.engine.add(put_row(still, 1), 1, State.IDLE)
    first, last = still.store.begin_run()
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 1
    until(lambda: still.store.status.written_history == 2)
    assert still.history()[1] == (1, "SLEEP", "IDLE", "restore")


def test_a_sleeper_whose_end_was_written_and_whose_row_was_left_ends_once(still: Rig) -> None:
    def wrote(number: int, target: State) -> bytes:
        return HISTORY.pack(number, 5, key(number).pack(), 1, State.SLEEP, target, Cause.RESTORE, 0, 0, 0, NO_ENDS)

    still.store.add([wrote(1, State.CLOSED), wrote(2, State.SLEEP)])
    until(lambda: still.store.status.written_history == 2)
    for number in (1, 2):
        put_row(still, number)
    first, last = still.store.begin_run()
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 1
    until(lambda: still.store.status.written_history == 3)
    assert still.history()[2:] == [(2, "SLEEP", "CLOSED", "restore")]


def test_what_a_predecessor_lacked_waits_for_nothing_that_is_held(still: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each that was lost, while a row without a number waits, which is held."""
    step = HISTORY.pack(1, 5, key(1).pack(), 1, State.IDLE, State.SLEEP, Cause.QUIET, 0, 0, 0, NO_ENDS)
    still.store.add([step])
    until(lambda: still.store.status.written_history == 1)
    still.store.begin_run()
    put_row(still, 1)
    still.store.hold_history()
    first, last = still.store.begin_run()
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    unnumbered = HISTORY.pack(0, 5, key(2).pack(), 1, State.SLEEP, State.ACTIVE, Cause.CLIENT_DATA, 0, 0, 0, NO_ENDS)
    still.store.add([unnumbered])
    flushed = Mock(return_value=False)
    monkeypatch.setattr(still.store, "flush", flushed)
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 1
    assert not flushed.called
    still.store.release_history()
    until(lambda: still.store.status.written_history == 3)
    assert still.history()[1] == (1, "SLEEP", "CLOSED", "restore")


def test_what_a_predecessor_lacked_stands_before_what_came_meanwhile(still: Rig) -> None:
    def wrote(source: State, target: State, cause: Cause) -> bytes:
        return HISTORY.pack(1, 5, key(1).pack(), 1, source, target, cause, 0, 0, 0, NO_ENDS)

    still.store.add([wrote(State.NONE, State.IDLE, Cause.RESTORE)])
    until(lambda: still.store.status.written_history == 1)
    still.engine.add(put_row(still, 1), 1, State.SLEEP)
    still.store.hold_history()
    first, last = still.store.begin_run()
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    still.store.add([wrote(State.SLEEP, State.ACTIVE, Cause.CLIENT_DATA)])
    put_row(still, 2)
    assert still.store.status.written_history == 1, "it is held, and rows of sleepers are not"
    assert catch_up(still.store, found, still.store.put_last(), first, last) == 1
    still.store.release_history()
    until(lambda: still.store.status.written_history == 3)
    assert still.history()[1:] == [(1, "IDLE", "SLEEP", "restore"), (1, "SLEEP", "ACTIVE", "client-data")]


def test_rows_are_put_back_as_they_are_and_their_clock_says_by_how_much_they_are_off(rig: Rig, tmp_path: Path) -> None:
    """However often the machine boots; and one whose client has come back meanwhile is closed."""
    rig.engine.carry_out = False
    for number in (11, 12, 13):
        put_row(rig, number)
    before = {row.id: row for row in rig.store.sleeping_rows()}
    rig.engine.carry_out = True
    rig.start()
    engine, nobody = cast(Any, rig.engine), cast(Any, None)
    for boots in (1, 2):
        rig.engine.connections.clear()
        rig.engine.add(key(13), 99, State.ACTIVE)
        with sqlite3.connect(tmp_path / "roost.db") as database:
            database.execute("DELETE FROM meta WHERE key = 'boot'")
            database.execute("UPDATE clocks SET boot_id = 'the boot before', wall_offset_ms = wall_offset_ms - 60000")
        reconciler = Reconciler(
            engine, rig.store, rig.dispatcher, nobody, nobody, nobody, nobody, End(), Inventory(), (0, 0), nobody
        )
        assert reconciler._put_back() == 2
        until(lambda: rig.store.sleeping_by_id(13) is None)
        assert not rig.store.has_rows_of_another_boot(rig.store._boot_id)
        for number in (11, 12):
            row, old = rig.store.sleeping_by_id(number), before[number]
            assert row is not None
            assert (row.ka, row.rest, row.clock, row.slept_at) == (old.ka, old.rest, old.clock, old.slept_at)
            assert row.shift_ms == pytest.approx(-60_000 * boots, abs=5_000)
            assert rig.engine.shifted[number] == (row.shift_ms, row.timestamps_ms), "the slot is on the row's clock"
            ka, _ = rig.store.read({row.key: record_of(row).reference})[row.key]
            assert ka == record_of(row).ka != old.ka
    assert {c.id for c in rig.engine.connections.values()} == {11, 12, 99}
    assert [number for number, _, target, _ in rig.history() if target == "CLOSED"] == [13]


def test_one_that_wakes_by_its_row_while_that_is_written_anew_keeps_none_waiting(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon waited for its row for ever, and the machine stayed in quarantine."""
    sleepers = rig.dispatcher.sleepers
    insert = sleepers.insert

    def insert_and_wake(found: Sequence[Record]) -> None:
        insert(found)
        rig.store.add(deletes=[(key(12).pack(), 12)])

    rig.engine.carry_out = False
    rows = [record(key(number), number, by_key=True) for number in (11, 12)]
    rig.store.add(upserts=[(row.key_raw, row.ka + row.rest) for row in rows])
    until(lambda: len(rig.engine.commands) == len(rows))  # else it is carried out later
    with sqlite3.connect(tmp_path / "roost.db") as database:
        age(database)
    rig.engine.carry_out = True
    rig.start()
    monkeypatch.setattr(sleepers, "insert", insert_and_wake)
    engine, nobody = cast(Any, rig.engine), cast(Any, None)
    reconciler = Reconciler(
        engine, rig.store, rig.dispatcher, nobody, nobody, nobody, nobody, End(), Inventory(), (0, 0), nobody
    )
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(reconciler._put_back)
        try:
            assert done.result(10) == 2
        finally:
            sleepers._inserting.clear()
    assert {c.id for c in rig.engine.connections.values()} == {11}
    assert [row.id for row in rig.store.sleeping_rows()] == [11]


@pytest.mark.parametrize("paired", [False, True], ids=["without slots", "pairs"])
def test_rows_that_go_back_one_by_one_do_so_in_pages_though_clocks_take_turns(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paired: bool
) -> None:
    """As after two reboots; to wait for each run of rows of one clock took 40 s for 5,000."""
    rows_numbered, pages = rig.store.rows_numbered, list[int]()

    def counting(numbers: Sequence[int]) -> Iterator[SleepingRow]:
        pages.extend([len(numbers)] if numbers else [])
        return rows_numbered(numbers)

    rig.engine.carry_out = False
    numbers = range(11, 31)
    rows = [record(key(number), number, by_key=not paired, flags=PAIRED if paired else 0) for number in numbers]
    rig.store.add(upserts=[(row.key_raw, row.ka + row.rest) for row in rows])
    until(lambda: len(list(rig.store.sleeping_rows())) == len(rows))
    until(lambda: len(rig.engine.commands) == len(rows))  # else it is carried out later
    with sqlite3.connect(tmp_path / "roost.db") as database:
        age_all(database)
        another = "SELECT 99, boot_id, wall_offset_ms - 60000, shift_ms, timestamps_ms FROM clocks WHERE clock ="
        database.execute(f"INSERT INTO clocks {another} (SELECT max(clock) FROM sleeping)")
        database.execute("UPDATE sleeping SET clock = 99 WHERE id % 2")
    rig.engine.carry_out = True
    rig.start()
    monkeypatch.setattr(rig.store, "rows_numbered", counting)
    engine, nobody = cast(Any, rig.engine), cast(Any, None)
    reconciler = Reconciler(
        engine, rig.store, rig.dispatcher, nobody, nobody, nobody, nobody, End(), Inventory(), (0, 0), nobody
    )
    assert reconciler._put_back() == len(rows)
    assert pages == [len(rows)]
    before = {row.id: row.heard_s for row in rows}
    later = {c.id: c.record.heard_s - before[c.id] for c in rig.engine.connections.values()}
    assert later[12] - later[13] == later[30] - later[29] == 60, "each by its own clock"
