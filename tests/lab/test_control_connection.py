# SPDX-License-Identifier: Apache-2.0
"""The control connection of a server: requests, answers and what happens over one WebSocket, which sleeps."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from appliance.lab import Lab, wait_until
from tests.lab.api_lab import API_PORT, API_S, ApiLab

URL = "ws://roost.test/v1/control"


@pytest.fixture(scope="module")
def box(nat_free_lab: Lab) -> Iterator[ApiLab]:
    with ApiLab(nat_free_lab) as box:
        box.wait_for_api()
        yield box


class Controller:
    """One connection, and the messages that are no answer to what is asked next."""

    def __init__(self, sock: socket.socket, token: str) -> None:
        fields = {"Authorization": f"Bearer {token}"}
        with ExitStack() as stack:
            opened = connect(URL, sock=sock, additional_headers=fields, compression=None, ping_interval=None)
            self.socket: ClientConnection = stack.enter_context(opened)
            self.close = stack.pop_all().close
        self.number = 0
        self.told: list[dict[str, Any]] = []

    def heard(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv(10))
        return message

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self.number += 1
        wanted = {"id": self.number, "method": method, "path": path, **({} if body is None else {"body": body})}
        self.socket.send(json.dumps(wanted))
        while (answer := self.heard()).get("id") != self.number or "status" not in answer:
            self.told.append(answer)
        return answer["status"], answer["body"]

    def event(self, client: str, to: str) -> dict[str, Any]:
        """The next one of this client that came to this state."""
        while True:
            one = self.told.pop(0) if self.told else self.heard()
            if one["event"] == "transition" and (one["data"]["client"], one["data"]["to"]) == (client, to):
                return one


@pytest.fixture
def server(box: ApiLab) -> Iterator[Controller]:
    box.token("server", "lab4")
    with closing(Controller(box.connected(), box.texts["server"])) as made:
        yield made


def test_a_server_steers_its_clients_and_hears_what_becomes_of_them(box: ApiLab, server: Controller) -> None:
    (_, own), (_, other) = box.client(), box.client(6)
    assert server.ask("GET", "/v1/events") == (200, None)
    events = server.number
    status, rows = server.ask("GET", "/v1/connections")
    assert (status, own in {row["client"] for row in rows}, {row["service"] for row in rows}) == (200, True, {"lab4"})
    status, done = server.ask("POST", f"/v1/connections/{own}/sleep")
    assert (status, done["state"]) == (200, "SLEEP")
    told = server.event(own, "SLEEP")
    assert (told["id"], told["data"]["from"], told["data"]["cause"]) == (events, "IDLE", "command")
    assert box.ask("operator", "POST", f"/v1/connections/{other}/idle")[0] == 200
    assert server.ask("PUT", f"/v1/connections/{own}/policy", {"values": {"idle_quiet": "5m"}})[0] == 200
    status, refused = server.ask("PUT", f"/v1/connections/{own}/policy", {"values": {"idle_quiet": "soon"}})
    assert (status, "idle_quiet" in refused["error"]) == (422, True)
    assert server.ask("POST", f"/v1/connections/{other}/wake")[0] == 404
    assert server.ask("GET", "/v1/status")[0] == 403
    assert server.ask("GET", "/v1/nothing")[0] == 404
    assert server.ask("POST", f"/v1/connections/{own}/wake")[1]["state"] == "STANDBY"
    assert server.event(own, "STANDBY")["seq"] > told["seq"]
    server.socket.send(json.dumps({"id": events, "method": "CANCEL"}))
    assert server.ask("GET", "/v1/events") == (200, None)
    assert server.ask("POST", f"/v1/connections/{own}/idle")[0] == 200
    assert server.event(own, "IDLE")["id"] == server.number - 1
    time.sleep(0.3)
    server.ask("GET", "/v1/connections")
    assert not [one for one in server.told if one["id"] == events or one["data"]["client"] == other]
    changes = [row for row in box.ask("admin", "GET", "/v1/audit?limit=20")[1] if row["who"] == box.names["server"]]
    assert [row["path"].rpartition("/")[2] for row in changes] == ["sleep", "policy", "policy", "wake", "wake", "idle"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "object of JSON"),
        ("[1]", "object of JSON"),
        ("[" * 50_000, "object of JSON"),
        ('{"method": "GET"}', "id:"),
        ('{"id": true, "method": "GET"}', "id:"),
        ('{"id": 1, "method": "get"}', "method:"),
        ('{"id": 1, "method": ["GET"]}', "method:"),
        ('{"id": 1, "method": "GET", "path": "v1"}', "path:"),
        ('{"id": 1, "method": "GET", "path": "/v1/\\u00e9"}', "path:"),
        ('{"id": 1, "method": "GET", "path": "/v1/\\r\\nX: y"}', "path:"),
        ('{"id": 1, "method": "GET", "path": "/v1/connections", "headers": {}}', "headers:"),
    ],
)
def test_a_message_that_is_no_request_is_refused_and_the_next_one_answered(
    server: Controller, text: str, said: str
) -> None:
    server.socket.send(text)
    answer = server.heard()
    assert (answer["id"], answer["status"], said in answer["body"]["error"]) == (None, 400, True)
    server.socket.send(b"\x00\x01")
    assert server.heard()["status"] == 400
    assert server.ask("GET", "/v1/connections?limit=1")[0] == 200


def test_what_is_too_much_is_refused(box: ApiLab, server: Controller) -> None:
    server.socket.send('{"id": "x"}')
    assert server.heard()["status"] == 400
    for number in range(3):  # of one id, and of more streams than one may have
        server.socket.send(json.dumps({"id": "same", "method": "GET", "path": "/v1/events"}))
        assert server.heard()["status"] == (400 if number else 200)
    for number in range(1, 20):
        assert server.ask("GET", f"/v1/events?client={number}")[0] == 200
    assert server.ask("GET", "/v1/connections")[0] == 429
    server.socket.send(json.dumps({"id": "same", "method": "CANCEL"}))
    wait_until(lambda: server.ask("GET", "/v1/connections?limit=1")[0] == 200, 5, "there is room again")
    server.socket.send("x" * 65_537)
    with pytest.raises(ConnectionClosed) as closed:
        server.heard()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_who_leaves_with_all_that_may_go_on_leaves_nothing_behind(box: ApiLab) -> None:
    box.token("server", "lab4")
    for _ in range(3):
        with closing(Controller(box.connected(), box.texts["server"])) as server:
            answers = [server.ask("GET", f"/v1/events?client={number}")[0] for number in range(20)]
            assert answers == [200] * 20
    wait_until(lambda: box.ask("server", "GET", "/v1/connections?limit=1")[0] == 200, 5, "its token is free")


def test_who_sends_no_requests_is_left(box: ApiLab, server: Controller) -> None:
    for _ in range(20):
        server.socket.send("1")
        assert server.heard()["status"] == 400
    server.socket.send("1")
    server.heard()
    with pytest.raises(ConnectionClosed) as closed:
        server.heard()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


def test_a_handshake_with_a_body_is_refused(box: ApiLab) -> None:
    with box.connected() as sock:
        sock.settimeout(5)
        sock.sendall(b"GET /v1/control HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                     b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
                     b"Content-Length: 10\r\n\r\n")  # fmt: skip
        assert sock.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_it_begins_with_a_good_token_and_ends_with_it(box: ApiLab) -> None:
    for token in ("roost_nothing", ""):
        with pytest.raises(InvalidStatus) as refused:
            Controller(box.connected(), token)
        assert refused.value.response.status_code == 401
    box.token("server", "lab4")
    with closing(Controller(box.connected(), box.texts["server"])) as server:
        assert server.ask("GET", "/v1/connections?limit=1")[0] == 200
        assert box.daemon.http("DELETE", f"/v1/tokens/{box.names['server']}").status_code == 200
        with pytest.raises(ConnectionClosed) as closed:
            server.heard()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the token is not good any more")


def test_it_sleeps_like_any_other_connection_and_its_server_hears_at_once() -> None:
    with Lab(clients=10, nat=False) as lab:
        config = lab.config(8000, policy={"active_quiet": "300ms", "standby_quiet": "300ms", "idle_quiet": "1s"})
        control = {"name": "control", "listen": f"{lab.address('box', 'wan0')}:{API_PORT}", "interface": "persistent",
                   "server": f"127.0.0.1:{API_PORT}"}  # fmt: skip
        config["service"].append(control)
        lab.server(8000)
        with closing(lab.daemon({**config, "api": {"listen": [f"127.0.0.1:{API_PORT}"], "user": "nobody"}})) as daemon:
            wanted = {"name": "alarms", "role": "server", "services": ["lab4"], "expires_s": None}
            token = daemon.http("POST", "/v1/tokens", json=wanted).json()["token"]

            def listens() -> bool:
                with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", API_PORT), 10):
                    return True
                return False

            def state(client: str) -> list[str]:
                return [row["state"] for row in daemon.connections(client=client)]

            with lab.enter("box"):
                wait_until(listens, API_S, "the API listens")
            with lab.enter("wan"):
                sock = socket.create_connection((lab.address("box", "wan0"), API_PORT), 10)
                client = socket.create_connection((lab.address("box", "wan0"), 8000), 10)
            own, its = (f"{one.getsockname()[0]}:{one.getsockname()[1]}" for one in (sock, client))
            with closing(Controller(sock, token)) as server, client:
                assert server.ask("GET", "/v1/events?to=CLOSED") == (200, None)
                wait_until(lambda: state(own) == ["SLEEP"], 15, "the control connection sleeps")
                client.close()  # and with it ends a client of its service
                assert server.event(its, "CLOSED")["data"]["cause"] == "client-close"
                assert server.ask("GET", "/v1/connections") == (200, [])
                wait_until(lambda: state(own) == ["SLEEP"], 15, "it sleeps again")
                assert server.ask("GET", "/v1/connections") == (200, [])
