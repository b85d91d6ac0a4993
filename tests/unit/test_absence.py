# SPDX-License-Identifier: Apache-2.0
"""Which steps of [absent] are tried for which client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from appliance.wire import Key
from control.clients.absence import Absence
from control.clients.registry import Named, Registry
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
[absent]
steps = ["agent", "wait"]
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


EVERYWHERE = """
[[service]]
name = "everywhere"
listen = "0.0.0.0:7001"
server = "192.0.2.2:7009"
when_absent = "agent"
"""


def absence(store: Store, names: Registry, services: Mapping[int, Service], config: Config,
            *rules: dict[str, Any]) -> Absence:  # fmt: skip
    made = Rules(store, cast(RulesPort, None), lambda: (services, config), store.rules_file)
    row = RuleRow(1, "", 1, "ann", "", "")
    made.loaded = True
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


def made(store: Store, names: Registry, *rules: dict[str, Any], text: str = CONFIG) -> Absence:
    config = parse(text)
    return absence(store, names, dict(enumerate(config.service, 1)), config, *rules)


def steps(of: Absence, name: str, client: str = "", local: str = "192.0.2.1", port: int = 7000,
          agent: int = 0) -> set[str]:  # fmt: skip
    """client: where it was, "": it was never connected. agent: one speaks for it, of this service."""
    key = Key.of(client or "10.0.0.99", 40_000, local, 7777 if agent else port).pack()

    async def last() -> Named | None:
        return Named(key, 7, 1, False) if client else None

    async def by_agent() -> Named | None:
        return Named(key, 8, 1, True, agent) if agent else None

    return set(asyncio.run(of.of_name(name, last, by_agent)))


async def never() -> Named | None:
    raise AssertionError("it was read")


def test_without_a_word_about_it_all_are_tried_and_nothing_is_read(store: Store, names: Registry) -> None:
    said = CONFIG.replace('when_absent = "agent, dial"', "").replace('when_absent = ["wait"]', "")
    plain = made(store, names, {"name": "r", "network": "10.0.0.0/8", "active_quiet": 3}, text=said)
    assert asyncio.run(plain.of_name("lamp", never, never)) == plain.of_address("10.0.0.7") == {"agent", "dial", "wait"}
    some = made(store, names, {"name": "r", "tag": "x", "when_absent": []}, text=said)
    with pytest.raises(AssertionError, match="it was read"):
        asyncio.run(some.of_name("lamp", never, never))


def test_a_service_says_it_by_which_the_client_came(store: Store, names: Registry) -> None:
    plain = made(store, names, text=CONFIG + EVERYWHERE)
    places: list[tuple[tuple[Any, ...], set[str]]] = [
        (("10.0.0.7",), {"agent", "dial"}),
        (("10.0.0.7", "192.0.2.1", 7001), {"wait"}),
        (("10.0.0.7", "192.0.2.9", 7001), {"agent"}),
        (("10.0.0.7", "192.0.2.1", 9), {"agent", "dial"}),
        (("2001:db8::7", "2001:db8::1"), {"agent", "dial"}),
        (("",), {"agent", "dial"}),
    ]
    for where, found in places:
        assert steps(plain, "lamp", *where) == found, where
    assert plain.of_address("10.0.0.7") == {"agent", "dial"}, "a service is not known of it"


def test_rules_say_it_by_network_name_and_tag(store: Store, engine: FakeEngine, names: Registry) -> None:
    for number, name in enumerate(("lock-1", "lock-2", "lamp"), 7):
        key = Key.of(f"10.0.0.{number}", 40_000, "192.0.2.1", 7000)
        engine.add(key, number, State.IDLE)
        names.give(name, key.pack(), number)
    assert written(store)
    store.change_tags("lock-2", ["mains"], [])
    some = made(store, names,
                {"name": "net", "network": "10.0.0.0/8", "when_absent": ["wait"]},
                {"name": "part", "network": "10.1.0.0/16", "when_absent": ["agent"]},
                {"name": "all", "order": 7, "network": "0.0.0.0/0", "active_quiet": 3, "when_absent": "none"},
                {"name": "mains", "tag": "mains", "when_absent": ["dial", "agent"]},
                {"name": "lamps", "client": "lamp*", "service": "alarms", "when_absent": []})  # fmt: skip
    assert some.of_address("10.0.0.7") == {"wait"}
    assert some.of_address("10.1.0.7") == {"agent"}
    assert some.of_address("11.0.0.7") == set()
    assert some.of_address("2001:db8::7") == {"agent", "dial"}
    assert steps(some, "lock-1", "10.0.0.7") == {"wait"}
    assert steps(some, "lock-1") == {"agent", "dial"}, "of one that was never connected no network is known"
    assert steps(some, "lock-2", "10.0.0.7") == steps(some, "lock-2") == {"agent", "dial"}
    assert steps(some, "lamp", "10.0.0.7") == set()
    assert steps(some, "lamp", "10.0.0.7", "192.0.2.1", 7001) == {"wait"}, "of another service"
    assert steps(some, "lamp", agent=1) == set()
    assert steps(some, "lamp", agent=2) == {"wait"}, "what its service says, whatever network its agent is in"


def test_while_tags_cannot_be_read_a_server_is_told(database: Database, store: Store, names: Registry) -> None:
    some = made(store, names, {"name": "mains", "tag": "mains", "when_absent": ["dial"]})
    database.take_away()
    with pytest.raises(OSError, match="its tags cannot be read"):
        steps(some, "lamp", "10.0.0.7")
    database.give_back()


def test_before_rules_can_be_read_none_is_reached_that_a_rule_may_forbid(store: Store, names: Registry) -> None:
    some = made(store, names)
    some._rules.loaded = False
    with pytest.raises(OSError, match="the rules cannot be read yet"):
        some.of_address("10.0.0.7")
    with pytest.raises(OSError, match="the rules cannot be read yet"):
        steps(some, "lamp")


def test_a_rule_of_which_nothing_would_be_done_is_refused(store: Store, names: Registry) -> None:
    rules = made(store, names)._rules
    for said in ([], ["dial", "agent"]):
        rules.judge({"r": read_rule({"name": "r", "network": "10.0.0.0/8", "when_absent": said})})
    with pytest.raises(OperationError, match=r"when_absent is dial, and \[absent\] steps has agent, wait: nothing is"):
        rules.judge({"r": read_rule({"name": "r", "network": "10.0.0.0/8", "when_absent": ["dial"]})})
