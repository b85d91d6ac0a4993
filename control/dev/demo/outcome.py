# SPDX-License-Identifier: Apache-2.0
"""What a demo measured and what it proves: plain data, for the summary on the screen and for ``--json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    """An expectation, and what was found."""

    claim: str
    expected: str
    measured: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the story, and how long it took."""

    name: str
    seconds: float
    sentence: str = ""
    """What came of it."""
    ok: bool = True
    """Every check in it held."""


@dataclass(slots=True)
class Memory:
    """What sleeping clients cost, beside what they would cost as kernel sockets. Bytes."""

    connections: int
    kernel_socket: float
    """An idle kernel TCP socket: slab growth for each of some thousands, measured in the same run."""
    tables: int
    """All pinned tables and programs, as the kernel accounts them, the ring buffer for waking frames among them."""
    daemon_rss: int
    daemon_growth: int
    """Of the daemon's own memory, since before the first client came."""
    daemon_descriptors: int

    @property
    def tables_each(self) -> float:
        return self.tables / self.connections

    @property
    def all_each(self) -> float:
        return (self.tables + self.daemon_growth) / self.connections

    def as_dict(self) -> dict[str, float]:
        return {
            "connections": self.connections,
            "kernel_socket_bytes": round(self.kernel_socket, 1),
            "kernel_sockets_bytes": round(self.kernel_socket * self.connections),
            "tables_bytes": self.tables,
            "tables_bytes_per_connection": round(self.tables_each, 1),
            "daemon_rss_bytes": self.daemon_rss,
            "daemon_growth_bytes": self.daemon_growth,
            "daemon_descriptors": self.daemon_descriptors,
            "bytes_per_connection": round(self.all_each, 1),
        }


@dataclass(slots=True)
class Reached:
    """A server reached for sleeping clients: from its connect() to the first byte of the client's answer."""

    asked: int
    answered: int
    latency_us: list[int] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        spread = {f"p{p}_us": percentile(self.latency_us, p) for p in (50, 90, 99)} if self.latency_us else {}
        longest = {"max_us": max(self.latency_us)} if self.latency_us else {}
        return {"asked": self.asked, "answered": self.answered, **spread, **longest, "failed": self.failed}


@dataclass(slots=True)
class Absence:
    """The time without a daemon."""

    seconds: float = 0.0
    """From SIGKILL until the next daemon answered."""
    heard_after_s: float = 0.0
    """How long it had been dead when the clients were asked whether they still hear their peer."""
    keepalives_answered: int = 0
    silent_clients: int = 0
    longest_silence_ms: int = 0
    adopted: int = 0


@dataclass(slots=True)
class Outcome:
    """All of it. `ok` when the story came to its end and every check held."""

    clients: int
    connected: int = 0
    connect_seconds: float = 0.0
    peak_awake: int = 0
    max_awake: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    memory: Memory | None = None
    reached_asleep: Reached | None = None
    absence: Absence | None = None
    reached_after_crash: Reached | None = None
    checks: list[Check] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    finished: bool = False

    @property
    def ok(self) -> bool:
        return self.finished and all(check.ok for check in self.checks)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    def as_dict(self) -> dict[str, Any]:
        found = {field: value for field, value in asdict(self).items() if field != "finished"}
        return {
            "ok": self.ok,
            **found,
            "connect_seconds": round(self.connect_seconds, 3),
            "memory": self.memory.as_dict() if self.memory else None,
            "reached_asleep": self.reached_asleep.as_dict() if self.reached_asleep else None,
            "reached_after_crash": self.reached_after_crash.as_dict() if self.reached_after_crash else None,
            "steps": [{"name": step.name, "seconds": round(step.seconds, 3)} for step in self.steps],
            "seconds": round(self.seconds, 3),
        }


def percentile(values: Sequence[int], percent: int) -> int:
    """The smallest value that at least `percent` of 100 of them do not exceed; ValueError when there is none."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(-(-len(values) * percent // 100) - 1, 0)]
