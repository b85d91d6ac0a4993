# SPDX-License-Identifier: Apache-2.0
"""Connections that sleep without a slot: a fingerprint in the filter and their row are all there is of them."""

from __future__ import annotations

import errno
import socket
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from scapy.packet import Raw

from appliance.lab import Lab, wait_until
from appliance.wire import CANDIDATE, LOW_BITS, Born, Command, EventType, Key, Op, ServiceSpec, Sought, pack_address
from control.core.states import Cause, State
from tests.lab.bare_sleep import NO_KEEPALIVES, SMALL, TINY, BareSleep
from tests.lab.engine_lab import PORT, Pair, receive, reset, tcp_info
from tests.lab.test_control_plane import Box, chain_of
from tests.lab.wire import Sleeper, Wire, timestamps_of
from tests.reboot import age
from tests.security.test_exotic_packets import in_fragments

BOTH = pytest.mark.parametrize("family", [4, 6])
CLIENTS = 100
OF_LINUX = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (77, 0)), ("NOP", None), ("WScale", 7)]
QUIET = {"active_quiet": "500ms", "standby_quiet": "1s", "idle_quiet": "2s"}


@pytest.fixture
def box(nat_free_lab: Lab, request: pytest.FixtureRequest) -> Iterator[BareSleep]:
    mark = request.node.get_closest_marker("engine")
    arguments = {"service": NO_KEEPALIVES, "filter_slots": 4000, **(mark.kwargs if mark else {})}
    with BareSleep(nat_free_lab, **arguments) as box:
        yield box


# Asleep, and awake again


@BOTH
def test_a_connection_in_sleep_has_no_slot(box: BareSleep, family: int) -> None:
    pair = box.let_sleep(family)
    assert box.slots == box.stat("idle_records") == 0
    found = box.engine.find(pair.key)
    assert found is not None
    assert (found.candidate, found.to_state, found.service) == (True, State.SLEEP, box.spec(family).index)


@pytest.mark.usefixtures("unhurried")
@BOTH
def test_data_wakes_it_and_nothing_is_lost(box: BareSleep, family: int) -> None:
    pair = box.let_sleep(family)
    pair.client.sendall(b"is anybody there?")
    server = box.accept(family)
    assert receive(server, 17) == b"is anybody there?"
    server.sendall(b"yes")
    assert receive(pair.client, 3) == b"yes"
    box.wait_state(pair, State.ACTIVE)
    assert box.transitions(pair)[-1] == (State.SLEEP, State.ACTIVE, Cause.CLIENT_DATA)
    assert box.transition_events(pair)[-1].id == pair.id
    assert tcp_info(pair.client).retransmits == 0
    assert (box.members, box.stat("perhaps_slept"), box.slots) == (0, 1, 0)
    assert not [event for event in box.events if event.type == EventType.NEED_RECORD], "its row was read once"


def test_it_may_sleep_and_wake_again_and_again(box: BareSleep) -> None:
    pair = box.connect()
    for _ in range(3):
        box.to_sleep(pair)
        assert (box.members, box.slots) == (1, 0)
        box.wake_and_answer(pair)
    assert box.members == 0


def test_a_keepalive_is_answered_all_the_same_and_does_not_wake_it(box: BareSleep) -> None:
    pairs = [box.let_sleep(family, keepalives=True) for family in (4, 6)]
    box.wait(lambda: box.slots == 2, "its client's probe brings each back into the table")
    transitions = [box.transitions(pair) for pair in pairs]
    time.sleep(3.2)  # three more; a client's patience ends after 4 s
    assert all(tcp_info(pair.client).probes <= 1 for pair in pairs)
    assert all(box.state(pair) is State.SLEEP for pair in pairs)
    assert [box.transitions(pair) for pair in pairs] == transitions
    assert box.members == 0
    for pair in pairs:
        box.wake_and_answer(pair)


