# SPDX-License-Identifier: Apache-2.0
"""What connections set in band: kept while they live, handed to the next engine, forgotten with them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from appliance.engine import ffi
from appliance.wire import KA, Event, EventType, Key, Op
from control.clients.in_band_settings import InBandSettings
from control.core.states import Cause, State
from control.dispatch.dispatcher import Dispatcher
from control.store.schema import OVERRIDES_BYTES
from control.store.store import Store
from tests.databases import Database
from tests.unit.fake_engine import FakeEngine, event, key

SET = struct.pack("=IIIIBBH", 5000, 0, 0, 0, 1, 1, 0)


def told(k: Key, number: int, overrides: bytes = SET) -> Event:
    found = event(EventType.OVERRIDES, k, number)
    found.record.ka = overrides + bytes(KA.size - len(overrides))
    return found


def closed(number: int) -> Event:
    return event(EventType.TRANSITION, key(number), number, from_state=State.IDLE, to_state=State.CLOSED,
                 cause=Cause.CLIENT_CLOSE)  # fmt: skip


class Rig:
    """One run of a daemon, as far as this goes."""

    def __init__(self, database: Database, engine: FakeEngine) -> None:
        self.engine = engine
        self.store = Store(database.url, lambda slept: None)
        self.store.open()
        self.store.start()
        self.dispatcher = Dispatcher(engine, self.store, 1000)
        self.overrides = InBandSettings(self.store, engine)
        assert self.overrides.load()
        self.dispatcher.listen(self.overrides.hear)
        self.dispatcher.handle(EventType.OVERRIDES, self.overrides.keep)

    def end(self) -> None:
        assert self.store.close(5) == 0


@pytest.fixture
def run(database: Database) -> Iterator[Callable[[FakeEngine], Rig]]:
    """Starts a daemon's run on the same database, after the end of the one before."""
    runs: list[Rig] = []

    def begin(engine: FakeEngine) -> Rig:
        if runs:
            runs[-1].end()
        runs.append(Rig(database, engine))
        return runs[-1]

    yield begin
    runs[-1].end()


def test_the_size_is_that_of_the_struct() -> None:
    assert OVERRIDES_BYTES == ffi.sizeof("struct roost_overrides") == len(SET)


def test_the_next_engine_gets_it_for_the_connection_that_set_it(run: Callable[[FakeEngine], Rig]) -> None:
    engine = FakeEngine(carry_out=False)
    for number in (1, 2, 3):
        engine.add(key(number), number, State.IDLE)
    first = run(engine)
    first.dispatcher.turn([told(key(1), 1), told(key(2), 2), told(key(3), 3)])
    assert engine.commands == [], "this one knows"
    later = FakeEngine(carry_out=False)
    later.add(key(1), 1, State.IDLE)
    later.add(key(2), 99, State.IDLE)  # another connection has its 4-tuple by now, and 3 is gone
    run(later)
    assert [(c.op, c.id, c.key, c.overrides) for c in later.commands] == [(Op.OVERRIDE, 1, key(1).pack(), SET)]
    last = FakeEngine(carry_out=False)
    for number in (1, 2, 3):
        last.add(key(number), number, State.IDLE)
    run(last)
    assert [c.id for c in last.commands] == [1], "what was of no use is forgotten"


def test_while_the_database_cannot_be_written_it_waits_with_its_connection(run: Callable[[FakeEngine], Rig]) -> None:
    engine = FakeEngine(carry_out=False)
    for number in (1, 2):
        engine.add(key(number), number, State.IDLE)
    first = run(engine)
    first.store._status.error = "full"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first.store, "add", lambda *_, **__: pytest.fail("nothing is to pile up in the store"))
        first.overrides.keep(told(key(1), 1))
        first.overrides.keep(told(key(2), 2))
        first.overrides.hear([closed(2)])
    first.store._status.error = ""
    first.dispatcher.turn([closed(3)])
    run(engine)
    assert [c.id for c in engine.commands] == [1]


@pytest.mark.parametrize("forget", ["closed", "taken back"])
def test_it_is_forgotten_with_its_connection_or_when_it_is_taken_back(
    run: Callable[[FakeEngine], Rig], forget: str
) -> None:
    engine = FakeEngine(carry_out=False)
    engine.add(key(1), 1, State.IDLE)
    first = run(engine)
    first.dispatcher.turn([told(key(1), 1)])
    if forget == "closed":
        first.dispatcher.turn([closed(1)])
    else:
        first.dispatcher.turn([told(key(1), 1, bytes(OVERRIDES_BYTES))])
    run(engine)
    assert engine.commands == []
