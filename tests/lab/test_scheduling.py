# SPDX-License-Identifier: Apache-2.0
"""The engine thread runs in front of all others while it uses little of its processor, beside them when it is busy."""

from __future__ import annotations

import os
import threading

import pytest

from appliance.box.doctor import no_real_time
from appliance.lab import wait_until
from tests.lab.engine_lab import EngineLab, Pair, thread_of_engine

pytestmark = pytest.mark.own_engine("its thread chooses how it is scheduled by what it has done before")
several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
NICE = -10
FIRST = -20
SENT = 1 << 20


def is_real_time() -> bool:
    return os.sched_getscheduler(thread_of_engine()) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO


class Traffic:
    """As fast as the appliance takes it, from a client to its server, until the end, and whatever else runs here: the
    engine is busy only where its ends are."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]

    def __enter__(self) -> None:
        self._over = False
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._over = True
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), FIRST)
        sent = bytes(SENT)
        while not self._over:
            self._pair.client.sendall(sent)
        self._pair.client.sendall(b"!")

    def _receive(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), FIRST)
        room = bytearray(SENT)  # for each call another one costs a sanitizer more than the engine does
        while (size := self._pair.server.recv_into(room)) and room[size - 1] != ord("!"):
            pass


@several
@pytest.mark.skipif(no_real_time() is not None, reason="real time is refused here")
def test_it_runs_in_real_time_unless_it_is_busy(box: EngineLab) -> None:
    pair = box.connect()
    wait_until(is_real_time, 5, "it has little to do")
    with Traffic(pair):
        wait_until(lambda: not is_real_time(), 10, "it has much to do")
        assert os.getpriority(os.PRIO_PROCESS, thread_of_engine()) == NICE
    wait_until(is_real_time, 5, "it has little to do again")


def test_with_one_processor_it_leaves_it_to_others(box: EngineLab) -> None:
    """Real time would keep the control plane from it for as long as clients come and go."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        box.stop()
        box.start()
    finally:
        os.sched_setaffinity(0, before)
    box.connect()
    assert not is_real_time()
    assert os.getpriority(os.PRIO_PROCESS, thread_of_engine()) == NICE
