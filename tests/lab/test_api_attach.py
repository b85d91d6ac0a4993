# SPDX-License-Identifier: Apache-2.0
"""Attach by the API: where to connect, and a request that becomes the byte stream to a client."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.lab import Lab, wait_until
from control.api.upgrade import RESETS
from tests.certificates import make_certificate
from tests.lab.api_lab import ApiLab
from tests.lab.engine_lab import receive


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[ApiLab]:
    with ApiLab(nat_free_lab) as box:
        box.wait_for_api()
        yield box


class Upgraded:
    """A request for a client, and what is answered. behind: bytes that come with it; later: a moment after it. end:
    then no more comes. head: of a request by another way."""

    def __init__(self, box: ApiLab, who: str, name: str, behind: bytes = b"", fields: str = "",
                 tls: ssl.SSLContext | None = None, later: bytes = b"", end: bool = False,
                 head: str = "") -> None:  # fmt: skip
        if who not in box.texts:
            box.token(who)
        sock = box.connected()
        self.sock = tls.wrap_socket(sock, server_hostname="roost.test") if tls else sock
        self.sock.settimeout(15)
        head = head or (f"POST /v1/connections/{name}/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                f"Upgrade: roost\r\nAuthorization: Bearer {box.texts[who]}\r\n{fields}\r\n")  # fmt: skip
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(head.encode() + behind)
        if later:
            time.sleep(0.001)
            self.sock.sendall(later)
        if end:
            self.sock.shutdown(socket.SHUT_WR)
        self.head = b""
        while b"\r\n\r\n" not in self.head and (data := self.sock.recv(1)):
            self.head += data

    @property
    def status(self) -> int:
        return int(self.head.split(b" ")[1])

    def rest(self) -> bytes:
        """To the end."""
        return b"".join(iter(lambda: self.sock.recv(4096), b""))


def asleep(box: ApiLab, action: str = "sleep") -> tuple[socket.socket, str]:
    client, address = box.client()
    assert box.daemon.act(address, action)["state"] == action.upper()
    return client, address


@pytest.mark.parametrize("action", ["sleep", "idle", "standby"])
def test_a_request_becomes_the_byte_stream_to_a_client(box: ApiLab, action: str) -> None:
    client, address = asleep(box, action)
    server = Upgraded(box, "operator", address, b"early")
    assert (server.status, b"upgrade: roost" in server.head.lower()) == (101, True)
    server.sock.sendall(b" and late")
    assert receive(client, 14) == b"early and late"
    client.sendall(b"answer")
    assert receive(server.sock, 6) == b"answer"
    assert box.daemon.get(f"/v1/connections/{address}")["state"] == "ACTIVE"
    told = [row for row in box.daemon.get("/v1/attaches") if row["client"] == address]
    assert [(row["way"], row["target"], row["error"]) for row in told] == [("api", address, None)]
    big = os.urandom(1_000_000)
    server.sock.sendall(big)
    assert receive(client, len(big)) == big
    server.sock.close()
    wait_until(lambda: box.daemon.get(f"/v1/connections/{address}")["state"] == "STANDBY", 5, "the link ends")
    box.woken(client)


def test_who_takes_nothing_is_waited_for_and_loses_nothing(box: ApiLab) -> None:
    client, address = asleep(box)
    server = Upgraded(box, "operator", address)
    big = os.urandom(3_000_000)
    client.setblocking(False)
    sent = 0
    while sent < len(big):
        try:
            sent += client.send(big[sent : sent + 65536])
        except BlockingIOError:
            if sent > 500_000:  # all buffers on the way are full
                break
    client.settimeout(10)
    got = bytearray()
    while len(got) < sent:
        got += server.sock.recv(65536)
    assert bytes(got) == big[:sent]
    client.sendall(b"more")
    assert receive(server.sock, 4) == b"more"


def test_an_end_is_told_and_the_other_way_goes_on(box: ApiLab) -> None:
    client, address = asleep(box)
    server = Upgraded(box, "operator", address)
    client.sendall(b"bye")
    client.shutdown(socket.SHUT_WR)
    assert receive(server.sock, 3) == b"bye"
    assert server.sock.recv(1) == b""
    server.sock.sendall(b"good night")
    assert receive(client, 10) == b"good night"
    server.sock.close()
    assert client.recv(1) == b""


def test_only_clients_of_its_services_are_a_servers(box: ApiLab) -> None:
    (client, own), (_, other) = asleep(box), box.client(6)
    box.token("server", "lab4")
    assert Upgraded(box, "server", own, b"mine").status == 101
    assert receive(client, 4) == b"mine"
    assert box.ask("operator", "PUT", f"/v1/connections/{other}/name", {"name": "theirs"})[0] == 200
    for name in (other, "theirs.roost", "nobody.roost", str(box.daemon.get(f"/v1/connections/{other}")["id"])):
        assert Upgraded(box, "server", name).status == 404
        assert box.ask("server", "POST", f"/v1/connections/{name}/attach")[0] == 404
    assert box.daemon.get(f"/v1/connections/{other}")["state"] == "ACTIVE"
    assert Upgraded(box, "viewer", own).status == 403
    assert box.ask("viewer", "POST", f"/v1/connections/{own}/attach")[0] == 403
    assert box.ask("operator", "POST", f"/v1/connections/{own}/attach/ticket")[0] == 404


@pytest.mark.parametrize("later", [b"late", b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(100_000)])
def test_what_comes_before_the_answer_is_the_clients_and_no_request(box: ApiLab, later: bytes) -> None:
    client, address = asleep(box)
    server = Upgraded(box, "operator", address, b"early ", later=later)
    assert server.status == 101
    assert receive(client, 6 + len(later)) == b"early " + later
    client.sendall(b"there")
    client.close()
    assert server.rest() == b"there"


def test_who_has_said_all_before_the_answer_is_heard_and_leaves(box: ApiLab) -> None:
    client, address = asleep(box)
    assert Upgraded(box, "operator", address, b"early ", later=b"late", end=True).status == 101
    assert receive(client, 10) == b"early late"
    wait_until(lambda: box.daemon.get(f"/v1/connections/{address}")["state"] == "STANDBY", 5, "the link ends")
    box.woken(client)


@pytest.mark.parametrize("how", ["reset", "close"])
def test_who_leaves_before_the_answer_has_no_client(box: ApiLab, how: str) -> None:
    client, address = asleep(box)
    box.token("operator")
    for _ in range(5):
        sock = box.connected()
        sock.sendall(f"POST /v1/connections/{address}/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                     f"Upgrade: roost\r\nAuthorization: Bearer {box.texts['operator']}\r\n\r\n".encode())  # fmt: skip
        time.sleep(0.001)
        if how == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    deadline = time.monotonic() + 5
    while (server := Upgraded(box, "operator", address, b"mine")).status == 409 and time.monotonic() < deadline:
        server.sock.close()  # one of the five, which may be read only now, has the client until its end is read, too
    assert server.status == 101
    assert receive(client, 4) == b"mine"


def test_where_a_client_is_gone_its_server_does_not_take_that_for_an_end(box: ApiLab) -> None:
    client, address = asleep(box)
    server = Upgraded(box, "operator", address, b"hello")
    assert receive(client, 5) == b"hello"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
    client.close()
    with pytest.raises(ConnectionResetError):
        server.sock.recv(1)


def test_what_cannot_be_had_is_said(box: ApiLab) -> None:
    absent = Upgraded(box, "operator", "nobody.roost")
    assert (absent.status, b"no such client connection" in absent.rest()) == (404, True)
    _, address = box.client()
    assert box.ask("operator", "PUT", f"/v1/connections/{address}/name", {"name": "gone"})[0] == 200
    box.daemon.act(address, "close")
    offered = box.ask("operator", "POST", "/v1/connections/gone.roost:443/attach")
    assert (offered[0], offered[1]["target"]) == (200, "gone.roost:443")
    left = Upgraded(box, "operator", "gone.roost")
    assert (left.status, b"the client of this name is not connected" in left.rest()) == (502, True)
    assert Upgraded(box, "operator", "4711").status == 404
    _, other = asleep(box)
    body = Upgraded(box, "operator", other, b"{}", "Content-Length: 2\r\n")
    assert (body.status, b"has no body" in body.rest()) == (400, True)
    assert box.daemon.get(f"/v1/connections/{other}")["state"] == "SLEEP"


def test_it_says_where_to_connect(box: ApiLab) -> None:
    client, address = asleep(box)
    number = box.daemon.get(f"/v1/connections/{address}")["id"]
    status, offered = box.ask("operator", "POST", f"/v1/connections/{number}/attach")
    assert (status, offered["id"], offered["client"], offered["state"]) == (200, number, address, "SLEEP")
    assert (offered["target"], offered["protocols"], offered["credentials"]) == (address, ["connect", "socks5"], False)
    host, _, port = offered["at"][0].rpartition(":")
    with box.lab.enter("lan"):
        server = socket.create_connection((host, int(port)), 5)
    with server:
        server.sendall(f"CONNECT {offered['target']} HTTP/1.1\r\nHost: x\r\n\r\nhello".encode())
        assert receive(client, 5) == b"hello"


def test_a_ticket_is_good_once_and_for_its_client_alone(box: ApiLab) -> None:
    client, address = asleep(box)
    ticket = box.daemon.http("POST", f"/v1/connections/{address}/attach/ticket").json()
    host, _, port = ticket["address"].rpartition(":")

    def ask(authority: str) -> socket.socket:
        with box.lab.enter("box"):
            server = socket.create_connection((host, int(port)), 5)
        server.settimeout(10)
        server.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return server

    for wrong in (address, "0" * 32 + ".t:1", "lab4.roost:1"):
        with ask(wrong) as server:
            assert b" 404 " in server.recv(100)
    with ask(ticket["authority"]) as server:
        assert receive(server, 12) == b"HTTP/1.1 200"
        client.sendall(b"here")
        assert receive(server, 27 + 4).endswith(b"here")
        with ask(ticket["authority"]) as again:
            assert b" 404 " in again.recv(100)


def test_a_revoked_token_has_no_client_any_more(box: ApiLab) -> None:
    client, address = asleep(box)
    box.token("operator")
    server = Upgraded(box, "operator", address)
    client.sendall(b"here")
    assert receive(server.sock, 4) == b"here"
    assert box.daemon.http("DELETE", f"/v1/tokens/{box.names['operator']}").status_code == 200
    assert server.sock.recv(1) == b""
    box.token("operator")
    box.woken(client)


def test_the_api_is_killed_and_the_client_goes_on(box: ApiLab) -> None:
    client, address = asleep(box)
    server = Upgraded(box, "operator", address)
    client.sendall(b"here")
    assert receive(server.sock, 4) == b"here"
    pid = box.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert server.sock.recv(1) == b""
    wait_until(lambda: box.daemon.get(f"/v1/connections/{address}")["state"] == "STANDBY", 5, "the link ends")
    box.woken(client)
    box.wait_for_api()


def asking(box: ApiLab, authority: str, scheme: str = "Basic", who: str = "operator") -> str:
    """The head of a CONNECT."""
    if who not in box.texts:
        box.token(who)
    text = box.texts[who]
    given = text if scheme == "Bearer" else b64encode(f"any:{text}".encode()).decode()
    return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nProxy-Authorization: {scheme} {given}\r\n\r\n"


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_a_connect_becomes_the_byte_stream_to_a_client(box: ApiLab, scheme: str) -> None:
    client, address = asleep(box)
    assert box.ask("operator", "PUT", f"/v1/connections/{address}/name", {"name": f"tunnel-{scheme.lower()}"})[0] == 200
    for authority, words in ((address, b"by address"), (f"tunnel-{scheme.lower()}.roost:443", b"by name")):
        server = Upgraded(box, "operator", "", words, head=asking(box, authority, scheme))
        assert server.head == b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert receive(client, len(words)) == words
        client.sendall(b"answer")
        assert receive(server.sock, 6) == b"answer"
        server.sock.close()
        wait_until(lambda: box.daemon.get(f"/v1/connections/{address}")["state"] == "STANDBY", 5, "the link ends")
        told = [row["target"] for row in box.daemon.get("/v1/attaches") if row["client"] == address]
        assert told[-1] == authority, "a client that must be dialled is at that port"


def test_programs_that_ask_for_credentials_first_are_told_each_time(box: ApiLab) -> None:
    """As those do that know proxies: more often than a source may send tokens that are not good."""
    _, address = asleep(box)
    for _ in range(15):
        assert Upgraded(box, "operator", "", head=f"CONNECT {address} HTTP/1.1\r\nHost: x\r\n\r\n").status == 407
    assert Upgraded(box, "operator", "", head=asking(box, address)).status == 200
    twice = asking(box, address).replace("Proxy-", "Proxy-Authorization: Bearer x\r\nProxy-", 1)
    assert Upgraded(box, "operator", "", head=twice).status == 407


def test_a_connect_reaches_what_its_token_may_and_is_refused_as_by_a_proxy(box: ApiLab) -> None:
    _, address = asleep(box)
    _, other = box.client(6)
    box.token("server", "lab4")
    assert Upgraded(box, "server", "", head=asking(box, other, who="server")).status == 404
    assert Upgraded(box, "viewer", "", head=asking(box, address, who="viewer")).status == 403
    assert Upgraded(box, "operator", "", head=asking(box, "nobody.roost:1")).status == 404
    for authority in ("nobody.roost", "a/b:1", "10.0.0.1:0", "x" * 300 + ":1"):
        assert Upgraded(box, "operator", "", head=asking(box, authority)).status == 400
    for field in ("", "Proxy-Authorization: Basic !\r\n", f"Authorization: Bearer {box.texts['operator']}\r\n"):
        refused = Upgraded(box, "operator", "", head=f"CONNECT {address} HTTP/1.1\r\nHost: x\r\n{field}\r\n")
        assert refused.status == 407
        assert b"proxy-authenticate: basic" in refused.head.lower()


def test_a_connect_by_tls_with_a_certificate_of_the_servers(tmp_path: Path) -> None:
    certificate, key = map(str, make_certificate(tmp_path))
    with Lab(clients=10, nat=False) as lab:
        with ApiLab(lab, certificate=certificate, private_key=key, client_ca=certificate) as box:
            tls = box.tls = ssl.create_default_context(cafile=certificate)
            tls.load_cert_chain(certificate, key)
            box.wait_for_api()
            client, address = asleep(box)
            server = Upgraded(box, "operator", "", b"early", tls=tls, head=asking(box, address))
            assert server.status == 200
            assert receive(client, 5) == b"early"
            other, answer = ssl.create_default_context(cafile=certificate), b""
            with suppress(ssl.SSLError, ConnectionError):
                answer = Upgraded(box, "operator", "", tls=other, head=asking(box, address)).head
            assert answer == b"", "it has no certificate"


def test_by_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with Lab(clients=10, nat=False) as lab:
        with ApiLab(lab, certificate=str(certificate), private_key=str(key)) as box:
            tls = box.tls = ssl.create_default_context(cafile=str(certificate))
            box.wait_for_api()
            client, address = asleep(box)
            server = Upgraded(box, "operator", address, b"early", tls=tls)
            assert server.status == 101
            assert receive(client, 5) == b"early"
            big = os.urandom(500_000)
            client.sendall(big)
            assert receive(server.sock, len(big)) == big
            client.sendall(b"bye")
            client.shutdown(socket.SHUT_WR)
            assert receive(server.sock, 3) == b"bye"
            assert server.sock.recv(1) == b""

            lab.space("box").sysctl("net.ipv4.tcp_wmem", "4096 16384 65536")  # it takes little that is not read
            slow_client, address = asleep(box)
            slow = Upgraded(box, "operator", address, tls=tls)
            slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            big = os.urandom(700_000)
            slow_client.sendall(big)
            slow_client.close()
            got = bytearray()
            while data := slow.sock.recv(8192):  # 130 KB a second: it has all of them long after the client's end
                got += data
                time.sleep(len(data) / 130_000)
            assert bytes(got) == big
