# SPDX-License-Identifier: Apache-2.0
"""Operators and the rules: what is changed, refused, taken back, tried and explained, by the API as it is asked."""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from errno import ENOSPC
from typing import Any, cast

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import SQLAlchemyError

from appliance.engine import EngineError
from appliance.wire import Command, Own, pack_address
from control.channel.operations import Operations
from control.clients import ruling
from control.clients.giving import Giving
from control.clients.rules import Rules
from control.clients.ruling import Ruling
from control.config import Config, Service, parse
from control.core.access import BODY_MAX
from control.core.errors import OperationError
from control.core.ports import CommandsPort, Outcome
from control.core.states import State
from control.daemon.engine_rules import EngineRules
from control.policy import cascade
from control.store import rules_file
from control.store.store import Store
from tests.databases import Database, Sqlite
from tests.unit.asked import asked, transport
from tests.unit.fake_engine import FakeEngine, key
from tests.unit.test_registry import Rig

CONFIG = """
[[service]]
name = "line"
listen = "10.0.0.1:7000"
server = "10.0.0.9:7000"
[[service]]
name = "web"
listen = "10.0.0.1:7001"
server = "10.0.0.9:7001"
"""


class Box:
    """A daemon's rules, and the API in front of them."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.engine, self.store = rig, rig.engine, rig.store
        self.configure(CONFIG)
        self.rules = self.start()

    def configure(self, text: str) -> None:
        config = parse(text)
        self.configured: tuple[dict[int, Service], Config] = dict(enumerate(config.service, 1)), config

    def start(self) -> Rules:
        """As a daemon does it."""
        self.rules = Rules(self.store, EngineRules(self.engine), lambda: self.configured, self.rig.rules_file)
        self.rules.load()
        ruling = self.ruling = Ruling(self.rules, self.store, EngineRules(self.engine), self.engine, self.rig.locator,
                                      lambda: self.configured)  # fmt: skip
        self.status = ruling.status
        self.given: list[Command] = []
        giving = Giving(cast(CommandsPort, self), self.rig.locator)
        parts: dict[str, Any] = {**dict.fromkeys(Operations.__dataclass_fields__), "ruling": ruling, "giving": giving}
        self.operations = Operations(**parts)
        self.transport = transport(self.operations)
        return self.rules

    def command(self, command: Command, *_: object) -> Future[Outcome]:
        """As a dispatcher has it."""
        self.given.append(command)
        done: Future[Outcome] = Future()
        done.set_result(Outcome(0))
        return done

    def request(self, method: str, path: str, content: Any = None, **more: str) -> httpx.Response:
        """content: JSON, as bytes. more: headers."""
        headers = {"content-type": "application/json", **more}
        return asked(self.transport, method, f"/v1{path}", content=content, headers=headers)

    def ask(self, method: str, path: str, data: Any = None, status: int = 200) -> Any:
        answer = self.request(method, f"/policy{path}", None if data is None else json.dumps(data))
        assert answer.status_code == status, answer.text
        return answer.json()

    def set(self, name: str, status: int = 200, seen: int | None = None, why: str = "", **keys: Any) -> Any:
        edit = {"rule": keys, "who": "ann", "why": why, "seen": seen}
        return self.ask("PUT", f"/rules/{name}", edit, status)

    def quiet_of(self, client: str, service: int = 1) -> int | None:
        """active_quiet in ms that the engine was told for a client; None: the service's."""
        address = int.from_bytes(pack_address(client), "big")
        inside = [e for e in self.engine.entries if e.service == service
                  and (int.from_bytes(e.network, "big") ^ address) >> (128 - e.bits) == 0]  # fmt: skip
        found = max(inside, key=lambda e: e.bits, default=None)
        return self.engine.policies[found.policy].standby_quiet_ms if found else None


@pytest.fixture
def box(database: Database) -> Iterator[Box]:
    rig = Rig(database)
    yield Box(rig)
    rig.close()


@pytest.fixture
def lite(sqlite: Sqlite) -> Iterator[Box]:
    """Where the database does not matter."""
    rig = Rig(cast(Database, sqlite))
    yield Box(rig)
    rig.close()


