# SPDX-License-Identifier: Apache-2.0
"""In-band requests that the control plane answers, and what the dispatcher does about the other ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from errno import EINVAL, EIO, EPERM
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from appliance.wire import KA, Command, Event, EventType, Key, Op, ServiceSpec, Verb
from control.clients import in_band_requests, registry
from control.clients.in_band_requests import InBandRequests
from control.clients.registry import Gift, Registry
from control.config import ConfigError, parse
from control.core.ports import Outcome
from control.core.states import Cause, State
from control.dispatch.dispatcher import Dispatcher
from control.policy.services import service_spec
from control.store.store import Store
from tests.unit.fake_engine import Connection, FakeEngine, event, key, record
from tests.unit.test_dispatcher import until

METERS, ROAMING, FOR_EVER = 2, 3, 4
SERVICES = """
[[service]]
name = "any"
listen = "192.0.2.1:5"
server = "192.0.2.2:6"
[[service]]
name = "meters"
listen = "192.0.2.1:6"
server = "192.0.2.2:6"
names = ["Meter-*"]
names_each = 2
[[service]]
name = "roaming"
listen = "192.0.2.1:7"
server = "192.0.2.2:6"
names_roam = true
[[service]]
name = "for-ever"
listen = "192.0.2.1:8"
server = "192.0.2.2:6"
names_kept = "never"
"""
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
        for number in (1, 2, 3):
            self.engine.add(key(number), number, State.ACTIVE)
        self.store = Store(f"sqlite:///{database}", lambda slept: self.dispatcher.sleepers.slept(slept))
        self.store.open()
        self.store.start()
        self.dispatcher = Dispatcher(self.engine, self.store, 1000)
        self.registry = Registry(self.store, self.engine)
        self.agents = Registry(self.store, self.engine, "agents")
        self.now = 1000.0
        services = dict(enumerate(parse(SERVICES).service, 1))
        self.in_band = InBandRequests(
            self.engine, self.registry, self.agents, services, "roost", clock=lambda: self.now
        )
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


# -- whose a name may be ----------------------------------------------------------------------------------------------

HOUR_S = 3600.0


def ask(rig: Rig, k: Key, number: int, name: str, service: int = 1) -> int:
    """The errno that a connection's request for a name is answered by; the connection is there from then on."""
    rig.engine.connections[k] = Connection(k, number, State.ACTIVE, record(k, number, service))
    (answer,) = rig.in_band.give([asked(k, number, Verb.NAME, name)])
    return answer.error


def owners(rig: Rig) -> dict[str, int]:
    return {name: named.id for name, named in rig.registry.all().items()}


def test_a_name_that_an_agent_speaks_for_is_no_clients_to_take(rig: Rig) -> None:
    """Whether or not the agent is connected just now."""
    rig.engine.add(key(9), 9, State.IDLE)
    rig.agents.give_all([Gift({"camera-1": 0}, key(8).pack(), 8), Gift({"camera-2": 0}, key(9).pack(), 9)])
    assert [ask(rig, key(i), i, name) for i, name in enumerate(("Camera-1", "camera-2", "cam"), 1)] == [EPERM, EPERM, 0]
    assert owners(rig) == {"cam": 3}


@pytest.mark.parametrize("service", [1, FOR_EVER])
def test_a_name_that_a_client_gave_itself_gives_way_to_an_agent_and_an_operators_does_not(
    rig: Rig, service: int
) -> None:
    assert ask(rig, key(1), 1, "camera-1", service) == 0
    rig.registry.give("camera-2", key(2).pack(), 2)
    rig.registry.give_way(["camera-1", "camera-2", "camera-3"])
    assert owners(rig) == {"camera-2": 2}


def test_a_name_that_another_living_connection_has_is_refused_and_that_one_goes_on(rig: Rig) -> None:
    assert ask(rig, key(1), 1, "door") == 0
    assert ask(rig, key(2), 2, "door") == EPERM
    assert owners(rig) == {"door": 1}
    rig.engine.move(rig.engine.connections[key(1)], State.CLOSED, Cause.CLIENT_CLOSE)
    assert ask(rig, key(2), 2, "door") == 0
    assert [command.op for command in rig.engine.commands] == [], "nothing was closed"


@pytest.mark.parametrize(("service", "error"), [(1, EPERM), (ROAMING, 0)])
def test_a_name_that_an_operator_gave_is_its_clients_also_while_that_is_away(
    rig: Rig, service: int, error: int
) -> None:
    """As that of a client which is dialled when a server asks for it."""
    rig.registry.give("meter", key(1, 50000).pack(), 9)
    assert ask(rig, key(2), 2, "meter", service) == error
    assert ask(rig, key(1), 10, "meter", service) == 0, "it comes by itself"
    assert rig.registry.given_in_band(["meter"]) == set(), "it stays the operator's"


