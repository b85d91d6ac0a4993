# SPDX-License-Identifier: Apache-2.0
"""Connections between two daemons: the messages that they are, and the thread that moves their bytes meanwhile."""

from __future__ import annotations

import array
import hashlib
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

import pytest

from appliance.engine import EngineError
from appliance.engine.bridge import CONNECTION, LISTENER, Bridge
from tests.descriptors import no_collection, open_descriptors

CLIENT, SERVER = 0, 1
LEAST: Final = 8
"""Bytes of facts without which a message is of no version."""

NONE, LINKED, ENDING, WANTED = range(4)
TO_CLIENT, TO_SERVER, OF_CLIENT, OF_SERVER = range(4)
FACTS: Final = struct.Struct("=HH4B4I36sHH16sQ4Q2Q2QI4B6B2x2Q8s8s")
LENGTHS: Final = slice(6, 10)
RX, TX, BRIDGED_IN, BRIDGED_OUT = 19, 20, 21, 22
LEGS: Final = slice(-2, None)
EOF, SHUT, BROKEN, ERROR, LOST, REFUSED = range(6)
"""Places in what is said of a leg."""


def facts(kind: int = CONNECTION, link: int = LINKED, moves: int = 1, version: int = 1, size: int = FACTS.size,
          legs: Sequence[bytes] = (bytes(8), bytes(8)), lengths: Sequence[int] = (0, 0, 0, 0)) -> bytes:  # fmt: skip
    """struct roost_handed_facts."""
    values: list[Any] = [version, size, kind, 2, link, moves, *lengths, bytes(36), 1, 8000, bytes(16), 77]
    return FACTS.pack(*values, *[0] * 8, 0, *[0] * 4, *[0] * 6, 0, 0, *legs)


class Told(NamedTuple):
    """A message, read without the code that is tested."""

    facts: tuple[Any, ...]
    data: list[bytes]
    fds: list[int]

    def leg(self, which: int) -> bytes:
        return bytes(self.facts[LEGS][which])


@pytest.fixture
def queue() -> Iterator[tuple[socket.socket, socket.socket]]:
    with queue_of_messages() as ends:
        yield ends


@contextmanager
def queue_of_messages() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        yield ours, theirs


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    bridge = Bridge()
    yield bridge
    bridge.close()


@pytest.fixture(autouse=True)
def no_descriptor_leaks() -> Iterator[None]:
    with no_collection():
        before = open_descriptors()
        yield
        assert open_descriptors() == before


@contextmanager
def descriptors(count: int) -> Iterator[list[int]]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        yield [one.fileno() for one in sockets]


