# SPDX-License-Identifier: Apache-2.0
"""What anybody may send to the API: too slowly, too much, too often, nothing, and what is no HTTP."""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.lab import Lab, wait_until
from tests.certificates import make_certificate
from tests.lab.api_lab import API_PORT, ApiLab

EACH = 12
IN_TIME_S = 16  # of what may take 10 s
ODD = (
    b"\0" * 4096,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /v1/status HTTP/9.9\r\n\r\n",
    b"GET http://elsewhere/v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
    b"POST /v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/tokens HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"POST /v1/tokens HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
    b"GET /%zz%00%ff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /nothing HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\n\r\n",
    b"GET /nothing HTTP/1.1\r\n Host: x\r\n\tfolded: y\r\n\r\n",
    b"GET /nothing HTTP/1.1\nHost: x\n\n",
    b"GET /console/../../app.py HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /console/..%2f..%2fapp.py HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT 10.3.0.2:8000 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/events HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
)


@pytest.fixture(scope="module")
def box() -> Iterator[ApiLab]:
    with Lab(clients=10, nat=False) as lab, ApiLab(lab, connections=EACH + 4, connections_each=EACH) as box:
        box.wait_for_api()
        assert box.ask("viewer", "GET", "/v1/status")[0] == 200
        yield box


def all_of(sock: socket.socket) -> bytes:
    """What comes until the end."""
    said = b""
    try:
        while part := sock.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


def serves(box: ApiLab) -> bool:
    """Whether it answers; where there are too many connections, it does not."""
    try:
        return box.ask("viewer", "GET", "/v1/status")[0] == 200
    except OSError:
        return False


def rss_mb(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def test_what_comes_too_slowly_is_ended_in_time(box: ApiLab) -> None:
    began = time.monotonic()
    whole = b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"
    nothing, half, trickle, second = (box.connected() for _ in range(4))
    half.sendall(whole[:-2])
    second.sendall(whole)
    second.settimeout(5)
    assert all_of(second).startswith(b"HTTP/1.1 401"), "an answer without a token is the last one"
    ends: dict[str, tuple[bytes, float]] = {}
    for at in range(IN_TIME_S):
        if "trickle" not in ends:
            try:
                trickle.sendall(whole[at : at + 1])
                trickle.settimeout(0.01)
                ends["trickle"] = (all_of(trickle), time.monotonic() - began)
            except TimeoutError:
                pass
            except OSError:
                ends["trickle"] = (b"", time.monotonic() - began)
        time.sleep(0.9)
    for name, sock in (("nothing", nothing), ("half", half)):
        sock.settimeout(1)
        ends[name] = (all_of(sock), time.monotonic() - began)
    assert ends["nothing"][0] == b""
    assert ends["half"][0].startswith(b"HTTP/1.1 408 Request Timeout")
    assert 9 < ends["trickle"][1] < IN_TIME_S


def test_a_second_request_on_a_connection_must_come_in_time_too(box: ApiLab) -> None:
    ask = f"GET /v1/tags HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {box.texts['viewer']}\r\n\r\n".encode()
    sock = box.connected()
    for _ in range(3):
        sock.sendall(ask)
        said = b""
        while not said.endswith(b"\r\n\r\n[]"):
            said += sock.recv(65536)
        assert said.startswith(b"HTTP/1.1 200")
    began = time.monotonic()
    for at in range(IN_TIME_S):
        try:
            sock.sendall(ask[at : at + 1])
        except OSError:
            break
        time.sleep(1)
    assert 8 < time.monotonic() - began < IN_TIME_S


def test_a_head_is_so_large_at_most(box: ApiLab) -> None:
    pid = box.pid
    assert pid is not None
    before = rss_mb(pid)
    endless: tuple[bytes, ...] = (b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100)
    for begin in endless:
        sock = box.connected()
        sent = 0
        try:
            sock.sendall(begin)
            while sent < 64 << 20:
                sent += sock.send(b"x" * 65536)
        except OSError:
            pass
        assert sent < 8 << 20, "what the kernel holds, at most"
        sock.close()
    sock = box.connected()
    sock.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000)
    assert all_of(sock).startswith(b"HTTP/1.1 431 ")
    assert box.pid == pid
    assert rss_mb(pid) - before < 20


