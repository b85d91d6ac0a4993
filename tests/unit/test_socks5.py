# SPDX-License-Identifier: Apache-2.0
"""Attach by SOCKS5: the handshake byte by byte (RFC 1928, RFC 1929)."""

from __future__ import annotations

import ipaddress
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.frontends.handshake import (
    ANSWERS,
    ENDED,
    UNAUTHENTICATED,
    Answer,
    Credentials,
    Event,
    Refusal,
    Reply,
    Request,
    refusal_for,
)
from appliance.frontends.socks5 import PREAMBLE, Socks5Handshake, reply
from appliance.frontends.target import Address, Name

GREETING = b"\x05\x01\x00"
REQUEST = b"\x05\x01\x00\x01\xc0\x00\x02\x07\x9c\xbb"
CLIENT = Address("192.0.2.7", 40123)


def named(name: bytes, port: int = 80) -> bytes:
    return b"\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big")


def play(handshake: Socks5Handshake, data: bytes, cuts: list[int], verdict: bool = True) -> list[Event]:
    """All that happens when these bytes come in these pieces; early bytes of later pieces are the engine's."""
    events: list[Event] = []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        if start == end:
            continue
        handshake.receive(data[start:end])
        while (event := handshake.next_event()) is not None:
            if isinstance(event, Request):
                return [*events, Request(event.target, event.early + data[end:])]
            events.append(event)
            if isinstance(event, Refusal):
                return events
            if isinstance(event, Credentials):
                handshake.authenticated(verdict)
    return events


@given(st.lists(st.integers(0, 40)), st.binary(max_size=30))
def test_it_may_be_split_at_every_byte_and_nothing_behind_it_is_lost(cuts: list[int], early: bytes) -> None:
    events = play(Socks5Handshake(), GREETING + REQUEST + early, cuts)
    assert events == [Answer(b"\x05\x00"), Request(CLIENT, early)]


@given(st.lists(st.integers(0, 600)), st.binary(min_size=1, max_size=255), st.binary(max_size=255), st.booleans())
def test_user_and_password_come_before_the_request(
    cuts: list[int], user: bytes, password: bytes, verdict: bool
) -> None:
    asked = b"\x01" + bytes([len(user)]) + user + bytes([len(password)]) + password
    handshake = Socks5Handshake(password=True)
    events = play(handshake, b"\x05\x02\x00\x02" + asked + REQUEST + b"early", cuts, verdict)
    assert events[:2] == [Answer(b"\x05\x02"), Credentials(user.decode(errors="replace"), password)]
    if verdict:
        assert events[2:] == [Answer(b"\x01\x00"), Request(CLIENT, b"early")]
    else:
        assert events[2:] == [UNAUTHENTICATED]
        assert handshake.refusal(UNAUTHENTICATED) == b"\x01\x01"


@pytest.mark.parametrize(("password", "offered"), [(True, b"\x00"), (True, b"\x01"), (False, b"\x02"), (False, b"")])
def test_a_method_that_policy_does_not_have_is_refused(password: bool, offered: bytes) -> None:
    handshake = Socks5Handshake(password)
    (refusal,) = play(handshake, b"\x05" + bytes([len(offered)]) + offered + REQUEST, [])
    assert isinstance(refusal, Refusal)
    assert handshake.refusal(refusal) == b"\x05\xff"


@given(st.ip_addresses(), st.integers(0, 65535))
def test_both_kinds_of_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    kind = b"\x01" if address.version == 4 else b"\x04"
    data = GREETING + b"\x05\x01\x00" + kind + address.packed + port.to_bytes(2, "big")
    mapped = getattr(address, "ipv4_mapped", None)
    assert play(Socks5Handshake(), data, [])[1:] == [Request(Address(str(mapped or address), port), b"")]


