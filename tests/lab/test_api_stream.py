# SPDX-License-Identifier: Apache-2.0
"""The stream of what happens, in whole: who listens resumes whatever is killed, and has each transition once."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from itertools import count
from typing import Any

import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from appliance.lab import Lab, wait_until
from tests.lab.api_lab import ApiLab


@pytest.fixture(scope="module")
def box() -> Iterator[ApiLab]:
    with Lab(clients=10, nat=False) as lab, ApiLab(lab) as box:
        box.wait_for_api()
        box.token("viewer")
        yield box


class Listener:
    """Listens in a thread, and resumes whenever it ends."""

    def __init__(self, box: ApiLab, query: str = "", token: str = "viewer") -> None:
        self._box = box
        self._query = query
        self._token = token
        self.events: list[tuple[int, dict[str, Any]]] = []
        self.resumed = -1
        self._last = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: self.resumed >= 0, 10, "it listens")

    def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(OSError, HTTPException, WebSocketException):
                self._listen()
            time.sleep(0.05)

    def _listen(self) -> None:
        headers = {"Last-Event-ID": self._last} if self._last else {}
        with self._box.begun(self._token, "GET", f"/v1/events{self._query}", headers=headers) as answer:
            if answer.status == 200:
                self.resumed += 1
                self._take(answer)

    def _take(self, answer: Any) -> None:
        number = 0
        for raw in answer:
            line = raw.decode().rstrip("\n")
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                self.events.append((number, json.loads(line[6:])))
            elif not line and number:
                self._last = str(number)  # RFC: at the end of an event
                if self._ended.is_set():
                    return

    def end(self) -> list[tuple[int, dict[str, Any]]]:
        """What it has heard."""
        self._ended.set()
        self._thread.join(20)
        return self.events


class SocketListener(Listener):
    """By a control connection."""

    def _listen(self) -> None:
        headers = {"Authorization": f"Bearer {self._box.texts[self._token]}"}
        opened = connect("ws://roost.test/v1/control", sock=self._box.connected(), additional_headers=headers,
                         compression=None, ping_interval=None)  # fmt: skip
        with opened as sock:
            where = f"?after={self._last}" if self._last else self._query
            sock.send(json.dumps({"id": 1, "method": "GET", "path": f"/v1/events{where}"}))
            answer = json.loads(sock.recv(10))
            if answer["status"] != 200:
                return
            self._last = str(answer["seq"])
            self.resumed += 1
            while not self._ended.is_set():
                with suppress(TimeoutError):
                    told = json.loads(sock.recv(0.5))
                    self.events.append((told["seq"], told["data"]))
                    self._last = str(told["seq"])


def in_history(box: ApiLab, limit: int = 10_000) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = box.daemon.get("/v1/history", limit=limit)
    return rows


def test_nothing_is_lost_or_told_twice_across_ends_of_the_api_and_of_the_daemon(box: ApiLab) -> None:
    sockets = [box.client() for _ in range(5)]
    listeners, numbers = [kind(box, "?last=10000") for kind in (Listener, SocketListener)], count()
    kills = {20: "api", 40: "daemon", 60: "api", 80: "daemon"}
    for turn in range(100):
        _, address = sockets[next(numbers) % 5]
        action = ("idle", "wake")[turn // 5 % 2]
        box.daemon.act(address, action)
        if turn in kills:
            ends = sum(before < turn for before in kills)
            resumed = lambda ends=ends: min(each.resumed for each in listeners) >= ends  # noqa: E731
            wait_until(resumed, 20, "they listen again")
        if (what := kills.get(turn)) == "api":
            pid = box.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        elif what == "daemon":
            for _, one in sockets:
                box.daemon.act(one, "idle")
            box.daemon.kill()
            box.daemon.start()
            sockets = [
                (sock, one) for sock, one in sockets if one in {row["client"] for row in box.daemon.connections()}
            ]
            assert len(sockets) == 5
    wait_until(lambda: min(len(each.events) for each in listeners) >= len(in_history(box)), 20, "all is told")
    heard = [each.end() for each in listeners]
    kept = [{k: v for k, v in row.items() if k != "successor"} for row in in_history(box)]
    for each, events in zip(listeners, heard, strict=True):
        assert each.resumed >= 4
        assert [number for number, _ in events] == list(range(1, 1 + len(kept)))
        assert [row for _, row in events] == kept


def test_a_server_hears_of_its_clients_alone(box: ApiLab) -> None:
    box.token("server", "lab4")
    listener, everything = Listener(box, token="server"), Listener(box)
    for family in (4, 6, 4, 6):
        box.client(family)
    wait_until(lambda: len(everything.events) >= 4, 10, "all is told")
    wait_until(lambda: len(listener.events) >= 2, 10, "its own is told")
    assert {row["service"] for _, row in listener.end()} == {"lab4"}
    assert {row["service"] for _, row in everything.end()} == {"lab4", "lab6"}
    assert box.ask("server", "GET", "/v1/events?service=lab6") == (
        404,
        {"error": 'service: there is no service "lab6"'},
    )


def test_a_token_that_is_revoked_hears_no_more(box: ApiLab) -> None:
    box.token("viewer")
    with box.begun("viewer", "GET", "/v1/events") as answer:
        assert answer.readline().startswith(b":")
        assert box.daemon.http("DELETE", f"/v1/tokens/{box.names['viewer']}").status_code == 200
        began = time.monotonic()
        with pytest.raises(HTTPException):
            answer.read()
        assert time.monotonic() - began < 5
    box.token("viewer")


def test_who_is_behind_reads_the_history_and_who_asks_for_nonsense_is_refused(box: ApiLab) -> None:
    box.client()
    wait_until(lambda: len(in_history(box)) > 0, 5, "there is some")
    some = len(in_history(box))
    listener = Listener(box, "?after=0&to=ACTIVE")
    wait_until(lambda: len(listener.events) >= 1, 10, "it is told")
    assert {row["to"] for _, row in listener.end()} == {"ACTIVE"}
    beyond = Listener(box, f"?after={some + 1_000_000}")
    wait_until(lambda: any(row.keys() == {"last"} for _, row in beyond.events), 10, "it is told that there is none yet")
    beyond.end()
    assert box.ask("viewer", "GET", "/v1/events?limit=1")[0] == 422
