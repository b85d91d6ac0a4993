# SPDX-License-Identifier: Apache-2.0
"""`roost policy recommend`: a file changes intervals of rules and nothing else, and what is put is what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark.recommending import Cell, judged, recommendations
from tests.unit.test_estimating import drawn
from tests.unit.test_policy_command import box, run
from tests.unit.test_policy_operations import Box

__all__ = ["box"]

WHY = "silent connections are lost after 1,800 s"


def content(box: Box, name: str) -> dict[str, Any] | None:
    found = {rule["name"]: rule for rule in box.ruling.all()["rule"]}
    return found.get(name)


def written(path: Path, *rules: dict[str, Any], version: int = 1, **about: Any) -> str:
    """A file of these rules; about: of each that has none, what a report would say."""
    told = {rule["name"]: {"why": WHY, "new": False} | about for rule in rules}
    path.write_text(json.dumps({"report": "november", "version": version, "rule": list(rules), "about": told}))
    return str(path)


@pytest.fixture
def carrier(box: Box) -> dict[str, Any]:
    run("set", "carrier", "--network", "10.64.0.0/10", "probe_interval=1m", "most_probe_interval=1h", "priority=low")
    found = content(box, "carrier")
    assert found is not None
    return found


def test_what_a_report_writes_changes_the_interval_and_shows_the_rule(
    box: Box, carrier: dict[str, Any], tmp_path: Path
) -> None:
    rules = {"carrier": {key: value for key, value in carrier.items() if key != "name"}}
    found = [judged(Cell(service, rule, drawn(3, 20_000, 600), 2.0, 20_000), 0.01)
             for service, rule in (("line", "carrier"), ("web", None))]  # fmt: skip
    made = recommendations(found, rules, 1, "november")
    file = tmp_path / "file.json"
    file.write_text(json.dumps(made))
    told = run("recommend", str(file))
    to = "9m"
    assert found[0].recommended_s == 540, "drawn anew: write another interval here"
    before = "network=10.64.0.0/10 probe_interval=1m most_probe_interval=1h priority=low"
    assert f"carrier: network=10.64.0.0/10 priority=low probe_interval={to} (it was {before})\n" in told
    assert f"report-web: service=web probe_interval={to} (new)\n" in told
    assert content(box, "carrier") == carrier
    run("recommend", str(file), "--apply")
    del carrier["most_probe_interval"]
    assert content(box, "carrier") == carrier | {"probe_interval": 540}
    assert content(box, "report-web") == {"name": "report-web", "service": "web", "probe_interval": 540}


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "another value": ({"new_clients": "refuse"}, "new_clients"),
    "another network": ({"network": "0.0.0.0/0"}, "network"),
    "no network": ({"network": None}, "network"),
    "a service": ({"service": "line"}, "service"),
    "a value that another service has": ({"priority": "high"}, "priority"),
    "no interval": ({"probe_interval": None, "most_probe_interval": None}, "no interval"),
    "no duration": ({"probe_interval": "soon"}, '"soon" is no duration'),
}


@pytest.mark.parametrize("apply", [[], ["--apply"]])
@pytest.mark.parametrize("what", list(OTHERS))
def test_a_rule_in_which_more_than_the_interval_is_another_is_refused(
    box: Box, carrier: dict[str, Any], tmp_path: Path, what: str, apply: list[str]
) -> None:
    changed, said = OTHERS[what]
    rule = {key: value for key, value in (carrier | {"probe_interval": "25m"} | changed).items() if value is not None}
    run("recommend", written(tmp_path / "file", rule), *apply, fails=said)
    assert content(box, "carrier") == carrier


@pytest.mark.parametrize("changed", [{"new_clients": "refuse"}, {"tag": "x"}, {"order": 3}, {"service": None}])
def test_a_new_rule_has_a_service_a_network_and_an_interval_alone(
    box: Box, tmp_path: Path, changed: dict[str, Any]
) -> None:
    rule = {"name": "try", "service": "line", "network": "10.1.0.0/16", "probe_interval": "5m"}
    wrong = {key: value for key, value in (rule | changed).items() if value is not None}
    run("recommend", written(tmp_path / "file", wrong, version=0, new=True), "--apply", fails=next(iter(changed)))
    assert content(box, "try") is None
    run("recommend", written(tmp_path / "file", rule, version=0, new=True), "--apply")
    assert content(box, "try") == rule | {"probe_interval": 300}


def test_a_version_that_is_not_there_yet_and_a_rule_of_which_nothing_is_said_are_refused(
    box: Box, carrier: dict[str, Any], tmp_path: Path
) -> None:
    rule = carrier | {"probe_interval": "25m"}
    run("recommend", written(tmp_path / "file", rule, version=10**9), fails="version 1,000,000,000 of the rules")
    file = tmp_path / "file"
    file.write_text(json.dumps({"report": "november", "version": 1, "rule": [rule], "about": {}}))
    run("recommend", str(file), "--apply", fails="of the rule carrier it does not say why")
    assert content(box, "carrier") == carrier
