# SPDX-License-Identifier: Apache-2.0
"""Clients with lwIP sleep and wake as those with a kernel do: the same tests.

lwIP's keep-alive probes have no timestamp option, even where the connection has: 54 bytes, which leave XDP no room for
it in the answer. Its windows are a segment or two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from appliance.lab import Lab
from appliance.lab.programs.lwip import MSS, Lwip, LwipSocket
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, Pair, receive
from tests.lab.fixtures import Engines
from tests.lab.test_freeze_thaw import (
    test_a_burst_that_wakes_arrives_whole_and_is_sent_once,
    test_a_client_that_ends_while_idle_is_believed_and_forgotten,
    test_a_close_command_resets_the_client_whatever_its_state,
    test_a_freeze_ends_the_link_first_and_either_end_thaws,
    test_a_server_that_attaches_reaches_the_client_in_every_state,
    test_client_data_wakes_from_every_state_and_arrives_once,
    test_last_words_before_the_fin_of_an_idle_client_reach_the_server,
)
from tests.lab.test_keepalive import test_a_sleeping_clients_kernel_hears_its_keepalives_answered

__all__ = [
    "test_a_burst_that_wakes_arrives_whole_and_is_sent_once",
    "test_a_client_that_ends_while_idle_is_believed_and_forgotten",
    "test_a_close_command_resets_the_client_whatever_its_state",
    "test_a_freeze_ends_the_link_first_and_either_end_thaws",
    "test_a_server_that_attaches_reaches_the_client_in_every_state",
    "test_a_sleeping_clients_kernel_hears_its_keepalives_answered",
    "test_client_data_wakes_from_every_state_and_arrives_once",
    "test_last_words_before_the_fin_of_an_idle_client_reach_the_server",
]


class LwipLab(EngineLab):
    """An engine whose clients have lwIP."""

    def __init__(self, lwip: Lwip, lab: Lab, **options: Any) -> None:
        super().__init__(lab, **options)
        self.lwip = lwip

    def client_socket(self, space: str, family: int) -> LwipSocket:
        return self.lwip.socket(family)

    def wait_for_quiet(self, pair: Pair) -> None:
        client = pair.client
        assert isinstance(client, LwipSocket)

        def is_quiet() -> bool:
            info = client.info()
            return not info.unacked and not info.owes_ack

        self.wait(is_quiet, "lwIP has acknowledged, and is acknowledged")


@pytest.fixture(scope="module", params=[(True, 1), (False, 2)],
                ids=["timestamps, one segment", "no timestamps, two segments"])  # fmt: skip
def lwip(request: pytest.FixtureRequest, nat_free_lab: Lab) -> Iterator[Lwip]:
    timestamps, segments = request.param
    lwip = Lwip(nat_free_lab, timestamps, segments * MSS)
    yield lwip
    lwip.close()


@pytest.fixture(scope="module")
def engines(lwip: Lwip, nat_free_lab: Lab) -> Iterator[Engines]:
    engines = Engines(nat_free_lab, partial(LwipLab, lwip))
    yield engines
    engines.close()


@pytest.mark.parametrize(("family", "state"), [(4, State.IDLE), (6, State.SLEEP)])
def test_a_device_that_lost_its_power_comes_back_by_its_old_port(box: EngineLab, family: int, state: State) -> None:
    """Its first SYN is answered with a challenge ACK, that with an RST, which ends the old one (RFC 5961 4.2)."""
    pair = box.connect(family)
    box.to(pair, state)
    assert isinstance(pair.client, LwipSocket)
    here = pair.client.getsockname()
    pair.client.lwip.forget(here[1])
    again = box.dial(family, before=lambda client: client.bind(here))
    box.wait(lambda: (state, State.CLOSED, Cause.CLIENT_CLOSE) in box.transitions(pair), "the old connection is over")
    assert box.key_of(again) == pair.key
    box.exchange(Pair(again, box.accept(family), pair.key, 0))


def test_a_window_of_a_segment_or_two_is_filled_at_once_after_a_sleep(box: EngineLab) -> None:
    """Segments that are too large for it would wait for the persist timer, 200 ms each."""
    data = bytes(range(256)) * 400

    def delivery_s() -> float:
        began = time.monotonic()
        pair.server.sendall(data)
        assert receive(pair.client, len(data)) == data
        return time.monotonic() - began

    pair = box.connect()
    delivery_s()
    for state in (State.IDLE, State.SLEEP):
        box.to(pair, state)
        box.wake_and_answer(pair)
        first_s = delivery_s()
        assert first_s < delivery_s() + 0.5
