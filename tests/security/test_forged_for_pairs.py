# SPDX-License-Identifier: Apache-2.0
"""Segments that neither end of a sleeping pair sent, at either of its legs and from either side: nothing wakes, nothing
dies. Each test ends with both ends speaking."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from scapy.layers.inet import TCP
from scapy.packet import Raw

from appliance.wire import OnServerClose, Op
from control.core.states import State
from tests.lab.engine_lab import EngineLab, Pair
from tests.lab.wire import LAN, WAN, Sleeper, Wire

ASLEEP = pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
BOTH = pytest.mark.parametrize("family", [4, 6])
LEGS = pytest.mark.parametrize("leg", ["client", "server"])
SIDES: Final = {"wan": WAN, "lan": LAN}
pytestmark = pytest.mark.engine(service={"persistent": True, "on_server_close": OnServerClose.CLIENT})
Segment = Callable[[Sleeper, random.Random], Any]


def legs_of(box: EngineLab, pair: Pair) -> dict[str, Sleeper]:
    peer = box.engine.find_peer(pair.key.pack())
    assert peer is not None
    return {"client": Sleeper(pair, box.record(pair)),
            "server": Sleeper(Pair(pair.server, pair.client, peer.key, pair.id), peer)}  # fmt: skip


def anything_but_right(leg: Sleeper, source: random.Random) -> Any:
    """Data, FIN, RST or SYN; without the right acknowledgement, or out of the window."""
    flags = source.choice(["A", "PA", "FA", "R", "RA", "S", "SA", "U", ""])
    far = source.randrange(leg.window, 2**32 - leg.window)
    ack = source.choice([0, source.randrange(1, 2**32)])
    seq = far if ack == 0 or "R" in flags else source.choice([0, -1, 1, far])
    return leg.ip() / leg.tcp(seq=seq, ack=ack, flags=flags) / Raw(bytes(source.randrange(3)))


@BOTH
@ASLEEP
@LEGS
@pytest.mark.parametrize("side", SIDES)
def test_forged_segments_neither_wake_nor_kill(box: EngineLab, family: int, state: State, leg: str, side: str) -> None:
    pair = box.connect(family)
    box.wait_for_quiet(pair)
    box.submit(Op.IDLE, pair)
    box.wait_state(pair, State.IDLE)
    sleeper = legs_of(box, pair)[leg]
    if state is State.SLEEP:
        box.to_sleep(pair)
    told = len(box.events)
    source = random.Random(family)
    with Wire(box, SIDES[side]) as wire:
        wire.send(*(anything_but_right(sleeper, source) for _ in range(200)))
        wire.heard()
        assert [str(p[TCP].flags) for p in wire.replies(sleeper) if "R" in str(p[TCP].flags)] == []
    assert box.events[told:] == []
    assert box.state(pair) is state
    assert box.stat("frames_woke") == 0
    box.exchange(pair)


@LEGS
def test_a_flood_at_one_leg_does_not_keep_the_other_from_waking(box: EngineLab, leg: str) -> None:
    pair = box.connect()
    box.wait_for_quiet(pair)
    box.submit(Op.IDLE, pair)
    box.wait_state(pair, State.IDLE)
    sleeper = legs_of(box, pair)[leg]
    with Wire(box, SIDES["wan" if leg == "client" else "lan"]) as wire:
        frames = [wire.frame(anything_but_right(sleeper, random.Random(n))) for n in range(2000)]
        wire.send_raw(frames)
        other = pair.server if leg == "client" else pair.client
        began = time.monotonic()
        other.sendall(b"through the flood")
        wire.send_raw(frames)
        near = pair.client if leg == "client" else pair.server
        assert near.recv(17) == b"through the flood"
        assert time.monotonic() - began < 2
    box.exchange(pair)
