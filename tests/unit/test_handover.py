# SPDX-License-Identifier: Apache-2.0
"""What the service manager keeps between two daemons (control/daemon/handover.py)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from appliance.engine import EngineError
from appliance.engine.bridge import Bridge
from control.daemon import handover
from control.daemon.handover import NAME, HandOver
from tests.unit.test_bridge import Ends, facts, put, receive

FIRST_FD = 700


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Manager:
    """Where a daemon says what is to be kept, in which order."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self.path = str(path)
        self.socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self.socket.bind(self.path)
        self.socket.setblocking(False)

    def hear(self) -> list[tuple[str, list[int]]]:
        told: list[tuple[str, list[int]]] = []
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 8)
            except BlockingIOError:
                return told
            assert f"FDNAME={NAME}" in data.decode()
            told.append((data.decode().partition("=")[0], list(fds)))


def left_by_a_daemon(stack: ExitStack) -> tuple[Ends, int]:
    """A connection, and the descriptor by which it was left."""
    ends = Ends(stack)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        put(ours, facts(), [ends.near_client.fileno(), ends.near_server.fileno()])
    ends.near_client.close()
    ends.near_server.close()
    return ends, theirs.detach()


def begun(monkeypatch: pytest.MonkeyPatch, manager: Manager, fds: Sequence[int]) -> HandOver:
    """As the next daemon does it, with these descriptors of the manager's."""
    monkeypatch.setattr(handover, "FIRST_FD", FIRST_FD)
    for place, fd in enumerate(fds, FIRST_FD):
        os.dup2(fd, place)
        os.close(fd)
    told = {"LISTEN_FDS": str(len(fds)), "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": ":".join([NAME] * len(fds))}
    return HandOver({"NOTIFY_SOCKET": manager.path, **told})


def test_a_daemon_that_does_not_start_leaves_one_queue_with_all_of_it(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = Manager(stack, tmp_path / "notify")
    left = [left_by_a_daemon(stack) for _ in range(2)]
    fds = [fd for _, fd in left]
    for _ in range(3):
        one = begun(monkeypatch, manager, fds)
        for ends, _ in left:
            ends.client.sendall(b"hello")
            assert receive(ends.server, 5) == b"hello"
        one.leave()
        (removed, _), (stored, fds) = manager.hear()
        assert (removed, stored, len(fds)) == ("FDSTOREREMOVE", "FDSTORE", 1)
    bridge = Bridge()
    assert bridge.receive(fds[0]) == 0
    assert bridge.count() == 2
    os.close(fds[0])
    bridge.close()


def test_what_could_be_handed_over_is_though_the_rest_cannot(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = Manager(stack, tmp_path / "notify")
    ends, fd = left_by_a_daemon(stack)
    one = begun(monkeypatch, manager, [fd])

    def fail(bridge: Bridge, to: int) -> None:
        with socket.socket(fileno=os.dup(to)) as queue:
            put(queue, b"what went")
        raise EngineError("no memory", 12)

    monkeypatch.setattr(Bridge, "send", fail)
    one.leave()
    assert ends.client.recv(1) == b"", "it ends"
    stored, fds = manager.hear()[-1]
    assert stored == "FDSTORE"
    with socket.socket(fileno=fds[0]) as kept:
        assert kept.recv(100) == b"what went"


def test_a_daemon_with_nothing_to_leave_keeps_nothing(stack: ExitStack, tmp_path: Path) -> None:
    manager = Manager(stack, tmp_path / "notify")
    HandOver({"NOTIFY_SOCKET": manager.path}).leave()
    assert manager.hear() == []
