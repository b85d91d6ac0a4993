# SPDX-License-Identifier: Apache-2.0
"""Which rules follow from what is known of time-outs."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime
from typing import Any

import pytest

from control.clients.ruling import read_file
from control.policy.rules import NAME
from spark.estimating import FOUND, LONGER, SHORTER, UNKNOWN, Gaps
from spark.recommending import (
    LOSSES,
    TIMEOUTS,
    Cell,
    Network,
    experiments,
    judged,
    outcomes,
    recommendations,
    rules_of,
)
from tests.unit.test_estimating import drawn

CARRIER: dict[str, Any] = {"network": "10.64.0.0/10", "probe_interval": 60.0, "priority": "low"}
LOST_AT_600 = drawn(3, 20_000, 600)
BORNE = Gaps.of([(56, 1_000_000, 500)])


def cell(gaps: Gaps, rules: str | None = None, service: str = "meter", days: float = 2.0) -> Cell:
    return Cell(service, rules, gaps, days, int(gaps.probes.sum()))


def test_a_time_out_is_kept_clear_of() -> None:
    found = judged(cell(LOST_AT_600, "carrier"), 0.01)
    assert found.verdict.known == FOUND
    assert 510 <= (found.recommended_s or 0) <= 570
    row = found.row()
    assert list(row) == TIMEOUTS.names
    assert (row["service"], row["rules"], row["known"]) == ("meter", "carrier", "found")
    assert row["lost_by_timeout_a_day"] * 2 == pytest.approx(row["lost"], rel=0.03)
    assert row["probes_a_day"] == 10_000
    assert row["probes_a_day_then"] == pytest.approx(10_000 * row["interval_s"] / row["recommended_s"])
    assert row["bytes_saved_a_day"] == pytest.approx((10_000 - row["probes_a_day_then"]) * 104)
    losses = list(found.losses())
    assert list(losses[0]) == LOSSES.names
    assert sum(one["answered"] + one["lost"] for one in losses) == 20_000
    shares = [one["share_lost"] for one in losses]
    assert shares == sorted(shares)


def test_the_rule_that_gave_the_interval_is_the_one_that_is_changed() -> None:
    found = [judged(cell(LOST_AT_600, "carrier, winter"), 0.01)]
    rules: dict[str, Any] = {
        "carrier": {**CARRIER, "most_probe_interval": 3600.0},
        "winter": {"tag": "winter", "idle_quiet": 60.0},
    }
    made = recommendations(found, rules, 7, "november")
    (rule,) = made["rule"]
    assert rule == {**CARRIER, "name": "carrier", "probe_interval": f"{found[0].recommended_s}s"}
    assert made["version"] == 7
    assert "lost after" in made["about"]["carrier"]["why"]
    assert set(read_file(json.dumps(made))) == {"carrier"}


def test_where_no_rule_is_in_force_there_is_a_new_one_for_the_service() -> None:
    made = recommendations([judged(cell(LOST_AT_600, service="Meters/1"), 0.01)], {}, 0, "november")
    (rule,) = made["rule"]
    assert (rule["name"], rule["service"]) == ("report-meters-1", "Meters/1")
    assert set(read_file(json.dumps(made))) == {"report-meters-1"}


def test_of_several_services_with_one_rule_the_shortest_interval_holds() -> None:
    found = [judged(cell(drawn(3, 20_000, timeout), "carrier", service), 0.01)
             for timeout, service in ((600, "meter"), (300, "alarm"))]  # fmt: skip
    made = recommendations(found, {"carrier": CARRIER}, 7, "november")
    (rule,) = made["rule"]
    assert rule["probe_interval"] == f"{found[1].recommended_s}s"
    assert len(made["about"]["carrier"]["also"]) == 1


def test_what_no_one_rule_gives_is_left_to_people() -> None:
    rules = {"one": {"priority": "low"}, "other": {"tag": "x", "priority": "high"}}
    made = recommendations([judged(cell(LOST_AT_600, "one, other"), 0.01)], rules, 7, "november")
    assert made["rule"] == []
    assert "by_hand" in made["about"]["meter, one, other"]


def test_an_interval_that_is_nearly_right_is_left() -> None:
    assert judged(cell(Gaps.of([(480, 100_000, 0), (512, 100, 0)])), 0.01).recommended_s is None


def test_who_is_lost_by_some_of_the_intervals_is_to_have_another_one_whatever_their_average_is() -> None:
    found = judged(cell(drawn(3, 5000, 600, shortest=300, longest=1200)), 0.01)
    assert found.interval_s == pytest.approx(650, rel=0.05)
    assert found.recommended_s is not None
    assert 500 <= found.recommended_s <= 570


def test_an_interval_that_was_tried_and_borne_is_recommended_and_none_beyond() -> None:
    found = judged(cell(drawn(5, 20_000, math.inf, shortest=60, longest=1900)), 0.01)
    assert found.verdict.known == LONGER
    assert found.recommended_s is not None
    assert 1600 <= found.recommended_s <= 1900


def test_one_interval_alone_is_to_be_tried_and_not_changed() -> None:
    found = [judged(cell(BORNE, "carrier"), 0.01)]
    assert found[0].recommended_s is None
    networks = [
        Network("alarm", "10.64.1.0/24", 10, 0.02),
        Network("meter", "10.1.1.0/24", 10, 0.02),  # not of the rule
        Network("meter", "10.64.3.0/24", 10, 0.02),  # of another rule, too
        Network("meter", "10.64.2.0/24", 10, 0.02),
    ]
    rules: dict[str, Any] = {"carrier": CARRIER, "other": {"network": "10.64.3.128/25"}, "third": {"service": "alarm"}}
    made = experiments(found, rules, networks, 7, "november")
    (rule,) = made["rule"]
    assert rule == {
        "name": "try-meter-carrier", "service": "meter", "network": "10.64.2.0/24", "probe_interval": "55s",
        "most_probe_interval": "450s",
    }  # fmt: skip
    assert made["about"]["try-meter-carrier"]["clients"] == 10
    assert set(read_file(json.dumps(made))) == {"try-meter-carrier"}
    assert recommendations(found, rules, 7, "november")["rule"] == []


@pytest.mark.parametrize("low", [64, 120, 144, 576, 1536])
def test_an_interval_that_all_bear_is_not_shortened(low: int) -> None:
    """A class of silences begins up to a sixth before their average."""
    assert judged(cell(Gaps.of([(low, 100_000, 20)])), 0.01).recommended_s is None


def test_where_all_is_lost_shorter_intervals_are_to_be_tried() -> None:
    found = [judged(cell(Gaps.of([(576, 3, 5000)])), 0.01)]
    assert (found[0].verdict.known, found[0].recommended_s) == (SHORTER, None)
    made = experiments(found, {}, [Network("meter", "2001:db8:1::/48", 9, 0.1)], 0, "november")
    assert (made["rule"][0]["probe_interval"], made["rule"][0]["most_probe_interval"]) == ("75s", "600s")


def test_without_a_network_of_its_own_an_experiment_is_left_to_people() -> None:
    made = experiments([judged(cell(BORNE), 0.01)], {"all": {"idle_quiet": 60.0}},
                       [Network("meter", "10.1.1.0/24", 10, 0.02)], 0, "november")  # fmt: skip
    assert made["rule"] == []
    assert "by_hand" in made["about"]["try-meter"]


def test_an_experiment_that_is_under_way_is_not_moved() -> None:
    """`roost policy recommend` lets no rule have another network."""
    rules = {"try-meter": {"service": "meter", "network": "10.1.2.0/24", "probe_interval": 60.0}}
    made = experiments([judged(cell(BORNE), 0.01)], rules, [Network("meter", "10.1.1.0/24", 10, 0.02)], 0, "november")
    assert made["rule"] == []
    assert "remove it" in made["about"]["try-meter"]["by_hand"]


def test_few_probes_recommend_nothing() -> None:
    found = judged(cell(Gaps.of([(60, 3, 3)])), 0.01)
    assert (found.verdict.known, found.recommended_s) == (UNKNOWN, None)
    assert "too few" in experiments([found], {}, [], 0, "november")["about"]["try-meter"]["why"]


@pytest.mark.parametrize("service", ["Ä, <b>", "-", "x" * 80, ""])
def test_a_new_rule_has_a_name_that_a_rule_may_have(service: str) -> None:
    made = recommendations([judged(cell(LOST_AT_600, service=service), 0.01)], {}, 0, "november")
    assert re.fullmatch(NAME, made["rule"][0]["name"])


def test_the_rules_of_an_export_are_the_last_ones() -> None:
    rows: list[dict[str, Any]] = [
        {"version": 3, "rule": "b", "content": None},
        {"version": 1, "rule": "a", "content": '{"name": "a", "priority": "low"}'},
        {"version": 2, "rule": "b", "content": '{"tag": "x"}'},
        {"version": 4, "rule": "c", "content": "{"},
    ]
    assert rules_of(rows) == (4, {"a": {"priority": "low"}})
    assert rules_of([]) == (0, {})


def test_what_came_is_beside_what_was_expected() -> None:
    at = datetime(2026, 11, 10, 12, tzinfo=UTC)
    why = "report of october: carrier expects 800 probes and 0 lost a day; other expects 1 probes and 2 lost a day"
    changes = [{"version": 7, "rule": "carrier", "at": at, "why": why},
               {"version": 3, "rule": "carrier", "at": at, "why": "by hand"}]  # fmt: skip
    days = [
        {"rules": rules, "day": date(2026, 11, day), "days": 0.5, "probes": probes, "lost": lost}
        for rules, day, probes, lost in (
            ("carrier", 9, 4000, 30), ("carrier, winter", 9, 1000, 0), ("carrier", 10, 99, 99), ("carrier", 11, 400, 1),
            (None, 9, 7, 7), ("other", 9, 7, 7),
        )
    ]  # fmt: skip
    (row,) = outcomes(changes, days)
    assert (row["rule"], row["version"]) == ("carrier", 7)
    assert (row["probes_a_day_before"], row["probes_a_day_expected"], row["probes_a_day_after"]) == (5000, 800, 800)
    assert (row["lost_a_day_before"], row["lost_a_day_expected"], row["lost_a_day_after"]) == (30, 0, 2)
    assert outcomes(changes, days[:1])[0]["probes_a_day_after"] is None
