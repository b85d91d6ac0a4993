# SPDX-License-Identifier: Apache-2.0
"""Many clients that come and go at once: the engine gathers their steps, and none is held up for long."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from appliance.lab import wait_until
from appliance.lab.cores import running_on
from appliance.lab.processes import Process
from appliance.wire import OnServerClose, Op, ServiceSpec
from tests.bench.relay import compiled
from tests.inner import lib
from tests.lab.engine_lab import PORT, EngineLab, receive, tcp_info

pytestmark = pytest.mark.own_engine("what an engine has learnt of its clients decides what it sends, and when")
SERVER_PORT = 8000
HELD_S, KERNEL_ACKNOWLEDGES_S = 0.008, 0.04
PAUSE_S = 0.00015  # with the turn before it: RUSH_PAUSE_NS of cext/engine.c
ROUNDS = 20
Come = Callable[[int, float], Process]


def answering(box: EngineLab) -> ServiceSpec:
    """Its server answers a word, and ends."""
    return box.spec(4, servers=((box.lab.address("lan", "eth0"), SERVER_PORT),), on_server_close=OnServerClose.CLIENT)


@pytest.fixture
def come_and_go(box: EngineLab, tmp_path: Path) -> Iterator[Come]:
    """Starts so many clients at once, each followed by the next one, for so many seconds."""
    load, server = compiled(tmp_path), box.lab.address("lan", "eth0")
    serving = box.lab.run("lan", [str(load), "serve", server, str(SERVER_PORT)], stdout=subprocess.PIPE)
    assert serving.popen.stdout is not None
    assert serving.popen.stdout.readline()
    box.engine.update_service(answering(box))
    words = [str(load), "connect", box.lab.address("box", "wan0"), str(PORT)]
    yield lambda at_once, seconds: box.lab.run("wan", [*words, str(at_once), str(seconds)], stdout=subprocess.DEVNULL)
    box.engine.update_service(box.spec(4))
    serving.terminate()


@contextmanager
def rush(box: EngineLab, come: Come) -> Iterator[None]:
    """64 clients at a time, the engine pausing for them."""
    clients, before = come(64, 60), box.engine.stats()["rush_pauses"]
    try:
        wait_until(lambda: box.engine.stats()["rush_pauses"] > before, 20, "the engine pauses")
        yield
        assert clients.running, "each had its answer"
    finally:
        clients.terminate()


def test_the_engine_pauses_for_many_that_come_and_go_and_not_for_few(box: EngineLab, come_and_go: Come) -> None:
    before = box.engine.stats()
    assert come_and_go(4, 0.5).wait() == 0
    after = box.engine.stats()
    assert after["rush_pauses"] - before["rush_pauses"] <= (after["accepted"] - before["accepted"]) / 20
    with rush(box, come_and_go):
        pass


def is_in_rush(box: EngineLab, served: int) -> bool:
    """Whether the engine would pause, having accepted more than so many."""
    return bool(lib.roost_testing_rush(box.engine._raw)) and box.engine.stats()["accepted"] > served


def test_with_one_processor_the_engine_does_not_stay_awake_for_others(box: EngineLab, come_and_go: Come) -> None:
    """It would keep from it those that are waited for. The clients have them all, and rush it."""
    box.stop()
    with running_on(min(os.sched_getaffinity(0))):
        box.start()
    box.engine.update_service(answering(box))
    clients = come_and_go(64, 60)
    for served in range(64, 64 * ROUNDS, 64):
        wait_until(partial(is_in_rush, box, served), 20, "the engine finds them a rush", every_s=0.005)
    assert clients.running, "each had its answer"
    clients.terminate()
    assert box.engine.stats()["rush_pauses"] == 0


def test_a_pause_that_is_ended_at_once_is_not_counted(box: EngineLab, come_and_go: Come) -> None:
    """The control plane's word ends one, and here comes one after the other: far more turns than pauses have room."""
    with rush(box, come_and_go):
        before, began = box.engine.stats()["rush_pauses"], time.monotonic()
        while time.monotonic() < began + 0.5:
            box.engine.submit_many(Op.WAKE, 0, keys=[])
        pauses = box.engine.stats()["rush_pauses"] - before
        assert pauses * PAUSE_S <= time.monotonic() - began


def acknowledged_s(client: socket.socket) -> float:
    """How long the appliance takes to acknowledge a word that its server does not answer."""
    began = time.monotonic()
    client.send(b"S")
    wait_until(lambda: not tcp_info(client).unacked, 5, "it is acknowledged", every_s=0.001)
    return time.monotonic() - began


def acknowledged_in_rush_s(box: EngineLab) -> float:
    """The same for one that was held back: while the engine pauses."""
    for _ in range(200):
        client, before = box.dial(), box.engine.stats()["rush_pauses"]
        took = acknowledged_s(client)
        if took >= HELD_S and box.engine.stats()["rush_pauses"] > before + 2:
            return took
    raise AssertionError("none was held back")


def test_who_is_not_answered_is_acknowledged_before_the_kernel_would(box: EngineLab, come_and_go: Come) -> None:
    assert min(acknowledged_s(box.dial()) for _ in range(3)) < HELD_S
    with rush(box, come_and_go):
        assert min(acknowledged_in_rush_s(box) for _ in range(5)) < KERNEL_ACKNOWLEDGES_S - 0.005


def greeted_s(box: EngineLab) -> float:
    """How long two words of a client take that its server has greeted. Nagle's algorithm lets the second one wait for
    the acknowledgement of the first."""
    client = box.dial(6)
    server = box.accept(6)
    server.sendall(b"welcome")
    assert receive(client, 7) == b"welcome"
    began = time.monotonic()
    client.send(b"one")
    client.send(b"two")
    assert receive(server, 6) == b"onetwo"
    return time.monotonic() - began


def test_who_is_greeted_is_acknowledged_before_the_kernel_would(box: EngineLab, come_and_go: Come) -> None:
    assert min(greeted_s(box) for _ in range(3)) < HELD_S
    with rush(box, come_and_go):
        assert statistics.median(greeted_s(box) for _ in range(20)) < KERNEL_ACKNOWLEDGES_S - 0.005


@pytest.mark.alone("the rush that it counts packets of depends on who else is at work")
def test_answers_and_ends_are_acknowledgements_too(box: EngineLab, come_and_go: Come) -> None:
    """To a client: SYN-ACK, answer and FIN, ACK. To its server: SYN, the client's word, FIN."""
    fewest = {"wan0": 99.0, "lan0": 99.0}
    until = time.monotonic() + 40  # a busy machine may take the clients for fewer at a time for a while
    with rush(box, come_and_go):
        while max(fewest.values()) >= 3.5 and time.monotonic() < until:
            clients, before = box.engine.stats()["accepted"], box.frames_sent()
            time.sleep(0.2)
            after = box.frames_sent()
            clients = box.engine.stats()["accepted"] - clients
            fewest = {name: min(least, (after[name] - before[name]) / clients) for name, least in fewest.items()}
    assert max(fewest.values()) < 3.5, fewest
