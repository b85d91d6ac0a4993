# SPDX-License-Identifier: Apache-2.0
"""GET /metrics of a daemon at work: what Prometheus is told is what `roost status` tells."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.lab import Lab
from control.api.metrics import ATTENTION, FRESH_S, REQUESTS, SECONDS, TABLE, UP, Row, find
from control.channel.attention import WATCHED
from tests.lab.api_lab import ApiLab
from tests.unit.test_metrics import EXAMPLES, Found, expressions, promtool, samples

NOT_YET = ("attaches.failed", "attaches.took", "classes.", "export.", "pressure.reached", "own.")
"""Where a status that is new has nothing; own: it is not the daemon's."""

TOLD_OTHERWISE = {"counters.awake", "memory.maps_bytes_per_inactive", "pid", "api.pid", "services.index", "attach"}
"""Numbers of the status that are no metric, or another one's."""


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[ApiLab]:
    with ApiLab(nat_free_lab) as box:
        box.wait_for_api()
        yield box


def scraped(box: ApiLab) -> str:
    with box.begun("viewer", "GET", "/metrics") as answer:
        assert answer.status == 200
        return answer.read().decode()


def by_name(row: Row, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The library has them in the order of their names."""
    return tuple(value for _, value in sorted(zip(row.labels, labels, strict=True)))


def test_a_viewer_is_told_what_the_status_has(box: ApiLab) -> None:
    _, address = box.client()
    assert box.ask("operator", "POST", f"/v1/connections/{address}/idle")[0] == 200
    time.sleep(FRESH_S)
    before = box.daemon.status()
    found = samples(scraped(box))
    after = box.daemon.status()
    assert found["roost_connections"] == {(state,): n for state, n in before["connections"].items()}
    assert found["roost_connections"]["IDLE",] >= 1
    same = 0
    for row in TABLE:
        path = tuple(row.where.split("."))
        told, later = (dict(find(status, path)) for status in (before, after))
        if told and told == later and row.kind != "histogram":
            values: Found = found[f"{row.name}{'_total' if row.kind == 'counter' else ''}"]
            expected = {by_name(row, labels): row.of(value) for labels, value in told.items()}
            assert values == pytest.approx(expected), row
            same += 1
    assert same > len(TABLE) / 2, "most of a quiet daemon's numbers stay what they are"
    assert found["roost_up"] == {(): 1}
    assert set(found["roost_attention"]) == {(watch.name,) for watch in WATCHED}
    assert found["process_open_fds"][()] > 3, "a process that is nobody's may read of itself"


def test_it_is_for_viewers_and_no_servers(box: ApiLab) -> None:
    box.token("server", "lab4")
    assert box.ask("", "GET", "/metrics")[0] == 401
    assert box.ask("server", "GET", "/metrics")[0] == 403


def numbers(node: Any, path: str = "") -> Iterator[str]:
    """Where there are some in a status; a list's members have its path."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from numbers(value, f"{path}.{key}" if path else key)
    elif isinstance(node, list):
        for value in node:
            yield from numbers(value, path)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path


def test_each_row_of_the_table_finds_its_number_and_each_number_its_row(box: ApiLab) -> None:
    status = box.daemon.status()
    told = set[str]()
    for row in TABLE:
        assert any(find(status, tuple(row.where.split(".")))) != row.where.startswith(NOT_YET), row
        told.add(re.sub(r"\{\w+:([^}]*)\}", r"(\1)", re.sub(r"\.\[[^]]*\]", "", row.where)))
    patterns = [re.compile(re.sub(r"\{\w+\}", "[^.]+", one)) for one in told]
    missing = {one for one in numbers(status) if not any(pattern.fullmatch(one) for pattern in patterns)}
    assert missing <= TOLD_OTHERWISE


def test_rules_and_dashboard_ask_for_what_is_there_and_promtool_takes_the_page(box: ApiLab) -> None:
    page = scraped(box)
    promtool("check", "metrics", text=page)
    typed = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.M))
    names = {*typed, *(f"{name}_{part}" for name, kind in typed.items() if kind == "histogram" for part in ("bucket",))}
    own = {one.name for one in (UP, ATTENTION, SECONDS)} | {f"{REQUESTS.name}_total"}
    rows = {f"{row.name}{'_total' if row.kind == 'counter' else ''}" for row in TABLE}
    assert {name for name in typed if name.startswith("roost_")} == rows | own
    asked = "\n".join(expressions()) + (EXAMPLES / "alerts.yml").read_text(encoding="utf-8")
    used = set(re.findall(r"\b(?:roost|process)_\w+", asked))
    assert used <= names
    assert len(used) > 20