@pytest.mark.engine(service={**NO_KEEPALIVES, "sleep_quiet_ms": 3000})
def test_it_leaves_the_table_again_when_it_has_been_silent(box: BareSleep) -> None:
    pair = box.let_sleep()
    with Wire(box) as wire:
        sleeper = Sleeper(pair, box.rows[pair.key.pack()])
        wire.send(sleeper.ip() / sleeper.tcp(seq=-1))
        (answer,) = wire.replies(sleeper)
        assert (timestamps_of(answer) or (0, 0))[1] == sleeper.ts_recent + 1, (
            "its timestamp, and not none, though no record has it"
        )
    assert (box.slots, box.members) == (1, 0)
    box.wait(lambda: (box.slots, box.members) == (0, 1), "it has gone", 10)
    box.wake_and_answer(pair)


@pytest.mark.parametrize(("family", "ends"), [(4, socket.socket.close), (6, reset)], ids=["FIN", "RST"])
def test_a_client_that_ends_ends_its_connection(
    box: BareSleep, family: int, ends: Callable[[socket.socket], None]
) -> None:
    pair = box.let_sleep(family)
    ends(pair.client)
    box.wait_state(pair, State.CLOSED)
    assert box.transitions(pair)[-1] == (State.SLEEP, State.CLOSED, Cause.CLIENT_CLOSE)
    assert (box.members, box.slots) == (0, 0)


def test_a_syn_of_its_client_who_has_forgotten_it_is_challenged(box: BareSleep) -> None:
    """RFC 9293 3.10.7.4: the client's kernel answers that with an RST, and then it can connect."""
    pair = box.let_sleep()
    sleeper = Sleeper(pair, box.rows[pair.key.pack()])
    with Wire(box) as wire:
        wire.send(sleeper.ip() / sleeper.tcp(seq=0x1234567, flags="S", options=[]))
        answers: list[Any] = []
        deadline = time.monotonic() + 5
        while not answers and time.monotonic() < deadline:
            answers = wire.replies(sleeper)
    (answer,) = answers
    assert (answer["TCP"].flags, answer["TCP"].seq, answer["TCP"].ack) == ("A", sleeper.snd_nxt, sleeper.rcv_nxt)
    assert box.state(pair) is State.SLEEP
    box.wake_and_answer(pair)


def test_a_million_of_them_take_less_than_two_bytes_each_all_told(box: BareSleep) -> None:
    memory = []
    for connections in (0, 1_000_000):
        box.stop()
        box.resize(filter_slots=connections)
        box.start()
        memory.append(box.engine.memory())
    assert box.stat("filter_slots") * 96 >= 100 * 1_000_000
    assert 1_600_000 < memory[1] - memory[0] < 2_000_000


# Which keep a slot


@pytest.mark.engine(filter_slots=SMALL, service={})
def test_those_in_sleep_who_have_a_slot_can_be_counted_and_left_out_of_the_list(box: BareSleep) -> None:
    asleep, idle = box.connect(), box.connect(6)
    box.to_sleep(asleep)
    box.to_idle(idle)
    assert box.engine.slots_in_sleep() == 1
    assert [event.id for event in box.engine.list(Sought(states=(State.ACTIVE, State.STANDBY, State.IDLE)))] == [
        idle.id
    ]
    assert {event.record.key for event in box.engine.list()} == {asleep.key, idle.key}


@pytest.mark.engine(service={**NO_KEEPALIVES, "probe_interval_s": 60})
def test_a_connection_that_is_probed_keeps_its_slot(box: BareSleep) -> None:
    box.to_sleep(box.connect())
    assert (box.members, box.slots) == (0, 1)


@pytest.mark.engine(service={})
def test_where_keepalives_are_needed_everyone_keeps_a_slot(box: BareSleep) -> None:
    box.to_sleep(box.connect())
    assert (box.members, box.slots) == (0, 1)


@pytest.mark.engine(service={"sleep_quiet_ms": 1000})
def test_who_fell_asleep_with_keepalives_keeps_its_slot_until_it_has_been_awake(box: BareSleep) -> None:
    """By its number in that slot its row is found: not by its key, which is all that the filter has."""
    pair = box.connect()
    box.to_sleep(pair)
    found = box.engine.find(pair.key)
    assert found is not None
    assert found.reference == LOW_BITS | pair.id
    box.engine.update_service(box.spec(4, **NO_KEEPALIVES))
    time.sleep(3)  # the sweep has looked at it
    assert (box.members, box.slots) == (0, 1)
    box.wake_and_answer(pair)
    box.to_sleep(pair)
    assert (box.members, box.slots) == (1, 0)
    assert box.rows[pair.key.pack()].reference == pair.id
    box.wake_and_answer(pair)


