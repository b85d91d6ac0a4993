# SPDX-License-Identifier: Apache-2.0
"""Jobs: what Moving does to one connection, done to all that are wanted, so many a second.

Several threads carry them out, of one who asks one after the other. What a job comes upon is worked off in parts, and
how each connection fares is counted. Jobs end with the daemon, and go on in no other; and with the token that asked for
them.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from appliance.wire import Event, Op
from control.clients.locate import Locator
from control.clients.moving import refusal_text
from control.clients.scope import SCOPE
from control.clients.view import View, Wanted
from control.core.errors import OperationError
from control.core.logs import about
from control.core.ports import EnginePort, ManyPort, Outcomes
from control.core.states import AWAKE, INACTIVE, State
from control.store.database import StoreError, reason
from control.store.store import Store

log = logging.getLogger("roost.clients")

_Known = tuple[bytes, int]
"""A connection's key, and its number as far as it is known, or 0: a later connection may have the same key."""

_Listed = TypeVar("_Listed", Event, _Known)
"""What a job is to act upon: as it was listed, or was looked up by its name."""

RATE: Final = 1000
RATE_MAX: Final = 100_000
"""Connections a second: where it is not said, and at most."""

LISTED_MAX: Final = 10_000
"""Connections that a job may name one by one."""

WORKERS: Final = 4
SCOPED_WORKERS: Final = 3
"""Jobs at a time, of all, and of those in a scope (scope.py): these may be many servers', and take hours."""

JOBS_MAX: Final = 64
SCOPED_MAX: Final = 48
JOBS_EACH: Final = 8
"""Jobs that have not ended, of all, of those in a scope, and of one who asks."""

KEPT: Final = 100
"""Jobs that have ended."""

PART_S: Final = 0.002
PART_MAX: Final = 64
"""What is worked off at once: as many as go within so long, but no more than that. Clients that wake wait for it."""

UNSETTLED_MAX: Final = 4096
"""Connections of which it is not known yet how they fared; more of them wait."""

TOKEN_S: Final = 1.0
"""How often it is looked whether the token that asked for a job is good still."""

PATIENCE_S: Final = 10.0
LOOK_S: Final = 0.02
"""How long nothing may be heard of any of them, and how often it is looked."""

TOLD: Final = 10
"""Names of a job that nothing was found for, which are told one by one."""


class _Step(NamedTuple):
    """What is done to connections in some states. op None: their rows are written, and they go to SLEEP."""

    sources: frozenset[State]
    op: Op | None
    targets: frozenset[State]


def _step(sources: Iterable[State], op: Op | None, *targets: State) -> _Step:
    return _Step(frozenset(sources), op, frozenset(targets))


_TO_IDLE: Final = _step(AWAKE, Op.IDLE, State.IDLE)

ACTIONS: Final[Mapping[str, Sequence[_Step]]] = MappingProxyType({
    "standby": [_step([State.ACTIVE], Op.STANDBY, State.STANDBY)],
    "idle": [_TO_IDLE],
    "sleep": [_TO_IDLE, _step([State.IDLE], None, State.SLEEP)],
    "wake": [_step(INACTIVE, Op.WAKE, State.STANDBY, State.ACTIVE)],
    "close": [_step([*AWAKE, *INACTIVE], Op.CLOSE, State.CLOSED)],
})  # fmt: skip
"""What the steps are, one after the other."""


