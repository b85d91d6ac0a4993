# SPDX-License-Identifier: Apache-2.0
"""The group of a connection: rules that are for it by what the engine does not know of it, its name and its tags."""

from __future__ import annotations

import pytest

from appliance.wire import Key, RuleEntry
from control.core.states import State
from tests.lab.engine_lab import EngineLab
from tests.lab.given import GROUP, IDLE, give, own


@pytest.mark.parametrize("state", ["ACTIVE", "STANDBY", "IDLE", "SLEEP"])
@pytest.mark.engine(service={"sleep_quiet_ms": 3_600_000})
def test_a_group_has_the_values_of_its_entries_and_what_is_its_own_above_them(box: EngineLab, state: str) -> None:
    pair, other = box.connect(), box.connect()
    for one in (pair, other) if state != "ACTIVE" else ():
        box.to(one, State[state])
    group(box, 7, 777_000)
    assert give(box, pair, GROUP, group=7) == 0
    assert [idle_of(box, one.key) for one in (pair, other)] == [777_000, 3_600_000]
    group(box, 7, 778_000)
    box.wait(lambda: idle_of(box, pair.key) == 778_000, "a change of it is obeyed")
    assert give(box, pair, IDLE, idle=5_000_000) == 0
    assert idle_of(box, pair.key) == 5_000_000
    assert give(box, pair, IDLE) == 0
    assert idle_of(box, pair.key) == 778_000, "it is in its group still"
    group(box, 8, 779_000)
    box.wait(lambda: idle_of(box, pair.key) == 3_600_000, "no entry is of its group")
    assert own(box, pair).by_command == {}
    assert give(box, pair, GROUP) == 0


@pytest.mark.engine(service={"no_keepalives": True}, filter_slots=4000)
def test_one_without_a_slot_has_one_while_it_is_in_a_group(box: EngineLab) -> None:
    pair = box.connect()
    box.to_sleep(pair)
    asked = box.stat("perhaps_asked")
    assert give(box, pair, GROUP) != 0, "without a slot it is in none"
    assert (box.stat("filter_members"), box.stat("perhaps_asked")) == (1, asked)
    assert give(box, pair, GROUP, group=9) == 0
    assert (box.stat("filter_members"), box.stat("table_ipv4")) == (0, 1)
    box.wake_and_answer(pair)


def group(box: EngineLab, number: int, idle_ms: int) -> None:
    """The only rule there is."""
    spec = box.spec(4, sleep_quiet_ms=idle_ms)
    box.engine.set_rules([RuleEntry(spec.index, bytes(16), 0, 0, number)], [spec])


def idle_of(box: EngineLab, key: Key) -> int:
    return box.engine.find_class(key.pack())["idle_quiet_ms"]
