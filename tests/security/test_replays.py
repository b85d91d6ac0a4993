# SPDX-License-Identifier: Apache-2.0
"""What ended a handshake once ends none again, though its cookie lives for two minutes: what a client has said is not
said twice to a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest
from scapy.packet import Raw

from appliance.lab import wait_until
from appliance.wire import Born
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.handmade import LINUX, Handmade, hide
from tests.lab.test_born import PORT, Nursery
from tests.lab.wire import MOD, Wire

BOTH = pytest.mark.parametrize("family", [4, 6])
OPTIONS = pytest.mark.parametrize("options", [LINUX, [("MSS", 1460)]], ids=["timestamps", "bare"])
WORD: Final = b"PAY 100"


class Spoken:
    """A client that was born and said its first word, as somebody on its way has recorded it."""

    def __init__(self, wire: Wire, target: tuple[str, int], options: Any = LINUX) -> None:
        self.client = Handmade(wire, target, options=options)
        self.wire = wire
        self.client.syn()
        self.ack = wire.frame(self.client.ip() / self.client.tcp("A"))
        self.word = wire.frame(self.client.ip() / self.client.tcp("PA") / Raw(WORD))
        self.probe = wire.frame(self.client.ip() / self.client.tcp("A", seq=(self.client.snd_nxt - 1) % MOD))
        wire.send_raw([self.ack, self.word])
        self.client.snd_nxt += len(WORD)

    def recordings(self) -> Iterator[list[bytes]]:
        yield from ([self.ack, self.word], [self.word], [self.ack], [self.probe], [self.probe, self.word])


@pytest.fixture(scope="module")
def box() -> Iterator[EngineLab]:
    with EngineLab(service={"born": Born.ALWAYS}) as box:
        hide(box.lab)
        yield box


def claim_worthless(box: EngineLab, spoken: Spoken) -> None:
    family = spoken.client.family
    born = box.stat("born_ipv4") + box.stat("born_ipv6")
    for frames in spoken.recordings():
        spoken.wire.send_raw(frames)
        spoken.client.all_heard(0.05)  # as long as they may take
        assert box.engine.find(spoken.client.key) is None
    assert box.no_server_is_asked(family)
    assert box.stat("born_ipv4") + box.stat("born_ipv6") == born


def resets(spoken: Spoken) -> None:
    spoken.client.send("R", options=[])


def ends(spoken: Spoken) -> None:
    spoken.client.send("FA")


@BOTH
@OPTIONS
@pytest.mark.parametrize("end", [resets, ends])
def test_what_was_said_is_not_said_again_when_its_connection_has_ended(
    box: EngineLab, family: int, options: Any, end: Callable[[Spoken], None]
) -> None:
    with Wire(box) as wire:
        spoken = Spoken(wire, box.target(family), options)
        with box.accept(family) as server:
            assert receive(server, len(WORD)) == WORD
            end(spoken)
            server.settimeout(5)
            assert server.recv(1) == b"" if end is ends else True
        box.wait(lambda: box.engine.find(spoken.client.key) is None, "it has ended")
        claim_worthless(box, spoken)


@BOTH
@OPTIONS
def test_a_handshake_whose_client_never_spoke_does_not_count_again(box: EngineLab, family: int, options: Any) -> None:
    with Wire(box) as wire:
        client = Handmade(wire, box.target(family), options=options)
        client.syn()
        ack = wire.frame(client.ip() / client.tcp("A"))
        wire.send_raw([ack])
        box.wait(lambda: box.engine.find(client.key), "it is born")
        client.send("R", options=[])
        box.wait(lambda: box.engine.find(client.key) is None, "it has ended")
        wire.send_raw([ack])
        client.all_heard(0.05)
        assert box.engine.find(client.key) is None


@BOTH
@OPTIONS
def test_a_client_that_comes_again_by_the_same_port_is_served(box: EngineLab, family: int, options: Any) -> None:
    """At once it is by a socket, since its new cookie could not be told from the old one. With timestamps it is born
    when their clock has gone on."""
    with Wire(box) as wire:
        for pause_s in (0, 0.05):
            spoken = Spoken(wire, box.target(family), options)
            with box.accept(family) as server:
                assert receive(server, len(WORD)) == WORD
                resets(spoken)
                box.wait(lambda spoken=spoken: box.engine.find(spoken.client.key) is None, "it ends")  # type: ignore[misc]
            time.sleep(pause_s)
            born = box.stat("born_ipv4") + box.stat("born_ipv6")
            again = Handmade(wire, box.target(family), spoken.client.port, spoken.client.isn + 5_000_000, options)
            again.syn()
            again.ack()
            again.say(b"again")
            with box.accept(family) as server:
                assert receive(server, 5) == b"again"
                again.send("R", options=[])
                box.wait(lambda again=again: box.engine.find(again.key) is None, "it ends")  # type: ignore[misc]
            if pause_s:
                assert box.stat("born_ipv4") + box.stat("born_ipv6") - born == (options is LINUX)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_what_was_said_to_a_daemon_that_has_ended_is_not_said_to_the_next(how: str) -> None:
    """Whoever was awake ended with it, and a killed one has not said who that was."""
    with ExitStack() as stack:
        say_it_to_two_daemons(Nursery(stack), stack, how)


def say_it_to_two_daemons(nursery: Nursery, stack: ExitStack, how: str) -> None:
    hide(nursery.lab)
    wire = stack.enter_context(Wire(nursery))
    spoken = Spoken(wire, (nursery.lab.address("box", "wan0", 4), PORT))
    with nursery.accept() as server:
        assert receive(server, len(WORD)) == WORD
        spoken.client.ack()
        if how == "killed":
            nursery.daemon.kill()
            resets(spoken)  # its kernel has said good-bye
            wait_until(lambda: not nursery.sockets(), 5, "no socket is left")
        else:
            resets(spoken)
            wait_until(lambda: nursery.counters()["closed"] == 1, 5, "it ends")
            nursery.daemon.terminate()
    nursery.daemon.start()
    for frames in spoken.recordings():
        wire.send_raw(frames)
        spoken.client.all_heard(0.05)
    counters = nursery.counters()
    assert (counters["born_ipv4"], counters["accepted"], counters["table_ipv4"], counters["awake"]) == (1, 0, 0, 0)
