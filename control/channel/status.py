# SPDX-License-Identifier: Apache-2.0
"""`roost status`: how the daemon stands, as plain data."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from appliance.box.memory import resident_bytes
from control.channel.attention import OF_STORE, WINDOW_S, attention, counters
from control.config import Service
from control.core.ports import EnginePort
from control.core.states import State
from control.core.text import sentence
from control.dispatch.dispatcher import Dispatcher
from control.store.store import Store

SAMPLE_S: Final = 10.0
"""How often the counters are noted, for what they grew by."""


class Status:
    """leaving: services that take no new clients. server_rows: the servers of a service, by its number.
    parts: what other parts of the daemon say, by key. facts: what stays as it is while the daemon runs."""

    def __init__(self, engine: EnginePort, store: Store, dispatcher: Dispatcher, services: Mapping[int, Service],
                 leaving: Container[int], server_rows: Callable[[int], list[dict[str, Any]]],
                 parts: Mapping[str, Callable[[], Mapping[str, Any]]], facts: Mapping[str, Any]) -> None:  # fmt: skip
        self._engine = engine
        self._store = store
        self._dispatcher = dispatcher
        self._services = services
        self._leaving = leaving
        self._server_rows = server_rows
        self._parts = parts
        self._facts = facts
        self._began = time.monotonic()
        status = self._read()
        # Those of the daemon began at 0, and what it met at its start is to be told; those of XDP may be a year old.
        first = counters(status) | dict.fromkeys((*status["control"], *OF_STORE), 0)
        self._samples: deque[dict[str, int]] = deque([first], round(WINDOW_S / SAMPLE_S))

    async def watch(self) -> None:
        """Note the counters from time to time, for ever."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._samples.append(counters(await asyncio.to_thread(self._read)))

    def read(self) -> dict[str, Any]:
        """The whole state of the daemon as plain data."""
        status = self._read()
        return {**status, "attention": attention(status, self._samples[0])}

    def attention(self) -> list[str]:
        """What an operator should look at, a sentence each."""
        return [sentence(one) for one in self.read()["attention"]]

    def _read(self) -> dict[str, Any]:
        self._dispatcher.catch_up()
        states = {state.label: max(self._dispatcher.states[state], 0) for state in State if state not in (0, 5)}
        stats = self._engine.stats()
        states["IDLE"] += stats["born"]  # the dispatcher knows such a connection from when it speaks
        store = self._store.status
        inactive = states["IDLE"] + states["SLEEP"]
        memory = self._engine.memory()
        control = self._dispatcher.counters
        return {
            **self._facts,
            "uptime_s": round(time.monotonic() - self._began, 3),
            "connections": states,
            "awake": states["ACTIVE"] + states["STANDBY"],
            "memory": {
                "maps_bytes": memory,
                "daemon_rss_bytes": resident_bytes(),
                "maps_bytes_per_inactive": round(memory / inactive, 1) if inactive else None,
            },
            "store": {
                "state": store.text,
                "pending_sleep": store.pending_sleep,
                "pending_history": store.pending_history,
                "dropped_history": store.dropped_history,
                "dropped_attaches": store.dropped_attaches,
                "dropped_snapshots": store.dropped_snapshots,
                "dropped_audit": store.dropped_audit,
                "written_history": store.written_history,
                "kept_history": store.kept_history,
                "rescued": store.rescued,
                "last_commit_ms": round(store.last_commit_ms, 3),
            },
            "control": {name: getattr(control, name) for name in control.__dataclass_fields__},
            "services": [self._service_row(index, service) for index, service in tuple(self._services.items())],
            **{key: part() for key, part in self._parts.items()},
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
            "leaving": index in self._leaving,
            "servers": self._server_rows(index),
        }
