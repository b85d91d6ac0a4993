# SPDX-License-Identifier: Apache-2.0
"""In-band frames that the control plane or an attaching server begins with, on the engine alone."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from appliance.wire import KA, REST, Command, EventType, Key, Op, Own, Record, Verb
from control.core.states import Cause, State
from examples.in_band_frames import (
    MAGIC,
    Answer,
    Body,
    Done,
    Frame,
    Ping,
    Quiet,
    Recipient,
    Result,
    Sleep,
    Stay,
    encode,
)
from tests.inner import ffi, lib
from tests.lab.engine_lab import EngineLab, receive
from tests.lab.given import ACTIVE, give, own
from tests.lab.in_band_lab import OK, REFUSED, End

BOTH = pytest.mark.parametrize("family", [4, 6])


@BOTH
@pytest.mark.engine(service={"in_band_stay": True})
def test_a_client_is_told_to_stay_connected(box: EngineLab, family: int) -> None:
    """What figure 25 needs; the policy of it is the control plane's."""
    pair = box.connect(family)
    client = End(pair.client, Recipient.CLIENT)
    for linked in (True, False):
        if not linked:
            box.to_standby(pair)
        box.submit(Op.TELL, pair, token=77)
        assert client.frame() == Frame(Stay(), to=Recipient.CLIENT)
        box.wait(
            lambda: any(e.type == EventType.DONE and e.token == 77 for e in box.events), "the control plane learns it"
        )
        box.events.clear()
    box.to_idle(pair)
    box.submit(Op.TELL, pair)
    box.wait(lambda: (Op.TELL, errno.ENOENT) in box.refusals(pair), "a sleeping one is not told")
    box.wake_and_answer(pair)


def test_a_client_that_does_not_know_of_managers_is_told_nothing(box: EngineLab) -> None:
    pair = box.connect()
    box.submit(Op.TELL, pair)
    box.wait(lambda: (Op.TELL, errno.EPERM) in box.refusals(pair), "it is refused")
    box.exchange(pair)


