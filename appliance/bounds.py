# SPDX-License-Identifier: Apache-2.0
"""How often, how many at once, how long after a failure, and in whose turn: by token, by address."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Final, TypeVar

KEYS: Final = 10_000
"""Of which is kept how often they came, or failed; of one that did so longest ago it is forgotten."""

Outcome = TypeVar("Outcome")


class CrowdedError(Exception):
    """As many of this key as may be there already."""


@lru_cache(maxsize=1024)
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

    def any(self, key: str) -> bool:
        """Whether there is one."""
        return key in self._count


class Delays:
    """How long one that has failed must wait until it may try again: `first_s`, twice as long for each further failure,
    `most_s` at most. Forgotten by success, or when it last failed `forget_s` ago. clock: s."""

    def __init__(
        self, first_s: float, most_s: float, forget_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._forget_s = forget_s
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """0: it may now."""
        delay, at = self._failed.get(key, (0.0, 0.0))
        return max(at + delay - self._clock(), 0.0)

    def count(self, key: str, success: bool) -> None:
        """It has tried."""
        delay, at = self._failed.pop(key, (0.0, 0.0))
        if success:
            return
        now = self._clock()
        longer = self._first_s if now - at > self._forget_s else max(2 * delay, self._first_s)
        self._failed[key] = min(longer, self._most_s), now
        if len(self._failed) > KEYS:
            self._failed.popitem(last=False)


class Turns:
    """Work that takes a processor for long, in threads of its own, half as many as processors. Of one key one piece is
    done at a time; keys are served in turn. each: how many pieces of a key may be there, done or waiting. All but the
    work itself runs in one event loop."""

    def __init__(self, name: str, each: int) -> None:
        threads = max((os.cpu_count() or 1) // 2, 1)
        self._threads = ThreadPoolExecutor(threads, name)
        self._free = asyncio.Semaphore(threads)
        self._each = AtOnce(each)
        self._locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """For a `with` that is entered by one of the key at a time, in the order in which they came; no thread is held
        by it. Raises CrowdedError."""
        if not self._each.begin(key):
            raise CrowdedError(f"more than may wait of {key}")
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                yield
        finally:
            self._each.end(key)
            if not self._each.any(key):
                del self._locks[key]

    async def work(self, call: Callable[[], Outcome]) -> Outcome:
        """What the call returns or raises, which is made in a thread; within `of`. Cancelled before a thread is free,
        it is not made."""
        async with self._free:  # first come, first served: of each key there is one at most, so it is round robin
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
