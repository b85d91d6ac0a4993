# SPDX-License-Identifier: Apache-2.0
"""Forecasts of hourly series whose truth is known: better than the naive one, and within their intervals. No Java."""

from __future__ import annotations

import subprocess
import sys
from statistics import median

import numpy as np
import pytest

from spark.forecast import (
    DAY,
    LEVELS,
    WEEK,
    Floats,
    Forecast,
    NoForecastError,
    forecast,
    reaches,
)
from tests.mutants import ROOT

AHEAD = 4 * WEEK


def made(seed: int, weeks: int, *, correlated: bool = False) -> tuple[Floats, Floats]:
    """What was seen, and the truth with noise of the four weeks after it: cycles of the day and the week, growth,
    an outage of nine hours in which there was nobody, and 40 hours in which no daemon ran."""
    random = np.random.default_rng(seed)
    hours = np.arange(weeks * WEEK + AHEAD)
    daily = 600 * np.sin(2 * np.pi * (hours % DAY - 8) / DAY)
    weekend = np.where(hours // DAY % 7 >= 5, -400.0, 0.0)
    noise = random.normal(0, 30 if correlated else 50, len(hours))
    if correlated:
        for hour in range(1, len(noise)):
            noise[hour] += 0.9 * noise[hour - 1]
    values = np.maximum(2000 + random.uniform(5, 40) * hours / WEEK + daily + weekend + noise, 0)
    seen, later = values[:-AHEAD].copy(), values[-AHEAD:]
    for length, value in ((9, 0.0), (40, np.nan)):
        begin = random.integers(0, len(seen) - length)
        seen[begin : begin + length] = value
    return seen, later


def naive(seen: Floats) -> Floats:
    """The last known value of the same hour of the week, by hand."""
    week = seen[-WEEK:].copy()
    for hour in np.flatnonzero(np.isnan(week)):
        week[hour] = seen[-2 * WEEK + hour]
    return np.tile(week, 4)


def error(value: Floats, later: Floats) -> float:
    return float(np.mean(np.abs(later - value)))


def inside(found: Forecast, later: Floats, level: float) -> float:
    return float(np.mean((found.low[level] <= later) & (later <= found.high[level])))


@pytest.mark.parametrize(("weeks", "correlated"), [(12, False), (12, True), (30, False), (30, True)])
def test_weeks_that_were_held_out_are_forecast_better_than_by_the_naive_one(weeks: int, correlated: bool) -> None:
    ratios, covered = [], {level: list[float]() for level in LEVELS}
    for seed in range(20):
        seen, later = made(seed, weeks, correlated=correlated)
        found = forecast(seen)
        ratios.append(error(found.value, later) / error(naive(seen), later))
        for level in LEVELS:
            covered[level].append(inside(found, later, level))
            assert (found.low[level] <= found.value).all()
            assert (found.value <= found.high[level]).all()
    assert sum(ratio < 1 for ratio in ratios) >= 19
    assert median(ratios) < 0.75
    for level in LEVELS:
        assert level - 0.03 < np.mean(covered[level]) < min(level + 0.1, 1), level


@pytest.mark.parametrize("weeks", [5, 8])
def test_of_a_few_weeks_the_intervals_are_rather_too_wide(weeks: int) -> None:
    shares = {level: list[float]() for level in LEVELS}
    for seed in range(20):
        seen, later = made(seed, weeks)
        found = forecast(seen)
        for level in LEVELS:
            shares[level].append(inside(found, later[: len(found.value)], level))
    for level in LEVELS:
        assert np.mean(shares[level]) > level - 0.02


def test_the_stated_quality_is_what_held_out_hours_say() -> None:
    seen, later = made(1, 30)
    found = forecast(seen)
    quality = found.quality
    assert (found.model, quality.season, quality.origins) == ("trend", WEEK, 16)
    assert quality.errors["trend"] == min(quality.errors.values())
    assert quality.errors["trend"] == pytest.approx(error(found.value, later), rel=0.25)
    for level in LEVELS:
        covered = quality.coverage[level]
        assert covered is not None
        assert level - 0.03 < covered < min(level + 0.1, 1)


def test_a_random_walk_has_no_season_and_the_last_value_is_told() -> None:
    told = []
    for seed in range(10):
        walk = 10_000 + np.cumsum(np.random.default_rng(seed).normal(0, 1, 10 * WEEK))
        found = forecast(walk)
        told.append(found.model)
        errors = found.quality.errors
        assert errors[found.model] <= min(errors["naive"], errors["last"])
        assert (np.diff(found.high[0.8] - found.low[0.8]) >= -1e-9).all(), "the further, the wider"
    assert told.count("last") >= 5


def test_a_straight_line_goes_on() -> None:
    found = forecast(np.arange(10.0 * WEEK))
    assert found.model == "trend"
    assert found.value == pytest.approx(np.arange(10 * WEEK, 14 * WEEK))
    assert reaches(found.value, 10 * WEEK + 5) == 5
    assert reaches(found.value, 20 * WEEK) is None


def test_an_exact_season_is_found_and_the_naive_one_is_told_where_none_is_better() -> None:
    week = np.random.default_rng(7).uniform(0, 100, WEEK)
    found = forecast(np.tile(week, 6))
    assert (found.model, found.quality.errors["naive"]) == ("naive", 0)
    assert found.value == pytest.approx(np.tile(week, 4))
    shifted = forecast(np.tile(week, 6)[50:])
    assert shifted.value == pytest.approx(np.tile(week, 4))


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_what_never_changes_stays(value: float) -> None:
    found = forecast(np.full(5 * WEEK, value))
    assert set(found.value) == {value}
    for level in LEVELS:
        assert set(found.low[level]) == set(found.high[level]) == {value}
        assert found.quality.coverage[level] == 1
    assert set(found.quality.errors.values()) == {0.0}


def test_nothing_falls_below_zero() -> None:
    found = forecast(np.maximum(1000 - np.arange(8.0 * WEEK), 0))
    assert min(found.value) >= 0
    assert all(min(found.low[level]) >= 0 for level in LEVELS)


def test_of_less_than_three_weeks_the_season_is_the_day_and_there_is_no_trend() -> None:
    hours = np.arange(10 * DAY)
    values = 100 + 10 * np.sin(2 * np.pi * hours / DAY) + np.random.default_rng(1).normal(0, 1, len(hours))
    found = forecast(values)
    assert (found.quality.season, found.model) == (DAY, "flat")
    assert len(found.value) == 10 * DAY, "no further than it was seen"
    assert found.quality.errors["trend"] == found.quality.errors["flat"]
    wanted = 100 + 10 * np.sin(2 * np.pi * np.arange(10 * DAY) / DAY)
    assert error(found.value, wanted) < 0.5
    assert len(forecast(values, 5 * DAY).value) == 5 * DAY


@pytest.mark.parametrize(("values", "says"), [
    ([], "0 hours are known"), ([5.0], "1 hours are known"), ([float("nan")] * 500, "0 hours are known"),
    ([1.0] * 47, "47 hours are known; a forecast needs 48"), ([float("inf")] * 100, "0 hours are known"),
])  # fmt: skip
def test_of_less_than_two_days_there_is_none_and_it_says_so(values: list[float], says: str) -> None:
    with pytest.raises(NoForecastError, match=says):
        forecast(values)


def test_two_days_are_enough() -> None:
    found = forecast(np.tile(np.arange(24.0), 2))
    assert found.value == pytest.approx(np.tile(np.arange(24.0), 2))
    assert (found.quality.origins, found.quality.coverage[0.8]) == (1, None)


def test_hours_that_are_not_known_are_no_zeros() -> None:
    seen, _ = made(3, 12)
    holes = seen.copy()
    holes[np.random.default_rng(3).uniform(size=len(seen)) < 0.3] = np.nan
    whole, found = forecast(seen), forecast(holes)
    assert np.isfinite(found.value).all()
    assert error(found.value, whole.value) < 25
    late = np.concatenate([np.full(100, np.nan), seen, np.full(30, np.nan)])
    assert np.isfinite(forecast(late).value).all()
    apart = np.concatenate([seen[:WEEK], np.full(20 * WEEK, np.nan), seen[:DAY]])
    assert np.isfinite(forecast(apart).high[0.95]).all()


def test_it_needs_neither_java_nor_pyspark() -> None:
    script = "import sys, spark.forecast; sys.exit(any(name.split('.')[0] in {'pyspark', 'pandas', 'scipy'} for name in sys.modules))"  # noqa: E501
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, timeout=60).returncode == 0
