# SPDX-License-Identifier: Apache-2.0
"""Records made by hand, for the tests of the parts that read them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from appliance.engine import ffi
from appliance.wire import NO_REST, Key

FREE, FREEZING, IDLE, SLEEP, WAKING, THAWED = range(6)
TIMESTAMPS, SACK, WSCALE, PAIRED, SERVER = 1, 2, 4, 8, 16


@dataclass(frozen=True)
class Ka:
    """struct roost_ka, its ctl taken apart."""

    phase: int = IDLE
    flags: int = TIMESTAMPS | SACK | WSCALE
    snd_wscale: int = 7
    rcv_wscale: int = 7
    snd_nxt: int = 1000
    rcv_nxt: int = 2000
    ts_offset: int = 0
    ts_recent: int = 0
    heard: int = 0
    window: int = 502
    klass: int = 0
    rest: int = NO_REST

    @property
    def ctl(self) -> int:
        return self.phase | self.flags << 16 | self.snd_wscale << 24 | self.rcv_wscale << 28

    def c(self) -> Any:
        """A struct roost_ka of C."""
        raw = ffi.new("struct roost_ka *")
        for name in ("ctl", "snd_nxt", "rcv_nxt", "ts_offset", "ts_recent", "heard", "window",
                     "rest"):  # fmt: skip
            setattr(raw, name, getattr(self, name))
        setattr(raw, "class", self.klass)
        return raw

    def but(self, **changes: int) -> Ka:
        return replace(self, **changes)


def c_key(key: Key) -> Any:
    """A struct roost_key of C."""
    raw = ffi.new("struct roost_key *")
    ffi.memmove(raw, key.pack(), 36)
    return raw
