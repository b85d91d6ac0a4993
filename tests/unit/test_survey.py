# SPDX-License-Identifier: Apache-2.0
"""Sockets read in bulk, and sockets used again: the record is the same as by the slow way."""

from __future__ import annotations

import errno
import os
import socket
from itertools import product
from typing import Any

import pytest

from appliance.lab.namespaces import Namespace
from appliance.paths import bpf_objects
from tests.inner import ffi, lib
from tests.unit.records import SACK, TIMESTAMPS, WSCALE, c_key
from tests.unit.test_repair import Info, Pair, exchange, pair, rebuild, settle, snapshot, space

__all__ = ["space"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="BPF, TCP_REPAIR and namespaces need root")

TCP_REPAIR = 19  # linux/tcp.h
OPTIONS = [sum(bits) for bits in product((0, TIMESTAMPS), (0, SACK), (0, WSCALE))]


def survey(space: Namespace, p: Pair) -> tuple[int, Any, Any, bool]:
    """(error, ka, rest, whether the socket needed not be asked)."""
    ka, rest, surveyed = ffi.new("struct roost_ka *"), ffi.new("struct roost_rest *"), ffi.new("int *")
    path = str(bpf_objects()).encode()
    with space.entered():
        error = lib.roost_testing_survey(path, p.near.fileno(), c_key(p.key), ka, rest, surveyed)
    return error, ka, rest, bool(surveyed[0])


def fields(record: Any) -> dict[str, int]:
    """Of struct roost_ka or struct roost_rest."""
    return {name: int(getattr(record, name)) for name, _ in ffi.typeof(record).item.fields}


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_survey_tells_what_the_socket_tells_when_it_is_asked(space: Namespace, family: int, options: int) -> None:
    with pair(space, family, options, mss=1000) as p:
        exchange(p.near, p.far, 3000)
        settle(p.near, p.far)
        error, ka, rest, surveyed = survey(space, p)
        assert (error, surveyed) == (0, True)
        lib.roost_testing_undo(p.near.fileno())
        error, *asked = snapshot(p.near)
        assert error == 0
        seen, told = fields(ka) | fields(rest), fields(asked[0]) | fields(asked[1])
        # Asked, the clock is known to 1 ms, and rounded up; to 1 ms more where it went on each time it was asked.
        assert (told.pop("ts_offset") - seen.pop("ts_offset")) % 2**32 <= 2
        assert seen == told


@pytest.mark.parametrize("unread", [True, False])
def test_a_socket_with_something_in_a_queue_is_left_as_it_was(space: Namespace, unread: bool) -> None:
    with pair(space) as p:
        exchange(p.near, p.far, 100)
        settle(p.near, p.far)
        if unread:
            p.far.sendall(b"unread")
            settle(p.far)
        else:
            p.far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            p.near.sendall(bytes(1 << 20)[: p.near.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2])
        assert survey(space, p)[0] == -errno.EAGAIN
        assert p.near.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR) == 0
        if unread:
            assert p.near.recv(10) == b"unread"


def test_a_later_connection_with_the_same_addresses_is_not_taken_for_the_socket(space: Namespace) -> None:
    """It was reset, and its client came again from the same port before the survey looked."""
    with pair(space) as p:
        exchange(p.near, p.far, 100)
        where = p.far.getsockname()
        p.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        p.far.close()
        with space.entered():
            again = socket.socket()
        with again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(where)
            again.connect(p.listener.getsockname())
            with p.listener.accept()[0]:
                assert survey(space, p)[0] == -errno.ENOTCONN


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("before", [0, TIMESTAMPS | SACK | WSCALE])
def test_a_socket_used_again_has_nothing_of_the_connection_before(space: Namespace, family: int, before: int) -> None:
    after = (TIMESTAMPS | SACK | WSCALE) ^ before
    with pair(space, family, before, mss=600) as first, pair(space, family, after) as p:
        exchange(first.near, first.far, 200_000)
        exchange(p.near, p.far, 100)
        settle(first.near, first.far, p.near, p.far)
        assert snapshot(first.near)[0] == 0
        fd = first.near.fileno()
        assert lib.roost_testing_disconnect(fd, c_key(first.key)) == 0
        _, ka, rest = snapshot(p.near)
        p.near.close()
        with rebuild(space, p.key, ka, rest) as fresh:
            expected = Info.of(fresh)
            error, ka, rest = snapshot(fresh)
        assert error == 0
        with space.entered():
            assert lib.roost_testing_reuse(fd, 0, c_key(p.key), ka, rest) == 0
        assert first.near.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert Info.of(first.near) == expected
        for size in (1, 5000, 100_000):
            exchange(first.near, p.far, size)
        settle(first.near, p.far)
        assert Info.of(p.far).retransmits == Info.of(first.near).retransmits == 0
        first.far.setblocking(False)
        with pytest.raises(BlockingIOError):  # the first connection's client was not told anything
            first.far.recv(1)