def test_a_rule_is_in_force_once_it_is_answered_and_after_a_restart(box: Box) -> None:
    told = box.set("cell", network="10.0.0.0/9", active_quiet="30s", why="the NAT")
    assert told == {"version": 1, "changed": [
        {"name": "cell", "before": None, "rule": {"name": "cell", "network": "10.0.0.0/9", "active_quiet": 30.0}},
    ]}  # fmt: skip
    assert [box.quiet_of(client) for client in ("10.0.0.7", "10.200.0.7")] == [30_000, None]
    box.engine.set_rules((), ())
    box.start()
    assert box.quiet_of("10.0.0.7") == 30_000
    told = box.ask("GET", "")
    assert (told["version"], told["error"], told["rule"][0]["name"]) == (1, "", "cell")
    about = told["about"]["cell"]
    assert (about["version"], about["who"], about["why"], about["problems"]) == (1, "ann", "the NAT", [])
    assert box.status() == {"version": 1, "rules": 1, "error": "", "problems": 0, "problem": ""}


def test_setting_a_rule_again_replaces_it_and_the_same_again_changes_nothing(lite: Box) -> None:
    lite.set("r", network="10.0.0.0/9", active_quiet=30)
    told = lite.set("r", service="web", idle_quiet=30)
    assert told["changed"][0]["before"] == {"name": "r", "network": "10.0.0.0/9", "active_quiet": 30.0}
    assert lite.quiet_of("10.0.0.7") is None
    assert lite.set("r", service="web", idle_quiet="30s") == {"version": 2, "changed": []}


def test_a_removed_rule_is_in_force_no_more_and_its_past_is_told(lite: Box) -> None:
    lite.set("r", active_quiet=30)
    told = lite.ask("DELETE", "/rules/r", {"who": "bob", "why": "over"})
    assert (told["version"], told["changed"][0]["rule"]) == (2, None)
    assert lite.engine.entries == ()
    assert [row["version"] for row in lite.ask("GET", "/history?before=2")] == [1]
    past = lite.ask("GET", "/history")
    assert [(row["version"], row["who"], row["rule"] and row["rule"]["active_quiet"], row["why"]) for row in past] == [
        (1, "ann", 30.0, ""), (2, "bob", None, "over"),
    ]  # fmt: skip
    assert "there is no rule" in lite.ask("DELETE", "/rules/r", {"who": "bob"}, 404)["error"]
    assert lite.ask("GET", "/rules/r", status=404)
    lite.set("abc", active_quiet=1)
    assert 'did you mean "abc"?' in lite.ask("GET", "/rules/acb", status=404)["error"]


def test_the_second_of_two_editors_is_told_who_was_first_and_why(box: Box) -> None:
    box.set("a", active_quiet=1)
    seen = box.ask("GET", "")["version"]
    box.set("a", active_quiet=2, why="night shift")
    told = box.set("b", 409, seen=seen, idle_quiet=3)["error"]
    assert "the rules are not those of version 1, which you saw: version 2 is by ann, " in told
    assert told.endswith(": night shift. Look again")
    assert box.ask("GET", "")["version"] == 2
    assert box.set("b", seen=2, idle_quiet=3)["version"] == 3


