# SPDX-License-Identifier: Apache-2.0
"""In-band commands: cext/inband/inband.c and examples/in_band_frames.py against each other and docs/in-band.md."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from control.core.states import State
from examples.in_band_frames import (
    DLE,
    MAGIC,
    MAX_FRAME,
    MAX_MS,
    MAX_NUMBER,
    NEVER,
    AlwaysActive,
    Answer,
    Bad,
    Body,
    Decoder,
    Done,
    Frame,
    KeepAlive,
    Name,
    Ping,
    Quiet,
    Recipient,
    Release,
    Report,
    Result,
    Sleep,
    Status,
    Stay,
    Unknown,
    encode,
    escape,
    seal,
)
from tests.inner import ffi, lib

MANAGER = "edge-1"
DOCS = Path(__file__).parents[2] / "docs" / "in-band.md"
Item = bytes | Frame


class Filter:
    """The C filter of one direction; what it lets out is merged, as a stream would."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.passed = b""  # payload, and frames that are to be forwarded
        self.requests: list[tuple[int, Frame]] = []  # how much had passed before, and what was asked
        self.copied = 0  # bytes of payload that were not handed out from the chunk itself
        self.spans = 0
        self.most_held = 0

    def feed(self, chunk: bytes) -> None:
        buffer = ffi.from_buffer("uint8_t[]", chunk)
        first = int(ffi.cast("uintptr_t", buffer))
        data, length = ffi.new("const uint8_t **", buffer), ffi.new("size_t *", len(chunk))
        span, span_length = ffi.new("const uint8_t **"), ffi.new("size_t *")
        fields, name = ffi.new("uint32_t[10]"), ffi.new("char[64]")
        while found := lib.roost_testing_inband_next(self._raw, data, length, span, span_length, fields, name):
            assert found in (1, 2)
            out = bytes(ffi.buffer(span[0], span_length[0]))
            assert out, "an item is never empty"
            if found == 1:
                self.passed += out
                self.spans += 1
                self.copied += 0 if first <= int(ffi.cast("uintptr_t", span[0])) < first + len(chunk) else len(out)
                continue
            frame = frame_of(list(fields), ffi.string(name).decode(), out)
            self.requests.append((len(self.passed), frame))
            if frame.forward:
                self.passed += out
        assert length[0] == 0
        held, allocated, _ = self.waiting()
        self.most_held = max(self.most_held, held)
        assert bool(held) == bool(allocated), "nothing is allocated while no frame is incomplete"

    def waiting(self) -> tuple[int, int, int]:
        """Bytes held, bytes allocated for them, and how many ms they may wait."""
        allocated, patience = ffi.new("size_t *"), ffi.new("uint32_t *")
        held = lib.roost_testing_inband_held(self._raw, allocated, patience)
        return int(held), int(allocated[0]), int(patience[0])

    def flush(self) -> None:
        out = ffi.new("uint8_t[]", MAX_FRAME)
        self.passed += bytes(ffi.buffer(out, lib.roost_testing_inband_flush(self._raw, out)))
        assert self.waiting() == (0, 0, 0)


def frame_of(fields: list[int], name: str, raw: bytes) -> Frame:
    """What C says about a request as Python would say it."""
    verb, number, answer, forward, on, given, active, standby, idle, interval = fields
    quiet = [ms if given >> i & 1 else None for i, ms in enumerate((active, standby, idle))]
    text = raw[len(MAGIC) : -10].decode()
    bodies: list[Body] = [Unknown(text), Bad(text), Ping(), Done(), Quiet(*quiet),
                          KeepAlive(bool(on), interval or None), AlwaysActive(bool(on)), Name(name), Sleep(),
                          Status(), Release()]  # fmt: skip
    manager = re.match(rb"\x10ROOST/1 m(?:@(\S+))? ", raw)
    assert manager
    named = manager[1].decode() if manager[1] else None
    return Frame(bodies[verb], number, Recipient.MANAGER, bool(answer), bool(forward), named)


@contextmanager
def c_filter(manager: str = MANAGER) -> Iterator[Filter]:
    raw = lib.roost_testing_inband(manager.encode())
    try:
        yield Filter(raw)
    finally:
        lib.roost_testing_inband_free(raw)


Output = tuple[bytes, list[tuple[int, Frame]]]


def by_c(chunks: Iterable[bytes], manager: str = MANAGER) -> Output:
    with c_filter(manager) as f:
        for chunk in chunks:
            f.feed(chunk)
        f.flush()
        assert f.most_held < MAX_FRAME
        return f.passed, f.requests


