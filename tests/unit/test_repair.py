# SPDX-License-Identifier: Apache-2.0
"""socket/repair.c on real connections: socket -> record -> socket, over the loopback of a namespace of the test's own.

The peer never learns of it: it stays an ordinary socket, and what it says and hears is the measure.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pyroute2 import IPRoute

from appliance.lab.namespaces import Namespace
from appliance.wire import Key
from tests.inner import ffi, lib
from tests.unit.records import SACK, TIMESTAMPS, WSCALE, c_key

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="TCP_REPAIR and namespaces need root")

SYSCTLS = {TIMESTAMPS: "net.ipv4.tcp_timestamps", SACK: "net.ipv4.tcp_sack", WSCALE: "net.ipv4.tcp_window_scaling"}
ESTABLISHED = 1


@pytest.fixture(scope="module")
def space() -> Iterator[Namespace]:
    space = Namespace("repair")
    # No tail loss probe: where the reader is preempted for some milliseconds one is due, and counts as sent again.
    space.sysctl("net.ipv4.tcp_early_retrans", 0)
    with space.entered(), IPRoute() as ip:
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
    yield space
    space.close()


@dataclass
class Info:
    """The head of struct tcp_info of linux/tcp.h."""

    state: int
    options: int
    snd_wscale: int
    rcv_wscale: int
    snd_mss: int
    retransmits: int

    @classmethod
    def of(cls, sock: socket.socket) -> Info:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        state, options, scales = raw[0], raw[5], raw[6]
        return cls(state, options & 7, scales & 15, scales >> 4, struct.unpack_from("=I", raw, 16)[0],
                   struct.unpack_from("=I", raw, 100)[0])  # fmt: skip


@dataclass
class Pair:
    """near: the end that is frozen and rebuilt; far: its peer."""

    near: socket.socket
    far: socket.socket
    listener: socket.socket
    key: Key


@contextmanager
def pair(space: Namespace, family: int = 4, options: int = TIMESTAMPS | SACK | WSCALE, mss: int = 0,
         window: int = 0) -> Iterator[Pair]:  # fmt: skip
    """window: what the far end advertises at first, in bytes; the kernel lets it grow with what comes."""
    for bit, name in SYSCTLS.items():
        space.sysctl(name, int(bool(options & bit)))
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    with space.entered():
        listener = socket.socket(domain)
        far = socket.socket(domain)
    address = "127.0.0.1" if family == 4 else "::1"
    if window:
        address = f"127.1.{window // 256}.{window % 256}"
        with space.entered(), IPRoute() as ip:
            ip.route("replace", dst=f"{address}/32", oif=1, table=255, type="local", scope="host",
                     metrics={"window": window})  # fmt: skip
    with listener, far:
        listener.bind((address, 0))
        listener.listen()
        if mss:
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, mss)
        far.settimeout(5)
        far.connect(listener.getsockname())
        near = listener.accept()[0]
        client, local = near.getpeername(), near.getsockname()
        near.settimeout(5)
        made = Pair(near, far, listener, Key.of(client[0], client[1], local[0], local[1]))
        try:
            yield made
        finally:
            made.near.close()


def snapshot(sock: socket.socket) -> tuple[int, Any, Any]:
    ka, rest = ffi.new("struct roost_ka *"), ffi.new("struct roost_rest *")
    return lib.roost_testing_snapshot(sock.fileno(), ka, rest), ka, rest


def rebuild(space: Namespace, key: Key, ka: Any, rest: Any) -> socket.socket:
    with space.entered():
        fd = lib.roost_testing_rebuild(c_key(key), ka, rest)
    assert fd >= 0, os.strerror(-fd)
    sock = socket.socket(fileno=fd)
    sock.settimeout(5)
    return sock


def settle(*socks: socket.socket) -> None:
    """Everything sent is acknowledged (SIOCOUTQ), so that a snapshot may be taken."""
    for sock in socks:
        for _ in range(500):
            if not struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]:
                break
            time.sleep(0.002)
        else:
            raise TimeoutError("the peer acknowledges nothing")


def exchange(a: socket.socket, b: socket.socket, size: int) -> None:
    """size bytes each way, compared."""
    for source, target in ((a, b), (b, a)):
        data = os.urandom(size)
        source.sendall(data)
        got = b""
        while len(got) < size:
            got += target.recv(1 << 16)
        assert got == data


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("options", range(8))
def test_a_rebuilt_connection_goes_on_with_the_options_and_numbers_it_had(
    space: Namespace, family: int, options: int
) -> None:
    with pair(space, family, options, mss=1460) as p:
        exchange(p.near, p.far, 5000)
        settle(p.near, p.far)
        before = Info.of(p.near)
        assert before.options == options, "the sysctls decided what was negotiated"
        error, ka, rest = snapshot(p.near)
        assert error == 0
        p.near.close()
        assert ka.ctl >> 16 & 0xFF == options
        time.sleep(0.02)
        p.near = rebuild(space, p.key, ka, rest)
        exchange(p.near, p.far, 30_000)
        after = Info.of(p.near)
        # A window scale of 0 is set where none was negotiated (repair.c says why): on the wire the two are the same.
        assert after.options & ~WSCALE == before.options & ~WSCALE
        assert (after.state, after.snd_wscale, after.rcv_wscale, after.snd_mss) == (
            ESTABLISHED, before.snd_wscale, before.rcv_wscale, before.snd_mss)  # fmt: skip
        assert Info.of(p.near).retransmits == Info.of(p.far).retransmits == 0


def test_a_record_taken_again_is_the_same_record(space: Namespace) -> None:
    with pair(space) as p:
        exchange(p.near, p.far, 100)
        settle(p.near, p.far)
        _, first, first_rest = snapshot(p.near)
        p.near.close()
        p.near = rebuild(space, p.key, first, first_rest)
        error, second, second_rest = snapshot(p.near)
        assert error == 0
        for field in ("ctl", "snd_nxt", "rcv_nxt", "window"):
            assert getattr(second, field) == getattr(first, field), field
        for field in ("snd_wnd", "max_window", "mss"):
            assert getattr(second_rest, field) == getattr(first_rest, field), field


def test_the_timestamp_clock_goes_on_while_the_socket_is_away_and_never_goes_back(space: Namespace) -> None:
    with pair(space) as p:
        for _ in range(20):  # each round may lose a millisecond to rounding, none may gain more than a few
            exchange(p.near, p.far, 10)
            settle(p.near, p.far)
            _, ka, rest = snapshot(p.near)
            now_ms = time.monotonic_ns() // 1_000_000
            shown = (now_ms + ka.ts_offset) % 2**32
            p.near.close()
            time.sleep(0.01)
            p.near = rebuild(space, p.key, ka, rest)
            clock = p.near.getsockopt(socket.IPPROTO_TCP, 24)  # TCP_TIMESTAMP
            assert 10 <= (clock - shown) % 2**32 <= 200, "the clock is ahead by the time slept, and runs at 1 kHz"
        assert Info.of(p.far).retransmits == 0


@pytest.mark.parametrize("mss", [536, 700, 1200])
def test_segments_of_a_rebuilt_connection_are_no_larger_than_the_peer_allowed(space: Namespace, mss: int) -> None:
    with pair(space, mss=mss) as p:
        settle(p.near, p.far)
        _, ka, rest = snapshot(p.near)
        p.near.close()
        assert rest.mss <= mss
        p.near = rebuild(space, p.key, ka, rest)
        exchange(p.near, p.far, 20_000)
        assert Info.of(p.near).snd_mss <= mss


@pytest.mark.parametrize("options", [0, TIMESTAMPS | SACK | WSCALE])
@pytest.mark.parametrize("mss", [536, 1460])
@pytest.mark.parametrize("window", [300, 512, 1024, 2048, 4096])
def test_segments_of_a_rebuilt_connection_fit_a_window_that_is_smaller_than_the_mss(
    space: Namespace, window: int, mss: int, options: int
) -> None:
    """A segment that is larger than the window waits for the persist timer, 200 ms, and each one after it."""
    with pair(space, options=options, mss=mss, window=window) as p:
        exchange(p.near, p.far, 100)
        settle(p.near, p.far)
        before = Info.of(p.near)
        error, ka, rest = snapshot(p.near)
        assert error == 0
        assert rest.max_window <= window
        p.near.close()
        p.near = rebuild(space, p.key, ka, rest)
        assert min(before.snd_mss, rest.snd_wnd // 2) <= Info.of(p.near).snd_mss <= before.snd_mss
        began = time.monotonic()
        exchange(p.near, p.far, 100_000)
        assert time.monotonic() - began < 3
        p.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 1 << 15)
        exchange(p.near, p.far, 100_000)
        size = mss - 12 if options & TIMESTAMPS else mss
        assert Info.of(p.near).snd_mss == size, "the window has opened, and segments are of full size again"
        settle(p.near, p.far)
        assert snapshot(p.near)[2].mss == rest.mss == mss


@pytest.mark.parametrize("options", [0, TIMESTAMPS | SACK | WSCALE])
def test_a_window_that_was_larger_once_does_not_hold_the_first_segment_back(space: Namespace, options: int) -> None:
    """A small receive buffer shows the whole of its window at first, and a part of it later."""
    with pair(space, options=options, mss=1460) as p:
        settle(p.near, p.far)
        _, ka, rest = snapshot(p.near)
        p.near.close()
        rest.snd_wnd, rest.max_window = 435, 1152
        p.near = rebuild(space, p.key, ka, rest)
        assert Info.of(p.near).snd_mss == 435 // 2
        p.near.sendall(bytes(1000))
        assert select.select([p.far], [], [], 1)[0], "the persist timer would fire after 3 s"
        assert p.far.recv(1000, socket.MSG_WAITALL) == bytes(1000)
        exchange(p.near, p.far, 100_000)
        assert Info.of(p.near).snd_mss == (1448 if options & TIMESTAMPS else 1460)


def test_closing_in_repair_mode_tells_the_peer_nothing(space: Namespace) -> None:
    with pair(space) as p:
        settle(p.near, p.far)
        assert snapshot(p.near)[0] == 0
        p.near.close()
        assert not select.select([p.far], [], [], 0.2)[0]
        assert Info.of(p.far).state == ESTABLISHED


def test_unread_bytes_refuse_the_snapshot_and_lose_nothing(space: Namespace) -> None:
    with pair(space) as p:
        p.far.sendall(b"unread")
        select.select([p.near], [], [], 5)
        assert snapshot(p.near)[0] == -errno.EAGAIN
        assert p.near.recv(10) == b"unread"
        exchange(p.near, p.far, 1000)


def test_unacknowledged_bytes_refuse_the_snapshot_and_arrive(space: Namespace) -> None:
    with pair(space) as p:
        p.near.settimeout(0)
        sent = 0
        try:
            while True:
                sent += p.near.send(bytes(1 << 16))
        except BlockingIOError:
            assert snapshot(p.near)[0] == -errno.EAGAIN
        got = 0
        while got < sent:
            got += len(p.far.recv(1 << 16))
        assert got == sent


def test_an_undone_snapshot_leaves_the_socket_as_it_was(space: Namespace) -> None:
    with pair(space) as p:
        exchange(p.near, p.far, 1000)
        settle(p.near, p.far)
        before = Info.of(p.near)
        for _ in range(5):
            assert snapshot(p.near)[0] == 0
            lib.roost_testing_undo(p.near.fileno())
        assert Info.of(p.near) == before
        exchange(p.near, p.far, 30_000)
        p.near.shutdown(socket.SHUT_WR)
        assert p.far.recv(1) == b"", "an ordinary end is still one"


@pytest.mark.parametrize("who", ["near", "far"])
def test_a_connection_that_began_to_end_is_not_frozen(space: Namespace, who: str) -> None:
    with pair(space) as p:
        (p.near if who == "near" else p.far).shutdown(socket.SHUT_WR)
        time.sleep(0.02)
        # A FIN that was received stands in the receive queue, and that is looked at first.
        assert snapshot(p.near)[0] == (-errno.ENOTCONN if who == "near" else -errno.EAGAIN)


def test_the_rebuilt_socket_does_not_hold_the_listening_port(space: Namespace) -> None:
    """The daemon must be able to listen again while rebuilt connections live, and while they are in TIME-WAIT."""
    with pair(space) as p:
        settle(p.near, p.far)
        _, ka, rest = snapshot(p.near)
        p.near.close()
        p.near = rebuild(space, p.key, ka, rest)
        local = p.near.getsockname()
        p.listener.close()
        for ended in (False, True):
            if ended:
                p.near.close()  # the active closer: TIME-WAIT is here
                assert p.far.recv(1) == b""
                p.far.close()
            with space.entered(), socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(local)
                again.listen()


def test_a_connection_that_exists_is_not_rebuilt_a_second_time(space: Namespace) -> None:
    with pair(space) as p:
        settle(p.near, p.far)
        _, ka, rest = snapshot(p.near)
        p.near.close()
        p.near = rebuild(space, p.key, ka, rest)
        with space.entered():
            assert lib.roost_testing_rebuild(c_key(p.key), ka, rest) in (-errno.EADDRNOTAVAIL, -errno.EADDRINUSE)
        exchange(p.near, p.far, 100)


def test_sequence_numbers_may_wrap_in_a_rebuilt_connection(space: Namespace) -> None:
    """A record whose numbers are about to wrap, made by moving both ends' records there."""
    with pair(space) as p:
        settle(p.near, p.far)
        _, near_ka, near_rest = snapshot(p.near)
        _, far_ka, far_rest = snapshot(p.far)
        p.near.close()
        far_key = Key(p.key.local, p.key.local_port, p.key.client, p.key.client_port)
        p.far.close()
        near_ka.snd_nxt = far_ka.rcv_nxt = 2**32 - 700
        near_ka.rcv_nxt = far_ka.snd_nxt = 2**32 - 1
        p.near = rebuild(space, p.key, near_ka, near_rest)
        with rebuild(space, far_key, far_ka, far_rest) as far:
            for size in itertools.islice(itertools.cycle([1, 699, 5000]), 6):
                exchange(p.near, far, size)