def test_the_version_of_the_rules_is_an_etag_that_if_match_takes(box: Box) -> None:
    def put(match: str, quiet: int, seen: int | None = None) -> tuple[int, str | None]:
        edit = json.dumps({"rule": {"active_quiet": quiet}, "who": "ann", "seen": seen})
        answer = box.request("PUT", "/policy/rules/a", edit, **{"If-Match": match})
        return answer.status_code, answer.headers.get("ETag")

    assert box.request("GET", "/policy").headers["ETag"] == '"0"'
    assert put('"0"', 1) == (200, '"1"')
    assert box.request("GET", "/policy/rules/a").headers["ETag"] == '"1"'
    for other in ('"0"', "1", 'W/"1"', '"01"', "", "x" * 1000, ",,,"):
        assert put(other, 2) == (412, None), other
    assert put("*", 2) == (200, '"2"')
    assert put('"7", "2"', 3) == (200, '"3"')
    assert put('"3"', 4, seen=2) == (412, None), "both are to hold"
    assert put('"3"', 4, seen=3) == (200, '"4"')
    edits: dict[str, tuple[str, dict[str, Any]]] = {
        "/rules/a": ("DELETE", {}),
        "/rules": ("PUT", {"file": '[[rule]]\nname = "b"\nactive_quiet = 5'}),
        "/rollback": ("POST", {"version": 1}),
    }
    for path, (method, edit) in edits.items():
        content = json.dumps({"who": "ann", **edit})
        answer = box.request(method, f"/policy{path}", content, **{"If-Match": '"3"'})
        assert (answer.status_code, 'the rules are "4" now' in answer.json()["error"]) == (412, True), path
    wrong = json.dumps({"rule": {"active_quiet": 1}, "who": "ann", "why": "x" * 5000})
    answer = box.request("PUT", "/policy/rules/a", wrong, **{"If-Match": '"3"'})
    assert (answer.status_code, "why" in answer.json()["error"]) == (422, True), "what is wrong is told first"
    assert box.ask("GET", "")["version"] == 4


def test_a_rollback_is_a_version_with_what_the_rules_were(box: Box) -> None:
    box.set("a", active_quiet=1)
    box.set("b", network="10.0.0.0/8", active_quiet=2)
    box.set("a", active_quiet=3)
    box.ask("DELETE", "/rules/b", {"who": "ann"})
    told = box.ask("POST", "/rollback", {"version": 2, "who": "bob"})
    assert told["version"] == 5
    assert [one["name"] for one in told["changed"]] == ["a", "b"]
    assert (box.quiet_of("10.0.0.7"), box.quiet_of("11.0.0.7")) == (2_000, 1_000)
    assert {row["why"] for row in box.ask("GET", "/history") if row["version"] == 5} == {"back to version 2"}
    assert box.ask("POST", "/rollback", {"version": 2, "who": "bob"})["changed"] == []
    box.ask("POST", "/rollback", {"version": 0, "who": "bob"})
    assert box.engine.entries == ()
    assert "no version 99" in box.ask("POST", "/rollback", {"version": 99, "who": "bob"}, 404)["error"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"activ_quiet": 5}, "did you mean `active_quiet`?"),
        ({"service": "lin", "active_quiet": 5}, 'there is no service "lin"; did you mean "line"?'),
        ({"network": "2001:db8::/32", "active_quiet": 5}, "nothing can match"),
        ({"network": "10.0.0.0/8", "active_quiet": 5}, "overlaps without order"),
        ({"sleep_keepalive": "none"}, "needs room: [table] filter"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_changes(lite: Box, keys: dict[str, Any], said: str) -> None:
    lite.set("first", network="10.0.0.0/8", active_quiet=1)
    before = lite.engine.rules_set
    assert said in lite.set("r", 422, **keys)["error"]
    another = {"who": "ann", "rule": {"name": "another", "active_quiet": 5}}
    assert "its key `name` says something else" in lite.ask("PUT", "/rules/r", another, 422)["error"]
    assert (lite.ask("GET", "")["version"], lite.engine.rules_set) == (1, before)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"who": "", "rule": {"active_quiet": 1}}, "`who` is a line of text"),
        ({"who": "x" * 256, "rule": {"active_quiet": 1}}, "`who` is a line of text"),
        ({"who": "ann", "why": "a\x00b", "rule": {"active_quiet": 1}}, "`why` is a line of text"),
        ({"who": "ann", "why": "\ud800", "rule": {"active_quiet": 1}}, "`why` is a line of text"),
        ({"who": "ann", "rule": {"\ud800": 1}}, "valid string"),
        ({"who": "ann", "rule": {"active_quiet": 1}, "seen": 2**63}, "seen"),
        ({"who": "ann", "rule": {"active_quiet": 1}, "sean": 1}, "sean"),
        ({"rule": {"active_quiet": 1}}, "who"),
    ],
)
def test_a_change_that_cannot_be_recorded_is_refused(lite: Box, edit: dict[str, Any], said: str) -> None:
    assert said in lite.ask("PUT", "/rules/r", edit, 422)["error"]


