# SPDX-License-Identifier: Apache-2.0
"""The address that servers see: `source` names it, where it is of their family."""

from __future__ import annotations

from typing import Any, Final

import pytest

from appliance.lab import Lab
from appliance.wire import Op
from control.core.states import State
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.fixtures import ip

SOURCES: Final = {4: ("10.3.99.1", "32"), 6: ("fd00:3:99::1", "128")}
"""Not of the network that the kernel would choose one of, and the way back is the appliance's anyway."""
BOTH: Final = pytest.mark.parametrize("family", [4, 6])


def box_with(lab: Lab, family: int, **service: Any) -> EngineLab:
    address, bits = SOURCES[family]
    ip(lab, "box", "address", "replace", f"{address}/{bits}", "dev", "lo", *(["nodad"] if family == 6 else []))
    return EngineLab(lab, service={"source": address, **service})


@BOTH
def test_servers_see_it(empty_lab: Lab, family: int) -> None:
    with box_with(empty_lab, family) as box:
        assert box.connect(family).server.getpeername()[0] == SOURCES[family][0]


@BOTH
def test_links_that_are_made_before_clients_need_them_have_it(empty_lab: Lab, family: int) -> None:
    with box_with(empty_lab, family, ready_links=1) as box:
        assert box.accept(family).getpeername()[0] == SOURCES[family][0]


@BOTH
def test_a_session_sleeps_and_is_woken_there(empty_lab: Lab, family: int) -> None:
    with box_with(empty_lab, family, persistent=True) as box:
        pair = box.connect(family)
        assert pair.server.getpeername()[0] == SOURCES[family][0]
        box.wait_for_quiet(pair)
        box.submit(Op.IDLE, pair)
        box.wait_state(pair, State.IDLE)
        pair.server.sendall(b"hello")
        assert receive(pair.client, 5) == b"hello"


def test_one_of_another_family_is_left_out(empty_lab: Lab) -> None:
    with EngineLab(empty_lab, service={"source": SOURCES[6][0]}) as box:
        assert box.connect(4).server.getpeername()[0] == empty_lab.address("box", "lan0")