@pytest.mark.engine(filter_slots=0)
def test_without_a_filter_everyone_keeps_a_slot_and_is_counted(box: BareSleep) -> None:
    pair = box.connect()
    box.to_sleep(pair)
    assert (box.slots, box.stat("filter_full"), box.stat("filter_slots")) == (1, 1, 0)
    box.wake_and_answer(pair)


@pytest.mark.engine(filter_slots=SMALL)
def test_whoever_finds_the_filter_full_keeps_a_slot_and_is_counted(box: BareSleep) -> None:
    pairs = [box.connect() for _ in range(14)]
    for pair in pairs:
        box.to_sleep(pair)
    assert box.members <= box.stat("filter_slots") == 10
    assert box.slots == box.stat("filter_full") == len(pairs) - box.members > 0
    for pair in pairs:
        box.wake_and_answer(pair)
    assert (box.members, box.slots) == (0, 0)


@pytest.mark.engine(service={**NO_KEEPALIVES, "sleep_quiet_ms": 1000}, filter_slots=SMALL)
def test_whoever_looks_in_vain_for_room_in_the_filter_again_is_not_counted_again(box: BareSleep) -> None:
    pairs = [box.connect() for _ in range(14)]
    for pair in pairs:
        box.to_sleep(pair)
    kept = box.stat("filter_full")
    assert kept == box.slots > 1
    asleep = next(pair for pair in pairs if (found := box.engine.find(pair.key)) is not None and found.candidate)
    box.wake_and_answer(asleep)
    box.wait(lambda: box.slots == kept - 1, "one of them has found its place")
    time.sleep(1.2)  # the others have looked, too: each after a second of silence
    assert (box.slots, box.stat("filter_full")) == (kept - 1, kept)


# Services that listen on every address


class Everywhere(BareSleep):
    """Both of its services listen on every address of their family."""

    def spec(self, family: int, **changes: Any) -> ServiceSpec:
        return super().spec(family, **{"listen": "0.0.0.0" if family == 4 else "::", **changes})

    def target(self, family: int = 4) -> tuple[str, int]:
        return self.lab.address("box", "wan0", family), PORT


@pytest.fixture
def everywhere(nat_free_lab: Lab) -> Iterator[Everywhere]:
    with Everywhere(nat_free_lab, service=NO_KEEPALIVES, filter_slots=SMALL) as box:
        yield box


def hit_at(box: BareSleep, pair: Pair, form: str) -> Key:
    """The client of the pair at another address of ours, where the filter takes it for a sleeper. form: the address, of
    three numbers below 256."""
    for number in range(1, 1 << 20):
        local = pack_address(form.format(number >> 16, number >> 8 & 255, number & 255))
        key = Key(pair.key.client, pair.key.client_port, local, PORT)
        if (found := box.engine.find(key)) is not None and found.candidate:
            return key
    raise AssertionError("the filter takes nobody for a sleeper")


def test_every_hit_of_the_filter_is_named_to_who_knows_only_the_clients_address(everywhere: Everywhere) -> None:
    """Which of them is the sleeper, its row tells."""
    pair = everywhere.let_sleep()
    client, port = pair.key.client, pair.key.client_port
    wrong = hit_at(everywhere, pair, "10.{}.{}.{}")
    found = everywhere.engine.find_client(client, port, wrong.local + pair.key.local)
    assert [(event.record.key, event.candidate) for event in found] == [(wrong, True), (pair.key, True)]
    everywhere.wake_and_answer(pair)
    found = everywhere.engine.find_client(client, port, wrong.local + pair.key.local)
    assert [(event.record.key, event.candidate) for event in found] == [(pair.key, False)]


@BOTH
def test_a_sleeper_belongs_to_the_service_that_listens_in_its_family(everywhere: Everywhere, family: int) -> None:
    pair = everywhere.let_sleep(family)
    found = everywhere.engine.find(pair.key)
    assert found is not None
    assert (found.candidate, found.service) == (True, everywhere.spec(family).index)


