# SPDX-License-Identifier: Apache-2.0
"""Decisions: one step down when quiet, and how many to freeze under pressure."""

from __future__ import annotations

import pytest

from appliance.wire import Op
from control.core.states import State
from control.policy.decisions import relief, under_pressure, when_quiet


def test_a_quiet_connection_goes_down_one_step() -> None:
    assert when_quiet(State.ACTIVE, False) is Op.STANDBY
    assert when_quiet(State.STANDBY, False) is Op.IDLE


def test_a_quiet_connection_of_a_persistent_service_keeps_its_server() -> None:
    assert when_quiet(State.ACTIVE, True) is Op.IDLE, "with its server's leg: STANDBY would end that"
    assert when_quiet(State.STANDBY, True) is Op.IDLE


@pytest.mark.parametrize("state", [State.NONE, State.IDLE, State.SLEEP, State.CLOSED, 99])
def test_nothing_is_done_about_a_state_that_has_no_quiet_timer(state: int) -> None:
    assert when_quiet(state, False) is when_quiet(state, True) is None


@pytest.mark.parametrize(
    ("awake", "allowed", "frozen"), [(875, 1000, 125), (1000, 1000, 250), (700, 1000, 1), (5, 0, 0)]
)
def test_pressure_ends_at_three_quarters(awake: int, allowed: int, frozen: int) -> None:
    assert relief(awake, allowed) == frozen


@pytest.mark.parametrize(
    ("awake", "allowed", "pressed"),
    [(875, 1000, False), (876, 1000, True), (0, 0, False), (5, 0, False), (57, 64, True)],
)
def test_pressure_begins_above_seven_eighths(awake: int, allowed: int, pressed: bool) -> None:
    assert under_pressure(awake, allowed) is pressed
