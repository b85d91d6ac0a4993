# SPDX-License-Identifier: Apache-2.0
"""Jobs, and the token that asked for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from appliance.wire import Op, Record
from control.clients import jobs
from control.clients.jobs import JOBS_EACH, JOBS_MAX, SCOPED_MAX, WORKERS, Jobs
from control.clients.scope import SCOPE
from control.clients.view import EVERYTHING, Wanted
from control.core.errors import OperationError
from control.core.ports import Outcomes
from control.core.states import State
from control.store.store import Store
from control.store.tokens import TokenRow
from tests.databases import Database
from tests.unit.fake_engine import key
from tests.unit.test_registry import Rig

CLIENTS = 20


class Commands:
    """Does what it is told at once; `meanwhile` after the third. Where `held`, jobs in a scope wait for `go_on`."""

    def __init__(self) -> None:
        self.told = 0
        self.held = False
        self.go_on = threading.Event()
        self.meanwhile: Callable[[], object] = lambda: None

    def count(self, states: Iterable[State]) -> Outcomes:
        return Outcomes(1, frozenset(map(int, states)))

    def uncount(self, outcomes: Outcomes) -> None: ...

    def command_many(self, _op: Op, keys: Sequence[bytes], outcomes: Outcomes) -> None:
        if self.held and SCOPE.get() is not None:
            self.go_on.wait(60)
        self.told += len(keys)
        outcomes.done += len(keys)
        if self.told == 3:
            self.meanwhile()

    def sleep_many(self, _records: Sequence[Record], _outcomes: Outcomes) -> None:
        raise AssertionError


class Box:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
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

    def job(self, names: Sequence[str], by_token: bool = True, wanted: Wanted = EVERYTHING) -> dict[str, Any]:
        """At its end."""
        with self.working(1):
            return self.ended(self.jobs.begin("close", wanted, names, 500, {}, "ann", by_token)["number"])

    @contextmanager
    def working(self, workers: int) -> Iterator[None]:
        threads = [threading.Thread(target=self.jobs.run) for _ in range(workers)]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            self.commands.go_on.set()
            self.jobs.stop()
            for one in threads:
                one.join()

    def ended(self, number: int) -> dict[str, Any]:
        ends = time.monotonic() + 30
        while not (shown := self.jobs.show(number))["ended_at_ms"]:
            assert time.monotonic() < ends
            time.sleep(0.01)
        return shown

    def begin(self, who: str, services: frozenset[str] | None) -> int:
        """A job that names a connection, of one who may see all, or these services alone: its number."""
        token = SCOPE.set(services)
        try:
            return int(self.jobs.begin("close", EVERYTHING, ["1"], 500, {}, who, by_token=False)["number"])
        finally:
            SCOPE.reset(token)


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


def test_a_job_leaves_alone_whoever_has_its_place_meanwhile(box: Box) -> None:
    """The list is seconds older than the act: a NAT has given the last client's address and port to another one."""
    box.commands.meanwhile = lambda: box.rig.engine.add(key(CLIENTS), 4711, State.ACTIVE)
    assert box.job([])["done"] == CLIENTS - 1


@pytest.mark.parametrize("change", ["name", "tag"])
def test_a_job_by_name_and_tag_leaves_alone_whoever_has_them_no_more(box: Box, change: str) -> None:
    for number in range(1, 7):
        box.rig.naming.give(str(number), f"meter-{number}")
        box.rig.naming.tag(f"meter-{number}", ("old",), ())

    def changed() -> None:
        if change == "tag":
            box.rig.naming.tag("meter-6", (), ("old",))
        else:
            box.rig.naming.give("6", "pump-6")  # in place of the other one

    box.commands.meanwhile = changed
    assert box.job([], wanted=Wanted(name="meter-*", tag="old"))["done"] == 5


SERVICES = frozenset({"a"})


def test_servers_leave_a_worker_to_others(box: Box) -> None:
    """A job of 10,000 names takes hours, if it is to be so slow."""
    box.commands.held = True
    servers = [box.begin(f"server-{one}", SERVICES) for one in range(WORKERS + 1)]
    with box.working(WORKERS):
        assert box.ended(box.begin("ann", None))["state"] == "done"
        shown = [box.jobs.show(one)["state"] for one in servers]
        assert "waiting" in shown
        box.commands.go_on.set()
        assert {box.ended(one)["state"] for one in servers} == {"done"}, "they go on as soon as one of them has ended"


def test_servers_leave_places_to_others(box: Box) -> None:
    for place in range(SCOPED_MAX):
        box.begin(f"server-{place // JOBS_EACH}", SERVICES)
    with pytest.raises(OperationError, match=f"^{SCOPED_MAX} jobs of tokens for some services have not") as refused:
        box.begin("another server", SERVICES)
    assert refused.value.status == 429
    for place in range(SCOPED_MAX, JOBS_MAX):
        box.begin(f"operator-{place // JOBS_EACH}", None)
    with pytest.raises(OperationError, match=f"^{JOBS_MAX} jobs have not"):
        box.begin("another operator", None)
