# SPDX-License-Identifier: Apache-2.0
"""Spare sockets: which key one fits, and how long it is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.wire import Key
from tests.inner import ffi, lib
from tests.unit.records import c_key

HERE, THERE = ("198.18.0.1", 80), ("198.18.0.1", 443)
NOBODY = (-1, False)
MOST = 1000


def key(local: tuple[str, int], number: int = 1) -> Key:
    return Key.of("2001:db8::9" if ":" in local[0] else "192.0.2.9", number, *local)


@pytest.fixture
def spares() -> Iterator[Any]:
    handle = lib.roost_testing_spares()
    yield handle
    lib.roost_testing_spares_free(handle)


def put(spares: Any, of: Key, bound: bool, fd: int) -> bool:
    return bool(lib.roost_testing_spares_put(spares, c_key(of), bound, fd))


def take(spares: Any, of: Key) -> tuple[int, bool]:
    bound = ffi.new("int *")
    fd = lib.roost_testing_spares_take(spares, c_key(of), bound)
    return fd, bool(bound[0]) if fd >= 0 else False


def test_a_bound_one_serves_its_own_address_and_port_alone(spares: Any) -> None:
    put(spares, key(HERE), True, 7)
    assert take(spares, key(THERE)) == NOBODY
    assert take(spares, key(("198.18.0.2", 80))) == NOBODY
    assert take(spares, key(HERE, number=2)) == (7, True)
    assert take(spares, key(HERE)) == NOBODY


def test_one_that_is_not_bound_serves_every_address_of_its_family(spares: Any) -> None:
    put(spares, key(HERE), False, 7)
    assert take(spares, key(("2001:db8::1", 80))) == NOBODY
    assert take(spares, key(THERE)) == (7, False)
    put(spares, key(("2001:db8::1", 80)), False, 8)
    assert take(spares, key(HERE)) == NOBODY
    assert take(spares, key(("2001:db8::2", 443))) == (8, False)


def test_the_bound_one_is_taken_first_and_of_several_the_latest(spares: Any) -> None:
    put(spares, key(HERE), True, 7)
    put(spares, key(HERE), False, 8)
    put(spares, key(HERE), True, 9)
    assert [take(spares, key(HERE)) for _ in range(4)] == [(9, True), (7, True), (8, False), NOBODY]


def test_there_is_room_for_so_many_and_again_when_some_were_taken(spares: Any) -> None:
    room = 0
    while put(spares, key(("198.18.0.1", 1 + room % 5000)), True, room):
        room += 1
    assert room == 2048
    assert take(spares, key(("198.18.0.1", 100))) == (99, True)
    assert put(spares, key(HERE), True, 5000)
    assert not put(spares, key(HERE), True, 5001)


def test_what_nobody_needs_is_closed_little_by_little_and_what_is_used_is_kept(spares: Any) -> None:
    pipes = [os.pipe() for _ in range(20)]
    for fd, _ in pipes:
        put(spares, key(HERE), True, fd)
    assert lib.roost_testing_spares_trim(spares, MOST) == 20, "they were put there since the last time"
    assert lib.roost_testing_spares_trim(spares, MOST) == 19
    taken = [take(spares, key(HERE))[0] for _ in range(19)]
    for fd in taken:
        put(spares, key(HERE), True, fd)
    assert lib.roost_testing_spares_trim(spares, MOST) == 19, "all were in use"
    for left in range(18, -1, -1):
        assert lib.roost_testing_spares_trim(spares, MOST) == left
    for fd, other in pipes:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        os.close(other)


def test_more_than_there_may_be_are_closed_at_once(spares: Any) -> None:
    pipes = [os.pipe() for _ in range(20)]
    for fd, _ in pipes:
        put(spares, key(HERE), True, fd)
    assert lib.roost_testing_spares_trim(spares, 5) == 5
    assert lib.roost_testing_spares_trim(spares, 0) == 0
    for _, other in pipes:
        os.close(other)
