# SPDX-License-Identifier: Apache-2.0
"""How a server link ends, and that no byte which was acknowledged to an end is lost with it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from appliance.lab import Lab, wait_until
from appliance.wire import Op
from control.core.states import Cause, State
from tests.lab.engine_lab import EngineLab, receive, reset, stopped, tcp_info
from tests.lab.test_relay import send_and_close

BOTH = pytest.mark.parametrize("family", [4, 6])
PORT = 8000


@pytest.mark.parametrize("end", [reset, socket.socket.close], ids=["RST", "FIN"])
def test_what_a_client_says_in_the_same_turn_in_which_its_server_ends_reaches_the_next_server(
    nat_free_lab: Lab, end: Callable[[socket.socket], None]
) -> None:
    """The old server never acknowledged it, so it is still ours to deliver."""
    lab = nat_free_lab
    daemon = lab.daemon(lab.config(PORT, policy={"active_quiet": "never"}))
    with ExitStack() as stack:
        stack.callback(daemon.close)
        for family in (4, 6):
            domain = socket.AF_INET if family == 4 else socket.AF_INET6
            with lab.enter("lan"):
                listener = stack.enter_context(
                    socket.create_server((lab.address("lan", "eth0", family), PORT), family=domain))  # fmt: skip
            with lab.enter("wan"):
                client = stack.enter_context(
                    socket.create_connection((lab.address("box", "wan0", family), PORT), 5))  # fmt: skip
            listener.settimeout(5)
            server = stack.enter_context(listener.accept()[0])
            client.sendall(b"question")
            assert receive(server, 8) == b"question"
            server.sendall(b"answer")
            assert receive(client, 6) == b"answer"
            with stopped(daemon):
                end(server)
                time.sleep(0.05)  # nothing tells when a RST has arrived
                client.sendall(b"another question")
                wait_until(lambda client=client: not tcp_info(client).unacked, 5, "the box acknowledges")  # type: ignore[misc]
            following = stack.enter_context(listener.accept()[0])
            following.settimeout(5)
            assert receive(following, 16) == b"another question"
            following.sendall(b"another answer")
            assert receive(client, 14) == b"another answer"


@BOTH
def test_a_client_whose_request_died_unread_with_its_server_is_reset(box: EngineLab, family: int) -> None:
    """The server's kernel acknowledged it, so it cannot be sent again: the client learns it, never silence."""
    pair = box.connect(family)
    pair.client.sendall(b"request")
    box.wait(lambda: box.stat("bytes_from_clients") >= 27, "the request is passed on")  # the greeting's 20 and this
    time.sleep(0.1)  # and acknowledged by the server's kernel
    pair.server.close()  # over unread bytes: RST
    with pytest.raises(ConnectionResetError):
        pair.client.recv(1)
    box.wait_state(pair, State.CLOSED)
    assert box.transitions(pair)[-1] == (State.ACTIVE, State.CLOSED, Cause.SERVER_CLOSE)


@BOTH
def test_a_link_ends_when_a_slow_server_has_read_what_its_client_said(empty_lab: Lab, family: int) -> None:
    """Its window is closed for longer than an unlink waits for a silent one."""
    with EngineLab(empty_lab) as box:
        box.set_server_buffer(family, 1 << 12)
        pair = box.connect(family)
        said = os.urandom(12_000)
        pair.client.sendall(said)
        box.wait(lambda: box.stat("bytes_from_clients") >= 20 + len(said), "it is passed on")
        box.submit(Op.STANDBY, pair)
        time.sleep(1.6)
        assert box.state(pair) is State.ACTIVE, "the link is not given up while the server has not taken all"
        assert receive(pair.server, len(said)) == said
        assert pair.server.recv(1) == b""
        pair.server.close()
        box.wait_state(pair, State.STANDBY)
        pair.client.sendall(b"next")
        assert receive(box.accept(family), 4) == b"next"


@BOTH
def test_a_long_answer_to_our_fin_reaches_a_slow_client_whole_and_nothing_else_gets_between(
    box: EngineLab, family: int
) -> None:
    """The client reads nothing for longer than an unlink waits for a silent server."""
    pair = box.connect(family, before=lambda s: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16))
    answer = os.urandom(4_000_000)
    box.submit(Op.STANDBY, pair)
    assert pair.server.recv(1) == b""
    sender = threading.Thread(target=send_and_close, args=(pair.server, answer))
    sender.start()
    time.sleep(1.6)
    assert box.state(pair) is State.ACTIVE, "the link is not given up while the client has not taken the answer"
    pair.client.sendall(b"next")
    assert box.no_server_is_asked(family, 0.05), "not before the first answer is through"
    assert receive(pair.client, len(answer)) == answer
    sender.join()
    following = box.accept(family)
    assert receive(following, 4) == b"next"
    following.sendall(b"second answer")
    assert receive(pair.client, 13) == b"second answer"
    box.wait(lambda: len(box.transitions(pair)) >= 3, "the second link is told")
    assert [step[:2] for step in box.transitions(pair)[1:]] == [
        (State.ACTIVE, State.STANDBY), (State.STANDBY, State.ACTIVE)]  # fmt: skip


@BOTH
@pytest.mark.parametrize("attached", [False, True])
def test_an_urgent_byte_keeps_its_place_among_the_others_both_ways(box: EngineLab, family: int, attached: bool) -> None:
    """RFC 6093: urgent data belong in line. (For the wake path see tests/security/test_forged_segments.py.)"""
    pair = box.connect(family)
    if attached:
        box.to_standby(pair)
        pair.server = box.attach(pair)
        box.wait_state(pair, State.ACTIVE)
    for source, target in ((pair.client, pair.server), (pair.server, pair.client)):
        source.sendall(b"abc")
        assert receive(target, 3) == b"abc"
        source.send(b"U", socket.MSG_OOB)
        time.sleep(0.05)
        source.sendall(b"def")
        assert receive(target, 4) == b"Udef"
