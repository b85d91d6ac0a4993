# SPDX-License-Identifier: Apache-2.0
"""Decisions: what becomes of a connection that falls quiet, and of many when resources run short.

Pure functions of one event; the timers run in the engine, which asks when they are due.
"""

from __future__ import annotations

from appliance.wire import Op
from control.core.states import State


def when_quiet(state: int, persistent: bool) -> Op | None:
    """What to do with a connection that has been quiet in `state` as long as its service allows; None: nothing. One
    step down at a time: the engine asks again when the next timer is due. persistent: its service keeps the server's
    side of the connection, so that both freeze together."""
    if state == State.ACTIVE:
        return Op.IDLE if persistent else Op.STANDBY
    return Op.IDLE if state == State.STANDBY else None


def under_pressure(awake: int, max_awake: int) -> bool:
    """Whether more than 7/8 of the allowed connections are awake."""
    return 0 < max_awake - max_awake // 8 < awake


def relief(awake: int, max_awake: int) -> int:
    """How many connections to freeze under pressure, so that 3/4 of the allowed ones stay awake."""
    return max(awake - max_awake * 3 // 4, 1) if max_awake else 0
