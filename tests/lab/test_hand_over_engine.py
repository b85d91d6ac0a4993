# SPDX-License-Identifier: Apache-2.0
"""An engine takes up what another one has handed over awake: in every state, with what is on its way, and whatever
happens in between."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pytest

from appliance.wire import Command, EventType, OnServerClose, Op, ServerAddress, Verb
from control.core.states import LEGAL, Cause, State
from examples.in_band_frames import Answer, Done, Frame, Ping, Recipient, Result, Status, encode
from tests.lab.engine_lab import PORT, SERVICE, EngineLab, Pair, passed_on, receive, reset, sending
from tests.lab.in_band_lab import OK, REFUSED, End
from tests.lab.several_servers import servers_of

ACTIVE, STANDBY, IDLE, SLEEP, CLOSED = State.ACTIVE, State.STANDBY, State.IDLE, State.SLEEP, State.CLOSED
BOTH = pytest.mark.parametrize("family", [4, 6])
MOVES = pytest.mark.parametrize("moves", [True, False])
"""Whether bridges move bytes while no engine runs."""
LARGE: Final = 6_000_000
PERSISTENT: Final = {"persistent": True, "on_server_close": OnServerClose.CLIENT}


def goes_on(box: EngineLab, pair: Pair) -> None:
    """It lives, falls asleep and wakes."""
    box.exchange(pair)
    assert all(one in LEGAL for one in box.transitions(pair)), box.transitions(pair)
    box.to_idle(pair)
    box.wake_and_answer(pair)
    box.exchange(pair)


@BOTH
@MOVES
def test_an_active_connection_goes_on_with_all_that_is_on_its_way(box: EngineLab, family: int, moves: bool) -> None:
    pair = box.connect(family)
    pair.client.sendall(b"unread by the server, ")
    pair.server.sendall(b"unread by the client, ")
    bridge = box.leave_awake(moves)
    pair.client.sendall(b"said meanwhile")
    pair.server.sendall(b"answered meanwhile")
    if moves:
        assert receive(pair.server, 36) == b"unread by the server, said meanwhile"
        assert receive(pair.client, 40) == b"unread by the client, answered meanwhile"
    assert box.take_up(bridge, moves) == 1
    if not moves:
        assert receive(pair.server, 36) == b"unread by the server, said meanwhile"
        assert receive(pair.client, 40) == b"unread by the client, answered meanwhile"
    found = box.engine.find(pair.key)
    assert found is not None
    assert (found.id, found.to_state) == (pair.id, ACTIVE)
    assert len(box.transitions(pair)) == 1, "the hand-over is no transition"
    goes_on(box, pair)


@BOTH
@MOVES
def test_what_neither_end_reads_is_handed_over(box: EngineLab, family: int, moves: bool) -> None:
    """Both windows are closed, and the engine has a read of either direction."""
    pair = box.connect(family)
    said, answered = (random.Random(seed).randbytes(LARGE) for seed in (1, 2))
    with sending(pair.client, said), sending(pair.server, answered):
        time.sleep(0.2)
        for _ in range(3):
            assert box.exchange_engine(moves) == 1
        heard = receive(pair.server, LARGE), receive(pair.client, LARGE)
    assert [hashlib.sha256(part).digest() for part in heard] == [
        hashlib.sha256(part).digest() for part in (said, answered)
    ]
    goes_on(box, pair)


@BOTH
def test_a_connection_in_standby_is_handed_over(box: EngineLab, family: int) -> None:
    quiet, speaks = box.connect(family), box.connect(family)
    for pair in (quiet, speaks):
        box.to_standby(pair)
    bridge = box.leave_awake()
    speaks.client.sendall(b"hello")
    assert box.take_up(bridge) == 2
    speaks.server = box.accept(family)
    assert receive(speaks.server, 5) == b"hello"
    assert box.state(quiet) is STANDBY
    box.wake_and_answer(quiet)
    for pair in (quiet, speaks):
        goes_on(box, pair)


@BOTH
@pytest.mark.parametrize("before", [True, False])
def test_a_client_that_has_ended_hears_the_answer(box: EngineLab, family: int, before: bool) -> None:
    """before: it ends while the first engine runs, else while none does."""
    pair = box.connect(family)
    pair.client.sendall(b"last")
    if before:
        pair.client.shutdown(socket.SHUT_WR)
        assert receive(pair.server, 5) == b"last"
    bridge = box.leave_awake()
    if not before:
        pair.client.shutdown(socket.SHUT_WR)
        assert receive(pair.server, 5) == b"last"
    assert box.take_up(bridge) == 1
    pair.server.sendall(b"an answer")
    pair.server.close()
    assert receive(pair.client, 10) == b"an answer"
    box.wait_state(pair, CLOSED)


@BOTH
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.engine(service={"on_server_close": OnServerClose.CLIENT})
def test_a_server_that_has_ended_hears_its_client(box: EngineLab, family: int, before: bool) -> None:
    pair = box.connect(family)
    if before:
        pair.server.shutdown(socket.SHUT_WR)
        assert pair.client.recv(1) == b""
    bridge = box.leave_awake()
    if not before:
        pair.server.shutdown(socket.SHUT_WR)
    assert box.take_up(bridge) == 1
    assert pair.client.recv(1) == b""
    pair.client.sendall(b"last")
    assert receive(pair.server, 4) == b"last"
    pair.client.close()
    assert pair.server.recv(1) == b""
    box.wait_state(pair, CLOSED)


@BOTH
def test_a_server_that_ends_while_no_engine_runs_leaves_its_client_to_the_next(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    bridge = box.leave_awake()
    pair.server.sendall(b"bye")
    pair.server.close()
    assert receive(pair.client, 3) == b"bye"
    pair.client.sendall(b"for the next")
    assert box.take_up(bridge) == 1
    pair.server = box.accept(family)
    assert receive(pair.server, 12) == b"for the next"
    passed = [(ACTIVE, STANDBY, Cause.SERVER_CLOSE), (STANDBY, ACTIVE, Cause.CLIENT_DATA)]
    box.wait(lambda: box.transitions(pair)[-2:] == passed, "both are told")
    goes_on(box, pair)


@pytest.mark.parametrize("answered", [True, False])
def test_a_reset_while_no_engine_runs_has_its_effect_in_the_next(box: EngineLab, answered: bool) -> None:
    clients, servers = box.connect(), box.connect()
    if not answered:
        servers.client.sendall(b"a question")
        assert receive(servers.server, 10) == b"a question"
    bridge = box.leave_awake()
    reset(clients.client)
    reset(servers.server)
    time.sleep(0.1)
    assert box.take_up(bridge) == 2
    box.wait_state(clients, CLOSED)
    with pytest.raises(ConnectionResetError):
        clients.server.recv(1)
    if answered:
        box.wait_state(servers, STANDBY)
        servers.server.close()
        box.wake_and_answer(servers)
    else:
        with pytest.raises(ConnectionResetError):
            servers.client.recv(1)


@BOTH
def test_what_a_server_says_that_delays_its_end_reaches_the_client(box: EngineLab, family: int) -> None:
    """UNLINKING. One says more and ends, of the other the end never comes."""
    ends, stays = box.connect(family), box.connect(family)
    for pair in (ends, stays):
        box.submit(Op.STANDBY, pair)
        assert pair.server.recv(1) == b""
    bridge = box.leave_awake()
    ends.server.sendall(b"a late word")
    stays.client.sendall(b"for the next")
    assert box.take_up(bridge) == 2
    assert receive(ends.client, 11) == b"a late word"
    ends.server.close()
    box.wait_state(ends, STANDBY)
    stays.server = box.accept(family)
    assert receive(stays.server, 12) == b"for the next"
    for pair in (ends, stays):
        if pair is ends:
            box.wake_and_answer(pair)
        goes_on(box, pair)


@contextmanager
def silent_server(box: EngineLab) -> Iterator[None]:
    rule = f"tcp dport {PORT} drop"
    box.lab.nft("lan", f"table inet silent {{ chain in {{ type filter hook input priority 0; {rule}; }}; }}")
    try:
        yield
    finally:
        box.lab.nft("lan", "delete table inet silent")


@BOTH
@MOVES
def test_a_client_whose_server_does_not_answer_yet_reaches_it_later(box: EngineLab, family: int, moves: bool) -> None:
    with silent_server(box):
        client = box.dial(family)
        client.sendall(b"patient, ")
        box.wait(lambda: box.stat("awake") == 1, "it is taken in")
        bridge = box.leave_awake(moves)
        client.sendall(b"very patient")
    assert box.take_up(bridge, moves) == 1
    server = box.accept(family)
    assert receive(server, 21) == b"patient, very patient"
    server.sendall(b"yes")
    assert receive(client, 3) == b"yes"
    number = next(event.id for event in box.events if event.id)
    goes_on(box, Pair(client, server, box.key_of(client), number))


@pytest.mark.parametrize("after_ms", [0, 1, 3, 6, 10, 20])
def test_a_freeze_that_has_begun_is_done_or_given_up(box: EngineLab, after_ms: int) -> None:
    pairs = [box.connect(family) for family in (4, 6) for _ in range(10)]
    for pair in pairs:
        box.to_standby(pair)
    for pair in pairs:
        box.wait_for_quiet(pair)
    box.engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, id=pair.id, key=pair.key) for pair in pairs])
    time.sleep(after_ms / 1000)
    bridge = box.leave_awake()
    for pair in pairs[::2]:
        pair.client.sendall(bytes(20))
    assert box.take_up(bridge) <= len(pairs)
    servers = [box.accept(family) for family in (4, 6) for _ in range(5)]
    for server in servers:
        assert receive(server, 20) == bytes(20)
    for pair in pairs[1::2]:
        box.wake_and_answer(pair)
    assert box.stat("table_ipv4") == box.stat("table_ipv6") == 0


# Requests in band


PING: Final = encode(Frame(Ping(), 5, answer=True))


@pytest.mark.parametrize("asks", ["client", "server"])
@pytest.mark.engine(service={"in_band_clients": 1 << Verb.PING, "in_band_servers": 1 << Verb.PING})
def test_a_request_that_is_cut_anywhere_is_recognised(box: EngineLab, asks: str) -> None:
    """And never passed on: the payload around it is all that the other end gets."""
    pairs = [box.connect() for _ in range(1, len(PING))]
    ends = [(pair.client, pair.server) if asks == "client" else (pair.server, pair.client) for pair in pairs]
    for at, (asking, _) in enumerate(ends, 1):
        asking.sendall(b"before" + PING[:at])
    time.sleep(0.005)
    bridge = box.leave_awake()
    waited = [other.recv(100) for _, other in ends]
    for at, (asking, _) in enumerate(ends, 1):
        asking.sendall(PING[at:] + b"behind")
    assert box.take_up(bridge) == len(pairs)
    side = Recipient.CLIENT if asks == "client" else Recipient.SERVER
    for at, (asking, other) in enumerate(ends, 1):
        if waited[at - 1] == b"before":  # else its time was over before the engine ended
            assert receive(other, 6) == b"behind", at
            assert End(asking, side).frame() == Frame(Answer(Result.OK), 5, side), at
    assert sum(part == b"before" for part in waited) > len(pairs) // 2
    for pair in pairs:
        pair.client.close()


@pytest.mark.engine(service={"in_band_clients": 1 << Verb.STATUS | 1 << Verb.PING})
def test_a_question_without_an_answer_is_refused(box: EngineLab) -> None:
    pair = box.connect()
    client = End(pair.client, Recipient.CLIENT)
    client.tell(Status(), number=1, answer=True)
    box.wait(lambda: any(e.type == EventType.IN_BAND for e in box.events), "the control plane is asked")
    pair.client.sendall(b"behind it")
    assert box.exchange_engine() == 1
    assert client.frame().body == REFUSED
    assert receive(pair.server, 9) == b"behind it"
    assert client.ask(Ping()) == OK


@pytest.mark.engine(service={"in_band_clients": 1 << Verb.DONE})
def test_a_link_that_is_to_end_ends_when_all_is_through(box: EngineLab) -> None:
    pair = box.connect()
    data = random.Random(3).randbytes(LARGE)
    with sending(pair.server, data):
        time.sleep(0.1)
        pair.client.sendall(encode(Frame(Done())) + b"for the next")
        time.sleep(0.05)
        assert box.exchange_engine() == 1
        assert receive(pair.client, LARGE) == data
    assert pair.server.recv(1) == b""
    pair.server.close()
    pair.server = box.accept()
    assert receive(pair.server, 12) == b"for the next"


# Links of other kinds


@BOTH
@pytest.mark.engine(service=PERSISTENT)
def test_a_pair_sleeps_and_wakes_as_one(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    for _ in range(2):  # as it was accepted, and rebuilt
        assert box.exchange_engine() == 1
        box.exchange(pair)
        for speaker, listener in ((pair.client, pair.server), (pair.server, pair.client)):
            box.wait_for_quiet(pair)
            box.submit(Op.IDLE, pair)
            box.wait_state(pair, IDLE)
            assert (box.stat("awake"), box.stat(f"table_ipv{family}")) == (0, 2)
            speaker.sendall(b"good morning")
            assert receive(listener, 12) == b"good morning"
            box.wait_state(pair, ACTIVE)
    assert box.no_server_is_asked(family, 0.05)


@pytest.mark.engine(service=PERSISTENT)
def test_a_new_link_that_may_sleep_does_not_search_for_a_port_among_those_in_use(box: EngineLab) -> None:
    """An attempt tries 256 ports, and there is another one 200 ms later."""
    clients = [box.dial() for _ in range(800)]
    servers = [box.accept() for _ in clients]
    box.wait(lambda: len(box.events) >= len(clients), "all are linked")
    assert box.exchange_engine() == len(clients)
    began = time.monotonic()
    later = box.dial()
    server = box.accept()
    assert time.monotonic() - began < 0.5
    assert server.getpeername()[1] > max(one.getpeername()[1] for one in servers)
    later.sendall(b"hello")
    assert receive(server, 5) == b"hello"


@pytest.mark.parametrize("after_ms", [0, 2, 8])
@pytest.mark.engine(service=PERSISTENT)
def test_a_pair_whose_freeze_has_begun_is_one_or_asleep(box: EngineLab, after_ms: int) -> None:
    pairs = [box.connect() for _ in range(5)]
    for pair in pairs:
        box.wait_for_quiet(pair)
    box.engine.submit([Command(Op.IDLE, cause=Cause.COMMAND, id=pair.id, key=pair.key) for pair in pairs])
    time.sleep(after_ms / 1000)
    bridge = box.leave_awake()
    for pair in pairs:
        pair.server.sendall(b"good morning")
    taken = box.take_up(bridge)
    assert 0 <= taken <= len(pairs)
    for pair in pairs:
        assert receive(pair.client, 12) == b"good morning"
        box.exchange(pair)
    assert box.stat("table_ipv4") == 0


@BOTH
def test_a_server_that_came_by_itself_stays(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_standby(pair)
    server = box.attach(pair)
    server.sendall(b"I am here")
    assert receive(pair.client, 9) == b"I am here"
    assert box.exchange_engine() == 1
    pair.server = server
    box.exchange(pair)
    server.close()
    box.wait_state(pair, STANDBY)
    assert box.no_server_is_asked(family, 0.05), "it is not linked again"
    box.wake_and_answer(pair)
    goes_on(box, pair)


@pytest.mark.engine(service={"attach_silence_s": 1})
def test_a_server_that_waits_for_its_clients_answer_is_refused(box: EngineLab) -> None:
    pair = box.connect()
    box.to_standby(pair)
    time.sleep(1.1)
    with silenced_client(box):
        server = box.attach(pair, token=9)
        time.sleep(0.1)
        bridge = box.leave_awake()
        assert server.recv(1) == b""
        assert box.take_up(bridge) == 1
    box.wake_and_answer(pair)


@contextmanager
def silenced_client(box: EngineLab) -> Iterator[None]:
    rule = f"tcp sport {PORT} drop"
    box.lab.nft("wan", f"table inet silent {{ chain in {{ type filter hook input priority 0; {rule}; }}; }}")
    try:
        yield
    finally:
        box.lab.nft("wan", "delete table inet silent")


@BOTH
@pytest.mark.engine(router=True)
def test_a_router_goes_on(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    bridge = box.leave_awake()
    waits = box.dial(family)
    waits.sendall(b"hello")
    assert box.take_up(bridge) == 1
    server = box.accept(family)
    assert receive(server, 5) == b"hello"
    goes_on(box, pair)


@BOTH
@pytest.mark.parametrize("state", [IDLE, SLEEP])
def test_a_client_that_has_slept_before_sleeps_again(box: EngineLab, family: int, state: State) -> None:
    pair, asleep = box.connect(family), box.connect(family)
    for one in (pair, asleep):
        box.to(one, state)
    box.wake_and_answer(pair)
    for _ in range(2):
        assert box.exchange_engine() == 1
        box.exchange(pair)
        box.to(pair, state)
        box.wake_and_answer(pair)
    box.wake_and_answer(asleep)
    assert sorted(event.id for event in box.engine.list()) == sorted([pair.id, asleep.id])


# Services


@BOTH
def test_clients_that_connect_while_no_engine_runs_are_served_by_the_next(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    bridge = box.leave_awake()
    clients = [box.dial(family) for _ in range(20)]
    for client in clients:
        client.sendall(b"hello")
    assert box.take_up(bridge) == 1
    for _ in clients:
        server = box.accept(family)
        assert receive(server, 5) == b"hello"
        server.sendall(b"welcome")
    for client in clients:
        assert receive(client, 7) == b"welcome"
    numbers = {event.id for event in box.engine.list()} - {pair.id}
    assert len(numbers) == 20
    assert min(numbers) > pair.id
    box.exchange(pair)


@BOTH
def test_a_service_may_listen_elsewhere_from_now_on(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    every = {4: "0.0.0.0", 6: "::"}
    for wildcard in (True, False):
        specs = [box.spec(one, **({"listen": every[one]} if wildcard else {})) for one in (4, 6)]
        assert box.take_up(box.leave_awake(), specs=specs) == 1
        box.exchange(pair)
        later = box.dial(family)
        later.sendall(b"hello")
        server = box.accept(family)
        assert receive(server, 5) == b"hello"
        server.close()
        later.close()
        box.wait(lambda: box.stat("awake") == 1, "it has gone")
    goes_on(box, pair)


@BOTH
def test_a_connection_of_a_service_that_is_gone_goes_on(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    assert box.take_up(box.leave_awake(), specs=[box.spec(10 - family)]) == 1
    box.exchange(pair)
    with pytest.raises(ConnectionRefusedError):
        box.dial(family)
    pair.server.close()
    box.wait(lambda: box.told(pair) in (STANDBY, CLOSED), "the link has ended")


def test_an_engine_that_does_not_start_leaves_all_to_the_next(box: EngineLab) -> None:
    pair = box.connect()
    bridge = box.leave_awake()
    waits = box.dial()
    waits.sendall(b"hello")
    for _ in range(2):
        assert box.make(bridge) == 1
        pair.client.sendall(b"?")
        assert receive(pair.server, 1) == b"?", "its bytes are moved meanwhile"
        box.stop()
        pair.server.sendall(b"!")
        assert receive(pair.client, 1) == b"!"
    bridge = passed_on(bridge)
    assert box.take_up(bridge) == 1
    server = box.accept()
    assert receive(server, 5) == b"hello", "nor do clients learn of it that wait to be taken in"
    goes_on(box, pair)


def test_an_engine_that_asks_for_no_connections_gets_none(box: EngineLab) -> None:
    """Though one before it did, and did not start."""
    pair = box.connect()
    bridge = box.leave_awake()
    assert box.make(bridge) == 1
    box.stop()
    box.make(specs=[])
    with box.lab.enter("box"):
        box.engine.inherit(bridge)
        box.engine.start()
    assert bridge.count() == 1
    assert box.stat("awake") == 0
    bridge.close()
    assert pair.client.recv(1) == b""


def test_listening_sockets_that_are_in_the_way_are_not_handed_on(box: EngineLab) -> None:
    """The next engine listens elsewhere, and does not start: what is left are connections."""
    pair = box.connect()
    bridge = box.leave_awake()
    box.make(bridge, [replace(box.spec(4), listen="0.0.0.0"), replace(box.spec(6), listen="::")])
    box.stop()
    assert box.take_up(bridge) == 1
    goes_on(box, pair)


def test_what_was_counted_goes_on(box: EngineLab) -> None:
    pair = box.connect(greet=False)
    box.exchange(pair, 100)
    bridge = box.leave_awake()
    box.exchange(pair, 50)
    bridge = passed_on(bridge)
    bridge.start()
    box.exchange(pair, 50)
    box.take_up(bridge)
    assert (box.stat("bytes_from_clients"), box.stat("bytes_to_clients")) == (100, 100)
    box.exchange(pair, 10)
    assert (box.stat("bytes_from_clients"), box.stat("bytes_to_clients")) == (110, 110)
    box.to_standby(pair)
    last = box.transition_events(pair)[-1]
    assert (last.id, last.rx_bytes, last.tx_bytes) == (pair.id, 210, 210)
    assert box.connect().id > pair.id


def test_links_are_counted_for_their_servers(box: EngineLab) -> None:
    with servers_of(box, 4) as servers:

        def linked() -> tuple[ServerAddress, socket.socket, socket.socket]:
            client = servers.dial()
            client.sendall(b"hello")
            server, link = servers.accept()
            assert receive(link, 5) == b"hello"
            return server, client, link

        def links() -> list[int]:
            return sorted(one.links for one in box.engine.servers(SERVICE[4]))

        clients = [linked() for _ in range(4)]
        services = [replace(box.spec(4), servers=tuple(servers.all)), box.spec(6)]
        assert box.take_up(box.leave_awake(), specs=services) == 4
        assert links() == [2, 2]
        gone = clients[0][0]
        for server, client, link in clients:
            if server == gone:
                client.close()
                link.close()
        box.wait(lambda: links() == [0, 2], "two are gone")
        assert [linked()[0] for _ in range(2)] == [gone, gone], "the one with the fewest links"


@MOVES
def test_three_exchanges_under_traffic_lose_nothing(box: EngineLab, moves: bool) -> None:
    pairs = [box.connect(family) for family in (4, 6) for _ in range(3)]
    ends = [end for pair in pairs for end in ((pair.client, pair.server), (pair.server, pair.client))]
    sent, heard = [hashlib.sha256() for _ in ends], [hashlib.sha256() for _ in ends]
    over = threading.Event()

    def talk(sock: socket.socket, number: int) -> None:
        random_ = random.Random(number)
        while not over.is_set():
            data = random_.randbytes(random_.choice([10, 1000, 60_000]))
            sock.sendall(data)
            sent[number].update(data)
            time.sleep(random_.random() * 0.01)
        sock.sendall(b"end of it")
        sent[number].update(b"end of it")

    def listen(sock: socket.socket, number: int) -> None:
        tail = b""
        while not tail.endswith(b"end of it"):
            part = sock.recv(1 << 16)
            assert part
            heard[number].update(part)
            tail = (tail + part)[-9:]

    threads = []
    for number, (one, other) in enumerate(ends):
        one.settimeout(20)
        threads.append(threading.Thread(target=talk, args=(one, number)))
        threads.append(threading.Thread(target=listen, args=(other, number)))
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            time.sleep(0.1)
            assert box.exchange_engine(moves) == len(pairs)
    finally:
        over.set()
        for thread in threads:
            thread.join(20)
    assert [one.digest() for one in sent] == [one.digest() for one in heard]
    for pair in pairs:
        goes_on(box, pair)
