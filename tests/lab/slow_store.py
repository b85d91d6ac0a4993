# SPDX-License-Identifier: Apache-2.0
"""An engine whose store takes its time: what it asks for is answered when the test says so."""

from __future__ import annotations

from errno import EIO

from appliance.wire import Command, Event, EventType, Op
from tests.lab.engine_lab import EngineLab, Pair


class SlowStore(EngineLab):
    """with SlowStore(lab) as box: box.to_sleep(pair); wake it; box.wait_asked(pair); box.answer()"""

    slow = True

    def _decide(self, event: Event) -> Command | None:
        if event.type == EventType.NEED_RECORD and self.slow:
            return None
        return super()._decide(event)

    def _asked(self, pair: Pair) -> list[Event]:
        key = pair.key.pack()
        return [e for e in self.events if e.type == EventType.NEED_RECORD and e.record.key_raw == key]

    def wait_asked(self, pair: Pair) -> None:
        """Until the engine has asked for the record of a sleeping connection, and waits."""
        self.wait(lambda: bool(self._asked(pair)), f"the record of {pair.key.client_text} is asked for")

    def answer(self, pair: Pair) -> None:
        """The store gets round to it, from what it holds now; from here on it answers at once."""
        self.slow = False
        command = self._decide(self._asked(pair)[-1])
        assert command is not None
        self.engine.submit([command])

    def give_up(self, pair: Pair, error: int = EIO) -> None:
        """The row cannot be read; what is asked from here on is answered at once."""
        self.slow = False
        asked = self._asked(pair)[-1]
        self.engine.submit([Command(Op.RESTORE, key=pair.key.pack(), id=asked.id, token=asked.token, error=error)])
