# SPDX-License-Identifier: Apache-2.0
"""A second server wants a client that is linked: it is refused, waits, or takes over, whichever way it comes."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from appliance.lab import Lab, wait_until
from appliance.wire import OnServerClose, Op, SecondServer
from control.core.states import LEGAL, Cause, State
from tests.lab.engine_lab import PORT, EngineLab, Pair, receive, sending

BOTH = pytest.mark.parametrize("family", [4, 6])
WAYS = pytest.mark.parametrize("way", ["door", "command"])
WAIT = {"second_server": SecondServer.WAITS, "second_server_ms": 5000}
TAKE_OVER = {"second_server": SecondServer.TAKES_OVER, "second_server_ms": 5000}
BRIEF_MS = 400
LARGE = 600_000


def come(box: EngineLab, pair: Pair, way: str) -> socket.socket:
    """Another server's end of the connection by which it wants the client."""
    if way == "command":
        server = box.attach(pair, token=17)
    else:
        with box.lab.enter("lan"):
            server = socket.create_connection(pair.client.getsockname()[:2], 5)
    server.settimeout(5)
    return server


def leave(box: EngineLab, pair: Pair) -> None:
    """The server that has the client is told to go; the one that waits is linked at once, so that no one may see
    STANDBY."""
    box.submit(Op.STANDBY, pair)
    assert pair.server.recv(1) == b""
    pair.server.close()


def assert_refused(server: socket.socket, way: str) -> None:
    with server:
        if way == "door":
            with pytest.raises(ConnectionResetError):
                server.recv(1)
        else:
            assert server.recv(1) == b""


def assert_legal(box: EngineLab, pair: Pair) -> None:
    transitions = box.transitions(pair)
    assert all(one in LEGAL for one in transitions), transitions
    assert all(before[1] == after[0] for before, after in pairwise(transitions)), transitions


@BOTH
@WAYS
@pytest.mark.engine(router=True)
def test_it_is_refused_at_once_where_nothing_else_is_said(box: EngineLab, family: int, way: str) -> None:
    pair = box.connect(family)
    try:
        assert_refused(come(box, pair, way), way)
    except ConnectionResetError:
        assert way == "door", "it may be reset before connect() has returned"
    box.exchange(pair)
    assert box.stat("servers_waiting") == 0


@BOTH
@WAYS
@pytest.mark.engine(router=True, service=WAIT)
def test_it_waits_until_the_client_is_free(box: EngineLab, family: int, way: str) -> None:
    pair = box.connect(family)
    with come(box, pair, way) as second:
        second.sendall(b"my turn")
        box.wait(lambda: box.stat("servers_waiting") == 1, "it waits")
        box.exchange(pair)
        leave(box, pair)
        assert receive(pair.client, 7) == b"my turn"
        pair.client.sendall(b"yours")
        assert receive(second, 5) == b"yours"
        box.wait_state(pair, State.ACTIVE)
    box.wait_state(pair, State.STANDBY)
    assert box.stat("servers_refused") == box.stat("servers_waiting") == 0
    assert_legal(box, pair)


@WAYS
@pytest.mark.engine(router=True, service=WAIT)
def test_those_that_wait_are_served_in_their_order(box: EngineLab, way: str) -> None:
    pair = box.connect()
    waiting = []
    for number in range(3):
        waiting.append(come(box, pair, way))
        box.wait(lambda number=number: box.stat("servers_waiting") == number + 1, "it waits")  # type: ignore[misc]
    leave(box, pair)
    for number, server in enumerate(waiting):
        server.sendall(b"%d" % number)
        assert receive(pair.client, 1) == b"%d" % number
        server.close()


@BOTH
@WAYS
@pytest.mark.engine(router=True, service={**WAIT, "second_server_ms": BRIEF_MS})
def test_it_is_refused_when_it_has_waited_in_vain(box: EngineLab, family: int, way: str) -> None:
    pair = box.connect(family)
    began = time.monotonic()
    assert_refused(come(box, pair, way), way)
    assert BRIEF_MS / 1000 - 0.05 < time.monotonic() - began < 2
    assert box.stat("servers_waiting") == 0
    box.exchange(pair)


