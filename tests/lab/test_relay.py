# SPDX-License-Identifier: Apache-2.0
"""Bytes between client and server: ends, resets, and readers that are slow."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from appliance.wire import OnServerClose
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, receive, reset, tcp_info

BOTH = pytest.mark.parametrize("family", [4, 6])
CLOSING = pytest.mark.engine(service={"on_server_close": OnServerClose.CLIENT})


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def send_and_close(sock: socket.socket, data: bytes) -> None:
    sock.sendall(data)
    sock.close()


@BOTH
@CLOSING
def test_a_clients_fin_closes_one_direction_and_the_other_goes_on(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    pair.client.sendall(b"last words")
    pair.client.shutdown(socket.SHUT_WR)
    assert receive(pair.server, 100) == b"last words"
    data = os.urandom(300_000)
    sender = threading.Thread(target=send_and_close, args=(pair.server, data))
    sender.start()
    assert receive(pair.client, len(data) + 1) == data
    sender.join()
    box.wait_state(pair, State.CLOSED)
    assert box.transitions(pair)[-1][2] is Cause.CLIENT_CLOSE


@BOTH
@CLOSING
def test_a_servers_fin_closes_one_direction_and_the_other_goes_on(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    pair.server.sendall(b"last words")
    pair.server.shutdown(socket.SHUT_WR)
    assert receive(pair.client, 100) == b"last words"
    data = os.urandom(300_000)
    sender = threading.Thread(target=send_and_close, args=(pair.client, data))
    sender.start()
    assert receive(pair.server, len(data) + 1) == data
    sender.join()
    pair.server.close()
    box.wait_state(pair, State.CLOSED)
    assert box.transitions(pair)[-1][2] is Cause.SERVER_CLOSE


@BOTH
def test_a_server_that_closes_leaves_its_client_in_standby(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    pair.server.sendall(b"done")
    pair.server.close()
    assert receive(pair.client, 4) == b"done"
    box.wait_state(pair, State.STANDBY)
    assert box.transitions(pair)[-1] == (State.ACTIVE, State.STANDBY, Cause.SERVER_CLOSE)
    box.wake_and_answer(pair)


@BOTH
def test_a_servers_reset_costs_the_client_nothing_when_nothing_was_under_way(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    reset(pair.server)
    box.wait_state(pair, State.STANDBY)
    box.wake_and_answer(pair)


def test_a_servers_reset_over_unread_bytes_is_passed_on(box: EngineLab) -> None:
    """What the client sent is lost with the server: the client must learn it."""
    pair = box.connect()
    pair.client.settimeout(10)
    stop = threading.Event()

    def pour() -> None:
        try:
            while not stop.is_set():
                pair.client.sendall(bytes(1 << 16))
        except OSError:
            stop.set()

    pouring = threading.Thread(target=pour)
    pouring.start()
    time.sleep(0.3)
    reset(pair.server)
    pouring.join(10)
    assert stop.is_set(), "the client's send fails"
    box.wait_state(pair, State.CLOSED)
    assert box.transitions(pair)[-1][2] is Cause.SERVER_CLOSE


@CLOSING
def test_a_servers_reset_is_passed_on_where_the_policy_is_close(box: EngineLab) -> None:
    pair = box.connect()
    reset(pair.server)
    with pytest.raises(ConnectionResetError):
        receive(pair.client, 1)
    box.wait_state(pair, State.CLOSED)


@BOTH
def test_a_clients_reset_reaches_the_server(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    reset(pair.client)
    with pytest.raises(ConnectionResetError):
        receive(pair.server, 1)
    box.wait_state(pair, State.CLOSED)
    assert box.transitions(pair)[-1] == (State.ACTIVE, State.CLOSED, Cause.CLIENT_CLOSE)


@pytest.mark.memory
def test_slow_readers_hold_their_writers_back_instead_of_filling_memory(box: EngineLab) -> None:
    """Both directions of some connections are stuffed until nothing more goes in; then all of it arrives."""
    pairs = [box.connect(family) for family in (4, 6) for _ in range(2)]
    ends = [end for pair in pairs for end in ((pair.client, pair.server), (pair.server, pair.client))]
    before = rss_bytes()
    block = os.urandom(1 << 20)
    sent = dict.fromkeys(ends, 0)
    for end in ends:
        end[0].settimeout(0.4)
        try:
            while sent[end] < 64 << 20:
                at = sent[end] % len(block)
                sent[end] += end[0].send(block[at : at + (1 << 16)])
        except TimeoutError:
            continue
    assert all(0 < total < 64 << 20 for total in sent.values()), "the writers were held back"
    assert sum(sent.values()) > 20 << 20
    assert rss_bytes() - before < len(ends) * 2 * (64 << 10) + (6 << 20), "at most one read waits in each direction"
    for (_, target), total in sent.items():
        at = 0
        while at < total:
            part = target.recv(1 << 16)
            assert part
            assert part == (block * 2)[at % len(block) : at % len(block) + len(part)]
            at += len(part)
    for pair in pairs:
        box.exchange(pair)


def test_a_byte_flood_of_one_client_does_not_starve_another(box: EngineLab) -> None:
    loud, quiet = box.connect(), box.connect()
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            loud.client.sendall(bytes(1 << 18))

    def drain() -> None:
        while loud.server.recv(1 << 18):
            pass

    threads = [threading.Thread(target=flood), threading.Thread(target=drain)]
    for thread in threads:
        thread.start()
    try:
        slowest = 0.0
        for _ in range(50):
            since = time.monotonic()
            box.exchange(quiet)
            slowest = max(slowest, time.monotonic() - since)
    finally:
        stop.set()
        threads[0].join()
        loud.client.close()
        threads[1].join()
    assert slowest < 1.0


@pytest.mark.engine(service={"connect_timeout_ms": 700})
def test_a_client_whose_server_cannot_be_reached_is_told_by_a_reset(box: EngineLab) -> None:
    box.engine.update_service(box.spec(4, servers=((box.lab.address("lan", "eth0"), 9),)))  # nothing listens there
    client = box.dial()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert box.stat("link_failed") >= 1
    assert box.stat("awake") == 0


@pytest.mark.engine(service={"connect_timeout_ms": 5000})
def test_what_a_client_says_while_its_server_is_down_arrives_when_it_is_back(box: EngineLab) -> None:
    box.engine.update_service(box.spec(4, servers=((box.lab.address("lan", "eth0"), 9000),)))
    client = box.dial()
    client.sendall(b"patience")
    time.sleep(0.5)
    with box.lab.enter("lan"):
        late = socket.create_server((box.lab.address("lan", "eth0"), 9000))
    with late:
        late.settimeout(5)
        with late.accept()[0] as server:
            server.settimeout(5)
            assert receive(server, 8) == b"patience"


@BOTH
@pytest.mark.engine(service={"connect_timeout_ms": 5000})
@pytest.mark.parametrize("end", [False, True])
def test_urgent_data_and_an_end_that_were_there_before_the_first_read_get_through(
    box: EngineLab, family: int, end: bool
) -> None:
    """A read stops before urgent data and before the end, and nothing tells again that they are there."""
    box.engine.update_service(box.spec(family, servers=((box.lab.address("lan", "eth0", family), 9001),)))
    client = box.dial(family)
    client.sendall(b"abc")
    client.send(b"U", 0 if end else socket.MSG_OOB)
    client.sendall(b"def")
    if end:
        client.shutdown(socket.SHUT_WR)
    time.sleep(0.1)  # it is all in the appliance's kernel
    with box.lab.enter("lan"):
        address = (box.lab.address("lan", "eth0", family), 9001)
        late = socket.create_server(address, family=socket.AF_INET6 if family == 6 else socket.AF_INET)
    with late:
        late.settimeout(5)
        with late.accept()[0] as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
            server.settimeout(5)
            assert receive(server, 8 if end else 7) == b"abcUdef"


@BOTH
@pytest.mark.engine(service={"proxy_header": 1})
def test_a_server_is_told_whose_connection_it_is_on_every_link(box: EngineLab, family: int) -> None:
    pair = box.connect(family, greet=False)
    (here, port), (there, local) = pair.client.getsockname()[:2], pair.client.getpeername()[:2]
    line = f"PROXY TCP{family} {here} {there} {port} {local}\r\n".encode()
    assert receive(pair.server, len(line)) == line, "before the client's first word"
    box.exchange(pair)
    box.to_idle(pair)
    pair.client.sendall(b"again")
    pair.server = box.accept(family)
    assert receive(pair.server, len(line) + 5) == line + b"again"


def corked_end(sock: socket.socket, data: bytes) -> None:
    """Sends the bytes and a FIN in one packet."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)


