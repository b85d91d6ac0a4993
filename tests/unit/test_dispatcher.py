# SPDX-License-Identifier: Apache-2.0
"""The loop between engine and store, with an engine that has no kernel; and the start and end of the daemon."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import EIO, ENOENT, ETIMEDOUT
from pathlib import Path
from typing import Any

import pytest

from appliance.box import sysctls
from appliance.wire import KA, REST, ROW, Command, EngineOptions, Event, EventType, Key, Op
from control.channel.operations import local_addresses
from control.cli.client import Client
from control.config import parse, parse_endpoint
from control.core.states import Cause, State
from control.daemon import daemon as daemon_module
from control.daemon.daemon import Daemon, DaemonError, InstanceLock, catch_up, take_inventory
from control.dispatch import dispatcher as monitor_module
from control.dispatch.dispatcher import BUSY_PATIENCE_MS, BUSY_ROWS, PATIENCE_MS, Monitor, Outcome, history_row
from control.store import reading as reading_module
from control.store.database import StoreError
from control.store.reading import SleepingRow
from control.store.schema import HISTORY, KA_BYTES, REST_BYTES
from control.store.store import Store
from tests.reboot import age
from tests.unit.fake_engine import FakeEngine, event, key, record


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


class Rig:
    """Engine, store and monitor, wired; the monitor's thread runs when a test starts it."""

    def __init__(self, database: Path, carry_out: bool = True) -> None:
        self.engine = FakeEngine(carry_out=carry_out)
        self.store = Store(f"sqlite:///{database}", lambda slept: self.monitor.slept(slept))
        self.fatal: list[str] = []
        self.monitor = Monitor(self.engine, self.store, 1000, self.fatal.append)
        self.store.open()
        self.store.service_indexes(["a"])
        self.store.start()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self.monitor.run)
        self.thread.start()

    def close(self) -> None:
        self.monitor.stop()
        if self.thread:
            self.thread.join(5)
        self.store.close(3)

    def history(self) -> list[tuple[int, str, str, str]]:
        return [
            (r["id"], State(r["from"]).label, State(r["to"]).label, Cause(r["cause"]).label)
            for r in self.store.recent_history(10_000)
        ]

    def asleep(self, number: int) -> Key:
        """A connection that sleeps, with its row."""
        carry_out, self.engine.carry_out = self.engine.carry_out, False
        c = self.engine.add(key(number), number, State.SLEEP)
        self.store.add(upserts=[(c.key.pack(), c.record.ka + c.record.rest)])
        until(lambda: Op.SLEEP in self.engine.ops())
        self.engine.carry_out = carry_out
        return c.key


@pytest.fixture(autouse=True)
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ports that a daemon wants reserved; these tests leave the machine's settings alone."""
    wanted: list[int] = []
    monkeypatch.setattr(sysctls, "prepare", wanted.extend)
    return wanted


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


def test_a_quiet_connection_is_taken_down_one_step_at_a_time(still: Rig) -> None:
    still.monitor.turn(
        [
            event(EventType.QUIET, key(1), 1, from_state=State.ACTIVE),
            event(EventType.QUIET, key(2), 2, from_state=State.STANDBY),
            event(EventType.QUIET, key(3), 3, from_state=State.IDLE),
        ]
    )
    assert [(c.op, c.id, c.cause) for c in still.engine.commands] == [
        (Op.STANDBY, 1, Cause.QUIET),
        (Op.IDLE, 2, Cause.QUIET),
    ]


def test_sleep_is_ordered_only_after_the_row_is_committed(still: Rig) -> None:
    committed: list[bool] = []

    class Watching(FakeEngine):
        def submit(self, commands: Sequence[Command]) -> None:
            committed.extend(bool(still.store.sleeping_by_id(c.id)) for c in commands if c.op is Op.SLEEP)
            super().submit(commands)

    still.monitor._engine = watching = Watching(carry_out=False)
    still.monitor.turn([event(EventType.SLEEP_DUE, key(1), 1), event(EventType.SLEEP_DUE, key(2), 2)])
    until(lambda: len(watching.commands) == 2)
    assert committed == [True, True]
    assert {(c.op, c.id, c.key) for c in watching.commands} == {
        (Op.SLEEP, 1, key(1).pack()),
        (Op.SLEEP, 2, key(2).pack()),
    }


