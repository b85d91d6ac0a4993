# SPDX-License-Identifier: Apache-2.0
"""Attach by HTTP CONNECT: the handshake byte by byte, and what a target is."""

from __future__ import annotations

import base64
import itertools

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.frontends.connect import ConnectHandshake, response
from appliance.frontends.handshake import ANSWERS, UNAUTHENTICATED, Credentials, Event, Refusal, Request
from appliance.frontends.target import Address, Name, parse_address, parse_authority

REQUEST = b"CONNECT 192.0.2.7:40123 HTTP/1.1\r\nHost: 192.0.2.7:40123\r\nUser-Agent: x\r\n\r\n"
CLIENT = Address("192.0.2.7", 40123)


def feed(data: bytes, cuts: list[int], handshake: ConnectHandshake | None = None) -> Event | None:
    handshake = handshake or ConnectHandshake()
    edges = [0, *sorted(cuts), len(data)]
    for index, (start, end) in enumerate(itertools.pairwise(edges)):
        if start == end:
            continue
        handshake.receive(data[start:end])
        event = handshake.next_event()
        if isinstance(event, Request):
            # What is read later is read from the socket by the engine.
            return Request(event.target, event.early + data[edges[index + 1] :])
        if event is not None:
            return event
    return None


@pytest.mark.parametrize("cut", range(1, len(REQUEST)))
def test_a_request_may_be_split_at_every_byte(cut: int) -> None:
    assert feed(REQUEST + b"early\x00bytes", [cut]) == Request(CLIENT, b"early\x00bytes")


@given(st.lists(st.integers(0, len(REQUEST) + 20)), st.binary(max_size=40))
def test_no_byte_behind_the_request_is_lost(cuts: list[int], early: bytes) -> None:
    data = REQUEST + early
    assert feed(data, [min(c, len(data)) for c in cuts]) == Request(CLIENT, early)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)), st.booleans())
