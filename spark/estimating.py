# SPDX-License-Identifier: Apache-2.0
"""How long a network bears that a connection is silent, estimated from probes.

What is observed is *current status*: a probe after a silence of g found the path alive or lost, and never when it was
lost. Each answer begins a new silence. So a lost one says "before g", an answered one "not before g", and no more:

- The chance of loss as a function of the silence, which never falls, is estimated by its non-parametric maximum
  likelihood (NPMLE: isotonic regression of the share of lost probes; Ayer et al. 1955), with intervals by the
  likelihood ratio of Banerjee and Wellner (2001).
- A *time-out* is a step in it, beside what is lost at any age (clients that were switched off): alive with chance
  exp(-rate g) (1 - share [g >= time-out]). All three by maximum likelihood, the time-out's interval by its profile.

Kaplan and Meier's estimator, which takes a lost probe's silence for when the path was lost, and an answered one for the
last that was seen of it, is biased here: it is computed to show by how much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from control.export.columns import silence_end_s

Floats = npt.NDArray[np.float64]

CONFIDENCE: Final = 0.95
PROFILE_DROP: Final = 1.92
"""Of the log-likelihood, to the ends of an interval: half of chi-square's 0.95 quantile, one degree of freedom."""

ISOTONIC_RATIO: Final = 2.286922
"""The 0.95 quantile of twice the log-likelihood ratio for current status data (Banerjee and Wellner 2001)."""

STEP_RATIO: Final = 25.0
"""Twice the log-likelihood ratio of a time-out against none from which on there is one. A step is sought at a
thousand places, and what clients do together (a power cut) is no chance: by chi-square, one degree of freedom, once
in a million."""

LEAST_SHARE: Final = 0.005
"""Of the probes after longer silences, at least so many are lost by the time-out. A connection that was lost is
probed no more, so it is less than the share of the connections that have it."""

LEAST_PROBES: Final = 30
"""Answered ones, for the longest silence that was tried."""

WIDEST: Final = 1.5
"""Upper over lower end of a time-out's interval, at most: else all that is known is that it lies between the two."""

UNEVEN: Final = 0.05
"""Of the width of a class, by logarithm: by so much an interval is wider on either side, since silences may be spread
in a class less evenly than they are taken to be. Of 100,000 probes, the likelihood alone knows better than that."""

PLACES: Final = 48
ZOOMS: Final = 3
"""Time-outs are tried where classes begin and end, and then, so often, at so many places about the likeliest ones."""

ROUNDS: Final = 400
_TINY: Final = 1e-12


class Gaps(NamedTuple):
    """Probes by how long the client had been silent: classes from `low` to `high`, s; how many were answered and
    lost."""

    low: Floats
    high: Floats
    answered: Floats
    lost: Floats

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> Gaps:
        """rows: where a class begins, s; answered, lost. In any order."""
        used = sorted(row for row in rows if row[1] or row[2])
        columns = ([row[0] for row in used], [silence_end_s(row[0]) for row in used], [row[1] for row in used],
                   [row[2] for row in used])  # fmt: skip
        return cls(*(np.asarray(column, dtype=np.float64) for column in columns))

    @property
    def probes(self) -> Floats:
        return self.answered + self.lost


class Span(NamedTuple):
    """An estimate and the ends of its interval; None: without an end on that side."""

    value: float | None
    low: float | None
    high: float | None


class Step(NamedTuple):
    """A time-out, s; share: of connections that it ends; rate: of those that are lost at any age, 1/s; ratio: twice the
    log-likelihood ratio against none."""

    timeout: Span
    share: float
    rate: float
    ratio: float


# -- the chance of loss -----------------------------------------------------------------------------------------------


def isotonic(lost: Floats, probes: Floats) -> Floats:
    """The shares lost / probes of classes in order, made to never fall, by weighted least squares, which is the
    maximum likelihood. Shapes (n,); probes > 0."""
    blocks = list[tuple[float, float, int]]()  # lost, probes, classes
    for one in zip(lost.tolist(), probes.tolist(), strict=True):
        block = (*one, 1)
        while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    return np.concatenate([np.full(classes, of / among) for of, among, classes in blocks] or [np.empty(0)])


def _log_likelihood(gaps: Gaps, chance: Floats) -> float:
    sure = np.clip(chance, _TINY, 1 - _TINY)
    return float(np.sum(gaps.lost * np.log(sure) + gaps.answered * np.log1p(-sure)))


