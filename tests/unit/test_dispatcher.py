# SPDX-License-Identifier: Apache-2.0
"""The loop between engine and store, with an engine that has no kernel."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import EAGAIN, EFBIG, EIO, ENOBUFS, ENOENT, ETIMEDOUT
from pathlib import Path

import pytest

from appliance.wire import ENDS, KA, NO_ENDS, REST, ROW, Command, Event, EventType, Key, Op, Record, pack_address
from control.core.logs import ABOUT
from control.core.ports import BATCH, Outcome
from control.core.states import Cause, State
from control.dispatch import capacity, recall, turn
from control.dispatch.dispatcher import BUSY_PATIENCE_MS, BUSY_ROWS, PATIENCE_MS, Dispatcher
from control.dispatch.turn import history_row
from control.store.database import StoreError
from control.store.file import DamagedError
from control.store.schema import KA_BYTES, REST_BYTES
from control.store.store import Store
from tests.unit.fake_engine import FakeEngine, event, key, record


def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


class Rig:
    """Engine, store and dispatcher, wired; the dispatcher's thread runs when a test starts it."""

    def __init__(self, database: Path, carry_out: bool = True) -> None:
        self.engine = FakeEngine(carry_out=carry_out)
        self.store = Store(f"sqlite:///{database}", lambda slept: self.dispatcher.sleepers.slept(slept))
        self.fatal: list[str] = []
        self.dispatcher = Dispatcher(self.engine, self.store, 1000, self.fatal.append)
        self.store.open()
        self.store.service_indexes(["a"])
        self.store.start()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self.dispatcher.run)
        self.thread.start()

    def close(self) -> None:
        self.dispatcher.stop()
        if self.thread:
            self.thread.join(5)
        self.store.close(3)

    def history(self) -> list[tuple[int, str, str, str]]:
        return [
            (r["id"], State(r["from"]).label, State(r["to"]).label, Cause(r["cause"]).label)
            for r in self.store.recent_history(10_000)
        ]

    def asleep(self, number: int, by_key: bool = True) -> Key:
        """A connection that sleeps, with its row."""
        carry_out, self.engine.carry_out = self.engine.carry_out, False
        c = self.engine.add(key(number), number, State.SLEEP, by_key)
        self.store.add(upserts=[(c.key.pack(), c.record.ka + c.record.rest)])
        until(lambda: Op.SLEEP in self.engine.ops())
        self.engine.carry_out = carry_out
        return c.key


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
    still.dispatcher.turn(
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


def test_what_a_transition_says_of_its_ends_is_written(still: Rig) -> None:
    gone = event(
        EventType.TRANSITION, key(1), 1, from_state=State.IDLE, to_state=State.CLOSED, cause=Cause.PROBE_TIMEOUT
    )
    ends = ENDS.pack(pack_address("2001:db8::1"), 443, ETIMEDOUT, 4, 4711)
    still.dispatcher.turn([gone._replace(ends=ends)])
    assert still.store.flush()
    (row,) = still.store.recent_history(10)
    told = ("[2001:db8::1]:443", ETIMEDOUT, 4, 4711)
    assert tuple(row[name] for name in ("server", "error", "probes", "silence_s")) == told


def test_sleep_is_ordered_only_after_the_row_is_committed(still: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    committed: list[bool] = []

    submit = still.engine.submit

    def watched(commands: Sequence[Command]) -> None:
        committed.extend(bool(still.store.sleeping_by_id(c.id)) for c in commands if c.op is Op.SLEEP)
        submit(commands)

    monkeypatch.setattr(still.engine, "submit", watched)
    still.dispatcher.turn([event(EventType.SLEEP_DUE, key(1), 1), event(EventType.SLEEP_DUE, key(2), 2)])
    until(lambda: len(still.engine.commands) == 2)
    assert committed == [True, True]
    assert {(c.op, c.id, c.key) for c in still.engine.commands} == {
        (Op.SLEEP, 1, key(1).pack()),
        (Op.SLEEP, 2, key(2).pack()),
    }


@pytest.mark.parametrize("by_key", [True, False], ids=["by key", "by low bits"])
def test_a_needed_record_is_answered_before_the_rest_of_its_batch(still: Rig, by_key: bool) -> None:
    k = still.asleep(1, by_key)
    still.engine.commands.clear()
    quiet = [event(EventType.QUIET, key(n), n, from_state=State.ACTIVE) for n in range(2, 400)]
    ka = still.engine.connections[k].record.ka
    needed = event(EventType.NEED_RECORD, k, token=5)
    still.dispatcher.turn([*quiet, needed._replace(record=Record(k.pack(), ka, bytes(REST.size)))])
    first = still.engine.commands[0]
    assert (first.op, first.error, first.token, first.key) == (Op.RESTORE, 0, 5, k.pack())
    assert first.record is not None
    assert (first.record.id, len(first.record.ka), len(first.record.rest)) == (1, 36, 40)


def test_a_wake_up_that_fails_leaves_the_connection_idle_and_no_row_behind(still: Rig) -> None:
    k = still.asleep(1)
    back = event(EventType.TRANSITION, k, 1, from_state=State.SLEEP, to_state=State.IDLE, cause=Cause.SERVER_ATTACH)
    still.dispatcher.turn([back])
    until(lambda: still.store.sleeping_by_id(1) is None)
    assert still.dispatcher.counters.illegal == 0
    assert still.history() == [(1, "SLEEP", "IDLE", "server-attach")]


def test_a_record_that_is_not_there_is_answered_with_an_error(still: Rig) -> None:
    still.dispatcher.turn([event(EventType.NEED_RECORD, key(9))])
    assert [(c.op, c.error, c.record) for c in still.engine.commands] == [(Op.RESTORE, ENOENT, None)]
    assert still.dispatcher.counters.lost_records == 1


def test_a_record_that_cannot_be_read_is_tried_again_before_it_is_given_up(
    still: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = still.asleep(1)
    still.engine.commands.clear()
    read = still.store.read

    def fail(_keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        raise StoreError("locked")

    monkeypatch.setattr(still.store, "read", fail)
    still.dispatcher.turn([event(EventType.NEED_RECORD, k)])
    still.dispatcher.turn([])
    assert still.engine.commands == []
    monkeypatch.setattr(still.store, "read", read)
    still.dispatcher.turn([])
    assert [(c.op, c.error) for c in still.engine.commands] == [(Op.RESTORE, 0)]

    monkeypatch.setattr(still.store, "read", fail)
    monkeypatch.setattr(recall, "READ_PATIENCE_S", 0.0)
    still.dispatcher.turn([event(EventType.NEED_RECORD, k)])
    assert still.engine.commands[-1].error == EIO
    counters = still.dispatcher.counters
    assert (counters.lost_records, counters.unanswered) == (0, 1), "it is not lost"


def test_what_a_damaged_database_does_not_have_is_not_lost(still: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    k = still.asleep(1)
    still.engine.commands.clear()
    monkeypatch.setattr(recall, "READ_PATIENCE_S", 0.0)
    monkeypatch.setattr(still.store, "_damage", DamagedError("a page is missing"))
    still.dispatcher.turn([event(EventType.NEED_RECORD, number) for number in (k, key(9))])
    assert [(c.key, c.error) for c in still.engine.commands] == [(k.pack(), 0), (key(9).pack(), EIO)]
    still.dispatcher.turn([event(EventType.CANDIDATE, key(8))])
    assert (still.engine.commands[-1].op, still.engine.commands[-1].error) == (Op.CANDIDATE, EAGAIN)
    assert still.dispatcher.counters.lost_records == 0


def test_who_may_be_asleep_is_looked_up(still: Rig) -> None:
    k = still.asleep(1)
    still.engine.commands.clear()
    still.dispatcher.turn([event(EventType.CANDIDATE, k), event(EventType.CANDIDATE, key(9))])
    found, stranger = still.engine.commands
    assert (found.op, found.key, found.error) == (Op.CANDIDATE, k.pack(), 0)
    assert found.record is not None
    assert found.record.id == 1
    assert (stranger.op, stranger.key, stranger.error, stranger.record) == (Op.CANDIDATE, key(9).pack(), ENOENT, None)
    assert (still.dispatcher.counters.restored, still.dispatcher.counters.strangers) == (1, 1)


def test_who_may_be_asleep_is_not_who_closed_in_the_same_batch(still: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row is there still, and is about to be removed: a question for it is held until it is."""
    monkeypatch.setattr(recall, "LOOK_UP_AGAIN_MS", 0)
    k = still.asleep(1)
    still.engine.commands.clear()
    gone = event(EventType.TRANSITION, k, 1, from_state=State.SLEEP, to_state=State.CLOSED, cause=Cause.CLIENT_CLOSE)
    still.dispatcher.turn([gone, event(EventType.CANDIDATE, k)])
    assert still.engine.commands == []
    until(lambda: still.store.sleeping_by_id(1) is None and not still.store.status.pending_sleep)
    still.dispatcher.turn([])
    assert [(c.op, c.error) for c in still.engine.commands] == [(Op.CANDIDATE, ENOENT)]


def cannot_be_read(_keys: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes] | None]:
    raise StoreError("locked")


def test_while_the_database_cannot_be_read_who_may_be_asleep_waits_and_is_looked_up_when_it_can(
    still: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = still.asleep(1)
    still.engine.commands.clear()
    asleep = still.store.asleep
    monkeypatch.setattr(recall, "LOOK_UP_AGAIN_MS", 0)
    monkeypatch.setattr(still.store, "asleep", cannot_be_read)
    still.dispatcher.turn([event(EventType.CANDIDATE, k)])
    still.dispatcher.turn([event(EventType.CANDIDATE, k), event(EventType.CANDIDATE, key(9))])
    still.dispatcher.turn([])
    assert still.engine.commands == []
    monkeypatch.setattr(still.store, "asleep", asleep)
    still.dispatcher.turn([])
    assert [(c.key, c.error) for c in still.engine.commands] == [(k.pack(), 0), (key(9).pack(), ENOENT)]
    still.dispatcher.turn([])
    assert len(still.engine.commands) == 2, "and that is all"


def test_who_cannot_be_looked_up_for_so_long_is_given_up_with_the_reason(
    still: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    k = still.asleep(1)
    asleep = still.store.asleep
    monkeypatch.setattr(recall, "READ_PATIENCE_S", 0.0)
    monkeypatch.setattr(still.store, "asleep", cannot_be_read)
    for number in (1, 8, 9):
        still.dispatcher.turn([event(EventType.CANDIDATE, key(number))])
        assert (still.engine.commands[-1].op, still.engine.commands[-1].error) == (Op.CANDIDATE, EIO)
    assert still.dispatcher.counters.unanswered == 3
    monkeypatch.setattr(still.store, "asleep", asleep)
    still.dispatcher.turn([event(EventType.CANDIDATE, k)])
    assert still.engine.commands[-1].error == 0
    said = [line.getMessage() for line in caplog.records if "clients in SLEEP" in line.getMessage()]
    assert [line.split(": ")[-1] for line in said[:-1]] == ["locked"], "once, however many are wanted"
    assert "3 were looked for in vain" in said[-1]


def test_leaving_sleep_forgets_the_row_and_writes_history_once(rig: Rig) -> None:
    k = rig.asleep(1)
    rig.start()
    outcome = rig.dispatcher.command(Command(op=Op.WAKE, cause=Cause.COMMAND, key=k), [State.STANDBY], 5).result(5)
    assert outcome == Outcome(0, State.STANDBY, 1)
    until(lambda: not rig.store.sleeping_by_id(1))
    until(lambda: rig.history())
    assert rig.history() == [(1, "SLEEP", "STANDBY", "command")]


def test_a_row_that_the_outcome_of_a_command_leads_to_outlives_the_removal_of_the_one_before(still: Rig) -> None:
    """Awake and down again within one batch, and told to sleep at once: its new row is not taken for the old one."""
    k = still.asleep(1)
    done = still.dispatcher.command(Command(op=Op.IDLE, cause=Cause.COMMAND, id=1, key=k), [State.IDLE], 5)
    done.add_done_callback(lambda _: still.dispatcher.sleep(record(k, 1), 5))
    token = still.engine.commands[-1].token
    woke = event(EventType.TRANSITION, k, 1, from_state=State.SLEEP, to_state=State.ACTIVE, cause=Cause.CLIENT_DATA)
    froze = event(EventType.TRANSITION, k, 1, from_state=State.ACTIVE, to_state=State.IDLE, cause=Cause.COMMAND)
    still.dispatcher.turn([woke, froze._replace(token=token)])
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


@pytest.mark.parametrize(
    ("counter", "what"),
    {
        "table_full": "[table] idle",
        "wakes_refused": "could not wake",
        "stuck_reset": "reset",
        "handshakes_limited": "more than [limits] handshakes allows; the last one was 192.0.2.9",
        "clients_denied": 'new_clients = "refuse" is in force',
    }.items(),
)
def test_people_are_told_what_runs_short(still: Rig, caplog: pytest.LogCaptureFixture, counter: str, what: str) -> None:
    caplog.set_level(logging.INFO, "roost.dispatch")
    still.dispatcher.turn([])
    assert not caplog.text
    still.engine.counted[counter] = 3
    still.dispatcher._capacity._next_look = 0.0
    still.dispatcher.turn([])
    assert "3 times" in caplog.text
    assert what in caplog.text
    caplog.clear()
    still.dispatcher._capacity._next_look = 0.0
    still.dispatcher.turn([])
    assert not caplog.text, "once"


def test_people_are_told_once_an_hour_why_a_table_cannot_grow(still: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def said(version: int, error: int, now: float) -> str:
        caplog.clear()
        still.dispatcher._capacity.not_grown(version, error, now)
        return caplog.text

    still.dispatcher.turn([event(EventType.NOT_GROWN, key(1), 0, count=4, error=ENOBUFS)])
    assert "[table] ipv4 is nearly full and cannot grow: a quarter of the machine's memory" in caplog.text
    start = time.monotonic()
    assert not said(4, ENOBUFS, start + 30)
    assert "idle" in said(0, ENOBUFS, start + 30)
    assert "no table is larger" in said(4, EFBIG, start + 30)
    assert os.strerror(EAGAIN) in said(6, EAGAIN, start + 30)
    assert "ipv4" in said(4, ENOBUFS, start + 3700)


def test_a_transition_that_the_engine_refused_is_counted_and_named_and_not_written(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    refused = event(EventType.ILLEGAL, key(1), 1, from_state=State.SLEEP, to_state=State.IDLE, cause=Cause.QUIET)
    rig.dispatcher.turn([refused, rows(CAME_AND_WENT[0])])
    until(lambda: rig.history() == [(1, "NONE", "ACTIVE", "client-connect")])
    assert (rig.dispatcher.counters.transitions, rig.dispatcher.counters.illegal) == (1, 1)
    assert "illegal transition SLEEP -> IDLE by quiet: refused by the engine" in caplog.text
    assert [vars(line)[ABOUT]["connection"] for line in caplog.records if "illegal" in line.message] == [1]


def rows(*kinds: tuple[int, State, State, Cause]) -> Event:
    """The engine's event for transitions that no caller waits for, each of a connection number."""
    packed = [
        ROW.pack(n, 5, key(n).pack(), 1, source, to, cause, 64, 128, 0, NO_ENDS) for n, source, to, cause in kinds
    ]
    return event(EventType.ROWS, key(0), count=len(packed))._replace(rows=b"".join(packed))


CAME_AND_WENT = (
    (1, State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT),
    (2, State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT),
    (1, State.ACTIVE, State.CLOSED, Cause.CLIENT_CLOSE),
)


def test_clients_that_come_and_go_are_written_and_counted(rig: Rig) -> None:
    rig.dispatcher.turn([rows(*CAME_AND_WENT)])
    until(lambda: len(rig.history()) == 3)
    assert rig.history() == [
        (1, "NONE", "ACTIVE", "client-connect"),
        (2, "NONE", "ACTIVE", "client-connect"),
        (1, "ACTIVE", "CLOSED", "client-close"),
    ]
    assert (rig.dispatcher.states[State.ACTIVE], rig.dispatcher.states[State.CLOSED]) == (1, 1)
    assert (rig.dispatcher.counters.transitions, rig.dispatcher.counters.illegal) == (3, 0)
    written = rig.store.recent_history(1)[0]
    assert (written["client"], written["rx_bytes"], written["tx_bytes"]) == (key(1).client_text, 64, 128)


def test_many_that_come_and_go_are_waited_for_longer_and_few_are_not(rig: Rig) -> None:
    rig.start()
    rig.engine.say(rows(*[CAME_AND_WENT[0]] * BUSY_ROWS))
    until(lambda: rig.engine.patience_ms == BUSY_PATIENCE_MS)
    rig.engine.say(rows(CAME_AND_WENT[0]))
    until(lambda: rig.engine.patience_ms == PATIENCE_MS)


def test_who_listens_hears_all_transitions_in_their_order(still: Rig) -> None:
    heard: list[tuple[int, int, str, int]] = []

    def hear(transitions: Iterable[Event]) -> None:
        heard.extend((e.id, e.to_state, e.record.key.client_text, e.service) for e in transitions)

    still.dispatcher.listen(hear)
    asleep = event(EventType.TRANSITION, key(3), 3, from_state=State.STANDBY, to_state=State.IDLE, cause=Cause.QUIET)
    still.dispatcher.turn([rows(*CAME_AND_WENT[:2]), asleep, rows(CAME_AND_WENT[2])])
    assert heard == [
        (number, state, key(number).client_text, 1)
        for number, state in ((1, State.ACTIVE), (2, State.ACTIVE), (3, State.IDLE), (1, State.CLOSED))
    ]


def test_transitions_that_nobody_looks_at_stay_packed(still: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(packed: bytes) -> Iterator[Event]:
        raise AssertionError("it was unpacked")

    heard: list[bool] = []
    monkeypatch.setattr(turn, "transitions", unpacked)
    still.dispatcher.listen(lambda transitions: heard.append(True))
    still.dispatcher.turn([rows(*CAME_AND_WENT)])
    assert heard == [True]


def test_pressure_is_relieved_down_to_three_quarters(still: Rig) -> None:
    still.dispatcher.turn([event(EventType.PRESSURE, key(1), count=900)])
    assert [(c.op, c.count, c.cause) for c in still.engine.commands] == [(Op.PRESSURE, 150, Cause.PRESSURE)]


def test_sleepers_that_all_wake_at_once_are_pressure_too(still: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    still.dispatcher.states[State.ACTIVE] = 3000
    still.dispatcher.turn([])
    still.dispatcher.turn([])  # at once: those of the first relief are still on their way down
    monkeypatch.setattr(capacity, "RELIEF_EVERY_S", 0.0)
    still.dispatcher._capacity._next_relief = 0.0
    still.dispatcher.states[State.ACTIVE] = 1200
    still.dispatcher.turn([])
    still.dispatcher.states[State.ACTIVE] = 800
    still.dispatcher.turn([])
    assert [(c.op, c.count) for c in still.engine.commands] == [(Op.PRESSURE, 2250), (Op.PRESSURE, 450)]


def test_a_refusal_reaches_whoever_waits_for_it(rig: Rig) -> None:
    rig.start()
    unknown = Command(op=Op.CLOSE, cause=Cause.COMMAND, key=key(77))
    assert rig.dispatcher.command(unknown, [State.CLOSED], 5).result(5).error == ENOENT


def test_a_command_that_nobody_answers_ends_in_time(still: Rig) -> None:
    still.start()
    waiting = still.dispatcher.command(Command(op=Op.WAKE, cause=Cause.COMMAND, key=key(1)), [State.STANDBY], 0.1)
    assert waiting.result(5) == Outcome(ETIMEDOUT)


def test_saying_sleep_due_twice_does_not_lose_the_record_of_what_sleeps(rig: Rig) -> None:
    c = rig.engine.add(key(1), 1, State.IDLE)
    rig.start()
    rig.engine.say(event(EventType.SLEEP_DUE, c.key, 1))
    until(lambda: c.state is State.SLEEP)
    rig.engine.say(event(EventType.SLEEP_DUE, c.key, 1))
    until(lambda: rig.dispatcher.counters.refused == 1)
    rig.store.add([history_row(1, c.record.key_raw, 1, State.IDLE, State.SLEEP)])  # a turn of the writer later
    until(lambda: rig.store.status.written_history == 2)
    assert rig.store.sleeping_by_id(1)


def test_a_connection_put_back_that_is_due_to_sleep_at_once_does(rig: Rig) -> None:
    """A pair after a reboot is put back as IDLE, and its sleep may be due by the next sweep: one batch says both."""
    c = rig.engine.add(key(1), 1, State.IDLE)
    back = event(EventType.TRANSITION, c.key, 1, from_state=State.NONE, to_state=State.IDLE, cause=Cause.RESTORE)
    rig.dispatcher.turn([back, event(EventType.SLEEP_DUE, c.key, 1)])
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
        until(lambda: rig.dispatcher.counters.sleep_deferred == 1)
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
    burst = 2 * BATCH
    costs = []
    for start in range(0, len(events) - burst + 1, burst):
        began = time.thread_time()
        for at in range(start, start + burst, BATCH):
            still.dispatcher.turn(events[at : at + BATCH])
        costs.append((time.thread_time() - began) / burst)
    assert min(costs) < 50e-6, costs  # the other processes of a busy machine take its caches: they only add


def test_after_a_reboot_the_timestamp_clock_runs_on_and_times_are_the_new_boots() -> None:
    old = record(key(1), 5, active_ms=100_000, ts_offset=7)
    # Slept when CLOCK_MONOTONIC said 200 s; 60 s of wall clock later the new boot's says 10 s.
    then_offset, now_offset = 1_000_000 - 200_000, 1_060_000 - 10_000
    new = old.shifted(then_offset - now_offset, then_offset - now_offset)
    ka, rest = new.ka, new.rest
    tsval_then = 200_000 + KA.unpack(old.ka)[3]
    tsval_now = (10_000 + KA.unpack(ka)[3]) & 0xFFFFFFFF
    assert tsval_now - tsval_then == 60_000
    assert REST.unpack(rest)[:2] == (5, 0)
    assert KA.unpack(ka)[6:] == KA.unpack(old.ka)[6:]
    assert (len(ka), len(rest)) == (36, 40)


def test_the_record_parts_have_the_sizes_of_the_header() -> None:
    assert (KA.size, REST.size) == (KA_BYTES, REST_BYTES)
