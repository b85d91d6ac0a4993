# SPDX-License-Identifier: Apache-2.0
"""The benches of Spark, at a size that proves they run; in the worker that has a Java (tests/distribution.py)."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark import session
from tests.bench import report, truth
from tests.bench.test_benches import assert_sound
from tests.quick import quick


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for bench in (report, truth):
        monkeypatch.setattr(bench, "MEMORY", "1g")
    monkeypatch.setattr(session, "start", quick)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)  # others want it


def test_a_report_is_measured_beside_duckdb_and_has_its_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "TURNS", report.LIFE)
    monkeypatch.setattr(report, "SPAN_MS", 6 * 3_600_000)
    assert_sound(report.run(rows=100_000))


@pytest.mark.soak
def test_truth_is_found_in_a_small_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "DAYS", 2)
    assert_sound(truth.run(rows=60_000))