def test_a_client_is_looked_for_at_addresses_of_its_own_family_alone(everywhere: Everywhere) -> None:
    """Each look at the filter is one more that may be wrong."""
    pair = everywhere.let_sleep()
    client, port = pair.key.client, pair.key.client_port
    wrong = hit_at(everywhere, pair, "fd00::{:x}:{:x}:{:x}")
    found = everywhere.engine.find_client(client, port, wrong.local + pair.key.local)
    assert [event.record.key for event in found] == [pair.key]


# By command, and by servers


def test_a_command_wakes_it(box: BareSleep) -> None:
    pair = box.let_sleep()
    box.submit(Op.WAKE, pair, token=5)
    box.wait_state(pair, State.STANDBY)
    assert box.transitions(pair)[-1] == (State.SLEEP, State.STANDBY, Cause.COMMAND)
    assert box.transition_events(pair)[-1].token == 5
    box.wake_and_answer(pair)


def test_a_command_closes_it_and_its_client_is_told(box: BareSleep) -> None:
    pair = box.let_sleep()
    box.submit(Op.CLOSE, pair)
    box.wait_state(pair, State.CLOSED)
    with pytest.raises(ConnectionResetError):
        pair.client.recv(1)


def test_a_server_that_comes_for_it_is_linked(box: BareSleep) -> None:
    pair = box.let_sleep()
    server = box.attach(pair, preamble=b"here\n", early=b"you are wanted")
    assert receive(pair.client, 14) == b"you are wanted"
    assert receive(server, 5) == b"here\n"
    pair.client.sendall(b"coming")
    assert receive(server, 6) == b"coming"
    box.wait_state(pair, State.ACTIVE)
    assert box.transitions(pair)[-1] == (State.SLEEP, State.ACTIVE, Cause.SERVER_ATTACH)


def test_a_command_about_a_stranger_is_refused(box: BareSleep) -> None:
    pair = box.let_sleep()
    nobody = Key.of(pair.key.client_text.split(":")[0], 1, *box.target())
    box.engine.submit([Command(Op.WAKE, cause=Cause.COMMAND, key=nobody, token=6)])
    box.wait(lambda: any(e.type == EventType.REFUSED and e.token == 6 for e in box.events), "it is refused")
    assert next(e.error for e in box.events if e.type == EventType.REFUSED) == errno.ENOENT


@pytest.mark.engine(filter_slots=TINY)
def test_a_command_about_somebody_who_is_taken_for_a_member_is_refused(box: BareSleep) -> None:
    box.let_sleep()
    client, host = box.lab.client_addresses()[0], box.target()
    taken = Key.of(client, box.taken_for_a_member(), *host)
    box.engine.submit([Command(Op.WAKE, cause=Cause.COMMAND, key=taken, token=6)])
    box.wait(lambda: any(e.type == EventType.REFUSED and e.token == 6 for e in box.events), "it is refused")
    assert next(e.error for e in box.events if e.type == EventType.REFUSED) == errno.ENOENT
    assert box.engine.find(taken) is None, "it is known for a stranger from now on"


# Strangers


@BOTH
@pytest.mark.engine(filter_slots=TINY)
def test_a_stranger_who_is_taken_for_a_member_can_connect(box: BareSleep, family: int) -> None:
    box.let_sleep(family)
    source = box.taken_for_a_member(family)
    began = time.monotonic()
    stranger = box.dial(family, before=lambda sock: sock.bind((box.lab.client_addresses(family)[0], source)))
    assert time.monotonic() - began < 0.8, "without a retransmission"
    server = box.accept(family)
    for word in (b"hello", b"once more"):
        stranger.sendall(word)
        assert receive(server, len(word)) == word
    assert (box.stat("perhaps_asked"), box.stat("perhaps_strangers")) == (1, 1)


@pytest.mark.engine(filter_slots=TINY)
def test_a_stray_segment_of_a_stranger_is_answered_by_an_rst(box: BareSleep) -> None:
    pair = box.let_sleep()
    source = box.taken_for_a_member()
    sleeper = Sleeper(pair, box.rows[pair.key.pack()])
    with Wire(box) as wire:
        segment = sleeper.tcp(sport=source)
        wire.send(sleeper.ip() / segment)
        answers: list[bytes] = []
        deadline = time.monotonic() + 5
        while not answers and time.monotonic() < deadline:
            answers = [frame for frame in wire.heard() if source.to_bytes(2) == frame[36:38]]
    assert [frame[47] & 4 for frame in answers] == [4], "one RST"
    assert box.members == 1


