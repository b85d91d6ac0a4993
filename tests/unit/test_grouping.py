# SPDX-License-Identifier: Apache-2.0
"""Rules by name and by tag: the engine knows the group of each connection, and the values of each group."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.lab import wait_until
from appliance.wire import Op
from control.clients import grouping, rules
from control.clients.grouping import Grouping
from control.core.states import State
from control.policy.rules import GROUPS_MAX
from control.store.database import StoreError
from tests.databases import Database
from tests.unit.fake_engine import key, record
from tests.unit.test_policy_operations import CONFIG, Box
from tests.unit.test_registry import Rig


class Names:
    """A daemon with eight clients, of which meter-1 to meter-4 and door-5 to door-8 are names."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.box = rig, Box(rig)
        for number in range(1, 9):
            rig.engine.add(key(number), number, (State.ACTIVE, State.IDLE)[number % 2])
            self.name(("meter", "door")[number > 4] + f"-{number}", number)
        self.grouping = Grouping(rig.engine, rig.store, rig.registry, self.box.rules)
        rig.registry.listen_to_connections(self.grouping.losing, self.grouping.look)
        self.box.rules.listen(self.grouping.look_at_all)
        self.waits, self._is_wanted = False, self.grouping._is_wanted
        self.grouping._is_wanted = self.is_wanted  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self.grouping.run)
        self.thread.start()

    def close(self) -> None:
        """No connection is told anything from now on."""
        self.grouping.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def name(self, name: str, number: int) -> None:
        self.rig.registry.give(name, key(number).pack(), number)

    def tag(self, name: str, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()) -> None:
        self.rig.naming.tag(name, add, remove)
        self.grouping.look(self.rig.tagged)

    def quiet_of(self, number: int) -> int | None:
        """active_quiet in ms that the engine has for a connection; None: the service's own."""
        group = self.groups().get(number, 0)
        ours = [e for e in self.rig.engine.entries if e.service == 1]
        found = next((e for e in ours if e.group == group), next((e for e in ours if not e.group), None))
        return self.rig.engine.policies[found.policy].standby_quiet_ms if found else None

    def groups(self) -> dict[int, int]:
        """The group of each connection."""
        return {number: group for (_, number), group in self.rig.engine.grouped.items()}

    def obey(self, wanted: dict[int, int | None]) -> None:
        """wanted: active_quiet in ms by number; the others have the service's."""
        everyone = dict.fromkeys(range(1, 9), None) | wanted

        def quiets() -> dict[int, int | None]:
            return {number: self.quiet_of(number) for number in everyone}

        wait_until(lambda: quiets() == everyone, 10, f"{everyone}, and not {quiets()}")

    def is_wanted(self) -> bool:
        """As the thread asks: it has looked at all that it took when there is nothing more."""
        wanted = self._is_wanted()
        self.waits = not wanted
        return wanted

    def looked(self) -> None:
        """All that was to be looked at was, and is in force."""

        def is_done() -> bool:
            with self.grouping._work:
                return self.waits and not (self.grouping._all or self.grouping._todo or self.grouping._told)

        wait_until(is_done, 20, "it is looked at")


@pytest.fixture
def names(database: Database) -> Iterator[Names]:
    rig = Rig(database)
    made = Names(rig)
    yield made
    made.close()
    rig.close()


def test_a_rule_for_a_pattern_reaches_clients_with_such_names_and_those_that_get_one(names: Names) -> None:
    names.box.set("meters", client="Meter-*", active_quiet=5)
    names.obey(dict.fromkeys((1, 2, 3, 4), 5000))
    names.name("meter-99", 7)
    names.obey(dict.fromkeys((1, 2, 3, 4, 7), 5000))
    names.name("door-1", 1)
    names.obey(dict.fromkeys((2, 3, 4, 7), 5000))
    names.rig.registry.remove("meter-2")
    names.obey(dict.fromkeys((3, 4, 7), 5000))
    names.box.set("meters", client="meter-?", active_quiet=6)
    names.obey(dict.fromkeys((3, 4), 6000))
    names.box.ask("DELETE", "/rules/meters", {"who": "ann"})
    names.obey({})
    wait_until(lambda: names.rig.store.groups() == {}, 10, "no group is kept")


def test_a_name_that_another_connection_takes_leaves_the_first_without(names: Names) -> None:
    names.box.set("one", client="meter-3", active_quiet=5)
    names.obey({3: 5000})
    names.name("meter-3", 2)
    names.obey({2: 5000})


def test_a_rule_for_a_tag_reaches_those_that_have_it(names: Names) -> None:
    names.tag("meter-1", add=("winter",))
    names.tag("door-5", add=("winter", "east"))
    names.box.set("cold", tag="winter", active_quiet=5)
    names.obey({1: 5000, 5: 5000})
    names.tag("meter-1", remove=("winter",))
    names.tag("meter-2", add=("winter",))
    names.obey({2: 5000, 5: 5000})
    names.box.set("both", tag="winter", client="door-*", active_quiet=6)
    names.obey({2: 5000, 5: 6000})


