# SPDX-License-Identifier: Apache-2.0
"""What a report's page says of time-outs."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from spark.estimating import Gaps
from spark.page import figure
from spark.page.html import page
from spark.page.section import Tables
from spark.page.sections import timeouts
from spark.recommending import Cell, judged
from tests.report_tables import MARKUP
from tests.unit.test_estimating import drawn
from tests.unit.test_report_page import Read

CELLS = [
    Cell(MARKUP, "<i>carrier", drawn(3, 20_000, 600, 0.4), 2.0, 20_000),
    Cell("alarm", "fibre", drawn(5, 20_000, math.inf, longest=1900), 2.0, 19_000),
    Cell("meter", None, Gaps.of([(56, 1_000_000, 500)]), 2.0, 1_000_500),
    Cell("camera", "dsl", Gaps.of([(64, 10_000, 0), (1024, 0, 800)]), 2.0, 10_800),
    Cell("lamp", None, Gaps.of([(576, 3, 5000)]), 2.0, 5003),
    Cell("lock", None, Gaps.of([(576, 3, 0)]), 0.0, 3),
]  # fmt: skip
EXPECTED = {
    "rule": "fibre", "version": 7, "at": datetime(2026, 11, 10, tzinfo=UTC), "probes_a_day_before": 5000.0,
    "probes_a_day_expected": 800.0, "probes_a_day_after": 820.0, "lost_a_day_before": 30.0, "lost_a_day_expected": 0.0,
    "lost_a_day_after": 2.0,
}  # fmt: skip


def told(tables: Tables) -> Read:
    with figure.drawing():
        return Read(page("title", "period", [timeouts.section(tables)]))


def test_each_kind_of_knowledge_is_told_in_its_words_and_drawn() -> None:
    found = [judged(cell, 0.01) for cell in CELLS]
    losses = [row for one in found for row in one.losses()]
    tables = {"timeouts": [one.row() for one in found], "loss_by_silence": losses, "expected": [EXPECTED]}
    read = told(tables)
    findings = " ".join(read.of("p", "li"))
    assert "meter: no time-out was seen: silences of up to 56 s were borne; other intervals were not tried" in findings
    assert f"{MARKUP} under <i>carrier: silent connections are lost after 10 min (the 95 % interval is" in findings
    assert "alarm under fibre: no time-out was seen: silences of up to 30 min were borne; probe them after" in findings
    assert "camera under dsl: silent connections are lost after some time between 68 s and 18 min" in findings
    assert (
        "lamp: nearly all connections were lost by the first probe, so the time-out is shorter than 11 min" in findings
    )
    assert "Following all recommendations" in findings
    assert "of 800 probes a day that were expected 820 came, and 2 connections a day are lost, 30 before" in findings
    assert read.names["svg"] == 3, "a panel for each that was probed after several silences"
    assert read.names["script"] == read.names["i"] == 0


def test_networks_that_lose_more_than_others_are_told() -> None:
    def lost(network: str, count: int, times: float | None) -> dict[str, object]:
        return {"service": "meter", "network": network, "lost": count, "hours": 100.0, "lost_per_1000_h": count * 10.0,
                "times_others": times}  # fmt: skip

    read = told({"timeouts": [], "lost_by_network": [
        lost("10.1.0.0/16", 20, 2.5), lost(MARKUP, 30, 40.0), lost("10.2.0.0/16", 19, 99.0),
        lost("10.3.0.0/16", 900, 1.9), lost("10.4.0.0/16", 900, None),
    ]})  # fmt: skip
    findings = [one for one in read.of("p", "li") if "a rule for this network" in one]
    assert [one.split(",")[0] for one in findings] == [
        f"Of clients of service meter in {MARKUP}", "Of clients of service meter in 10.1.0.0/16",
    ]  # fmt: skip
    assert "2.5 times as many were lost in an hour asleep as of its others" in findings[1]


def test_without_probes_it_says_so() -> None:
    assert "No probe was counted" in " ".join(told({"timeouts": []}).of("p", "li"))
    assert "No probe was counted" in " ".join(told({"lost_by_network": []}).of("p", "li"))