class Stage(StrEnum):
    """Of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True)
class Job:
    """One. told: what was asked for, as it is shown. by_token: `who` is the name of a token, of which it is looked at
    `look_s` next whether it is good still. names: its connections, one by one, in place of `wanted`. scope: whose job
    it is (control/clients/scope.py). unchanged: of those that it names, those that were there already.
    outcomes: of each step. missing: the first names that nothing was found for, of `missed`."""

    number: int
    action: str
    rate: int
    told: Mapping[str, Any]
    who: str
    by_token: bool
    wanted: Wanted
    names: Sequence[str]
    scope: frozenset[str] | None
    asked_at_ms: int
    stage: Stage = Stage.WAITING
    began_at_ms: int | None = None
    ended_at_ms: int | None = None
    error: str | None = None
    unchanged: int = 0
    outcomes: list[Outcomes] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    missed: int = 0
    look_s: float = 0.0
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def ended(self) -> bool:
        return self.ended_at_ms is not None

    def shown(self) -> dict[str, Any]:
        """As the API has it. Where an action takes two steps, what has done the first one is found again by the second,
        and is done by that."""
        steps, refused = list(self.outcomes), Counter[str]()
        for one in steps:
            refused.update({refusal_text(error): count for error, count in list(one.refused.items())})
        again = sum(one.done for one in steps[:-1])
        whole = len(steps) == len(ACTIONS[self.action])
        return {
            "number": self.number,
            "action": self.action,
            **self.told,
            "rate": self.rate,
            "who": self.who,
            "state": str(self.stage),
            "asked_at_ms": self.asked_at_ms,
            "began_at_ms": self.began_at_ms,
            "ended_at_ms": self.ended_at_ms,
            "found": max(sum(one.asked for one in steps) - again, max((one.asked for one in steps), default=0)),
            "done": steps[-1].done if whole else 0,
            "unchanged": self.unchanged,
            "closed": sum(one.closed for one in steps),
            "refused": refused,
            "unanswered": sum(one.asked - one.settled for one in steps),
            "missing": self.missed,
            "missing_names": list(self.missing),
            "error": self.error,
        }


class Jobs:
    """`run` belongs to WORKERS threads; everything else may be called from any, and raises OperationError."""

    def __init__(self, engine: EnginePort, store: Store, commands: ManyPort, locator: Locator, view: View) -> None:
        self._engine = engine
        self._view = view
        self._locator = locator
        self._commands = commands
        self._store = store
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._waiting: list[tuple[Job, Context]] = []
        self._changed = threading.Condition()
        self._stopping = False

    # -- what is asked for --------------------------------------------------------------------------------------------

    def begin(self, action: str, wanted: Wanted, names: Sequence[str], rate: int, told: Mapping[str, Any],
              who: str, by_token: bool) -> dict[str, Any]:  # fmt: skip
        """A new job, which waits for those before it. told: what was asked for, as it will be shown. by_token: it ends
        when the token with the name `who` is good no more."""
        if not names:
            self._view.found(wanted)  # what is wrong with it is said now
        with self._changed:
            open_jobs = [job for job in self._jobs.values() if not job.ended]
            if sum(job.who == who for job in open_jobs) >= JOBS_EACH:
                raise OperationError(429, f"{JOBS_EACH} jobs of yours have not ended yet")
            if len(open_jobs) >= JOBS_MAX:
                raise OperationError(429, f"{JOBS_MAX} jobs have not ended yet")
            if SCOPE.get() is not None and sum(job.scope is not None for job in open_jobs) >= SCOPED_MAX:
                raise OperationError(429, f"{SCOPED_MAX} jobs of tokens for some services have not ended yet")
            for number in [number for number, job in self._jobs.items() if job.ended][: -KEPT or None]:
                del self._jobs[number]
            now = time.time_ns() // 1_000_000
            job = Job(next(self._numbers), action, rate, told, who, by_token, wanted, names, SCOPE.get(), now)
            self._jobs[job.number] = job
            self._waiting.append((job, copy_context()))
            self._changed.notify()
        return job.shown()

    def all(self) -> list[dict[str, Any]]:
        """Those that have not ended, and the last ones that have; of whoever asks."""
        with self._changed:
            return [job.shown() for job in self._jobs.values() if _is_for_asker(job)]

    def show(self, number: int) -> dict[str, Any]:
        """One."""
        return self._find(number).shown()

    def cancel(self, number: int) -> dict[str, Any]:
        """Nothing more is begun; what was done stays."""
        job = self._find(number)
        with self._changed:
            job.cancelled.set()
            if job.stage is Stage.WAITING:
                self._waiting = [one for one in self._waiting if one[0] is not job]
                self._end(job, Stage.CANCELLED)
        return job.shown()

    def _find(self, number: int) -> Job:
        with self._changed:
            job = self._jobs.get(number)
        if job is None or not _is_for_asker(job):
            raise OperationError(404, f"there is no job {number} (any more)")
        return job

    # -- the thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Carry out one after the other, until `stop`."""
        while True:
            with self._changed:
                while not self._stopping and (taken := self._next()) is None:
                    self._changed.wait()
                if self._stopping or taken is None:
                    return
                job, context = taken
                job.stage, job.began_at_ms = Stage.RUNNING, time.time_ns() // 1_000_000
            stage = Stage.FAILED
            try:
                context.run(self._carry_out, job)
                stage = Stage.CANCELLED if job.cancelled.is_set() else Stage.DONE
            except OperationError as error:
                job.error = str(error)
            except SQLAlchemyError as error:
                job.error = f"store: {reason(error)}"
            except Exception as error:
                log.exception("job %d ended", job.number, extra=about(job=job.number))
                job.error = f"an error of the daemon's own ({type(error).__name__}); its log has more"
            with self._changed:
                self._end(job, stage)
                self._changed.notify_all()

    def _next(self) -> tuple[Job, Context] | None:
        """The first one that waits for no other of the same who asks, and is not one too many in a scope; it waits no
        more."""
        running = [job for job in self._jobs.values() if job.stage is Stage.RUNNING]
        busy = {job.who for job in running}
        full = sum(job.scope is not None for job in running) >= SCOPED_WORKERS
        for place, (job, _) in enumerate(self._waiting):
            if job.who not in busy and not (full and job.scope is not None):
                return self._waiting.pop(place)
        return None

    def stop(self) -> None:
        """Let `run` return."""
        with self._changed:
            self._stopping = True
            for job in self._jobs.values():
                job.cancelled.set()
            self._changed.notify_all()

    @staticmethod
    def _end(job: Job, stage: Stage) -> None:
        job.stage, job.ended_at_ms, job.names = stage, time.time_ns() // 1_000_000, ()
        shown = job.shown()
        counts = ", ".join(
            f"{shown[key]:,} {key}" for key in ("found", "done", "unchanged", "closed", "unanswered", "missing")
        )
        log.info("job %d, %s, of %s: %s; %s; refused: %s", job.number, job.action, job.who, job.error or stage, counts,
                 shown["refused"] or "none", extra=about(job=job.number, who=job.who))  # fmt: skip

    def _carry_out(self, job: Job) -> None:
        known = self._known_of(job) if job.names else None
        for step in ACTIONS[job.action]:
            if step.op is None and not self._store.sleep_allowed:
                raise OperationError(503, f"nothing can SLEEP now: store: {self._store.status.text}")
            outcomes = self._commands.count(step.targets)
            job.outcomes.append(outcomes)
            try:
                if known is None:
                    born, over = step.op is not None, partial(self._is_over, job)
                    events = self._view.found(job.wanted, step.sources, born, over)
                    still = partial(self._view.still, job.wanted, states=step.sources)
                    told = self._work_off(job, step, outcomes, events, still)
                    if job.wanted.state in step.sources:  # the next step finds them in another state
                        known = told
                else:
                    now = partial(self._now, states=step.sources)
                    self._work_off(job, step, outcomes, iter(known), now)
                self._settle(job, outcomes, 1)
            finally:
                self._commands.uncount(outcomes)

    def _is_over(self, job: Job) -> bool:
        """Whether it is cancelled; it is when its token is good no more, unless that cannot be read."""
        if job.by_token and time.monotonic() >= job.look_s and not job.cancelled.is_set():
            with suppress(SQLAlchemyError, StoreError):
                good = self._store.tokens(time.time_ns() // 1_000_000)
                if not any(row.name == job.who and row.made_at <= job.asked_at_ms for row in good):
                    job.error = "its token was revoked, or has expired"
                    job.cancelled.set()
            job.look_s = time.monotonic() + TOKEN_S
        return job.cancelled.is_set()

    def _known_of(self, job: Job) -> Sequence[_Known]:
        """The connections that it names, but for those that are there already."""
        targets = ACTIONS[job.action][-1].targets
        known = dict[bytes, int]()
        for name, located in self._locator.locate_many(job.names):
            if self._is_over(job):
                break
            if isinstance(located, OperationError):
                job.missed += 1
                if len(job.missing) < TOLD:
                    job.missing.append(name)
            elif located.state in targets:
                job.unchanged += 1
            else:
                known[located.event.record.key_raw] = located.id
        return list(known.items())

    def _now(self, known: Sequence[_Known], states: frozenset[State]) -> Iterator[Event]:
        """These connections as they are now, those that are in one of these states."""
        found = self._engine.find_many([key for key, _ in known])
        return (event for event, (_, number) in zip(found, known, strict=True)
                if event is not None and event.to_state in states
                and (not number or event.number in (0, number)))  # fmt: skip

    def _work_off(self, job: Job, step: _Step, outcomes: Outcomes, listed: Iterator[_Listed],
                  now: Callable[[Sequence[_Listed]], Iterator[Event]]) -> list[_Known]:  # fmt: skip
        """Those that were told to go, where another step follows. now: what a part of the list is when it comes to it:
        the list may be some thousand, or some minutes, ahead."""
        most = max(1, min(PART_MAX, int(job.rate * PART_S)))
        due_s, known = time.monotonic(), list[_Known]()
        while not self._is_over(job) and (some := list(itertools.islice(listed, most))):
            part = list(now(some))
            outcomes.asked += len(part)
            if step.op is None:
                self._commands.sleep_many([event.record for event in part], outcomes)
            else:
                self._commands.command_many(step.op, [event.record.key_raw for event in part], outcomes)
            if step is not ACTIONS[job.action][-1]:
                known += ((event.record.key_raw, event.number) for event in part)
            due_s = max(due_s, time.monotonic() - PART_S) + len(part) / job.rate
            self._settle(job, outcomes, UNSETTLED_MAX)
            job.cancelled.wait(max(due_s - time.monotonic(), 0))
        return known

    def _settle(self, job: Job, outcomes: Outcomes, fewer_than: int) -> None:
        """Wait until fewer are unsettled, or nothing has been heard of any for PATIENCE_S."""
        settled, until_s = outcomes.settled, time.monotonic() + PATIENCE_S
        while outcomes.asked - outcomes.settled >= fewer_than and not self._stopping:
            time.sleep(LOOK_S)
            now_s = time.monotonic()
            if settled != (settled := outcomes.settled):
                until_s = now_s + PATIENCE_S
            elif now_s >= until_s:
                return


def _is_for_asker(job: Job) -> bool:
    scope = SCOPE.get()
    return scope is None or (job.scope is not None and job.scope <= scope)
