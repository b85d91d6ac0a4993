# SPDX-License-Identifier: Apache-2.0
"""Which steps of [absent] are tried for which client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from appliance.wire import Key
from control.clients.absence import Absence
from control.clients.registry import Registry
from control.clients.rules import Kept, Rules
from control.clients.rules import State as RulesState
from control.config import Config, Service, parse
from control.core.errors import OperationError
from control.core.ports import RulesPort
from control.core.states import State
from control.policy.rules import read_rule
from control.store.policies import RuleRow
from control.store.store import Store
from tests.databases import Database, written
from tests.unit.fake_engine import FakeEngine

CONFIG = """
[policy]
when_absent = "agent, dial"
[[service]]
name = "alarms"
listen = "192.0.2.1:7000"
server = "192.0.2.2:7000"
[[service]]
name = "meters"
listen = "192.0.2.1:7001"
server = "192.0.2.2:7001"
when_absent = ["wait"]
[[service]]
name = "six"
listen = "[2001:db8::1]:7000"
server = "192.0.2.2:7002"
"""


def absence(store: Store, names: Registry, services: Mapping[int, Service], config: Config,
            *rules: dict[str, Any]) -> Absence:  # fmt: skip
    made = Rules(store, cast(RulesPort, None), lambda: (services, config))
    row = RuleRow(1, "", 1, "ann", "", "")
    made.state = RulesState(1, {one["name"]: Kept(replace(row, rule=one["name"]), read_rule(one)) for one in rules})
    return Absence(made, names, lambda: (services, config))


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    store = Store(database.url, lambda slept: None)
    assert store.open() == ""
    store.start()
    yield store
    store.close(3)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def names(store: Store, engine: FakeEngine) -> Registry:
    return Registry(store, engine)


def at(client: str, local: str = "192.0.2.1", port: int = 7000) -> Key:
    return Key.of(client, 40_000, local, port)


def made(store: Store, names: Registry, *rules: dict[str, Any], text: str = CONFIG) -> Absence:
    config = parse(text)
    return absence(store, names, dict(enumerate(config.service, 1)), config, *rules)


def test_without_a_word_about_it_all_are_tried_and_nothing_is_read(store: Store, names: Registry) -> None:
    said = CONFIG.replace('when_absent = "agent, dial"', "").replace('when_absent = ["wait"]', "")
    plain = made(store, names, {"name": "r", "network": "10.0.0.0/8", "active_quiet": 3}, text=said)
    assert not plain.is_of_some
    assert plain.steps("", at("10.0.0.7")) == {"agent", "dial", "wait"}
    rules: list[dict[str, Any]] = [{"name": "r", "tag": "x", "when_absent": []},
                                   {"name": "r", "client": "a*", "when_absent": "dial"}]  # fmt: skip
    for rule in rules:
        assert made(store, names, rule, text=said).is_of_some


def test_a_service_says_it_by_which_the_client_came(store: Store, names: Registry) -> None:
    plain = made(store, names)
    assert plain.is_of_some
    for key, steps in [
        (at("10.0.0.7"), {"agent", "dial"}),
        (at("10.0.0.7", port=7001), {"wait"}),
        (at("10.0.0.7", "192.0.2.9", 7001), {"agent", "dial"}),
        (at("10.0.0.7", port=9), {"agent", "dial"}),
        (at("2001:db8::7", "2001:db8::1"), {"agent", "dial"}),
        (None, {"agent", "dial"}),
    ]:
        assert plain.steps("", key) == steps, key


def test_rules_say_it_by_network_name_and_tag(store: Store, engine: FakeEngine, names: Registry) -> None:
    for number, name in enumerate(("lock-1", "lock-2", "lamp"), 7):
        key = Key.of(f"10.0.0.{number}", 40_000, "192.0.2.1", 7000)
        engine.add(key, number, State.IDLE)
        names.give(name, key.pack(), number)
    assert written(store)
    store.change_tags("lock-2", ["mains"], [])
    some = made(store, names,
                {"name": "net", "network": "10.0.0.0/8", "when_absent": ["wait"]},
                {"name": "mains", "tag": "mains", "when_absent": ["dial", "agent"]},
                {"name": "lamps", "client": "lamp*", "service": "alarms", "when_absent": []})  # fmt: skip
    assert some.steps("", at("10.0.0.7")) == {"wait"}
    assert some.steps("", at("11.0.0.7")) == {"agent", "dial"}
    assert some.steps("lock-1", at("10.0.0.7")) == {"wait"}
    assert some.steps("lock-2", at("10.0.0.7")) == {"agent", "dial"}
    assert some.steps("lock-2", None) == {"agent", "dial"}, "that was never connected"
    assert some.steps("lamp", at("10.0.0.7")) == set()
    assert some.steps("lamp", at("10.0.0.7", port=7001)) == {"wait"}, "of another service"


def test_a_rule_of_which_nothing_would_be_done_is_refused(store: Store, names: Registry) -> None:
    rules = made(store, names)._rules
    for steps in ([], ["dial", "agent"]):
        rules.judge({"r": read_rule({"name": "r", "network": "10.0.0.0/8", "when_absent": steps})})
    with pytest.raises(OperationError, match=r"when_absent is dial, and \[absent\] steps has agent: nothing is"):
        rules.judge({"r": read_rule({"name": "r", "network": "10.0.0.0/8", "when_absent": ["dial"]})})