@WAYS
@pytest.mark.engine(router=True, service=WAIT)
def test_one_that_leaves_while_it_waits_is_forgotten(box: EngineLab, way: str) -> None:
    pair = box.connect()
    server = come(box, pair, way)
    box.wait(lambda: box.stat("servers_waiting") == 1, "it waits")
    server.close()
    box.wait(lambda: box.stat("servers_waiting") == 0, "it is forgotten")
    box.to_standby(pair)
    box.wake_and_answer(pair)


@WAYS
@pytest.mark.engine(router=True, service=WAIT)
def test_one_whose_client_ends_while_it_waits_is_refused(box: EngineLab, way: str) -> None:
    pair = box.connect()
    server = come(box, pair, way)
    box.wait(lambda: box.stat("servers_waiting") == 1, "it waits")
    box.close(pair)
    assert_refused(server, way)


@BOTH
@WAYS
@pytest.mark.engine(router=True, service=TAKE_OVER)
def test_it_takes_over_and_no_byte_of_the_first_is_lost(box: EngineLab, family: int, way: str) -> None:
    pair = box.connect(family)
    question, answer = os.urandom(LARGE), os.urandom(LARGE)
    pair.client.sendall(question[:1000])
    sender = threading.Thread(target=pair.server.sendall, args=(answer,))  # the client does not read yet
    sender.start()
    time.sleep(0.2)
    with come(box, pair, way) as second:
        second.sendall(b"mine now")
        got = receive(pair.server, 1001)
        assert got == question[:1000], "what the client had said, then FIN"
        sender_done = receive(pair.client, LARGE)
        sender.join()
        pair.server.close()
        assert sender_done == answer, "what the first had sent comes first"
        assert receive(pair.client, 8) == b"mine now"
        pair.client.sendall(b"yours")
        assert receive(second, 5) == b"yours"
        # It was ACTIVE before, too.
        moves = [(State.ACTIVE, State.STANDBY), (State.STANDBY, State.ACTIVE)]
        expected = [(*move, Cause.SERVER_ATTACH) for move in moves]
        box.wait(lambda: box.transitions(pair)[-2:] == expected, "the second has taken over", 5)
    box.wait_state(pair, State.STANDBY)
    box.wake_and_answer(pair)
    assert_legal(box, pair)


@WAYS
@pytest.mark.engine(router=True, service={**TAKE_OVER, "second_server_ms": BRIEF_MS})
def test_it_does_not_take_over_what_the_first_has_not_read(box: EngineLab, way: str) -> None:
    """The client's bytes are acknowledged and no other server's: they must reach the one that they were said to."""
    pair = box.connect()
    pair.server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    data = os.urandom(8_000_000)
    with sending(pair.client, data):
        box.wait(lambda: moves_no_more(box, "bytes_from_clients"), "all buffers are full")
        assert_refused(come(box, pair, way), way)
        assert receive(pair.server, len(data)) == data
    box.exchange(pair)


def moves_no_more(box: EngineLab, counter: str) -> bool:
    before = box.stat(counter)
    time.sleep(0.2)
    return 0 < before == box.stat(counter)


@WAYS
@pytest.mark.engine(router=True, service={**TAKE_OVER, "second_server_ms": BRIEF_MS})
def test_it_does_not_take_over_before_the_client_has_read_what_the_first_has_sent(box: EngineLab, way: str) -> None:
    pair = box.connect()
    answer = os.urandom(8_000_000)
    with sending(pair.server, answer):
        box.wait(lambda: moves_no_more(box, "bytes_to_clients"), "all buffers are full")
        assert_refused(come(box, pair, way), way)
        assert receive(pair.client, len(answer)) == answer
    assert pair.server.recv(1) == b""
    pair.server.close()
    box.wait_state(pair, State.STANDBY)
    box.wake_and_answer(pair)