@pytest.mark.engine(filter_slots=TINY)
def test_a_connection_that_lives_goes_on_when_a_new_member_looks_like_it(box: BareSleep) -> None:
    """It was there first: what it says is taken for the sleeper's once, and reaches its socket all the same."""
    sleeper = box.connect()
    box.to_sleep(sleeper)
    source = box.taken_for_a_member()
    box.wake_and_answer(sleeper)
    client = box.dial(before=lambda sock: sock.bind((box.lab.client_addresses()[0], source)))
    server = box.accept()
    hits = box.stat("frames_perhaps")
    box.to_sleep(sleeper)
    assert box.members == 1
    for _ in range(3):
        client.sendall(b"still here")
        assert receive(server, 10) == b"still here"
        server.sendall(b"so am I")
        assert receive(client, 7) == b"so am I"
    assert 0 < box.stat("frames_perhaps") - hits < 4, "until it is known for a stranger"
    assert box.stat("perhaps_asked") == 1, "about the sleeper, and not about one that is awake"
    reset(client)
    with suppress(ConnectionResetError):
        assert server.recv(1) == b""


# Where clients are born asleep

BORN = pytest.mark.engine(service={**NO_KEEPALIVES, "born": Born.ALWAYS}, filter_slots=SMALL)


def born_and_asleep(box: BareSleep) -> Pair:
    """A connection that XDP alone has made, that has spoken since, and is in SLEEP."""
    client = box.dial()
    client.sendall(b"first word")
    server = box.accept()
    assert receive(server, 10) == b"first word"
    packed = box.key_of(client).pack()
    box.wait(lambda: any(e.id and e.record.key_raw == packed for e in box.events), "it has a number")
    pair = Pair(client, server, Key.unpack(packed), next(e.id for e in box.events if e.record.key_raw == packed))
    box.exchange(pair)
    box.to_sleep(pair)
    assert (box.members, box.stat("born_ipv4")) == (1, 1)
    return pair


@BORN
@pytest.mark.parametrize("options", [OF_LINUX, []], ids=["as Linux sends it", "plain"])
def test_a_syn_for_a_sleeper_draws_no_cookie(box: BareSleep, options: list[Any]) -> None:
    pair = born_and_asleep(box)
    sleeper = Sleeper(pair, box.rows[pair.key.pack()])
    cookies = box.stat("syn_cookies")
    with Wire(box) as wire:
        wire.send(sleeper.ip() / sleeper.tcp(seq=0x1234567, flags="S", options=options))
        box.wait(lambda: box.stat("perhaps_refused") == 1, "it is judged by the row")
        assert all("S" not in str(answer["TCP"].flags) for answer in wire.replies(sleeper))
    assert box.stat("syn_cookies") == cookies
    box.wake_and_answer(pair)


@pytest.mark.engine(service={**NO_KEEPALIVES, "born": Born.ALWAYS}, filter_slots=TINY)
def test_a_stranger_who_is_taken_for_a_sleeper_is_not_born_but_can_connect(box: BareSleep) -> None:
    born_and_asleep(box)
    source = box.taken_for_a_member()
    stranger = box.dial(before=lambda sock: sock.bind((box.lab.client_addresses()[0], source)))
    server = box.accept()
    stranger.sendall(b"hello")
    assert receive(server, 5) == b"hello"
    assert (box.stat("born_ipv4"), box.stat("accepted"), box.stat("perhaps_strangers")) == (1, 1, 1)


# What the stack must not see


@BOTH
def test_a_syn_in_fragments_makes_no_half_open_connection_and_its_client_lives(box: BareSleep, family: int) -> None:
    pair = box.let_sleep(family)
    sleeper = Sleeper(pair, box.rows[pair.key.pack()])
    with Wire(box) as wire:
        wire.send(*in_fragments(sleeper, sleeper.tcp(seq=4711, flags="S") / Raw(b"evil" * 100)))
        assert wire.replies(sleeper) == []
    box.wait(lambda: box.slots == 1, "its slot is back")
    box.wake_and_answer(pair)


