# SPDX-License-Identifier: Apache-2.0
"""A client's words are acknowledged at once, whether or not its server answers."""

from __future__ import annotations

import socket
import time

from appliance.lab import wait_until
from tests.lab.engine_lab import EngineLab, receive, tcp_info

SOON_S = 0.008  # the kernel delays an acknowledgement by 40 ms


def acknowledged_s(client: socket.socket) -> float:
    """How long the appliance takes to acknowledge a word that its server does not answer."""
    began = time.monotonic()
    client.send(b"S")
    wait_until(lambda: not tcp_info(client).unacked, 5, "it is acknowledged", every_s=0.001)
    return time.monotonic() - began


def greeted_s(box: EngineLab) -> float:
    """How long two words of a client take that its server has greeted. Nagle's algorithm lets the second one wait for
    the acknowledgement of the first."""
    client = box.dial(6)
    server = box.accept(6)
    server.sendall(b"welcome")
    assert receive(client, 7) == b"welcome"
    began = time.monotonic()
    client.send(b"one")
    client.send(b"two")
    assert receive(server, 6) == b"onetwo"
    return time.monotonic() - began


def test_a_word_without_an_answer_is_acknowledged_at_once(box: EngineLab) -> None:
    assert min(acknowledged_s(box.dial()) for _ in range(5)) < SOON_S


def test_a_word_after_the_servers_greeting_is_acknowledged_at_once(box: EngineLab) -> None:
    assert min(greeted_s(box) for _ in range(5)) < SOON_S