def put(to: socket.socket, message: bytes, fds: Sequence[int] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    to.sendmsg([message], rights)


def read_all(bridge: Bridge) -> list[Told]:
    """What is there, as another daemon would be told. The caller has the descriptors."""
    found: list[Told] = []
    with queue_of_messages() as (ours, theirs):
        bridge.send(ours.fileno())
        ours.shutdown(socket.SHUT_WR)
        while True:
            data, fds, _, _ = socket.recv_fds(theirs, 1 << 20, 8)
            if not data:
                return found
            told = FACTS.unpack_from(data)
            at, parts = FACTS.size, []
            for length in told[LENGTHS]:
                parts.append(data[at : at + length])
                at += length
            assert at == len(data)
            found.append(Told(told, parts, list(fds)))


def take(bridge: Bridge) -> Told:
    (told,) = read_all(bridge)
    for fd in told.fds:
        os.close(fd)
    return told


Queue = tuple[socket.socket, socket.socket]


def test_a_message_is_taken_as_it_was_told(queue: Queue, bridge: Bridge) -> None:
    data = [b"to the client", b"to the server", b"of the client", b""]
    said = facts(lengths=[len(part) for part in data])
    with descriptors(2) as fds:
        put(queue[0], said + b"".join(data), fds)
        assert bridge.receive(queue[1].fileno()) == 0
    assert (bridge.count(), bridge.count(LISTENER)) == (1, 0)
    told = take(bridge)
    assert (FACTS.pack(*told.facts), told.data, len(told.fds)) == (said, data, 2)
    assert bridge.count() == 0


@pytest.mark.parametrize("size", [FACTS.size + 8, FACTS.size + 1000])
def test_what_a_later_version_says_besides_is_left_out(queue: Queue, bridge: Bridge, size: int) -> None:
    with descriptors(2) as fds:
        put(queue[0], facts(size=size, lengths=[0, 5, 0, 0]) + b"\xff" * (size - FACTS.size) + b"bytes", fds)
        assert bridge.receive(queue[1].fileno()) == 0
    told = take(bridge)
    assert FACTS.pack(*told.facts) == facts(lengths=[0, 5, 0, 0])
    assert told.data[TO_SERVER] == b"bytes"


@pytest.mark.parametrize("size", [LEAST, LEAST + 16, 60, FACTS.size - 1])
def test_what_an_earlier_version_did_not_say_is_zero(queue: Queue, bridge: Bridge, size: int) -> None:
    whole = facts(legs=(b"\1" * 8, b"\1" * 8), lengths=[5, 0, 0, 0] if size > LEAST + 16 else [0] * 4, size=size)
    with descriptors(2) as fds:
        put(queue[0], whole[:size] + (b"bytes" if size > LEAST + 16 else b""), fds)
        assert bridge.receive(queue[1].fileno()) == 0
    told = take(bridge)
    expected = bytearray(whole[:size].ljust(FACTS.size, b"\0"))
    struct.pack_into("=H", expected, 2, FACTS.size)
    assert FACTS.pack(*told.facts) == bytes(expected)


@pytest.mark.parametrize(
    ("message", "fds"),
    [
        (facts(version=0), 2),
        (facts(version=2), 2),
        (facts(size=LEAST - 1), 2),
        (facts(size=0), 2),
        (facts(size=FACTS.size + 1), 2),
        (facts(size=65535), 2),
        (facts()[: LEAST - 1], 2),
        (b"x", 2),
        (facts(lengths=[5, 0, 0, 0]), 2),
        (facts(lengths=[5, 0, 0, 0]) + b"four", 2),
        (facts(lengths=[5, 0, 0, 0]) + b"longer", 2),
        (facts(lengths=[0xFFFFFFFF, 2, 0, 0]) + b"x", 2),
        (facts(lengths=[0x80000000, 0x80000000, 0, 0]), 2),
        (facts() + b"x", 2),
        (facts(), 0),
        (facts(), 1),
        (facts(), 3),
        (facts(), 100),
        (facts(link=ENDING), 1),
        (facts(link=NONE), 2),
        (facts(link=WANTED), 2),
        (facts(link=WANTED + 1), 1),
        (facts(link=255), 2),
        (facts(kind=LISTENER), 0),
        (facts(kind=0), 2),
        (facts(kind=3), 2),
        (facts(lengths=[1 << 20, 0, 0, 0]) + bytes(1 << 20), 2),
    ],
)
def test_a_message_of_no_use_is_refused_and_the_next_one_taken(bridge: Bridge, message: bytes, fds: int) -> None:
    with queue_of_messages() as (ours, theirs), descriptors(fds) as some:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        put(ours, message, some)
        with descriptors(2) as good:
            put(ours, facts(), good)
        open_before = len(open_descriptors())
        assert bridge.receive(theirs.fileno()) == 1
        assert len(open_descriptors()) == open_before + 2
        assert bridge.count() == 1


def test_descriptors_of_an_empty_message_are_closed(queue: Queue, bridge: Bridge) -> None:
    with descriptors(2) as fds:
        put(queue[0], b"", fds)
    bridge.receive(queue[1].fileno())
    assert bridge.count() == 0


@pytest.mark.parametrize("seed", range(3))
def test_any_bytes_are_taken_or_refused(bridge: Bridge, seed: int) -> None:
    """A third of them changed in some bytes of a good message."""
    random_ = random.Random(seed)
    refused = sent = 0
    with queue_of_messages() as (ours, theirs), descriptors(4) as fds:
        for _ in range(2000):
            message = bytearray(random_.randbytes(random_.randrange(1, 400)))
            if random_.random() < 0.6:
                lengths = [random_.choice([0, 0, 3, 40]) for _ in range(4)]
                message = bytearray(facts(link=random_.randrange(4), lengths=lengths) + bytes(sum(lengths)))
                for _ in range(random_.randrange(3)):
                    message[random_.randrange(len(message))] = random_.randrange(256)
            put(ours, bytes(message), random_.sample(fds, random_.randrange(4)))
            sent += 1
            refused += bridge.receive(theirs.fileno())
        taken = bridge.count() + bridge.count(LISTENER)
        assert taken + refused == sent
        assert taken > 50
        bridge.start()  # of what it was told nothing is a connection
        bridge.stop()


def test_what_is_sent_is_not_here_any_more_and_what_is_not_is(queue: Queue, bridge: Bridge) -> None:
    ours, theirs = queue
    with descriptors(2) as fds:
        for _ in range(8):
            put(ours, facts(lengths=[60_000, 0, 0, 0]) + bytes(60_000), fds)
    assert bridge.receive(theirs.fileno()) == 0
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 70_000)
    with pytest.raises(EngineError):
        bridge.send(ours.fileno())
    assert 0 < bridge.count() < 8
    second = Bridge()
    second.receive(theirs.fileno())
    assert bridge.count() + second.count() == 8
    second.close()


