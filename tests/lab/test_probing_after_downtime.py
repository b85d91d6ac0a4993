# SPDX-License-Identifier: Apache-2.0
"""Probes that no daemon was there to send are not the client's silence; and a death takes with it what was kept."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from appliance.wire import Op
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.test_probing import PROBED, cut_off

INTERVAL_S, RETRY_S, COUNT = 1, 2, 2
DOWNTIME_S = INTERVAL_S + COUNT * RETRY_S + 0.5  # longer than a whole death takes
HEALED = "delete table inet vanish"


@pytest.mark.engine(service={"probe_interval_s": INTERVAL_S, "probe_retry_s": RETRY_S, "probe_count": COUNT})
def test_after_downtime_probes_go_out_at_their_own_pace_and_kill_nobody_who_answers_one_of_them(
    box: EngineLab,
) -> None:
    """One client's network is back between the first probe and the last, the other's never."""
    late, gone = box.connect(), box.connect()
    for pair in (late, gone):
        box.to_idle(pair)
    box.stop()
    cut_off(box, f"tcp sport {{ {late.key.client_port}, {gone.key.client_port} }} drop;")
    try:
        time.sleep(DOWNTIME_S)
        box.start()
        heard = box.stat("acks_heard")  # pinned: it goes on from what was heard before the cut
        box.wait(lambda: box.stat("probes_sent") >= 2, "both are probed at once", 2.5)
        probed = time.monotonic()
        time.sleep(1.3)  # the table is walked once a second
        assert box.stat("probes_sent") == 2, "one overdue probe each, not all of them in a burst"
        assert box.stat("acks_heard") == heard
        box.lab.nft("nat", "flush chain inet vanish forward\n"
                    f"add rule inet vanish forward tcp sport {gone.key.client_port} drop")  # fmt: skip
        box.wait(lambda: box.stat("acks_heard") > heard, "the late one answers its second probe", RETRY_S)
        box.wait_state(gone, State.CLOSED, RETRY_S + 2)
        lived_s = time.monotonic() - probed
    finally:
        box.lab.nft("nat", HEALED)
    assert lived_s > COUNT * RETRY_S - 1.3, "it had the time that the policy gives (the record counts whole seconds)"
    assert box.transitions(gone)[-1] == (State.IDLE, State.CLOSED, Cause.PROBE_TIMEOUT)
    assert box.stat("probe_dead") == 1
    assert box.state(late) is State.IDLE
    box.wake_and_answer(late)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.engine(service={**PROBED, "persistent": True})
def test_a_client_that_died_asleep_beside_its_server_leg_is_closed_its_server_told_and_nothing_kept(
    box: EngineLab, family: int
) -> None:
    pair = box.connect(family)
    box.wait_for_quiet(pair)
    box.submit(Op.IDLE, pair)
    box.wait_state(pair, State.IDLE)
    cut_off(box, f"tcp sport {pair.key.client_port} drop;")
    try:
        box.wait_state(pair, State.CLOSED, 8)
    finally:
        box.lab.nft("nat", HEALED)
    assert box.transitions(pair)[-1] == (State.IDLE, State.CLOSED, Cause.PROBE_TIMEOUT)
    with suppress(ConnectionResetError):
        assert pair.server.recv(1) == b""
    assert box.stat("awake") == box.stat("table_ipv4") == box.stat("table_ipv6") == box.stat("idle_records") == 0
    following = box.connect(family)  # takes free slots and a new number
    for speaker, listener in ((following.client, following.server), (following.server, following.client)):
        box.wait_for_quiet(following)
        box.submit(Op.IDLE, following)
        box.wait_state(following, State.IDLE)
        speaker.sendall(b"good morning")
        assert receive(listener, 12) == b"good morning"
        box.wait_state(following, State.ACTIVE)
