# SPDX-License-Identifier: Apache-2.0
"""The end of a daemon, with an engine and a store that say what they are told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from appliance.wire import Command, Event, Sought
from control.core.states import State
from control.daemon import end
from control.daemon.end import End
from control.dispatch.dispatcher import Dispatcher
from control.store.store import Store

MANY = 10 * end.PAGE


@dataclass
class World:
    """Connections that were born asleep; each look at them writes some of the history, and lets those that were asked
    for have their rows."""

    born: int = MANY
    asked: int = 0
    error: str = ""
    pending_history: int = 0
    most_pending: int = 0
    states: list[int] = field(default_factory=lambda: [0] * len(State))

    @property
    def status(self) -> World:
        return self

    def stats(self) -> dict[str, int]:
        self.born, self.asked = self.born - self.asked, 0
        self.most_pending = max(self.most_pending, self.pending_history)
        self.pending_history = max(self.pending_history - end.PAGE // 4, 0)
        return {"born": self.born}

    def submit(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.asked += min(command.count, self.born - self.asked)
            self.pending_history += 2 * command.count  # two transitions each

    def list(self, _sought: Sought) -> Sequence[Event]:
        return []  # none is awake


def test_rows_are_asked_for_no_faster_than_the_history_is_written() -> None:
    world = World()
    as_any = cast(Any, world)
    end._write(as_any, cast(Store, as_any), cast(Dispatcher, as_any), End(), 60.0)
    assert world.born == 0
    assert world.most_pending <= 4 * end.PAGE  # of 200,000, from which on rows are dropped (Store, history_bound)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["ours", "another machine's"])
def test_clients_are_served_until_few_rows_are_left_to_write_where_they_are_ours(elsewhere: bool) -> None:
    world, ending, unwritten = World(), End(), list[int]()
    ending.anew = elsewhere
    as_any = cast(Any, world)
    left = end.drain(as_any, cast(Store, as_any), cast(Dispatcher, as_any), ending, 60.0,
                     lambda: unwritten.append(world.born))  # fmt: skip
    (then,) = unwritten
    assert then == MANY if elsewhere else 0 < then <= end.PAGE
    assert left == world.born == 0
