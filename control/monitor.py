# SPDX-License-Identifier: Apache-2.0
"""The loop between engine and store: batches of events in, batches of commands out.

Nothing is kept here for a connection that is IDLE or SLEEP, and nothing for an awake one either: what the decision
needs stands in the event. What one batch costs is a few microseconds for each event, and the order inside of a batch
is by who waits:

    1. NEED_RECORD   a client or a server waits for the rebuilt socket: read the rows, answer, submit at once
    2. QUIET, SLEEP_DUE, PRESSURE   decisions
    3. TRANSITION, ROWS   history, counters, whoever waits for a token
    4. PERHAPS   somebody wants a connection that is in no table: look whether it has a row. After the transitions,
                 which may say that it has none any more

ROWS are transitions that ask for no decision, of clients that come and go, some thousand a second. The engine packs
them as the store keeps them, and nothing is done here for each of them.

A batch is small (BATCH), so that a record which is needed while a burst is worked off waits for one batch alone.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from errno import EAGAIN, EIO, ENOENT, ETIMEDOUT
from itertools import count
from typing import Final, Protocol

from appliance.engine import ROW, Command, Event, EventType, Key, Op, Record, transitions
from control import policy
from control.states import AWAKE, LEGAL, Cause, IllegalTransition, State
from control.store import records
from control.store.database import StoreError
from control.store.schema import HISTORY
from control.store.store import Committed, Store

log = logging.getLogger("roost.monitor")

BATCH: Final = 512
_PAIR_IS_BACK: Final = (State.NONE, State.IDLE, Cause.RESTORE)  # after a reboot
POLL_MS: Final = 200
PATIENCE_MS: Final = 20
"""How long events that nobody waits for gather. Python at work takes a processor from the clients that wake."""

BUSY_PATIENCE_MS: Final = 100
BUSY_ROWS: Final = 64
"""The same while so many transitions of clients that come and go are in a batch: they want the processor for more of
them, and a batch costs the same however many are in it."""

LOOK_EVERY_S: Final = 10
"""How often people are told that a table is full."""

READ_PATIENCE_S: Final = 5.0
"""How long a client that wants to wake waits for a database that cannot be read, before it is given up."""

LOOK_UP_AGAIN_MS: Final = 50
"""How often it is tried to find out who sleeps without a slot, while nobody can say."""

RELIEF_EVERY_S: Final = 0.5
"""Longer than a freeze with its grace period takes: the next relief must not count connections on their way down."""

GENERATION: Final = 1 << 63
"""Bit of the tokens of ROOST_OP_SLEEP: the rest of it is the generation of the row that was committed."""


if ROW.format != HISTORY.format:
    raise ImportError("the engine's rows of history are not the store's: rebuild the extension")

_FROM, _TO, _CAUSE = 54, 55, 56
"""Where they stand in a row."""

NOBODY: Final = 0
"""In place of a token: it goes to sleep by command, and nobody waits for the outcome."""


class EnginePort(Protocol):
    """What the monitor needs of appliance.engine.Engine; the tests bring a fake one."""

    def submit(self, commands: Sequence[Command]) -> None: ...
    def batch(self, max_events: int = 4096, timeout_ms: int = 200, patience_ms: int = 0) -> list[Event]: ...
    def wake(self) -> None: ...
    def list(self, born: bool = False, sleeping: bool = True) -> Iterator[Event]: ...
    def slots_in_sleep(self) -> int: ...
    def find(self, key: Key) -> Event | None: ...
    def find_client(self, address: bytes, port: int, local: bytes) -> Sequence[Event]: ...
    def states(self, keys: bytes) -> bytes: ...
    def stats(self) -> dict[str, int]: ...
    def find_peer(self, key: bytes) -> Record | None: ...
    def find_overrides(self, key: bytes, number: int) -> dict[str, int]: ...
    def find_class(self, key: bytes) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: error is 0 or an errno; state is where the connection is then."""

    error: int
    state: int = int(State.NONE)
    id: int = 0


