# SPDX-License-Identifier: Apache-2.0
"""`roost policy`: what is typed reaches the rules, and what is told can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from control.cli import policy, rule
from control.cli.client import Client
from control.core.states import State
from tests.databases import Database, Sqlite
from tests.unit.fake_engine import key
from tests.unit.test_policy_operations import Box
from tests.unit.test_registry import Rig


@pytest.fixture
def box(sqlite: Sqlite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """A daemon that the commands reach."""
    rig = Rig(cast(Database, sqlite))
    made = Box(rig)

    def send(_self: Client, method: str, path: str, data: Any = None) -> Any:
        answer = made.request(method, path.removeprefix("/v1"), None if data is None else json.dumps(data))
        if answer.status_code >= 400:
            raise click.ClickException(answer.json()["error"])
        return answer.json()

    monkeypatch.setattr(Client, "send", send)
    monkeypatch.setenv("SUDO_USER", "ann")
    yield made
    rig.close()


def run(*words: str, fails: str = "") -> str:
    result = CliRunner().invoke(policy.command, list(words))
    assert bool(result.exit_code) == bool(fails), result.output
    assert fails in result.output
    return result.output


def test_a_rule_for_names_is_set_and_tried(box: Box, tmp_path: Path) -> None:
    told = run("set", "meters", "--client", "Meter-*", "--tag", "winter", "idle_quiet=5m")
    assert told == "meters: client=meter-* tag=winter idle_quiet=5m\nversion 1\n"
    assert run("list").splitlines()[1].split()[:5] == ["meters", "meter-*", "winter", "all", "all"]
    file = tmp_path / "rules.toml"
    file.write_text('[[rule]]\nname = "doors"\nclient = "door-*"\nidle_quiet = "1m"\n')
    assert "doors: new, for 0 names" in run("try", str(file))
    run("set", "doors", "client=door-*", "idle_quiet=1m", fails="write --client door-*")


def test_a_rule_is_set_listed_explained_rolled_back_and_removed(box: Box) -> None:
    assert "no rules" in run("list")
    assert run("set", "cell", "--network", "10.0.0.0/9", "active_quiet=90s", "priority=low", "--why", "the NAT") == (
        "cell: network=10.0.0.0/9 active_quiet=1m30s priority=low\nversion 1\n"
    )
    told = run("set", "cell", "--service", "line", "--order", "-2", "idle_quiet=never")
    assert "cell: service=line order=-2 idle_quiet=never (it was network=10.0.0.0/9 active_quiet=1m30s" in told
    listed = run("list").splitlines()
    assert listed[0].split() == [
        "rule",
        "client",
        "tag",
        "network",
        "service",
        "server",
        "order",
        "gives",
        "version",
        "by",
    ]
    assert listed[1].split() == ["cell", "all", "all", "all", "line", "all", "-2", "idle_quiet=never", "2", "ann"]
    assert listed[2] == "version 2"
    assert "idle_quiet" in run("show", "cell")
    explained = {
        line.split()[0]: line.split()[1:] for line in run("explain", "10.0.0.7", "--service", "line").splitlines()
    }
    assert explained["idle_quiet"] == ["never", "rule", "cell", "(version", "2)"]
    assert explained["probe_interval"] == ["18h", "default"]
    assert "version 3" in run("rollback", "1", "--seen", "2")
    assert "cell: none (it was network=10.0.0.0/9" in run("remove", "cell", "--why", "over")
    past = run("history").splitlines()
    assert [line.split()[0] for line in past] == ["version", "1", "2", "3", "4"]
    assert "the NAT" in past[1]
    assert "back to version 1" in past[3]
    assert len(run("history", "cell", "--limit", "1").splitlines()) == 2


def test_a_connection_is_explained(box: Box) -> None:
    box.engine.add(key(1), 1, State.IDLE)
    told = run("explain", "192.0.0.1:40000")
    assert told.startswith("1 192.0.0.1:40000, service line: IDLE; rules of version 0")


def test_one_connection_is_given_values_and_they_are_taken_away(box: Box) -> None:
    box.engine.add(key(1), 7, State.IDLE)
    client = key(1).client_text
    told = run("give", client, "idle_quiet=1h30m", "probe_interval=never", "--why", "a test")
    assert told == f"7 {client}, IDLE: idle_quiet=1h30m, probe_interval=never\n"
    assert run("take", client, "idle_quiet") == f"7 {client}, IDLE: idle_quiet of its policy\n"
    assert [(command.count, command.id) for command in box.given] == [(4 | 8, 7), (4, 7)]
    assert json.loads(run("give", client, "idle_quiet=2", "--json"))["values"] == {"idle_quiet": 2.0}
    run("give", client, "idl_quiet=1h", fails="`idl_quiet` is no key")
    run("give", client, "idle_quiet", fails='"idle_quiet" is no key=value')
    run("give", client, fails="Missing argument")
    run("take", "198.51.100.9:1", "idle_quiet", fails="no connection")


def test_the_second_editor_is_told(box: Box) -> None:
    run("set", "a", "active_quiet=1")
    run("set", "a", "active_quiet=2", "--why", "night shift")
    run("set", "a", "active_quiet=3", "--seen", "1", fails="night shift. Look again")
    run("set", "a", "activ_quiet=3", fails="did you mean `active_quiet`?")
    assert run("set", "a", "active_quiet=2s").startswith("nothing changes: version 2 stays")


def test_what_is_listed_as_json_is_a_file_that_can_be_tried_and_set(box: Box, tmp_path: Path) -> None:
    for number in range(1, 9):
        box.engine.add(key(number), number, State.IDLE)
    run("set", "net", "--network", "192.0.0.0/29", "active_quiet=5m")
    path = tmp_path / "rules.json"
    path.write_text(run("list", "--json").replace("300.0", '"10m"'))
    tried = run("try", str(path))
    assert tried.startswith("net: changed\n7 connections would have other values than now; 0 of them")
    assert ["line", "192.0.0.0/29", "7", "7", "active_quiet=10m", "net"] in [row.split() for row in tried.splitlines()]
    assert "without a slot" not in tried
    box.engine.without_slot = {key(number): number for number in range(1000, 3000)}
    assert "\n2,000 more sleep without a slot, and are not counted\n" in run("try", str(path))
    assert json.loads(run("try", str(path), "--json"))["changed"] == 7
    run("set", "--file", str(path), "--why", "tried")
    assert json.loads(run("show", "net", "--json"))["rule"][0]["active_quiet"] == 600.0
    assert run("try", str(path)).startswith("net: as it is\n")
    path.write_bytes(b"\xff")
    run("try", str(path), fails="cannot read it")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "takes a NAME and key=value, or --file"),
        (("a", "active_quiet"), '"active_quiet" is no key=value'),
        (("a", "network=10.0.0.0/8"), "write --network 10.0.0.0/8"),
        (("a", "idle_quiet=1", "idle_quiet=2"), "idle_quiet is given twice"),
        (("a",), "it gives no value"),
        (("--file", __file__, "a"), "the rules stand in the file"),
    ],
)
def test_what_cannot_be_meant_is_told(box: Box, words: tuple[str, ...], said: str) -> None:
    run("set", *words, fails=said)


def test_a_rule_that_does_not_hold_is_told_with_the_list(box: Box) -> None:
    run("set", "web", "--service", "web", "active_quiet=1")
    box.configured = {}, box.configured[1]
    box.rules.apply()
    assert '! rule "web": there is no service "web"' in run("list")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "never"),
        (0.25, "0.25s"),
        (90.0, "1m30s"),
        (64800.0, "18h"),
        (90061.5, "1d1h1m1.5s"),
        (4, "4"),
        ("low", "low"),
    ],
)
def test_a_value_is_shown_as_it_is_written(value: object, text: str) -> None:
    assert rule.value_text(value) == text
