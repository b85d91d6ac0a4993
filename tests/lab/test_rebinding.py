# SPDX-License-Identifier: Apache-2.0
"""A client's NAT forgets it while it sleeps: what it says next comes from another port, and its port may be another's.

The new port does not say who the client is: it is answered with an RST, as by any kernel. Its old self is found by
probes, or by the client that gets its port.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from control.core.states import Cause, State
from tests.lab.engine_lab import PORT, QUICK_KEEPALIVES, EngineLab, Pair

BOTH = pytest.mark.parametrize("family", [4, 6])
ASLEEP = pytest.mark.parametrize(
    "state",
    [State.IDLE, State.SLEEP, pytest.param(State.IDLE, marks=pytest.mark.engine(xdp_mode="generic"), id="generic")],
)
ANOTHER_PORT: Final = 20_001


@contextmanager
def seen_as(box: EngineLab, client: socket.socket, port: int) -> Iterator[None]:
    """At the NAT: what this client says comes from that port; what is for its own port ends there. Without states,
    which may be of earlier clients with the same port."""
    host, own = client.getsockname()[:2]
    ip = "ip6" if ":" in host else "ip"
    box.lab.nft("nat", f"""
        table inet rebinding {{
            chain out {{
                type filter hook postrouting priority srcnat;
                oifname "outside" {ip} saddr {host} tcp sport {own} tcp dport {PORT} tcp sport set {port}
            }}
            chain back {{
                type filter hook prerouting priority raw;
                iifname "outside" {ip} daddr {host} tcp dport {own} drop
                iifname "outside" {ip} daddr {host} tcp dport {port} tcp dport set {own}
            }}
        }}
    """)  # fmt: skip
    try:
        yield
    finally:
        box.lab.nft("nat", "delete table inet rebinding")


@BOTH
@ASLEEP
@pytest.mark.parametrize("says", ["data", "keepalive"])
def test_a_client_that_comes_from_another_port_is_reset_and_wakes_nobody(
    box: EngineLab, family: int, state: State, says: str
) -> None:
    pair = box.connect(family)
    box.to(pair, state)
    told = len(box.transitions(pair))
    with seen_as(box, pair.client, ANOTHER_PORT):
        if says == "data":
            pair.client.sendall(b"it is me")
        else:
            for option in QUICK_KEEPALIVES[:-1]:
                pair.client.setsockopt(*option)
        with pytest.raises(ConnectionResetError):
            pair.client.recv(1)
    assert box.state(pair) is state
    assert len(box.transitions(pair)) == told
    assert box.no_server_is_asked(family)


@pytest.mark.engine(service={"probe_interval_s": 1, "probe_retry_s": 1, "probe_count": 2})
@BOTH
def test_the_old_self_of_a_client_that_has_another_port_is_found_by_probes(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    with seen_as(box, pair.client, ANOTHER_PORT):
        box.wait_state(pair, State.CLOSED, 10)
    assert box.transitions(pair)[-1] == (State.IDLE, State.CLOSED, Cause.PROBE_TIMEOUT)


@BOTH
@ASLEEP
def test_a_client_that_is_given_the_port_of_a_sleeper_is_connected(box: EngineLab, family: int, state: State) -> None:
    """Its SYN draws a challenge ACK, that an RST, and that ends the old connection (RFC 5961 4.2)."""
    pair = box.connect(family)
    box.to(pair, state)
    host = pair.client.getsockname()[0]
    with box.lab.enter("wan"):
        another = socket.socket(pair.client.family)
    with another:
        another.settimeout(5)
        another.bind((host, 0))
        with seen_as(box, another, pair.key.client_port):
            another.connect(box.target(family))
            box.wait(lambda: box.transitions(pair)[-2:-1] == [(state, State.CLOSED, Cause.CLIENT_CLOSE)],
                     "the old connection is over, and the new one there")  # fmt: skip
            box.exchange(Pair(another, box.accept(family), pair.key, 0))
