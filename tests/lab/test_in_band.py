# SPDX-License-Identifier: Apache-2.0
"""Figure 7: clients and servers ask the connection manager for things inside the connection they have
(docs/in-band.md), with real sockets on both ends and the daemon in between."""

from __future__ import annotations

import os
import random
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from appliance.lab import Lab, wait_until
from appliance.wire import Key
from examples.in_band_frames import (
    DLE,
    MAGIC,
    NEVER,
    AlwaysActive,
    Answer,
    Done,
    Frame,
    KeepAlive,
    Name,
    Ping,
    Quiet,
    Recipient,
    Result,
    Sleep,
    Status,
    encode,
    seal,
)
from tests.lab.engine_lab import receive, sending
from tests.lab.in_band_lab import EVERYTHING, OK, REFUSED, End, InBandLab, Session
from tests.lab.test_policy_change import OBEYED_S
from tests.reboot import age

BOTH = pytest.mark.parametrize("family", [4, 6])
ENDS = pytest.mark.parametrize("end", ["client", "server"])
SERVICES: dict[str, dict[str, Any]] = {
    "all": {"clients": EVERYTHING, "servers": EVERYTHING},
    "off": {},
    "clients": {"clients": ["status", "quiet"]},
    "servers": {"clients": ["status"], "servers": ["done"]},
    "persistent": {"clients": EVERYTHING, "servers": EVERYTHING},
    "forwarding": {"clients": ["status"], "servers": ["status"], "forward": True},
    "bounded": {"clients": EVERYTHING},
}


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[InBandLab]:
    bounds = {"least_quiet": "5s", "least_probe_interval": "10s"}
    with InBandLab(nat_free_lab, SERVICES, persistent={"persistent"}, policies={"bounded": bounds}) as box:
        yield box


def end_of(session: Session, name: str) -> End:
    end: End = getattr(session, name)
    return end


def other_of(session: Session, name: str) -> End:
    return end_of(session, "server" if name == "client" else "client")


# -- each request, from either end ------------------------------------------------------------------------------------


