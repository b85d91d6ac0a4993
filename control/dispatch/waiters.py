# SPDX-License-Identifier: Apache-2.0
"""Commands that are waited for: a token goes to the engine with the command, and comes back with what became of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from errno import ETIMEDOUT
from itertools import count

from appliance.wire import TOKEN_COUNTED
from control.core.ports import Outcome, Outcomes
from control.core.states import State


@dataclass(slots=True)
class _Waiter:
    future: Future[Outcome]
    states: frozenset[int]
    deadline: float


class Waiters:
    """May be called from any thread."""

    def __init__(self) -> None:
        self._tokens = count(1)
        self._waiters: dict[int, _Waiter] = {}
        self._counted: dict[int, Outcomes] = {}
        self._lock = threading.Lock()

    def expect(self, states: Iterable[State], timeout_s: float) -> tuple[int, Future[Outcome]]:
        """A new token, and the outcome that it will have: one of `states`, or an error."""
        future: Future[Outcome] = Future()
        with self._lock:
            token = next(self._tokens)
            wanted = frozenset(int(state) for state in states)
            self._waiters[token] = _Waiter(future, wanted, time.monotonic() + timeout_s)
        return token, future

    def count(self, states: Iterable[State]) -> Outcomes:
        """The outcomes of all commands with a new token are counted, until `uncount`."""
        with self._lock:
            outcomes = Outcomes(TOKEN_COUNTED | next(self._tokens), frozenset(int(state) for state in states))
            self._counted[outcomes.token] = outcomes
        return outcomes

    def uncount(self, outcomes: Outcomes) -> None:
        """Outcomes that are still to come do not count."""
        with self._lock:
            self._counted = {token: one for token, one in self._counted.items() if one is not outcomes}

    def resolve(self, token: int, outcome: Outcome, state: int | None) -> None:
        """The outcome of this token, if one is expected. state: the one that a transition reached; None: no matter."""
        with self._lock:
            if (counted := self._counted.get(token)) is not None:
                counted.add(outcome, state)
                if token != counted.token:
                    del self._counted[token]
                return
            waiter = self._waiters.get(token)
            # Going down takes several transitions; the one that was asked for is the answer, CLOSED always is one.
            if waiter is None or (state is not None and state not in waiter.states and state != State.CLOSED):
                return
            del self._waiters[token]
        _settle(waiter, outcome)

    def rename(self, token: int, new: int) -> None:
        """The same outcome is expected by another token from now on; of a counted one, one of its outcomes."""
        with self._lock:
            if (waiter := self._waiters.pop(token, None)) is not None:
                self._waiters[new] = waiter
            elif (counted := self._counted.get(token)) is not None:
                self._counted[new] = counted

    def expire(self, now: float) -> set[int]:
        """Give up those whose time is over (now: CLOCK_MONOTONIC, s); their tokens."""
        with self._lock:
            late = [token for token, waiter in self._waiters.items() if waiter.deadline <= now]
            waiters = [self._waiters.pop(token) for token in late]
        for waiter in waiters:
            _settle(waiter, Outcome(ETIMEDOUT))
        return set(late)


def _settle(waiter: _Waiter, outcome: Outcome) -> None:
    if waiter.future.set_running_or_notify_cancel():
        waiter.future.set_result(outcome)
