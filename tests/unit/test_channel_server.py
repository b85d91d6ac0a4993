# SPDX-License-Identifier: Apache-2.0
"""The daemon's own socket: how much of a request it takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from socket import AF_UNIX, socket

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from control.channel.api import bind_unix, make_server
from control.core.access import BODY_MAX


async def _length(request: Request) -> Response:
    return PlainTextResponse(f"{len(await request.body())} bytes")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """Where a server listens."""
    where = str(tmp_path / "socket")
    server = make_server(Starlette(routes=[Route("/", _length, methods=["POST"])]))
    listener = bind_unix(where)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    yield where
    server.should_exit = True
    thread.join()


def _connect(path: str) -> socket:
    sock = socket(AF_UNIX)
    sock.settimeout(30)
    sock.connect(path)
    return sock


def _answer(sock: socket) -> str:
    """To one request."""
    got = b""
    while not got.endswith(b" bytes"):
        part = sock.recv(65536)
        assert part, got
        got += part
    return got.decode()


def test_the_largest_body_is_taken_more_than_once(path: str) -> None:
    with _connect(path) as sock:
        for _ in range(3):
            sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % BODY_MAX + bytes(BODY_MAX))
            assert _answer(sock).endswith(f"{BODY_MAX} bytes")


@pytest.mark.parametrize(("begins", "part"), [
    (b"POST / HTTP/1.1\r\nHost: x\r\n", b"X: " + b"x" * 8000 + b"\r\n"),
    (b"POST / HTTP/1.1\r\nHost: x\r\nX: ", b"x" * 8000),
    (b"POST /", b"x" * 8000),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: " + b"x" * 8000 + b"\r\n"),
    (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 8000),
], ids=["fields", "a field", "a target", "trailers", "an extension"])  # fmt: skip
def test_a_request_without_end_is_cut_off(path: str, begins: bytes, part: bytes) -> None:
    with _connect(path) as sock:
        sent = 0
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012
            sock.sendall(begins)
            while sent < 3 * BODY_MAX:
                sock.sendall(part)
                sent += len(part)
        assert sent < 1 << 20
    with _connect(path) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
        assert _answer(sock).endswith("2 bytes")