def test_any_bytes_end_in_a_target_a_refusal_or_waiting(data: bytes, cuts: list[int], password: bool) -> None:
    outcome = feed(data, [min(c, len(data)) for c in cuts], ConnectHandshake(password))
    assert outcome is None or isinstance(outcome, Request | Credentials | Refusal)
    if isinstance(outcome, Refusal):
        assert response(outcome.status, outcome.reason).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 405, "only CONNECT"),
        (b"CONNECT 192.0.2.7 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not client-address:client-port"),
        (b"CONNECT 192.0.2.7:0 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not client-address:client-port"),
        (b"CONNECT 192.0.2.7:99999 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not client-address:client-port"),
        (b"CONNECT 192.0.2.700:5 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "neither a client's address nor"),
        (b"CONNECT a_b:5@c:5 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not client-address:client-port"),
        (b"CONNECT 2001:db8::1:5 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "IPv6 goes in brackets"),
        (b"CONNECT [192.0.2.7]:5 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "IPv6 goes in brackets"),
        (b"CONNECT [fe80::1%25eth0]:5 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "no zone here"),
        (b"CONNECT 192.0.2.7:5 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 400, "no content"),
        (b"CONNECT 192.0.2.7:5 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "no content"),
        (b"CONNECT 192.0.2.7:5 HTTP/1.1\r\n\r\n", 400, "Host"),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1", 400, "illegal request line"),
        (b"CONNECT 192.0.2.7:5 HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20000, 431, "too long"),
    ],
)
def test_what_cannot_be_served_is_said(request_bytes: bytes, status: int, words: str) -> None:
    outcome = feed(request_bytes, [])
    assert isinstance(outcome, Refusal)
    assert outcome.status == status
    assert words.lower() in outcome.reason.lower()


def test_a_head_may_have_16_kib_and_what_came_with_the_last_of_them() -> None:
    def of(size: int) -> bytes:
        start = b"CONNECT 192.0.2.7:40123 HTTP/1.1\r\nHost: a\r\nX: "
        return start + b"y" * (size - len(start) - 4) + b"\r\n\r\n"

    chunks = list(range(0, 16 * 1024 + 1, 4096))
    assert feed(of(16 * 1024), chunks) == Request(CLIENT, b"")
    outcome = feed(of(16 * 1024 + 4096 + 1), [*chunks, 16 * 1024 + 4096])
    assert isinstance(outcome, Refusal)
    assert outcome.status == 431


# -- credentials ------------------------------------------------------------------------------------------------------


def with_credentials(value: bytes, target: bytes = b"192.0.2.7:40123") -> bytes:
    return b"CONNECT " + target + b" HTTP/1.1\r\nHost: a\r\nProxy-Authorization: " + value + b"\r\n\r\n"


def basic(user_and_password: bytes) -> bytes:
    return b"Basic " + base64.b64encode(user_and_password)


@given(st.text("abcXYZ-_.09", min_size=1), st.binary(max_size=50), st.booleans())
def test_basic_credentials_are_asked_for_before_the_target_is_looked_at(
    user: str, password: bytes, verdict: bool
) -> None:
    handshake = ConnectHandshake(password=True)
    handshake.receive(with_credentials(basic(user.encode() + b":" + password), b"no target at all") + b"early")
    assert isinstance(handshake.next_event(), Refusal), "h11 refuses a target with spaces before all else"
    handshake = ConnectHandshake(password=True)
    handshake.receive(with_credentials(basic(user.encode() + b":" + password), b"nobody") + b"early")
    assert handshake.next_event() == Credentials(user, password)
    handshake.authenticated(verdict)
    after = handshake.next_event()
    assert isinstance(after, Refusal)
    assert after.status == (400 if verdict else 407)


def test_who_is_known_goes_on_and_who_is_not_is_asked_again() -> None:
    for verdict in (True, False):
        handshake = ConnectHandshake(password=True)
        handshake.receive(with_credentials(basic(b"bob:pw:x")) + b"early")
        assert handshake.next_event() == Credentials("bob", b"pw:x")
        handshake.authenticated(verdict)
        assert handshake.next_event() == (Request(CLIENT, b"early") if verdict else UNAUTHENTICATED)


@pytest.mark.parametrize(
    "field",
    [
        b"",
        b"Proxy-Authorization: Bearer abc\r\n",
        b"Proxy-Authorization: Basic !!!\r\n",
        b"Proxy-Authorization: Basic " + base64.b64encode(b"no colon") + b"\r\n",
        b"Proxy-Authorization: " + basic(b"a:b") + b"\r\nProxy-Authorization: " + basic(b"a:c") + b"\r\n",
        b"Authorization: " + basic(b"a:b") + b"\r\n",
    ],
)
def test_missing_and_malformed_credentials_are_one_answer(field: bytes) -> None:
    handshake = ConnectHandshake(password=True)
    handshake.receive(b"CONNECT 192.0.2.7:1 HTTP/1.1\r\nHost: a\r\n" + field + b"\r\n")
    assert handshake.next_event() == UNAUTHENTICATED


def test_a_verdict_that_was_never_given_is_no() -> None:
    handshake = ConnectHandshake(password=True)
    handshake.receive(with_credentials(basic(b"bob:pw")))
    handshake.next_event()
    assert handshake.next_event() == UNAUTHENTICATED


def test_407_says_how_to_come_again_and_405_what_is_served() -> None:
    assert b'\r\nProxy-Authenticate: Basic realm="roost", charset="UTF-8"\r\n' in response(407, "x")
    assert b"\r\nAllow: CONNECT\r\n" in response(405, "x")


@pytest.mark.parametrize("status", sorted({400, 405, 407, 408, 431, 500, 501, *(row[0] for row in ANSWERS.values())}))
def test_a_refusal_is_a_whole_response_to_another_http_parser(status: int) -> None:
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="CONNECT", target="a:1", headers=[("Host", "a")]))
    http.send(h11.EndOfMessage())
    http.receive_data(response(status, "a reason"))
    head, body, end = (http.next_event() for _ in range(3))
    assert isinstance(head, h11.Response)
    assert head.status_code == status
    assert isinstance(body, h11.Data)
    assert body.data == b"a reason\n"
    assert isinstance(end, h11.EndOfMessage)
    assert http.their_state is h11.MUST_CLOSE


# -- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("192.0.2.7:40123", Address("192.0.2.7", 40123)),
        ("[2001:DB8::7]:40123", Address("2001:db8::7", 40123)),
        ("[::ffff:192.0.2.7]:5", Address("192.0.2.7", 5)),
        ("Thermostat-17.Roost:80", Name("thermostat-17.roost")),
        ("thermostat-17.roost.:80", Name("thermostat-17.roost")),
        ("a_b:1", Name("a_b")),
    ],
)
def test_targets(text: str, target: Address | Name) -> None:
    assert parse_authority(text) == target


def test_an_address_is_no_name() -> None:
    assert parse_address("[2001:db8::7]:40123") == Address("2001:db8::7", 40123)
    assert parse_address("192.0.2.7:0") == Address("192.0.2.7", 0), "a client's, as it is told"
    assert parse_address("[2001:db8::7]:0") == Address("2001:db8::7", 0)
    for wrong in ("192.0.2.7:00", "192.0.2.700:0", "192.0.2.7:", ":0", "name.roost:0"):
        with pytest.raises(ValueError, match=r"not client-address:client-port|neither a client's address"):
            parse_address(wrong)
    with pytest.raises(ValueError, match="not client-address:client-port"):
        parse_address("name.roost:1")


@given(st.text(max_size=30))
def test_any_text_is_a_target_or_a_sentence(text: str) -> None:
    try:
        outcome = str(parse_authority(text))
    except ValueError as error:
        outcome = str(error)
    assert outcome.startswith(("Address(", "Name(", "the target is "))


@given(st.ip_addresses(), st.integers(1, 65535))
def test_an_address_comes_back_as_it_was_written(address: object, port: int) -> None:
    text = f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"
    mapped = getattr(address, "ipv4_mapped", None)
    assert parse_authority(text) == Address(str(mapped or address), port)


PLAIN_FIELDS = st.sampled_from(
    [b"User-Agent", b"Proxy-Connection", b"Accept", b"accept", b"X-Other", b"Content-Length"]
)
PLAIN_VALUES = st.text('!"#/:;0()abcXYZ *-', max_size=12).map(str.encode)
AUTHORITIES = st.one_of(
    st.sampled_from([b"192.0.2.7:40123", b"[2001:db8::1]:443", b"meter-1.roost:80", b"999.1.1.1:80", b"a:0", b"host"]),
    st.text("0123456789abcf.:[]-_", max_size=24).map(str.encode),
)


@given(target=AUTHORITIES, host=AUTHORITIES, fields=st.lists(st.tuples(PLAIN_FIELDS, PLAIN_VALUES), max_size=4),
       early=st.binary(max_size=30))  # fmt: skip
def test_a_plain_request_means_what_the_library_reads_in_it(
    target: bytes, host: bytes, fields: list[tuple[bytes, bytes]], early: bytes
) -> None:
    lines = [b"CONNECT " + target + b" HTTP/1.1", b"Host: " + host, *(name + b": " + value for name, value in fields)]
    data = b"\r\n".join(lines) + b"\r\n\r\n"
    at_once, by_the_library = ConnectHandshake(), ConnectHandshake()
    by_the_library.receive(data[:1])  # a part is left to the library
    by_the_library.receive(data[1:] + early)
    at_once.receive(data + early)
    assert at_once.next_event() == by_the_library.next_event()


def test_requests_of_curl_and_of_python_are_plain() -> None:
    from appliance.frontends.connect import _PLAIN

    curl = [b"Host: a.roost:80", b"User-Agent: curl/8.5.0", b"Proxy-Connection: Keep-Alive", b"", b""]
    assert _PLAIN.match(b"\r\n".join([b"CONNECT a.roost:80 HTTP/1.1", *curl]))
    assert _PLAIN.match(b"CONNECT 192.0.2.7:40123 HTTP/1.1\r\nHost: 192.0.2.7:40123\r\n\r\n")
