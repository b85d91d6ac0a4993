# SPDX-License-Identifier: Apache-2.0
"""Pressure: which thresholds are reached, and how many connections go down a step for that.

A threshold that was reached counts as reached until it is cleared by `clear`, so that connections do not go down and
come back by turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from control.config import Pressure


@dataclass(frozen=True, slots=True)
class Threshold:
    """awake, idle: whether it helps that awake connections go to IDLE, or those in IDLE to SLEEP. counted: it is about
    a number of connections, so that the excess says how many."""

    awake: bool
    idle: bool
    counted: bool = False


THRESHOLDS: Final[Mapping[str, Threshold]] = {
    "connections": Threshold(awake=True, idle=True, counted=True),
    "idle": Threshold(awake=False, idle=True, counted=True),
    "memory": Threshold(awake=True, idle=True),
    "memory_stall": Threshold(awake=True, idle=True),
    "cpu_stall": Threshold(awake=True, idle=False),
    "descriptors": Threshold(awake=True, idle=False),
}
"""By the key of [pressure]."""

Reached = Mapping[str, float]
"""The share of each threshold that is reached."""


@dataclass(frozen=True, slots=True)
class Relief:
    """How many are to go from awake to IDLE, and from IDLE to SLEEP."""

    awake: int = 0
    idle: int = 0


def _limit(settings: Pressure, key: str) -> float:
    """As a share; 0: none."""
    if key == "connections":  # what is counted is a share of the limit itself
        return 1.0 if settings.connections else 0.0
    return float(getattr(settings, key)) / 100


@dataclass(frozen=True, slots=True)
class Load:
    """counted: (how many there are, how many there may be); shares: of what there may be, where nothing is counted;
    both by the key of [pressure], without what is not known. awake, idle: connections."""

    counted: Mapping[str, tuple[int, int]]
    shares: Mapping[str, float]
    awake: int
    idle: int

    def reached(self, settings: Pressure, before: Reached) -> Reached:
        """before: what this said last."""
        shares = {key: count / most for key, (count, most) in self.counted.items() if most} | dict(self.shares)
        hysteresis = dict.fromkeys(before, settings.clear / 100)
        limits = {key: limit for key in shares if (limit := _limit(settings, key))}
        return {key: shares[key] for key, limit in limits.items() if shares[key] >= limit - hysteresis.get(key, 0)}

    def relief(self, settings: Pressure, reached: Reached) -> Relief:
        """What is to be done now, to be asked again when it had time to help. Where connections are counted, those in
        IDLE go first: they have been quiet longer."""
        awake = idle = 0
        for key in reached:
            threshold = THRESHOLDS[key]
            if threshold.counted:
                count, most = self.counted[key]
                excess = max(count - math.floor((_limit(settings, key) - settings.clear / 100) * most), 1)
                from_idle = min(excess, self.idle)
                from_awake = excess - from_idle
            else:
                from_awake, from_idle = (math.ceil(n * settings.rate / 100) for n in (self.awake, self.idle))
            idle = max(idle, from_idle if threshold.idle else 0)
            awake = max(awake, min(from_awake, self.awake) if threshold.awake else 0)
        return Relief(awake, idle)
