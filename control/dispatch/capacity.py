# SPDX-License-Identifier: Apache-2.0
"""What runs short: sockets (the least recently active connections go down, and it is logged when clients cannot wake),
slots of the tables, and what one source may do (it is logged)."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from errno import EFBIG, ENOBUFS
from typing import Final

from appliance.wire import Command, Limited, Op
from control.core.ports import EnginePort
from control.core.states import Cause
from control.policy import decisions

log = logging.getLogger("roost.dispatch")

LOOK_EVERY_S: Final = 10
"""How often a shortage is logged."""

SHORTAGES: Final = {
    "table_full": "a connection could not fall asleep, or wake: a table is full; give [table] idle, ipv4 or ipv6 more "
    "room (`roost status` shows how full they are)",
    "wakes_refused": "a client could not wake: as many are awake as sockets allow; raise the limit of descriptors "
    "(LimitNOFILE=) and [table] max_awake, or shorten active_quiet and write_timeout",
    "stuck_reset": "a connection was reset, for sockets ran short and what was sent to it had waited longest; the "
    "history has each with the cause pressure",
}
"""Counters of the engine, and what is said when one has grown."""

BEYOND: Final = {
    "births_limited": (Limited.BIRTHS, "a client that connected was not answered"),
    "handshakes_limited": (Limited.HANDSHAKES, "a client that connected was reset, or its SYN dropped"),
    "wakes_limited": (Limited.WAKES, "what a sleeping client said was dropped, and must come again"),
    "attaches_limited": (Limited.ATTACHES, "a server that asked for a client was refused"),
    "agents_limited": (Limited.AGENTS, "an agent that connected was turned away"),
    "connections_limited": (Limited.CONNECTIONS, "a client that connected was reset"),
}
"""Counters of what was beyond a limit by source, and what became of it."""

DENIED: Final = {
    "clients_denied": 'a client that connected was reset: new_clients = "refuse" is in force for its network',
}
"""The same, of what the policy has refused."""

SAME_EVERY_S: Final = 3600
"""How often it is logged that a table cannot grow for the same reason: the engine tries every 30 s."""

RELIEF_EVERY_S: Final = 0.5
"""Longer than a freeze with its grace period takes: the next relief must not count connections on their way down."""


class Capacity:
    """All of it runs in the dispatcher's thread. max_awake: 0: no limit. Times are CLOCK_MONOTONIC, s."""

    def __init__(self, engine: EnginePort, max_awake: int) -> None:
        self._engine = engine
        self._max_awake = max_awake
        self._next_relief = 0.0
        self._next_look = 0.0
        self._before: Mapping[str, int] = {}
        self._classes_full = False
        self._not_grown: dict[tuple[int, int], float] = {}

    def relieve(self, awake: int, now: float) -> Command:
        """The engine reports pressure: so many are awake."""
        self._next_relief = now + RELIEF_EVERY_S
        return Command(op=Op.PRESSURE, cause=Cause.PRESSURE, count=decisions.relief(awake, self._max_awake))

    def relief_due(self, awake: int, now: float) -> Command | None:
        """The engine reports pressure once, when clients connect. Sleeping ones that all wake at once must go down
        again, too, and a relief that found most of them busy must be followed by another."""
        if now >= self._next_relief and decisions.under_pressure(awake, self._max_awake):
            return self.relieve(awake, now)
        return None

    def not_grown(self, version: int, error: int, now: float) -> None:
        """The engine reports that the table of this IP version (0: room for IDLE connections) is nearly full."""
        if now < self._not_grown.get((version, error), -SAME_EVERY_S) + SAME_EVERY_S:
            return
        self._not_grown[version, error] = now
        key = f"ipv{version}" if version else "idle"
        why = {EFBIG: "no table is larger", ENOBUFS: "a quarter of the machine's memory stays available"}.get(
            error, os.strerror(error)
        )
        log.error("[table] %s is nearly full and cannot grow: %s; it is tried again every 30 s", key, why)

    def look(self, now: float) -> None:
        """Log what ran short since the last look."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        before, self._before = self._before, (stats := self._engine.stats())
        if stats.get("classes_full", 0) and not self._classes_full:
            self._classes_full = True
            log.error(
                "connections have as many different sets of values as there is room for: more are refused, in band, by "
                "command, and of rules for names; let connections share values (`roost status` counts `classes_full`)"
            )
        risen = {name: stats.get(name, 0) - before.get(name, 0) for name in (*SHORTAGES, *DENIED, *BEYOND)}
        for level, told in ((logging.ERROR, SHORTAGES), (logging.INFO, DENIED)):
            for name, what in told.items():
                if (times := risen[name]) > 0:
                    log.log(level, "%d times in the last %d s %s", times, LOOK_EVERY_S, what)
        for name, (limit, what) in BEYOND.items():
            if (times := risen[name]) > 0:
                log.warning(
                    "%d times in the last %d s %s: its source does more than [limits] %s allows; the last one was %s",
                    times, LOOK_EVERY_S, what, limit.name.lower(), self._engine.last_refused(limit),
                )  # fmt: skip
