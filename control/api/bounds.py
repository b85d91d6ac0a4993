# SPDX-License-Identifier: Apache-2.0
"""How often, and how many at once: by token, by address."""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

KEYS: Final = 10_000
"""Of which is kept how often they came; of one that came longest ago it is forgotten."""


def source_of(address: str) -> str:
    """What counts as one source: an IPv4 address, or a /64 of IPv6, which is one site's."""
    ip = ipaddress.ip_address(address)
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip.packed[:8] + bytes(8), 64)))


class Rates:
    """Token buckets (as of RFC 2697's kind): `per_s` on average, `burst` at once. clock: s."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """How long it must wait until it may come; 0: it may now."""
        return max(1 - self._level(key), 0.0) / self._per_s

    def take(self, key: str) -> None:
        """It comes."""
        self._levels[key] = self._level(key) - 1, self._clock()
        self._levels.move_to_end(key)
        if len(self._levels) > KEYS:
            self._levels.popitem(last=False)

    def _level(self, key: str) -> float:
        level, at = self._levels.get(key, (self._burst, 0.0))
        return min(level + (self._clock() - at) * self._per_s, self._burst)


class AtOnce:
    """How many of each key there are."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = Counter[str]()

    def begin(self, key: str) -> bool:
        """One more; False: there are as many as there may be."""
        if self._count[key] >= self._most:
            return False
        self._count[key] += 1
        return True

    def end(self, key: str) -> None:
        """One less."""
        self._count[key] -= 1
        if not self._count[key]:
            del self._count[key]
