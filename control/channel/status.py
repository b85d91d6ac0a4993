# SPDX-License-Identifier: Apache-2.0
"""`roost status`: how the daemon stands, as plain data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from control.config import Service
from control.core.ports import EnginePort
from control.core.states import State
from control.dispatch.dispatcher import Dispatcher
from control.store.store import Store


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Status:
    """server_rows: the servers of a service, by its number. reached: what was counted of the other ways to clients.
    facts: what stays as it is while the daemon runs."""

    def __init__(self, engine: EnginePort, store: Store, dispatcher: Dispatcher, services: Mapping[int, Service],
                 server_rows: Callable[[int], list[dict[str, Any]]], reached: Callable[[], dict[str, int]],
                 facts: Mapping[str, Any]) -> None:  # fmt: skip
        self._engine = engine
        self._store = store
        self._dispatcher = dispatcher
        self._services = services
        self._server_rows = server_rows
        self._reached = reached
        self._facts = facts
        self._began = time.monotonic()

    def read(self) -> dict[str, Any]:
        """The whole state of the daemon as plain data."""
        self._dispatcher.catch_up()
        states = {state.label: max(self._dispatcher.states[state], 0) for state in State if state not in (0, 5)}
        stats = self._engine.stats()
        states["IDLE"] += stats["born"]  # the dispatcher knows such a connection from when it speaks
        store = self._store.status
        inactive = states["IDLE"] + states["SLEEP"]
        memory = self._engine.memory()
        counters = self._dispatcher.counters
        return {
            **self._facts,
            "uptime_s": round(time.monotonic() - self._began, 3),
            "connections": states,
            "awake": states["ACTIVE"] + states["STANDBY"],
            "memory": {
                "maps_bytes": memory,
                "daemon_rss_bytes": rss_bytes(),
                "maps_bytes_per_inactive": round(memory / inactive, 1) if inactive else None,
            },
            "store": {
                "state": store.text,
                "pending_sleep": store.pending_sleep,
                "pending_history": store.pending_history,
                "dropped_history": store.dropped_history,
                "written_history": store.written_history,
                "last_commit_ms": round(store.last_commit_ms, 3),
            },
            "control": {name: getattr(counters, name) for name in counters.__dataclass_fields__},
            "services": [self._service_row(index, service) for index, service in tuple(self._services.items())],
            "agents": self._reached(),
            "counters": stats,
        }

    def _service_row(self, index: int, service: Service) -> dict[str, Any]:
        return {
            "name": service.name,
            "index": index,
            "listen": service.listen,
            "server": " ".join(service.every_server) or (service.listen if service.kind == "server" else service.kind),
            "transparent": service.transparent,
            "interface": service.interface,
            "balance": service.balance,
            "check": service.check,
            "servers": self._server_rows(index),
        }
