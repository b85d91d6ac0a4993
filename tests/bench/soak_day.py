# SPDX-License-Identifier: Apache-2.0
"""A day of the clients of `roost bench soak`, again and again: how much they speak at which hour, and servers that come
for some of them."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from typing import Final

from appliance.lab import PeerError
from tests.bench.soak_scene import ATTACH_PORT, Scene

TICK_S: Final = 1.0
NIGHT: Final = 0.03
"""Of the questions of midday."""
MORNING, NOON, EVENING, BEDTIME = 0.15, 0.3, 0.7, 0.85
"""Parts of the day that begin then; it begins at midnight."""
BURST_S: Final = 4.0
BURST: Final = 8.0
"""Times as many questions, of one group."""
BURST_EVERY_S: Final = 30.0
MOST_A_SECOND: Final = 600
"""Clients that wake in the morning, when all speak; two descriptors each for some seconds."""
TIMEOUT_S: Final = 180.0
CALLS: Final = 8
"""Clients that servers come for at a time."""


def activity(hour: float) -> float:
    """Of midday's, at a part of the day, 0 to 1."""
    if hour < MORNING or hour >= BEDTIME:
        return NIGHT
    if hour < NOON:
        return 1.5
    return 1.0 if hour < EVENING else 0.4


class Day(threading.Thread):
    """The clients' habits; `hour` is the part of the day that has gone."""

    def __init__(self, scene: Scene, day_s: float, seed: int) -> None:
        super().__init__(name="day", daemon=True)
        self._scene = scene
        self._day_s = day_s
        self._random = random.Random(seed)
        self._began = time.monotonic()
        self._ending = threading.Event()
        self.error: BaseException | None = None
        self.mornings = self.left = 0

    @property
    def hour(self) -> float:
        return (time.monotonic() - self._began) / self._day_s % 1.0

    def run(self) -> None:
        woken, burst_until, bursting, burst_at = -1, 0.0, "", time.monotonic() + BURST_EVERY_S
        leaving: dict[str, float] = {}
        try:
            while not self._ending.wait(TICK_S):
                now, day = time.monotonic(), int((time.monotonic() - self._began) / self._day_s)
                if self.hour >= MORNING and woken < day:
                    woken = day
                    self.morning()
                if now >= burst_at and activity(self.hour) > NIGHT:
                    bursting = self._random.choice(self._scene.groups).habit.name
                    burst_until, burst_at = now + BURST_S, now + self._random.uniform(0.5, 1.5) * BURST_EVERY_S
                for group in self._scene.groups:
                    habit = group.habit
                    much = activity(self.hour) * (BURST if habit.name == bursting and now < burst_until else 1)
                    group.ask("pace", rate=much * group.count / habit.every_s, size=habit.size, timeout_s=TIMEOUT_S)
                    if habit.leave_every_s:
                        due = leaving.get(habit.name, 0.0) + much * TICK_S * group.count / 1000 / habit.leave_every_s
                        leaving[habit.name] = due % 1
                        if int(due):
                            self.left += group.ask("leave", n=int(due))["left"]
        except BaseException as error:
            self.error = error

    def morning(self) -> None:
        """All speak."""
        self.mornings += 1
        seconds = max(self._scene.clients / MOST_A_SECOND, self._day_s * (NOON - MORNING) / 2)
        for group in self._scene.groups:
            group.ask("sweep", seconds=seconds)

    def end(self) -> None:
        """They say no more."""
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error
        for group in self._scene.groups:
            group.ask("pace", rate=0, size=1, timeout_s=TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server that came for a client in vain; time.monotonic."""

    began: float
    ended: float
    target: str
    why: str


class Callers(threading.Thread):
    """Servers that come for their clients, by the proxy and by the clients' own addresses."""

    def __init__(self, scene: Scene, every_s: float, seed: int) -> None:
        super().__init__(name="callers", daemon=True)
        self._scene = scene
        self._every_s = every_s
        self._random = random.Random(seed)
        self._ending = threading.Event()
        self.error: BaseException | None = None
        self.targets: dict[str, list[str]] = {"proxy": [], "address": []}
        """Addresses of clients, by how they are reached; another thread may put other lists here."""
        self.answered = 0
        self.refusals: list[Refusal] = []

    def run(self) -> None:
        proxy = [self._scene.lab.address("box", "lan0"), ATTACH_PORT]
        try:
            while not self._ending.wait(self._every_s):
                for how, targets in list(self.targets.items()):
                    chosen = self._random.sample(targets, min(CALLS, len(targets)))
                    if not chosen:
                        continue
                    began = time.monotonic()
                    said = self._scene.asker.request(
                        "ask", timeout_s=120, **({"proxy": proxy} if how == "proxy" else {}), targets=chosen,
                        concurrency=CALLS)  # fmt: skip
                    self.answered += said["answered"]
                    self.refusals += [Refusal(began, time.monotonic(), *failed) for failed in said["failures"]]
        except (PeerError, OSError) as error:
            self.error = error

    def end(self) -> None:
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error