# While the store cannot say


def test_while_the_store_cannot_be_read_it_is_asked_again(box: BareSleep) -> None:
    pair = box.let_sleep()
    box.readable = False
    pair.client.sendall(b"patience")
    box.wait(lambda: box.stat("perhaps_asked") >= 2, "a retransmission asks once more")
    assert (box.members, box.stat("perhaps_strangers")) == (1, 0)
    box.readable = True
    assert receive(box.accept(), 8) == b"patience"


@BOTH
def test_a_client_that_ended_while_the_store_could_not_be_read_is_gone_when_it_can(box: BareSleep, family: int) -> None:
    """It says so once: an RST is not sent again."""
    pair = box.let_sleep(family)
    box.readable = False
    reset(pair.client)
    box.wait(lambda: box.stat("perhaps_asked") >= 2, "it is asked again without another word of the client")
    assert box.state(pair) is State.SLEEP
    box.readable = True
    box.wait_state(pair, State.CLOSED)
    assert box.transitions(pair)[-1] == (State.SLEEP, State.CLOSED, Cause.CLIENT_CLOSE)
    assert (box.members, box.slots, box.stat("perhaps_waiting")) == (0, 0, 0)


def test_an_rst_of_a_stranger_is_not_asked_about_for_ever(box: BareSleep) -> None:
    pair = box.let_sleep()
    sleeper = Sleeper(pair, box.rows[pair.key.pack()])
    box.readable = False
    with Wire(box) as wire:
        wire.send(sleeper.ip() / sleeper.tcp(seq=sleeper.window + 5, flags="R"))
        box.wait(lambda: box.stat("perhaps_asked") >= 2, "it may be the client's")
        box.readable = True
        box.wait(lambda: not box.stat("perhaps_waiting"), "it is answered")
    assert box.state(pair) is State.SLEEP
    box.wake_and_answer(pair)


def test_a_question_that_nobody_answers_is_over_after_a_while(box: BareSleep) -> None:
    """It would count among those that may be asked at a time."""
    pair = box.let_sleep()
    box.readable = None
    box.submit(Op.WAKE, pair, token=7)
    pair.client.sendall(b"anybody?")
    box.wait(lambda: box.stat("perhaps_waiting") == 1, "it is asked for")
    box.wait(lambda: not box.stat("perhaps_waiting"), "it is given up", timeout_s=15)
    box.wait(lambda: any(e.type == EventType.REFUSED and e.token == 7 for e in box.events), "the command is refused")
    assert box.refusals(pair) == [(Op.WAKE, errno.ETIMEDOUT)]
    box.readable = True
    assert receive(box.accept(), 8) == b"anybody?"


# Restarts


def test_a_new_engine_finds_them(box: BareSleep) -> None:
    pairs = [box.let_sleep() for _ in range(3)]
    box.stop()
    pairs[0].client.sendall(b"while nobody was there")
    time.sleep(0.3)
    box.start()
    assert receive(box.accept(), 22) == b"while nobody was there"
    for pair in pairs[1:]:
        box.wake_and_answer(pair)
    assert (box.members, box.slots) == (0, 0)


@pytest.mark.engine(filter_slots=TINY)
def test_the_row_of_one_that_had_woken_is_not_believed_because_of_anothers_fingerprint(box: BareSleep) -> None:
    """The engine is killed before the row is removed. Taken for asleep, it would take the other's fingerprint away."""
    sleeper = box.let_sleep()
    source = box.taken_for_a_member()
    client = box.dial(before=lambda sock: sock.bind((box.lab.client_addresses()[0], source)))
    server = box.accept()
    key = box.key_of(client)
    box.wait(lambda: any(e.id and e.record.key_raw == key.pack() for e in box.events), "the engine tells of the client")
    twin = Pair(client, server, key, next(e.id for e in box.events if e.id and e.record.key_raw == key.pack()))
    box.exchange(twin)
    box.to_sleep(twin)
    assert (box.members, box.slots) == (2, 0)
    hits = box.stat("frames_perhaps")
    box.submit(Op.WAKE, twin)
    box.wait_state(twin, State.STANDBY)
    assert (box.members, box.stat("frames_perhaps")) == (1, hits), "no packet of its own has told who it is"
    box.stop()
    assert twin.key.pack() in box.rows
    box.start()
    states = box.engine.states(twin.key.pack() + sleeper.key.pack(), array("Q", (1, 2)))
    assert list(states) == [State.NONE, State.SLEEP | CANDIDATE]
    box.wake_and_answer(sleeper)


