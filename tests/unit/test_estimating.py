# SPDX-License-Identifier: Apache-2.0
"""Time-outs out of probes: by hand, by other programs, and where the truth is known."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.optimize import isotonic_regression

from appliance.wire import SILENCES_S
from control.export.columns import silence_end_s
from spark.estimating import (
    BETWEEN,
    FOUND,
    LONGER,
    SHORTER,
    UNKNOWN,
    Gaps,
    bearable,
    isotonic,
    kaplan_meier,
    step,
    verdict,
)

BOUNDS = SILENCES_S["answered"]


def gaps(*rows: tuple[int, int, int]) -> Gaps:
    return Gaps.of(rows)


def drawn(
    seed: int,
    count: int,
    timeout: float,
    share: float = 1.0,
    rate: float = 1e-7,
    shortest: float = 60,
    longest: float = 3600,
    speaks_s: float = math.inf,
) -> Gaps:
    """Probes after silences as an experiment chooses them; speaks_s: after which a client says something, on average,
    and is not probed."""
    random = np.random.default_rng(seed)
    silent = np.exp(random.uniform(math.log(shortest), math.log(longest), count))
    if math.isfinite(speaks_s):
        silent = silent[random.random(count) < np.exp(-silent / speaks_s)]
        count = len(silent)
    lost = (random.random(count) < -np.expm1(-rate * silent)) | ((silent >= timeout) & (random.random(count) < share))
    place = np.searchsorted(BOUNDS, silent, side="right") - 1
    of = [np.bincount(place[which], minlength=len(BOUNDS)).tolist() for which in (~lost, lost)]
    return Gaps.of(zip(BOUNDS, *of, strict=True))


def test_classes_end_where_the_next_ones_begin() -> None:
    assert [silence_end_s(low) for low in BOUNDS[:-1]] == list(BOUNDS[1:])


def test_isotonic_regression_pools_what_falls() -> None:
    lost, probes = np.array([0.0, 2, 1, 3]), np.array([10.0, 10, 10, 10])
    assert isotonic(lost, probes).tolist() == pytest.approx([0, 0.15, 0.15, 0.3])
    assert isotonic(np.array([5.0]), np.array([10.0])).tolist() == [0.5]
    assert isotonic(np.empty(0), np.empty(0)).tolist() == []
    ties = isotonic(np.array([1.0, 1, 1]), np.array([4.0, 4, 4]))
    assert ties.tolist() == [0.25] * 3


def test_isotonic_regression_is_scipys() -> None:
    random = np.random.default_rng(5)
    for _ in range(200):
        probes = random.integers(1, 50, random.integers(1, 60)).astype(float)
        lost = random.binomial(probes.astype(int), random.random(len(probes)) ** 3).astype(float)
        expected = isotonic_regression(lost / probes, weights=probes).x
        assert isotonic(lost, probes) == pytest.approx(expected, abs=1e-12)


def test_the_chance_of_loss_is_lifelines_interval_censored_fit() -> None:
    from lifelines import KaplanMeierFitter

    made = drawn(7, 400, 500, share=0.6, rate=1e-4)
    lower, upper = list[float](), list[float]()
    for low, answered, lost in zip(
        *(one.astype(int).tolist() for one in (made.low, made.answered, made.lost)), strict=True
    ):
        lower += [low + 0.5] * answered + [0.0] * lost  # lost after `low`, or up to it; both ends belong to an interval
        upper += [math.inf] * answered + [float(low)] * lost
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit: Any = KaplanMeierFitter().fit_interval_censoring(lower, upper, tol=1e-9)
    survival = fit.survival_function_
    told = [1 - float(survival[survival.index <= low]["NPMLE_estimate_lower"].iloc[-1]) for low in made.low]
    assert isotonic(made.lost, made.probes).tolist() == pytest.approx(told, abs=0.002)


def test_a_time_out_is_found_with_an_interval_that_holds_as_often_as_it_says() -> None:
    random, held, near = np.random.default_rng(11), Counter[float](), Counter[float]()
    for share in (1.0, 0.5):
        for seed in range(60):
            timeout = math.exp(random.uniform(math.log(150), math.log(2500)))
            rate = 1e-6 * float(random.choice([0.1, 1, 10]))
            found = verdict(drawn(seed, 1000, timeout, share, rate), 0.01)
            assert found.known == FOUND
            value, low, high = found.timeout
            near[share] += abs((value or 0) / timeout - 1) < 0.1
            held[share] += (low or math.inf) <= timeout <= (high or 0)
    assert min(near.values()) >= 57  # of 60: 95 %
    assert min(held.values()) >= 53  # 95 % are expected; fewer than 53 have a chance of 0.7 %


def test_of_very_many_probes_the_interval_does_not_know_more_than_the_classes_of_silences() -> None:
    """Clients speak, so that there are fewer silences at the end of a class than at its begin."""
    random, held = np.random.default_rng(12), 0
    for seed in range(20):
        timeout = math.exp(random.uniform(math.log(150), math.log(2500)))
        low, high = verdict(drawn(seed, 2_000_000, timeout, speaks_s=600), 0.01).timeout[1:]
        held += (low or math.inf) <= timeout <= (high or 0)
    assert held >= 18


def test_what_is_lost_at_any_age_is_no_time_out() -> None:
    for seed in range(40):
        found = verdict(drawn(seed, 20_000, math.inf, rate=10.0 ** -(4 + seed % 4)), 0.01)
        assert (found.known, found.timeout.low in (3328.0, 3584.0)) == (LONGER, True)


def test_one_interval_tells_no_time_out_however_many_probes_there_were() -> None:
    found = verdict(gaps((576, 1_000_000, 700)), 0.01)
    assert (found.known, found.timeout) == (LONGER, (None, 576.0, None))
    assert found.bearable == (640.0, 640.0, None)
    found = verdict(gaps((576, 3, 5000)), 0.01)
    assert (found.known, found.timeout.high) == (SHORTER, 640.0)


def test_few_probes_tell_nothing() -> None:
    assert verdict(gaps(), 0.01).known == UNKNOWN
    assert verdict(gaps((60, 10, 10)), 0.01).known == UNKNOWN


def test_a_time_out_between_two_intervals_lies_between_them() -> None:
    found = verdict(gaps((64, 10_000, 0), (1024, 0, 800)), 0.01)
    assert found.known == BETWEEN
    assert found.timeout.low == pytest.approx(68, rel=0.06)
    assert found.timeout.high == pytest.approx(1024 + 64, rel=0.06)
    assert found.by_timeout == pytest.approx(800)


def test_of_two_time_outs_the_shorter_one_bounds_what_is_bearable() -> None:
    one, other = drawn(1, 30_000, 300), drawn(2, 70_000, 1500)
    both = Counter[tuple[int, str]]()
    for each in (one, other):
        for low, answered, lost in zip(each.low, each.answered, each.lost, strict=True):
            both[int(low), "answered"] += int(answered)
            both[int(low), "lost"] += int(lost)
    found = verdict(Gaps.of((low, both[low, "answered"], both[low, "lost"]) for low in BOUNDS), 0.01)
    assert 240 <= (found.bearable.value or 0) <= 320


def test_a_step_has_its_share_and_its_losses() -> None:
    made = drawn(3, 50_000, 600, share=0.4, rate=1e-6)
    found = step(made)
    assert found.share == pytest.approx(0.4, abs=0.02)
    assert found.timeout.value == pytest.approx(600, rel=0.01)
    told = verdict(made, 0.01)
    assert told.by_timeout == pytest.approx(made.lost.sum(), rel=0.02)


def test_kaplan_and_meier_are_biased_and_the_estimate_is_not() -> None:
    """Half of the connections are lost after 600 s: silences up to that are borne by all."""
    made = drawn(4, 50_000, 600, share=0.5, rate=1e-9)
    assert bearable(made, 0.1).value == pytest.approx(600, rel=0.13)
    exact = isotonic(made.lost, made.probes)[-1]
    assert exact == pytest.approx(0.5, abs=0.05)
    at_risk = np.cumsum(made.probes[::-1])[::-1]
    by_kaplan_meier = 1 - np.cumprod(1 - made.lost / at_risk)[-1]
    assert by_kaplan_meier > 0.9  # all are lost by the longest silence, it says
    assert kaplan_meier(made, 0.5) == 2304
    assert kaplan_meier(gaps((60, 100, 0)), 0.5) is None