@BOTH
@pytest.mark.engine(service={"in_band_servers": 1 << Verb.PING})
def test_a_server_that_attaches_may_ask_with_its_first_bytes(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    box.to_standby(pair)
    early = b"hello" + encode(Frame(Ping(), 5, answer=True)) + b"world"
    server = End(box.attach(pair, preamble=b"200\r\n", early=early), Recipient.SERVER)
    assert receive(pair.client, 10) == b"helloworld"
    assert server.frame() == Frame(Answer(Result.OK), 5, Recipient.SERVER)
    server.expect(b"200\r\n")


@BOTH
@pytest.mark.engine(service={"in_band_clients": 1 << Verb.PING})
def test_a_connection_with_half_a_frame_is_not_quiet(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    pair.client.sendall(b"x" + MAGIC)
    assert receive(pair.server, 1) == b"x"
    for op in (Op.STANDBY, Op.IDLE):
        box.submit(op, pair)
        box.wait(lambda op=op: (op, errno.EBUSY) in box.refusals(pair), "half a frame is held")  # type: ignore[misc]
    assert receive(pair.server, len(MAGIC)) == MAGIC, "its time is over, it was payload"
    box.to_idle(pair)
    box.wake_and_answer(pair)


@BOTH
@pytest.mark.engine(service={"in_band_clients": 1 << Verb.PING})
def test_half_a_frame_that_is_held_when_its_server_ends_is_for_the_next_one(box: EngineLab, family: int) -> None:
    pair = box.connect(family)
    pair.client.sendall(b"x" + MAGIC)
    assert receive(pair.server, 1) == b"x"
    pair.server.sendall(b"-")  # the request is answered: with it the server may go
    assert receive(pair.client, 1) == b"-"
    pair.server.close()
    pair.server = box.accept(family)
    assert receive(pair.server, len(MAGIC)) == MAGIC
    box.exchange(pair)


# Policy classes


def overrides(active_ms: int) -> bytes:
    """struct roost_overrides: another quiet interval in ACTIVE."""
    return bytes(ffi.buffer(ffi.new("struct roost_overrides *", {"quiet_ms": [active_ms, 0, 0], "given": 1})))


def sleepers(box: EngineLab, count: int) -> list[Record]:
    """Records of clients that never were, to be put back into the table."""
    host, port = box.target()
    heard = int(time.monotonic()) << 12
    ka = KA.pack(0, 1000, 2000, 0, 0, heard % 2**32, 512, 0, 0, box.spec(4).index, 0)
    keys = [Key.of(f"10.127.{number >> 8}.{number & 255}", 2000, host, port).pack() for number in range(1, count + 1)]
    return [Record(key, ka, REST.pack(10_000 + i, 0, 65535, 65535, 0, 1460, 0, 0, 0)) for i, key in enumerate(keys)]


def put_back(box: EngineLab, records: list[Record], set_by: Callable[[int], bytes]) -> None:
    commands = [Command(Op.INSERT, cause=Cause.RESTORE, id=record.id, record=record) for record in records]
    commands += [Command(Op.OVERRIDE, id=r.id, key=r.key_raw, overrides=set_by(i)) for i, r in enumerate(records)]
    box.engine.submit(commands)


@pytest.mark.engine(service={"in_band_clients": 1 << Verb.QUIET | 1 << Verb.PING})
def test_when_no_room_is_left_for_a_class_requests_are_refused_and_counted(box: EngineLab) -> None:
    room = lib.ROOST_CLASSES - lib.ROOST_CLASS_SERVICES - 1024 - 256  # those of rules, and of commands
    pair = box.connect()
    client = End(pair.client, Recipient.CLIENT)
    records = sleepers(box, room)
    put_back(box, records, lambda i: overrides(10_000 + i))
    box.wait(lambda: box.stat("table_ipv4") == room, "they are in the table")
    box.wait(lambda: box.engine.find_own(records[-1].key_raw, records[-1].id).in_band, "each has a class of its own")
    assert box.stat("classes_full") == 0
    assert client.ask(Quiet(active_ms=5_000)) == REFUSED
    assert client.ask(Quiet(active_ms=10_017)) == OK, "one that is there already"
    assert client.ask(Quiet(active_ms=5_001)) == REFUSED
    assert box.stat("classes_full") == 2
    assert own(box, pair) == Own(in_band={"active_quiet_ms": 10_017})
    box.engine.submit([Command(Op.CLOSE, cause=Cause.COMMAND, key=records[5].key_raw)])
    box.wait(lambda: box.stat("table_ipv4") == room - 1, "one is gone")
    assert client.ask(Quiet(active_ms=5_000)) == OK
    assert box.engine.find_own(pair.key.pack(), pair.id).in_band == {"active_quiet_ms": 5_000}
    assert give(box, pair, ACTIVE, active=5_001) == 0, "a command has others"


@BOTH
@pytest.mark.engine(
    service={"in_band_clients": 1 << Verb.QUIET | 1 << Verb.PING, "no_keepalives": True}, filter_slots=4000
)
def test_what_was_set_in_band_keeps_a_slot_in_sleep_where_others_have_none(box: EngineLab, family: int) -> None:
    """The slot says what it set."""
    plain, pair = box.connect(family), box.connect(family)
    client = End(pair.client, Recipient.CLIENT)
    assert client.ask(Quiet(active_ms=5_000)) == OK
    box.to_sleep(plain)
    box.to_sleep(pair)
    assert (box.stat("filter_members"), box.stat("table_ipv4") + box.stat("table_ipv6")) == (1, 1)
    time.sleep(1.5)  # a round of the sweep and more
    assert box.stat("table_ipv4") + box.stat("table_ipv6") == 1
    box.stop()
    box.start()
    assert box.engine.find_own(pair.key.pack(), pair.id).in_band == {"active_quiet_ms": 5_000}
    assert lib.roost_testing_class_uses(box.engine._raw, lib.ROOST_CLASS_SERVICES) == 1
    box.wake_and_answer(pair)
    assert box.engine.find_class(pair.key.pack())["active_quiet_ms"] == 5_000


@pytest.mark.engine(service={"no_keepalives": True}, filter_slots=4000)
def test_what_was_set_comes_back_for_one_that_sleeps_without_a_slot(box: EngineLab) -> None:
    """Which it has, then: before there were classes, it needed none."""
    pair = box.connect()
    box.to_sleep(pair)
    assert box.stat("filter_members") == 1
    box.engine.submit([Command(Op.OVERRIDE, id=pair.id, key=pair.key, overrides=overrides(7_000))])
    box.wait(lambda: box.engine.find_own(pair.key.pack(), pair.id).in_band, "it is set")
    assert (box.stat("filter_members"), box.stat("table_ipv4")) == (0, 1)
    assert box.told(pair) is State.SLEEP
    box.wake_and_answer(pair)
    assert box.engine.find_class(pair.key.pack())["active_quiet_ms"] == 7_000
    box.close(pair)
    assert lib.roost_testing_class_uses(box.engine._raw, lib.ROOST_CLASS_SERVICES) == 0


@contextmanager
def slow_turns(box: EngineLab) -> Iterator[None]:
    """Between two turns of the engine's there is time for a server to answer."""
    over = threading.Event()

    def hold_up() -> None:
        while not over.is_set():
            lib.roost_testing_hold_up(box.engine._raw, 20_000)
            time.sleep(0.001)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@BOTH
@pytest.mark.parametrize("goal", [Done(), Sleep()])
@pytest.mark.engine(service={"in_band_clients": 1 << Verb.DONE | 1 << Verb.SLEEP})
def test_the_link_that_follows_a_request_to_end_one_is_left_alone(box: EngineLab, family: int, goal: Body) -> None:
    """The server's end of the first may be seen in the turn in which the second is begun."""
    pair = box.connect(family)
    with slow_turns(box):
        pair.client.sendall(encode(Frame(goal)) + b"second")
        assert pair.server.recv(1) == b""
        pair.server.close()
        pair.server = box.accept(family)
        assert receive(pair.server, 6) == b"second"
    box.exchange(pair)
    assert box.stat("linked") == 2