def test_a_needed_record_is_answered_before_the_rest_of_its_batch(still: Rig) -> None:
    k = still.asleep(1)
    still.engine.commands.clear()
    quiet = [event(EventType.QUIET, key(n), n, from_state=State.ACTIVE) for n in range(2, 400)]
    still.monitor.turn([*quiet, event(EventType.NEED_RECORD, k, token=5)])
    first = still.engine.commands[0]
    assert (first.op, first.error, first.token, first.key) == (Op.RESTORE, 0, 5, k.pack())
    assert first.record is not None
    assert (first.record.id, len(first.record.ka), len(first.record.rest)) == (1, 36, 40)


def test_a_wake_up_that_fails_leaves_the_connection_idle_and_no_row_behind(still: Rig) -> None:
    k = still.asleep(1)
    back = event(EventType.TRANSITION, k, 1, from_state=State.SLEEP, to_state=State.IDLE, cause=Cause.SERVER_ATTACH)
    still.monitor.turn([back])
    until(lambda: still.store.sleeping_by_id(1) is None)
    assert still.monitor.counters.illegal == 0
    assert still.history() == [(1, "SLEEP", "IDLE", "server-attach")]


def test_a_record_that_is_not_there_is_answered_with_an_error(still: Rig) -> None:
    still.monitor.turn([event(EventType.NEED_RECORD, key(9))])
    assert [(c.op, c.error, c.record) for c in still.engine.commands] == [(Op.RESTORE, ENOENT, None)]
    assert still.monitor.counters.lost_records == 1


