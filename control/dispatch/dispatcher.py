# SPDX-License-Identifier: Apache-2.0
"""The loop between engine and store: batches of events in, batches of commands out.

Nothing is kept here for a connection that is IDLE or SLEEP, and nothing for an awake one either: what the decision
needs stands in the event. What one batch costs is a few microseconds for each event, and the order inside of a batch
is by what waits for the answer:

    1. NEED_RECORD   a client or a server waits for the rebuilt socket: read the rows, answer, submit at once
    2. QUIET, SLEEP_DUE, PRESSURE   decisions
    3. TRANSITION, ROWS   history, counters, the outcomes of commands
    4. CANDIDATE   a connection is wanted that is in no table: look whether it has a row. After transitions, by which
                 that row may be about to be removed

ROWS are transitions that ask for no decision, of clients that come and go, some thousand a second. The engine packs
them as the store keeps them, and nothing is done here for each of them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future
from errno import EIO
from typing import Final

from appliance.wire import ROW, Command, Event, EventType, Op, Record
from control.core.logs import about
from control.core.ports import BATCH, EnginePort, Listener, Outcome, Outcomes
from control.core.states import AWAKE, Cause, State, transition_text
from control.dispatch.capacity import Capacity
from control.dispatch.recall import LOOK_UP_AGAIN_MS, Recall
from control.dispatch.sleepers import Sleepers
from control.dispatch.turn import Counters, Transitions, Turn
from control.dispatch.waiters import Waiters
from control.policy import decisions
from control.store.schema import HISTORY
from control.store.store import Store

log = logging.getLogger("roost.dispatch")

_PAIR_IS_BACK: Final = (State.NONE, State.IDLE, Cause.RESTORE)  # after a reboot
POLL_MS: Final = 200
PATIENCE_MS: Final = 20
"""How long events that are not waited for gather. Python at work takes a processor from the clients that wake."""

BUSY_PATIENCE_MS: Final = 100
BUSY_ROWS: Final = 64
"""The same while so many transitions of clients that come and go are in a batch: they want the processor for more of
them, and a batch costs the same however many are in it."""

EXPIRE_EVERY_S: Final = 0.2

_FROM, _TO, _CAUSE = 54, 55, 56
"""Where they stand in a row."""


class Dispatcher:
    """`run` belongs to one thread; everything else may be called from any. `persistent`: the services, by index, whose
    connections sleep together with their server's leg."""

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
        self._on_fatal = on_fatal
        self._persistent = persistent
        self.counters = Counters()
        self.states = [0] * len(State)
        """How many connections are in each state, by its number."""
        self._waiters = Waiters()
        self._recall = Recall(engine, store, self.counters)
        self.sleepers = Sleepers(engine, store, self._waiters, self.counters)
        self._capacity = Capacity(engine, max_awake)
        self._handlers: dict[int, Callable[[Event], None]] = {EventType.PUT_BACK: self._put_back}
        self._listeners: tuple[Listener, ...] = ()
        self._stopping = False
        self._askers: deque[threading.Event] = deque()
        self._next_expiry = 0.0
        self._patience_ms = PATIENCE_MS

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `stop`, or until the engine ends."""
        try:
            while not self._stopping:
                askers = [self._askers.popleft() for _ in range(len(self._askers))]
                poll_ms = LOOK_UP_AGAIN_MS if self._recall.looking_up else POLL_MS
                events = self._engine.batch(BATCH, *((0, 0) if askers else (poll_ms, self._patience_ms)))
                self.turn(events)
                while askers and len(events) == BATCH:
                    self.turn(events := self._engine.batch(BATCH, 0))
                for asker in askers:
                    asker.set()
        except Exception as error:
            log.exception("the dispatcher ended")
            self._on_fatal(f"dispatcher: {type(error).__name__}: {error}")

    def catch_up(self, timeout_s: float = 0.5) -> None:
        """Wait until all that the engine has said by now is worked off: numbers that are asked for are today's."""
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
        self._recall.restore([event for event in events if event.type == EventType.NEED_RECORD], now)
        turn = Turn()
        for event in events:
            self._take(event, turn, now)
        awake = sum(self.states[state] for state in AWAKE)
        if (relief := self._capacity.relief_due(awake, now)) is not None:
            turn.commands.append(relief)
        if turn.commands:
            self._engine.submit(turn.commands)
        if turn.rows or turn.upserts or turn.deletes or turn.stale:
            self._store.add(turn.rows, turn.upserts, turn.deletes, turn.stale)
        self._recall.look_up(turn.candidates, now)
        for outcome in turn.outcomes:
            self._waiters.resolve(*outcome)
        if turn.transitions:
            self._tell(turn.transitions)
        self.counters.batches += 1
        busy = sum(map(len, turn.rows)) >= BUSY_ROWS * ROW.size
        self._patience_ms = BUSY_PATIENCE_MS if busy else PATIENCE_MS
        self._capacity.look(now)
        if now >= self._next_expiry:
            self._next_expiry = now + EXPIRE_EVERY_S
            self.sleepers.expire(self._waiters.expire(now))

    # -- events -------------------------------------------------------------------------------------------------------

    def _take(self, event: Event, turn: Turn, now: float) -> None:
        kind = event.type
        if kind == EventType.TRANSITION:
            self._transition(event, turn)
        elif kind == EventType.ROWS:
            self._rows(event.rows, turn)
        elif kind == EventType.QUIET:
            if (op := decisions.when_quiet(event.from_state, event.service in self._persistent)) is not None:
                turn.commands.append(Command(op=op, cause=Cause.QUIET, id=event.id))
        elif kind == EventType.SLEEP_DUE:
            self.sleepers.due(event, turn)
        elif kind == EventType.CANDIDATE:
            turn.candidates.append(event.record.key_raw)
        elif kind == EventType.REFUSED:
            self.counters.refused += 1
            self.sleepers.refused(event, turn)
            if event.token:
                turn.outcomes.append((event.token, Outcome(event.error or EIO, event.from_state, event.id), None))
        elif kind == EventType.PRESSURE:
            turn.commands.append(self._capacity.relieve(event.count, now))
        elif kind == EventType.NOT_GROWN:
            self._capacity.not_grown(event.count, event.error, now)
        elif kind == EventType.ILLEGAL:
            self._illegal(event)
        elif kind == EventType.DONE:
            turn.outcomes.append((event.token, Outcome(0, event.to_state, event.id), None))
        elif kind in self._handlers:
            self._handle(event)
        elif kind == EventType.FATAL:
            reason = f"engine: {os.strerror(event.error)}"
            log.critical("%s", reason)
            self._stopping = True
            self._on_fatal(reason)

    def _transition(self, event: Event, turn: Turn) -> None:
        source, target = event.from_state, event.to_state
        self._count(source, target, 1)
        record = event.record
        packed = record.key_raw
        reference = event.reference
        turn.rows.append(
            HISTORY.pack(
                reference,
                event.at_ms,
                packed,
                record.service,
                source,
                target,
                event.cause,
                event.rx_bytes,
                event.tx_bytes,
                event.gap_ms,
                event.ends,
            )
        )
        if source == State.SLEEP or (source, target, event.cause) == _PAIR_IS_BACK:
            turn.deletes.append((packed, reference))
        elif source == State.IDLE:
            self.sleepers.left_idle(packed)
        if self._listeners:
            turn.transitions.add(event)
        if event.token:
            turn.outcomes.append((event.token, Outcome(0, target, event.id), target))

    def _rows(self, rows: bytes, turn: Turn) -> None:
        size = ROW.size
        kinds = Counter(zip(rows[_FROM::size], rows[_TO::size], rows[_CAUSE::size], strict=True))
        for (source, target, _), times in kinds.items():
            self._count(source, target, times)
        turn.rows.append(rows)
        if self._listeners:
            turn.transitions.add(rows)

    def _count(self, source: int, target: int, times: int) -> None:
        self.counters.transitions += times
        self.states[source] -= times
        self.states[target] += times

    def _put_back(self, event: Event) -> None:
        self.states[State.SLEEP] += event.count

    def _illegal(self, event: Event) -> None:
        self.counters.illegal += 1
        what = transition_text(event.from_state, event.to_state, event.cause)
        log.error("illegal transition %s: refused by the engine, which ends the connection", what,
                  extra=about(connection=event.id, client=event.record.key))  # fmt: skip

    # -- commands with an answer --------------------------------------------------------------------------------------

    def command(
        self, command: Command, states: Iterable[State], timeout_s: float, first: Sequence[Command] = ()
    ) -> Future[Outcome]:
        """Submit a command; the future is done when its connection reaches one of `states`, or it is refused, or
        after timeout_s (ETIMEDOUT). first: commands that are carried out right before, whose outcome is not heard."""
        command.token, future = self._waiters.expect(states, timeout_s)
        self._engine.submit([*first, command])
        return future

    def sleep(self, record: Record, timeout_s: float) -> Future[Outcome]:
        """Put an IDLE connection to sleep by command: its row is written first."""
        return self.sleepers.sleep(record, timeout_s)

    def count(self, states: Iterable[State]) -> Outcomes:
        """Count how commands end that have the token of this, in one of `states` or otherwise."""
        return self._waiters.count(states)

    def uncount(self, outcomes: Outcomes) -> None:
        """Count no more."""
        self._waiters.uncount(outcomes)
        self.sleepers.expire({outcomes.token})

    def command_many(self, op: Op, keys: Sequence[bytes], outcomes: Outcomes) -> None:
        """Submit the same command for the connections with these packed keys."""
        self._engine.submit_many(op, Cause.COMMAND, keys=keys, token=outcomes.token)

    def sleep_many(self, records: Sequence[Record], outcomes: Outcomes) -> None:
        """Put IDLE connections to sleep: their rows are written first."""
        self.sleepers.sleep_many(records, outcomes)

    # -- listeners ----------------------------------------------------------------------------------------------------

    def handle(self, kind: EventType, handler: Callable[[Event], None]) -> None:
        """Let `handler` have the events of a kind that is not the dispatcher's, in the dispatcher's thread: it may not
        block."""
        self._handlers[kind] = handler

    def _handle(self, event: Event) -> None:
        try:
            self._handlers[event.type](event)
        except Exception:
            log.exception("event %d was not handled", event.type, extra=about(connection=event.id))

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each batch of transitions, in the dispatcher's thread; returns how to end it."""
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
