# SPDX-License-Identifier: Apache-2.0
"""GET /metrics: each number of the status under its name, and the rules, documents and pictures made of them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import WebSocketRoute

from appliance.wire import Census
from cext._engine import ffi, lib
from control.api import metrics as module
from control.api.metrics import COUNTERS, GAUGES, TABLE, Counted, Metrics, families, find
from control.channel.attention import WATCHED
from control.core.access import Role
from control.core.states import State
from control.dev.monitoring import ALERTS, written
from control.dispatch.turn import Counters
from control.reach.attaches import BOUNDS_S, Attaches
from tests.mutants import ROOT
from tests.unit.test_api_access import Box
from tests.unit.test_attaches import Rows, ask, served
from tests.unit.test_snapshots import Taken, wake

EXAMPLES = ROOT / "examples" / "monitoring"
VIEWER = Role.VIEWER
Found = dict[tuple[str, ...], float]

LEFT_OUT = {
    "awake",
    "table_ipv4",
    "table_ipv6",
    "ipv4_slots",
    "ipv6_slots",
    "born_ipv4",
    "born_ipv6",
    "births_limited",
    "handshakes_limited",
    "wakes_limited",
    "attaches_limited",
    "agents_limited",
    "connections_limited",
}
"""Counters of the engine that are in the table as one of several in a row, or by another key."""


def samples(text: str) -> dict[str, Found]:
    """Of each sample's name, the values by its labels' values."""
    found: dict[str, Found] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def made(status: dict[str, Any]) -> dict[str, Found]:
    found = {}
    for family in families(status):
        found[family.name] = {tuple(sample.labels.values()): sample.value for sample in family.samples}
    return found


# -- the table --------------------------------------------------------------------------------------------------------


def test_a_path_goes_through_keys_lists_and_words_and_passes_over_what_is_not_there() -> None:
    status = {
        "services": [{"name": "web", "n": 1, "servers": [{"server": "a:1", "state": "up"}]}, {"name": "b", "n": None}],
        "did": {"SLEEP ACTIVE client-data": 3, "rows": 7},
        "sizes": {"ipv4_slots": 4, "idle_slots": 5},
    }

    def at(where: str) -> list[Any]:
        return list(find(status, tuple(where.split("."))))

    assert at("services.[service=name].n") == [(("web",), 1)]
    assert at("services.[service=name,again=n].servers.[server=server].state") == [(("web", "1", "a:1"), "up")]
    assert at("did.{from} {to} {cause}") == [(("SLEEP", "ACTIVE", "client-data"), 3)]
    assert at("sizes.{table:ipv4|ipv6}_slots") == [(("ipv4",), 4)]
    assert at("nothing.there") == []


def test_units_are_those_of_prometheus_and_words_are_1_or_0() -> None:
    store = {"state": "error: disk full", "last_commit_ms": 250.0, "dropped_audit": 2, "dropped_history": 3}
    found = made({"store": store, "counters": {"thaw_ns": 1_500_000_000, "thawed": 3}})
    assert found["roost_store_up"] == {(): 0}
    assert made({"store": {"state": "ok"}})["roost_store_up"] == {(): 1}
    assert found["roost_store_last_commit_seconds"] == {(): 0.25}
    assert found["roost_store_dropped_rows"] == {("audit",): 2, ("history",): 3}
    assert found["roost_thaw_seconds"] == {(): 1.5}


def test_whatever_is_counted_is_in_the_table_and_gauges_are_told_from_counters_as_the_engine_does() -> None:
    engine: dict[str, bool] = {}
    while (name := lib.roost_stat_name(len(engine))) != ffi.NULL:
        engine[ffi.string(name).decode()] = bool(lib.roost_stat_is_gauge(len(engine)))
    rows = {where: name for name, where, *_ in (*GAUGES, *COUNTERS)}
    assert not {f"counters.{name}" for name in engine.keys() - LEFT_OUT} - rows.keys()
    assert not {f"control.{field.name}" for field in fields(Counters)} - rows.keys()
    gauges = {where.removeprefix("counters.") for _, where, *_ in GAUGES if where.startswith("counters.")}
    assert {name for name in gauges if "{" not in name} == {name for name in engine.keys() - LEFT_OUT if engine[name]}


def test_names_are_by_the_conventions_and_one_is_of_one_row() -> None:
    for row in TABLE:
        assert re.fullmatch(r"roost_[a-z0-9_]+", row.name)
        assert not row.name.endswith("_total"), "the library adds it"
        assert ("_ms" in row.where) <= (row.scale == 0.001), row
        assert ("_ns" in row.where) <= (row.scale == 1e-9), row
        assert not {"client", "name", "id"} & set(row.labels), "there would be millions"
    assert len({row.name for row in TABLE}) == len(TABLE)


# -- what the daemon adds up ------------------------------------------------------------------------------------------


def test_classes_are_told_by_service_and_rules_and_forgotten_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {1024: "fast"}
    taken = Taken(rules)
    assert taken.snapshots.status(str) == {"at_ms": None, "rows": []}
    for count in (2, 3):
        taken.engine.tallied = [wake(1, count), wake(1024, 1)]
        census = {1: Census(1, (0, 1, 0, 4, 7, 0), 9), 1024: Census(1, (0, 0, 2, 0, 0, 0), 0)}
        monkeypatch.setattr(taken.engine, "census", lambda census=census: census)
        taken.now()
    status = {"classes": taken.snapshots.status(lambda number: f"s{number}")}
    found = made(status)
    assert found["roost_class_transitions"] == {("s1", "", "SLEEP", "ACTIVE", "client-data"): 5,
                                                ("s1", "fast", "SLEEP", "ACTIVE", "client-data"): 2}  # fmt: skip
    assert found["roost_class_received_bytes"] == {("s1", ""): 50, ("s1", "fast"): 20}
    there = {labels: count for labels, count in found["roost_class_connections"].items() if count}
    assert there == {("s1", "", "ACTIVE"): 1, ("s1", "", "IDLE"): 13, ("s1", "", "SLEEP"): 7,
                     ("s1", "fast", "STANDBY"): 2}  # fmt: skip
    monkeypatch.setattr(taken.engine, "census", dict)
    taken.now()
    rows = taken.snapshots.status(str)["rows"]
    assert [(row["rules"], sum(row["connections"].values())) for row in rows] == [("", 0), ("fast", 0)]
    rules.clear()
    taken.now()
    assert [row["rules"] for row in taken.snapshots.status(str)["rows"]] == [""]


def test_attaches_are_a_histogram_by_state_and_failures_by_their_error() -> None:
    attaches = Attaches(Rows())
    for took_ms, error in ((0, 0), (2, 0), (3, 0), (60_000, 0), (5, 111)):
        event = served(0, server="10.0.0.9", error=error)
        attaches.served(event._replace(count=took_ms))
    ask(attaches, 4)
    assert attaches.status()["failed"] == {"ECONNREFUSED": 1}
    assert set(attaches.status()["took"]) == {"SLEEP"}, "what waits for its client's first byte is no row yet"
    (histogram,) = (one for one in families({"attaches": attaches.status()}) if one.type == "histogram")
    bucket = {s.labels["le"]: s.value for s in histogram.samples if s.name.endswith("_bucket")}
    assert {sample.labels["found"] for sample in histogram.samples} == {State.SLEEP.label}
    assert (bucket["0.001"], bucket["0.002"], bucket["0.005"], bucket["30"], bucket["+Inf"]) == (1, 2, 3, 3, 4)
    assert len(bucket) == len(BOUNDS_S) + 1
    ends = {sample.name.rpartition("_")[2]: sample.value for sample in histogram.samples}
    assert (ends["count"], ends["sum"]) == (4, 60.005)


# -- the page ---------------------------------------------------------------------------------------------------------


def status_of(box: Box, **status: Any) -> None:
    text = json.dumps({"attention": [], "awake": 3, **status}).encode()
    box.daemon.whole = lambda: text


def test_many_who_scrape_cost_the_daemon_one_status(monkeypatch: pytest.MonkeyPatch) -> None:
    now, box = 1000.0, Box()
    monkeypatch.setattr("control.api.metrics.time.monotonic", lambda: now)
    status_of(box)

    async def scene() -> None:
        nonlocal now
        answers = await asyncio.gather(*(box.ask(VIEWER, "GET", "/metrics") for _ in range(9)))
        assert {(one.status_code, samples(one.text)["roost_awake_connections"][()]) for one in answers} == {(200, 3)}
        assert [one[:2] for one in box.daemon.asked] == [("GET", "/v1/status")]
        status_of(box, awake=4)
        assert samples((await box.ask(VIEWER, "GET", "/metrics")).text)["roost_awake_connections"] == {(): 3}
        now += module.FRESH_S
        assert samples((await box.ask(VIEWER, "GET", "/metrics")).text)["roost_awake_connections"] == {(): 4}

    asyncio.run(scene())


def test_while_the_daemon_is_away_or_hangs_the_process_tells_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box()
    box.daemon.away = True
    found = samples(box.asked(VIEWER, "GET", "/metrics").text)
    assert found["roost_up"] == {(): 0}
    assert found["process_resident_memory_bytes"][()] > 1 << 20
    assert not {"roost_connections", "roost_attention"} & set(found)
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    metrics = Metrics(dict)
    _, page = asyncio.run(metrics.page("", lambda: asyncio.sleep(5, b"{}")))
    assert samples(page.decode())["roost_up"] == {(): 0}


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", "application/openmetrics-text"),
        ("application/openmetrics-text; version=one", "text/plain; version=0.0.4"),
    ],
)
def test_the_format_is_the_one_that_is_asked_for(accept: str, kind: str) -> None:
    box = Box()
    status_of(box)
    answer = box.asked(VIEWER, "GET", "/metrics", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith(kind)
    assert answer.text.endswith("# EOF\n") == kind.startswith("application")


def test_each_condition_has_a_sample_and_its_value_is_of_how_many_objects_it_is_said() -> None:
    box = Box()
    status_of(box, attention=[{"name": "servers"}, {"name": "servers"}, {"name": "store"}])
    found = samples(box.asked(VIEWER, "GET", "/metrics").text)["roost_attention"]
    assert found == {**{(watch.name,): 0 for watch in WATCHED}, ("servers",): 2, ("store",): 1}


def test_answers_are_counted_by_route_and_never_by_what_a_stranger_makes_up() -> None:
    box = Box()
    status_of(box)
    for who, method, path in ((VIEWER, "GET", "/v1/connections/7"), (VIEWER, "GET", "/v1/connections/8"),
                              ("", "GET", "/v1/status"), (VIEWER, "GET", "/v1/audit"), (VIEWER, "GET", "/nowhere"),
                              (VIEWER, "BREW", "/v1/status"), (VIEWER, "BREW", "/tea")):  # fmt: skip
        box.asked(who, method, path)
    box.daemon.whole = lambda: (_ for _ in ()).throw(RuntimeError())
    box.asked(VIEWER, "GET", "/v1/tags")
    status_of(box)
    found = samples(box.asked(VIEWER, "GET", "/metrics").text)
    assert found["roost_api_requests_total"] == {
        ("200", "GET", "/v1/connections/{name}"): 2,
        ("401", "GET", "/v1/status"): 1,
        ("403", "GET", "/v1/audit"): 1,
        ("404", "", ""): 2,
        ("405", "", "/v1/status"): 1,
        ("500", "GET", "/v1/tags"): 1,
    }
    assert found["roost_api_answer_seconds_count"] == {(): 8}


# -- the files --------------------------------------------------------------------------------------------------------


def test_an_error_of_a_websocket_is_counted_and_is_the_one_that_the_log_tells() -> None:
    async def fails(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RuntimeError("this one")

    metrics = Mock()
    scope = {"type": "websocket", "route": WebSocketRoute("/v1/control", fails)}
    with pytest.raises(RuntimeError, match="this one"):
        asyncio.run(Counted(fails, metrics)(scope, Mock(), Mock()))
    metrics.answered.assert_called_once_with("GET", "/v1/control", 500, ANY)


def test_rules_and_documents_are_those_of_the_tables() -> None:
    for path, text in written(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: ./roost lint --fix"


def test_each_condition_has_an_alert() -> None:
    named = {re.sub(r'.*"(\w+)".*', r"\1", one.series) for one in ALERTS if one.series.startswith("roost_attention")}
    assert named == {watch.name for watch in WATCHED} - {"api"}, "who would tell that the API's process is down?"
    assert "up" in {one.series for one in ALERTS}
    assert not [one for one in ALERTS if "{" in one.summary], "it is of no one object"


def promtool(*words: str, text: str | None = None) -> None:
    done = subprocess.run(
        ["promtool", *words], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_promtool_takes_the_configuration_and_the_rules_fire_as_they_should(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml", "alerts_test.yml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    for name in ("roost.token", "roost.pem"):
        (tmp_path / name).touch()
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
    promtool("test", "rules", str(tmp_path / "alerts_test.yml"))


def expressions() -> list[str]:
    """Of the dashboard."""
    panels = json.loads((EXAMPLES / "grafana.json").read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_the_dashboard_asks_in_promql_and_for_labels_that_there_are(tmp_path: Path) -> None:
    labels = {f"{row.name}{'_total' if row.kind == 'counter' else ''}": {*row.labels, "instance"} for row in TABLE}
    rules = []
    for expression in expressions():
        for name, matchers in re.findall(r"(roost_\w+)\{([^}]*)\}", expression):
            if name in labels:
                assert {*re.findall(r"(\w+)=", matchers)} <= labels[name], expression
        by = {label for found in re.findall(r"by \(([^)]*)\)", expression) for label in found.split(", ")}
        assert by <= set[str]().union(
            *(labels.get(name, {"code", "le"}) for name in re.findall(r"roost_\w+", expression))
        )
        rules.append({"record": "x", "expr": expression.replace("$__rate_interval", "5m")})
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": str(n), "rules": [rule]} for n, rule in enumerate(rules)]}))
    promtool("check", "rules", "--lint=none", str(file))