def by_python(chunks: Iterable[bytes], manager: str = MANAGER) -> Output:
    decoder = Decoder(Recipient.MANAGER, manager=manager)
    passed, requests = b"", []
    for chunk in chunks:
        for part in decoder.feed(chunk):
            assert part
            if isinstance(part, bytes):
                passed += part
                continue
            requests.append((len(passed), part))
            if part.forward:
                passed += seal_again(part)
        assert decoder.held < MAX_FRAME
    return passed + decoder.flush(), requests


def seal_again(frame: Frame) -> bytes:
    """The bytes of a frame that came in."""
    return seal(frame.body.text) if isinstance(frame.body, Unknown | Bad) else encode(frame)


def split(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Cut at these places (modulo the length)."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


def checked(text: str) -> bytes:
    """As `seal`, without a look at what it seals."""
    raw = MAGIC + text.encode() + b" "
    return raw + b"%08x\n" % zlib.crc32(raw)


def broken_check(frame: bytes) -> bytes:
    """The same frame with a check that is not its own."""
    return frame[:-9] + b"%08x\n" % (int(frame[-9:-1], 16) ^ 1)


numbers = st.integers(0, MAX_NUMBER)
intervals = st.integers(1, MAX_MS)
quiet_intervals = st.one_of(st.none(), st.just(NEVER), intervals)
names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
requests: st.SearchStrategy[Body] = st.one_of(
    st.sampled_from([Ping(), Done(), Sleep(), Status(), Release()]),
    st.builds(Quiet, quiet_intervals, quiet_intervals, quiet_intervals).filter(lambda quiet: quiet != Quiet()),
    st.builds(KeepAlive, st.just(True), st.one_of(st.none(), intervals)), st.just(KeepAlive(False)),
    st.builds(AlwaysActive, st.booleans()), st.builds(Name, names),
)  # fmt: skip
frames = st.builds(Frame, requests, numbers, st.just(Recipient.MANAGER), st.booleans(), st.booleans(),
                   st.sampled_from([None, MANAGER]))  # fmt: skip

ODD: dict[str, type[Unknown | Bad]] = {  # frames for this manager, their check is right
    "m 5? hibernate": Unknown,
    "m@edge-1 5 hibernate deep=1": Unknown,
    "m 9 answer ok": Unknown,
    "m 9 stay": Unknown,
    "m 1 a": Unknown,
    "m 1! ping": Bad,
    "m 1>? ping": Bad,
    "m 1?? ping": Bad,
    "m 1 ping ": Bad,
    "m 1 hibernate ": Bad,
    "m 1 ping now": Bad,
    "m 1 quiet": Bad,
    "m 1 quiet active": Bad,
    "m 1 quiet active=": Bad,
    "m 1 quiet active=0": Bad,
    "m 1 quiet active=01": Bad,
    "m 1 quiet active=+1": Bad,
    "m 1 quiet active=1.5": Bad,
    "m 1 quiet active=4294967296": Bad,
    "m 1 quiet active=99999999999999999999999999": Bad,
    "m 1 quiet active=1 active=1": Bad,
    "m 1 quiet active=1  idle=1": Bad,
    "m 1 quiet  active=1": Bad,
    "m 1 quiet active=1 idle=soon": Bad,
    "m 1 quiet active=1 hours=2": Bad,
    "m 1 keepalive": Bad,
    "m 1 keepalive yes": Bad,
    "m 1 keepalive on off": Bad,
    "m 1 keepalive off interval=1000": Bad,
    "m 1 keepalive on interval=never": Bad,
    "m 1 keepalive on interval=0": Bad,
    "m 1 keepalive on interval=1 interval=1": Bad,
    "m 1 always-active": Bad,
    "m 1 always-active off on": Bad,
    "m 1 name": Bad,
    "m 1 name two words": Bad,
    "m 1 name -minus": Bad,
    "m 1 name a/b": Bad,
    "m 1 name " + "n" * 64: Bad,
    "m 1> hibernate": Unknown,
    "m 1> sleep now": Bad,
}

FOREIGN = [  # their check is right, and they are none of this manager's business: payload
    "c 1 answer ok", "s 1 answer ok", "c 0 stay", "s 1? ping", "m@edge-2 1 ping", "m@edge 1 ping", "m@edge-11 1 ping",
    "m@ 1 ping", "c@edge-1 1 ping", "x 1 ping", "mm 1 ping", "M 1 ping", "m 65536 ping", "m 99999 ping",
    "m 100000 ping", "m 01 ping", "m 00 ping", "m -1 ping", "m  1 ping", "m ? ping", "m 1a ping", "m 1?a ping",
    "m 1 Ping", "m 1 p1ng", "m 1 -1", "m 1  ping", "m 1", "m 1 ", "m", "hello, this is only similar", "", " ",
    "m 1 hibernate \x7f", "m 1 hibernate \t", "m 1 hibernate \x00", "m 1 hibernaté", "m 1\x10 ping",
]  # fmt: skip

PING = encode(Frame(Ping()))
near_misses = st.one_of(
    frames.map(encode).map(broken_check),
    st.tuples(frames.map(encode), st.integers(0, MAX_FRAME), st.integers(0, 7)).map(
        lambda t: t[0][: t[1] % len(t[0])] + bytes([t[0][t[1] % len(t[0])] ^ 1 << t[2]]) + t[0][t[1] % len(t[0]) + 1 :]
    ),
    st.tuples(frames.map(encode), st.integers(0, MAX_FRAME)).map(lambda t: t[0][: t[1] % len(t[0])]),
    st.sampled_from([checked(text) for text in FOREIGN]),
    st.integers(1, len(MAGIC)).map(lambda n: MAGIC[:n]),
    st.sampled_from([DLE, DLE + DLE, MAGIC * 2, MAGIC + b"\n", MAGIC + b"m 0 ping\n", MAGIC + b"a" * MAX_FRAME,
                     PING.replace(b"/1", b"/2"), PING.replace(b"\n", b"\r\n"), PING[:-1]]),
)  # fmt: skip
plain = st.one_of(st.binary(max_size=40), st.text("\x10ROST/1 m0ping?>\n", max_size=40).map(str.encode))
pieces = st.lists(
    st.one_of(
        plain,
        near_misses,
        frames.map(encode),
        st.sampled_from([seal(text) for text in ODD]),
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(frame=frames)
@example(frame=Frame(Quiet(MAX_MS, MAX_MS, MAX_MS), MAX_NUMBER, answer=True, forward=True, manager=MANAGER))
@example(frame=Frame(Quiet(NEVER, None, 1)))
@example(frame=Frame(Name("n" * 63), manager=MANAGER))
def test_what_python_writes_is_what_both_read(frame: Frame) -> None:
    raw = encode(frame)
    assert raw.endswith(b"\n")
    assert len(raw) <= MAX_FRAME
    assert raw[1:-1].isascii()
    assert raw[1:-1].decode().isprintable()
    expected = raw if frame.forward else b"", [(0, frame)]
    assert by_c([raw]) == expected
    assert by_python([raw]) == expected


def test_the_bytes_of_a_frame_are_those_of_the_specification() -> None:
    assert encode(Frame(Ping())) == b"\x10ROOST/1 m 0 ping " + b"%08x\n" % zlib.crc32(b"\x10ROOST/1 m 0 ping ")
    assert encode(Frame(Ping())) == b"\x10ROOST/1 m 0 ping a0c3711a\n"


def test_the_frames_of_the_documentation_are_read_as_frames() -> None:
    lines = re.findall(r"␐(ROOST/1 \S.*?)␊", DOCS.read_text())
    assert len(lines) >= 12
    decoder = Decoder(*Recipient)
    for line in lines:
        raw = DLE + line.encode() + b"\n"
        parts = decoder.feed(raw)
        assert len(parts) == 1, f"payload: {line}"
        (frame,) = parts
        assert isinstance(frame, Frame)
        assert not isinstance(frame.body, Unknown | Bad), line
        assert encode(frame) == raw


@settings(max_examples=500, deadline=None)
@given(parts=pieces, cuts=st.lists(st.integers(0, 2000), max_size=30))
def test_frames_are_taken_out_and_everything_else_passes_however_it_is_cut(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    whole = by_c([stream])
    assert by_c(split(stream, cuts)) == whole
    assert by_python([stream]) == whole
    assert by_python(split(stream, cuts)) == whole


@settings(max_examples=25, deadline=None)
@given(parts=pieces)
@example(parts=[b"GET /", PING, MAGIC + b"m 0 ", encode(Frame(Name("a-1"), 7))])
def test_a_cut_at_every_single_byte_and_between_all_bytes_changes_nothing(
    parts: list[bytes],
) -> None:
    stream = b"".join(parts)
    whole = by_c([stream])
    for cut in range(1, len(stream)):
        assert by_c([stream[:cut], stream[cut:]]) == whole
    assert by_c([bytes([byte]) for byte in stream]) == whole
    assert by_python([bytes([byte]) for byte in stream]) == whole


quoted = st.one_of(st.text("abc \r\n{}:", max_size=60).map(str.encode), st.binary(max_size=60).map(
    lambda b: b.replace(DLE, b"")))  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.one_of(quoted, frames, near_misses.filter(lambda b: b.endswith(b"\n"))), max_size=8),
       cuts=st.lists(st.integers(0, 2000), max_size=10))  # fmt: skip
def test_the_output_is_the_input_without_its_frames(parts: list[Item], cuts: list[int]) -> None:
    """Against a model that knows where the frames are: no piece begins what the next could complete."""
    passed, asked = b"", []
    for part in parts:
        if isinstance(part, Frame):
            asked.append((len(passed), part))
        passed += part if isinstance(part, bytes) else encode(part) if part.forward else b""
    stream = b"".join(part if isinstance(part, bytes) else encode(part) for part in parts)
    assert by_c(split(stream, cuts)) == (passed, asked)


@pytest.mark.parametrize("text", ODD)
def test_a_frame_that_is_not_understood_is_consumed_and_can_be_answered(text: str) -> None:
    passed, asked = by_c([b"before", seal(text), b"after"])
    assert (passed, asked) == by_python([b"before", seal(text), b"after"])
    ((place, frame),) = asked
    forwarded = seal(text) if ">" in text and frame.forward else b""
    assert passed == b"before" + forwarded + b"after"
    assert place == len(b"before")
    assert frame.body == ODD[text](text)
    assert frame.answer == ("?" in text.split()[1][:2])
    assert frame.number == int(re.match(r"\S+ (\d+)", text)[1])  # type: ignore[index]


@pytest.mark.parametrize("text", FOREIGN)
def test_a_frame_for_somebody_else_is_payload(text: str) -> None:
    raw = checked(text)
    assert by_c([raw]) == (raw, [])
    assert by_python([raw]) == (raw, [])


@pytest.mark.parametrize("manager", [None, "edge-1", "edge-2"])
def test_the_name_of_a_manager_chooses_among_several_in_a_row(manager: str | None) -> None:
    frame = Frame(Done(), 3, manager=manager)
    first, asked_first = by_c([encode(frame)], "edge-1")
    second, asked_second = by_c([first], "edge-2")
    assert second == b""
    assert bool(asked_first) == (manager != "edge-2")
    assert bool(asked_second) == (manager == "edge-2")


def test_no_flipped_bit_of_a_frame_goes_unnoticed() -> None:
    raw = encode(Frame(Quiet(30_000, NEVER, 3_600_000), 42, answer=True, forward=True))
    for at in range(len(raw)):
        for bit in range(8):
            broken = raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
            assert by_c([broken]) == (broken, [])
            assert by_python([broken]) == (broken, [])


def test_the_longest_frame_is_one_and_a_longer_one_is_payload() -> None:
    longest = seal("m 1 hibernate " + "z" * (MAX_FRAME - len(seal("m 1 hibernate "))))
    assert len(longest) == MAX_FRAME
    longer = checked("m 1 hibernate " + "z" * (MAX_FRAME - len(seal("m 1 hibernate ")) + 1))
    assert len(longer) == MAX_FRAME + 1
    for chunks in ([longest], split(longest, range(MAX_FRAME))):
        for output in (by_c(chunks), by_python(chunks)):
            assert output == (b"", [(0, Frame(Unknown(longest[len(MAGIC) : -10].decode()), 1))])
    for chunks in ([longer], split(longer, range(MAX_FRAME + 1))):
        for output in (by_c(chunks), by_python(chunks)):
            assert output == (longer, [])
    with pytest.raises(ValueError, match="257"):
        seal("m 1 hibernate " + "z" * (MAX_FRAME - len(seal("m 1 hibernate ")) + 1))


def test_payload_is_handed_out_in_place_and_in_one_span_unless_it_had_to_be_held() -> None:
    with c_filter() as f:
        f.feed(b"x" * 60_000 + broken_check(PING) + b"\x10 ROOST\x10\x10" + b"y" * 5_000)
        assert (f.spans, f.copied) == (1, 0)
        f.feed(b"one" + PING + b"two" + encode(Frame(Sleep())) + PING + b"three")
        assert (f.spans, f.copied, len(f.requests)) == (4, 0, 3)
        f.feed(b"four" + MAGIC + b"m 0 ")
        assert (f.spans, f.copied) == (5, 0)
        f.feed(b"\x00" + b"z" * 60_000)
        assert (f.spans, f.copied) == (7, len(MAGIC + b"m 0 "))


def test_the_fewest_bytes_are_held_and_only_while_they_may_become_a_frame() -> None:
    with c_filter() as f:
        for length in range(1, len(PING)):
            f.feed(PING[length - 1 : length])
            held, allocated, patience = f.waiting()
            assert held == length
            assert MAX_FRAME <= allocated <= MAX_FRAME + 16
            assert patience == (1000 if length >= len(MAGIC) else 40)
        assert f.passed == b""
        f.feed(PING[-1:])
        assert f.waiting() == (0, 0, 0)
        f.feed(MAGIC + b"m 0 ping\x07")
        assert f.waiting() == (0, 0, 0)
        f.feed(MAGIC[:5])
        f.feed(b"")
        assert f.waiting()[0] == 5
        f.feed(DLE)
        assert f.waiting()[0] == 1
        assert f.passed == MAGIC + b"m 0 ping\x07" + MAGIC[:5]


@settings(max_examples=200, deadline=None)
@given(before=plain, frame=frames, length=st.integers(1, MAX_FRAME), after=plain)
def test_a_flush_hands_out_what_was_held_as_payload(before: bytes, frame: Frame, length: int, after: bytes) -> None:
    begun = encode(frame)[: length % len(encode(frame))]
    decoder = Decoder(Recipient.MANAGER, manager=MANAGER)
    with c_filter() as f:
        f.feed(before + begun)
        parts = decoder.feed(before + begun)
        assert f.waiting()[0] == decoder.held
        if decoder.held:
            parts.append(decoder.flush())
        f.flush()
        f.feed(after)
        f.flush()
        parts += [*decoder.feed(after), decoder.flush()]
        assert f.passed == before + begun + after
        assert b"".join(part for part in parts if isinstance(part, bytes)) == f.passed
        assert f.requests == []


@settings(max_examples=500, deadline=None)
@given(noise=st.lists(st.one_of(st.binary(max_size=300), st.text("\x10ROST/1 m@?>0\n", max_size=300).map(str.encode)),
                      max_size=6))  # fmt: skip
def test_noise_passes_byte_for_byte(noise: list[bytes]) -> None:
    assert by_c(noise) == (b"".join(noise), [])
    assert by_python(noise) == (b"".join(noise), [])


@pytest.mark.parametrize(
    "pattern", [DLE, MAGIC, MAGIC[:-1], MAGIC + b"a" * 246, MAGIC + b"a" * 247, broken_check(PING), PING[:-1] + b" ",
                seal("c 1 ping"), DLE + b"R"],
)  # fmt: skip
def test_hostile_payload_costs_time_in_proportion_to_its_length(pattern: bytes) -> None:
    """A megabyte takes milliseconds; work that grew with the square of the length would take minutes."""
    payload = pattern * ((1 << 20) // len(pattern))
    begin = time.process_time()
    assert by_c([payload]) == (payload, [])
    assert time.process_time() - begin < 1


@settings(max_examples=300, deadline=None)
@given(to=st.sampled_from([Recipient.CLIENT, Recipient.SERVER]), number=numbers, state=st.sampled_from(list(State)),
       quiet=st.tuples(*[st.one_of(st.just(NEVER), intervals)] * 3), name=st.one_of(st.none(), names),
       counts=st.tuples(*[st.integers(0, 2**64 - 1)] * 2))  # fmt: skip
@example(to=Recipient.SERVER, number=MAX_NUMBER, state=State.STANDBY, quiet=(MAX_MS,) * 3, name="n" * 63,
         counts=(2**64 - 1,) * 2)  # fmt: skip
def test_a_status_answer_in_c_is_that_of_python(
    to: Recipient, number: int, state: State, quiet: tuple[int, int, int], name: str | None, counts: tuple[int, int]
) -> None:
    out = ffi.new("uint8_t[]", MAX_FRAME)
    length = lib.roost_testing_inband_status(
        out, to.value.encode(), number, int(state), quiet, (name or "").encode(), *counts
    )
    raw = bytes(ffi.buffer(out, length))
    report = Report(state.label, *quiet, *counts, name)
    assert raw == encode(Frame(Answer(Result.OK, report), number, to))
    assert Decoder(to).feed(raw) == [Frame(Answer(Result.OK, report), number, to)]


@pytest.mark.parametrize(("code", "result"), list(enumerate(Result)))
def test_an_answer_in_c_is_that_of_python(code: int, result: Result) -> None:
    out = ffi.new("uint8_t[]", MAX_FRAME)
    for to in (Recipient.CLIENT, Recipient.SERVER):
        raw = bytes(ffi.buffer(out, lib.roost_testing_inband_answer(out, to.value.encode(), 77, code)))
        assert raw == encode(Frame(Answer(result), 77, to))
        assert Decoder(to).feed(b"a" + raw + b"b") == [b"a", Frame(Answer(result), 77, to), b"b"]


def test_stay_in_c_is_that_of_python() -> None:
    out = ffi.new("uint8_t[]", MAX_FRAME)
    raw = bytes(ffi.buffer(out, lib.roost_testing_inband_stay(out)))
    assert raw == encode(Frame(Stay(), to=Recipient.CLIENT))
    assert Decoder(Recipient.CLIENT).feed(raw) == [Frame(Stay(), to=Recipient.CLIENT)]


def test_an_end_reads_answers_of_a_later_version_and_notices_what_is_wrong() -> None:
    decoder = Decoder(Recipient.CLIENT)
    told = "state=ACTIVE active=1 standby=never idle=2 rx=3 tx=4"
    known = Frame(Answer(Result.OK, Report("ACTIVE", 1, NEVER, 2, 3, 4)), 1, Recipient.CLIENT)
    assert decoder.feed(seal(f"c 1 answer ok {told} colour=red")) == [known]
    assert decoder.feed(seal("c 1 answer refused why=policy")) == [replace(known, body=Answer(Result.REFUSED))]
    for text in ("answer", "answer perhaps", "answer ok state=ACTIVE", "answer ok x", "stay here"):
        assert decoder.feed(seal(f"c 1 {text}")) == [replace(known, body=Bad(f"c 1 {text}"))]
    assert decoder.feed(seal("c 1 ping")) == [replace(known, body=Unknown("c 1 ping"))]


def test_an_end_to_which_commands_are_forwarded_reads_them_whatever_manager_they_name() -> None:
    decoder = Decoder(Recipient.SERVER, Recipient.MANAGER)
    for frame in (Frame(Done(), 1, forward=True), Frame(Done(), 2, forward=True, manager="edge-2")):
        assert decoder.feed(encode(frame)) == [frame]


@settings(max_examples=400, deadline=None)
@given(chunks=st.lists(st.one_of(plain, near_misses, frames.map(encode)), max_size=6),
       cuts=st.lists(st.integers(0, 4000), max_size=10))  # fmt: skip
@example(chunks=[MAGIC[:1], MAGIC[1:] + PING[9:]], cuts=[])
def test_escaped_payload_passes_byte_for_byte_though_frames_stand_in_it(chunks: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(map(escape, chunks))
    passed, asked = by_c(split(sent, cuts))
    assert passed == b"".join(chunks)
    assert all(frame == Frame(Ping()) for _, frame in asked)


def test_payload_without_a_dle_needs_no_escape() -> None:
    assert escape(b"GET / HTTP/1.1\r\n\r\n") == b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("frame", "why"),
    [(Frame(Ping(), -1), "number"), (Frame(Ping(), MAX_NUMBER + 1), "number"), (Frame(Quiet()), "no quiet interval"),
     (Frame(Quiet(-1)), "interval"), (Frame(Quiet(MAX_MS + 1)), "interval"), (Frame(KeepAlive(True, 0)), "interval"),
     (Frame(KeepAlive(False, 1000)), "cannot be sent"), (Frame(Name("")), "no name"), (Frame(Name("a b")), "no name"),
     (Frame(Name("n" * 64)), "no name"), (Frame(Name("name\n")), "no name"), (Frame(Ping(), manager="a b"), "no name"),
     (Frame(Unknown("m 0 x")), "cannot be sent"), (Frame(Bad("m 0 ping x")), "cannot be sent"),
     (Frame(Stay(), to=Recipient.CLIENT, manager="edge-1"), "for a manager")],
)  # fmt: skip
def test_what_could_not_be_read_is_not_written(frame: Frame, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        encode(frame)


@pytest.mark.parametrize("text", ["m 0 ping\n", "m 0 p\x10ng", "m 0 name \x7f", "m 0 name é"])
def test_a_frame_is_printable(text: str) -> None:
    with pytest.raises(ValueError, match=r"printable|ascii"):
        seal(text)
