# SPDX-License-Identifier: Apache-2.0
"""A snapshot that is not to be leaves the socket as it was, in what it means for the listening port as well."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

import pytest

from appliance.lab.namespaces import Namespace
from tests.inner import lib
from tests.unit.test_repair import Pair, exchange, pair, settle, snapshot, space

__all__ = ["space"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="TCP_REPAIR and namespaces need root")


def refused_at_once(p: Pair) -> None:
    """Unread bytes: seen before repair mode is entered, or right after."""
    p.far.sendall(b"unread")
    settle(p.far)
    assert snapshot(p.near)[0] == -errno.EAGAIN


def refused_in_repair_mode(p: Pair) -> None:
    """Its peer has ended, and that was read: nothing is queued, but the state is not ESTABLISHED."""
    p.far.shutdown(socket.SHUT_WR)
    assert p.near.recv(1) == b""
    assert snapshot(p.near)[0] == -errno.ENOTCONN


def taken_and_undone(p: Pair) -> None:
    assert snapshot(p.near)[0] == 0
    lib.roost_testing_undo(p.near.fileno())


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("how", [refused_at_once, refused_in_repair_mode, taken_and_undone])
def test_a_snapshot_that_came_to_nothing_leaves_the_port_bindable(
    space: Namespace,
    how: Callable[[Pair], None],
    family: int,
) -> None:
    """SO_REUSEADDR is what lets a new daemon listen beside the connections of the old one."""
    with pair(space, family) as p:
        p.near.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        exchange(p.near, p.far, 100)
        settle(p.near, p.far)
        how(p)
        assert p.near.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
        local = p.near.getsockname()
        p.listener.close()
        with space.entered():
            again = socket.socket(p.near.family)
        with again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(local)
            again.listen()
