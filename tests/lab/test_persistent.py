# SPDX-License-Identifier: Apache-2.0
"""The persistent interface: both legs of a connection fall asleep and wake together, and neither end can tell."""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

import pytest

from appliance.wire import KA, Command, EventType, OnServerClose, Op, Record
from control.core.states import LEGAL, Cause, State
from tests.lab.engine_lab import EngineLab, Pair, receive, tcp_info
from tests.lab.wire import LAN, Sleeper, Wire, timestamps_of

ACTIVE, STANDBY, IDLE, SLEEP, CLOSED = State.ACTIVE, State.STANDBY, State.IDLE, State.SLEEP, State.CLOSED
BOTH = pytest.mark.parametrize("family", [4, 6])
ASLEEP = pytest.mark.parametrize("state", [IDLE, SLEEP])
PERSISTENT: Final = {"persistent": True, "on_server_close": OnServerClose.CLIENT}
pytestmark = pytest.mark.engine(service=PERSISTENT)


def fall_asleep(box: EngineLab, pair: Pair, state: State = IDLE) -> None:
    box.wait_for_quiet(pair)
    box.submit(Op.IDLE, pair)
    box.wait_state(pair, IDLE)
    if state is SLEEP:
        box.to_sleep(pair)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def nothing_is_left(box: EngineLab) -> bool:
    return not any(box.stat(name) for name in ("awake", "table_ipv4", "table_ipv6", "idle_records"))


@pytest.mark.usefixtures("unhurried")
@BOTH
@ASLEEP
@pytest.mark.parametrize(
    "router", [False, pytest.param(True, marks=pytest.mark.engine(service=PERSISTENT, router=True))]
)
def test_data_of_either_end_wakes_both_legs(box: EngineLab, family: int, state: State, router: bool) -> None:
    pair = box.connect(family)
    for speaker, listener, cause in ((pair.client, pair.server, Cause.CLIENT_DATA),
                                     (pair.server, pair.client, Cause.SERVER_DATA)) * 2:  # fmt: skip
        fall_asleep(box, pair, state)
        told = len(box.transitions(pair))
        assert (box.stat("awake"), box.stat(f"table_ipv{family}")) == (0, 2)
        speaker.sendall(b"good morning")
        assert receive(listener, 12) == b"good morning"
        box.wait_state(pair, ACTIVE)
        assert box.transitions(pair)[told:] == [(state, ACTIVE, cause)]
        box.exchange(pair)
        assert (box.stat("awake"), box.stat(f"table_ipv{family}")) == (1, 0)
    assert tcp_info(pair.client).retransmits == tcp_info(pair.server).retransmits == 0
    assert box.no_server_is_asked(family, 0.05), "the server's connection was the same all the time"


