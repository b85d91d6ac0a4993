# SPDX-License-Identifier: Apache-2.0
"""Snapshots: once a minute, how much there is of what and what happened, of the appliance and of each policy class."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from appliance.box import shortage
from appliance.box.memory import resident_bytes
from appliance.wire import SILENCES_S, Census, Silences, Tally
from control.core.ports import CountsPort
from control.core.states import AWAKE, INACTIVE, Cause, State
from control.store.appended import Snapshot

log = logging.getLogger("roost.dispatch")

EVERY_S: Final = 60.0
SHARE: Final = 0.01
"""Of the time, a look at all connections may take so much; where it takes longer, there are fewer snapshots."""

Whose = tuple[int, str]
"""The number of a service, 0: of none; and the rules that give its clients' class, "": none."""


class Snapshots:
    """rules: which ones give a class its values, by its number. read: what runs short of this machine. `take` may be
    called from any thread."""

    def __init__(self, engine: CountsPort, append: Callable[[Snapshot], None], rules: Mapping[int, str],
                 read: Callable[[], shortage.Shortage] = shortage.read) -> None:  # fmt: skip
        self._engine = engine
        self._append = append
        self._rules = rules
        self._read = read
        self._taking = threading.Lock()
        self._gauges = engine.gauges()
        self._before = engine.stats()  # counters of BPF are pinned, and go on where a run before left them
        self._silences: dict[int, Silences] = {}
        self._since: dict[Whose, Counter[str]] = defaultdict(Counter)
        self._status: tuple[int | None, Sequence[tuple[Whose, dict[str, int], dict[str, int]]]] = None, ()
        self._until = time.monotonic()

    async def run(self) -> None:
        """Take one now and then, for ever."""
        pause = EVERY_S
        while True:
            await asyncio.sleep(pause)
            pause = max(EVERY_S, await asyncio.to_thread(self.take) / SHARE)

    def take(self) -> float:
        """Have the store keep one; how many seconds it took. What keeps it from being taken is told in the log, and
        what happened meanwhile is in the next one."""
        with self._taking:
            began = time.monotonic()
            try:
                self._take(began)
            except Exception:
                log.exception("what there is and what happened could not be counted; the next snapshot has it")
            return time.monotonic() - began

    def status(self, service_name: Callable[[int], str]) -> dict[str, Any]:
        """Of each service and rules, as of the last snapshot: how many connections are in each state, of those in SLEEP
        the ones with a slot; and what has happened since the daemon began, by the names that snapshots have for it."""
        at, classes = self._status
        return {
            "at_ms": at,
            "rows": [
                {
                    "service": service_name(service),
                    "rules": rules,
                    "connections": there,
                    "transitions": {name: count for name, count in since.items() if " " in name},
                    **{name: since.get(name, 0) for name in ("probes", "rx_bytes", "tx_bytes")},
                }
                for (service, rules), there, since in classes
            ],
        }

    def _take(self, now: float) -> None:
        at = time.time_ns() // 1_000_000
        memory = {"maps_bytes": self._engine.memory(), "rss_bytes": resident_bytes()} | self._shares()
        census, silent = self._engine.census(), self._engine.silences()  # first: what follows counts from here on
        span_ms, self._until = round((now - self._until) * 1000), now
        counted: dict[Whose, Counter[str]] = defaultdict(Counter)
        counted[0, ""].update(memory | self._stats())
        for tally in self._engine.tallies():
            counted[self._whose(tally.service, tally.number)].update(_of_tally(tally))
        self._note(at, counted, census)
        for number, found in census.items():
            counted[self._whose(found.service, number)].update(_of_census(found))
        for number, silences in silent.items():
            before, self._silences[number] = self._silences.get(number), silences
            if new := _of_silences(silences, before):
                counted[self._whose(silences.service, number)].update(new)
        for (service, rules), counts in sorted(counted.items()):
            told = {name: count for name, count in counts.items() if count}
            self._append(Snapshot(at, span_ms, service, rules, json.dumps(told)))

    def _note(self, at: int, happened: Mapping[Whose, Counter[str]], census: Mapping[int, Census]) -> None:
        """For `status`. What there is no connection of and no rule for is forgotten: rules come and go for years."""
        there: dict[Whose, Counter[str]] = defaultdict(Counter)
        for number, found in census.items():
            there[self._whose(found.service, number)].update(_of_census(found))
        for whose, counts in happened.items():
            if whose[0]:
                self._since[whose].update(counts)
        now = {"", *self._rules.values()}
        for gone in [whose for whose in self._since if whose not in there and whose[1] not in now]:
            del self._since[gone]
        rows: list[tuple[Whose, dict[str, int], dict[str, int]]] = []
        for whose in sorted(self._since.keys() | there.keys()):
            counts = there[whose]
            states = {state.label: counts[state.label] for state in sorted(AWAKE | INACTIVE)}
            rows.append((whose, states | {"IDLE": states["IDLE"] + counts["born"]}, dict(self._since.get(whose, {}))))
        self._status = at, rows

    def _whose(self, service: int, number: int) -> Whose:
        return service, self._rules.get(number, "")

    def _shares(self) -> dict[str, int]:
        shares = asdict(self._read()).items()
        return {f"{name}_permille": round(share * 1000) for name, share in shares if share is not None}

    def _stats(self) -> dict[str, int]:
        stats, before = self._engine.stats(), self._before
        self._before = stats
        return {name: count if name in self._gauges else count - before[name] for name, count in stats.items()}


def _of_tally(tally: Tally) -> dict[str, int]:
    if tally.from_state == tally.to_state:
        return {"probes": tally.count}
    states = f"{State(tally.from_state).label} {State(tally.to_state).label}"
    return {f"{states} {Cause(tally.cause).label}": tally.count, "rx_bytes": tally.rx_bytes,
            "tx_bytes": tally.tx_bytes}  # fmt: skip


def _of_silences(now: Silences, before: Silences | None) -> dict[str, int]:
    """What has come since then: `spoke after 64`: how many had been silent for so many seconds at least, and for less
    than the next ones."""
    return {
        f"{how} after {seconds}": new
        for how, places in SILENCES_S.items()
        for seconds, count, earlier in zip(
            places, getattr(now, how), getattr(before, how, (0,) * len(places)), strict=True
        )
        if (new := (count - earlier) % 2**32)
    }


def _of_census(census: Census) -> dict[str, int]:
    return {State(state).label: count for state, count in enumerate(census.in_state)} | {"born": census.born}
