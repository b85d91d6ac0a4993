# SPDX-License-Identifier: Apache-2.0
"""A daemon whose engine says, besides what happens, that transitions happen: so many a second while a file is there.

    python -m tests.bench.loaded_daemon -c FILE

FILE.load has `rate connections`: transitions a second, of connections 1 to `connections`, packed as those of clients
that come and go. As many begin as end, so that the counts of states stay what they are.
"""

from __future__ import annotations

import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from appliance.engine import Engine
from appliance.wire import NO_ENDS, Event, EventType, Record
from control import config as configuration
from control.core.states import Cause, State
from control.daemon.daemon import Daemon
from control.store.schema import HISTORY, KEY, MAPPED

MADE: Final = 50_000
POLL_MS: Final = 10
_STEPS: Final = ((State.STANDBY, State.ACTIVE, Cause.CLIENT_DATA), (State.ACTIVE, State.STANDBY, Cause.QUIET))


_ROWS: Final = Event(EventType.ROWS, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, Record(b"", b"", b""))


def made(connections: int) -> bytes:
    """Rows of connections at random."""
    rows, now, local = [], time.time_ns() // 1_000_000, MAPPED + bytes((10, 255, 0, 1))
    for at in range(MADE):
        number = random.randint(1, connections)
        key = KEY.pack(MAPPED + (0x0A000000 + number).to_bytes(4), local, 40_000, 7000)
        rows.append(HISTORY.pack(number, now, key, 1, *_STEPS[at % 2], 10, 20, 30, NO_ENDS))
    return b"".join(rows)


class LoadedEngine(Engine):
    """`load`: where it is said how many."""

    def __init__(self, *arguments: Any, load: Path) -> None:
        super().__init__(*arguments)
        self._load = load
        self._rate, self._rows, self._at, self._due = 0, b"", 0, time.monotonic()

    def batch(self, max_events: int = 4096, timeout_ms: int = 200, patience_ms: int = 0) -> list[Event]:
        events = super().batch(max_events, min(timeout_ms, POLL_MS), patience_ms)
        try:
            said = self._load.read_text()
        except FileNotFoundError:
            self._rate = 0
            return events
        now = time.monotonic()
        if not self._rate:
            rate, connections = said.split()
            self._rate, self._rows, self._due = int(rate), made(int(connections)), now
        count = min(int((now - self._due) * self._rate), MADE) // 2 * 2
        self._due += count / self._rate
        if not count:
            return events
        if (self._at + count) * HISTORY.size > len(self._rows):
            self._at = 0
        rows = self._rows[self._at * HISTORY.size : (self._at + count) * HISTORY.size]
        self._at += count
        return [*events, _ROWS._replace(count=count, rows=rows)]


def main() -> int:
    path = sys.argv[sys.argv.index("-c") + 1]
    engine = partial(LoadedEngine, load=Path(f"{path}.load"))
    return Daemon(path, configuration.load(path), engine).run()


if __name__ == "__main__":
    sys.exit(main())