def test_a_database_that_is_away_refuses_changes_and_what_is_in_force_stays(box: Box, database: Database) -> None:
    box.set("r", active_quiet=1)
    database.take_away()
    assert "store:" in box.set("r", 503, active_quiet=2)["error"]
    assert box.ask("DELETE", "/rules/r", {"who": "ann"}, 503)
    assert box.quiet_of("10.0.0.7") == 1_000
    assert box.ask("GET", "")["version"] == 1
    database.give_back()


def take_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the rules not be read from the database, until what this returns is called."""
    reading = Store.rules
    monkeypatch.setattr(Store, "rules", lambda *_: (_ for _ in ()).throw(SQLAlchemyError("gone")))
    return lambda: monkeypatch.setattr(Store, "rules", reading)


def test_a_start_without_the_database_has_the_rules_that_it_had_last(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.set("gone", active_quiet=9)
    box.set("r", network="10.0.0.0/9", active_quiet=1)
    box.ask("DELETE", "/rules/gone", {"who": "ann"})
    assert box.rig.rules_file.path.stat().st_mode & 0o777 == 0o600
    back = take_away(monkeypatch)
    box.engine.set_rules((), ())  # as a new one
    rules = box.start()
    assert not rules.loaded
    assert [box.quiet_of(client) for client in ("10.0.0.7", "10.200.0.7")] == [1_000, None]
    told = box.status()["error"]
    assert "cannot be read from the database: gone; until they can, those of version 3 are in force, as /" in told
    assert {one["name"] for one in box.ask("GET", "")["rule"]} == {"r"}
    assert box.ask("GET", "/explain?client=10.0.0.7&service=web")["error"] == told
    sets = box.engine.rules_set
    assert not rules.load()
    assert box.engine.rules_set == sets, "they are in force once"
    rules.apply()
    assert (box.engine.rules_set, box.status()["error"]) == (sets + 1, told), "services came or went"
    assert "cannot be read now" in box.set("r", 503, active_quiet=2)["error"]
    file = '[[rule]]\nname = "r"\nactive_quiet = 2'
    assert box.ask("POST", "/try", {"file": file}, 503)["error"] == told
    back()
    assert rules.load()
    assert box.quiet_of("10.0.0.7") == 1_000
    assert box.status()["error"] == ""
    assert box.set("r", network="10.0.0.0/9", active_quiet=2)["version"] == 4


@pytest.mark.parametrize("kept", ["none", "garbage", "another version", "another database", "too large", "a directory"])
def test_a_start_without_database_and_file_has_no_rules_and_says_so(
    lite: Box,
    kept: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lite.set("r", active_quiet=1)
    file = lite.rig.rules_file.path
    if kept == "none":
        file.unlink()
    elif kept == "garbage":
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    elif kept == "another version":
        file.write_text(file.read_text().replace('"format":1', '"format":2'))
    elif kept == "another database":
        file.write_text(file.read_text().replace("this database", "another"))
    elif kept == "too large":
        monkeypatch.setattr(rules_file, "BYTES_MAX", 10)
    else:
        file.unlink()
        file.mkdir()
    back = take_away(monkeypatch)
    lite.engine.set_rules((), ())
    sets = lite.engine.rules_set
    caplog.clear()
    rules = lite.start()
    assert lite.engine.rules_set == sets, "what sleeps keeps its values"
    assert "until they can, none is in force: " in lite.status()["error"]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (kept != "none") + ["ERROR"]
    rules.apply()
    assert lite.engine.rules_set == sets
    back()
    assert rules.load()
    assert lite.quiet_of("10.0.0.7") == 1_000


def test_without_the_database_the_groups_of_clients_stay_what_they_were(
    lite: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite.set("doors", client="door-*", active_quiet=1)
    names, new = frozenset({next(iter(lite.rules.state.rules.selectors))}), frozenset({"other client x"})
    numbers = lite.rules.group_numbers({names: 1})
    take_away(monkeypatch)
    rules = lite.start()
    assert {entry.group for entry in lite.engine.entries} == {numbers[names]}
    assert rules.group_numbers({names: 1}) == numbers
    for change in (lambda: rules.group_numbers({new: 1}), lambda: rules.forget_groups(keep=())):
        with pytest.raises(OperationError, match="until they can, those of version 1 are in force"):
            change()
    assert rules.groups == numbers


def test_rules_of_the_file_that_the_engine_refuses_are_not_in_force(lite: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    lite.set("r", active_quiet=1)
    take_away(monkeypatch)
    lite.engine.rules_refused = EngineError("no room", ENOSPC)
    lite.start()
    assert "none is in force: " in lite.status()["error"]
    assert lite.ask("GET", "")["rule"] == []


def test_rules_that_cannot_be_kept_in_the_file_are_in_force_and_the_log_tells(
    lite: Box, caplog: pytest.LogCaptureFixture
) -> None:
    lite.rig.rules_file.path.mkdir()
    assert lite.set("r", active_quiet=1)["version"] == 1
    assert lite.quiet_of("10.0.0.7") == 1_000
    [told] = [record.message for record in caplog.records if "cannot be written" in record.message]
    assert "Is a directory" in told


def test_more_than_the_engine_has_room_for_is_refused_before_it_is_written(
    lite: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "POLICIES_MAX", 1)
    assert "different sets of values" in lite.set("r", 422, active_quiet=1)["error"]
    assert lite.ask("GET", "")["version"] == 0


def test_what_the_engine_refuses_is_taken_back_as_a_version(box: Box) -> None:
    box.set("r", active_quiet=1)
    box.engine.rules_refused = EngineError("no room", ENOSPC)
    told = box.set("r", 507, active_quiet=2)["error"]
    assert told == "the engine refuses the rules: no room; the rules are what they were, as version 3"
    box.engine.rules_refused = None
    assert box.ask("GET", "")["rule"] == [{"name": "r", "active_quiet": 1.0}]
    assert box.ask("GET", "/history")[-1]["who"] == "roost"
    assert box.status()["error"] == ""
    assert box.set("r", active_quiet=3)["version"] == 4


def test_a_rule_whose_service_has_gone_stays_applies_to_nothing_and_says_so(lite: Box) -> None:
    lite.set("r", service="web", active_quiet=1)
    lite.configure(CONFIG.partition('[[service]]\nname = "web"')[0])
    lite.rules.apply()
    assert lite.engine.entries == ()
    told = lite.ask("GET", "")
    assert 'there is no service "web"' in told["about"]["r"]["problems"][0]
    assert lite.set("other", active_quiet=5)["version"] == 2, "it is in nobody's way"
    assert "there is no service" in lite.set("r", 422, service="web", active_quiet=2)["error"]
    lite.configure(CONFIG)
    lite.rules.apply()
    assert lite.quiet_of("10.0.0.7", service=2) == 1_000


def test_many_rules_that_do_not_hold_are_listed_and_counted_at_once(
    lite: Box, caplog: pytest.LogCaptureFixture
) -> None:
    file = {"rule": [{"name": f"r{n}", "service": "web", "order": n, "active_quiet": 1} for n in range(3000)]}
    lite.ask("PUT", "/rules", {"file": json.dumps(file), "who": "ann"})
    lite.configure(CONFIG.partition('[[service]]\nname = "web"')[0])
    lite.rules.apply()
    assert "and 2995 more" in caplog.text
    assert len(caplog.records) == 6
    told = lite.ask("GET", "")["about"]
    assert sum(len(one["problems"]) for one in told.values()) == 3000
    assert lite.status()["problems"] == 3000


def test_a_rule_that_is_not_understood_applies_to_nothing_and_can_be_removed(lite: Box) -> None:
    lite.set("good", active_quiet=1)
    lite.store.change_rules({"odd": '{"colour": 3}', "odder": "[]", "oddest": "no JSON"}, "a later version", "", 1)
    lite.start()
    past = {row["name"]: row["rule"] for row in lite.ask("GET", "/history")}
    assert past == {"good": {"name": "good", "active_quiet": 1.0}, "odd": {"colour": 3},
                    "odder": {"not understood": "[]"}, "oddest": {"not understood": "no JSON"}}  # fmt: skip
    assert lite.quiet_of("10.0.0.7") == 1_000
    told = lite.ask("GET", "")
    assert "unknown key `colour`" in told["about"]["odd"]["problems"][0]
    assert lite.ask("DELETE", "/rules/odd", {"who": "ann"})["version"] == 3
    assert list(lite.ask("GET", "")["about"]) == ["good", "odder", "oddest"]


def test_rules_of_a_database_that_was_put_back_come_into_force_with_the_next_change(lite: Box) -> None:
    lite.set("a", active_quiet=1)
    lite.store.change_rules({"b": '{"network": "10.0.0.0/8", "active_quiet": 2}'}, "somebody", "", 1)
    assert lite.set("c", idle_quiet=3)["version"] == 3
    assert lite.quiet_of("10.0.0.7") == 2_000


# -- try --------------------------------------------------------------------------------------------------------------


def connected(engine: FakeEngine, count: int) -> None:
    """Clients 192.0.0.1 and so on, of service 1."""
    for number in range(1, count + 1):
        engine.add(key(number), number, State.IDLE)


def test_a_file_that_is_tried_changes_nothing_and_says_for_how_many_it_would(lite: Box) -> None:
    connected(lite.engine, 10)
    lite.set("old", network="192.0.0.8/29", active_quiet=5)
    file = """
    [[rule]]
    name = "old"
    network = "192.0.0.10/31"
    active_quiet = 5
    [[rule]]
    name = "new"
    network = "192.0.0.0/30"
    idle_quiet = "5m"
    """
    lite.engine.without_slot = {key(number): number for number in (11, 12)}
    told = lite.ask("POST", "/try", {"file": file})
    assert told["without_slot"] == 2, "the engine does not know their values"
    assert told["rules"] == [{"name": "old", "change": "changed"}, {"name": "new", "change": "new"}]
    assert (told["connections"], told["changed"], told["lose"]) == (4, 5, 2)
    (row,) = told["policies"]
    assert (row["service"], row["networks"], row["connections"], row["changed"]) == ("line", ["192.0.0.0/30"], 3, 3)
    assert (row["values"], row["rules"]) == ({"idle_quiet": 300.0}, ["new"])
    assert lite.ask("GET", "")["version"] == 1


def test_what_is_listed_may_be_tried_and_set(lite: Box) -> None:
    lite.set("a", network="10.0.0.0/8", service="line", order=7, active_quiet="never", priority="low")
    lite.set("b", probe_count=3)
    listed = lite.ask("GET", "")
    told = lite.ask("POST", "/try", {"file": json.dumps(listed)})
    assert [one["change"] for one in told["rules"]] == ["same", "same"]
    assert lite.ask("POST", "/try", {"file": json.dumps(lite.ask("GET", "/rules/a"))})["rules"]
    listed["rule"][0]["priority"] = "high"
    told = lite.ask("PUT", "/rules", {"file": json.dumps(listed), "who": "ann"})
    assert [(one["name"], one["rule"]["priority"]) for one in told["changed"]] == [("a", "high")]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (".".join("a" * 5) + " = 1", "a key has more than 4 parts"),
        (".".join("a" * 25_000) + " = 1", "a key has more than 4 parts"),
        ("[a . 'b' .c.\"d\".e]\n", "a key has more than 4 parts"),
        ("[[a.a.a.a.a]]", "a key has more than 4 parts"),
        ("x = [{a=1, b.b.b.b.b = 1}]", "a key has more than 4 parts"),
        ('x = """\n"""""\na.a.a.a.a = 1', "a key has more than 4 parts"),
        ("x = '''\n\\'''''\na.a.a.a.a = 1", "a key has more than 4 parts"),
        ('x = "#"\na.a.a.a.a = 1', "a key has more than 4 parts"),
        ("x = '\\'\na.a.a.a.a = 1", "a key has more than 4 parts"),
        ("x={}\n" * 80_001, "more tables, lists and keys with a dot than 10,000 rules"),
        ("[x]\n" * 80_001, "more tables, lists and keys with a dot than 10,000 rules"),
        ("x=1\n" * 320_001, "more keys than 10,000 rules"),
    ],
    ids=lambda text: text[:20],
)
def test_toml_that_takes_far_more_memory_than_it_is_long_is_refused_before_it_is_read(
    lite: Box, monkeypatch: pytest.MonkeyPatch, file: str, said: str
) -> None:
    def read(_text: str) -> None:
        raise AssertionError("it is read")

    monkeypatch.setattr("control.clients.ruling.tomllib.loads", read)
    assert said in lite.ask("POST", "/try", {"file": file}, 422)["error"]


def test_dots_and_brackets_in_strings_comments_and_numbers_are_no_keys(lite: Box) -> None:
    file = """
        # a.b.c.d.e.f = 1 and [a.b.c.d.e], "\\
        version = 3
        about."odd.name.with.many.dots".version = 2
        [[rule]]
        name = "a.b.c.d.e.f"  # it's a name
        client = "a.b.c.d.e.*"
        network = '10.0.0.0/8'
        active_quiet = 2.5
        [[rule]]
        name = "other"
        network = "::ffff:10.2.3.4/128"
        idle_quiet = 1.25
        in_band_clients = ["done", "quiet"]
    """
    why = 'why = """\n\\""" a.a.a.a.a [a.a.a.a.a] \'\' """""\n'
    told = lite.ask("POST", "/try", {"file": f"report.{why}{file}"})
    assert [(one["name"], one["change"]) for one in told["rules"]] == [("a.b.c.d.e.f", "new"), ("other", "new")]