@pytest.mark.parametrize(
    ("host", "target"),
    [
        (b"Thermostat-17.roost", Name("thermostat-17.roost")),
        (b"192.0.2.7", Address("192.0.2.7", 80)),
        (b"2001:db8::7", Address("2001:db8::7", 80)),
        (b"a" * 63 + b".roost.", Name("a" * 63 + ".roost")),
    ],
)
def test_names_and_addresses_written_as_names(host: bytes, target: Address | Name) -> None:
    assert play(Socks5Handshake(), GREETING + named(host), [])[1:] == [Request(target, b"")]


@pytest.mark.parametrize("host", [b"", b"\xff\xfe", b"a b", b"192.0.2.700", b"fe80::1%eth0", b"x" * 255, b"-a.roost"])
def test_what_is_nobodys_name_is_an_unreachable_host(host: bytes) -> None:
    handshake = Socks5Handshake()
    refusal = play(handshake, GREETING + named(host), [])[1]
    assert isinstance(refusal, Refusal)
    assert handshake.refusal(refusal) == b"\x05\x04\x00\x01\0\0\0\0\0\0"


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"\x05\x02\x00\x01\xc0\x00\x02\x07\x9c\xbb", Reply.COMMAND_NOT_SUPPORTED),
        (b"\x05\x03\x00\x01\xc0\x00\x02\x07\x9c\xbb", Reply.COMMAND_NOT_SUPPORTED),
        (b"\x05\x01\x00\x02\xc0\x00\x02\x07\x9c\xbb", Reply.ADDRESS_TYPE_NOT_SUPPORTED),
        (b"\x04\x01\x00\x01\xc0\x00\x02\x07\x9c\xbb", Reply.GENERAL_FAILURE),
    ],
)
def test_what_is_not_served_is_said_in_its_own_code(request_bytes: bytes, code: Reply) -> None:
    handshake = Socks5Handshake()
    refusal = play(handshake, GREETING + request_bytes, [])[1]
    assert isinstance(refusal, Refusal)
    assert handshake.refusal(refusal) == bytes([5, code, 0, 1, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("data", [b"", b"\x05", GREETING, GREETING + REQUEST[:5], GREETING + named(b"abc")[:6]])
def test_an_end_before_the_request_is_an_end(data: bytes) -> None:
    handshake = Socks5Handshake()
    if data:
        play(handshake, data, [])
    handshake.receive(b"")
    assert handshake.next_event() == ENDED


def test_a_verdict_that_was_never_given_is_no() -> None:
    handshake = Socks5Handshake(password=True)
    handshake.receive(b"\x05\x01\x02\x01\x01a\x01b" + REQUEST)
    assert handshake.next_event() == Answer(b"\x05\x02")
    assert handshake.next_event() == Credentials("a", b"b")
    assert handshake.next_event() == UNAUTHENTICATED


@given(st.binary(max_size=600), st.lists(st.integers(0, 600)), st.booleans())
def test_any_bytes_end_in_a_request_a_refusal_or_waiting(data: bytes, cuts: list[int], password: bool) -> None:
    handshake = Socks5Handshake(password)
    for event in play(handshake, b"\x05" + data, cuts):
        if isinstance(event, Refusal):
            assert len(handshake.refusal(event)) in (2, 10)


@given(st.binary(max_size=2000))
def test_no_more_than_a_message_is_kept(data: bytes) -> None:
    handshake = Socks5Handshake()
    for byte in GREETING + data:
        handshake.receive(bytes([byte]))
        if isinstance(handshake.next_event(), Request | Refusal):
            return
        assert len(handshake._buffer) <= 4 + 1 + 255 + 2


def test_every_errno_of_the_table_has_a_reply_that_is_no_success() -> None:
    for number, (status, code, reason) in ANSWERS.items():
        assert 400 <= status < 600
        assert code is not Reply.SUCCEEDED
        assert refusal_for(number) == Refusal(status, code, reason)
    assert refusal_for(95).reply is Reply.GENERAL_FAILURE
    assert (len(PREAMBLE), PREAMBLE) == (10, reply(Reply.SUCCEEDED))