# Bytes on their way


class Ends:
    """A client and a server of a connection that a bridge has."""

    def __init__(self, stack: ExitStack, buffer: int = 0) -> None:
        self.client, self.near_client = connected(stack, buffer)
        self.server, self.near_server = connected(stack, buffer)

    def hand(self, bridge: Bridge, said: bytes = facts()) -> None:
        with queue_of_messages() as (ours, theirs):
            put(ours, said, [self.near_client.fileno(), self.near_server.fileno()])
            assert bridge.receive(theirs.fileno()) == 0
        self.near_client.close()
        self.near_server.close()


def connected(stack: ExitStack, buffer: int) -> tuple[socket.socket, socket.socket]:
    """Over the loopback interface, in segments that are smaller than buffer: what the far end's kernel keeps, about."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        if buffer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        far = stack.enter_context(socket.socket())
        if buffer:
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        far.settimeout(10)
        far.connect(listener.getsockname())
        near = stack.enter_context(listener.accept()[0])
        near.setblocking(False)
        return far, near


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def ends(stack: ExitStack) -> Ends:
    return Ends(stack)


def receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := sock.recv(min(size - len(data), 1 << 16))):
        data += part
    return bytes(data)


def is_silent(sock: socket.socket, for_s: float = 0.1) -> bool:
    return not select.select([sock], [], [], for_s)[0]


def eventually(holds: Callable[[], object], timeout_s: float = 5) -> None:
    until = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def moved_on(bridge: Bridge) -> Bridge:
    """Another daemon's, which has all of it now."""
    bridge.stop()
    following = Bridge()
    with queue_of_messages() as (ours, theirs):
        ours.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_SNDBUFFORCE", 32), 16 << 20)
        bridge.send(ours.fileno())
        assert following.receive(theirs.fileno()) == 0
    bridge.close()
    return following


def test_bytes_go_both_ways(stack: ExitStack, bridge: Bridge) -> None:
    many = [Ends(stack) for _ in range(50)]
    for number, ends in enumerate(many):
        ends.client.sendall(b"before%d" % number)
        ends.hand(bridge)
    bridge.start()
    for round_ in range(3):
        for ends in many:
            ends.client.sendall(b"?" * (round_ + 1))
            ends.server.sendall(b"!" * 2 * (round_ + 1))
    for number, ends in enumerate(many):
        before = b"before%d" % number
        assert receive(ends.server, len(before) + 6) == before + b"?" * 6
        assert receive(ends.client, 12) == b"!" * 12
    bridge.stop()
    for told in read_all(bridge):
        rx, tx, bridged_in, bridged_out = (told.facts[at] for at in (RX, TX, BRIDGED_IN, BRIDGED_OUT))
        assert rx == bridged_in in (13, 14)
        assert tx == bridged_out == 12
        for fd in told.fds:
            os.close(fd)