def bearable(gaps: Gaps, chance: float) -> Span:
    """The longest silence, s, at which no more than this chance of loss is estimated, and its interval: those at which
    the likelihood ratio does not refuse just this chance. value None: less than any that was tried; high None: all
    longer ones that were tried may be borne."""
    fitted = isotonic(gaps.lost, gaps.probes)
    best = _log_likelihood(gaps, fitted)
    count = len(fitted)

    def refused(place: int) -> bool:
        """Whether the chance at this class is another one than that."""
        left, right = slice(0, place + 1), slice(place, count)
        bound = np.empty(count)
        bound[left] = np.minimum(isotonic(gaps.lost[left], gaps.probes[left]), chance)
        over = np.maximum(isotonic(gaps.lost[right], gaps.probes[right]), chance)
        bound[place] = chance
        bound[place + 1 :] = over[1:]
        return 2 * (best - _log_likelihood(gaps, bound)) > ISOTONIC_RATIO

    below, above = fitted <= chance, fitted > chance
    surely_below = [place for place in np.flatnonzero(below) if refused(int(place))]
    surely_above = [place for place in np.flatnonzero(above) if refused(int(place))]
    value = float(gaps.high[np.flatnonzero(below)[-1]]) if below.any() else None
    low = float(gaps.high[surely_below[-1]]) if surely_below else None
    high = float(gaps.low[surely_above[0]]) if surely_above else None
    return Span(value, low, high)


def kaplan_meier(gaps: Gaps, chance: float) -> float | None:
    """The silence, s, by which Kaplan and Meier would have more than this chance of loss, with lost probes as events;
    None: none that was tried. It is biased (see above)."""
    at_risk = np.cumsum(gaps.probes[::-1])[::-1]
    survival = np.cumprod(1 - gaps.lost / at_risk)
    over = np.flatnonzero(1 - survival > chance)
    return float(gaps.low[over[0]]) if len(over) else None


# -- the time-out -----------------------------------------------------------------------------------------------------


def step(gaps: Gaps) -> Step:
    """The time-out that is likeliest, whether or not there is one; of two that are lost at, the one that ends more."""
    places = np.unique(np.concatenate([gaps.low, gaps.high]))
    levels, rates, shares = _fitted(gaps, places)
    none = float(_fitted(gaps, np.asarray([np.inf]))[0][0])
    for _ in range(ZOOMS):
        near = np.flatnonzero(levels >= levels.max() - 2 * PROFILE_DROP)
        first, last = places[max(near[0] - 1, 0)], places[min(near[-1] + 1, len(places) - 1)]
        closer = np.geomspace(max(first, 1.0), last, PLACES)
        begin = np.interp(closer, places, rates), np.interp(closer, places, shares)
        places = closer
        levels, rates, shares = _fitted(gaps, places, begin)
    best = int(np.argmax(levels))
    equal = np.flatnonzero(levels >= levels[best] - 1e-3)
    inside = np.flatnonzero(levels >= levels[best] - PROFILE_DROP)
    low = _moved(gaps, float(places[max(inside[0] - 1, 0)]), -UNEVEN)
    high = _moved(gaps, float(places[min(inside[-1] + 1, PLACES - 1)]), UNEVEN)
    timeout = Span(float(places[equal].mean()), low, high)
    return Step(timeout, float(shares[best]), float(rates[best]), 2 * float(levels[best] - none))


def _moved(gaps: Gaps, at: float, widths: float) -> float:
    """A silence that is longer by so many widths of its class."""
    place = min(int(np.searchsorted(gaps.high, at)), len(gaps.high) - 1)
    return at * math.pow(gaps.high[place] / max(gaps.low[place], 1.0), widths)


def _beyond(gaps: Gaps, timeouts: Floats) -> Floats:
    """Which share of each class is of silences beyond each time-out, shape (time-outs, classes): within a class, they
    are taken to be spread evenly by their logarithm, as experiments choose them."""
    low, high = np.log(np.maximum(gaps.low, 1.0)), np.log(gaps.high)
    at = np.log(np.maximum(timeouts, 1.0))[:, None]
    found: Floats = np.clip((high[None, :] - at) / (high - low)[None, :], 0.0, 1.0)
    return found