def test_of_two_that_ask_for_a_name_at_once_the_first_has_it(rig: Rig) -> None:
    both = rig.in_band.give([asked(key(i), i, Verb.NAME, "door") for i in (1, 2)])
    assert ([answer.error for answer in both], owners(rig)) == ([0, EPERM], {"door": 1})


def test_a_client_that_comes_again_from_its_address_takes_its_name_over(rig: Rig) -> None:
    assert ask(rig, key(1, 40000), 1, "door") == 0
    assert ask(rig, key(1, 40001), 7, "door") == 0
    assert owners(rig) == {"door": 7}
    assert [(c.op, c.id, c.cause) for c in rig.engine.commands] == [(Op.CLOSE, 1, Cause.CLIENT_CONNECT)]


def test_of_ipv6_a_client_may_come_again_from_its_network(rig: Rig) -> None:
    addresses = "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"
    keys = [Key.of(address, 40000, "2001:db8::7", 7000) for address in addresses]
    assert [ask(rig, k, i, "door") for i, k in enumerate(keys, 1)] == [0, 0, EPERM]


def test_where_the_service_says_so_a_name_moves_to_another_address(rig: Rig) -> None:
    assert ask(rig, key(1), 1, "door", ROAMING) == 0
    assert ask(rig, key(2), 2, "door", ROAMING) == 0
    assert owners(rig) == {"door": 2}
    assert [(c.op, c.id) for c in rig.engine.commands] == [(Op.CLOSE, 1)]


def test_clients_of_a_service_give_themselves_the_names_that_fit_its_patterns(rig: Rig) -> None:
    names = ["meter-7", "meter", "door"]
    assert [ask(rig, key(i), i, name, METERS) for i, name in enumerate(names, 1)] == [0, EPERM, EPERM]


def test_a_source_gets_so_many_new_names_in_an_hour_and_its_own_again_at_any_time(rig: Rig) -> None:
    assert [ask(rig, key(1, 40000 + i), i, f"meter-{i}", METERS) for i in range(1, 5)] == [0, 0, EPERM, EPERM]
    assert ask(rig, key(2), 20, "meter-20", METERS) == 0, "another source"
    assert ask(rig, key(1, 50000), 30, "meter-1", METERS) == 0, "it comes again"
    rig.now += HOUR_S / 2
    assert [ask(rig, key(1, 60000 + i), 40 + i, f"meter-{i}", METERS) for i in (3, 4)] == [0, EPERM]


def test_a_connection_that_has_ended_meanwhile_gets_no_name(rig: Rig) -> None:
    (answer,) = rig.in_band.give([asked(key(99), 99, Verb.NAME, "door")])
    assert (answer.error, owners(rig)) == (EPERM, {})


def test_a_name_of_a_closed_connection_goes_in_time_unless_it_lives_has_tags_or_is_an_operators(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "BATCH", 1)  # they are looked at in parts
    for i, name in enumerate(("vanished", "tagged", "lives", "again"), 1):
        assert ask(rig, key(i), i, name) == 0
    assert ask(rig, key(6), 6, "for-ever", FOR_EVER) == 0
    rig.engine.add(key(5), 5, State.ACTIVE)
    rig.registry.give("operators", key(5).pack(), 5)
    rig.registry.commit()
    rig.store.change_tags("tagged", ["a"], [])
    for i in (1, 2, 4, 5, 6):
        rig.engine.move(rig.engine.connections[key(i)], State.CLOSED, Cause.CLIENT_CLOSE)
    kept = round(parse(SERVICES).service[0].names_kept * 1000)
    began = time.time_ns() // 1_000_000

    def left(at: int) -> list[str]:
        rig.registry.expire(began + at)
        rig.registry.commit()
        return sorted(rig.registry.all())

    everything = ["again", "for-ever", "lives", "operators", "tagged", "vanished"]
    assert left(kept) == everything, "it is kept at least so long"
    assert ask(rig, key(4), 8, "again") == 0
    assert left(2 * kept - 60_000) == everything
    assert left(2 * kept + 60_000) == ["again", "for-ever", "lives", "operators", "tagged"]
    assert dict(rig.store.keyed("in_band_names")).keys() == {"again", "for-ever", "lives", "tagged"}
    rig.registry.give("lives", key(3).pack(), 3)
    rig.registry.commit()
    assert dict(rig.store.keyed("in_band_names")).keys() == {"again", "for-ever", "tagged"}, (
        "it is an operator's from now on"
    )


def test_the_thread_that_answers_looks_for_names_whose_time_is_over(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    monkeypatch.setattr(rig.registry, "expire", lambda now_ms: looked.set())
    monkeypatch.setattr(in_band_requests, "FIRST_LOOK_S", 0.0)
    rig.in_band.stop()
    rig.thread.join(5)
    rig.thread = threading.Thread(target=rig.in_band.run)
    rig.thread.start()
    assert looked.wait(5)


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
