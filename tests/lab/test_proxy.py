# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs as servers: curl reaches a client by CONNECT and by SOCKS5, by its address and by its name.

The client connects out to the appliance, as clients do, and answers HTTP/1.1 on that connection when it is asked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from appliance.lab import Lab, wait_until
from appliance.lab.daemon import DaemonHandle
from appliance.lab.processes import python_environment

PORT = 8000
POLICY = {"active_quiet": "300ms", "standby_quiet": "600ms", "idle_quiet": "1h"}
PAGE = b"thermostat: 21.5\n" * 1000


def hashed(password: bytes) -> str:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode().rstrip("=")

    made = hashlib.scrypt(password, salt=b"of this test", n=1 << 14, r=8, p=1, maxmem=1 << 26, dklen=32)
    return f"$scrypt$ln=14,r=8,p=1${text(b'of this test')}${text(made)}"


class WebClient:
    """A client that is a small HTTP server to what speaks on the connection that it made."""

    def __init__(self, lab: Lab) -> None:
        with lab.enter("wan"):
            self.socket = socket.create_connection((lab.address("box", "wan0"), PORT), 5)
        self.socket.settimeout(None)
        self.asked: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError), self.socket.makefile("rb") as lines:
            for line in lines:
                path = line.split(b" ")[1].decode()
                while lines.readline() not in (b"\r\n", b""):
                    pass
                self.asked.append(path)
                self.socket.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self._thread.join(5)


class Box:
    """A daemon that asks servers for passwords, and the one client it has."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        lab.server(PORT)
        config = lab.config(PORT, policy=POLICY)
        config["attach"] |= {"auth": "password", "users": {"billing": hashed(b"open sesame")}}
        self.daemon: DaemonHandle = lab.daemon(config)
        self.client = WebClient(lab)
        wait_until(lambda: len(self.daemon.connections(state="IDLE")) == 1, 10, "the client is IDLE")
        (row,) = self.daemon.connections()
        self.id, self.address = int(row["id"]), str(row["client"])

    @property
    def attach(self) -> str:
        return f"{self.lab.address('box', 'lan0')}:3128"

    def to(self, state: str) -> None:
        if state == "SLEEP":
            self.daemon.act(self.id, "sleep")
        wait_until(lambda: len(self.daemon.connections(state=state)) == 1, 10, f"the client is {state}")

    def name(self, name: str) -> None:
        answer = self.daemon.http("PUT", f"/v1/connections/{self.id}/name", json={"name": name})
        assert (answer.status_code, answer.json()["target"]) == (200, f"{name}.roost")

    def curl(self, *options: str) -> tuple[int, bytes, str]:
        """(exit code, body, what it complained of)."""
        process = self.lab.run("lan", ["curl", "--silent", "--show-error", "--max-time", "15", *options],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        body, said = process.popen.communicate(timeout=20)
        return process.popen.returncode, body, said.decode()

    def by_connect(self, target: str, credentials: str = "billing:open%20sesame@") -> tuple[int, bytes, str]:
        return self.curl(
            "--proxytunnel", "--proxy", f"http://{credentials}{self.attach}", f"http://{target}/by-connect"
        )

    def by_socks(self, target: str, user: str = "billing:open sesame") -> tuple[int, bytes, str]:
        options = ["--proxy-user", user] if user else []
        return self.curl("--socks5-hostname", self.attach, *options, f"http://{target}/by-socks")


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with Lab(clients=20) as lab:
        made = Box(lab)
        yield made
        made.client.close()


def test_curl_reaches_a_client_by_its_address_before_and_after_sleep(box: Box) -> None:
    for state in ("IDLE", "SLEEP"):
        for reach, path in ((box.by_connect, "/by-connect"), (box.by_socks, "/by-socks")):
            box.to("IDLE")
            box.to(state)
            assert reach(box.address) == (0, PAGE, "")
            assert box.client.asked[-1] == path


def test_curl_reaches_a_client_by_its_name_whatever_the_port_before_and_after_sleep(box: Box) -> None:
    box.name("thermostat-17")
    for state in ("IDLE", "SLEEP"):
        for reach in (box.by_connect, box.by_socks):
            for target in ("thermostat-17.roost", "THERMOSTAT-17.roost:8443"):
                box.to("IDLE")
                box.to(state)
                assert reach(target) == (0, PAGE, "")
    assert box.daemon.get("/v1/connections/thermostat-17.roost")["id"] == box.id
    assert [row["name"] for row in box.daemon.connections()] == ["thermostat-17"]


def test_curl_is_told_who_is_nobody_and_never_waits(box: Box) -> None:
    for target in ("nobody.roost", "thermostat-17.example", "192.0.2.1:9"):
        code, _, said = box.by_connect(target)
        assert code != 0
        assert "404" in said
        code, _, said = box.by_socks(target)
        assert code == 97
        assert "(4)" in said


@pytest.mark.parametrize("user", ["billing:wrong", "nobody:open sesame", ""])
def test_curl_without_the_right_password_learns_nothing(box: Box, user: str) -> None:
    proxy_user = ["--proxy-user", user] if user else []
    told = set()
    for target in (box.address, "thermostat-17.roost", "nobody.roost"):
        code, body, said = box.curl(
            "--proxytunnel", "--proxy", f"http://{box.attach}", *proxy_user, f"http://{target}/"
        )
        assert "407" in said
        told.add((code, body, said))
        code, body, said = box.by_socks(target, user)
        assert code == 97
        told.add((code, body, said))
    assert len(told) == 2, "one answer of each protocol, whoever was asked for"


def test_curl_is_refused_a_way_back_into_the_appliance(box: Box) -> None:
    for target in (box.attach, f"{box.lab.address('box', 'wan0')}:{PORT}", "localhost"):
        code, _, said = box.by_connect(target)
        assert code != 0
        assert "403" in said
        code, _, said = box.by_socks(target)
        assert code == 97
        assert "(2)" in said


def roost(box: Box, *words: str) -> str:
    """What the command says."""
    argv = [sys.executable, "-m", "control.cli.main", *words, "--socket", str(box.daemon.control_socket)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, env=python_environment(), check=False)
    return done.stdout + done.stderr


def test_a_name_survives_a_crash_and_outlives_its_client() -> None:
    """By the operator's commands."""
    with Lab(clients=20) as lab:
        box = Box(lab)
        assert roost(box, "name", str(box.id), "Kitchen") == f"{box.id} {box.address}: kitchen.roost\n"
        box.to("SLEEP")
        box.daemon.kill()
        box.daemon.start()
        assert box.by_socks("kitchen.roost") == (0, PAGE, "")
        shown = json.loads(roost(box, "show", "kitchen.roost", "--json"))
        assert (shown["id"], shown["name"]) == (box.id, "kitchen")
        box.client.close()
        wait_until(lambda: box.daemon.connections() == [], 10, "the client is gone")
        code, _, said = box.by_connect("kitchen.roost")
        assert code != 0
        assert "502" in said
        code, _, said = box.by_socks("kitchen.roost")
        assert (code, "(5)" in said) == (97, True)
        client = WebClient(lab)
        wait_until(lambda: len(box.daemon.connections(state="IDLE")) == 1, 10, "another client is IDLE")
        (row,) = box.daemon.connections()
        roost(box, "name", row["client"], "kitchen")
        assert box.by_socks("kitchen.roost") == (0, PAGE, "")
        assert roost(box, "name", "--remove", "kitchen") == "kitchen: no client's name now\n"
        assert "(4)" in box.by_socks("kitchen.roost")[2]
        assert "no client has the name" in roost(box, "name", "--remove", "kitchen")
        client.close()