@BOTH
@CLOSING
def test_last_bytes_and_the_end_go_on_in_one_packet(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    before = tcp_info(pair.client).segments_in
    corked_end(pair.server, b"last words")
    assert receive(pair.client, 100) == b"last words"
    assert tcp_info(pair.client).segments_in == before + 1
    before = tcp_info(pair.server).segments_in
    corked_end(pair.client, b"and mine")
    assert receive(pair.server, 100) == b"and mine"
    assert tcp_info(pair.server).segments_in <= before + 2, "those, and the acknowledgement of what it said itself"


@BOTH
def test_last_bytes_of_a_server_reach_a_client_that_stays(box: EngineLab, family: int) -> None:
    """No FIN follows them here: nothing may hold them back for one."""
    took = []
    for _ in range(3):
        pair = box.connect(family)
        began = time.monotonic()
        corked_end(pair.server, b"last words")
        assert receive(pair.client, 10) == b"last words"
        took.append(time.monotonic() - began)
    assert min(took) < 0.15, "the kernel lets go of what waits for more after 200 ms"
    pair.server.close()
    box.wait_state(pair, State.STANDBY)
    box.wake_and_answer(pair)


@BOTH
def test_a_server_may_speak_first_where_every_client_did_until_now(box: EngineLab, family: int) -> None:
    for _ in range(20):
        client = box.dial(family)
        client.sendall(b"hello")
        server = box.accept(family)
        assert receive(server, 5) == b"hello"
        client.close()
    took = []
    for _ in range(4):
        client = box.dial(family)
        began = time.monotonic()
        server = box.accept(family)
        server.sendall(b"220 ready")
        assert receive(client, 9) == b"220 ready"
        took.append(time.monotonic() - began)
    assert min(took[1:]) < 0.1, "after one that had to wait for the kernel to end the handshake, none has to"


def test_a_greeting_in_two_parts_is_not_held_up_by_a_late_acknowledgement(box: EngineLab) -> None:
    """A server with Nagle's algorithm sends its second part when the first is acknowledged: at once, on a new link."""
    took = []
    for _ in range(5):
        client = box.dial()
        client.sendall(b"hello")
        server = box.accept()
        assert receive(server, 5) == b"hello"
        began = time.monotonic()
        server.sendall(b"one ")
        server.sendall(b"two")
        assert receive(client, 7) == b"one two"
        took.append(time.monotonic() - began)
    assert min(took) < 0.03, "a delayed acknowledgement takes 40 ms"
