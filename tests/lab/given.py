# SPDX-License-Identifier: Apache-2.0
"""Values that a test gives to one connection, as the control plane does it by command."""

from __future__ import annotations

from itertools import count
from typing import Final

from appliance.wire import GIVEN_GROUP, OVERRIDES, Command, EventType, Op, Own
from control.core.states import Cause
from tests.lab.engine_lab import EngineLab, Pair

ACTIVE: Final = 1
STANDBY: Final = 2
IDLE: Final = 4
PROBE: Final = 8
"""Bits of roost_overrides.given."""

GROUP: Final = GIVEN_GROUP

_tokens = count(1_000_000)


def give(box: EngineLab, pair: Pair, asked: int, active: int | None = None, standby: int | None = None,
         idle: int | None = None, probe_s: int | None = None, group: int = 0,
         number: int | None = None) -> int:  # fmt: skip
    """ROOST_OP_GIVE: 0, or the errno that it is refused with. Intervals in ms; number: in place of its own."""
    values = (active, standby, idle, probe_s)
    given = sum(1 << bit for bit, value in enumerate(values) if value is not None)
    own = OVERRIDES.pack(*(value or 0 for value in values), given, 0, 0, group)
    token, number = next(_tokens), pair.id if number is None else number
    box.engine.submit([Command(Op.GIVE, Cause.COMMAND, number, pair.key, token=token, count=asked, overrides=own)])
    box.wait(lambda: any(e.token == token for e in box.events), "it is answered")
    return next(e.error if e.type == EventType.REFUSED else 0 for e in box.events if e.token == token)


def own(box: EngineLab, pair: Pair) -> Own:
    """What the connection has of its own."""
    return box.engine.find_own(pair.key.pack(), pair.id)
