# SPDX-License-Identifier: Apache-2.0
"""Who listens at the local socket is told of each transition once, from the past on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from appliance.wire import Event
from control.channel import live as module
from control.channel.live import live


class Box:
    """Transitions 1, 2, ... that are in the history at once, and are told to listeners then."""

    def __init__(self) -> None:
        self.happened = 0
        self.listeners: list[Callable[[Iterable[Event]], None]] = []
        self.while_reading: Callable[[], None] = lambda: None

    def happen(self, count: int = 1) -> None:
        first, self.happened = self.happened + 1, self.happened + count
        events = [SimpleNamespace(number=number) for number in range(first, self.happened + 1)]
        for listener in self.listeners:
            listener(cast(Any, events))

    def listen(self, listener: Callable[[Iterable[Event]], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def recent(self, limit: int) -> list[dict[str, Any]]:
        self.happen()
        self.while_reading()
        return [self.row(number) for number in range(max(self.happened - limit, 0) + 1, self.happened + 1)]

    def transition_event(self, event: Any) -> dict[str, Any]:
        return self.row(event.number)

    @staticmethod
    def row(number: int) -> dict[str, Any]:
        return {"id": number, "at_ms": 1000, "client": "192.0.2.1:7", "from": "IDLE", "to": "SLEEP"}


def told(data: bytes) -> list[Any]:
    """Numbers of transitions; {"count": ...} of those that were dropped."""
    lines = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]
    return [line.get("id", line) for line in lines]


@pytest.mark.parametrize("last", [0, 3, 1000])
def test_what_happens_while_the_past_is_read_is_told_once(last: int) -> None:
    box = Box()
    box.happened = 10

    async def scene() -> None:
        parts = live(box, box, last)
        heard = told(await anext(parts))
        box.happen(2)
        while heard[-1:] != [box.happened]:
            heard += told(await anext(parts))
        assert heard == list(range(max(12 - last, 1) if last else 11, box.happened + 1))
        await parts.aclose()
        assert not box.listeners

    asyncio.run(scene())


def test_who_reads_too_slowly_is_told_how_many_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOUND", 5)
    box = Box()

    async def scene() -> None:
        parts = live(box, box, 0)
        await anext(parts)
        box.happen(7)
        assert told(await anext(parts)) == [1, 2, 3, 4, 5]
        assert told(await anext(parts)) == [{"count": 2}]
        await parts.aclose()

    asyncio.run(scene())


def test_where_the_past_cannot_be_read_nobody_listens() -> None:
    box = Box()

    def fail() -> None:
        raise OperationalError("", {}, Exception("the disk is gone"))

    box.while_reading = fail

    async def scene() -> None:
        with pytest.raises(OperationalError):
            await anext(live(box, box, 5))
        assert not box.listeners

    asyncio.run(scene())


def test_nothing_is_told_twice_however_long_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    box = Box()

    async def scene() -> None:
        parts = live(box, box, 5)
        assert told(await anext(parts)) == [1]
        assert await anext(parts) == b": still here\n\n"
        box.happen()
        assert told(await anext(parts)) == [2]
        await parts.aclose()

    asyncio.run(scene())
