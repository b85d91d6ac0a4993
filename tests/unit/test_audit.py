# SPDX-License-Identifier: Apache-2.0
"""The record of changes: each that is asked for leaves a row, whatever comes of it, and what only looks leaves none."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from starlette.responses import Response

from control.channel.asker import WHO_LENGTH
from control.channel.audit import BODY_LENGTH, BROKEN, ERROR_LENGTH, METHOD_LENGTH, PATH_LENGTH, Audited
from control.channel.operations import Operations
from control.cli import audit as command
from control.cli.client import Client
from control.core.access import BODY_MAX
from control.core.states import State
from control.export.export import Export
from control.store import queues
from control.store.appended import Audit
from tests.databases import Database, Sqlite, written
from tests.unit import test_policy_operations as policy
from tests.unit.asked import asked, transport
from tests.unit.fake_engine import key
from tests.unit.test_registry import Rig


class Box:
    """The API of a daemon that has one client."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        rig.engine.add(key(1), 1, State.ACTIVE)
        parts: dict[str, Any] = {**dict.fromkeys(Operations.__dataclass_fields__), "view": rig.view}
        operations = Operations(**{**parts, "naming": rig.naming})
        self.transport = transport(operations, rig.store.append)

    def ask(self, method: str, path: str, expected: int, **request: Any) -> None:
        answer = asked(self.transport, method, path, **request)
        assert answer.status_code == expected, answer.text

    def rows(self, **query: Any) -> list[dict[str, Any]]:
        answer = asked(self.transport, "GET", "/v1/audit", params=query)
        assert answer.status_code == 200, answer.text
        return cast("list[dict[str, Any]]", answer.json())


@pytest.fixture
def box(database: Database) -> Iterator[Box]:
    rig = Rig(database)
    yield Box(rig)
    rig.close()


def test_what_is_changed_and_refused_is_kept_with_who_asked(box: Box) -> None:
    ann, bob = {"Roost-Who": "ann"}, {"Roost-Who": "bob%20von%20N%C3%BC"}
    box.ask("PUT", "/v1/connections/1/name", 200, json={"name": "meter-1"}, headers=ann)
    box.ask("PUT", "/v1/connections/77/name", 404, json={"name": "meter-7"}, headers=bob)
    box.ask("PUT", "/v1/connections/1/name", 422, json={"nam": "meter-1"})
    box.ask("DELETE", "/v1/names/meter-1", 200, headers=bob)
    box.ask("PATCH", "/v1/names/meter-1", 405)
    box.ask("GET", "/v1/connections", 200)
    first, second, third, fourth, fifth = rows = box.rows()
    assert abs(first.pop("at_ms") - time.time() * 1000) < 60_000
    assert first == {"who": "ann", "origin": "local", "method": "PUT", "path": "/v1/connections/1/name",
                     "body": '{"name":"meter-1"}', "status": 200, "error": None}  # fmt: skip
    assert (second["who"], second["status"], second["error"]) == ("bob von Nü", 404, 'no connection "77"')
    assert (third["who"], third["status"]) == ("root", 422)
    assert "name: Field required" in third["error"]
    assert (fourth["method"], fourth["path"], fourth["body"]) == ("DELETE", "/v1/names/meter-1", "")
    assert (fifth["status"], fifth["error"]) == (405, "Method Not Allowed")
    assert box.rows(limit=2) == rows[3:]
    assert box.rows(who="bob von Nü") == [second, fourth]
    assert box.rows(refused=True) == [second, third, fifth]
    assert box.rows(refused=True, who="root", limit=1) == [fifth]


def test_a_change_that_is_tried_is_kept_where_it_is_refused(sqlite: Sqlite) -> None:
    rig = Rig(cast(Database, sqlite))
    box = policy.Box(rig)
    box.transport = transport(box.operations, rig.store.append)
    good = '[[rule]]\nname = "a"\nactive_quiet = 1'
    box.ask("POST", "/try", {"file": good})
    box.ask("POST", "/try", {"file": good + "\na.a.a.a.a = 1"}, 422)
    assert written(rig.store)
    (row,) = rig.store.recent_audit(10)
    assert (row.path, row.status, "more than 4 parts" in row.error) == ("/v1/policy/try", 422, True)
    rig.close()


def test_what_is_no_text_and_what_is_long_is_kept_as_far_as_it_goes(box: Box) -> None:
    """Whatever bytes come, the database takes the row."""
    odd = "%00%ff%ed%a0%80%0a%1b" + "x" * 2 * PATH_LENGTH
    body = b"\0\xff\xed\xa0\x80\n" + b"y" * 2 * BODY_LENGTH
    headers = {"Roost-Who": "%00%ed%a0%80" + "z" * 2 * WHO_LENGTH, "content-type": "application/json"}
    box.ask("PUT", f"/v1/names/{odd}/tags", 422, content=body, headers=headers)
    box.ask("UPDATEREDIRECTREF", "/v1/status", 405)
    assert written(box.rig.store)
    row, other = box.rows()
    assert other["method"] == "UPDATEREDIRECTRE"[:METHOD_LENGTH]
    assert (len(row["path"]), len(row["who"]), len(row["body"])) == (PATH_LENGTH, WHO_LENGTH, BODY_LENGTH + 1)
    assert len(row["error"]) <= ERROR_LENGTH
    assert row["body"].endswith("y…")
    assert all(one.isprintable() for one in row["path"] + row["who"] + row["body"] + row["error"])


def test_what_is_too_large_or_has_no_place_is_kept_as_it_was_answered(box: Box) -> None:
    box.ask("PUT", "/v1/names/meter-1/tags", 413, content=b"x" * (BODY_MAX + 1))
    box.ask("DELETE", "/v1/names/meter-1/", 404)
    first, second = box.rows()
    assert (first["status"], first["body"], second["status"], second["error"]) == (413, "", 404, "Not Found")