TOML = st.lists(
    st.sampled_from(["a", ".", '"', "'", '"""', "'''", "\\", "#", "\n", "[", "]", "[[", "{", "}", "=", ",", " ", "1",
                     ".a.a", "a.a.a = 1\n", '"a".', "x = '", 'x = "', "\t", "]]\n"]), max_size=40,
).map("".join)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(TOML)
def test_no_key_that_tomllib_reads_is_longer_than_was_looked_for(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    lengths = [0]
    parse_key = tomllib._parser.parse_key  # type: ignore[attr-defined]

    def parsed(*arguments: Any) -> Any:
        found = parse_key(*arguments)
        lengths.append(len(found[1]))
        return found

    with monkeypatch.context() as patch, suppress(OperationError):
        patch.setattr("tomllib._parser.parse_key", parsed)
        ruling.read_file(file)
    assert max(lengths) <= ruling.PARTS_MAX


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("", "the file has no rules"),
        ("[rules]", "unknown key `rules`"),
        ("rule = 3", "the file has no rules"),
        ('{"rule": [1]}', "the file has no rules"),
        ("{", "neither TOML nor JSON"),
        ("[" * 100_000, "neither TOML nor JSON"),
        ('{"rule": ' + "[" * 100_000, "neither TOML nor JSON"),
        ('[[rule]]\nname = "a"\nactiv_quiet = 1', 'rule "a": unknown key `activ_quiet`'),
        ("[[rule]]\nactive_quiet = 1", "rule number 1: the key `name` is missing"),
        ('[[rule]]\nname = "a"\nactive_quiet = 1\n' * 2, 'two rules have the name "a"'),
    ],
)
def test_a_file_without_good_rules_is_refused(lite: Box, file: str, said: str) -> None:
    assert said in lite.ask("POST", "/try", {"file": file}, 422)["error"]


