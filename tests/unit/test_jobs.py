# SPDX-License-Identifier: Apache-2.0
"""Jobs, and the token that asked for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from appliance.wire import Op, Record
from control.clients import jobs
from control.clients.jobs import Jobs
from control.clients.view import EVERYTHING
from control.core.ports import Outcomes
from control.core.states import State
from control.store.store import Store
from control.store.tokens import TokenRow
from tests.databases import Database
from tests.unit.fake_engine import key
from tests.unit.test_registry import Rig

CLIENTS = 20


class Commands:
    """Does what it is told at once; `meanwhile` after the third."""

    def __init__(self) -> None:
        self.told = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def count(self, states: Iterable[State]) -> Outcomes:
        return Outcomes(1, frozenset(map(int, states)))

    def uncount(self, outcomes: Outcomes) -> None: ...

    def command_many(self, _op: Op, keys: Sequence[bytes], outcomes: Outcomes) -> None:
        self.told += len(keys)
        outcomes.done += len(keys)
        if self.told == 3:
            self.meanwhile()

    def sleep_many(self, _records: Sequence[Record], _outcomes: Outcomes) -> None:
        raise AssertionError


class Box:
    def __init__(self, rig: Rig) -> None:
        self.store: Store = rig.store
        self.commands = Commands()
        for number in range(1, CLIENTS + 1):
            rig.engine.add(key(number), number, State.ACTIVE)
        self.jobs = Jobs(rig.engine, rig.store, self.commands, rig.locator, rig.view)
        self.token("ann")

    def token(self, name: str, expires_at: int | None = None) -> None:
        made = time.time_ns()
        number = f"{name}{made % 10_000:04}"
        self.store.add_token(TokenRow(number, name, "operator", None, bytes(32), made // 1_000_000, "root", expires_at))

    def job(self, names: Sequence[str], by_token: bool = True) -> dict[str, Any]:
        """At its end."""
        thread = threading.Thread(target=self.jobs.run)
        thread.start()
        try:
            number = self.jobs.begin("close", EVERYTHING, names, 500, {}, "ann", by_token)["number"]
            ends = time.monotonic() + 30
            while not (shown := self.jobs.show(number))["ended_at_ms"]:
                assert time.monotonic() < ends
                time.sleep(0.01)
            return shown
        finally:
            self.jobs.stop()
            thread.join()


@pytest.fixture
def box(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    monkeypatch.setattr(jobs, "TOKEN_S", 0.0)
    rig = Rig(database)
    yield Box(rig)
    rig.close()


NAMES = [str(number) for number in range(1, CLIENTS + 1)]


@pytest.mark.parametrize("names", [NAMES, []], ids=["named", "everything"])
def test_a_job_ends_with_the_token_that_asked_for_it(box: Box, names: list[str]) -> None:
    box.commands.meanwhile = lambda: box.store.revoke_token("ann")
    shown = box.job(names)
    assert (shown["state"], shown["done"]) == ("cancelled", 3)
    assert shown["error"] == "its token was revoked, or has expired"


def test_a_later_token_of_the_same_name_is_another_one(box: Box) -> None:
    def renewed() -> None:
        box.store.revoke_token("ann")
        made_at = time.time_ns() // 1_000_000 + 3_600_000
        box.store.add_token(TokenRow("another1", "ann", "operator", None, bytes(32), made_at, "root"))

    box.commands.meanwhile = renewed
    shown = box.job(NAMES)
    assert (shown["state"], shown["done"]) == ("cancelled", 3)


def test_a_job_of_a_token_that_is_good_no_more_is_not_begun(box: Box) -> None:
    """The API's process believes a token for a second or two."""
    box.store.revoke_token("ann")
    shown = box.job(NAMES)
    assert (shown["state"], shown["found"], box.commands.told) == ("cancelled", 0, 0)


def test_a_job_goes_on_while_its_token_is_good(box: Box) -> None:
    box.token("bob")
    box.commands.meanwhile = lambda: box.store.revoke_token("bob")
    assert box.job(NAMES)["done"] == CLIENTS


def test_a_job_that_was_asked_for_without_a_token_ends_with_none(box: Box) -> None:
    box.commands.meanwhile = lambda: box.store.revoke_token("ann")
    assert box.job(NAMES, by_token=False)["done"] == CLIENTS