def test_what_comes_behind_a_body_in_chunks_is_not_kept(box: ApiLab) -> None:
    pid = box.pid
    assert pid is not None
    before, sock, sent = rss_mb(pid), box.connected(), 0
    token = box.texts["viewer"]
    sock.sendall(f"PUT /v1/names/x/tags HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n".encode())
    try:
        sock.sendall(b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
        while sent < 32 << 20:
            sent += sock.send(b"a: b\r\n" * 10_000)
    except OSError:
        pass
    assert sent < 8 << 20, "what the kernel holds, at most"
    wait_until(lambda: serves(box), 5, "it serves as before")
    assert rss_mb(pid) - before < 30


def test_one_source_has_so_many_connections_and_others_get_theirs(box: ApiLab) -> None:
    wait_until(lambda: serves(box), 20, "earlier ones are over")
    own = [box.connected() for _ in range(EACH)]
    sock = box.connected()
    sock.sendall(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
    assert all_of(sock) == b"", "it is closed before anything is read"
    with box.lab.enter("box"):
        other = socket.create_connection((box.host, API_PORT), 5)
    other.sendall(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
    assert other.recv(100).startswith(b"HTTP/1.1 404")
    other.close()
    assert "connections_each" in box.daemon.log_tail()
    for one in own:
        one.close()
    wait_until(lambda: serves(box), 5, "there is room again")


def test_all_together_have_so_many_connections(box: ApiLab) -> None:
    some = [box.connected() for _ in range(EACH)]
    with box.lab.enter("box"):
        others = [socket.create_connection((box.host, API_PORT), 5) for _ in range(8)]
    time.sleep(0.2)
    told = []
    for one in others:
        try:
            one.settimeout(2)
            one.sendall(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            told.append(one.recv(100)[:12])
        except ConnectionError:
            told.append(b"")
    assert 1 <= told.count(b"HTTP/1.1 404") <= 4
    assert told.count(b"") == 8 - told.count(b"HTTP/1.1 404")
    for one in (*some, *others):
        one.close()
    wait_until(lambda: serves(box), 5, "there is room again")


def test_one_source_gets_files_of_the_console_so_often_and_others_get_theirs(box: ApiLab) -> None:
    def asked() -> int:
        with box.begun("", "GET", "/console/icon.svg") as answer:
            answer.read()
            return answer.status

    told = [asked()]
    while told[-1] == 200 and len(told) < 1000:
        told.append(asked())
    assert told[-1] == 429
    assert len(told) > 200
    with box.lab.enter("box"), socket.create_connection((box.host, API_PORT), 5) as other:
        other.sendall(b"GET /console/icon.svg HTTP/1.1\r\nHost: x\r\n\r\n")
        assert other.recv(100).startswith(b"HTTP/1.1 200")
    assert serves(box), "who has a token does not suffer"


def test_what_is_no_http_harms_nothing(box: ApiLab) -> None:
    pid = box.pid
    assert pid is not None
    chance = random.Random(7)
    whole = b"PUT /v1/policy/rules HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n" + b"x" * 20
    damaged = []
    for _ in range(300):
        one = bytearray(whole)
        for _ in range(chance.randint(1, 5)):
            one[chance.randrange(len(one))] = chance.randrange(256)
        damaged.append(bytes(one))
    answered = 0
    for sent in (*ODD, *(chance.randbytes(200) for _ in range(100)), *damaged):
        sock = box.connected()
        sock.settimeout(0.1)
        try:
            sock.sendall(sent)
            said = sock.recv(65536)
        except (TimeoutError, ConnectionError):
            said = b""
        sock.close()
        assert said == b"" or said.split()[1][:1] == b"4", (sent, said)
        answered += bool(said)
    assert answered > 100, "it looks at them"
    wait_until(lambda: serves(box), 20, "it serves as before")
    assert box.pid == pid
    assert rss_mb(pid) < 150
    assert "Traceback" not in box.daemon.log.read_text(), box.daemon.log_tail(60)


def test_who_does_not_begin_tls_is_ended_in_time_and_has_no_more_connections_than_others(tmp_path: Path) -> None:
    certificate, key = map(str, make_certificate(tmp_path))
    settings = {"certificate": certificate, "private_key": key, "connections_each": 4}
    with Lab(clients=10, nat=False) as lab, ApiLab(lab, **settings) as box:
        box.tls = ssl.create_default_context(cafile=certificate)
        box.wait_for_api()
        began = time.monotonic()
        silent = [box.connected() for _ in range(4)]
        with pytest.raises((ConnectionError, ssl.SSLError)):
            box.ask("viewer", "GET", "/v1/status")
        for one in silent:
            one.settimeout(IN_TIME_S)
            assert all_of(one) == b""
        assert 9 < time.monotonic() - began < IN_TIME_S
        wait_until(lambda: serves(box), 5, "there is room again")
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(400)):
            sock = box.connected()
            sock.sendall(sent)
            assert not all_of(sock).startswith(b"HTTP")
        assert box.ask("viewer", "GET", "/v1/status")[0] == 200
        assert "Traceback" not in box.daemon.log.read_text(), box.daemon.log_tail(60)