@BOTH
@ENDS
def test_a_ping_is_answered_and_the_other_end_sees_nothing_of_it(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("all", family)
    assert end_of(session, end).ask(Ping()) == OK
    session.exchange()


@BOTH
@ENDS
def test_done_ends_the_server_link_in_order(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("all", family)
    end_of(session, end).sock.sendall(b"last words")
    assert end_of(session, end).ask(Done()) == OK
    other_of(session, end).expect(b"last words")
    session.server.expect_end()
    session.server.sock.sendall(b"late words")  # until its own FIN a server may speak
    session.server.sock.close()
    session.client.expect(b"late words")
    session.wait_state("STANDBY")
    session.wait_causes(("ACTIVE", "client-connect"), ("STANDBY", "command"))
    session.wake()


@BOTH
@ENDS
def test_sleep_takes_the_connection_all_the_way_down_and_payload_wakes_it(
    box: InBandLab, family: int, end: str
) -> None:
    session = box.connect("all", family)
    assert end_of(session, end).ask(Sleep()) == OK
    session.server.expect_end()
    session.server.sock.close()
    session.wait_state("SLEEP")
    session.wait_causes(("STANDBY", "command"), ("IDLE", "command"), ("SLEEP", "command"))
    session.wake()
    session.exchange()


@BOTH
@ENDS
def test_quiet_intervals_hold_for_this_connection_alone(box: InBandLab, family: int, end: str) -> None:
    other = box.connect("all", family)
    session = box.connect("all", family)
    assert end_of(session, end).ask(Quiet(active_ms=200, standby_ms=400, idle_ms=1000)) == OK
    report = session.client.report()
    assert (report.active_ms, report.standby_ms, report.idle_ms) == (200, 400, 1000)
    session.server.expect_end()
    session.server.sock.close()
    session.wait_state("SLEEP")
    session.wait_causes(("STANDBY", "quiet"), ("IDLE", "quiet"), ("SLEEP", "quiet"))
    assert other.shown()["state"] == "ACTIVE"


@BOTH
@ENDS
def test_an_interval_that_is_asked_for_holds_though_a_longer_one_was_in_force(
    box: InBandLab, family: int, end: str
) -> None:
    session = box.connect("all", family)
    asking = end_of(session, end)
    assert asking.ask(Quiet(active_ms=60_000)) == OK
    assert asking.ask(Quiet(active_ms=100)) == OK
    session.server.expect_end()
    session.server.sock.close()
    session.wait_state("STANDBY")


@BOTH
@ENDS
def test_always_active_stands_above_the_intervals_until_it_is_switched_off(
    box: InBandLab, family: int, end: str
) -> None:
    session = box.connect("all", family)
    asking = end_of(session, end)
    assert asking.ask(AlwaysActive(True)) == OK
    assert asking.ask(Quiet(active_ms=100)) == OK
    report = asking.report()
    assert (report.active_ms, report.standby_ms) == (NEVER, NEVER)
    session.server.sock.settimeout(0.5)
    with pytest.raises(TimeoutError):
        session.server.receive()
    session.server.sock.settimeout(5)
    assert asking.ask(AlwaysActive(False)) == OK
    session.server.expect_end()
    session.server.sock.close()
    session.wait_state("STANDBY")


@BOTH
@ENDS
def test_keep_alives_are_switched_on_with_an_interval_and_off(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("all", family)
    asking = end_of(session, end)
    assert asking.ask(KeepAlive(True)) == REFUSED, "the policy has no interval"
    assert asking.ask(KeepAlive(True, 65_536_000)) == REFUSED, "more than a record can hold"
    assert asking.ask(KeepAlive(True, 1000)) == OK
    heard = box.counter("acks_heard")
    assert asking.ask(Sleep()) == OK
    session.server.expect_end()
    session.server.sock.close()
    session.wait_state("SLEEP")
    assert session.shown()["keep_alive"]["probe_interval_s"] == 1
    wait_until(lambda: box.counter("acks_heard") > heard, 5, "the client's kernel answers a probe")
    session.wake()
    assert end_of(session, end).ask(KeepAlive(False)) == OK
    end_of(session, end).tell(Sleep())
    session.wait_state("SLEEP")
    assert session.shown()["keep_alive"]["probe_interval_s"] == 0


@BOTH
@ENDS
def test_a_name_is_registered_for_the_client_that_the_connection_belongs_to(
    box: InBandLab, family: int, end: str
) -> None:
    session = box.connect("all", family)
    name = f"Door-{family}-{end}"
    assert end_of(session, end).ask(Name(name)) == OK
    assert end_of(session, end).report().name == name.lower()
    assert session.shown()["name"] == name.lower()
    assert box.daemon.get(f"/v1/connections/{name}.roost")["client"] == session.address
    assert end_of(session, end).ask(Name("door.roost")) == REFUSED, "a name is given without the domain"
    assert session.shown()["name"] == name.lower()


@BOTH
@ENDS
def test_status_tells_state_intervals_and_payload(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("all", family)
    report = end_of(session, end).report()
    assert (report.state, report.name) == ("ACTIVE", None)
    assert (report.active_ms, report.standby_ms, report.idle_ms) == (NEVER, NEVER, NEVER)
    assert (report.rx_bytes, report.tx_bytes) == (len("question"), len("answer")), "requests are no payload"


# -- what is refused, forwarded, or none of ours ----------------------------------------------------------------------


@BOTH
def test_an_end_may_ask_for_what_its_policy_names_and_for_nothing_else(box: InBandLab, family: int) -> None:
    session = box.connect("servers", family)
    for body in (Done(), Quiet(active_ms=1), KeepAlive(False), AlwaysActive(True), Name("n"), Sleep()):
        assert session.client.ask(body) == REFUSED
    assert session.client.ask(Ping()) == OK
    assert session.server.ask(Status()) == REFUSED
    assert session.client.report().active_ms == NEVER
    assert session.shown()["name"] is None
    session.exchange()
    assert session.server.ask(Done()) == OK
    session.server.expect_end()


def rule(box: InBandLab, **keys: Any) -> None:
    """The only rule there is; without keys there is none."""
    body = {"who": "test", "why": "a test"}
    if keys:
        answer = box.daemon.http("PUT", "/v1/policy/rules/asking", json={**body, "rule": keys})
    else:
        answer = box.daemon.http("DELETE", "/v1/policy/rules/asking", json=body)
    assert answer.status_code == 200, answer.text


@BOTH
def test_what_an_end_may_ask_for_is_said_by_rules_too(box: InBandLab, family: int) -> None:
    """Of a connection that is there, in the midst of its stream."""
    network = "0.0.0.0/0" if family == 4 else "::/0"
    some, all_ = box.connect("off", family), box.connect("all", family)
    said = encode(Frame(Ping(), answer=True))
    some.client.sock.sendall(said)
    some.server.expect(said)
    rule(box, network=network, in_band_clients=["quiet", "status"], in_band_servers="none")
    try:
        time.sleep(OBEYED_S)
        for session in (some, all_):
            assert session.client.ask(Ping()) == OK
            assert session.client.ask(Quiet(active_ms=7000)) == OK
            assert session.client.ask(Done()) == REFUSED
            assert session.shown()["in_band"] == {"active_quiet_ms": 7000}
            session.server.sock.sendall(said)
            assert receive(session.client.sock, len(said)) == said, "what servers send is not looked at"
    finally:
        rule(box)
    time.sleep(OBEYED_S)
    some.client.sock.sendall(said)
    some.server.expect(said)
    assert all_.client.ask(Quiet(active_ms=8000)) == OK
    some.exchange()


@BOTH
def test_a_direction_that_the_policy_does_not_name_is_not_looked_at(box: InBandLab, family: int) -> None:
    session = box.connect("clients", family)
    said = encode(Frame(Ping(), answer=True)) + DLE
    session.server.sock.sendall(said)
    assert receive(session.client.sock, len(said)) == said
    assert session.client.ask(Ping()) == OK
    session = box.connect("off", family)
    for source, target in ((session.server, session.client), (session.client, session.server)):
        source.sock.sendall(said)
        assert receive(target.sock, len(said)) == said


@BOTH
@ENDS
def test_what_is_not_understood_is_answered_and_not_obeyed(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("all", family)
    asking = end_of(session, end)
    for text, result in (("m 1? dance", Result.UNKNOWN), ("m 1? done now", Result.BAD), ("m 1?! done", Result.BAD)):
        asking.sock.sendall(seal(text))
        assert asking.frame().body == Answer(result)
    asking.sock.sendall(seal("m 1 dance") + seal("m 2 done now"))
    assert asking.ask(Ping()) == OK, "nobody wanted those two answered"
    session.exchange()


@BOTH
@ENDS
def test_a_request_is_forwarded_in_its_place_if_it_asks_for_that_or_the_policy_says_so(
    box: InBandLab, family: int, end: str
) -> None:
    session = box.connect("all", family)
    asking, other = end_of(session, end), other_of(session, end)
    frame = encode(Frame(Ping(), 7, answer=True, forward=True))
    asking.sock.sendall(b"before" + frame + b"after" + encode(Frame(Ping(), 8)) + b"end")
    assert asking.frame() == Frame(Answer(Result.OK), 7, Recipient.CLIENT if end == "client" else Recipient.SERVER)
    other.expect(b"before" + frame + b"afterend")
    session = box.connect("forwarding", family)
    asking, other = end_of(session, end), other_of(session, end)
    asking.sock.sendall(encode(Frame(Done(), 9, answer=True)))
    assert asking.frame().body == REFUSED
    other.expect(encode(Frame(Done(), 9, answer=True)))


@BOTH
@ENDS
def test_only_a_manager_of_this_name_acts_on_a_request_with_a_name(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("all", family)
    asking, other = end_of(session, end), other_of(session, end)
    assert asking.ask(Ping(), manager=box.daemon.status()["instance"]) == OK
    elsewhere = encode(Frame(Done(), 1, answer=True, manager="somebody-else"))
    asking.sock.sendall(elsewhere)
    other.expect(elsewhere)


# -- payload that only looks similar ----------------------------------------------------------------------------------


def near_misses() -> list[bytes]:
    frame = encode(Frame(Done(), 1, answer=True))
    return [
        DLE, DLE * 300, MAGIC, MAGIC * 3, frame[:-1], frame[:-1] + b"\r\n", frame[1:], frame.replace(b"done", b"dane"),
        frame[:-2] + b"0\n", frame.replace(b"/1", b"/2"), frame.upper(), MAGIC + b"m 1 " + b"x" * 300 + b"\n",
        encode(Frame(Ping(), to=Recipient.CLIENT)), encode(Frame(Ping(), to=Recipient.SERVER)), DLE + frame[:9] + DLE,
    ]  # fmt: skip


@BOTH
@ENDS
def test_near_misses_pass_byte_for_byte_wherever_the_stream_is_cut(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("all", family)
    source = end_of(session, end)
    other = other_of(session, end).sock
    source.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for payload in near_misses():
        cuts = range(len(payload) + 1) if len(payload) < 60 else (1, 9, 255, 256, 257, len(payload) - 1)
        for cut in cuts:
            source.sock.sendall(payload[:cut])
            source.sock.sendall(payload[cut:] + b"\0")  # which no frame contains: nothing waits for the rest of one
            assert receive(other, len(payload) + 1) == payload + b"\0"
    assert session.shown()["state"] == "ACTIVE"


@BOTH
@ENDS
def test_a_request_is_understood_wherever_the_stream_is_cut(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("all", family)
    asking, other = end_of(session, end), other_of(session, end)
    asking.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = encode(Frame(Ping(), 3, answer=True))
    for cut in range(len(frame) + 1):
        asking.sock.sendall(b"<" + frame[:cut])
        asking.sock.sendall(frame[cut:] + b">")
        assert asking.frame().body == OK
    other.expect(b"<>" * (len(frame) + 1))


@BOTH
@pytest.mark.parametrize("held", [DLE, MAGIC[:5], MAGIC + b"m 1 do"])
@ENDS
def test_what_may_begin_a_frame_waits_for_a_moment_and_goes_on(
    box: InBandLab, family: int, end: str, held: bytes
) -> None:
    session = box.connect("all", family)
    end_of(session, end).sock.sendall(b"x" + held)
    other = other_of(session, end)
    assert receive(other.sock, 1 + len(held)) == b"x" + held


@BOTH
@ENDS
def test_what_may_begin_a_frame_goes_on_before_the_senders_fin(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("all", family)
    source, other = end_of(session, end), other_of(session, end)
    source.sock.sendall(MAGIC + b"m 1 do")
    source.sock.shutdown(socket.SHUT_WR)
    assert receive(other.sock, len(MAGIC) + 6) == MAGIC + b"m 1 do"


@pytest.mark.parametrize("family", [4])
def test_ten_megabytes_of_anything_pass_byte_for_byte_both_ways(box: InBandLab, family: int) -> None:
    session = box.connect("all", family)
    dice = random.Random(7)
    pieces = [*near_misses(), *(dice.randbytes(dice.choice((1, 50, 5000, 70_000))) for _ in range(60))]
    payload = b""
    while len(payload) < 10_000_000:
        payload += dice.choice(pieces) + b"|"  # or two of them could make a frame

    def send(source: socket.socket) -> None:
        source.sendall(payload)

    for end in (session.client, session.server):
        end.sock.settimeout(30)
    senders = [threading.Thread(target=send, args=(end.sock,)) for end in (session.client, session.server)]
    got: dict[str, bytes] = {}

    def take(name: str, sock: socket.socket) -> None:
        got[name] = receive(sock, len(payload))

    takers = [threading.Thread(target=take, args=(name, end_of(session, name).sock)) for name in ("client", "server")]
    for thread in (*senders, *takers):
        thread.start()
    for thread in (*senders, *takers):
        thread.join()
    assert got["client"] == payload
    assert got["server"] == payload


# -- requests among payload -------------------------------------------------------------------------------------------


@BOTH
@ENDS
def test_payload_around_requests_keeps_its_order(box: InBandLab, family: int, end: str) -> None:
    """300 pings in as few segments as the kernel makes of them, payload before, between and behind."""
    session = box.connect("all", family)
    asking, other = end_of(session, end), other_of(session, end)
    sent = b"".join(b"%d," % i + encode(Frame(Ping(), i, answer=True)) for i in range(300)) + b"end"
    with sending(asking.sock, sent):
        other.expect(b"".join(b"%d," % i for i in range(300)) + b"end")
        assert [asking.frame().number for _ in range(300)] == list(range(300))


@BOTH
def test_what_a_client_says_behind_done_is_for_the_next_server(box: InBandLab, family: int) -> None:
    session = box.connect("all", family)
    session.client.sock.sendall(b"first" + encode(Frame(Done())) + b"second" + encode(Frame(Ping(), 5, answer=True)))
    session.server.expect(b"first")
    session.server.expect_end()
    session.server.sock.close()
    session.accept().expect(b"second")
    assert session.client.frame().number == 5
    session.exchange()


@BOTH
def test_a_client_that_speaks_on_behind_sleep_does_not_sleep(box: InBandLab, family: int) -> None:
    session = box.connect("all", family)
    session.client.sock.sendall(b"first" + encode(Frame(Sleep())) + b"second")
    session.server.expect(b"first")
    session.server.expect_end()
    session.server.sock.close()
    session.accept().expect(b"second")
    session.exchange()
    assert session.shown()["state"] == "ACTIVE"


@BOTH
def test_a_request_alone_wakes_a_sleeping_connection_and_is_answered(box: InBandLab, family: int) -> None:
    session = box.connect("all", family)
    session.client.tell(Sleep())
    session.server.expect_end()
    session.server.sock.close()
    session.wait_state("SLEEP")
    assert session.client.ask(Ping()) == OK
    session.accept()
    session.exchange()


def test_intervals_below_the_policys_bounds_are_refused(box: InBandLab) -> None:
    session = box.connect("bounded")
    for refused in (Quiet(active_ms=4_999), Quiet(active_ms=60_000, idle_ms=100), KeepAlive(True, 9_000)):
        assert session.client.ask(refused) == REFUSED
    assert "in_band" not in session.shown(), "not even in part"
    for allowed in (Quiet(active_ms=5_000, idle_ms=NEVER), KeepAlive(True, 10_000), KeepAlive(False)):
        assert session.client.ask(allowed) == OK
    assert session.shown()["in_band"] == {"active_quiet_ms": 5_000, "idle_quiet_ms": 0, "probe_interval_s": 0}


# -- the persistent interface ------------------------------------------------------------------------------------------


@BOTH
@ENDS
def test_sleep_takes_both_legs_of_a_persistent_connection_down(box: InBandLab, family: int, end: str) -> None:
    session = box.connect("persistent", family)
    assert end_of(session, end).ask(Quiet(idle_ms=77_000)) == OK
    assert end_of(session, end).ask(Sleep()) == OK
    session.wait_state("SLEEP")
    session.wait_causes(("IDLE", "command"), ("SLEEP", "command"))
    session.exchange()  # with the very same server
    assert intervals(session.server) == (NEVER, NEVER, 77_000)


@BOTH
def test_a_persistent_client_that_speaks_on_behind_sleep_does_not_sleep(box: InBandLab, family: int) -> None:
    session = box.connect("persistent", family)
    session.client.sock.sendall(encode(Frame(Sleep())) + b"at once")
    session.server.expect(b"at once")
    session.client.tell(Sleep())
    session.client.sock.sendall(b"later")
    session.server.expect(b"later")
    session.exchange()


@BOTH
def test_done_ends_the_server_link_of_a_persistent_connection_too(box: InBandLab, family: int) -> None:
    session = box.connect("persistent", family)
    assert session.server.ask(Done()) == OK
    session.server.expect_end()
    session.server.sock.close()
    session.wait_state("STANDBY")
    session.wake()


# -- ends that do not play along --------------------------------------------------------------------------------------


@ENDS
def test_whoever_never_reads_its_answers_is_not_read_either(box: InBandLab, end: str) -> None:
    """Else its requests would fill the appliance's memory."""
    session = box.connect("all")
    asking, other = end_of(session, end), other_of(session, end)
    before = box.daemon.process.memory_bytes()
    requests = encode(Frame(Ping(), answer=True)) * 4000
    asking.sock.settimeout(1)
    sent = 0
    with suppress(TimeoutError):
        while sent < 100_000_000:
            sent += asking.sock.send(requests)
    assert sent < 40_000_000, "what the kernel's buffers hold"
    assert box.daemon.process.memory_bytes() - before < 4e6
    other.sock.sendall(b"still there")  # its payload waits behind the answers
    asking.sock.settimeout(5)
    asking.expect(b"still there")


@BOTH
def test_an_end_that_goes_while_it_waits_for_an_answer_leaves_nothing_behind(box: InBandLab, family: int) -> None:
    for end in ("client", "server"):
        session = box.connect("all", family)
        end_of(session, end).sock.sendall(encode(Frame(Name(f"gone-{end}"), answer=True)) * 5)
        end_of(session, end).sock.close()
    session = box.connect("all", family)
    assert session.client.ask(Ping()) == OK


# -- what lasts -------------------------------------------------------------------------------------------------------


def intervals(end: End) -> tuple[int, int, int]:
    report = end.report()
    return report.active_ms, report.standby_ms, report.idle_ms


@BOTH
def test_what_was_asked_for_holds_after_a_sleep(box: InBandLab, family: int) -> None:
    session = box.connect("all", family)
    assert "in_band" not in session.shown(), "nothing was asked for yet"
    assert session.client.ask(Quiet(active_ms=60_000, idle_ms=70_000)) == OK
    assert session.client.ask(KeepAlive(True, 9_000)) == OK
    asked_for = {"active_quiet_ms": 60_000, "idle_quiet_ms": 70_000, "probe_interval_s": 9}
    assert session.shown()["in_band"] == asked_for
    session.client.tell(Sleep())
    session.server.expect_end()
    session.server.sock.close()
    session.wait_state("SLEEP")
    session.wake()
    assert intervals(session.client) == intervals(session.server) == (60_000, NEVER, 70_000)
    session.client.tell(Sleep())
    session.wait_state("SLEEP")
    assert session.shown()["keep_alive"]["probe_interval_s"] == 9
    assert session.shown()["in_band"] == asked_for


def test_what_was_asked_for_ends_with_its_connection(box: InBandLab) -> None:
    session = box.connect("all")
    key = session.key
    assert session.client.ask(Quiet(active_ms=60_000)) == OK
    session.client.tell(Sleep())
    session.wait_state("SLEEP")
    wait_until(lambda: is_kept(box, key), 5, "it is kept")
    session.client.sock.close()  # its FIN wakes the connection, which ends
    wait_until(lambda: not box.daemon.connections(client=session.address), 5, "the connection is gone")
    wait_until(lambda: not is_kept(box, key), 5, "and so is what it set")


def is_kept(box: InBandLab, key: Key) -> bool:
    """Whether the database has something that a connection with this 4-tuple set in band."""
    with closing(sqlite3.connect(box.database)) as database:
        return database.execute("SELECT 1 FROM overrides WHERE key = ?", (key.pack(),)).fetchone() is not None


@pytest.mark.parametrize(
    ("state", "end"), [("IDLE", "kill"), ("IDLE", "terminate"), ("SLEEP", "kill"), ("SLEEP", "reboot")]
)
def test_what_was_asked_for_outlives_the_daemon(box: InBandLab, state: str, end: str) -> None:
    """A killed daemon takes awake connections along; those that sleep are what there is to keep anything for."""
    sessions = [box.connect("all", family) for family in (4, 6)]
    for session in sessions:
        assert session.client.ask(Quiet(active_ms=300_000)) == OK
        assert session.client.ask(AlwaysActive(True)) == OK
        session.client.tell(Sleep() if state == "SLEEP" else Done())
        session.server.expect_end()
        session.server.sock.close()
        if state == "IDLE":
            session.wait_state("STANDBY")
            box.daemon.act(session.address, "idle")
        session.wait_state(state)
    wait_until(lambda: all(is_kept(box, session.key) for session in sessions), 5, "it is written")
    (box.daemon.terminate if end == "terminate" else box.daemon.kill)()
    if end == "reboot":  # what one takes: the tables, and the boot's name
        box.daemon.unpin()
        with closing(sqlite3.connect(box.database)) as database, database:
            age(database)
    box.daemon.start()
    addresses = {session.address for session in sessions}
    wait_until(lambda: addresses <= {one["client"] for one in box.daemon.connections()}, 8, "they are put back")
    for session in sessions:
        session.wait_state(state)
        assert session.shown()["in_band"] == {"active_quiet_ms": 300_000, "always_active": 1}
    for session in sessions:
        session.wake()
        assert intervals(session.client) == (NEVER, NEVER, NEVER)
        assert session.client.ask(AlwaysActive(False)) == OK
        assert intervals(session.client) == (300_000, NEVER, NEVER)


def test_random_bytes_for_a_server_that_closes(box: InBandLab) -> None:
    """Whatever a link ends with, the client gets the server's last bytes."""
    for size in (1, 9, 100):
        session = box.connect("all")
        last = os.urandom(size) + MAGIC[: size % 9 + 1]
        session.server.sock.sendall(last)
        session.server.sock.close()
        assert receive(session.client.sock, len(last)) == last
        session.wait_state("STANDBY")