@BOTH
@pytest.mark.engine(service={**PERSISTENT, "standby_quiet_ms": 200, "sleep_quiet_ms": 1100})
def test_quiet_takes_both_legs_down_without_a_word_to_either_end(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.wait_state(pair, SLEEP, 8)
    assert box.transitions(pair)[1:] == [(ACTIVE, IDLE, Cause.QUIET), (IDLE, SLEEP, Cause.QUIET)]
    for end in (pair.client, pair.server):
        end.settimeout(0)
        with pytest.raises(BlockingIOError):
            end.recv(1)
        end.settimeout(5)
    box.exchange(pair)


@pytest.mark.engine(service={**PERSISTENT, "standby_quiet_ms": 700})
def test_a_pair_that_is_woken_without_a_word_stays_awake_for_a_whole_interval(box: EngineLab) -> None:
    pair = box.connect()
    box.wait_state(pair, IDLE)
    woken = [(IDLE, ACTIVE, Cause.COMMAND), (ACTIVE, IDLE, Cause.QUIET)]
    before = time.monotonic()
    box.submit(Op.WAKE, pair)
    box.wait(lambda: box.transitions(pair)[-2:] == woken, "it has woken, and is asleep again")
    assert time.monotonic() - before >= 0.7


@BOTH
@ASLEEP
def test_keepalives_of_both_ends_are_answered(box: EngineLab, family: int, state: State) -> None:
    pair = box.connect(family, keepalives=True)
    fall_asleep(box, pair, state)
    for option in ((socket.SO_KEEPALIVE, socket.SOL_SOCKET), (socket.TCP_KEEPIDLE, socket.IPPROTO_TCP),
                   (socket.TCP_KEEPINTVL, socket.IPPROTO_TCP)):  # fmt: skip
        pair.server.setsockopt(option[1], option[0], 1)
    answered = box.stat("keepalives_answered")
    box.wait(lambda: box.stat("keepalives_answered") >= answered + 6, "keep-alives are answered", 10)
    assert box.state(pair) is state
    assert max(tcp_info(end).last_ack_recv_ms for end in (pair.client, pair.server)) < 2500, "both have been answered"
    box.exchange(pair)


def test_a_servers_probe_without_the_agreed_timestamps_is_answered_with_them(box: EngineLab) -> None:
    pair = box.connect()
    fall_asleep(box, pair)
    leg = box.engine.find_peer(pair.key.pack())
    assert leg is not None
    sleeper = Sleeper(Pair(pair.server, pair.client, leg.key, pair.id), leg)
    with Wire(box, LAN) as wire:
        wire.send(sleeper.ip() / sleeper.tcp(seq=-1, ts=None))
        [answer] = wire.replies(sleeper)
    assert timestamps_of(answer) is not None
    box.exchange(pair)


@BOTH
@ASLEEP
@pytest.mark.parametrize("first", ["client", "server"])
def test_the_end_of_one_side_reaches_the_other(box: EngineLab, family: int, state: State, first: str) -> None:
    pair = box.connect(family)
    fall_asleep(box, pair, state)
    ends, waits = (pair.client, pair.server) if first == "client" else (pair.server, pair.client)
    ends.shutdown(socket.SHUT_WR)
    assert waits.recv(1) == b""
    waits.sendall(b"last words")  # a half-closed connection still carries the other direction
    waits.shutdown(socket.SHUT_WR)
    assert receive(ends, 20) == b"last words"
    box.wait_state(pair, CLOSED)
    assert box.transitions(pair)[-1][0] is ACTIVE
    assert nothing_is_left(box)


@ASLEEP
@pytest.mark.parametrize("first", ["client", "server"])
def test_a_reset_of_one_side_reaches_the_other(box: EngineLab, state: State, first: str) -> None:
    pair = box.connect()
    fall_asleep(box, pair, state)
    breaks, waits = (pair.client, pair.server) if first == "client" else (pair.server, pair.client)
    reset(breaks)
    with pytest.raises(ConnectionResetError):
        waits.recv(1)
    box.wait_state(pair, CLOSED)
    assert nothing_is_left(box)


@ASLEEP
def test_a_close_command_resets_both_ends(box: EngineLab, state: State) -> None:
    pair = box.connect()
    fall_asleep(box, pair, state)
    box.close(pair)
    for end in (pair.client, pair.server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    assert nothing_is_left(box)


def test_both_speak_at_once(box: EngineLab) -> None:
    pair = box.connect()
    for turn in range(30):
        fall_asleep(box, pair, SLEEP if turn % 3 == 0 else IDLE)
        pair.client.sendall(b"to the server")
        pair.server.sendall(b"to the client")
        assert receive(pair.server, 13) == b"to the server"
        assert receive(pair.client, 13) == b"to the client"
        box.wait_state(pair, ACTIVE)


@pytest.mark.parametrize("speaker", ["client", "server"])
def test_data_that_meets_a_freeze_arrives_once_and_in_order(box: EngineLab, speaker: str) -> None:
    pair = box.connect()
    says, hears = (pair.client, pair.server) if speaker == "client" else (pair.server, pair.client)
    for turn in range(60):
        box.submit(Op.IDLE, pair)
        words = f"word {turn}".encode()
        says.sendall(words)
        assert receive(hears, len(words)) == words
    box.wait(lambda: box.state(pair) in (ACTIVE, IDLE), "it settles")
    box.exchange(pair)
    assert box.told(pair) in (ACTIVE, IDLE)


@BOTH
@ASLEEP
def test_a_restarted_engine_wakes_both_legs(box: EngineLab, family: int, state: State) -> None:
    pairs = [box.connect(family) for _ in range(4)]
    for pair in pairs:
        fall_asleep(box, pair, state)
    box.stop()
    pairs[0].client.sendall(b"while nobody is there")
    box.start()
    assert box.stat(f"table_ipv{family}") in (6, 8), "all are there, or the one that spoke is awake already"
    pairs[1].server.sendall(b"good morning")
    assert receive(pairs[1].client, 12) == b"good morning"
    assert receive(pairs[0].server, 21) == b"while nobody is there"
    for pair in pairs:
        box.exchange(pair)
        box.wait_state(pair, ACTIVE)
    assert {pair.id for pair in pairs} == {e.id for pair in pairs for e in box.transition_events(pair)}


@BOTH
def test_a_lost_record_is_told_to_both_ends(box: EngineLab, family: int) -> None:
    """The server's too, which says nothing: its keep-alives were answered all the time."""
    pair = box.connect(family)
    fall_asleep(box, pair, SLEEP)
    box.rows.clear()
    time.sleep(2.5)  # by then the sweep has looked at the server's leg, and found it in order
    pair.client.sendall(b"anybody there?")
    for end in (pair.client, pair.server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    box.wait_state(pair, CLOSED)
    assert nothing_is_left(box)


@ASLEEP
def test_a_wake_command_wakes_both_legs(box: EngineLab, state: State) -> None:
    pair = box.connect()
    fall_asleep(box, pair, state)
    told = len(box.transitions(pair))
    box.submit(Op.WAKE, pair)
    box.wait_state(pair, ACTIVE)
    assert box.transitions(pair)[told:] == [(state, ACTIVE, Cause.COMMAND)]
    assert (int(state), int(ACTIVE), int(Cause.COMMAND)) in LEGAL
    box.exchange(pair)


def test_a_row_with_another_moment_of_the_servers_leg_is_not_taken(box: EngineLab) -> None:
    """The client has said nothing since, so its own numbers are as they were."""
    pair = box.connect()
    fall_asleep(box, pair)
    stale = box.record(pair)
    stale.peer = box.engine.find_peer(pair.key.pack())
    peer = stale.peer
    assert peer is not None
    box.submit(Op.WAKE, pair)
    box.wait_state(pair, ACTIVE)
    fall_asleep(box, pair)
    fresh = box.record(pair)
    assert (fresh.snd_nxt, fresh.rcv_nxt) == (stale.snd_nxt, stale.rcv_nxt)
    values = list(KA.unpack(peer.ka))
    values[2] += 5  # rcv_nxt: the server had said something since
    fresh.peer = Record(peer.key_raw, KA.pack(*values), peer.rest)
    for record in (stale, fresh):
        box.engine.submit([Command(Op.SLEEP, cause=Cause.COMMAND, id=pair.id, record=record)])
    box.wait(lambda: box.refusals(pair).count((Op.SLEEP, errno.EAGAIN)) >= 1, "it is refused")
    box.to_sleep(pair)
    box.exchange(pair)


@BOTH
@ASLEEP
@pytest.mark.parametrize("gone", ["client", "server"])
@pytest.mark.engine(service={**PERSISTENT, "probe_interval_s": 1, "probe_retry_s": 1, "probe_count": 2})
def test_the_death_of_one_end_is_found_and_told_to_the_other(
    box: EngineLab, family: int, state: State, gone: str
) -> None:
    pair = box.connect(family)
    fall_asleep(box, pair, state)
    probes = box.stat("probes_sent")
    box.wait(lambda: box.stat("probes_sent") >= probes + 4, "both ends are probed, and answer", 10)
    assert box.state(pair) is state
    dead, lives, where = (pair.client, pair.server, "wan") if gone == "client" else (pair.server, pair.client, "lan")
    port = dead.getsockname()[1]
    mute = "table inet mute { chain in { type filter hook input priority 0; tcp dport %d drop; }; }"
    box.lab.nft(where, mute % port)
    try:
        lives.settimeout(10)
        with pytest.raises(ConnectionResetError):
            lives.recv(1)
        box.wait_state(pair, CLOSED)
    finally:
        box.lab.nft(where, "delete table inet mute")
    assert box.transitions(pair)[-1] == (state, CLOSED, Cause.PROBE_TIMEOUT)
    assert nothing_is_left(box)


def test_a_server_that_comes_for_a_client_asleep_with_another_finds_it_busy(box: EngineLab) -> None:
    pair = box.connect()
    fall_asleep(box, pair)
    server = box.attach(pair)
    box.wait(lambda: (Op.ATTACH, errno.EBUSY) in box.refusals(pair), "the second server is refused")
    assert server.recv(1) == b""
    assert box.state(pair) is IDLE
    box.exchange(pair)


@pytest.mark.engine(service={**PERSISTENT, "sleep_quiet_ms": 300})
def test_the_clients_leg_alone_is_due_for_sleep(box: EngineLab) -> None:
    pairs = [box.connect() for _ in range(4)]
    for pair in pairs:
        fall_asleep(box, pair)
    for pair in pairs:
        box.wait_state(pair, State.SLEEP)
    time.sleep(2.2)  # every bucket is looked at once a second
    due = [event.record.key_raw for event in box.events if event.type == EventType.SLEEP_DUE]
    assert sorted(due) == sorted(pair.key.pack() for pair in pairs)
    for pair in pairs:
        box.exchange(pair)


@pytest.mark.parametrize("speaker", ["client", "server"])
def test_a_server_that_attached_sleeps_with_its_client(box: EngineLab, speaker: str) -> None:
    pair = box.connect()
    box.to_standby(pair)
    pair.server = box.attach(pair)
    box.wait_state(pair, ACTIVE)
    box.exchange(pair)
    fall_asleep(box, pair)
    says, hears = (pair.client, pair.server) if speaker == "client" else (pair.server, pair.client)
    says.sendall(b"still there?")
    assert receive(hears, 12) == b"still there?"
    box.wait_state(pair, ACTIVE)
    pair.server.close()
    box.wait_state(pair, STANDBY)  # as when it never slept: only the service's own server takes its client along


@pytest.mark.engine(service=PERSISTENT, idle_slots=20)
def test_without_room_for_both_legs_neither_freezes(box: EngineLab) -> None:
    pairs = [box.connect() for _ in range(12)]
    for pair in pairs:
        box.wait_for_quiet(pair)
        box.submit(Op.IDLE, pair)
    for pair in pairs:
        box.wait(settled(box, pair), "it froze or did not")
    full = [pair for pair in pairs if (Op.IDLE, errno.ENOSPC) in box.refusals(pair)]
    assert len(full) == 2
    assert box.stat("table_ipv4") == box.stat("idle_records") == 20
    for pair in pairs:
        box.exchange(pair)


def settled(box: EngineLab, pair: Pair) -> Callable[[], bool]:
    return lambda: box.told(pair) is IDLE or bool(box.refusals(pair))


@BOTH
def test_a_hundred_pairs_in_one_batch(box: EngineLab, family: int) -> None:
    pairs = [box.connect(family) for _ in range(100)]
    for pair in pairs:
        box.wait(lambda pair=pair: not tcp_info(pair.server).unacked, "all is acknowledged")  # type: ignore[misc]
    box.wait_for_quiet(pairs[-1])
    for pair in pairs:
        box.submit(Op.IDLE, pair)
    for pair in pairs:
        box.wait_state(pair, IDLE)
    for turn, pair in enumerate(pairs):
        (pair.client if turn % 2 else pair.server).sendall(bytes(2000))
    for turn, pair in enumerate(pairs):
        assert receive(pair.server if turn % 2 else pair.client, 2000) == bytes(2000)


@BOTH
def test_a_new_link_never_takes_the_port_of_one_that_sleeps(box: EngineLab, family: int) -> None:
    """The kernel has forgotten that port. Were it given to another link, the server would take that for its old one."""
    box.lab.sysctl("box", "net.ipv4.ip_local_port_range", "40000 40007")
    try:
        sleeping = [box.connect(family) for _ in range(20)]
        for pair in sleeping:
            fall_asleep(box, pair)
        awake = [box.connect(family) for _ in range(20)]
    finally:
        box.lab.sysctl("box", "net.ipv4.ip_local_port_range", "32768 60999")
    ports = {pair.server.getpeername()[1] for pair in sleeping + awake}
    assert len(ports) == 40
    assert not ports & set(range(40000, 40008)), "not where the kernel takes ports for others"
    for pair in sleeping + awake:
        box.exchange(pair)


@pytest.mark.engine(service={**PERSISTENT, "connect_timeout_ms": 600}, link_ports=(47500, 47503))
def test_with_every_port_asleep_a_client_is_refused_and_no_sleeper_is_touched(box: EngineLab) -> None:
    sleeping = [box.connect() for _ in range(4)]
    for pair in sleeping:
        fall_asleep(box, pair)
    client = box.dial()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    for pair in sleeping:
        assert box.state(pair) is IDLE
    gone = sleeping.pop()
    box.close(gone)
    sleeping.append(box.connect())  # its port is free again
    for pair in sleeping:
        box.exchange(pair)


@pytest.mark.engine(service=PERSISTENT, link_ports=(47500, 47503))
def test_no_new_link_takes_a_port_that_is_kept_for_a_leg_to_be_put_back(box: EngineLab) -> None:
    """After a reboot, until the table has the leg again."""
    for port in (47500, 47501, 47503):
        box.engine.reserve_link_port(port)
    assert box.connect().server.getpeername()[1] == 47502
    box.engine.unreserve_link_ports()
    assert box.connect().server.getpeername()[1] != 47502
