# SPDX-License-Identifier: Apache-2.0
"""Tokens: made once, kept as hashes, listed, revoked, at their end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from click.testing import CliRunner

from control.channel.operations import Operations
from control.channel.tokens import Tokens
from control.cli import token as command
from control.cli.client import Client
from control.core.access import new_token, read_token
from control.store import tokens as store
from tests.databases import Database
from tests.unit.asked import asked, transport
from tests.unit.test_registry import Rig

SERVICES = ("alarms", "meters")
DAY_MS = 86_400_000


class Box:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        tokens = Tokens(rig.store, lambda: SERVICES)
        parts: dict[str, Any] = {**dict.fromkeys(Operations.__dataclass_fields__), "tokens": tokens}
        self.transport = transport(Operations(**parts), rig.store.append)

    def ask(self, method: str, path: str, expected: int = 200, **request: Any) -> Any:
        answer = asked(self.transport, method, path, **request)
        assert answer.status_code == expected, answer.text
        return answer.json()

    def make(self, name: str = "ann", role: str = "viewer", expected: int = 200, **wanted: Any) -> Any:
        return self.ask("POST", "/v1/tokens", expected, json={"name": name, "role": role, "expires_s": 60, **wanted})

    def names(self) -> list[tuple[str, bool]]:
        return [(row["name"], row["good"]) for row in self.ask("GET", "/v1/tokens")]


@pytest.fixture
def box(database: Database) -> Iterator[Box]:
    rig = Rig(database)
    yield Box(rig)
    rig.close()


def test_a_token_is_told_once_and_only_a_hash_of_it_is_kept(box: Box) -> None:
    made = box.make(role="server", services=["meters", "alarms", "meters"])
    text = made.pop("token")
    credential = read_token(text)
    assert credential is not None
    assert credential.id == made["id"]
    (row,) = box.ask("GET", "/v1/tokens", headers={"Roost-Who": "ann"})
    assert row == made
    assert made["services"] == ["meters", "alarms"]
    assert made["made_by"] == "root"
    assert 0 < made["expires_at_ms"] - made["made_at_ms"] <= 60_000
    box.rig.store.flush()
    (kept,) = box.rig.store.tokens()
    assert kept.digest == credential.digest
    secret = text[15:]
    assert secret not in json.dumps(box.rig.store.recent_audit(10)) + repr(kept)
    assert [entry.path for entry in box.rig.store.recent_audit(10)] == ["/v1/tokens"]


def test_what_is_no_token() -> None:
    text, _ = new_token()
    for wrong in ("", "x", text[:-1], f"{text}x", text.upper(), text.replace("roost", "toast"), f" {text}", f"{text}\n",
                  "roost_" + "l" * 8 + text[14:], text[:-1] + "é"):  # fmt: skip
        assert read_token(wrong) is None, wrong


def test_a_name_is_taken_until_its_token_is_revoked_or_expires(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    first = box.make()
    assert 'there is a token "ann"' in box.make(expected=409)["error"]
    assert box.ask("DELETE", "/v1/tokens/ann") == {"id": first["id"], "name": "ann"}
    assert 'no token "ann"' in box.ask("DELETE", "/v1/tokens/ann", 404)["error"]
    second = box.make(expires_s=1)
    assert box.names() == [("ann", False), ("ann", True)]
    now = time.time_ns()
    monkeypatch.setattr("control.channel.tokens.time.time_ns", lambda: now + 2_000_000_000)
    assert box.names() == [("ann", False), ("ann", False)]
    third = box.make(expires_s=None)
    assert third["expires_at_ms"] is None
    assert box.ask("DELETE", f"/v1/tokens/{third['id']}")["id"] == third["id"]
    assert len({one["id"] for one in (first, second, third)}) == 3


def test_a_name_that_is_a_tokens_id_is_refused_for_as_long_as_it_is_listed(box: Box) -> None:
    first = box.make("ann")
    said = f'"{first["id"]}" is the id of the token "ann"; choose another name'
    assert box.make(first["id"], expected=409)["error"] == said
    box.ask("DELETE", f"/v1/tokens/{first['id']}")
    assert box.make(first["id"], expected=409)["error"] == said
    box.make("operator")  # which might be an id


def test_where_the_name_of_one_token_is_the_id_of_another_the_id_is_revoked(box: Box) -> None:
    """As a database may have it of an earlier version."""
    now = time.time_ns() // 1_000_000
    for number, name in (("aaaaaaaa", "bbbbbbbb"), ("bbbbbbbb", "bob")):
        box.rig.store.add_token(store.TokenRow(number, name, "viewer", None, b"", now, "root"))
    assert box.ask("DELETE", "/v1/tokens/bbbbbbbb") == {"id": "bbbbbbbb", "name": "bob"}
    assert box.ask("DELETE", "/v1/tokens/bbbbbbbb") == {"id": "aaaaaaaa", "name": "bbbbbbbb"}


@pytest.mark.parametrize(("wanted", "why"), [
    ({"name": "a b"}, "name"),
    ({"name": ""}, "name"),
    ({"name": "x" * 64}, "name"),
    ({"role": "root"}, "role"),
    ({"role": "server"}, "services"),
    ({"services": ["meters"]}, "services"),
    ({"role": "server", "services": ["cameras"]}, 'no service "cameras"; there are: alarms, meters'),
    ({"expires_s": 0}, "expires_s"),
    ({"expires_s": 10**12}, "expires_s"),
    ({"expires_s": "soon"}, "expires_s"),
    ({"days": 3}, "days"),
])  # fmt: skip
def test_what_is_refused(box: Box, wanted: dict[str, Any], why: str) -> None:
    assert why in box.make(expected=422, **{"name": "ann", "role": "viewer", **wanted})["error"]
    assert box.names() == []


def test_there_are_so_many_and_those_that_ended_long_ago_are_removed(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "TOKENS_MAX", 2)
    box.make("one")
    box.make("two")
    assert "revoke some first" in box.make("three", expected=507)["error"]
    box.ask("DELETE", "/v1/tokens/one")
    box.make("three")
    later = time.time_ns() + (store.KEEP_MS + DAY_MS) * 1_000_000
    monkeypatch.setattr("control.channel.tokens.time.time_ns", lambda: later)
    box.make("four")
    assert box.names() == [("four", True)]


def test_while_the_database_cannot_be_written_none_is_made(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    for step in ("_prepare", "_write"):  # the writer tries again at any time
        monkeypatch.setattr(box.rig.store, step, fails)
    box.rig.store._status.error = "the disk is full"
    assert "the disk is full" in box.make(expected=503)["error"]
    assert "the disk is full" in box.ask("DELETE", "/v1/tokens/ann", 503)["error"]


class Told(Client):
    """Answers as a daemon would."""

    def __init__(self, box: Box) -> None:
        super().__init__("nowhere")
        self._box = box

    def send(self, method: str, path: str, data: object = None) -> Any:
        return self._box.ask(method, path, json=data)


def test_the_command_prints_the_token_alone_to_its_output(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.cli.client.Client", lambda _path, timeout: Told(box))

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(command.command, [*arguments, "--socket", "x"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result

    made = run("create", "centre", "--role", "server", "--service", "alarms", "--forever")
    assert read_token(made.stdout.strip()) is not None
    assert "server centre, good until never; it is not shown again" in made.stderr
    run("create", "ann", "--role", "operator", "--days", "30")
    assert "ann" in run("revoke", "ann").stdout
    listed = run("list").stdout
    assert "alarms" in listed
    assert "revoked 20" in listed
    assert made.stdout.strip()[-40:] not in listed
    assert [row["role"] for row in json.loads(run("list", "--json").stdout)] == ["server", "operator"]
    assert cast(Any, json.loads(run("create", "bob", "--role", "viewer", "--json").stdout))["token"].startswith(
        "roost_"
    )
