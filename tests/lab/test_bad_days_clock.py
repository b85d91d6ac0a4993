# SPDX-License-Identifier: Apache-2.0
"""Bad days of the clock (docs/operations.md): it jumps while clients sleep, are idle and are awake. What a reboot makes
of a wrong one: test_reboot.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from appliance.lab import Lab
from tests.lab.bad_day import Box
from tests.lab.wrong_clock import WrongClock

HOUR: Final = 3600


@pytest.mark.parametrize("jump_s", [HOUR, -HOUR])
def test_a_clock_that_jumps_an_hour_costs_no_client_and_neither_does_a_restart_then(
    jump_s: int, tmp_path: Path
) -> None:
    with Lab(clients=100) as lab:
        clock, box = WrongClock(tmp_path), Box(lab)
        box.start(under=clock.under)
        box.come()
        clock.jump(jump_s)
        box.heard()
        box.all_answered()
        box.settled()
        rows = box.daemon.get("/v1/history", limit=1000)
        assert abs(rows[-1]["at_ms"] / 1000 - time.time() - jump_s) < 60, "the jump is in its times"
        assert abs(rows[0]["at_ms"] / 1000 - time.time()) < 60
        assert box.attention() == {}
        box.history_is_whole()
        box.daemon.terminate()
        box.daemon.start(under=clock.under)
        box.all_answered()
        box.settled()
        box.history_is_whole()
        clock.jump(0)
        box.all_answered()
        box.settled()
        assert box.attention() == {}