@BOTH
@WAYS
@pytest.mark.engine(router=True, service=TAKE_OVER)
def test_one_that_comes_while_no_server_is_up_is_linked_and_hears_what_was_said(
    box: EngineLab, family: int, way: str
) -> None:
    nobody = (box.lab.address("lan", "eth0", family), 9)
    box.engine.update_service(box.spec(family, servers=(nobody,)))
    client = box.dial(family)
    client.sendall(b"is anybody there?")
    box.wait(lambda: box.engine.find(box.key_of(client)), "it is taken in")
    pair = Pair(client, client, box.key_of(client), 0)
    with come(box, pair, way) as second:
        assert receive(second, 17) == b"is anybody there?"
        second.sendall(b"yes")
        assert receive(client, 3) == b"yes"
    assert_legal(box, pair)


@WAYS
@pytest.mark.engine(router=True, service=TAKE_OVER)
def test_each_that_comes_takes_over_from_the_one_before(box: EngineLab, way: str) -> None:
    pair = box.connect()
    before = pair.server
    for number in range(5):
        server = come(box, pair, way)
        assert before.recv(1) == b"", "it is ended in order"
        before.close()
        server.sendall(b"%d" % number)
        assert receive(pair.client, 1) == b"%d" % number
        pair.client.sendall(b"%d" % number)
        assert receive(server, 1) == b"%d" % number
        before = server
    before.close()
    assert_legal(box, pair)


PERSISTENT = {"persistent": True, "on_server_close": OnServerClose.CLIENT}


def asleep_with_its_server(box: EngineLab, family: int, state: State) -> Pair:
    pair = box.connect(family)
    box.wait_for_quiet(pair)
    box.submit(Op.IDLE, pair)
    box.wait_state(pair, State.IDLE)
    if state is State.SLEEP:
        box.to_sleep(pair)
    return pair


@BOTH
@WAYS
@pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
@pytest.mark.engine(router=True, service={**TAKE_OVER, **PERSISTENT})
def test_it_takes_over_from_a_server_that_sleeps_with_its_client(
    box: EngineLab, family: int, way: str, state: State
) -> None:
    pair = asleep_with_its_server(box, family, state)
    with come(box, pair, way) as second:
        assert pair.server.recv(1) == b""
        pair.server.sendall(b"goodbye")
        pair.server.close()
        second.sendall(b"hello")
        assert receive(pair.client, 12) == b"goodbyehello"
        pair.client.sendall(b"hello")
        assert receive(second, 5) == b"hello"
        box.wait_state(pair, State.ACTIVE)
    assert_legal(box, pair)


@WAYS
@pytest.mark.engine(router=True, service={**WAIT, "second_server_ms": BRIEF_MS, **PERSISTENT})
def test_one_that_waits_wakes_nobody(box: EngineLab, way: str) -> None:
    pair = asleep_with_its_server(box, 4, State.IDLE)
    assert_refused(come(box, pair, way), way)
    assert box.state(pair) is State.IDLE
    box.exchange(pair)


# With the daemon, by the protocols of attach