# -- explain ----------------------------------------------------------------------------------------------------------


def test_every_value_in_force_is_told_with_the_rule_that_gave_it(lite: Box) -> None:
    connected(lite.engine, 1)
    lite.set("all", active_quiet=5, idle_quiet=50)
    lite.set("net", network="192.0.0.0/24", idle_quiet=60)
    lite.engine.own = Own(in_band={"standby_quiet_ms": 7_000}, by_command={"probe_interval_s": 300})
    told = lite.request("GET", "/connections/192.0.0.1:40000/policy").json()
    assert (told["id"], told["client"], told["service"], told["version"]) == (1, "192.0.0.1:40000", "line", 2)
    values = {row["key"]: (row["value"], row["source"]) for row in told["values"]}
    assert values["active_quiet"] == (5.0, "rule all (version 1)")
    assert values["idle_quiet"] == (60.0, "rule net (version 2)")
    assert values["standby_quiet"] == (7.0, "in band")
    assert values["probe_interval"] == (300.0, "by command")
    assert values["priority"] == ("normal", "default")
    assert len(values) == 21
    told = lite.ask("GET", "/explain?client=192.0.0.77&service=web")
    assert {row["key"]: row.get("rule") for row in told["values"]}["idle_quiet"] == "net"


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("client=192.0.0.77&service=wep", 404, 'there is no service "wep"'),
        ("client=thing&service=web", 400, '"thing" is no address'),
        ("client=2001:db8::1&service=web", 400, "no client connects from 2001:db8::1: the service web listens at 10."),
    ],
)
def test_a_client_that_cannot_be_is_not_explained(lite: Box, query: str, status: int, said: str) -> None:
    assert said in lite.ask("GET", f"/explain?{query}", status=status)["error"]