def test_a_filter_with_nobody_in_it_gets_the_size_that_is_asked_for_now(box: BareSleep) -> None:
    slots = box.stat("filter_slots")
    box.stop()
    box.resize(filter_slots=40_000)
    box.start()
    assert box.stat("filter_slots") > 9 * slots
    pair = box.let_sleep()
    box.stop()
    box.resize(filter_slots=400)
    box.start()
    assert box.stat("filter_slots") > 9 * slots, "and one that is in use keeps what it has"
    box.wake_and_answer(pair)


# With the daemon


@pytest.fixture
def crowd() -> Iterator[Box]:
    with Lab(clients=CLIENTS, nat=False) as lab:
        yield Box(lab, {**QUIET, "sleep_keepalive": "none"}, {"filter": 2 * CLIENTS}, CLIENTS, keepidle_s=3600)


def without_slot(crowd: Box) -> int:
    counters = crowd.daemon.status()["counters"]
    assert counters["table_ipv4"] + counters["filter_members"] == crowd.states()["SLEEP"]
    members: int = counters["filter_members"]
    return members


def test_a_daemon_lists_shows_wakes_closes_and_links_them_and_their_history_is_whole(crowd: Box) -> None:
    crowd.all_asleep()
    assert without_slot(crowd) == CLIENTS
    rows = crowd.daemon.connections()
    assert Counter(row["state"] for row in rows) == {"SLEEP": CLIENTS}
    assert len({row["id"] for row in rows}) == CLIENTS
    first, second, third, fourth, fifth = (row["client"] for row in rows[:5])
    number = rows[0]["id"]

    shown = crowd.daemon.get(f"/v1/connections/{first}")
    assert (shown["id"], shown["state"], shown["history"][-1]["to"]) == (number, "SLEEP", "SLEEP")
    assert shown["record"]["mss"] > 0
    assert crowd.daemon.get(f"/v1/connections/{number}")["client"] == first

    assert crowd.daemon.act(first, "wake")["state"] == "STANDBY"
    assert crowd.daemon.act(second, "close")["state"] == "CLOSED"
    assert crowd.daemon.act(str(rows[2]["id"]), "wake")["state"] == "STANDBY"
    assert crowd.daemon.http("PUT", f"/v1/connections/{fourth}/name", json={"name": "meter-4"}).is_success
    targets = ["meter-4.roost:80", fifth, third]
    asked = crowd.lab.asker().request("ask", proxy=["10.3.0.1", 3128], targets=targets, concurrency=1, timeout_s=10)
    assert (asked["answered"], asked["failed"]) == (3, {})

    wait_until(lambda: crowd.states() == {"ACTIVE": 0, "STANDBY": 0, "IDLE": 0, "SLEEP": CLIENTS - 1}, 30, "all asleep")
    for transitions in crowd.history().values():
        chain_of(transitions)


@pytest.mark.parametrize("end", ["kill", "reboot"])
def test_a_daemon_that_comes_after_another_reaches_every_one_of_them(crowd: Box, end: str) -> None:
    crowd.all_asleep()
    crowd.daemon.kill()
    if end == "reboot":  # what one takes: the tables, and the boot's name
        crowd.daemon.unpin()
        with crowd.database() as database:
            age(database)
    crowd.daemon.start()
    wait_until(lambda: crowd.states()["SLEEP"] == CLIENTS, 20, "all of them are known")
    assert without_slot(crowd) == CLIENTS
    said = crowd.swarm.say(CLIENTS, concurrency=64, timeout_s=60)
    assert (said.answered, said.failed) == (CLIENTS, Counter())
    crowd.nobody_is_lost()
    crowd.all_asleep()
    with crowd.database() as database:
        assert database.execute("SELECT count(*) FROM sleeping").fetchone() == (CLIENTS,)
