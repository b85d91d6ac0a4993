# SPDX-License-Identifier: Apache-2.0
"""The monitor (seed figure 21): looks once a second at what runs short, and lets connections that have been quiet
longest go down a step until it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from appliance.box import shortage
from appliance.wire import Command, Op
from control.config import Pressure
from control.core.ports import EnginePort
from control.core.states import AWAKE, Cause, State
from control.policy.pressure import THRESHOLDS, Load, Reached

log = logging.getLogger("roost.dispatch")

EVERY_S: Final = 1.0


class Monitor:
    """states: how many connections are in each state, by its number. settings: those in force. read: what runs short of
    this machine. `look` may be called from one thread at a time."""

    def __init__(self, engine: EnginePort, states: Callable[[], Sequence[int]], settings: Callable[[], Pressure],
                 read: Callable[[], shortage.Shortage] = shortage.read) -> None:  # fmt: skip
        self._engine = engine
        self._states = states
        self._settings = settings
        self._read = read
        self._reached: Reached = {}
        self._asked = {"awake": 0, "idle": 0}

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Once."""
        settings = self._settings()
        load, before = self._load(settings), self._reached
        self._reached = load.reached(settings, before)
        for key in self._reached.keys() - before.keys():
            log.warning("[pressure] %s is reached, %.0f %%: quiet connections go down", key, self._reached[key] * 100)
        for key in before.keys() - self._reached.keys():
            log.info("[pressure] %s: it is over", key)
        relief = load.relief(settings, self._reached)
        self._asked["awake"] += relief.awake
        self._asked["idle"] += relief.idle
        wanted = ((Op.PRESSURE, relief.awake), (Op.DESCEND, relief.idle))
        self._engine.submit([Command(op=op, cause=Cause.PRESSURE, count=count) for op, count in wanted if count])

    def _load(self, settings: Pressure) -> Load:
        states, stats, found = self._states(), self._engine.stats(), self._read()
        awake, idle = sum(states[state] for state in AWAKE), states[State.IDLE]
        counted = {"connections": (awake + idle, settings.connections),
                   "idle": (stats.get("idle_records", 0), stats.get("idle_slots", 0))}  # fmt: skip
        read = {key: getattr(found, key) for key, threshold in THRESHOLDS.items() if not threshold.counted}
        return Load(counted, {key: share for key, share in read.items() if share is not None}, awake, idle)

    def status(self) -> dict[str, Any]:
        """reached: % of each threshold of [pressure] that is; asked: how many awake ones, and in IDLE, were to go down
        since the daemon began."""
        return {"reached": {key: round(share * 100, 1) for key, share in self._reached.items()}, "asked": self._asked}
