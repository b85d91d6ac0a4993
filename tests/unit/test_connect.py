# SPDX-License-Identifier: Apache-2.0
"""Attach by HTTP CONNECT: the handshake byte by byte, and the socket's way to the engine."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Awaitable, Callable
from errno import EBUSY, EIO, ENOENT, ENOTCONN, ETIMEDOUT

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.frontends import connect
from appliance.frontends.connect import ConnectFrontend, Handshake, Refusal, Target, bind, parse_target, refusal_for

REQUEST = b"CONNECT 192.0.2.7:40123 HTTP/1.1\r\nHost: 192.0.2.7:40123\r\nUser-Agent: x\r\n\r\n"


def feed(data: bytes, cuts: list[int]) -> Target | Refusal | None:
    handshake = Handshake()
    edges = [0, *sorted(cuts), len(data)]
    for index, (start, end) in enumerate(itertools.pairwise(edges)):
        if start == end:
            continue
        outcome = handshake.receive(data[start:end])
        if isinstance(outcome, Target):
            # What is read later is read from the socket by the engine.
            rest = b"".join(data[a:b] for a, b in itertools.pairwise(edges[index + 1 :]))
            return Target(outcome.address, outcome.port, outcome.early + rest)
        if outcome is not None:
            return outcome
    return None


@pytest.mark.parametrize("cut", range(1, len(REQUEST)))
def test_a_request_may_be_split_at_every_byte(cut: int) -> None:
    assert feed(REQUEST + b"early\x00bytes", [cut]) == Target("192.0.2.7", 40123, b"early\x00bytes")


@given(st.lists(st.integers(0, len(REQUEST) + 20)), st.binary(max_size=40))
def test_no_byte_behind_the_request_is_lost(cuts: list[int], early: bytes) -> None:
    data = REQUEST + early
    assert feed(data, [min(c, len(data)) for c in cuts]) == Target("192.0.2.7", 40123, early)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_any_bytes_end_in_a_target_a_refusal_or_waiting(data: bytes, cuts: list[int]) -> None:
    outcome = feed(data, [min(c, len(data)) for c in cuts])
    assert outcome is None or isinstance(outcome, Target) or 400 <= outcome.status < 600


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 405, "only CONNECT"),
        (b"CONNECT client:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not client-address:client-port"),
        (b"CONNECT 192.0.2.7 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not client-address:client-port"),
        (b"CONNECT 192.0.2.7:0 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not client-address:client-port"),
        (b"CONNECT 192.0.2.7:99999 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "not client-address:client-port"),
        (b"CONNECT 2001:db8::1:5 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "IPv6 goes in brackets"),
        (b"CONNECT [192.0.2.7]:5 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "IPv6 goes in brackets"),
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


def test_an_ipv6_client_is_written_in_brackets() -> None:
    assert parse_target("[2001:db8::7]:40123") == ("2001:db8::7", 40123)


def test_errors_have_their_statuses() -> None:
    numbers = (ENOENT, EBUSY, ETIMEDOUT, EIO, ENOTCONN)
    assert [refusal_for(number).status for number in numbers] == [404, 409, 504, 503, 502]


class FakeAttacher:
    def __init__(self, error: int = 0, known: bool = True) -> None:
        self.error = error
        self.known = known
        self.calls: list[tuple[str, int, bytes, bytes]] = []
        self.server: socket.socket | None = None

    def find(self, address: str, port: int) -> str | None:
        return f"{address} {port}" if self.known else None

    def attach(self, key: str, fd: int, preamble: bytes, early: bytes, timeout_s: float) -> Awaitable[int]:
        self.calls.append((key, fd, preamble, early))

        async def work() -> int:
            await asyncio.sleep(0)
            if self.error:
                os.close(fd)
            else:
                self.server = socket.socket(fileno=fd)
            return self.error

        return work()


def exchange(
    attacher: FakeAttacher, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]],
    header_timeout_s: float = 5.0,
) -> bytes:  # fmt: skip
    async def main() -> bytes:
        frontend = ConnectFrontend[str](attacher, 1.0, header_timeout_s)
        address, port = frontend.serve(bind("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(address, port)
        try:
            return await asyncio.wait_for(talk(reader, writer), 5)
        finally:
            writer.close()
            await frontend.close()

    return asyncio.run(main())


def test_the_socket_goes_to_the_engine_and_stays_open() -> None:
    attacher = FakeAttacher()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(REQUEST + b"hello client")
        while attacher.server is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # the frontend closes its copy meanwhile; the connection must live on
        attacher.server.setblocking(True)
        attacher.server.sendall(b"from the engine")
        writer.write(b"later")
        await writer.drain()
        received = await reader.readexactly(15)
        assert await asyncio.to_thread(attacher.server.recv, 5) == b"later"
        return received

    assert exchange(attacher, talk) == b"from the engine"
    assert attacher.server is not None
    attacher.server.close()
    ((key, _fd, preamble, early),) = attacher.calls
    assert (key, preamble, early) == ("192.0.2.7 40123", connect.PREAMBLE, b"hello client")


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(REQUEST)
    return await reader.read()


@pytest.mark.parametrize(("error", "status"), [(EBUSY, b"409 Conflict"), (ETIMEDOUT, b"504 Gateway Timeout")])
def test_a_refused_attach_is_answered(error: int, status: bytes) -> None:
    answer = exchange(FakeAttacher(error), _ask)
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert b"Connection: close" in answer


def test_an_unknown_client_is_404() -> None:
    answer = exchange(FakeAttacher(known=False), _ask)
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert answer.endswith(b"no such client connection\n")


def test_a_request_that_does_not_come_is_408() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(REQUEST[:10])
        return await reader.read()

    assert exchange(FakeAttacher(), talk, header_timeout_s=0.1).startswith(b"HTTP/1.1 408 ")


def test_a_server_that_leaves_early_harms_nobody() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(REQUEST[:10])
        writer.write_eof()
        return await reader.read()

    attacher = FakeAttacher()
    assert exchange(attacher, talk).startswith(b"HTTP/1.1 400 ")
    assert not attacher.calls


def test_an_address_in_use_is_named() -> None:
    async def main() -> None:
        frontend = ConnectFrontend[str](FakeAttacher(), 1.0)
        address, port = frontend.serve(bind("127.0.0.1", 0))
        with pytest.raises(OSError, match=f"cannot listen on {address} port {port} for attach"):
            bind(address, port)
        await frontend.close()

    asyncio.run(main())


def test_a_defect_is_answered_and_the_frontend_lives() -> None:
    class Broken(FakeAttacher):
        def find(self, address: str, port: int) -> str | None:
            raise RuntimeError("defect")

    assert exchange(Broken(), _ask).startswith(b"HTTP/1.1 500 ")
