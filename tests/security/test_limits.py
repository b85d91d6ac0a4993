# SPDX-License-Identifier: Apache-2.0
"""What one source does beyond its limits is refused, and no other source notices (ebpf/shared/limit.h)."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import pytest
from scapy.layers.inet import TCP
from scapy.packet import Raw

from appliance.lab import Lab, wait_until
from appliance.lab.lab import endpoint
from appliance.wire import Born, Bounds, Limited, RuleEntry, pack_address
from control.core.states import State
from tests.lab.bare_sleep import NO_KEEPALIVES, BareSleep
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.handmade import LINUX, Handmade, hide
from tests.lab.slow_store import SlowStore
from tests.lab.wire import Sleeper, Wire

BOTH = pytest.mark.parametrize("family", [4, 6])
NONE: Final = (0, 0)
FOUR: Final = (500_000, 0)
"""Of an address: four at once with a burst of two seconds, and two a second."""
BOUNDS: Final = Bounds(2_000_000, (32, 24), (128, 112), (NONE, NONE))
"""All clients of the lab are of one /64."""
COUNTED: Final = replace(BOUNDS, connections=True)
ANOTHER: Final = 9
"""The number of a service."""
OTHER: Final = {4: "10.127.9.9", 6: "fd00:64::dead:99"}


@contextmanager
def limited(what: Limited, **service: Any) -> Iterator[EngineLab]:
    limits = tuple(FOUR if kind == what else NONE for kind in (Limited.BIRTHS, Limited.HANDSHAKES, Limited.WAKES))
    with EngineLab(service={"limits": limits, **service}) as box:
        box.engine.set_limits(BOUNDS)
        yield box


@pytest.fixture(scope="module")
def births() -> Iterator[tuple[EngineLab, Wire]]:
    with limited(Limited.BIRTHS, born=Born.ALWAYS) as box, Wire(box) as wire:
        hide(box.lab)
        yield box, wire


def answered(wire: Wire, box: EngineLab, family: int, options: Any, address: str | None) -> Handmade | None:
    """A client to whose SYN the box has answered; None: it has not."""
    client = Handmade(wire, box.target(family), options=options)
    client.address = address or client.address
    client.send("S", seq=client.isn, options=client.options)
    try:
        client.take(client.hear(timeout_s=0.1))
    except TimeoutError:
        return None
    return client


@BOTH
@pytest.mark.parametrize("options", [LINUX, LINUX[:1]], ids=["short way", "long way"])
def test_a_source_beyond_its_births_is_not_answered_and_others_are_born(
    births: tuple[EngineLab, Wire], family: int, options: Any
) -> None:
    box, wire = births
    time.sleep(2)  # its burst is whole again
    before, born = box.stat("births_limited"), 0

    def is_born(address: str | None = None) -> bool:
        if (client := answered(wire, box, family, options, address)) is None:
            return False
        client.ack()
        answers = client.all_heard(0.05)
        found = box.engine.find(client.key) is not None
        assert [str(answer[TCP].flags) for answer in answers] == ([] if found else ["R"])
        return found

    began = time.monotonic()
    while (limited := box.stat("births_limited")) < before + 2:
        one = is_born()
        born += one
        assert born <= 4 + 3 * (time.monotonic() - began)
        assert not (one and box.stat("births_limited") > limited), "its SYN is not answered any more"
    assert born >= 4
    assert is_born(OTHER[family]), "another is"
    assert box.engine.last_refused(Limited.BIRTHS) in (Handmade(wire, box.target(family)).address, "fd00:64::/64")
    time.sleep(0.6)
    assert is_born(), "at its rate it goes on"


@contextmanager
def with_three_each(**service: Any) -> Iterator[EngineLab]:
    """Of an address."""
    with EngineLab(service={"connections": (3, 0), **service}) as box:
        box.engine.set_limits(COUNTED)
        yield box


@BOTH
@pytest.mark.parametrize("options", [LINUX, LINUX[:1]], ids=["short way", "long way"])
def test_a_source_has_no_more_connections_born_than_it_may(family: int, options: Any) -> None:
    with with_three_each(born=Born.ALWAYS) as box, Wire(box) as wire:
        hide(box.lab)

        def born(address: str = "") -> Handmade | None:
            client = Handmade(wire, box.target(family), options=options)
            client.address = address or client.address
            with suppress(TimeoutError):
                client.send("S", seq=client.isn, options=client.options)
                client.take(client.hear(timeout_s=0.1))
                client.ack()
                client.ack()  # the same client
                client.all_heard(0.05)
            return client if box.engine.find(client.key) else None

        there = [born() for _ in range(6)]
        assert [client is not None for client in there] == [True] * 3 + [False] * 3
        assert all(born(OTHER[family]) for _ in range(3)), "another may have as many"
        assert box.stat("connections_limited") >= 3
        assert box.engine.last_refused(Limited.CONNECTIONS) in (
            Handmade(wire, box.target(family)).address,
            "fd00:64::/64",
        )
        assert box.stat("born") == 6
        gone = there[0]
        assert gone
        gone.send("R")
        box.wait(lambda: not box.engine.find(gone.key), "it has ended")
        assert [born() is not None for _ in range(2)] == [True, False]


@BOTH
def test_a_source_has_no_more_connections_than_it_may_in_whatever_state_they_are(family: int) -> None:
    with with_three_each() as box:
        here, there = box.lab.client_addresses(family, 3)[1:]

        def are_reset(count: int) -> bool:
            before = box.stat("connections_limited")
            for _ in range(count):
                with pytest.raises(ConnectionResetError):
                    box.dial(family, source=here).recv(1)
            return box.stat("connections_limited") == before + count

        pairs = [box.connect(family, source=here) for _ in range(3)]
        assert are_reset(2)
        for _ in range(3):  # they are counted up and down on their way
            for pair, state in zip(pairs, (State.STANDBY, State.IDLE, State.SLEEP), strict=True):
                box.to(pair, state)
            assert are_reset(2)
            for pair in pairs:
                box.wake_and_answer(pair)
        others = [box.connect(family, source=there) for _ in range(3)]
        box.engine.set_limits(BOUNDS)  # none are counted any more, nor what ends meanwhile
        box.to(others[0], State.SLEEP)
        pairs.append(box.connect(family, source=here))
        for pair in pairs[:2]:
            box.close(pair)
        box.engine.set_limits(COUNTED)
        box.to(pairs[2], State.IDLE)
        pairs.append(box.connect(family, source=here))
        assert are_reset(2)
        box.engine.set_limits(replace(COUNTED, ipv4_bits=(16, 8), ipv6_bits=(48, 32)))  # all of them are one source now
        for pair in (*pairs[2:], others[0]):
            assert are_reset(1)
            box.close(pair)
        box.connect(family, source=here)
        assert are_reset(1)
        box.exchange_engine()
        box.engine.set_limits(replace(COUNTED, ipv4_bits=(16, 8), ipv6_bits=(48, 32)))  # of what is found there
        assert are_reset(1)


@BOTH
def test_one_that_is_on_its_way_out_of_sleep_is_one(family: int) -> None:
    """It has a slot of the table, and is awake as well, while its record is waited for."""
    with SlowStore(service={"connections": (3, 0)}) as box:
        box.engine.set_limits(COUNTED)
        here = box.lab.client_addresses(family, 3)[1]
        pairs = [box.connect(family, source=here) for _ in range(2)]
        for pair in pairs:
            box.to_sleep(pair)
            pair.client.sendall(bytes(20))
        for pair in pairs:
            box.wait_asked(pair)
        pairs.append(box.connect(family, source=here))
        with pytest.raises(ConnectionResetError):
            box.dial(family, source=here).recv(1)
        for pair in pairs[:2]:
            box.answer(pair)
            pair.server = box.accept(family)
            assert receive(pair.server, 20) == bytes(20)
        with pytest.raises(ConnectionResetError):
            box.dial(family, source=here).recv(1)
        box.close(pairs[0])
        box.connect(family, source=here)


@BOTH
@pytest.mark.parametrize("options", [LINUX, LINUX[:1]], ids=["short way", "long way"])
@pytest.mark.parametrize("place", ["at an address", "anywhere", "where another was"])
def test_a_source_beyond_its_handshakes_is_reset_and_then_not_answered_and_others_are_served(
    family: int, options: Any, place: str
) -> None:
    with limited(Limited.HANDSHAKES) as box:
        if place == "where another was":
            assert box.engine.close_service(box.spec(family).index)
            with box.lab.enter("box"):
                box.engine.add_service(box.spec(family, index=ANOTHER))
            box.engine.update_service(box.spec(family))
        if place == "anywhere":
            box.stop()
            box.start(specs=[box.spec(family, listen="::" if family == 6 else "0.0.0.0")])
            box.engine.set_limits(BOUNDS)
        with Wire(box) as wire:
            hide(box.lab)

            def what_comes(address: str | None = None) -> str:
                """Of a client: the flags of each answer, or of none."""
                if (client := answered(wire, box, family, options, address)) is None:
                    return ""
                client.ack()
                return "".join(["SA ", *(f"{answer[TCP].flags} " for answer in client.all_heard(0.1))])

            began = time.monotonic()
            heard = [what_comes() for _ in range(10)]
            served = heard.index("SA RA ")
            assert heard[:served] == ["SA "] * served
            assert served >= 4
            assert "" in heard[served:], "its SYNs are not answered once it is known to be beyond"
            assert heard.count("SA ") <= 4 + 2 * (time.monotonic() - began) + 1
            assert box.stat("handshakes_limited") == 10 - heard.count("SA ")
            assert box.engine.last_refused(Limited.HANDSHAKES) in (
                Handmade(wire, box.target(family)).address,
                "fd00:64::/64",
            )
            assert [what_comes(OTHER[family]) for _ in range(4)] == ["SA "] * 4
            time.sleep(0.6)
            assert what_comes() == "SA ", "at its rate it goes on"


@BOTH
@pytest.mark.parametrize("state", [State.IDLE, State.SLEEP])
def test_a_source_beyond_its_wakes_waits_and_no_connection_of_it_ends(family: int, state: State) -> None:
    with limited(Limited.WAKES) as box:
        here, there = box.lab.client_addresses(family, 3)[1:]
        pairs = [box.connect(family, source=here) for _ in range(8)]
        other = box.connect(family, source=there)
        for pair in (*pairs, other):
            box.to(pair, state)
        for pair in pairs:
            pair.client.sendall(b"ask")
        box.wait(lambda: box.stat("wakes_limited") > 0, "some are refused")
        other.client.sendall(b"ask")
        box.wait(lambda: box.state(other) == State.ACTIVE, "another wakes at once", 0.2)
        for _ in (*pairs, other):
            box.accept(family).sendall(b"answer")
        assert [pair.client.recv(6) for pair in (*pairs, other)] == [b"answer"] * 9


@BOTH
def test_segments_in_the_name_of_a_source_are_looked_up_no_more_often_than_it_may_wake(
    nat_free_lab: Lab, family: int
) -> None:
    """They may be forged: only the row says. Those of others are looked up meanwhile, and it wakes as it may."""
    service = {**NO_KEEPALIVES, "limits": (NONE, NONE, FOUR)}
    with BareSleep(nat_free_lab, service=service, filter_slots=1000) as box, Wire(box) as wire:
        box.engine.set_limits(BOUNDS)
        here, there = box.lab.client_addresses(family, 3)[1:]
        pairs = [box.let_sleep(family, source=here) for _ in range(20)]
        other = box.let_sleep(family, source=there)
        began = time.monotonic()
        for pair in pairs:
            sleeper = Sleeper(pair, box.rows[pair.key.pack()])
            wire.send(sleeper.ip() / sleeper.tcp(ack=5, flags="PA") / Raw(b"evil"))
        box.wait(lambda: box.stat("perhaps_refused") > 0, "the first ones are looked up")
        assert box.stat("perhaps_asked") <= 2 + 2 * (time.monotonic() - began) + 1
        assert box.stat("wakes_limited") >= 15
        box.wake_and_answer(other)
        for pair in pairs[:3]:
            box.wake_and_answer(pair)


@BOTH
def test_others_wake_before_a_crowd_that_is_within_its_limits(family: int) -> None:
    """All of it spoke first, while there was no engine."""
    with EngineLab(service={"limits": (NONE, NONE, (20_000, 0))}) as box:
        here, there = box.lab.client_addresses(family, 3)[1:]
        pairs = [box.connect(family, source=here) for _ in range(60)]
        pairs.append(box.connect(family, source=there))
        for pair in pairs:
            box.to(pair, State.IDLE)
        box.stop()
        for number, pair in enumerate(pairs):
            pair.client.sendall(b"%02d" % number)
        box.make()
        box.engine.set_limits(BOUNDS)
        box.begin()
        order = [int(box.accept(family).recv(2)) for _ in pairs]
        assert sorted(order) == list(range(61))
        assert order.index(60) < 40


@BOTH
def test_forged_syns_take_nothing_from_the_source_that_they_name(births: tuple[EngineLab, Wire], family: int) -> None:
    box, wire = births
    time.sleep(2)  # its burst is whole again
    forged = [Handmade(wire, box.target(family)) for _ in range(1000)]
    for one in forged:
        one.address = OTHER[family]
        one.send("S", seq=one.isn, options=one.options)
    for _ in range(4):
        client = Handmade(wire, box.target(family))
        client.address = OTHER[family]
        client.syn()
        client.ack()
        box.wait(lambda client=client: box.engine.find(client.key), "it is born", 0.5)  # type: ignore[misc]


@BOTH
def test_those_that_fill_the_table_and_say_nothing_make_room_for_others(family: int) -> None:
    """One source has filled it; clients of another network come, are served, and fall asleep, all of them."""
    room: dict[str, Any] = {"ipv4_slots": 200, "ipv6_slots": 200}
    quiet = {"standby_quiet_ms": 200, "idle_quiet_ms": 200}
    with EngineLab(service={"born": Born.ALWAYS, **quiet}, **room) as box, Wire(box) as wire:
        hide(box.lab)
        box.engine.set_limits(BOUNDS)

        def client_count() -> int:
            return box.stat("born") + box.stat("born_refused") + box.stat("accepted")

        while not box.stat("accepted"):  # there is room for births
            client = Handmade(wire, box.target(family))
            client.send("S", seq=client.isn, options=client.options)
            client.take(client.hear())
            here = client_count() + 1
            client.ack()
            box.wait(lambda here=here: client_count() == here, "it is born, refused or accepted")  # type: ignore[misc]
        crowd = box.stat("born")
        assert crowd > 180
        box.accept(family).close()
        others = [box.dial(family) for _ in range(40)]

        def are_served() -> None:
            for other in others:
                other.sendall(b"question")
            for _ in others:
                server = box.accept(family)
                while not (word := server.recv(8)):  # its client slept before it asked: on a slow machine
                    server = box.accept(family)
                assert word == b"question"
                server.sendall(b"answer")
            assert [other.recv(6) for other in others] == [b"answer"] * len(others)
            box.wait(lambda: box.stat("awake") <= 1, "all of them sleep")  # but for the one that found no room

        are_served()
        expired = box.stat("born_expired")
        assert 20 <= expired <= 41
        assert box.stat("born") == crowd - expired
        are_served()


@BOTH
@pytest.mark.parametrize("born", [Born.NEVER, Born.ALWAYS])
def test_clients_of_a_network_that_is_refused_are_reset_and_those_that_are_there_stay(family: int, born: Born) -> None:
    with EngineLab(service={"born": born}) as box, Wire(box) as wire:
        hide(box.lab)

        def connected(address: str = "") -> Handmade:
            client = Handmade(wire, box.target(family))
            client.address = address or client.address
            client.syn()
            client.ack()
            return client

        def server_of(client: Handmade) -> socket.socket | None:
            client.say(b"word")
            if not box.no_server_is_asked(family, 0.3):
                server = box.accept(family)
                assert server.recv(4) == b"word"
                return server
            assert "R" in {str(answer[TCP].flags)[0] for answer in client.all_heard()}
            return None

        there = connected()
        server = server_of(there)
        assert server
        spec = box.spec(family)
        network = pack_address("10.127.0.0" if family == 4 else "fd00:64::dead:0")
        theirs, everybody = RuleEntry(spec.index, network, 112, 0), RuleEntry(spec.index, bytes(16), 0, 0)
        one = RuleEntry(spec.index, pack_address(OTHER[family]), 128, 1)
        for entries in ([theirs, one], [everybody, one]):
            box.engine.set_rules(entries, [replace(spec, refuses=True), spec])
            denied = box.stat("clients_denied")
            assert not server_of(connected())
            assert box.stat("clients_denied") > denied
            assert server_of(connected(OTHER[family])), "the longer network decides"
        there.say(b"more")
        assert server.recv(4) == b"more"


def test_the_daemon_counts_what_is_beyond_its_limits_and_says_whose_it_was() -> None:
    """Of attaches and agents, too; a reload gives it other limits."""
    with Lab(clients=10) as lab:
        lab.server(8000)
        config = lab.config()
        listen = endpoint(lab.address("box", "wan0"), 7100)
        config["service"].append({"name": "agents", "listen": listen, "kind": "agents"})
        config["agent"] = [{"name": "site", "token": "0" * 64, "clients": ["*"]}]
        few = {"burst": 2, "attaches": [2, 0], "agents": [2, 0]}
        daemon = lab.daemon({**config, "limits": few})

        def ask(space: str, ifname: str, port: int, word: bytes) -> bytes:
            with suppress(ConnectionResetError):  # also before connect() has returned
                with lab.enter(space):
                    sock = socket.create_connection((lab.address("box", ifname), port), 5)
                with sock:
                    sock.sendall(word)
                    return sock.recv(100)
            return b"reset"

        def all_of(port: int, word: bytes = b"") -> list[bytes]:
            where = ("lan", "lan0") if port == 3128 else ("wan", "wan0")
            return [ask(*where, port, word) for _ in range(12)]

        request = b"CONNECT 192.0.2.1:7 HTTP/1.1\r\nHost: a\r\n\r\n"
        answers = [answer[9:12] for answer in all_of(3128, request)]
        assert answers[:4] == [b"404"] * 4
        assert answers.count(b"429") >= 6
        assert all_of(7100, b"{}\n") == [b"reset"] * 12  # none of them is an agent; some were not even asked
        counters = daemon.status()["counters"]
        assert (counters["attaches_limited"], counters["agents_limited"] >= 6) == (answers.count(b"429"), True)
        whose = f"[limits] attaches allows; the last one was {lab.address('lan', 'eth0')}"
        wait_until(lambda: whose in daemon.log_tail(200), 15, "the log says whose it was")
        daemon.config.write_text(daemon.config.read_text().replace("attaches = [2, 0]", "attaches = [0, 0]"))
        os.kill(daemon.pid, signal.SIGHUP)
        wait_until(lambda: "SIGHUP: policy taken over" in daemon.log_tail(), 5, "it is taken over")
        assert {answer[9:12] for answer in all_of(3128, request)} == {b"404"}
