# SPDX-License-Identifier: Apache-2.0
"""In-band requests that the control plane answers, and what the dispatcher does about the other ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from errno import EINVAL, EIO
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from appliance.wire import KA, Command, Event, EventType, Key, Op, ServiceSpec, Verb
from control.clients.in_band_requests import InBandRequests
from control.clients.registry import Registry
from control.config import ConfigError, parse
from control.core.ports import Outcome
from control.core.states import Cause, State
from control.dispatch.dispatcher import Dispatcher
from control.policy.services import service_spec
from control.store.store import Store
from tests.unit.fake_engine import FakeEngine, event, key
from tests.unit.test_dispatcher import until

SERVICE = '[[service]]\nname = "a"\nlisten = "192.0.2.1:5"\nserver = "192.0.2.2:6"\n'


def asked(k: Key, number: int, verb: Verb, name: str = "", question: int = 1) -> Event:
    found = event(EventType.IN_BAND, k, number, op=verb, count=question)
    text = name.encode().ljust(64, b"\0")
    found.record.ka, found.record.rest = text[: KA.size], text[KA.size :] + bytes(4)
    return found


class Rig:
    """Store, engine, registry and what answers."""

    def __init__(self, database: Path) -> None:
        self.engine = FakeEngine(carry_out=False)
        self.store = Store(f"sqlite:///{database}", lambda slept: self.dispatcher.sleepers.slept(slept))
        self.store.open()
        self.store.start()
        self.dispatcher = Dispatcher(self.engine, self.store, 1000)
        self.registry = Registry(self.store, self.engine)
        self.in_band = InBandRequests(self.engine, self.registry, "roost")
        self.dispatcher.handle(EventType.IN_BAND, self.in_band.ask)
        self.thread = threading.Thread(target=self.in_band.run)
        self.thread.start()

    def close(self) -> None:
        self.in_band.stop()
        self.thread.join(5)
        assert not self.thread.is_alive()
        self.store.close(3)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "roost.db")
    yield made
    made.close()


def answers(commands: list[Command]) -> list[tuple[int, int, int, bytes]]:
    assert {command.op for command in commands} <= {Op.ANSWER}
    return [(command.id, command.count, command.error, command.preamble) for command in commands]


def test_a_name_is_answered_once_it_is_written_and_the_status_tells_it(rig: Rig) -> None:
    rig.dispatcher.turn([asked(key(1), 1, Verb.NAME, "Door", 5)])
    until(lambda: rig.engine.commands)
    assert dict(rig.store.keyed("names")).keys() == {"door"}
    rig.dispatcher.turn([asked(key(1), 1, Verb.STATUS, question=6), asked(key(2), 2, Verb.STATUS, question=7)])
    until(lambda: len(rig.engine.commands) == 3)
    assert answers(rig.engine.commands) == [(1, 5, 0, b""), (1, 6, 0, b"door"), (2, 7, 0, b"")]


def test_names_that_come_together_are_written_together_and_bad_ones_refused(rig: Rig) -> None:
    names = ["a", "b.roost", "c"]
    commands = rig.in_band.give([asked(key(i), i, Verb.NAME, name) for i, name in enumerate(names, 1)])
    assert answers(commands) == [(1, 1, 0, b""), (2, 1, EINVAL, b""), (3, 1, 0, b"")]
    assert dict(rig.store.keyed("names")).keys() == {"a", "c"}


def test_without_a_database_a_name_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.store, "flush", lambda timeout_s: False)
    assert answers(rig.in_band.give([asked(key(1), 1, Verb.NAME, "a")])) == [(1, 1, EIO, b"")]
    rig.store._status.error = "gone"
    assert answers(rig.in_band.give([asked(key(1), 1, Verb.NAME, "b")])) == [(1, 1, EIO, b"")]


def test_a_status_keeps_no_other_client_waiting_for_the_database_and_is_refused_without_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = threading.Event()

    def read(*_: Any, **__: Any) -> dict[str, bytes]:
        gone.wait(60)
        raise OperationalError("SELECT", {}, Exception("gone"))

    monkeypatch.setattr(rig.store, "named", read)
    rig.dispatcher.turn([asked(key(1), 1, Verb.STATUS), event(EventType.QUIET, key(2), 2, from_state=State.ACTIVE)])
    assert [command.op for command in rig.engine.commands] == [Op.STANDBY]
    rig.engine.commands.clear()
    gone.set()
    until(lambda: rig.engine.commands)
    assert answers(rig.engine.commands) == [(1, 1, EIO, b"")]


def test_a_defect_in_an_answer_does_not_stop_the_loop(rig: Rig) -> None:
    def fail(_: Event) -> None:
        raise RuntimeError("a defect")

    rig.dispatcher.handle(EventType.IN_BAND, fail)
    rig.dispatcher.turn([asked(key(1), 1, Verb.NAME, "a"), event(EventType.QUIET, key(2), 2, from_state=State.ACTIVE)])
    assert [command.op for command in rig.engine.commands] == [Op.STANDBY]


def test_a_command_without_a_transition_is_answered_when_it_is_done(rig: Rig) -> None:
    future: Future[Outcome] = rig.dispatcher.command(Command(op=Op.TELL, id=1, key=key(1)), [State.ACTIVE], 5)
    token = rig.engine.commands[0].token
    rig.dispatcher.turn([event(EventType.DONE, key(1), 1, op=Op.TELL, token=token, to_state=State.STANDBY)])
    assert future.result(0) == Outcome(0, State.STANDBY, 1)


@pytest.mark.parametrize("woken", [False, True])
def test_who_asked_to_sleep_sleeps_by_command_and_who_woke_meanwhile_by_time(rig: Rig, woken: bool) -> None:
    due = event(EventType.SLEEP_DUE, key(1), 1, cause=Cause.COMMAND)
    if woken:
        rig.dispatcher.sleepers._tokens[key(1).pack()] = 0  # the row was never committed
        wake = event(EventType.TRANSITION, key(1), 1, from_state=State.IDLE, to_state=State.ACTIVE,
                     cause=Cause.CLIENT_DATA)  # fmt: skip
        rig.dispatcher.turn([wake])
        due = due._replace(cause=Cause.NONE)
    rig.dispatcher.turn([due])
    until(lambda: rig.engine.commands)
    assert [(c.op, c.cause) for c in rig.engine.commands] == [(Op.SLEEP, Cause.QUIET if woken else Cause.COMMAND)]


def spec(in_band: str) -> ServiceSpec:
    config = parse(SERVICE + in_band)
    return service_spec(config.service[0], 1, config)


def test_the_policy_names_what_each_end_may_ask_for() -> None:
    off = spec("")
    assert (off.in_band_clients, off.in_band_servers, off.in_band_forward, off.in_band_stay) == (0, 0, False, False)
    some = spec('in_band_clients = ["status", "always-active"]\nin_band = { forward = true }')
    assert some.in_band_clients == 1 << Verb.STATUS | 1 << Verb.ALWAYS_ACTIVE | 1 << Verb.PING
    assert (some.in_band_servers, some.in_band_forward) == (0, True)
    assert spec("[service.in_band]\nstay = true").in_band_stay


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'in_band_client = ["done"]',
            'unknown key `in_band_client` in [[service]] "a"; did you mean `in_band_clients`?',
        ),
        ('in_band_clients = ["dane"]', '`in_band_clients` in [[service]] "a": Input should be '),
        ('in_band_clients = "status, dane"', '`in_band_clients` in [[service]] "a": Input should be '),
        ("in_band_clients = 7", '`in_band_clients` in [[service]] "a": must be a list, in brackets: [7]'),
        (
            'in_band = { clients = ["done"] }',
            'unknown key `clients` in [service.in_band] of [[service]] "a"; it is `in_band_clients` of [[service]]',
        ),
        ("in_band = true", '`in_band` in [[service]] "a": must be a table: [service.in_band] (it is True)'),
    ],
)
def test_a_wrong_policy_is_explained(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(SERVICE + text, "f.toml")
    assert words in str(caught.value)