def test_a_connection_whose_service_is_gone_is_told_so(lite: Box) -> None:
    connected(lite.engine, 1)
    lite.configured = {}, lite.configured[1]
    answer = lite.request("GET", "/connections/192.0.0.1:40000/policy")
    assert (answer.status_code, "not configured any more" in answer.text) == (409, True)


# -- what may come ----------------------------------------------------------------------------------------------------


def test_a_body_that_is_too_long_is_refused(lite: Box) -> None:
    long = b"x" * (BODY_MAX + 1)

    async def parts() -> AsyncIterator[bytes]:
        for part in (b'{"file": "', long, b'"}'):
            yield part

    assert lite.request("POST", "/policy/try", long).status_code == 413
    assert lite.request("POST", "/policy/try", parts()).status_code == 413


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from(["active_quiet", "probe_count", "network", "service", "order", "priority", "name", "x"])
NETWORKS = st.sampled_from(["10.0.0.0/8", "::/0", "1.2.3.4", "10.0.0.1/8", "::ffff:10.0.0.0/104", "fe80::1%x/64", "/"])
RULE = st.dictionaries(KEYS, JSON | NETWORKS, max_size=5) | st.just({"active_quiet": 5})
EDIT = st.fixed_dictionaries(
    {"who": st.text(max_size=5) | JSON, "rule": RULE | JSON},
    optional={"why": st.text() | JSON, "seen": JSON, "file": st.text(), "version": JSON},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.text(max_size=10), EDIT | JSON, st.sampled_from(["PUT", "DELETE", "TRY", "ROLL", "FILE"]))
def test_no_body_is_more_than_a_request_that_is_refused(lite: Box, name: str, edit: Any, way: str) -> None:
    method, path = {"TRY": ("POST", "try"), "ROLL": ("POST", "rollback"), "FILE": ("PUT", "rules")}.get(
        way, (way, f"rules/{name.encode('utf-8', 'replace').hex() or 'a'}")
    )
    body = json.dumps(edit).encode()
    answer = lite.request(method, f"/policy/{path}", body)
    assert answer.status_code < 500, (answer.text, body)
    assert answer.status_code == 200 or answer.json()["error"]


@given(st.binary(max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
def test_no_bytes_are_more_than_a_request_that_is_refused(lite: Box, body: bytes) -> None:
    answer = lite.request("PUT", "/policy/rules/a", body)
    assert 400 <= answer.status_code < 500


def test_networks_that_xdp_has_no_memory_for_are_told(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(rules_untold=3)
    assert EngineRules(engine).set_rules([], []) == (3, [])
    assert "XDP had no memory for 3 networks of rules" in caplog.text
