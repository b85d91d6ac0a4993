# SPDX-License-Identifier: Apache-2.0
"""Values that one connection is given by command: in force at once whatever its state, kept from what it asks for in
band, and outliving the daemon."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from errno import ENOENT

import pytest

from appliance.lab import Lab, endpoint, wait_until
from appliance.lab.processes import python_environment
from appliance.wire import OVERRIDES, EventType, Own, Verb
from control.core.states import State
from examples.in_band_frames import AlwaysActive, KeepAlive, Quiet, Recipient
from tests.lab.engine_lab import EngineLab, Pair
from tests.lab.given import ACTIVE, IDLE, PROBE, STANDBY, give, own
from tests.lab.in_band_lab import OK, REFUSED, End
from tests.lab.test_policy_change import FOREVER, Box
from tests.reboot import age

BOTH = pytest.mark.parametrize("family", [4, 6])
HOUR_MS = 3_600_000


def told(box: EngineLab, pair: Pair) -> list[tuple[int, bytes]]:
    """The numbers and values that the control plane keeps."""
    key = pair.key.pack()
    return [(e.id, e.overrides) for e in box.events if e.type == EventType.OVERRIDES and e.record.key_raw == key]


@BOTH
@pytest.mark.parametrize("state", [State.ACTIVE, State.STANDBY, State.IDLE, State.SLEEP])
@pytest.mark.engine(service={"sleep_quiet_ms": HOUR_MS})
def test_a_connection_in_any_state_is_given_values_and_they_are_taken_away(
    box: EngineLab, family: int, state: State
) -> None:
    pair, other = box.connect(family), box.connect(family)
    for one in (pair, other) if state is not State.ACTIVE else ():
        box.to(one, state)
    assert give(box, pair, IDLE, idle=777_000) == 0
    assert (own(box, pair), own(box, other)) == (Own(by_command={"idle_quiet_ms": 777_000}), Own())
    quiets = [box.engine.find_class(one.key.pack())["idle_quiet_ms"] for one in (pair, other)]
    assert quiets == [777_000, HOUR_MS]
    kept = OVERRIDES.pack(0, 0, 777_000, 0, IDLE, 0, IDLE, 0)
    assert told(box, pair) == ([(pair.id, kept)] if state in (State.IDLE, State.SLEEP) else [])
    if state is not State.ACTIVE:
        box.wake_and_answer(pair)
    box.to_idle(pair)
    assert told(box, pair) == [(pair.id, kept)]
    assert own(box, pair) == Own(by_command={"idle_quiet_ms": 777_000})
    assert give(box, pair, IDLE) == 0
    assert own(box, pair) == Own()
    assert told(box, pair)[1:] == [(pair.id, bytes(OVERRIDES.size))]
    assert told(box, other) == []


@BOTH
@pytest.mark.engine(service={"no_keepalives": True}, filter_slots=4000)
def test_one_without_a_slot_is_given_values_and_has_one_then(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_sleep(pair)
    assert box.stat("filter_members") == 1
    assert give(box, pair, ACTIVE | STANDBY, active=5_000, standby=6_000) == 0
    assert own(box, pair) == Own(by_command={"active_quiet_ms": 5_000, "standby_quiet_ms": 6_000})
    assert (box.stat("filter_members"), box.stat(f"table_ipv{family}")) == (0, 1)
    assert told(box, pair) == [(pair.id, OVERRIDES.pack(5_000, 6_000, 0, 0, 3, 0, 3, 0))]
    box.wake_and_answer(pair)
    assert box.engine.find_class(pair.key.pack())["standby_quiet_ms"] == 6_000


@pytest.mark.engine(service={"standby_quiet_ms": HOUR_MS, "idle_quiet_ms": HOUR_MS, "sleep_quiet_ms": HOUR_MS})
def test_intervals_that_are_given_are_obeyed(box: EngineLab) -> None:
    active, standby, idle, asleep = pairs = [box.connect() for _ in range(4)]
    others = [box.connect() for _ in pairs]
    for these in (pairs, others):
        for pair, state in zip(these[1:], (State.STANDBY, State.IDLE, State.SLEEP), strict=True):
            box.to(pair, state)
    time.sleep(1.1)  # they have been quiet for longer than is then allowed
    assert give(box, active, ACTIVE, active=1000) == 0
    assert give(box, standby, STANDBY, standby=1000) == 0
    assert give(box, idle, IDLE, idle=1000) == 0
    assert give(box, asleep, PROBE, probe_s=1) == 0
    assert active.server.recv(1) == b""
    active.server.close()
    box.wait_state(active, State.STANDBY)
    box.wait_state(standby, State.IDLE)
    box.wait_state(idle, State.SLEEP)
    box.wait(lambda: box.stat("probes_sent") >= 2, "it is probed")
    assert [box.state(one) for one in others] == [State.ACTIVE, State.STANDBY, State.IDLE, State.SLEEP]


@BOTH
@pytest.mark.engine(service={"in_band_clients": 1 << Verb.QUIET | 1 << Verb.KEEPALIVE | 1 << Verb.ALWAYS_ACTIVE})
def test_what_was_given_by_command_is_not_changed_in_band(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    client = End(pair.client, Recipient.CLIENT)
    assert client.ask(AlwaysActive(on=True)) == OK
    assert give(box, pair, ACTIVE | PROBE, active=60_000, probe_s=600) == 0
    given = {"active_quiet_ms": 60_000, "probe_interval_s": 600}
    assert own(box, pair) == Own(by_command=given), "it is not always active any more"
    assert client.ask(Quiet(active_ms=1000)) == REFUSED
    assert client.ask(AlwaysActive(on=True)) == REFUSED
    assert client.ask(AlwaysActive(on=False)) == REFUSED
    assert client.ask(KeepAlive(on=True, interval_ms=1000)) == REFUSED
    assert client.ask(KeepAlive(on=False)) == REFUSED
    assert client.ask(Quiet(active_ms=1000, idle_ms=1000)) == REFUSED
    assert client.ask(Quiet(idle_ms=9_000)) == OK
    assert own(box, pair) == Own({"idle_quiet_ms": 9_000}, given)
    assert give(box, pair, ACTIVE | IDLE | PROBE) == 0
    assert own(box, pair) == Own(), "what was set in band is taken away, too"
    assert client.ask(Quiet(active_ms=1000)) == OK


@pytest.mark.parametrize("state", [State.ACTIVE, State.IDLE])
def test_a_number_of_another_connection_is_given_nothing(box: EngineLab, state: State) -> None:
    pair = box.connect()
    if state is not State.ACTIVE:
        box.to(pair, state)
    assert give(box, pair, ACTIVE, active=1000, number=pair.id + 1) == ENOENT
    assert own(box, pair) == Own()


@pytest.fixture
def daemon(empty_lab: Lab) -> Iterator[Box]:
    with ExitStack() as stack:
        yield Box(stack, empty_lab, FOREVER | {"probe_interval": "never"})


def policy(daemon: Box, *words: str) -> str:
    """`roost policy`, as an operator types it."""
    argv = [sys.executable, "-m", "control.cli.main", "policy", *words, "--socket", str(daemon.daemon.control_socket)]
    done = subprocess.run(argv, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def given(daemon: Box, client: str) -> dict[str, float]:
    values = json.loads(policy(daemon, "explain", client, "--json"))["values"]
    return {one["key"]: one["value"] for one in values if one["source"] == "by command"}


@pytest.mark.parametrize(
    ("state", "service", "end"),
    [("IDLE", "plain", "kill"), ("SLEEP", "plain", "kill"), ("SLEEP", "plain", "reboot"), ("SLEEP", "bare", "kill"),
     ("SLEEP", "bare", "reboot")],
)  # fmt: skip
def test_what_an_operator_gives_outlives_the_daemon(daemon: Box, state: str, service: str, end: str) -> None:
    """bare: without a slot."""
    clients = [daemon.in_state(state, service) for _ in range(2)]
    ruled, other = (endpoint(*client.getsockname()[:2]) for client in clients)
    said = policy(daemon, "give", ruled, "active_quiet=1s", "standby_quiet=1s", "--why", "a test")
    assert f"{ruled}, {state}: active_quiet=1s, standby_quiet=1s" in said
    wanted = {"active_quiet": 1.0, "standby_quiet": 1.0}
    assert (given(daemon, ruled), given(daemon, other)) == (wanted, {})
    path = tomllib.loads(daemon.daemon.config.read_text())["paths"]["database"]
    with closing(sqlite3.connect(path)) as database, database:
        wait_until(lambda: bool(database.execute("SELECT 1 FROM overrides").fetchone()), 10, "it is written")
        daemon.daemon.kill()
        if end == "reboot":  # what one takes: the tables, and the boot's name
            daemon.daemon.unpin()
            age(database)
    daemon.daemon.start()
    wait_until(lambda: given(daemon, ruled) == wanted, 10, "it has them again")
    assert (daemon.state(clients[0]), given(daemon, other)) == (state, {})
    for client in clients:
        daemon.converse(client, service)
    wait_until(lambda: daemon.state(clients[0]) == "IDLE", 10, "it obeys")
    assert daemon.state(clients[1]) == "ACTIVE"
    assert "standby_quiet of its policy" in policy(daemon, "take", ruled, "standby_quiet")
    assert given(daemon, ruled) == {"active_quiet": 1.0}
