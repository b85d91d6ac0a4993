# SPDX-License-Identifier: Apache-2.0
"""A daemon with the API at an address in the LAN, those who ask it there, and clients of two services.

with ApiLab(lab) as box:
    answer = box.ask("operator", "POST", f"/v1/connections/{box.client(4)}/sleep")
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self
from unittest.mock import patch

from appliance.lab import Lab, endpoint, wait_until
from control.client.http import PLAIN

PORT: Final = 8000
API_PORT: Final = 8443
API_S: Final = 60.0
"""In which the API listens: it is begun with a low priority, beside other tests."""
USER: Final = "nobody"


class ApiLab:
    """settings: of [api]. Time moves nothing. Services: lab4, lab6."""

    def __init__(self, lab: Lab, **settings: Any) -> None:
        self.lab = lab
        self.host = lab.address("box", "lan0")
        never = dict.fromkeys(("active_quiet", "standby_quiet", "idle_quiet", "probe_interval"), "never")
        often = dict.fromkeys(("requests", "connections_rate"), 10_000)
        api = {"listen": [f"{self.host}:{API_PORT}"], "user": USER, "plain": True, **often, **settings}
        self.config = {**lab.config(PORT, policy=never), "api": api}
        self.options: tuple[str, ...] = ()
        """Of `roost up`."""

        self._stack = ExitStack()
        self.tls: ssl.SSLContext | None = None
        self.texts: dict[str, str] = {}
        self.names: dict[str, str] = {}
        """Of the last token of each role."""
        self.addresses: list[str] = []
        """Of clients, as a test leaves them here."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.config["api"]["plain"]:
                stack.enter_context(patch.dict(os.environ, {PLAIN: "1"}))
            self._servers = {}
            for family, kind in ((4, socket.AF_INET), (6, socket.AF_INET6)):
                with self.lab.enter("lan"):
                    server = socket.create_server((self.lab.address("lan", "eth0", family), PORT), family=kind)
                server.settimeout(10)
                self._servers[family] = stack.enter_context(server)
            self.daemon = self.lab.daemon(self.config, start=False)
            stack.callback(self.daemon.close)
            self.daemon.start(program=("-m", "control.cli.main", "up", *self.options))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._stack.close()

    @property
    def pid(self) -> int | None:
        """Of the API's process."""
        pid: int | None = self.daemon.status()["api"]["pid"]
        return pid

    def token(self, role: str, *services: str) -> str:
        """A new one; `texts` has it under the name of its role."""
        wanted = {"name": f"{role}-{time.time_ns()}", "role": role, "services": services, "expires_s": 3600}
        answer = self.daemon.http("POST", "/v1/tokens", json=wanted)
        assert answer.status_code == 200, answer.text
        self.texts[role], self.names[role] = answer.json()["token"], answer.json()["name"]
        return self.texts[role]

    def connected(self, source: str = "") -> socket.socket:
        """To the API; without TLS."""
        with self.lab.enter("lan"):
            sock = socket.create_connection((self.host, API_PORT), 10, (source, 0) if source else None)
        self._stack.callback(sock.close)
        return sock

    @contextmanager
    def begun(self, who: str, method: str, path: str, body: Any = None,
              headers: Mapping[str, str] = MappingProxyType({})) -> Iterator[HTTPResponse]:  # fmt: skip
        """The head of an answer, whose connection is closed afterwards. who: a role, or a token; empty: without one."""
        if who in ("viewer", "operator", "admin") and who not in self.texts:
            self.token(who)
        connection = HTTPConnection(self.host, API_PORT, timeout=15)
        connection.sock = self.connected()
        if self.tls is not None:
            connection.sock = self.tls.wrap_socket(connection.sock, server_hostname="roost.test")
        token = {"Authorization": f"Bearer {self.texts.get(who, who)}"} if who else {}
        with closing(connection):
            connection.request(method, path, json.dumps(body) if body is not None else None,
                               {**headers, **token, "Content-Type": "application/json"})  # fmt: skip
            with connection.getresponse() as answer:
                yield answer

    def ask(self, who: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, JSON) of the answer; of NDJSON each line."""
        with self.begun(who, method, path, body) as answer:
            text = answer.read().decode()
            if "ndjson" in (answer.headers["Content-Type"] or ""):
                return answer.status, [json.loads(line) for line in text.splitlines()]
            return answer.status, json.loads(text)

    def wait_for_api(self) -> None:
        def answers() -> bool:
            try:
                return self.ask("", "GET", "/v1/status")[0] == 401
            except OSError:
                return False

        wait_until(answers, API_S, "the API answers")

    def client(self, family: int = 4, port: int = 0) -> tuple[socket.socket, str]:
        """A client that has spoken with its server, and its address and port. port: its own, 0: any."""
        source, to = (self.lab.address(*where, family) for where in (("wan", "eth0"), ("box", "wan0")))
        with self.lab.enter("wan"):
            client = socket.create_connection((to, PORT), 5, (source, port))
        server = self._servers[family].accept()[0]
        for one in (client, server):
            one.settimeout(10)
            self._stack.callback(one.close)
        self.exchange(client, server)
        return client, endpoint(*client.getsockname()[:2])

    def accepted(self, family: int = 4) -> socket.socket:
        """The next link, at the server."""
        server = self._servers[family].accept()[0]
        server.settimeout(10)
        return server

    @contextmanager
    def crowd(self, count: int) -> Iterator[list[str]]:
        """So many clients of lab4 that say nothing, by address and port."""
        source, to = self.lab.address("wan", "eth0"), (self.lab.address("box", "wan0"), PORT)
        with ExitStack() as stack:
            found = []
            for _ in range(count):
                with self.lab.enter("wan"):
                    client = stack.enter_context(socket.create_connection(to, 5, (source, 0)))
                stack.enter_context(self._servers[4].accept()[0])
                found.append(endpoint(*client.getsockname()[:2]))
            yield found

    def woken(self, client: socket.socket, family: int = 4) -> None:
        """The client speaks, and a server hears it and answers."""
        client.sendall(b"hello")
        with self.accepted(family) as server:
            assert server.recv(5) == b"hello"
            server.sendall(b"there")
            assert client.recv(5) == b"there"

    @staticmethod
    def exchange(client: socket.socket, server: socket.socket) -> None:
        client.sendall(b"hello")
        assert server.recv(5) == b"hello"
        server.sendall(b"there")
        assert client.recv(5) == b"there"
