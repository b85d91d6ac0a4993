# SPDX-License-Identifier: Apache-2.0
"""The daemon's absence is not noticed by any sleeping client; what they say meanwhile is not lost."""

from __future__ import annotations

import signal
import socket
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress

import pytest

from appliance.lab import DaemonHandle, Lab, wait_until
from control.core.states import Cause, State
from control.store.starting import LEFT_OPEN
from tests.lab.engine_lab import EngineLab, receive

BOTH = pytest.mark.parametrize("family", [4, 6])


@BOTH
@pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
def test_data_sent_while_no_engine_runs_wakes_after_the_restart(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family, keepalives=True)
    box.to(pair, state)
    box.stop()
    # The claim is not about how long an engine takes to start, where others keep the processors busy.
    pair.client.setsockopt(socket.SOL_TCP, socket.TCP_USER_TIMEOUT, 60_000)
    pair.client.sendall(b"is anybody there?")
    time.sleep(0.7)
    box.start()
    server = box.accept(family)
    assert receive(server, 17) == b"is anybody there?"
    server.sendall(b"yes")
    assert receive(pair.client, 3) == b"yes"
    box.wait_state(pair, State.ACTIVE)
    last = box.transition_events(pair)[-1]
    assert (last.from_state, last.to_state, last.cause, last.id) == (state, State.ACTIVE, Cause.CLIENT_DATA, pair.id)