@dataclass(slots=True)
class Counters:
    """Counted since the daemon's start."""

    transitions: int = 0
    illegal: int = 0
    refused: int = 0
    restored: int = 0
    lost_records: int = 0
    strangers: int = 0
    unanswered: int = 0
    """Who may sleep without a slot, and could not be looked up in READ_PATIENCE_S."""
    sleep_deferred: int = 0
    batches: int = 0


@dataclass(slots=True)
class _Waiter:
    future: Future[Outcome]
    states: frozenset[int]
    deadline: float


class Transitions:
    """Those of one batch, in order, for whoever looks at them: most batches are of interest to nobody."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[Event | bytes] = []

    def add(self, part: Event | bytes) -> None:
        """One, or some that are packed as ROW."""
        self._parts.append(part)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __iter__(self) -> Iterator[Event]:
        for part in self._parts:
            if isinstance(part, bytes):
                yield from transitions(part)
            else:
                yield part


@dataclass(slots=True)
class _Turn:
    """What one batch of events adds up to."""

    commands: list[Command] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    upserts: list[tuple[bytes, bytes]] = field(default_factory=list)
    deletes: list[tuple[bytes, int]] = field(default_factory=list)
    stale: list[tuple[bytes, int]] = field(default_factory=list)
    transitions: Transitions = field(default_factory=Transitions)
    perhaps: list[Event] = field(default_factory=list)
    outcomes: list[tuple[int, Outcome, int | None]] = field(default_factory=list)
    """Arguments of _resolve. Whoever waits for one may queue a new row at once, and must find the old one's removal in
    the queue: after it, that removal would take the new row of the same connection away."""


class Monitor:
    """The loop. `run` belongs to one thread; everything else may be called from any. `persistent`: the services, by
    index, whose connections sleep together with their server's leg."""

    def __init__(
        self,
        engine: EnginePort,
        store: Store,
        max_awake: int,
        on_fatal: Callable[[str], None] = lambda reason: None,
        persistent: Container[int] = (),
    ) -> None:
        self._engine = engine
        self._store = store
        self._max_awake = max_awake
        self._on_fatal = on_fatal
        self._persistent = persistent
        self.server_down: Callable[[Event], None] = lambda event: None
        """Told of each EventType.SERVER_DOWN, in the monitor's thread."""
        self.counters = Counters()
        self.states = [0] * len(State)
        """How many connections are in each state, by its number."""
        self._tokens = count(1)
        self._waiters: dict[int, _Waiter] = {}
        self._waiters_lock = threading.Lock()
        self._sleep_tokens: dict[bytes, int] = {}
        self._inserting: dict[bytes, Record] = {}
        self._handlers: dict[int, Callable[[Event], None]] = {}
        self._listeners: tuple[Callable[[Iterable[Event]], None], ...] = ()
        self._unread: dict[bytes, tuple[Event, float]] = {}
        self._asked: dict[bytes, float] = {}
        """Who may sleep without a slot, and until when it is tried to find out."""
        self._next_look_up = 0.0
        self._looks_in_vain = False
        self._unanswered = 0
        self._stopping = False
        self._askers: deque[threading.Event] = deque()
        self._next_expiry = 0.0
        self._next_relief = 0.0
        self._next_look = 0.0
        self._full = 0
        self._classes_full = False
        self._patience_ms = PATIENCE_MS

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `stop`, or until the engine ends."""
        try:
            while not self._stopping:
                askers = [self._askers.popleft() for _ in range(len(self._askers))]
                poll_ms = LOOK_UP_AGAIN_MS if self._asked else POLL_MS
                events = self._engine.batch(BATCH, *((0, 0) if askers else (poll_ms, self._patience_ms)))
                self.turn(events)
                while askers and len(events) == BATCH:
                    self.turn(events := self._engine.batch(BATCH, 0))
                for asker in askers:
                    asker.set()
        except Exception as error:
            log.exception("the monitor ended")
            self._on_fatal(f"monitor: {type(error).__name__}: {error}")

    def catch_up(self, timeout_s: float = 0.5) -> None:
        """Wait until all that the engine has said by now is worked off: who asks for numbers shall get today's."""
        asker = threading.Event()
        self._askers.append(asker)
        self._engine.wake()
        asker.wait(timeout_s)

    def stop(self) -> None:
        """Let `run` return."""
        self._stopping = True
        self._engine.wake()

    def drain(self) -> None:
        """Take what the stopped engine still has to say. Only when `run` has returned."""
        while events := self._engine.batch(BATCH, 0):
            self.turn(events)

    def turn(self, events: Sequence[Event]) -> None:
        """Work off one batch (it may be empty: clocks are looked at)."""
        now = time.monotonic()
        needed = [event for event in events if event.type == EventType.NEED_RECORD]
        if self._unread:
            needed += [event for event, _ in self._unread.values()]
        if needed:
            self._restore(needed, now)
        turn = _Turn()
        for event in events:
            kind = event.type
            if kind == EventType.TRANSITION:
                self._transition(event, turn)
            elif kind == EventType.ROWS:
                self._rows(event.rows, turn)
            elif kind == EventType.QUIET:
                if (op := policy.when_quiet(event.from_state, event.service in self._persistent)) is not None:
                    turn.commands.append(Command(op=op, cause=Cause.QUIET, id=event.id))
            elif kind == EventType.SLEEP_DUE:
                self._sleep_due(event, turn)
            elif kind == EventType.PERHAPS:
                turn.perhaps.append(event)
            elif kind == EventType.REFUSED:
                self._refused(event, turn)
            elif kind == EventType.PRESSURE:
                self._relieve(event.count, turn, now)
            elif kind == EventType.SERVER_DOWN:
                self.server_down(event)
            elif kind == EventType.DONE:
                turn.outcomes.append((event.token, Outcome(0, event.to_state, event.id), None))
            elif kind in self._handlers:
                self._handle(event)
            elif kind == EventType.FATAL:
                reason = f"engine: {os.strerror(event.error)}"
                log.critical("%s", reason)
                self._stopping = True
                self._on_fatal(reason)
        # The engine says it once, when clients connect. Sleeping ones that all wake at once must go down again, too,
        # and a relief that found most of them busy must be followed by another.
        awake = sum(self.states[state] for state in AWAKE)
        if now >= self._next_relief and policy.under_pressure(awake, self._max_awake):
            self._relieve(awake, turn, now)
        if turn.commands:
            self._engine.submit(turn.commands)
        if turn.rows or turn.upserts or turn.deletes or turn.stale:
            self._store.add(turn.rows, turn.upserts, turn.deletes, turn.stale)
        if turn.perhaps or (self._asked and now >= self._next_look_up):
            self._look_up([event.record.key_raw for event in turn.perhaps], now)
        for outcome in turn.outcomes:
            self._resolve(*outcome)
        if turn.transitions:
            self._tell(turn.transitions)
        self.counters.batches += 1
        self._patience_ms = BUSY_PATIENCE_MS if len(turn.rows) >= BUSY_ROWS else PATIENCE_MS
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S
            self._look_for_full_tables()
        if now >= self._next_expiry:
            self._next_expiry = now + 0.2
            self._expire(now)

    def _look_for_full_tables(self) -> None:
        stats = self._engine.stats()
        full, before = stats.get("table_full", 0), self._full
        self._full = full
        if stats.get("classes_full", 0) and not self._classes_full:
            self._classes_full = True
            log.error(
                "in-band requests are refused: connections have set as many different intervals as there is room for; "
                "let them use fewer (`roost status` counts `classes_full`)"
            )
        if full > before:
            log.error(
                "%d times in the last %d s a connection could not fall asleep, or wake: a table is full; give [table] "
                "idle, ipv4 or ipv6 more room (`roost status` shows how full they are)", full - before, LOOK_EVERY_S
            )  # fmt: skip

    def _relieve(self, awake: int, turn: _Turn, now: float) -> None:
        self._next_relief = now + RELIEF_EVERY_S
        relief = policy.relief(awake, self._max_awake)
        turn.commands.append(Command(op=Op.PRESSURE, cause=Cause.PRESSURE, count=relief))

    # -- events -------------------------------------------------------------------------------------------------------

    def _restore(self, needed: list[Event], now: float) -> None:
        keys = [event.record.key_raw for event in needed]
        commands: list[Command] = []
        try:
            rows = self._store.read(keys)
        except StoreError as error:
            # Perhaps locked for a moment: the client's packet is held meanwhile, so patience costs it nothing.
            for event in needed:
                key = event.record.key_raw
                deadline = self._unread.get(key, (event, now + READ_PATIENCE_S))[1]
                if now < deadline:
                    self._unread[key] = (event, deadline)
                    continue
                self._unread.pop(key, None)
                self.counters.lost_records += 1
                log.error("%s cannot wake: %s", event.record.key.client_text, error)
                commands.append(_restore_command(event, None, EIO))
        else:
            self._unread.clear()
            for event, packed in zip(needed, keys, strict=True):
                row = rows.get(packed)
                if row is None:
                    self.counters.lost_records += 1
                    log.error("%s cannot wake: the store has no record of it", event.record.key.client_text)
                    commands.append(_restore_command(event, None, ENOENT))
                else:
                    self.counters.restored += 1
                    commands.append(_restore_command(event, records.unpack(packed, row[0] + row[1]), 0))
        if commands:
            self._engine.submit(commands)

    def _look_up(self, asked: list[bytes], now: float) -> None:
        """Answer for these, and for those about whom nobody could say anything before. Whoever wants them is held by
        the engine meanwhile."""
        if now >= self._next_look_up:
            asked = list(dict.fromkeys([*self._asked, *asked]))
            self._next_look_up = now + LOOK_UP_AGAIN_MS / 1000
        rows: Mapping[bytes, tuple[bytes, bytes] | None] = {}
        why = ""
        try:
            rows = self._store.asleep(asked)
        except StoreError as reason:
            why = str(reason)
        self._tell_of_looks_in_vain(why)
        commands = []
        for key in asked:
            if key not in rows and now < self._asked.setdefault(key, now + READ_PATIENCE_S):
                continue
            self._asked.pop(key, None)
            row = rows.get(key)
            record = records.unpack(key, row[0] + row[1]) if row is not None else None
            error = 0 if row is not None else ENOENT if key in rows else EIO if why else EAGAIN
            self.counters.restored += not error
            self.counters.strangers += error == ENOENT
            self.counters.unanswered += error in (EIO, EAGAIN)
            commands.append(Command(op=Op.PERHAPS, key=key, record=record, error=error))
        if commands:
            self._engine.submit(commands)

    def _tell_of_looks_in_vain(self, why: str) -> None:
        """Once when it begins, and once when it is over: a flood can have any number of them asked for."""
        if why and not self._looks_in_vain:
            log.error("who sleeps without a slot cannot be woken now, and is held for %g s: %s", READ_PATIENCE_S, why)
            self._unanswered = self.counters.unanswered
        elif not why and self._looks_in_vain:
            given_up = self.counters.unanswered - self._unanswered
            log.warning("who sleeps without a slot can be woken again; %d were looked for in vain", given_up)
        self._looks_in_vain = bool(why)

    def _transition(self, event: Event, turn: _Turn) -> None:
        source, target = event.from_state, event.to_state
        if (source, target, event.cause) not in LEGAL:
            self._illegal(event)
        self._count(source, target, 1)
        record = event.record
        packed = record.key_raw
        turn.rows.append(
            HISTORY.pack(
                event.id,
                event.at_ms,
                packed,
                record.service,
                source,
                target,
                event.cause,
                event.rx_bytes,
                event.tx_bytes,
                event.gap_ms,
            )
        )
        if source == State.SLEEP or (source, target, event.cause) == _PAIR_IS_BACK:
            turn.deletes.append((packed, event.id))
        elif source == State.IDLE and self._sleep_tokens.get(packed) == NOBODY:
            del self._sleep_tokens[packed]  # if it was woken, that request is over
        if self._listeners:
            turn.transitions.add(event)
        if event.token:
            turn.outcomes.append((event.token, Outcome(0, target, event.id), target))

    def _rows(self, rows: bytes, turn: _Turn) -> None:
        size = ROW.size
        kinds = Counter(zip(rows[_FROM::size], rows[_TO::size], rows[_CAUSE::size], strict=True))
        for (source, target, _), times in kinds.items():
            self._count(source, target, times)
        if not kinds.keys() <= LEGAL:
            for event in transitions(rows):
                if (event.from_state, event.to_state, event.cause) not in LEGAL:
                    self._illegal(event)
        turn.rows.extend(rows[at : at + size] for at in range(0, len(rows), size))
        if self._listeners:
            turn.transitions.add(rows)

    def _count(self, source: int, target: int, times: int) -> None:
        self.counters.transitions += times
        self.states[source] -= times
        self.states[target] += times

    def _illegal(self, event: Event) -> None:
        self.counters.illegal += 1
        log.error("connection %d: %s", event.id, IllegalTransition(event.from_state, event.to_state, event.cause))

    def _sleep_due(self, event: Event, turn: _Turn) -> None:
        record = event.record
        if not self._store.sleep_allowed:
            self.counters.sleep_deferred += 1  # the engine says it again later
            return
        if event.cause == Cause.COMMAND:
            self._sleep_tokens.setdefault(record.key_raw, NOBODY)
        if (row := self._packed(record)) is not None:
            turn.upserts.append((record.key_raw, row))

    def _packed(self, record: Record) -> bytes | None:
        """For its row, the server's leg of a pair included: after a reboot the table knows neither. None: it is not
        IDLE any more, and the row that there may be is better."""
        if record.paired:
            record.peer = self._engine.find_peer(record.key_raw)
            if record.peer is None:
                return None
        return records.pack(record)

    def _refused(self, event: Event, turn: _Turn) -> None:
        self.counters.refused += 1
        key = event.record.key_raw
        if event.op == Op.SLEEP:
            # It woke between the commit and the command, and the row is of no use; or SLEEP_DUE was said twice and it
            # sleeps already, by this very row. Which of the two, the engine knows. Should it wake, freeze and sleep
            # again before the row is removed, then by a row of a later generation, which stays.
            now = self._engine.find(event.record.key)
            if now is None or now.to_state != State.SLEEP:
                turn.stale.append((key, event.token & ~GENERATION))
        elif event.op == Op.INSERT:
            # After a reboot: the client has connected again from the same port, so the old connection is gone; or the
            # table is full, and nobody answers for it.
            log.warning("%s: not put back: %s", event.record.key.client_text, os.strerror(event.error))
            turn.rows.append(history_row(event.record, State.SLEEP, State.CLOSED, number=event.id))
            turn.deletes.append((key, event.id))
        if event.token:
            turn.outcomes.append((event.token, Outcome(event.error or EIO, event.from_state, event.id), None))

    def slept(self, committed: list[Committed]) -> None:
        """These rows are committed: only now may the engine forget the records. Store's
        callback."""
        commands = []
        for packed, number, generation, blob in committed:
            if self._inserting and (record := self._inserting.pop(packed, None)) is not None:
                insert = Command(op=Op.INSERT, cause=Cause.RESTORE, id=number, key=packed, record=record)
                commands.append(insert)
                continue
            token, cause = GENERATION | generation, Cause.QUIET
            if self._sleep_tokens and (asked := self._sleep_tokens.pop(packed, None)) is not None:
                cause = Cause.COMMAND
                with self._waiters_lock:
                    if (waiter := self._waiters.pop(asked, None)) is not None:
                        self._waiters[token] = waiter
            record = records.unpack(packed, blob)
            commands.append(Command(op=Op.SLEEP, cause=cause, id=number, key=packed, record=record, token=token))
        for start in range(0, len(commands), BATCH):
            self._engine.submit(commands[start : start + BATCH])

    def insert(self, found: Sequence[Record]) -> None:
        """Put sleeping records back into the table after a reboot: their rows are rewritten for this boot first."""
        packed = [(record.key_raw, record) for record in found]
        self._inserting.update(packed)
        self._store.add(upserts=[(key, records.pack(record)) for key, record in packed])

    @property
    def inserting(self) -> int:
        """How many records of `insert` wait for their rows."""
        return len(self._inserting)

    # -- commands with an answer --------------------------------------------------------------------------------------

    def command(
        self, command: Command, states: Iterable[State], timeout_s: float, first: Sequence[Command] = ()
    ) -> Future[Outcome]:
        """Submit a command; the future is done when its connection reaches one of `states`, or it is refused, or
        after timeout_s (ETIMEDOUT). first: commands that are carried out right before, whose outcome nobody hears."""
        waiter = self._expect(states, timeout_s)
        command.token = waiter[0]
        self._engine.submit([*first, command])
        return waiter[1]

    def sleep(self, record: Record, timeout_s: float) -> Future[Outcome]:
        """Put an IDLE connection to sleep by command: its row is written first."""
        token, future = self._expect([State.SLEEP], timeout_s)
        packed = record.key_raw
        if (row := self._packed(record)) is None:
            self._resolve(token, Outcome(EAGAIN), None)
            return future
        self._sleep_tokens[packed] = token
        self._store.add(upserts=[(packed, row)])
        return future

    def _expect(self, states: Iterable[State], timeout_s: float) -> tuple[int, Future[Outcome]]:
        future: Future[Outcome] = Future()
        with self._waiters_lock:
            token = next(self._tokens)
            wanted = frozenset(int(state) for state in states)
            self._waiters[token] = _Waiter(future, wanted, time.monotonic() + timeout_s)
        return token, future

    def _resolve(self, token: int, outcome: Outcome, state: int | None) -> None:
        with self._waiters_lock:
            waiter = self._waiters.get(token)
            # Going down takes several transitions; the one that was asked for is the answer, CLOSED always is one.
            if waiter is None or (state is not None and state not in waiter.states and state != State.CLOSED):
                return
            del self._waiters[token]
        if waiter.future.set_running_or_notify_cancel():
            waiter.future.set_result(outcome)

    def _expire(self, now: float) -> None:
        with self._waiters_lock:
            late = [token for token, waiter in self._waiters.items() if waiter.deadline <= now]
            waiters = [self._waiters.pop(token) for token in late]
        gone = set(late)
        for packed in [packed for packed, token in list(self._sleep_tokens.items()) if token in gone]:
            self._sleep_tokens.pop(packed, None)
        for waiter in waiters:
            if waiter.future.set_running_or_notify_cancel():
                waiter.future.set_result(Outcome(ETIMEDOUT))

    # -- listeners ----------------------------------------------------------------------------------------------------

    def handle(self, kind: EventType, handler: Callable[[Event], None]) -> None:
        """Let `handler` have the events of a kind that is not the monitor's, in the monitor's thread: it may not
        block."""
        self._handlers[kind] = handler

    def _handle(self, event: Event) -> None:
        try:
            self._handlers[event.type](event)
        except Exception:
            log.exception("connection %d: event %d was not handled", event.id, event.type)

    def listen(self, listener: Callable[[Iterable[Event]], None]) -> Callable[[], None]:
        """Call `listener` with each batch of transitions, in the monitor's thread; returns how to end it."""
        self._listeners += (listener,)

        def end() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return end

    def _tell(self, batch: Transitions) -> None:
        for listener in self._listeners:
            try:
                listener(batch)
            except Exception:  # a listener's defect must not stop the loop that wakes clients
                log.exception("a listener failed")


def _restore_command(event: Event, record: Record | None, error: int) -> Command:
    return Command(
        op=Op.RESTORE,
        cause=event.cause,
        key=event.record.key_raw,
        record=record,
        error=error,
        id=record.id if record else event.id,
        token=event.token,
    )


def history_row(
    record: Record, source: State, target: State, cause: Cause = Cause.RESTORE, number: int | None = None
) -> bytes:
    """A packed row of history for a transition that the engine has not reported."""
    identity = record.id if number is None else number
    at_ms = time.time_ns() // 1_000_000
    return HISTORY.pack(identity, at_ms, record.key_raw, record.service, source, target, cause, 0, 0, 0)
