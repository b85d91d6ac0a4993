# SPDX-License-Identifier: Apache-2.0
"""Bad days of the database (docs/operations.md): what clients notice, what an operator is told, what comes back."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from appliance.lab import Lab, programs
from control.dispatch.recall import READ_PATIENCE_S
from control.store.file import SUFFIXES
from tests.databases import Cluster, Postgres
from tests.disk import fill, small_disk
from tests.lab.bad_day import Box
from tests.lab.test_backup import roost


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(clients=100) as lab:
        yield lab


def test_a_disk_that_is_full_ends_no_connection_and_all_sleep_again_when_there_is_room(
    lab: Lab, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small", "3m") as disk, Box(lab, paths={"database": disk / "roost.db"}) as box:
        filler = fill(disk)
        box.all_answered()  # those that wake are to sleep again
        box.told("store", "is full", str(disk), "make room there")
        box.heard()
        box.all_answered()
        filler.unlink()
        box.over("store")
        box.all_answered()
        box.history_is_whole()
        assert box.attention() == {}
        box.daemon.kill()


def files(database: Path) -> list[Path]:
    return [database.with_name(database.name + suffix) for suffix in SUFFIXES]


def backup_of(box: Box) -> Path:
    made = box.database.with_name("saved.roost")
    roost(box.lab, "backup", str(made), "-c", str(box.daemon.config))
    return made


def restore(box: Box, saved: Path) -> None:
    """As docs/operations.md says it, while the daemon runs."""
    roost(box.lab, "restore", str(saved), "--database", str(box.database), "--force")


def remove(database: Path) -> None:
    for file in files(database):
        file.unlink()


def replace(database: Path) -> None:
    other = database.with_name("other")
    other.write_text("no database")
    other.rename(database)


@pytest.mark.parametrize("happens", [remove, replace])
def test_a_database_that_is_removed_or_replaced_under_the_daemon_is_written_anew(
    lab: Lab, happens: Callable[[Path], None]
) -> None:
    with Box(lab) as box:
        happens(box.database)
        box.told("rescued", str(box.database))
        box.heard()
        box.all_answered()
        box.history_is_whole()
        assert set(box.attention()) == {"rescued"}, "for five minutes"


def checkpoint(database: Path) -> None:
    """What is committed lies in the file itself, and not in its log."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def garble(database: Path) -> None:
    for file in filter(Path.exists, files(database)[:2]):
        with file.open("r+b") as raw:
            raw.write(os.urandom(file.stat().st_size))


def truncate(database: Path) -> None:
    checkpoint(database)
    os.truncate(database, 5000)


def overwrite(database: Path) -> None:
    for file in files(database):
        file.write_bytes(b"this is no database at all" * 500)


def garble_log(database: Path) -> None:
    log = files(database)[1]
    with log.open("r+b") as raw:
        raw.seek(32)
        raw.write(os.urandom(log.stat().st_size - 32))


@pytest.mark.parametrize("by", ["mounting", "a backup"])
def test_a_daemon_that_finds_no_database_waits_for_that_of_its_sleepers(lab: Lab, by: str) -> None:
    """A disk that was not mounted is one reason."""
    with Box(lab) as box:
        box.daemon.terminate()
        saved = backup_of(box)
        away = box.database.rename(box.database.with_name("away"))
        box.daemon.start()
        box.told("store", f"there is no {box.database}, by whose rows connections sleep", "is its disk mounted?")
        answered = box.all_speak()
        box.pause(1)
        if by == "mounting":
            away.rename(box.database)
        else:
            roost(lab, "restore", str(saved), "--database", str(box.database))
        answered()
        box.over("store")
        box.over("rules")  # what is read at the start is read now
        box.all_answered()
        box.settled()
        assert box.attention() == {}


def test_a_log_that_is_damaged_after_a_crash_costs_those_whose_rows_were_in_it_and_none_else(lab: Lab) -> None:
    """SQLite takes it for one that was never written. Who was awake is lost by the crash."""
    with Box(lab) as box:
        box.daemon.kill()
        garble_log(box.database)
        box.daemon.start()
        box.told("lost_records", str(box.database), f"{box.each} connections were closed")
        assert box.states() == {"ACTIVE": 0, "STANDBY": 0, "IDLE": box.each, "SLEEP": 0}
        assert box.clients.stats().open == box.each
        assert box.clients.say(box.each).answered == box.each