@pytest.mark.parametrize("error", [RuntimeError("a defect"), asyncio.CancelledError()])
def test_what_breaks_in_the_midst_is_kept_as_500(error: BaseException) -> None:
    found: list[Audit] = []

    async def broken(_scope: Any, receive: Any, _send: Any) -> None:
        await receive()
        raise error

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def send(_message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/v1/connections/1/sleep", "headers": []}
    with pytest.raises(type(error)):
        asyncio.run(Audited(broken, found.append)(scope, receive, send))
    assert [(row.status, row.body, row.path, row.error) for row in found] == [
        (500, "{}", "/v1/connections/1/sleep", BROKEN)
    ]  # fmt: skip


def test_a_try_changes_nothing_and_is_kept_where_it_is_refused_or_fails() -> None:
    found: list[Audit] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"file": ""}'}

    async def send(_message: Any) -> None: ...

    for status in (200, 422, 500):
        answer = Response('{"error": "no"}', status)
        scope = {"type": "http", "method": "POST", "path": "/v1/policy/try", "headers": []}
        asyncio.run(Audited(answer, found.append)(scope, receive, send))
    assert [(row.path, row.status, row.error) for row in found] == [("/v1/policy/try", 422, "no"),
                                                                    ("/v1/policy/try", 500, "no")]  # fmt: skip


def test_changes_past_the_bound_are_dropped_and_counted(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "APPENDED_BOUND", 3)
    with box.rig.store._wake:  # nothing is written meanwhile
        for _ in range(5):
            box.rig.store.append(Audit(1, "ann", "local", "PUT", "/", "", 200, ""))
    assert box.rig.store.status.dropped_audit == 2
    assert written(box.rig.store)
    assert len(box.rows()) == 3


def test_changes_are_exported(box: Box, database: Database, tmp_path: Path) -> None:
    box.ask("PUT", "/v1/connections/1/name", 200, json={"name": "meter-1"})
    box.ask("DELETE", "/v1/names/meter-7", 404)
    assert written(box.rig.store)
    outcome = Export(tmp_path / "out").add(database.url, None, None, lambda _name, _rows: None)["audit"]
    assert (outcome.rows, outcome.missed) == (2, 0)
    rows = ds.dataset(tmp_path / "out" / "audit", format="parquet").to_table().sort_by("seq").to_pylist()
    assert [(row["seq"], row["path"], row["status"]) for row in rows] == [
        (1, "/v1/connections/1/name", 200), (2, "/v1/names/meter-7", 404)
    ]  # fmt: skip
    assert rows[0]["error"] is None
    assert "meter-7" in rows[1]["error"]
    assert Export(tmp_path / "out").check() == []


def test_commands_say_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[bytes] = []

    def answer() -> None:
        for _ in range(2):
            connection = listener.accept()[0]
            with connection:
                heard.append(connection.recv(10_000))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    monkeypatch.setenv("SUDO_USER", "jürgen\r\nX: y\udcff")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        server = threading.Thread(target=answer)
        server.start()
        client = Client(str(tmp_path / "socket"))
        client.send("DELETE", "/v1/names/a")
        client.get("/v1/status")
        server.join()
    assert b"\r\nRoost-Who: j%C3%BCrgen%0D%0AX%3A%20y%3F\r\n" in heard[0]
    assert b"Roost-Who" not in heard[1]


def test_the_command_shows_them(sqlite: Sqlite, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(cast(Database, sqlite))
    box = Box(rig)
    box.ask("PUT", "/v1/connections/1/name", 200, json={"name": "meter-1"}, headers={"Roost-Who": "ann"})
    box.ask("DELETE", "/v1/names/a b", 400, headers={"Roost-Who": "ann"})
    given: dict[str, Any] = {}

    def get(_self: Client, path: str, **query: Any) -> Any:
        given.update(query)
        return asked(box.transport, "GET", path, params={k: v for k, v in query.items() if v is not None}).json()

    monkeypatch.setattr(Client, "get", get)
    shown = CliRunner().invoke(command.command, ["--who", "ann"]).output.splitlines()
    assert given == {"limit": 20, "who": "ann", "refused": None}
    assert shown[0].split() == ["at", "who", "from", "request", "with", "result"]
    assert shown[1].split()[2:] == ["ann", "local", "PUT", "/v1/connections/1/name", '{"name":"meter-1"}', "done"]
    assert "DELETE /v1/names/a%20b" in shown[2]
    assert "400 a client's name is" in shown[2]
    rig.close()


def test_what_the_network_s_api_has_refused_is_recorded_and_not_carried_out(box: Box) -> None:
    told = {"Roost-Who": "ann", "Roost-From": "192.0.2.9"}
    for status, path in ((403, "/v1/connections/1/close"), (401, "/v1/tokens/ann"), (403, "/v1/policy/try")):
        box.ask("POST", path, status, headers={**told, "Roost-Refused": f"{status} not%20you"})
    box.ask("POST", "/v1/connections/1/close", 403, headers={**told, "Roost-Refused": "200"})
    assert box.rig.engine.commands == []
    written(box.rig.store)
    rows = [(row["who"], row["origin"], row["path"], row["status"], row["error"]) for row in box.rows(refused=True)]
    assert rows == [
        ("ann", "192.0.2.9", "/v1/connections/1/close", 403, "not you"),
        ("ann", "192.0.2.9", "/v1/tokens/ann", 401, "not you"),
        ("ann", "192.0.2.9", "/v1/policy/try", 403, "not you"),
        ("ann", "192.0.2.9", "/v1/connections/1/close", 403, None),
    ]
