# SPDX-License-Identifier: Apache-2.0
"""A server that has to do with one client after another, on one connection (`release`; seed figure 6, 606 to 618)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from appliance.lab import Lab
from examples.in_band_frames import DLE, Frame, Recipient, Release, Sleep, encode
from tests.lab.engine_lab import sending
from tests.lab.in_band_lab import ATTACH_PORT, EVERYTHING, OK, REFUSED, End, InBandLab, Session

SERVICES: Final = {
    "meters": {"clients": EVERYTHING, "servers": [*EVERYTHING, "release"]},
    "strict": {"servers": EVERYTHING},
}


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[InBandLab]:
    with InBandLab(nat_free_lab, SERVICES, attach={"released_for": "2s"}) as box:
        yield box


@contextmanager
def asking(box: InBandLab) -> Iterator[End]:
    """A server, connected to the proxy."""
    with box.lab.enter("lan"):
        sock = socket.create_connection((box.lab.address("box", "lan0"), ATTACH_PORT), 5)
    with sock:
        sock.settimeout(20)
        yield End(sock, Recipient.SERVER)


def wants(end: End, session: Session) -> None:
    """The server asks for a client, and gets it."""
    end.sock.sendall(f"CONNECT {session.address} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    end.expect(b"HTTP/1.1 200 Connection established\r\n\r\n")


def quiet(box: InBandLab, service: str, state: str = "STANDBY") -> Session:
    """A client without a server."""
    session = box.connect(service)
    box.daemon.act(session.address, state.lower())
    session.wait_state(state)
    return session


def ends_by_reset(sock: socket.socket) -> bool:
    """Whatever comes before."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        return True
    return False


def test_figure_6_a_server_has_one_client_after_another_on_one_connection(box: InBandLab) -> None:
    clients = [quiet(box, "meters", state) for state in ("STANDBY", "IDLE", "SLEEP")]
    with asking(box) as server:
        for turn in range(12):
            session = clients[turn % 3]
            wants(server, session)
            server.sock.sendall(b"%d?" % turn)
            session.client.expect(b"%d?" % turn)
            session.client.sock.sendall(b"%d!" % turn)
            server.expect(b"%d!" % turn)
            assert server.ask(Release()) == OK
            session.wait_state("STANDBY")
            if turn % 2:
                box.daemon.act(session.address, "sleep")
    for session in clients:
        rows = [row for row in box.daemon.get("/v1/attaches") if row["client"] == session.address]
        assert [row["error"] for row in rows] == [None] * 4, "each time is in the record"
    assert box.daemon.status()["attach_counts"]["released"] == 12


def test_all_that_was_said_before_is_through_and_nothing_of_it_is_the_next_clients(box: InBandLab) -> None:
    first, second = quiet(box, "meters"), quiet(box, "meters")
    down, up = (os.urandom(3_000_000) + DLE for _ in range(2))  # which a frame may follow
    with asking(box) as server:
        wants(server, first)
        with sending(first.client.sock, up):
            server.expect(up)
        with sending(server.sock, down + encode(Frame(Release(), number=5, answer=True))):
            first.client.expect(down)
        answer = server.frame()
        assert (answer.body, answer.number) == (OK, 5)
        first.client.sock.sendall(b"a word behind it")
        wants(server, second)
        server.sock.sendall(b"and you?")
        second.client.expect(b"and you?")
        second.client.sock.sendall(b"here")
        server.expect(b"here")
        first.accept().expect(b"a word behind it")
        assert server.ask(Release()) == OK


def test_a_server_that_does_not_wait_for_the_answer_is_reset_and_its_words_reach_no_client(box: InBandLab) -> None:
    first, second = quiet(box, "meters"), quiet(box, "meters")
    request = f"CONNECT {second.address} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with asking(box) as server:
        wants(server, first)
        server.sock.sendall(b"bye" + encode(Frame(Release(), answer=True)) + request)
        first.client.expect(b"bye")
        first.wait_state("STANDBY")
        assert ends_by_reset(server.sock)
    first.client.sock.sendall(b"still here?")
    first.accept().expect(b"still here?")
    assert first.client.payload == b""


def test_a_server_that_asks_for_nobody_is_closed_in_time(box: InBandLab) -> None:
    session = quiet(box, "meters")
    with asking(box) as server:
        wants(server, session)
        assert server.ask(Release()) == OK
        began = time.monotonic()
        assert server.sock.recv(1) == b""
        assert 1.5 < time.monotonic() - began < 10


def test_who_may_not_or_cannot_release_is_refused(box: InBandLab) -> None:
    session = box.connect("meters")
    assert session.server.ask(Release()) == REFUSED, "its client has come to it"
    assert session.client.ask(Release()) == REFUSED
    strict = quiet(box, "strict")
    with asking(box) as server:
        wants(server, strict)
        assert server.ask(Release()) == REFUSED, "the policy does not say so"
        server.sock.sendall(b"so we go on")
        strict.client.expect(b"so we go on")


def test_the_daemon_that_ends_takes_them_along(box: InBandLab) -> None:
    session = quiet(box, "meters")
    with asking(box) as server:
        wants(server, session)
        assert server.ask(Release()) == OK
        box.daemon.restart()
        assert server.sock.recv(1) == b""
    with asking(box) as server:
        wants(server, session)
        server.sock.sendall(b"again")
        session.client.expect(b"again")
        session.client.tell(Sleep())
        session.wait_state("SLEEP")