def _fitted(gaps: Gaps, timeouts: Floats, begin: tuple[Floats, Floats] | None = None) -> tuple[Floats, Floats, Floats]:
    """Log-likelihood, rate and share for each of these time-outs, by expectation and maximisation. begin: rates and
    shares to begin with."""
    middle, total = ((gaps.low + gaps.high) / 2)[None, :], gaps.probes[None, :]
    lost, answered = gaps.lost[None, :], gaps.answered[None, :]
    beyond = _beyond(gaps, timeouts)
    silent = float(np.sum(gaps.probes * middle[0]))
    if begin is None:
        likely = max(gaps.lost.sum(), 0.5) / max(silent, _TINY) / 2
        begin = np.full(len(timeouts), likely), np.full(len(timeouts), 0.5)
    rate, share = (one[:, None] for one in begin)
    for _ in range(ROUNDS):
        gone, ended = -np.expm1(-rate * middle), share * beyond
        chance = np.maximum(1 - (1 - gone) * (1 - ended), _TINY)
        by_age, by_step = lost * gone / chance, lost * ended / chance
        # Of those that the step did not end, how many were beyond it; of those that went at some age, when.
        survived = (total - by_step) * beyond * (1 - share) / np.maximum(1 - ended, _TINY)
        sum_step = by_step.sum(axis=1, keepdims=True)
        new_share = sum_step / np.maximum(sum_step + survived.sum(axis=1, keepdims=True), _TINY)
        at = rate * middle
        when = np.where(
            at > 1e-6, 1 / np.maximum(rate, _TINY) - middle * np.exp(-at) / np.maximum(gone, _TINY), middle / 2
        )
        watched = ((total - by_age) * middle + by_age * when).sum(axis=1, keepdims=True)
        new_rate = by_age.sum(axis=1, keepdims=True) / np.maximum(watched, _TINY)
        # By the rate, as losses; it may be none, which it would come ever nearer to.
        moved = max(float(np.max(np.abs(new_share - share))), float(np.max(np.abs(new_rate - rate))) * silent)
        share, rate = new_share, new_rate
        if moved < 1e-5:
            break
    chance = np.clip(1 - np.exp(-rate * middle) * (1 - share * beyond), _TINY, 1 - _TINY)
    levels = (lost * np.log(chance) + answered * np.log1p(-chance)).sum(axis=1)
    return levels, rate[:, 0], share[:, 0]


# -- what is known ----------------------------------------------------------------------------------------------------

FOUND, BETWEEN, LONGER, SHORTER, UNKNOWN = "found", "between", "longer", "shorter", "unknown"


class Verdict(NamedTuple):
    """What is known of a network's time-out, s:

    found      it is `timeout`, within its interval
    between    there is one between the ends of the interval
    longer     none was seen: if there is one, it is longer than timeout.low
    shorter    whatever was tried was too long: it is shorter than timeout.high
    unknown    there are too few probes

    share, rate, by_timeout: of connections that it ends; of what is lost at any age, 1/s; how many of those that were
    lost would not have been without it. bearable: of the chance that is asked for, beside what is lost at any age."""

    known: str
    timeout: Span
    share: float
    rate: float
    by_timeout: float
    bearable: Span
    kaplan_meier: float | None


def verdict(gaps: Gaps, chance: float) -> Verdict:
    """chance: of loss, that is bearable."""
    nothing = Span(None, None, None)
    tried = gaps.low[gaps.answered >= LEAST_PROBES]
    found = step(gaps) if gaps.probes.sum() >= LEAST_PROBES else None
    if found is None:
        return Verdict(UNKNOWN, nothing, 0.0, 0.0, 0.0, nothing, None)
    lost, stepless = float(gaps.lost.sum()), found.ratio < STEP_RATIO or found.share < LEAST_SHARE
    least = (float(tried[-1]) if len(tried) else 0.0) if stepless else found.timeout.low or 0.0
    borne = bearable(gaps, chance - float(np.expm1(-_least_rate(gaps) * least)))
    biased = kaplan_meier(gaps, chance)
    if stepless:
        if len(tried):
            return Verdict(LONGER, Span(None, least, None), 0.0, found.rate, 0.0, borne, biased)
        if 2 * lost > gaps.probes.sum():
            return Verdict(SHORTER, Span(None, None, float(gaps.high[0])), 1.0, 0.0, lost, borne, biased)
        return Verdict(UNKNOWN, nothing, 0.0, 0.0, 0.0, borne, biased)
    low, high = found.timeout.low, found.timeout.high
    assert low is not None
    assert high is not None
    known = FOUND if high <= WIDEST * max(low, 1.0) else BETWEEN
    return Verdict(known, found.timeout, found.share, found.rate, _by_step(gaps, found), borne, biased)


def _least_rate(gaps: Gaps) -> float:
    """At which connections are lost at any age, 1/s: that of the silences up to one at which it is the lowest, three
    standard deviations up. Steps below the one that was found are none of it."""
    lost = np.cumsum(gaps.lost)
    silent = np.cumsum(gaps.probes * (gaps.low + gaps.high) / 2)
    return float(np.min((lost + 3 * np.sqrt(lost) + 3) / silent))


def _by_step(gaps: Gaps, found: Step) -> float:
    """How many were lost by the time-out and not by their age."""
    beyond = _beyond(gaps, np.asarray([found.timeout.value]))[0]
    gone = -np.expm1(-found.rate * (gaps.low + gaps.high) / 2)
    chance = np.maximum(1 - (1 - gone) * (1 - found.share * beyond), _TINY)
    return float(np.sum(gaps.lost * found.share * beyond / chance))
