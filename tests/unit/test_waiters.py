# SPDX-License-Identifier: Apache-2.0
"""Outcomes of commands: one that is waited for, and many that are counted by one token."""

from __future__ import annotations

from errno import EAGAIN, EMFILE

from control.core.ports import Outcome
from control.core.states import State
from control.dispatch.waiters import Waiters


def test_outcomes_with_the_same_token_are_counted_each() -> None:
    waiters = Waiters()
    counted, others = waiters.count([State.SLEEP]), waiters.count([State.CLOSED])
    single, future = waiters.expect([State.SLEEP], 10)
    for error, state in ((0, State.SLEEP), (0, State.SLEEP), (0, State.STANDBY), (0, State.CLOSED), (EAGAIN, None),
                         (EMFILE, None), (EAGAIN, None)):  # fmt: skip
        waiters.resolve(counted.token, Outcome(error, state or 0), state)
    assert (counted.done, counted.closed, counted.refused) == (2, 1, {EAGAIN: 2, EMFILE: 1})
    assert (counted.settled, others.settled, future.done()) == (6, 0, False)
    waiters.resolve(single, Outcome(0, State.SLEEP), State.SLEEP)
    assert future.result(0).state == State.SLEEP
    waiters.resolve(others.token, Outcome(0, State.CLOSED), State.CLOSED)
    assert (others.done, others.closed) == (1, 0)


def test_a_counted_token_that_is_renamed_for_one_of_them_counts_that_one_once() -> None:
    waiters = Waiters()
    counted = waiters.count([State.SLEEP])
    for row in (7, 8):
        waiters.rename(counted.token, row)
        waiters.resolve(row, Outcome(0, State.SLEEP), State.SLEEP)
        waiters.resolve(row, Outcome(EAGAIN), None)
    assert (counted.done, counted.refused) == (2, {})
    waiters.resolve(counted.token, Outcome(EAGAIN), None)
    assert counted.settled == 3


def test_what_comes_later_does_not_count() -> None:
    waiters = Waiters()
    counted, others = waiters.count([State.IDLE]), waiters.count([State.IDLE])
    waiters.rename(counted.token, 7)
    waiters.uncount(counted)
    for token in (counted.token, 7, others.token):
        waiters.resolve(token, Outcome(0, State.IDLE), State.IDLE)
    assert (counted.settled, others.settled) == (0, 1)
    assert waiters.expire(1e18) == set()