def test_rules_that_give_the_same_to_a_client_by_two_tags_need_an_order(names: Names) -> None:
    names.tag("meter-1", add=("a", "b"))
    names.box.set("one", tag="a", active_quiet=5)
    names.box.set("other", tag="b", active_quiet=6)
    wait_until(lambda: bool(names.box.rules.problems), 10, "it is told")
    assert "overlaps without order" in names.box.rules.problems[0].text
    names.obey({1: 6000})  # the later one in the alphabet
    names.box.set("one", tag="a", active_quiet=5, order=1)
    names.obey({1: 5000})
    assert names.box.rules.problems == []
    told = names.box.set("other", status=422, tag="b", active_quiet=6, order=1)
    assert "overlaps without order" in told["error"]


def test_the_next_daemon_has_the_same_groups_and_tells_them_anew(names: Names) -> None:
    names.box.set("meters", client="meter-*", active_quiet=5)
    names.box.set("one", client="meter-1", idle_quiet=5)
    names.obey(dict.fromkeys((1, 2, 3, 4), 5000))
    names.looked()
    before, numbers = names.groups(), dict(names.box.rules.groups)
    names.close()
    later = names.box.start()
    assert later.groups == numbers == names.rig.store.groups()
    assert {entry.group for entry in names.rig.engine.entries} == {*numbers.values()}
    names.rig.engine.grouped.clear()
    names.grouping = Grouping(names.rig.engine, names.rig.store, names.rig.registry, later)
    names.grouping._look_at_all()
    assert names.groups() == {number: group for number, group in before.items() if group}
    assert later.groups == numbers