def test_a_record_that_cannot_be_read_is_tried_again_before_it_is_given_up(
    still: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = still.asleep(1)
    still.engine.commands.clear()
    read = still.store.read

    def fail(_keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        raise StoreError("locked")

    monkeypatch.setattr(still.store, "read", fail)
    still.monitor.turn([event(EventType.NEED_RECORD, k)])
    still.monitor.turn([])
    assert still.engine.commands == []
    monkeypatch.setattr(still.store, "read", read)
    still.monitor.turn([])
    assert [(c.op, c.error) for c in still.engine.commands] == [(Op.RESTORE, 0)]

    monkeypatch.setattr(still.store, "read", fail)
    monkeypatch.setattr(monitor_module, "READ_PATIENCE_S", 0.0)
    still.monitor.turn([event(EventType.NEED_RECORD, k)])
    assert still.engine.commands[-1].error == EIO


def test_who_may_be_asleep_is_looked_up(still: Rig) -> None:
    k = still.asleep(1)
    still.engine.commands.clear()
    still.monitor.turn([event(EventType.PERHAPS, k), event(EventType.PERHAPS, key(9))])
    found, stranger = still.engine.commands
    assert (found.op, found.key, found.error) == (Op.PERHAPS, k.pack(), 0)
    assert found.record is not None
    assert found.record.id == 1
    assert (stranger.op, stranger.key, stranger.error, stranger.record) == (Op.PERHAPS, key(9).pack(), ENOENT, None)
    assert (still.monitor.counters.restored, still.monitor.counters.strangers) == (1, 1)


def test_who_may_be_asleep_is_not_who_closed_in_the_same_batch(still: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """His row is there still, and is about to be removed: who wants him is held until it is."""
    monkeypatch.setattr(monitor_module, "LOOK_UP_AGAIN_MS", 0)
    k = still.asleep(1)
    still.engine.commands.clear()
    gone = event(EventType.TRANSITION, k, 1, from_state=State.SLEEP, to_state=State.CLOSED, cause=Cause.CLIENT_CLOSE)
    still.monitor.turn([gone, event(EventType.PERHAPS, k)])
    assert still.engine.commands == []
    until(lambda: still.store.sleeping_by_id(1) is None and not still.store.status.pending_sleep)
    still.monitor.turn([])
    assert [(c.op, c.error) for c in still.engine.commands] == [(Op.PERHAPS, ENOENT)]


def cannot_be_read(_keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes] | None]:
    raise StoreError("locked")


def test_while_the_database_cannot_be_read_who_may_be_asleep_waits_and_is_looked_up_when_it_can(
    still: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = still.asleep(1)
    still.engine.commands.clear()
    asleep = still.store.asleep
    monkeypatch.setattr(monitor_module, "LOOK_UP_AGAIN_MS", 0)
    monkeypatch.setattr(still.store, "asleep", cannot_be_read)
    still.monitor.turn([event(EventType.PERHAPS, k)])
    still.monitor.turn([event(EventType.PERHAPS, k), event(EventType.PERHAPS, key(9))])
    still.monitor.turn([])
    assert still.engine.commands == []
    monkeypatch.setattr(still.store, "asleep", asleep)
    still.monitor.turn([])
    assert [(c.key, c.error) for c in still.engine.commands] == [(k.pack(), 0), (key(9).pack(), ENOENT)]
    still.monitor.turn([])
    assert len(still.engine.commands) == 2, "and that is all"


def test_who_cannot_be_looked_up_for_so_long_is_given_up_with_the_reason(
    still: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    k = still.asleep(1)
    asleep = still.store.asleep
    monkeypatch.setattr(monitor_module, "READ_PATIENCE_S", 0.0)
    monkeypatch.setattr(still.store, "asleep", cannot_be_read)
    for number in (1, 8, 9):
        still.monitor.turn([event(EventType.PERHAPS, key(number))])
        assert (still.engine.commands[-1].op, still.engine.commands[-1].error) == (Op.PERHAPS, EIO)
    assert still.monitor.counters.unanswered == 3
    monkeypatch.setattr(still.store, "asleep", asleep)
    still.monitor.turn([event(EventType.PERHAPS, k)])
    assert still.engine.commands[-1].error == 0
    said = [line.getMessage() for line in caplog.records if "sleeps without a slot" in line.getMessage()]
    assert [line.split(": ")[-1] for line in said[:-1]] == ["locked"], "once, however many are wanted"
    assert said[-1].endswith("3 were looked for in vain")


def test_leaving_sleep_forgets_the_row_and_writes_history_once(rig: Rig) -> None:
    k = rig.asleep(1)
    rig.start()
    outcome = rig.monitor.command(Command(op=Op.WAKE, cause=Cause.COMMAND, key=k), [State.STANDBY], 5).result(5)
    assert outcome == Outcome(0, State.STANDBY, 1)
    until(lambda: not rig.store.sleeping_by_id(1))
    until(lambda: rig.history())
    assert rig.history() == [(1, "SLEEP", "STANDBY", "command")]


def test_a_row_that_the_outcome_of_a_command_leads_to_outlives_the_removal_of_the_one_before(still: Rig) -> None:
    """Awake and down again within one batch, and told to sleep at once: its new row is not taken for the old one."""
    k = still.asleep(1)
    done = still.monitor.command(Command(op=Op.IDLE, cause=Cause.COMMAND, id=1, key=k), [State.IDLE], 5)
    done.add_done_callback(lambda _: still.monitor.sleep(record(k, 1), 5))
    token = still.engine.commands[-1].token
    woke = event(EventType.TRANSITION, k, 1, from_state=State.SLEEP, to_state=State.ACTIVE, cause=Cause.CLIENT_DATA)
    froze = event(EventType.TRANSITION, k, 1, from_state=State.ACTIVE, to_state=State.IDLE, cause=Cause.COMMAND)
    still.monitor.turn([woke, froze._replace(token=token)])
    until(lambda: still.engine.ops().count(Op.SLEEP) == 2)
    assert still.store.sleeping_by_id(1)


def test_a_connection_that_woke_before_its_sleep_keeps_no_row(rig: Rig) -> None:
    c = rig.engine.add(key(1), 1, State.IDLE)
    rig.engine.say(event(EventType.SLEEP_DUE, c.key, 1))
    c.state = State.ACTIVE  # it wakes while the row is being written; the engine refuses SLEEP
    rig.start()
    until(lambda: Op.SLEEP in rig.engine.ops())
    until(lambda: rig.store.sleeping_by_id(1) is None)
    assert c.state is State.ACTIVE


def test_people_are_told_that_a_table_is_full(still: Rig, caplog: pytest.LogCaptureFixture) -> None:
    still.monitor.turn([])
    assert "is full" not in caplog.text
    still.engine.table_full = 3
    still.monitor._next_look = 0.0
    still.monitor.turn([])
    assert "3 times" in caplog.text
    assert "[table] idle" in caplog.text
    caplog.clear()
    still.monitor._next_look = 0.0
    still.monitor.turn([])
    assert not caplog.text, "once"


def test_an_illegal_transition_is_counted_and_still_written(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.monitor.turn(
        [event(EventType.TRANSITION, key(1), 1, from_state=State.SLEEP, to_state=State.IDLE, cause=Cause.QUIET)]
    )
    until(lambda: rig.history())
    assert rig.history() == [(1, "SLEEP", "IDLE", "quiet")]
    assert rig.monitor.counters.illegal == 1
    assert "illegal transition SLEEP -> IDLE by quiet" in caplog.text


def rows(*kinds: tuple[int, State, State, Cause]) -> Event:
    """The engine's event for transitions that nobody waits for, each of a connection number."""
    packed = [ROW.pack(n, 5, key(n).pack(), 1, source, to, cause, 64, 128, 0) for n, source, to, cause in kinds]
    return event(EventType.ROWS, key(0), count=len(packed))._replace(rows=b"".join(packed))


CAME_AND_WENT = (
    (1, State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT),
    (2, State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT),
    (1, State.ACTIVE, State.CLOSED, Cause.CLIENT_CLOSE),
)


def test_clients_that_come_and_go_are_written_and_counted(rig: Rig) -> None:
    rig.monitor.turn([rows(*CAME_AND_WENT)])
    until(lambda: len(rig.history()) == 3)
    assert rig.history() == [
        (1, "NONE", "ACTIVE", "client-connect"),
        (2, "NONE", "ACTIVE", "client-connect"),
        (1, "ACTIVE", "CLOSED", "client-close"),
    ]
    assert (rig.monitor.states[State.ACTIVE], rig.monitor.states[State.CLOSED]) == (1, 1)
    assert (rig.monitor.counters.transitions, rig.monitor.counters.illegal) == (3, 0)
    written = rig.store.recent_history(1)[0]
    assert (written["client"], written["rx_bytes"], written["tx_bytes"]) == (key(1).client_text, 64, 128)


def test_many_that_come_and_go_are_waited_for_longer_and_few_are_not(rig: Rig) -> None:
    rig.start()
    rig.engine.say(rows(*[CAME_AND_WENT[0]] * BUSY_ROWS))
    until(lambda: rig.engine.patience_ms == BUSY_PATIENCE_MS)
    rig.engine.say(rows(CAME_AND_WENT[0]))
    until(lambda: rig.engine.patience_ms == PATIENCE_MS)


def test_an_illegal_transition_among_those_that_nobody_waits_for_is_counted_too(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.monitor.turn([rows(*CAME_AND_WENT, (2, State.CLOSED, State.ACTIVE, Cause.CLIENT_DATA))])
    until(lambda: len(rig.history()) == 4)
    assert rig.monitor.counters.illegal == 1
    assert "connection 2: illegal transition CLOSED -> ACTIVE by client-data" in caplog.text


def test_who_listens_hears_all_transitions_in_their_order(still: Rig) -> None:
    heard: list[tuple[int, int, str, int]] = []

    def hear(transitions: Iterable[Event]) -> None:
        heard.extend((e.id, e.to_state, e.record.key.client_text, e.service) for e in transitions)

    still.monitor.listen(hear)
    asleep = event(EventType.TRANSITION, key(3), 3, from_state=State.STANDBY, to_state=State.IDLE, cause=Cause.QUIET)
    still.monitor.turn([rows(*CAME_AND_WENT[:2]), asleep, rows(CAME_AND_WENT[2])])
    assert heard == [
        (number, state, key(number).client_text, 1)
        for number, state in ((1, State.ACTIVE), (2, State.ACTIVE), (3, State.IDLE), (1, State.CLOSED))
    ]


def test_transitions_that_nobody_looks_at_stay_packed(still: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(packed: bytes) -> Iterator[Event]:
        raise AssertionError("it was unpacked")

    heard: list[bool] = []
    monkeypatch.setattr(monitor_module, "transitions", unpacked)
    still.monitor.listen(lambda transitions: heard.append(True))
    still.monitor.turn([rows(*CAME_AND_WENT)])
    assert heard == [True]


def test_pressure_is_relieved_down_to_three_quarters(still: Rig) -> None:
    still.monitor.turn([event(EventType.PRESSURE, key(1), count=900)])
    assert [(c.op, c.count, c.cause) for c in still.engine.commands] == [(Op.PRESSURE, 150, Cause.PRESSURE)]


def test_sleepers_that_all_wake_at_once_are_pressure_too(still: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    still.monitor.states[State.ACTIVE] = 3000
    still.monitor.turn([])
    still.monitor.turn([])  # at once: those of the first relief are still on their way down
    monkeypatch.setattr(monitor_module, "RELIEF_EVERY_S", 0.0)
    still.monitor._next_relief = 0.0
    still.monitor.states[State.ACTIVE] = 1200
    still.monitor.turn([])
    still.monitor.states[State.ACTIVE] = 800
    still.monitor.turn([])
    assert [(c.op, c.count) for c in still.engine.commands] == [(Op.PRESSURE, 2250), (Op.PRESSURE, 450)]


def test_a_refusal_reaches_whoever_waits_for_it(rig: Rig) -> None:
    rig.start()
    unknown = Command(op=Op.CLOSE, cause=Cause.COMMAND, key=key(77))
    assert rig.monitor.command(unknown, [State.CLOSED], 5).result(5).error == ENOENT


def test_a_command_that_nobody_answers_ends_in_time(still: Rig) -> None:
    still.start()
    waiting = still.monitor.command(Command(op=Op.WAKE, cause=Cause.COMMAND, key=key(1)), [State.STANDBY], 0.1)
    assert waiting.result(5) == Outcome(ETIMEDOUT)


def test_saying_sleep_due_twice_does_not_lose_the_record_of_what_sleeps(rig: Rig) -> None:
    c = rig.engine.add(key(1), 1, State.IDLE)
    rig.start()
    rig.engine.say(event(EventType.SLEEP_DUE, c.key, 1))
    until(lambda: c.state is State.SLEEP)
    rig.engine.say(event(EventType.SLEEP_DUE, c.key, 1))
    until(lambda: rig.monitor.counters.refused == 1)
    rig.store.add([history_row(c.record, State.IDLE, State.SLEEP)])  # a turn of the writer later
    until(lambda: rig.store.status.written_history == 2)
    assert rig.store.sleeping_by_id(1)


def test_a_connection_put_back_that_is_due_to_sleep_at_once_does(rig: Rig) -> None:
    """A pair after a reboot is put back as IDLE, and its sleep may be due by the next sweep: one batch says both."""
    c = rig.engine.add(key(1), 1, State.IDLE)
    back = event(EventType.TRANSITION, c.key, 1, from_state=State.NONE, to_state=State.IDLE, cause=Cause.RESTORE)
    rig.monitor.turn([back, event(EventType.SLEEP_DUE, c.key, 1)])
    until(lambda: c.state is State.SLEEP)
    assert rig.store.sleeping_by_id(1)


def test_while_the_database_fails_nothing_is_queued_for_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.store.store.BACKOFF_S", (0.05,))
    database = tmp_path / "roost.db"
    database.write_bytes(b"not a database" * 100)
    rig = Rig(database)
    try:
        c = rig.engine.add(key(1), 1, State.IDLE)
        rig.start()
        rig.engine.say(event(EventType.SLEEP_DUE, c.key, 1))
        until(lambda: rig.monitor.counters.sleep_deferred == 1)
        assert rig.store.status.pending_sleep == 0
        assert c.state is State.IDLE
        database.unlink()
        until(lambda: rig.store.sleep_allowed)
        rig.engine.say(event(EventType.SLEEP_DUE, c.key, 1))  # the engine says it again
        until(lambda: c.state is State.SLEEP)
    finally:
        rig.close()


def test_a_fatal_event_ends_the_loop_with_its_reason(still: Rig) -> None:
    still.start()
    still.engine.say(event(EventType.FATAL, key(1), error=12))
    assert still.thread is not None
    still.thread.join(5)
    assert not still.thread.is_alive()
    assert still.fatal == ["engine: Cannot allocate memory"]


def test_a_burst_costs_at_most_50_microseconds_for_each_event(still: Rig) -> None:
    events = [
        event(EventType.TRANSITION, key(n), n, from_state=State.STANDBY, to_state=State.IDLE, cause=Cause.QUIET)
        for n in range(1, 10_001)
    ]
    began = time.thread_time()
    for start in range(0, len(events), monitor_module.BATCH):
        still.monitor.turn(events[start : start + monitor_module.BATCH])
    assert (time.thread_time() - began) / len(events) < 50e-6


def test_after_a_reboot_the_timestamp_clock_runs_on_and_times_are_the_new_boots() -> None:
    old = record(key(1), 5, active_ms=100_000, ts_offset=7)
    # Slept when CLOCK_MONOTONIC said 200 s; 60 s of wall clock later the new boot's says 10 s.
    then_offset, now_offset = 1_000_000 - 200_000, 1_060_000 - 10_000
    new = old.shifted(then_offset - now_offset)
    ka, rest = new.ka, new.rest
    tsval_then = 200_000 + KA.unpack(old.ka)[3]
    tsval_now = (10_000 + KA.unpack(ka)[3]) & 0xFFFFFFFF
    assert tsval_now - tsval_then == 60_000
    assert REST.unpack(rest)[:2] == (5, 0)
    assert KA.unpack(ka)[6:] == KA.unpack(old.ka)[6:]
    assert (len(ka), len(rest)) == (36, 40)


# -- the daemon: what it finds, and how it begins and ends ------------------------------------------------------------


def put_row(rig: Rig, number: int) -> Key:
    k = key(number)
    r = record(k, number)
    rig.store.add(upserts=[(k.pack(), r.ka + r.rest)])
    until(lambda: rig.store.sleeping_by_id(number))
    return k


def test_the_inventory_tells_slots_without_rows_from_rows_without_slots(still: Rig) -> None:
    still.engine.add(put_row(still, 1), 1, State.SLEEP)  # good
    put_row(still, 2)  # its slot is gone
    still.engine.add(put_row(still, 3), 3, State.IDLE)  # committed, never slept
    lost = still.engine.add(key(4), 4, State.SLEEP)  # its row is gone
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert found.without_row == [lost.key.pack()]
    assert (found.without_slot, found.other_boot, list(found.sleep_ids), list(found.idle_ids)) == (1, 0, [1], [3])
    until(lambda: not still.store.sleeping_by_id(2) and not still.store.sleeping_by_id(3))
    until(lambda: still.history())
    assert still.history() == [(2, "SLEEP", "CLOSED", "restore")]


def test_the_inventory_finds_those_that_sleep_without_a_slot(still: Rig) -> None:
    for number in (1, 2):
        put_row(still, number)
    still.engine.without_slot = {key(1): 1, key(7): 7}
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert (found.states[State.SLEEP], list(found.sleep_ids), found.without_slot) == (1, [1], 1)


def test_the_inventory_goes_through_all_pages_and_looks_closer_only_at_rows_that_are_odd(
    still: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "SCAN_ROWS", 3)
    rows_at, looked_at = still.store.rows_at, list[bytes]()

    def looking(keys: Sequence[bytes]) -> Iterator[SleepingRow]:
        looked_at.extend(keys)
        return rows_at(keys)

    monkeypatch.setattr(still.store, "rows_at", looking)
    for number in range(1, 12):
        put_row(still, number)
    for number in (1, 2, 4, 8, 9):
        still.engine.add(key(number), number, State.SLEEP)
    still.engine.without_slot = {key(number): number for number in (3, 5, 7, 10, 11)}
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert looked_at == [key(6).pack()], "it is nowhere"
    assert list(found.sleep_ids) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert (found.states[State.SLEEP], found.without_slot, found.without_row) == (10, 1, [])


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
    monkeypatch.setattr(daemon_module, "READ_CHUNK", 3)
    everybody, ids, listed, kept = still.engine.list, still.store.sleeping_ids, list[Event](), list[int]()

    def listing(born: bool = False, sleeping: bool = True) -> Iterator[Event]:
        for one in everybody(born, sleeping):
            listed.append(one)
            yield one

    def asking(keys: Sequence[bytes]) -> dict[bytes, int]:
        kept.append(len(listed))
        listed.clear()
        return ids(keys)

    monkeypatch.setattr(still.engine, "list", listing)
    monkeypatch.setattr(still.store, "sleeping_ids", asking)
    for number in range(1, 12):
        k = key(number) if number == 7 else put_row(still, number)
        still.engine.add(k, number, State.SLEEP)
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert found.without_row == [key(7).pack()]
    assert kept == [3, 3, 3, 2]


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
    assert (found.other_boot, found.without_slot) == (1, 0)
    rig.start()
    row = rig.store.sleeping_by_id(1)
    assert row is not None
    rig.monitor.insert([record(key(1), 1)])
    until(lambda: rig.engine.connections)
    until(lambda: rig.history())
    assert rig.engine.connections[key(1)].state is State.SLEEP
    assert rig.history() == [(1, "NONE", "SLEEP", "restore")]


def test_a_reboot_does_not_close_those_that_slept_through_it(still: Rig) -> None:
    put_row(still, 1)
    slept = HISTORY.pack(1, 5, key(1).pack(), 1, State.IDLE, State.SLEEP, Cause.QUIET, 0, 0, 0)
    still.store.add([slept])
    until(lambda: still.store.status.written_history == 1)
    first, last = still.store.begin_run()
    found = take_inventory(still.engine, still.store, "another-boot")
    assert catch_up(still.store, found, first, last) == 0


def test_a_client_that_came_back_after_the_reboot_closes_its_old_connection(rig: Rig) -> None:
    rig.start()
    rig.engine.add(key(1), 77, State.ACTIVE)
    rig.monitor.insert([record(key(1), 1)])
    until(lambda: rig.history())
    until(lambda: rig.store.sleeping_by_id(1) is None)
    assert rig.engine.connections[key(1)].state is State.ACTIVE


def test_what_a_killed_predecessor_could_not_write_is_added(still: Rig) -> None:
    def wrote(number: int, source: State, target: State) -> bytes:
        return HISTORY.pack(number, 5, key(number).pack(), 1, source, target, Cause.CLIENT_CONNECT, 0, 0, 0)

    words = [(1, State.ACTIVE), (2, State.STANDBY), (3, State.STANDBY), (4, State.IDLE), (5, State.CLOSED)]
    still.store.add([wrote(number, State.NONE, State.ACTIVE) for number, _ in words])
    still.store.add([wrote(number, State.ACTIVE, state) for number, state in words])
    until(lambda: still.store.status.written_history == 10)
    first, last = still.store.begin_run()
    still.engine.add(key(3), 3, State.IDLE)
    still.engine.add(put_row(still, 4), 4, State.SLEEP)
    found = take_inventory(still.engine, still.store, still.store._boot_id)
    assert catch_up(still.store, found, first, last) == 4
    until(lambda: still.store.status.written_history == 14)
    assert sorted(still.history()[10:]) == [
        (1, "ACTIVE", "CLOSED", "restore"),
        (2, "STANDBY", "CLOSED", "restore"),
        (3, "STANDBY", "IDLE", "restore"),
        (4, "IDLE", "SLEEP", "restore"),
    ]
    first, last = still.store.begin_run()
    assert catch_up(still.store, found, first, last) == 0


def configured(tmp_path: Path, extra: str = "") -> str:
    return (
        f'instance = "t"\n[paths]\ndatabase = "{tmp_path}/t.db"\ncontrol_socket = "{tmp_path}/t.sock"\n'
        f'pin_dir = "{tmp_path}/pins"\n[[service]]\nname = "a"\nlisten = "10.0.0.1:7000"\nserver = "10.0.0.2:7000"\n'
        + extra
    )


def test_a_second_daemon_is_refused_with_the_first_ones_pid_and_a_dead_ones_lock_is_not(tmp_path: Path) -> None:
    config = parse(configured(tmp_path))
    lock = InstanceLock(config)
    with pytest.raises(DaemonError, match=rf'instance "t" is running already \(pid {os.getpid()}'):
        InstanceLock(config)
    elsewhere = parse(configured(tmp_path).replace("t.sock", "other.sock"))
    with pytest.raises(DaemonError, match="another daemon uses the pins"):
        InstanceLock(elsewhere)
    lock.release()
    InstanceLock(config).release()


def test_a_daemon_serves_its_api_freezes_on_sigterm_and_leaves_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon_module, "SWITCH_INTERVAL_S", 0.005)
    path = tmp_path / "t.toml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = configured(tmp_path, f'[attach]\nlisten = ["127.0.0.1:{port}"]\n')
    path.write_text(text, encoding="utf-8")
    engine = FakeEngine()
    engine.add(key(1), 1, State.ACTIVE)
    engine.add(key(2), 2, State.IDLE)
    answers: dict[str, Any] = {}

    def operate() -> None:
        client = Client(f"{tmp_path}/t.sock")
        until(lambda: (tmp_path / "t.sock").exists())
        try:
            answers["status"] = client.get("/v1/status")
            answers["all"] = list(client.lines("/v1/connections"))
            answers["sleep"] = client.post("/v1/connections/2/sleep")
            answers["show"] = client.get("/v1/connections/192.0.0.2:40000")
            with socket.create_connection(("127.0.0.1", port)) as server:
                server.sendall(b"CONNECT 192.0.0.9:1 HTTP/1.1\r\nHost: x\r\n\r\n")
                answers["unknown"] = server.recv(1000)
            answers["wake"] = client.post("/v1/connections/2/wake")
            until(lambda: len(client.get("/v1/history")) == 2)
            answers["history"] = client.get("/v1/history")
            try:
                client.get("/v1/connections/99")
            except Exception as error:
                answers["error"] = str(error)
            path.write_text(text.replace('"a"', '"a"\nactive_quiet = 5'), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: engine.updates)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    operator = threading.Thread(target=operate)
    operator.start()
    daemon = Daemon(str(path), parse(text), lambda options: engine)  # type: ignore[arg-type, return-value]
    assert daemon.run() == 0
    operator.join(10)
    assert answers["status"]["connections"] == {"ACTIVE": 1, "STANDBY": 0, "IDLE": 1, "SLEEP": 0}
    assert answers["status"]["store"]["state"] == "ok"
    assert {row["client"] for row in answers["all"]} == {"192.0.0.1:40000", "192.0.0.2:40000"}
    assert (answers["sleep"]["before"], answers["sleep"]["state"]) == ("IDLE", "SLEEP")
    assert (answers["show"]["id"], answers["show"]["state"]) == (2, "SLEEP")
    assert answers["unknown"].startswith(b"HTTP/1.1 404 ")
    assert (answers["wake"]["before"], answers["wake"]["state"]) == ("SLEEP", "STANDBY")
    assert [row["to"] for row in answers["history"]] == ["SLEEP", "STANDBY"]
    assert answers["error"] == 'no connection "99"'
    assert engine.updates[0].standby_quiet_ms == 5000
    assert {c.state for c in engine.connections.values()} == {State.IDLE}, "SIGTERM freezes what was awake"
    assert engine.closed
    assert not (tmp_path / "t.sock").exists()
    json.dumps(answers["status"])


def test_an_attach_address_in_use_keeps_the_daemon_from_touching_anything(tmp_path: Path) -> None:
    engines: list[FakeEngine] = []

    def make(options: EngineOptions) -> FakeEngine:
        engines.append(FakeEngine(options=options))
        return engines[-1]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = parse(configured(tmp_path, f'[attach]\nlisten = ["127.0.0.1:{port}"]\n'))
        daemon = Daemon("t.toml", config, make)  # type: ignore[arg-type]
        with pytest.raises(DaemonError, match=f"cannot listen on 127.0.0.1 port {port} for attach.*Another program"):
            daemon.run()
    assert engines == []


def test_the_daemon_has_its_ports_reserved_before_it_takes_them(tmp_path: Path, reserved: list[int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = parse(configured(tmp_path, f'[attach]\nlisten = ["127.0.0.1:{port}"]\n'))
        with pytest.raises(DaemonError):
            Daemon("t.toml", config, lambda options: FakeEngine()).run()  # type: ignore[arg-type, return-value]
    assert reserved == [port, *(parse_endpoint(service.listen)[1] for service in config.service)]


def test_a_configuration_without_a_service_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match=r"t.toml: there is no \[\[service\]\]"):
        Daemon("t.toml", parse("")).run()


def test_the_record_parts_have_the_sizes_of_the_header() -> None:
    assert (KA.size, REST.size) == (KA_BYTES, REST_BYTES)


def test_the_addresses_of_the_box_are_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.77.0.1\n"
        "        /32 host LOCAL\n     |-- 10.77.0.255\n        /32 link BROADCAST\n",
        encoding="ascii",
    )
    assert local_addresses(tmp_path) == ["10.77.0.1"]
    (tmp_path / "if_inet6").write_text("fd000018000000000000000000000001 02 40 00 80     wan0\n", encoding="ascii")
    assert local_addresses(tmp_path) == ["10.77.0.1", "fd00:18::1"]
    assert "127.0.0.1" in local_addresses()