def test_where_none_sleeps_a_database_is_made(lab: Lab) -> None:
    box = Box(lab)
    box.start()
    box.daemon.terminate()
    box.database.unlink()
    box.daemon.start()
    assert box.database.exists()
    assert box.attention() == {}
    box.come()
    box.history_is_whole()


def speak_until_there_is_a_good_copy(box: Box, saved: Path) -> None:
    """For longer than the daemon holds what wakes a client."""
    answered = box.all_speak()
    box.pause(READ_PATIENCE_S + 1)
    box.none_lost()
    restore(box, saved)
    answered()
    box.over("store")
    box.all_answered()
    box.settled()
    assert box.attention().keys() == {"unanswered"}, "for five minutes"


@pytest.mark.parametrize("happens", [truncate, *(pytest.param(one, marks=pytest.mark.soak) for one in
                                                 (garble, overwrite, garble_log))])  # fmt: skip
def test_a_database_that_is_damaged_under_the_daemon_costs_no_client_that_waits_for_a_good_copy(
    lab: Lab, happens: Callable[[Path], None]
) -> None:
    with Box(lab) as box:
        saved = backup_of(box)
        happens(box.database)
        box.told("store", str(box.database), "is damaged", "Put a good copy in its place", timeout_s=25)
        box.heard()
        speak_until_there_is_a_good_copy(box, saved)


@pytest.mark.parametrize("happens", [garble, *(pytest.param(one, marks=pytest.mark.soak) for one in
                                               (truncate, overwrite))])  # fmt: skip
def test_a_daemon_that_finds_its_database_damaged_costs_no_client_that_waits_for_a_good_copy(
    lab: Lab, happens: Callable[[Path], None]
) -> None:
    with Box(lab) as box:
        box.daemon.terminate()
        saved = backup_of(box)
        happens(box.database)
        box.daemon.start()
        box.told("store", str(box.database), "is damaged", "Put a good copy in its place")
        box.heard()
        speak_until_there_is_a_good_copy(box, saved)


@pytest.fixture
def database() -> Iterator[Postgres]:
    cluster = Cluster()
    yield Postgres(cluster)
    cluster.close()


def test_postgresql_that_is_killed_costs_no_client(lab: Lab, database: Postgres) -> None:
    with Box(lab, paths={"database": database.url}) as box:
        box.execute = database.execute
        database.take_away()
        answered = box.all_speak()
        box.told("store", database.away, "nothing goes to SLEEP")
        box.pause(READ_PATIENCE_S + 1)
        box.none_lost()
        database.give_back()
        answered()
        box.over("store")
        box.all_answered()  # those that are IDLE for the database was away would go to SLEEP in 30 s
        box.history_is_whole()
        assert box.attention().keys() == {"unanswered"}, "for five minutes"


def test_postgresql_whose_pages_are_damaged_costs_no_client(lab: Lab, database: Postgres) -> None:
    with Box(lab, paths={"database": database.url}) as box:
        box.execute = database.execute
        with database.cluster.damaged("sleeping"):
            answered = box.all_speak()
            box.told("unanswered", "was not found in time")
            assert box.logged("invalid page")
            box.none_lost()
        answered()
        box.over("store")
        box.all_answered()
        box.history_is_whole()
        assert box.attention().keys() == {"unanswered"}, "for five minutes"


MUTE = "table inet mute { chain c { type filter hook input priority 0; tcp dport 5432 drop; }; }"


@pytest.mark.soak
def test_postgresql_that_says_nothing_costs_no_client(lab: Lab) -> None:
    here = lab.address("lan", "eth0")
    server = programs.Postgres(lab, "lan", [(here, 5432)])
    url = f"postgresql://postgres@{here}/postgres"
    with Box(lab, paths={"database": url}) as box:
        box.execute = lambda statement: (map(int, line.split("|")) for line in server.execute(statement).splitlines())
        lab.nft("lan", MUTE)
        answered = box.all_speak()
        box.told("store", url.rpartition("@")[2], "nothing goes to SLEEP")
        box.pause(READ_PATIENCE_S + 1)
        box.none_lost()
        lab.nft("lan", "delete table inet mute")
        answered()
        box.over("store")
        box.all_answered()  # those that are IDLE for the database was away would go to SLEEP in 30 s
        box.history_is_whole()
        assert box.attention().keys() == {"unanswered"}, "for five minutes"
