# SPDX-License-Identifier: Apache-2.0
"""Forecasts of hourly series, with intervals, tested on held-out weeks against naive ones. Without Spark.

Candidates, of which the one with the least mean absolute error on held-out hours is told:

    naive   the last known value at the same phase of the season: the same hour a week before
    last    the last known value
    flat    the level of late, and for each phase of the season how far it is from it, as a median
    trend   the same, and the slope of the levels of whole seasons by Theil and Sen (a week's season only)

All are fitted to the last MEMORY seasons, by medians: an outage of some hours moves none of them. The season is a week,
or a day where there are less than three weeks: one more than the two that a weekly season needs at least, to be held
out. A phase of the week is shrunk to that of the day by as much as it is noise (James and Stein).

Held out are rolling origins: each candidate forecasts from each of them, knowing nothing later, and its errors are kept
by how many seasons ahead they were made. An interval is the quantile of the absolute errors that were made so far
ahead (split conformal prediction), at a level that is raised for few origins, whose errors are correlated.
Its coverage is counted at each origin with the errors that were known then.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DAY: Final = 24
WEEK: Final = 168
LEVELS: Final = (0.8, 0.95)
MEMORY: Final = 12
"""Seasons that a model is fitted to."""
RECENT: Final = 4
"""Of these, those that the level is of."""
ORIGINS: Final = 16
"""Rolling origins, at most."""
FEWEST: Final = 48
"""Hours that must be known for a forecast to be made."""
MODELS: Final = ("naive", "last", "flat", "trend")
"""The first of those with the same error is told."""


@dataclass(frozen=True)
class Quality:
    """On held-out hours. season: hours. origins: from how many the others were forecast. hours: how many of them were
    compared. errors: mean absolute error, by model. coverage: by level, the share of values within the interval; null:
    too little data to hold out errors, too."""

    season: int
    origins: int
    hours: int
    errors: Mapping[str, float]
    coverage: Mapping[float, float | None]


@dataclass(frozen=True)
class Forecast:
    """Of the hours that follow the series: value, and by level low and high, an array each. model: of MODELS."""

    model: str
    value: Floats
    low: Mapping[float, Floats]
    high: Mapping[float, Floats]
    quality: Quality


class NoForecastError(Exception):
    """There is too little to forecast from; a sentence."""


def forecast(values: Sequence[float] | Floats, ahead: int = 4 * WEEK) -> Forecast:
    """values: one for each hour, none below 0; NaN: not known. ahead: hours to forecast, at most; never more than are
    known. Raises NoForecastError."""
    series = _trimmed(np.asarray(values, dtype=np.float64))
    known = int(np.isfinite(series).sum())
    if known < FEWEST:
        raise NoForecastError(f"{known} hours are known; a forecast needs {FEWEST}")
    season = WEEK if len(series) >= 3 * WEEK and known >= 2 * WEEK else DAY
    seasons = -(-min(ahead, len(series)) // season)
    errors = _held_out(series, season, seasons)
    compared = np.isfinite(errors["naive"])
    if not compared.any():
        raise NoForecastError("no hours that are known follow others that are: nothing to test a forecast with")
    means = {model: float(np.mean(np.abs(found[compared]))) for model, found in errors.items()}
    model = min(means, key=lambda name: means[name])
    ahead = min(ahead, len(series))
    value = np.maximum(_MODELS[model](series, season, seasons), 0)[:ahead]
    widths = {level: np.repeat(_widths(errors[model], level), season)[:ahead] for level in LEVELS}
    return Forecast(
        model=model,
        value=value,
        low={level: np.maximum(value - width, 0) for level, width in widths.items()},
        high={level: value + width for level, width in widths.items()},
        quality=Quality(
            season=season,
            origins=int(compared.any(axis=(1, 2)).sum()),
            hours=int(compared.sum()),
            errors=means,
            coverage={level: _coverage(errors[model], level) for level in LEVELS},
        ),
    )


def reaches(values: Floats, limit: float) -> int | None:
    """The first hour, from 0 on, in which it is as much; None: in none of them."""
    found = np.flatnonzero(values >= limit)
    return int(found[0]) if found.size else None


def _trimmed(series: Floats) -> Floats:
    """From the first hour that is known on."""
    known = np.flatnonzero(np.isfinite(series))
    return series[known[0] :] if known.size else series[:0]


# -- models: (series, season, seasons ahead) -> a value for each hour of these -----------------------------------------


def _naive(series: Floats, season: int, ahead: int) -> Floats:
    blocks = _blocks(series, season, len(series))
    known = np.isfinite(blocks)
    last = len(blocks) - 1 - np.argmax(known[::-1], axis=0)
    found = blocks[last, np.arange(season)]
    return np.tile(np.where(known.any(axis=0), found, _last(series, 1, 1)), ahead)


def _last(series: Floats, season: int, ahead: int) -> Floats:
    return np.full(season * ahead, series[np.flatnonzero(np.isfinite(series))[-1]])


def _flat(series: Floats, season: int, ahead: int) -> Floats:
    return _seasonal(series, season, ahead, with_trend=False)


def _trend(series: Floats, season: int, ahead: int) -> Floats:
    return _seasonal(series, season, ahead, with_trend=season == WEEK)


_MODELS: Final[Mapping[str, Callable[[Floats, int, int], Floats]]] = {
    "naive": _naive, "last": _last, "flat": _flat, "trend": _trend,
}  # fmt: skip


def _seasonal(series: Floats, season: int, ahead: int, *, with_trend: bool) -> Floats:
    blocks = _blocks(series, season, MEMORY)
    at = np.arange(len(blocks), dtype=np.float64)
    # How far a phase is from its block's level does not depend on which hours of the block are known: twice.
    phases = _median(blocks - _median(blocks, 1)[:, None], 0)
    phases = np.where(np.isfinite(phases), phases, 0.0)
    levels = _median(blocks - phases, 1)
    some = np.isfinite(levels)
    if not some.any():
        return _last(series, season, ahead)
    slope = _slope(at[some], levels[some]) if with_trend else 0.0
    line = slope * (at[:, None] + (np.arange(season) - (season - 1) / 2) / season)
    flattened = blocks - line
    level = float(np.median((levels - slope * at)[some][-RECENT:]))
    phases = _phases(flattened - _median(flattened - phases, 1)[:, None])
    hours = np.arange(season * ahead)
    later = slope * (len(blocks) - 0.5 + (hours + 0.5) / season)
    return level + later + np.tile(phases, ahead)


def _phases(blocks: Floats) -> Floats:
    """The median of each phase; of the week, shrunk to that of the day."""
    season = blocks.shape[1]
    found = _median(blocks, 0)
    daily = np.tile(_median(blocks.reshape(-1, DAY), 0), season // DAY)
    daily = np.where(np.isfinite(daily), daily, 0.0)
    off = found - daily
    seen = np.isfinite(off)
    power = float(np.mean(off[seen] ** 2)) if seen.any() else 0.0
    if season == DAY or power == 0.0:
        return np.where(seen, found, daily)
    spread = 1.4826 * float(np.nanmedian(np.abs(blocks - found)))
    noise = np.pi / 2 * spread**2 / max(float(np.isfinite(blocks).sum(axis=0).mean()), 1.0)
    weight = max(0.0, 1 - noise / power)
    return np.where(seen, daily + weight * off, daily)


def _blocks(series: Floats, season: int, most: int) -> Floats:
    """The last seasons, a row each; the first one is filled up with NaN."""
    count = min(-(-len(series) // season), most)
    tail = series[-count * season :]
    filled = np.full(count * season, np.nan)
    filled[len(filled) - len(tail) :] = tail
    return filled.reshape(count, season)


def _median(values: Floats, axis: int) -> Floats:
    """Of what is known; NaN where nothing is."""
    found: Floats
    if np.isfinite(values).all():  # several times as fast
        found = np.median(values, axis=axis)
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = np.nanmedian(values, axis=axis)
    return found


def _slope(at: Floats, levels: Floats) -> float:
    """The median of the slopes of all pairs; of less than three levels: none."""
    if len(at) < 3:
        return 0.0
    first, second = np.triu_indices(len(at), 1)
    return float(np.median((levels[second] - levels[first]) / (at[second] - at[first])))


# -- held-out hours ----------------------------------------------------------------------------------------------------


def _held_out(series: Floats, season: int, ahead: int) -> dict[str, Any]:
    """By model, its errors: (origin, seasons ahead, phase), the earliest origin first; NaN: not known, or not yet. All
    models are compared in the same hours. Origins are a season apart: errors that are known at one are those of the
    origins before it, as far as they reach."""
    # A trend takes three weeks; where there are no more, and none to hold out then, two are made do with.
    fewest = min(3 * WEEK, (len(series) // WEEK - 1) * WEEK) if season == WEEK else DAY
    count = min(max((len(series) - fewest) // season, 0), ORIGINS)
    shape = (count, ahead, season)
    errors = {model: np.full(shape, np.nan) for model in MODELS}
    for row in range(count):
        origin = len(series) - (count - row) * season
        before, after = series[:origin], series[origin : origin + ahead * season]
        if int(np.isfinite(before).sum()) < DAY:
            continue
        for model, fit in _MODELS.items():
            flat = errors[model][row].reshape(-1)
            flat[: len(after)] = after - np.maximum(fit(before, season, ahead)[: len(after)], 0)
    return errors


def _widths(errors: Floats, level: float) -> Floats:
    """Half of the interval for each season ahead; NaN: no errors are known at all. It grows with the time. What was
    never tried so far ahead is as wide as a random walk makes the last one that was."""
    found = np.full(errors.shape[1], np.nan)
    tried = -1
    for ahead in range(len(found)):
        sizes = np.abs(errors[:, ahead])
        known = np.isfinite(sizes)
        if known.any():
            origins = int(known.any(axis=1).sum())
            found[ahead] = np.quantile(sizes[known], level + (1 - level) * level / origins)
            tried = ahead
        elif tried >= 0:
            found[ahead] = found[tried] * np.sqrt((ahead + 1) / (tried + 1))
    some = np.flatnonzero(np.isfinite(found))
    if some.size:
        found[: some[0]] = found[some[0]]
    return np.maximum.accumulate(found)


def _coverage(errors: Floats, level: float) -> float | None:
    """At each origin, by the errors that were known then."""
    inside = compared = 0
    for row in range(1, len(errors)):
        known = errors[:row].copy()
        for earlier in range(row):
            known[earlier, row - earlier :] = np.nan
        widths = _widths(known, level)[:, None]
        now = np.isfinite(errors[row]) & np.isfinite(widths)
        inside += int((now & (np.abs(errors[row]) <= widths)).sum())
        compared += int(now.sum())
    return inside / compared if compared else None
