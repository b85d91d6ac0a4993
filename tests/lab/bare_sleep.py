# SPDX-License-Identifier: Apache-2.0
"""An engine whose services need no keep-alives in SLEEP: what sleeps there has no slot."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator
from typing import Any, Final

from appliance.wire import CANDIDATE, Command, Event, EventType, Key, Op
from tests.lab.engine_lab import EngineLab, Pair

NO_KEEPALIVES: Final = {"no_keepalives": True}
SMALL: Final = 4
"""A filter for so many has two buckets: with one member it takes one key in some 4,000 for it, full one in 400."""

TINY: Final = 3
"""It has one bucket: with one member it takes one key in 4,095 for it, whichever that is."""


class BareSleep(EngineLab):
    """`readable`: the store can say which of them sleep; None: it takes its time."""

    readable: bool | None = True

    def _decide(self, event: Event) -> Command | None:
        if event.type == EventType.CANDIDATE and self.readable is None:
            return None
        if event.type == EventType.CANDIDATE and not self.readable:
            return Command(Op.CANDIDATE, key=event.record.key_raw, error=errno.EAGAIN)
        return super()._decide(event)

    def answer(self, pair: Pair) -> None:
        """The store gets round to what it was asked about this connection; from here on it answers at once."""
        key = pair.key.pack()

        def asked() -> list[Event]:
            return [e for e in self.events if e.type == EventType.CANDIDATE and e.record.key_raw == key]

        self.wait(asked, "it was asked")
        self.readable = True
        command = self._decide(asked()[-1])
        assert command is not None
        self.engine.submit([command])

    @property
    def slots(self) -> int:
        """In use."""
        return self.stat("table_ipv4") + self.stat("table_ipv6")

    @property
    def members(self) -> int:
        return self.stat("filter_members")

    def let_sleep(self, family: int = 4, **client: Any) -> Pair:
        """A connection in SLEEP that has no slot."""
        pair = self.connect(family, **client)
        members = self.members
        self.to_sleep(pair)
        assert self.members == members + 1
        return pair

    def taken_for_members(self, family: int = 4, addresses: int = 1) -> Iterator[tuple[str, int]]:
        """Addresses and ports from which a client would be taken for one, and is none: of an address, and beside one
        member, 16 of 64,000 ports in the mean where the filter is TINY, so that one run in 6,000,000 finds none. Where
        it is SMALL, and both buckets of the member are the same one, as half of the time, they are 8: one in 2,500."""
        host, port = self.target(family)
        for client in self.lab.client_addresses(family, addresses):
            key = Key.of(client, 0, host, port).pack()
            for first in range(1024, 65024, 1000):
                ports = range(first, first + 1000)
                keys = b"".join(key[:32] + source.to_bytes(2) + key[34:] for source in ports)
                states = self.engine.states(keys, array("Q", bytes(8 * len(ports))))
                yield from ((client, source) for source, state in zip(ports, states, strict=True) if state & CANDIDATE)

    def taken_for_a_member(self, family: int = 4) -> int:
        """The first of those ports."""
        return next(self.taken_for_members(family))[1]
