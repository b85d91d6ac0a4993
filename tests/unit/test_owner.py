# SPDX-License-Identifier: Apache-2.0
"""A database has one owner: two daemons on it would take each other's sleepers for connections that are gone."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from control.daemon.inventory import take_inventory
from control.store import migrations, schema
from control.store import owner as module
from control.store.database import StoreError, now_ms, open_engine, parse_url
from control.store.owner import Owner
from control.store.store import Store
from tests.databases import Database, written
from tests.mutants import ROOT
from tests.unit.fake_engine import FakeEngine
from tests.unit.test_store import Recorder, row, sleeper, until

SLEEPERS = 10

ANOTHER_DAEMON = """
import sys
from control.store.store import Store
from tests.unit.test_store import Recorder, sleeper, until
slept = Recorder()
store = Store(sys.argv[1], slept)
assert not store.open(), store.status.text
store.start()
store.add(upserts=[sleeper(n, n) for n in range(1, int(sys.argv[2]) + 1)])
until(lambda: len(slept.slept) == int(sys.argv[2]))
print("asleep", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_daemon(database: Database) -> Iterator[subprocess.Popen[bytes]]:
    """A process that owns the database, and has put 10 connections to sleep."""
    argv = [sys.executable, "-c", ANOTHER_DAEMON, database.url, str(SLEEPERS)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asleep\n"
        try:
            yield process
        finally:
            process.kill()


def rows(database: Database) -> int:
    return int(database.execute("SELECT count(*) FROM sleeping")[0][0])


def begin(store: Store) -> FakeEngine:
    """What a daemon with tables of its own does at start."""
    engine = FakeEngine()
    store.open()
    take_inventory(engine, store, store._boot_id)
    store.start()
    assert written(store)
    return engine


def test_a_second_daemon_on_the_database_of_a_living_one_destroys_no_sleeper(database: Database) -> None:
    with another_daemon(database) as process:
        store = Store(database.url, Recorder())
        try:
            with pytest.raises(StoreError, match=rf"belongs to instance .main. .*pid {process.pid}.*is running"):
                begin(store)
        finally:
            store.close()
            assert rows(database) == SLEEPERS


class Rig:
    """Owners of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.stores: list[Store] = []
        self.here = Owner.here("here", "/pins/here")
        gone = subprocess.Popen(["true"])
        gone.wait()
        self.dead = replace(self.here, pid=gone.pid, started=1)

    def store(self, owner: Owner, take_over: bool = False, paired_lease_s: float | None = None) -> Store:
        store = Store(self.database.url, Recorder(), owner=owner, take_over=take_over, paired_lease_s=paired_lease_s)
        self.stores.append(store)
        return store

    def owned_by(self, owner: Owner, lease_ms: int = 15_000) -> None:
        store = self.store(owner)
        assert store.open() == ""
        store.close()
        # A daemon that died has not released it.
        engine = open_engine(parse_url(self.database.url), 1.0, True)
        with engine.begin() as connection:
            now = now_ms(connection.dialect.name)
            connection.execute(sa.update(schema.owner).values(lease_until=now + lease_ms))
        engine.dispose()


@pytest.fixture
def rig(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for where in (module, sys.modules[Store.__module__]):
        monkeypatch.setattr(where, "LEASE_S", 0.5)
    made = Rig(database)
    yield made
    for store in made.stores:
        store.close(1.0)


ELSEWHERE: dict[str, dict[str, Any]] = {
    "instance": {"instance": "there"},
    "pins": {"pins": "/pins/there"},
    "machine": {"machine": "another", "boot_id": "another", "host": "there"},
}


def test_the_same_instance_goes_on_at_once_after_a_crash(rig: Rig) -> None:
    rig.owned_by(rig.dead)
    assert rig.store(rig.here).open() == ""


@pytest.mark.parametrize("differs", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_dead_owners_database_is_taken_over_on_request_alone(rig: Rig, differs: dict[str, Any]) -> None:
    rig.owned_by(replace(rig.dead, **differs))
    with pytest.raises(StoreError, match="--take-over"):
        rig.store(rig.here).open()
    assert rig.store(rig.here, take_over=True).open() == ""
    assert rig.store(rig.here).open() == "", "it is its own from now on"


def test_a_living_owners_database_is_not_taken_over_on_request_either(rig: Rig) -> None:
    rig.owned_by(replace(rig.here, instance="there", pid=1, started=module.started(1)))
    with pytest.raises(StoreError, match="is running"):
        rig.store(rig.here, take_over=True).open()


def test_tables_of_an_earlier_version_are_not_changed_under_a_daemon_that_lives(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease would run out while it waits for them."""
    upgraded: list[object] = []
    monkeypatch.setattr(migrations, "upgrade", upgraded.append)
    rig.owned_by(replace(rig.here, instance="there", pid=1, started=module.started(1)), lease_ms=60_000)
    rig.database.execute(f"UPDATE {schema.revisions.name} SET version_num = 'earlier'")
    with pytest.raises(StoreError, match="is running"):
        rig.store(rig.here).open()
    assert "has the connections" in rig.store(rig.here, paired_lease_s=2.0).take()
    assert upgraded == []
    rig.database.execute("UPDATE owner SET pid = 0, lease_until = 0")
    assert rig.store(rig.here, take_over=True).open() == ""
    assert len(upgraded) == 1


@pytest.mark.parametrize("differs", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_drained_owners_database_is_had_by_whoever_starts(rig: Rig, differs: dict[str, Any]) -> None:
    there = rig.store(replace(rig.here, **differs))
    there.open()
    assert there.close(drained=True) == 0
    assert there.left_to_others
    assert rig.store(rig.here).open() == ""
    with pytest.raises(StoreError, match="--take-over"):
        rig.store(replace(rig.dead, **ELSEWHERE["machine"])).open()


def test_a_daemon_that_was_fenced_before_a_drain_stays_fenced(rig: Rig) -> None:
    """Its epoch is not given to the one that has the database after the drain."""
    suspended = rig.store(replace(rig.here, instance="suspended"))
    suspended.open()
    drained = rig.store(replace(rig.here, instance="drained"), take_over=True)
    drained.open()
    drained.close(drained=True)
    assert rig.store(rig.here).open() == ""
    suspended.start()
    until(lambda: suspended.fenced)


def test_a_database_that_cannot_be_left_to_another_machine_is_told(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    store = rig.store(replace(rig.here, instance="there"))
    store.open()
    rig.database.take_away()
    store.close(drained=True)
    rig.database.give_back()
    assert not store.left_to_others
    assert "is still this instance's; another one begins by roost up --take-over" in caplog.text


def test_a_number_of_a_process_that_another_has_now_is_no_living_owner(rig: Rig) -> None:
    rig.owned_by(replace(rig.here, pid=1, started=module.started(1) + 1))
    assert rig.store(rig.here).open() == ""


@pytest.mark.parametrize("where", [{"boot_id": "the boot before"}, {"pid_namespace": 1}], ids=["reboot", "container"])
def test_of_another_boot_or_pid_namespace_only_the_lease_speaks(rig: Rig, where: dict[str, Any]) -> None:
    """Its time is over after LEASE_S by our clock, whatever the database's says."""
    rig.owned_by(replace(rig.here, **where))
    assert rig.store(rig.here).open() == ""


def test_an_owner_that_renews_its_lease_is_alive(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in (module, sys.modules[Store.__module__]):
        monkeypatch.setattr(where, "LEASE_S", 30.0)
    there = rig.store(replace(rig.here, boot_id="another"))
    monkeypatch.setattr(module, "RENEWALS", 300)
    there.open()
    there.start()
    with pytest.raises(StoreError, match="renews its lease: it is running"):
        rig.store(rig.here).open()


def test_a_daemon_that_lost_its_database_writes_nothing_any_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was stopped, or could not reach the database, for longer than its lease."""
    monkeypatch.setattr(module, "RENEWALS", 75)  # it learns it though it has nothing to write
    old, new = rig.store(replace(rig.here, instance="old")), rig.store(rig.here, take_over=True)
    told = Recorder()
    old._on_slept = told
    begin(old)
    old.add([row(1, 1)], upserts=[sleeper(1, 1)])
    until(lambda: told.slept)
    begin(new)
    until(lambda: not rows(rig.database))  # its tables do not have the sleeper: it forgets the row, with its next batch
    until(lambda: old.status.error)
    assert old.status.text.startswith('error: the database was taken over by instance "here" of host ')
    assert "taken over" in caplog.text
    assert not old.sleep_allowed
    before = rows(rig.database), rig.database.execute("SELECT count(*) FROM history")
    old.add([row(2, 2)], upserts=[sleeper(2, 2)], deletes=[(sleeper(1, 1)[0], 1)])
    for write in (lambda: old.adopt_tables(7), lambda: old.has_rows_of_another_boot("x"), old.begin_run,
                  old.let_go):  # fmt: skip
        with pytest.raises(StoreError):
            write()
    assert old.close() > 0
    assert (rows(rig.database), rig.database.execute("SELECT count(*) FROM history")) == before
    assert told.slept == [(sleeper(1, 1)[0], 1)]
    assert new.status.text == "ok"


def test_who_slept_for_a_dead_owner_is_put_back_by_the_one_that_takes_over(rig: Rig) -> None:
    """On the same machine in the same boot, but with tables of its own."""
    old = rig.store(replace(rig.dead, instance="there"))
    told = Recorder()
    old._on_slept = told
    old.open()
    old.adopt_tables(1)
    old.start()
    old.add(upserts=[sleeper(n, n) for n in range(1, SLEEPERS + 1)])
    until(lambda: len(told.slept) == SLEEPERS)
    old.close()
    new = rig.store(rig.here, take_over=True)
    new.open()
    found = take_inventory(FakeEngine(), new, rig.here.boot_id, 2)
    assert (found.other_boot, found.lost) == (SLEEPERS, {})


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_daemons_with_schemas_of_their_own_live_side_by_side_in_one_database(database: Database) -> None:
    """Each has its own owner, rows, history and numbers."""
    stores = []
    for name, numbers in (("east", (1, 2)), ("west", (2, 3, 4))):
        database.execute(f"CREATE SCHEMA {name}")
        store = Store(f"{database.url}&options=-csearch_path%3D{name}", Recorder(), owner=Owner.here(name))
        assert store.open() == ""
        store.start()
        store.add([row(one, one) for one in numbers], [sleeper(one, one) for one in numbers])
        assert written(store)
        stores.append(store)
    assert [[one.id for one in store.sleeping_rows()] for store in stores] == [[2, 1], [4, 3, 2]]
    assert [len(store.recent_history(9)) for store in stores] == [2, 3]
    for store in stores:
        assert store.close() == 0
        assert not store.fenced
    assert database.execute("SELECT east.owner.instance, west.owner.instance FROM east.owner, west.owner") == [
        ("east", "west")
    ]
    for name in ("east", "west"):
        database.execute(f"DROP SCHEMA {name} CASCADE")


class TestOfAPair:
    """Two machines with one database ([standby])."""

    def test_one_waits_for_the_end_of_the_others_lease_and_no_longer(self, rig: Rig) -> None:
        rig.owned_by(replace(rig.here, instance="there", boot_id="another"), lease_ms=1000)
        store = rig.store(rig.here, paired_lease_s=1.0)
        assert 'instance "there" of host' in store.take()
        until(lambda: not store.take())

    def test_one_that_lives_and_renews_its_lease_keeps_the_database(self, rig: Rig) -> None:
        lease_s = 3.0  # longer than the writer may wait for a processor and a disk
        there = rig.store(replace(rig.here, instance="there", pid_namespace=1), paired_lease_s=lease_s)
        begin(there)
        here, until_s = rig.store(rig.here, paired_lease_s=lease_s), time.monotonic() + 1.5 * lease_s
        while time.monotonic() < until_s:
            assert here.take()
            time.sleep(0.05)
        assert there.status.text == "ok"
        there.close()  # it gives its lease back
        assert here.take() == ""

    def test_both_have_one_secret_of_cookies(self, rig: Rig) -> None:
        there = rig.store(replace(rig.here, instance="there", pid_namespace=1), paired_lease_s=1.0)
        begin(there)
        secret = there.cookie_secret
        there.close()
        here = rig.store(rig.here, paired_lease_s=1.0)
        assert here.take() == ""
        assert here.cookie_secret == secret
        assert len(set(secret)) == 2
        assert all(1 << 40 < number < 1 << 64 for number in secret)

    def test_one_whose_renewal_is_being_committed_is_not_replaced(self, rig: Rig) -> None:
        """What the other one judges is what is committed then, and not what it read before."""
        if rig.database.name == "sqlite":
            pytest.skip("SQLite has one writer, and so one judge, at a time")
        there = rig.store(replace(rig.here, instance="there", pid_namespace=1), paired_lease_s=1.0)
        there.open()
        here = rig.store(rig.here, paired_lease_s=1.0)
        engine = open_engine(parse_url(rig.database.url), 1.0, True)
        with engine.begin() as connection:  # a renewal that takes longer than what was left of the lease
            now = now_ms(connection.dialect.name)
            connection.execute(sa.update(schema.owner).values(lease_until=now + 5000))
            found: list[str] = []
            taking = threading.Thread(target=lambda: found.append(here.take()))
            time.sleep(1.2)
            taking.start()
            time.sleep(0.5)
            assert not found
        taking.join()
        assert "has the connections" in found[0]
        engine.dispose()

    def test_one_that_stands_still_in_a_transaction_is_replaced(self, rig: Rig) -> None:
        """Its server does not know that the machine lost its power: the row of `owner` stays locked."""
        if rig.database.name == "sqlite":
            pytest.skip("SQLite's file is on one machine")
        there = rig.store(replace(rig.here, instance="there", pid_namespace=1), paired_lease_s=1.0)
        there.open()
        writing = there._writing()
        writing.__enter__()
        here = rig.store(rig.here, paired_lease_s=1.0)
        until(lambda: not here.take())
        with pytest.raises(sa.exc.SQLAlchemyError):
            writing.__exit__(None, None, None)

    def test_one_knows_until_when_it_has_the_connections_and_does_not_say_so_too_late(self, rig: Rig) -> None:
        store, told = rig.store(rig.here, paired_lease_s=1.0), list[int]()
        before = module.lease_clock_ms()
        begin(store)
        store.watch_lease(told.append)
        assert before + 1000 <= told[0] <= module.lease_clock_ms() + 1000
        until(lambda: len(told) > 3)  # with nothing to write
        assert told == sorted(told)
        assert rig.store(replace(rig.here, instance="there"), paired_lease_s=1.0).take() == ""
        last = module.lease_clock_ms() + 1000
        until(lambda: store.fenced)
        assert told[-1] <= last