def test_what_the_engine_looks_into_stays_where_it_is(ends: Ends, bridge: Bridge) -> None:
    ends.hand(bridge, facts(moves=0))
    bridge.start()
    ends.client.sendall(b"a request in band, perhaps")
    ends.server.sendall(b"likewise")
    assert is_silent(ends.server)
    assert is_silent(ends.client, 0)


@pytest.mark.parametrize("to_server", [True, False])
def test_what_a_slow_reader_has_not_taken_goes_on_in_the_next_bridge(stack: ExitStack, to_server: bool) -> None:
    ends, bridge = Ends(stack, buffer=4096), Bridge()
    ends.hand(bridge)
    talker, listener = (ends.client, ends.server) if to_server else (ends.server, ends.client)
    data = random.Random(1).randbytes(6 << 20)
    thread = threading.Thread(target=talker.sendall, args=(data,))
    thread.start()
    bridge.start()
    time.sleep(0.1)
    bridge.stop()
    assert thread.is_alive(), "a slow reader holds back the writer"
    got = b""
    pending = 0
    for _ in range(5):
        bridge = moved_on(bridge)
        bridge.start()
        got += receive(listener, 100_000)
        bridge.stop()
        pending += bridge_pending(bridge)[TO_SERVER if to_server else TO_CLIENT]
    assert pending > 0
    bridge.start()
    got += receive(listener, len(data) - len(got))
    thread.join()
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    bridge.close()


def bridge_pending(bridge: Bridge) -> tuple[int, ...]:
    """Bytes that were read and not sent, of its one connection, which it keeps."""
    (told,) = read_all(bridge)
    with queue_of_messages() as (ours, theirs):
        ours.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_SNDBUFFORCE", 32), 16 << 20)
        put(ours, FACTS.pack(*told.facts) + b"".join(told.data), told.fds)
        assert bridge.receive(theirs.fileno()) == 0
    for fd in told.fds:
        os.close(fd)
    return told.facts[LENGTHS]


def test_a_clients_end_goes_on_behind_its_last_byte(ends: Ends, bridge: Bridge) -> None:
    ends.hand(bridge)
    data = bytes(1 << 20)
    bridge.start()

    def talk() -> None:
        ends.client.sendall(data)
        ends.client.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=talk)
    thread.start()
    assert receive(ends.server, len(data)) == data
    assert ends.server.recv(1) == b""
    thread.join()
    ends.server.sendall(b"an answer")
    assert receive(ends.client, 9) == b"an answer"
    bridge.stop()
    told = take(bridge)
    assert (told.leg(CLIENT)[EOF], told.leg(SERVER)[SHUT], told.leg(SERVER)[EOF]) == (1, 1, 0)


@pytest.mark.parametrize("client_ends", [True, False])
def test_what_waits_behind_an_end_that_was_read_goes_on(ends: Ends, bridge: Bridge, client_ends: bool) -> None:
    """As an engine may leave it: the end was read, and what came before it is not sent."""
    read = bytes([1, *bytes(7)])
    legs = (read, bytes(8)) if client_ends else (bytes(8), read)
    with queue_of_messages() as (ours, theirs):
        lengths = [0, 4, 0, 0] if client_ends else [4, 0, 0, 0]
        put(ours, facts(legs=legs, lengths=lengths) + b"last", [ends.near_client.fileno(), ends.near_server.fileno()])
        assert bridge.receive(theirs.fileno()) == 0
    ends.near_client.close()
    ends.near_server.close()
    bridge.start()
    listener = ends.server if client_ends else ends.client
    assert receive(listener, 4) == b"last"
    if client_ends:
        assert listener.recv(1) == b""
    else:
        assert is_silent(listener), "what a server's end means is for the engine to decide"