class Proxied:
    """A daemon, and a client that answers nothing by itself, linked to its own server."""

    def __init__(self, lab: Lab, policy: str, wait: str = "5s") -> None:
        self.lab = lab
        with lab.enter("lan"):
            self.listener = socket.create_server((lab.address("lan", "eth0"), PORT))
        self.listener.settimeout(5)
        config = lab.config(PORT, policy={"on_second_server": policy, "second_server_wait": wait})
        config["attach"]["timeout"] = "1s"
        self.daemon = lab.daemon(config)
        with lab.enter("wan"):
            self.client = socket.create_connection((lab.address("box", "wan0"), PORT), 5)
        self.first = self.listener.accept()[0]
        self.first.settimeout(5)
        self.client.sendall(b"hello")
        assert receive(self.first, 5) == b"hello"
        self.first.sendall(b"hello")
        assert receive(self.client, 5) == b"hello"
        (row,) = self.daemon.connections()
        self.id, self.target = int(row["id"]), str(row["client"])

    def close(self) -> None:
        for one in (self.listener, self.client, self.first):
            one.close()

    def ask(self, protocol: str) -> socket.socket:
        """A server that asks the proxy for the client."""
        with self.lab.enter("lan"):
            server = socket.create_connection((self.lab.address("box", "lan0"), 3128), 5)
        if protocol == "connect":
            server.sendall(f"CONNECT {self.target} HTTP/1.1\r\nHost: {self.target}\r\n\r\n".encode())
        else:
            address, port = self.target.rsplit(":", 1)
            server.sendall(b"\x05\x01\x00" + b"\x05\x01\x00\x01" + socket.inet_aton(address) + int(port).to_bytes(2))
            assert receive(server, 2) == b"\x05\x00"
        return server

    def history(self) -> list[tuple[str, str, str]]:
        """From, to and cause of all that has been written."""
        return [(row["from"], row["to"], row["cause"]) for row in self.daemon.get("/v1/history")]


PROTOCOLS = pytest.mark.parametrize("protocol", ["connect", "socks5"])
GRANTED = {"connect": b"HTTP/1.1 200", "socks5": b"\x05\x00"}
REFUSED = {"connect": b"HTTP/1.1 409", "socks5": b"\x05\x05"}


@contextmanager
def proxied(policy: str, wait: str = "5s") -> Iterator[Proxied]:
    with Lab(clients=5) as lab:
        box = Proxied(lab, policy, wait)
        try:
            yield box
        finally:
            box.close()


def answer(server: socket.socket, protocol: str) -> bytes:
    """All of what the proxy says, its first bytes returned."""
    if protocol == "connect":
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            part = receive(server, 1)
            assert part, said
            said += part
        return said[:12]
    return receive(server, 10)[:2]


@PROTOCOLS
def test_the_proxy_says_that_the_client_is_anothers(protocol: str) -> None:
    with proxied("refuse") as box, box.ask(protocol) as second:
        assert answer(second, protocol) == REFUSED[protocol]
        box.first.sendall(b"still mine")
        assert receive(box.client, 10) == b"still mine"


@PROTOCOLS
def test_the_proxy_lets_a_server_wait_longer_than_a_client_takes_to_wake(protocol: str) -> None:
    with proxied("wait") as box, box.ask(protocol) as second:
        assert not select.select([second], [], [], 1.5)[0], "it waits, though attach.timeout is over"
        box.daemon.act(box.id, "standby")
        assert answer(second, protocol) == GRANTED[protocol]
        second.sendall(b"my turn")
        assert receive(box.client, 7) == b"my turn"


@PROTOCOLS
def test_the_proxy_refuses_who_has_waited_in_vain(protocol: str) -> None:
    with proxied("wait", "500ms") as box, box.ask(protocol) as second:
        assert answer(second, protocol) == REFUSED[protocol]
        wait_until(lambda: box.daemon.status()["counters"]["servers_waiting"] == 0, 5, "it does not wait any more")


@PROTOCOLS
def test_the_proxy_lets_a_server_take_over(protocol: str) -> None:
    with proxied("take-over") as box, box.ask(protocol) as second:
        assert box.first.recv(1) == b""
        box.first.sendall(b"goodbye")
        box.first.close()
        assert answer(second, protocol) == GRANTED[protocol]
        second.sendall(b"hello")
        assert receive(box.client, 12) == b"goodbyehello"
        steps = [("ACTIVE", "STANDBY", "server-attach"), ("STANDBY", "ACTIVE", "server-attach")]
        wait_until(lambda: box.history()[-2:] == steps, 10, "the history has both steps")  # after the client has
        assert box.daemon.status()["control"]["illegal"] == 0