def test_while_the_database_is_away_nothing_changes_and_it_is_caught_up(
    names: Names, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grouping, "AGAIN_S", 0.05)
    names.box.set("cold", tag="winter", active_quiet=5)
    names.tag("meter-1", add=("winter",))
    names.obey({1: 5000})
    written = names.rig.store.write_groups

    def refuse(_wanted: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(names.rig.store, "write_groups", refuse)
    names.box.set("east", tag="east", idle_quiet=9)
    names.tag("meter-2", add=("winter", "east"))
    wait_until(lambda: "not in force for every client" in caplog.text, 10, "it is told")
    assert names.quiet_of(2) is None
    monkeypatch.setattr(names.rig.store, "write_groups", written)
    names.obey({1: 5000, 2: 5000})
    wait_until(lambda: "in force again" in caplog.text, 10, "it is told")


def test_more_sets_than_there_is_room_for_are_told_and_given_room_later(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "GROUPS_MAX", 3)
    for number in range(1, 5):
        names.box.set(f"r{number}", client=f"meter-{number}", active_quiet=number)
    names.looked()
    wait_until(lambda: bool(names.box.rules.problems), 10, "it is told")
    (problem,) = names.box.rules.problems
    assert "there is no room for each set of rules with `client` or `tag`" in problem.text
    assert sum(names.quiet_of(number) is None for number in range(1, 5)) == 1
    names.box.ask("DELETE", "/rules/r1", {"who": "ann"})
    names.obey({2: 2000, 3: 3000, 4: 4000})
    wait_until(lambda: not names.box.rules.problems, 10, "there is room")


def test_a_rule_that_had_no_room_may_be_changed_and_removed(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "GROUPS_MAX", 1)
    names.box.set("r1", client="meter-1", active_quiet=1)
    names.looked()
    names.box.set("r2", client="meter-2", active_quiet=2)
    wait_until(lambda: bool(names.box.rules.problems), 10, "it is told")
    assert names.box.rules.problems[0].rules == ("r2",)
    names.box.set("r2", client="meter-2", active_quiet=3)
    names.box.ask("DELETE", "/rules/r2", {"who": "ann"})
    wait_until(lambda: not names.box.rules.problems, 10, "all have theirs")


def test_a_group_that_the_engine_has_not_carried_out_yet_is_not_taken_for_the_one_before(names: Names) -> None:
    """A page of names is read, then a name is forgotten, and only then what the page said is told."""
    names.box.set("meters", client="meter-*", active_quiet=5)
    names.obey(dict.fromkeys((1, 2, 3, 4), 5000))
    names.close()
    one, engine = (key(1).pack(), 1), names.rig.engine
    names.rig.registry.remove("meter-1")
    engine.grouping = False  # it carries out later
    engine.commands.clear()
    names.grouping._tell({one: frozenset({"meters client=meter-*"})})
    names.grouping._look_at_some()
    told = [command.overrides[-1] for command in engine.commands]
    assert len(told) == 2
    assert told[0] != told[1] == 0


def test_there_is_room_for_as_many_groups_as_a_byte_counts(names: Names) -> None:
    sets = {frozenset({f"r{number}"}): number % 2 + 1 for number in range(GROUPS_MAX + 1)}
    numbers = names.box.rules.group_numbers(sets)
    assert sorted(numbers.values()) == list(range(GROUPS_MAX + 1))
    assert len(names.box.rules.problems) == 1
    assert names.box.rules.forget_groups(keep=[]), "there is room for those that had none"
    assert names.box.rules.problems == []
    names.box.configure(CONFIG.partition('[[service]]\nname = "web"')[0])
    assert 0 not in names.box.rules.group_numbers(dict.fromkeys([*sets][1:], 1)).values(), "all are for one service"


def test_no_service_takes_the_groups_of_the_others(names: Names) -> None:
    """Servers may tag the clients of their own service."""
    names.close()
    sets = [frozenset({f"r{number}"}) for number in range(GROUPS_MAX + 70)]
    numbers = names.box.rules.group_numbers(dict.fromkeys(sets[:GROUPS_MAX], 1))
    assert [*numbers.values()].count(0) == GROUPS_MAX // 4
    (problem,) = names.box.rules.problems
    assert f'(255 at most, a share of them for each service; "line" has {GROUPS_MAX - GROUPS_MAX // 4})' in problem.text
    numbers = names.box.rules.group_numbers(dict.fromkeys(sets[GROUPS_MAX:], 2))
    assert [*numbers.values()].count(0) == 70 - GROUPS_MAX // 4


@pytest.mark.parametrize("at_once", [False, True])
def test_no_service_takes_the_sets_of_values_of_the_others(
    names: Names, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """A group has as many as there are networks with values of their own at all services that its rules are for."""
    names.close()
    for one in range(4):
        names.box.set(f"net{one}", network=f"10.{one}.0.0/16", idle_quiet=50 + one)
    for one in range(12):
        names.box.set(f"r{one}", tag=f"t{one}", active_quiet=100 + one)
    most = len(names.rig.engine.policies) + 80
    monkeypatch.setattr(rules, "POLICIES_MAX", most)
    ours, theirs = [[frozenset({f"r{one} tag=t{one}"}) for one in several] for several in (range(9), range(9, 12))]
    for several in [ours] if at_once else [[one] for one in ours]:
        names.box.rules.group_numbers(dict.fromkeys(several, 1))
    numbers = [*names.box.rules.group_numbers(dict.fromkeys(ours, 1)).values()]
    assert numbers.count(0) == 3, "ten sets for each: one more would be of the share of the others"
    (problem,) = names.box.rules.problems
    said = 'different sets of values, with them: 80 at most, a share of them for each service; "line" has 70'
    assert f"({said})" in problem.text
    both = names.box.rules.group_numbers({**dict.fromkeys(ours, 1), theirs[0]: 2})
    assert both[theirs[0]], "what there is no room for of one service keeps no other's out"
    assert 0 not in [names.box.rules.group_numbers({one: 2})[one] for one in theirs[:2]]
    assert len(names.rig.engine.policies) == most


def test_which_service_has_a_group_is_known_of_its_clients_after_a_restart_too(names: Names) -> None:
    names.rig.engine.add(key(9), 9, State.IDLE).record = record(key(9), 9, service=2)
    names.name("door-9", 9)
    names.box.set("one", client="door-9", active_quiet=5)
    names.box.set("meters", client="meter-*", active_quiet=5)
    names.looked()
    for _ in range(2):
        held = {next(iter(selectors)).split()[0]: of for selectors, of in names.box.rules._holders.items()}
        assert held == {"one": 2, "meters": 1}
        names.close()
        later = names.box.start()
        assert not later._holders
        names.grouping = Grouping(names.rig.engine, names.rig.store, names.rig.registry, later)
        names.grouping._look_at_all()


def test_groups_that_the_engine_has_no_room_for_leave_all_other_rules_as_they_are(names: Names) -> None:
    names.box.set("net", network="0.0.0.0/0", idle_quiet=7)
    names.looked()
    names.rig.engine.rules_refused_for_groups = True
    names.box.set("meters", client="meter-*", active_quiet=5)
    wait_until(lambda: bool(names.box.rules.problems), 10, "it is told")
    assert "no room for 1 group" in names.box.rules.problems[0].text
    assert (names.box.rules.groups, names.rig.store.groups(), names.box.rules.error) == ({}, {}, "")
    assert [entry.group for entry in names.rig.engine.entries if entry.service == 1] == [0]
    names.rig.store.write_groups({frozenset({"meters client=meter-*"}): 3})  # as where there was room before
    later = names.box.start()
    assert later.error == ""
    assert [entry.group for entry in names.rig.engine.entries if entry.service == 1] == [0]
    assert len(later.problems) == 1


def test_a_connection_that_has_the_4_tuple_of_a_dead_one_keeps_its_own_group(names: Names) -> None:
    names.box.set("meters", client="meter-*", active_quiet=5)
    names.obey(dict.fromkeys((1, 2, 3, 4), 5000))
    names.looked()
    engine = names.rig.engine
    del engine.connections[key(1)]
    engine.add(key(1), 20, State.ACTIVE)
    engine.commands.clear()
    names.tag("meter-1", add=("winter",))
    names.rig.registry.remove("meter-1")
    names.looked()
    assert Op.GIVE not in engine.ops()


def test_whoever_loses_its_name_is_in_no_group_before_the_database_knows(names: Names) -> None:
    names.box.set("meters", client="meter-*", active_quiet=5)
    names.obey(dict.fromkeys((1, 2, 3, 4), 5000))
    names.close()
    names.rig.registry.remove("meter-1")
    names.obey(dict.fromkeys((2, 3, 4), 5000))


def test_whoever_was_told_in_vain_is_told_again_and_then_it_is_said(
    names: Names, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grouping, "CHECK_S", 0.05)
    names.rig.engine.grouping = False
    names.box.set("one", client="meter-1", active_quiet=5)
    wait_until(lambda: "do not get the values of rules by name or tag" in caplog.text, 10, "it is said")
    assert names.rig.engine.ops().count(Op.GIVE) == grouping.CHECKS + 1
    names.rig.engine.grouping = True
    names.grouping.look_at_all()
    names.obey({1: 5000})


def test_what_one_of_them_raises_ends_nothing(
    names: Names, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grouping, "AGAIN_S", 0.05)
    names.rig.engine.submit_refused = RuntimeError("the mailbox is closed")
    names.box.set("one", client="meter-1", active_quiet=5)
    wait_until(lambda: "the mailbox is closed" in caplog.text, 10, "it is told")
    names.rig.engine.submit_refused = None
    names.obey({1: 5000})


def test_another_pattern_for_a_rule_takes_its_values_from_who_was_in_it_at_once(names: Names) -> None:
    names.box.set("kind", client="meter-*", active_quiet=5)
    names.obey(dict.fromkeys((1, 2, 3, 4), 5000))
    names.close()  # no command is sent from now on
    names.box.set("kind", client="door-*", active_quiet=6)
    names.obey({})


def test_numbers_of_groups_are_given_again_last(names: Names) -> None:
    first = names.box.rules.group_numbers({frozenset("a"): 1})
    names.box.rules.forget_groups(keep=[])
    assert set(names.box.rules.group_numbers({frozenset("b"): 1}).values()).isdisjoint(first.values())


def test_what_gave_a_value_is_explained_and_a_try_tells_how_many_names(names: Names) -> None:
    names.box.set("meters", client="meter-*", active_quiet=5)
    names.obey(dict.fromkeys((1, 2, 3, 4), 5000))
    ruling = names.box.ruling
    for called, said in (("meter-1", "rule meters (version 1)"), ("door-5", "default")):
        told = {one["key"]: one["source"] for one in ruling.explain(f"{called}.roost")["values"]}
        assert told["active_quiet"] == said
    file = json.dumps({"rule": [{"name": "doors", "client": "door-*", "active_quiet": 1}]})
    assert ruling.attempt(file)["rules"] == [{"name": "doors", "change": "new", "names": 4}]


def test_what_a_service_cannot_have_is_refused_before_a_client_has_the_name(names: Names) -> None:
    bare = 'server = "10.0.0.9:7001"\nsleep_keepalive = "none"\nprobe_interval = "never"'
    names.box.configure("[table]\nfilter = 5\n" + CONFIG.replace('server = "10.0.0.9:7001"', bare))
    names.box.rules.apply()
    told = names.box.set("often", status=422, client="nobody-*", probe_interval="5m")
    assert 'rule "often", service "web": sleep_keepalive = "none"' in told["error"]
    names.box.set("often", client="nobody-*", service="line", probe_interval="5m")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"client": "a*b*c*d*e*"}, "at most 4 `*`"),
        ({"client": "meter one"}, "`client` is a client's name without the domain"),
        ({"client": ""}, "`client` is a client's name without the domain"),
        ({"tag": "win*"}, "`tag` is a tag of names"),
        ({"client": "meter-*", "sleep_keepalive": "none"}, "`sleep_keepalive` is not given by rules with `client`"),
    ],
)
def test_what_is_no_condition_is_refused(names: Names, keys: dict[str, Any], said: str) -> None:
    assert said in names.box.set("wrong", status=422, **{"active_quiet": 1, **keys})["error"]
    assert names.box.rules.state.rules.rules == {}