@BOTH
def test_a_client_that_ends_while_no_engine_runs_is_closed_after_the_restart(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_idle(pair)
    box.stop()
    pair.client.close()
    time.sleep(0.3)
    box.start()
    box.wait_state(pair, State.CLOSED)
    assert box.stat("table_ipv4") == box.stat("table_ipv6") == box.stat("idle_records") == 0


def test_an_adopted_connection_keeps_its_number_and_new_ones_get_larger_ones(box: EngineLab) -> None:
    old = [box.connect() for _ in range(3)]
    for pair in old:
        box.to_idle(pair)
    box.stop()
    box.start()
    assert sorted(event.id for event in box.engine.list()) == sorted(pair.id for pair in old)
    assert box.connect().id > max(pair.id for pair in old)
    for pair in old:
        box.wake_and_answer(pair)


def test_two_restarts_in_a_row_lose_nothing(box: EngineLab) -> None:
    pairs = [box.connect(family) for family in (4, 6)]
    for pair in pairs:
        box.to_idle(pair)
    for _ in range(2):
        box.stop()
        box.start()
    assert box.stat("idle_records") == 2
    for pair in pairs:
        box.wake_and_answer(pair)


def test_an_awake_client_is_told_by_fin_or_rst_when_its_daemon_dies(box: EngineLab) -> None:
    """No daemon can carry on for it: it learns it, so that it can connect again."""
    pair = box.connect()
    box.stop()
    with suppress(ConnectionResetError):
        assert pair.client.recv(1) == b""


def test_an_adopted_table_keeps_its_size(box: EngineLab) -> None:
    slots = box.stat("ipv4_slots")
    pair = box.connect()
    box.to_idle(pair)
    box.stop()
    box.resize(ipv4_slots=40)
    box.start()
    assert box.stat("ipv4_slots") == slots
    box.wake_and_answer(pair)


def attach_targets(daemon: DaemonHandle) -> list[str]:
    return [row["client"] for row in daemon.connections()]


def states(daemon: DaemonHandle) -> Counter[str]:
    return Counter(row["state"] for row in daemon.connections())


def left_open(daemon: DaemonHandle) -> int:
    """What the last daemon that ended in good order has said: where the next one finds as many, it reads no history."""
    with closing(sqlite3.connect(daemon.config.with_name("roost.db"))) as database:
        (value,) = database.execute("SELECT value FROM meta WHERE key = ?", [LEFT_OPEN]).fetchone()
        return int(value)


@pytest.mark.timeout(150)
def test_a_killed_daemon_leaves_every_sleeper_connected_and_a_new_one_reaches_them_all() -> None:
    """Done when 6, with 1,000 IDLE and 1,000 SLEEP clients, half of each IPv6: SIGKILL, 30 s of keep-alives with
    no daemon there, a new daemon, and an answer from every one."""
    each = 500
    # Two services and a NAT: one public address and port may stand for two clients, one of each service. Attach by
    # address and port could then mean either, so each service's clients come from an address of their own.
    with Lab(clients=4 * each, nat=False, addresses=2) as lab:
        lab.server(8000)
        lab.server(8001)
        config = lab.config(policy={"active_quiet": "1s", "standby_quiet": "2s", "idle_quiet": "never"})
        sleepy = [{**service, "name": f"{service['name']}-sleepy", "idle_quiet": "3s",
                   "listen": service["listen"].replace(":8000", ":8001"),
                   "server": service["server"].replace(":8000", ":8001")} for service in config["service"]]  # fmt: skip
        config["service"] += sleepy
        daemon = lab.daemon(config)
        swarms = []
        for family in (4, 6):
            for port, address in zip((8000, 8001), lab.client_addresses(family), strict=True):
                swarms.append(swarm := lab.swarm(family, [address]))
                joined = swarm.connect(each, (lab.address("box", "wan0", family), port), keepidle_s=5, keepintvl_s=5,
                                       keepcnt=3)  # fmt: skip
                assert joined.connected == each, joined.failed
        asleep = {"IDLE": 2 * each, "SLEEP": 2 * each}
        wait_until(lambda: states(daemon) == asleep, 30, "all of them sleep", 0.5)
        targets = attach_targets(daemon)
        assert daemon.kill() == -signal.SIGKILL

        time.sleep(30)
        assert not daemon.running
        for swarm in swarms:
            hearing = swarm.hearing(silence_ms=8_000)  # a probe goes out 5 s after the last answer
            assert (hearing.open, hearing.silent) == (each, 0)
            assert swarm.stats().dead == {}

        daemon.start()
        assert states(daemon) == asleep
        asked = lab.asker().request("ask", proxy=["10.3.0.1", 3128], targets=targets, concurrency=32, timeout_s=60)
        assert (asked["answered"], asked["failed"]) == (4 * each, {})
        for swarm in swarms:
            said = swarm.say(each)
            assert (said.answered, said.failed) == (each, {})
            assert swarm.stats().dead == {}
            assert swarm.hearing().retransmits == 0


def test_sigterm_freezes_what_it_can_and_leaves_it_asleep() -> None:
    with Lab(clients=50) as lab:
        lab.server(8000)
        daemon = lab.daemon(lab.config(policy={"active_quiet": "never", "standby_quiet": "never"}))
        swarm = lab.swarm()
        swarm.connect(50, (lab.address("box", "wan0"), 8000), keepidle_s=2, keepintvl_s=2, keepcnt=2)
        assert states(daemon) == {"ACTIVE": 50}
        assert daemon.terminate() == 0
        time.sleep(5)
        assert swarm.hearing(silence_ms=4_000).silent == 0
        assert left_open(daemon) == 50
        daemon.start()
        assert states(daemon) == {"IDLE": 50}
        assert swarm.say(50).answered == 50
        assert swarm.stats().dead == {}


def test_sigterm_does_not_cut_a_request_in_two() -> None:
    """The rest would begin another link when the client is awake again."""
    with Lab(clients=1) as lab:
        lab.server(8000)
        daemon = lab.daemon(lab.config())
        with lab.enter("wan"):
            client = socket.create_connection((lab.address("box", "wan0"), 8000), timeout=20)
        with client:
            client.sendall(b"ECHO it ")
            wait_until(lambda: states(daemon) == {"ACTIVE": 1}, 5, "it is linked")
            daemon.process.popen.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            client.sendall(b"is whole\n")
            assert receive(client, 17) == b"ECHO it is whole\n"
            assert daemon.process.wait() == 0
            daemon.start()
            assert states(daemon) == {"IDLE": 1}
