# SPDX-License-Identifier: Apache-2.0
"""Who is awake is checked as well: by keep-alives of the kernel on both legs, and by a probe before a server is given a
client that was not heard for a while."""

from __future__ import annotations

import pytest

from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, Pair, tcp_info
from tests.lab.test_probing import cut_off

CHECKED = {"awake_probe_s": 1, "probe_retry_s": 1, "probe_count": 2}


def vanish(box: EngineLab, *pairs: Pair) -> None:
    """As after a device lost its power; until "vanish" is deleted."""
    ports = ", ".join(str(pair.key.client_port) for pair in pairs)
    cut_off(box, f"tcp sport {{ {ports} }} drop; tcp dport {{ {ports} }} drop;")


@pytest.mark.engine(service=CHECKED)
def test_clients_that_vanish_while_they_are_awake_are_found_dead_and_their_servers_told(box: EngineLab) -> None:
    living, vanished, standing = box.connect(), box.connect(), box.connect(6)
    box.to_standby(standing)
    vanish(box, vanished, standing)
    try:
        for pair in (vanished, standing):
            box.wait_state(pair, State.CLOSED, 20)
            assert box.transitions(pair)[-1][2] is Cause.PROBE_TIMEOUT
        with pytest.raises(ConnectionResetError):
            vanished.server.recv(1)
        assert box.stat("probe_dead") == 2
    finally:
        box.lab.nft("nat", "delete table inet vanish")
    assert box.state(living) is State.ACTIVE
    box.exchange(living)


@pytest.mark.engine(service=CHECKED)
def test_a_server_that_vanishes_is_found_dead_and_its_client_told(box: EngineLab) -> None:
    pair = box.connect()
    pair.client.sendall(b"is anybody there?")  # and no answer: its bytes may be lost
    assert pair.server.recv(100) == b"is anybody there?"
    box.lab.nft("lan", f"""
        table inet vanish {{
            chain arrive {{
                type filter hook input priority 0;
                tcp sport {pair.server.getpeername()[1]} drop;
            }}
        }}
    """)  # fmt: skip
    try:
        box.wait_state(pair, State.CLOSED, 20)
        with pytest.raises(ConnectionResetError):
            pair.client.recv(1)
    finally:
        box.lab.nft("lan", "delete table inet vanish")


@pytest.mark.engine(service={**CHECKED, "standby_quiet_ms": 3000, "idle_quiet_ms": 3500})
def test_keepalives_of_the_awake_are_no_activity_and_disturb_no_freeze(box: EngineLab) -> None:
    pairs = [box.connect(family) for family in (4, 6)]
    heard = [tcp_info(pair.client).segments_in for pair in pairs]
    for pair, before in zip(pairs, heard, strict=True):
        box.wait_state(pair, State.IDLE, 20)
        assert tcp_info(pair.client).segments_in >= before + 2
        fell_quiet = [event for event in box.transition_events(pair) if event.to_state == State.STANDBY]
        assert 3000 <= fell_quiet[0].gap_ms < 5000
        assert box.stat("probe_dead") == 0
        box.wake_and_answer(pair)


@pytest.mark.own_engine(reason="its policy changes")
def test_a_changed_interval_reaches_who_is_awake(box: EngineLab) -> None:
    pair = box.connect()
    vanish(box, pair)
    try:
        for family in (4, 6):
            box.engine.update_service(box.spec(family, **CHECKED))
        box.wait_state(pair, State.CLOSED, 20)
    finally:
        box.lab.nft("nat", "delete table inet vanish")
