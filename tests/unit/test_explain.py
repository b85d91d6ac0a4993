# SPDX-License-Identifier: Apache-2.0
"""`roost explain`: each reason why a connection is not asleep, or does not wake, becomes a sentence that names it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from appliance.wire import Obstacle, Obstacles, Own
from control.channel.status import Status
from control.cli import explain as explain_command
from control.cli.client import Client
from control.clients.explain import REFUSALS, Explainer, sentences
from control.config import Service
from control.core.states import State
from tests.databases import Database, Sqlite
from tests.unit.fake_engine import key
from tests.unit.test_registry import Rig


class Told:
    """A daemon with one connection, of which `text` tells."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.engine = rig, rig.engine
        self.services = {1: Service(name="line", listen="10.0.0.1:7000", server="10.0.0.9:7000")}
        self.servers = [{"server": "10.0.0.9:7000", "state": "up", "reason": ""}]
        self.attention: list[str] = []
        self.facts: dict[str, Any] = {"interfaces": {"wan0": "native"}, "max_awake": 100}
        self.engine.policy = {"active_quiet_ms": 60_000, "standby_quiet_ms": 120_000, "idle_quiet_ms": 3_600_000,
                              "probe_count": 4}  # fmt: skip
        self.explainer = Explainer(self.engine, rig.store, self.services, rig.locator, lambda _: self.servers,
                                   lambda: self.attention, self.facts)  # fmt: skip
        self.connection = self.engine.add(key(1), 7, State.STANDBY)

    def text(self) -> str:
        told = self.explainer.explain(self.connection.key.client_text)
        assert told["id"] == 7
        return " ".join(told["sentences"])


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    rig = Rig(cast(Database, Sqlite(tmp_path)))
    yield Told(rig)
    rig.close()


def test_a_quiet_interval_that_is_not_over_is_told_with_what_is_left(told: Told) -> None:
    assert "in 2m, it goes to IDLE: standby_quiet." in told.text()
    told.engine.own = Own(in_band={"standby_quiet_ms": 120_000})
    assert "standby_quiet, set in band" in told.text()
    told.engine.own = Own(by_command={"standby_quiet_ms": 120_000})
    assert "standby_quiet, set by command" in told.text()


def test_a_persistent_connection_goes_from_active_to_idle(told: Told) -> None:
    told.connection.state = State.ACTIVE
    assert "it goes to STANDBY: active_quiet." in told.text()
    told.services[1] = Service(name="line", listen="10.0.0.1:7000", server="10.0.0.9:7000", interface="persistent")
    assert "it goes to IDLE: active_quiet." in told.text()


def test_a_policy_that_never_lets_it_sleep_is_told(told: Told) -> None:
    told.engine.policy["standby_quiet_ms"] = 0
    assert "lets it stay STANDBY for ever: standby_quiet is 0" in told.text()
    told.engine.own = Own(in_band={"always_active": 1})
    assert "asked in band to stay awake" in told.text()


OBSTACLES = {
    Obstacle.MOVING: "being frozen or thawed",
    Obstacle.GRACE: "cancelled a moment ago",
    Obstacle.CONNECTING: "link to the server is being made",
    Obstacle.SERVER_SPEAKS: "server has just spoken",
    Obstacle.ENDED: "ended its side",
    Obstacle.CLIENT_BLOCKED: "the client does not read; the connection is reset when none of them is taken",
    Obstacle.SERVER_BLOCKED: "the server does not read; the connection is reset when none of them is taken",
    Obstacle.SERVER_WAITS: "A server waits for it",
    Obstacle.IN_BAND: "inside the payload",
    Obstacle.LINK_LOCAL: "link-local",
}


@pytest.mark.parametrize("obstacle", Obstacle)
def test_each_obstacle_has_a_sentence_of_its_own(told: Told, obstacle: Obstacle) -> None:
    assert not [words for words in OBSTACLES.values() if words in told.text()]
    told.engine.obstacles = Obstacles(obstacle, 0, 0, 0, 0, 0)
    assert [one for one, words in OBSTACLES.items() if words in told.text()] == [obstacle]


def test_bytes_in_flight_and_the_last_refusal_are_told(told: Told) -> None:
    told.engine.obstacles = Obstacles(Obstacle(0), errno.EAGAIN, 1, 14480, 2, 3)
    text = told.text()
    assert "14,480 bytes to the client are not sent or not acknowledged" in text
    assert "1 bytes of the client wait" in text
    assert "2 bytes of the server wait" in text
    assert "3 bytes to the server" in text
    assert f"refused (Resource temporarily unavailable): {REFUSALS[errno.EAGAIN]}." in text


def test_one_that_is_idle_says_that_nothing_is_amiss_or_that_the_store_is(told: Told) -> None:
    told.connection.state = State.IDLE
    assert "it goes to SLEEP: idle_quiet." in told.text()
    assert "no socket and no descriptor" in told.text()
    told.rig.store.status.error = "disk full"
    assert "cannot go to SLEEP: the store says disk full" in told.text()


def test_one_that_cannot_wake_says_why(told: Told) -> None:
    told.connection.state = State.IDLE
    told.rig.sleep(7)
    told.servers[0] |= {"state": "down", "reason": "connection refused"}
    told.attention = ["wan0: 7 frames had a wrong checksum. Do this."]
    told.engine.counted = {"awake": 99}
    text = told.text()
    assert "The client was heard" in text
    assert "No server of service line is up (10.0.0.9:7000: connection refused)" in text
    assert "99 of the 100 connections that may be awake are" in text
    assert "Of the whole appliance: wan0: 7 frames had a wrong checksum" in text
    told.services.clear()
    told.facts["interfaces"] = {}
    text = told.text()
    assert "(#1) is not configured any more" in text
    assert "No interface is heard" in text


def test_the_status_and_an_explanation_tell_what_happened_since_the_daemon_began(told: Told) -> None:
    told.engine.counted = {"bad_checksum": 3}
    dispatching = threading.Thread(target=told.rig.dispatcher.run)
    dispatching.start()
    facts = {**told.facts, "database": "roost.db", "waiting": []}
    status = Status(
        told.engine, told.rig.store, told.rig.dispatcher, told.services, set(), lambda _: told.servers,
        {"policy": lambda: {"error": "", "problems": 0}, "pressure": lambda: {"reached": {}},
         "export": lambda: {"error": ""}, "api": lambda: {"listen": [], "pid": None, "ended": 0}}, facts,
    )  # fmt: skip
    assert status.read()["attention"] == []
    told.engine.counted = {"bad_checksum": 5}
    (one,) = status.read()["attention"]
    assert one["what"].startswith("2 frames had a wrong checksum")
    told.attention = status.attention()
    assert "Of the whole appliance: wan0: 2 frames" in told.text()
    told.rig.dispatcher.stop()
    dispatching.join()


def test_facts_that_are_not_the_case_make_no_sentence() -> None:
    assert sentences({}) == []


def test_the_command_prints_a_sentence_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answer: dict[str, object] = {
        "id": 7,
        "client": "192.0.2.1:4",
        "service": "line",
        "state": "IDLE",
        "sentences": ["One.", "Two."],
    }
    asked: list[str] = []

    def get(_client: Client, path: str) -> dict[str, object]:
        asked.append(path)
        return answer

    monkeypatch.setattr(Client, "get", get)
    result = CliRunner().invoke(explain_command.command, ["192.0.2.1:4"])
    assert result.output == "7 192.0.2.1:4, service line: IDLE\n- One.\n- Two.\n"
    assert asked == ["/v1/connections/192.0.2.1%3A4/explain"]
