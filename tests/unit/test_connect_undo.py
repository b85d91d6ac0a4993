# SPDX-License-Identifier: Apache-2.0
"""A connection to a server that is taken back while it is being made: whatever the moment, nothing that the server says
on it is reset."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.inner import lib


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connecting(stack: ExitStack, to: tuple[str, int]) -> socket.socket:
    client = stack.enter_context(socket.socket())
    client.setblocking(False)
    client.connect_ex(to)
    return client


def test_one_whose_syn_is_not_answered_is_taken_back(stack: ExitStack) -> None:
    full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    stack.enter_context(socket.create_connection(full.getsockname()[:2]))
    client = connecting(stack, full.getsockname()[:2])
    with pytest.raises(OSError, match="not connected"):
        client.getpeername()
    assert lib.roost_testing_connect_undo(client.fileno())
    full.settimeout(5)
    stack.enter_context(full.accept()[0])
    full.settimeout(0.2)
    with pytest.raises(TimeoutError):
        full.accept()


def test_of_one_that_is_made_the_server_sees_the_end_and_what_it_says_arrives(stack: ExitStack) -> None:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    client = connecting(stack, listener.getsockname()[:2])
    assert not lib.roost_testing_connect_undo(client.fileno())
    server = stack.enter_context(listener.accept()[0])
    server.settimeout(5)
    assert server.recv(1) == b""
    server.sendall(b"welcome")
    client.settimeout(5)
    assert client.recv(7) == b"welcome"