def test_a_servers_end_waits_for_the_engine_and_the_client_keeps_its_bytes(ends: Ends, bridge: Bridge) -> None:
    ends.hand(bridge)
    bridge.start()
    ends.server.sendall(b"bye")
    ends.server.shutdown(socket.SHUT_WR)
    assert receive(ends.client, 3) == b"bye"
    ends.client.sendall(b"for the next server")
    assert is_silent(ends.client)
    assert is_silent(ends.server, 0)
    bridge.stop()
    (told,) = read_all(bridge)
    assert (told.leg(SERVER)[EOF], told.leg(SERVER)[BROKEN], told.leg(CLIENT)[SHUT]) == (1, 0, 0)
    with socket.socket(fileno=told.fds[0]) as near:
        assert near.recv(100) == b"for the next server"
    os.close(told.fds[1])


@pytest.mark.parametrize("which", [CLIENT, SERVER])
def test_a_reset_is_kept_for_the_engine(ends: Ends, bridge: Bridge, which: int) -> None:
    ends.hand(bridge)
    bridge.start()
    resets, other = (ends.client, ends.server) if which == CLIENT else (ends.server, ends.client)
    resets.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    resets.close()
    assert is_silent(other)
    bridge.stop()
    told = take(bridge)
    assert (told.leg(which)[BROKEN], told.leg(1 - which)[BROKEN], told.leg(which)[LOST]) == (1, 0, 0)
    assert told.leg(which)[ERROR] != 0


def test_bytes_that_a_server_resets_are_known_to_be_lost(ends: Ends, bridge: Bridge) -> None:
    ends.hand(bridge)
    ends.client.sendall(bytes(100_000))
    ends.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ends.server.close()
    bridge.start()
    eventually(lambda: is_silent(ends.client, 0.05))
    bridge.stop()
    told = take(bridge)
    assert told.leg(SERVER)[BROKEN]


def test_a_transfer_that_is_stopped_and_begun_again_is_byte_exact(stack: ExitStack) -> None:
    size = 3 << 20
    many, bridge = [Ends(stack, buffer=8192) for _ in range(4)], Bridge()
    for ends in many:
        ends.hand(bridge)
    sums: dict[int, bytes] = {}
    data = {number: random.Random(number).randbytes(size) for number in range(8)}

    def talk(sock: socket.socket, number: int) -> None:
        sock.sendall(data[number])
        if number % 2 == 0:  # a client; when a server ends, what its client says from then on waits for the engine
            sock.shutdown(socket.SHUT_WR)

    def listen(sock: socket.socket, number: int) -> None:
        data = b"".join(receive(sock, 4096) for _ in range(size // 4096))
        sums[number] = hashlib.sha256(data).digest()

    threads = []
    for number, ends in enumerate(many):
        for sock, other, which in ((ends.client, ends.server, 2 * number), (ends.server, ends.client, 2 * number + 1)):
            threads.append(threading.Thread(target=talk, args=(sock, which)))
            threads.append(threading.Thread(target=listen, args=(other, which)))
    for thread in threads:
        thread.start()
    random_ = random.Random(3)
    times = 0
    while any(thread.is_alive() for thread in threads) and times < 300:
        bridge.start()
        time.sleep(random_.random() * 0.001)
        bridge.stop()
        times += 1
        if times % 2:
            bridge = moved_on(bridge)
    bridge.start()
    for thread in threads:
        thread.join(20)
    assert times > 5
    assert sums == {number: hashlib.sha256(part).digest() for number, part in data.items()}
    bridge.close()


def test_what_comes_to_a_bridge_that_runs_is_moved_when_it_is_begun_again(stack: ExitStack, bridge: Bridge) -> None:
    """A service manager may have kept two queues."""
    for _ in range(3):
        ends = Ends(stack)
        ends.hand(bridge)
        bridge.start()
        ends.client.sendall(b"hello")
        assert receive(ends.server, 5) == b"hello"
    assert bridge.count() == 3


def test_closing_a_bridge_that_runs_ends_its_connections(ends: Ends) -> None:
    bridge = Bridge()
    ends.hand(bridge)
    bridge.start()
    bridge.close()
    assert ends.client.recv(1) == ends.server.recv(1) == b""
