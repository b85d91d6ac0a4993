# SPDX-License-Identifier: Apache-2.0
"""SQLite's file under a daemon that runs: removed, replaced, damaged; and who may read it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from control.store import file
from control.store import owner as owners
from control.store import store as module
from control.store.database import StoreError
from control.store.owner import Owner
from control.store.store import Store
from tests.unit.test_store import Recorder, row, sleeper, until

SLEEPERS = 40


class Daemon:
    """A store that has put some to sleep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.slept = Recorder()
        self.store = Store(f"sqlite:///{path}", self.slept)
        assert self.store.open() == ""
        self.store.start()
        self.put_to_sleep(1, SLEEPERS + 1)
        self.read(1)  # by now the dispatcher's reader has the file open

    def put_to_sleep(self, first: int, after: int) -> None:
        self.store.add([row(n, n) for n in range(first, after)], upserts=[sleeper(n, n) for n in range(first, after)])
        until(lambda: len(self.slept.slept) == after - 1)

    def read(self, number: int) -> bool:
        return bool(self.store.read({sleeper(number, number)[0]: number}))

    def numbers(self) -> list[int]:
        """What the next daemon finds."""
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as database:
            return [number for (number,) in database.execute("SELECT id FROM sleeping ORDER BY id")]


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setattr(module, "BACKOFF_S", (0.05,))
    monkeypatch.setattr(module, "CHECK_S", 0.1)
    made = Daemon(tmp_path / "below" / "roost.db")
    yield made
    made.store.close(2.0)


def remove(path: Path) -> None:
    path.unlink()


def remove_all(path: Path) -> None:
    for suffix in file.SUFFIXES:
        path.with_name(path.name + suffix).unlink()


def remove_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def remove_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def replace_by_text(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("no database")
    other.rename(path)


def replace_by_database(path: Path) -> None:
    other = path.with_name("other")
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE sleeping (id INTEGER)")
    other.rename(path)


@pytest.mark.parametrize(
    "happens", [remove, remove_all, remove_directory, remove_log, replace_by_text, replace_by_database]
)
def test_a_file_that_goes_while_it_is_open_takes_no_sleeper_along(
    daemon: Daemon, happens: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    before = os.stat(daemon.path).st_ino  # noqa: PTH116
    happens(daemon.path)
    daemon.put_to_sleep(SLEEPERS + 1, SLEEPERS + 2)
    assert daemon.numbers() == list(range(1, SLEEPERS + 2)), "all that count as SLEEP, the last one among them"
    assert os.stat(daemon.path).st_ino != before  # noqa: PTH116
    assert daemon.store.status.text == "ok"
    assert daemon.store.status.rescued == 1
    assert "was removed or replaced while it was in use" in caplog.text
    aside = [name for name in os.listdir(daemon.path.parent) if "replaced" in name]  # noqa: PTH208
    if happens is not remove_log:  # in its place there is another as soon as a connection is opened
        assert bool(aside) == happens.__name__.startswith("replace")
    assert all(name in caplog.text for name in aside)
    assert daemon.read(1)
    assert [r["id"] for r in daemon.store.recent_history(100)] == list(range(1, SLEEPERS + 2)), "each once"
    daemon.put_to_sleep(SLEEPERS + 2, SLEEPERS + 3)
    assert daemon.store.close() == 0
    assert daemon.numbers() == list(range(1, SLEEPERS + 3))


def test_a_file_that_goes_is_missed_though_there_is_nothing_to_write(daemon: Daemon) -> None:
    daemon.path.unlink()
    until(daemon.path.exists)
    until(lambda: daemon.store.status.rescued)
    assert daemon.numbers() == list(range(1, SLEEPERS + 1))


def test_none_sleeps_while_no_new_file_can_be_written_and_all_do_then(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "prepare", full)
    daemon.path.unlink()
    number = SLEEPERS + 1
    daemon.store.add([row(number, number)], upserts=[sleeper(number, number)])
    until(lambda: "cannot be written there: [Errno 28] No space left" in daemon.store.status.error)
    assert not daemon.store.sleep_allowed
    assert daemon.read(1), "what is open can be read"
    assert len(daemon.slept.slept) == SLEEPERS
    monkeypatch.undo()
    until(lambda: len(daemon.slept.slept) == number)
    assert daemon.numbers() == list(range(1, number + 1))


def test_the_database_of_another_daemon_in_its_place_is_left_alone(daemon: Daemon) -> None:
    other = daemon.path.with_name("other.db")
    living = replace(Owner.here("other"), pid=1, started=owners.started(1))
    theirs = Store(f"sqlite:///{other}", Recorder(), owner=living)
    assert theirs.open() == ""
    theirs.close()
    with daemon.store._wake:  # where its writer waits: between the two steps it would write the file anew
        time.sleep(0.5)  # for a look that had begun
        remove_all(daemon.path)
        other.rename(daemon.path)
    until(lambda: 'belongs to instance "other"' in daemon.store.status.error)
    assert not daemon.store.sleep_allowed
    assert daemon.read(1)
    assert daemon.numbers() == []
    daemon.path.rename(other)
    until(lambda: daemon.store.status.text == "ok")
    assert daemon.numbers() == list(range(1, SLEEPERS + 1))


def garble(path: Path, first_page: int) -> None:
    """In place, with random bytes; what is committed lies in the file itself and not in its log."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = database.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as raw:
        raw.seek(first_page * size)
        raw.write(os.urandom(path.stat().st_size - first_page * size))


@pytest.mark.parametrize("first_page", [0, 1], ids=["all", "all but the first page"])
def test_random_bytes_are_not_ok_and_a_good_copy_mends_it(
    daemon: Daemon, first_page: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(daemon.path)) as database, closing(sqlite3.connect(tmp_path / "copy")) as copy:
        database.backup(copy)
    garble(daemon.path, first_page)
    until(lambda: daemon.store.status.error)
    assert "is damaged" in daemon.store.status.text
    assert "Put a good copy in its place (roost restore --database); or move it away" in caplog.text
    assert not daemon.store.sleep_allowed
    daemon.store.add(upserts=[sleeper(99, 99)])
    until(lambda: daemon.store.status.pending_sleep)
    remove_all(daemon.path) if daemon.path.with_name(daemon.path.name + "-wal").exists() else remove(daemon.path)
    (tmp_path / "copy").rename(daemon.path)
    until(lambda: daemon.store.status.text == "ok")
    until(lambda: daemon.slept.slept[-1][1] == 99)
    assert daemon.read(1)


def test_a_damaged_file_that_is_moved_away_is_followed_by_a_new_one(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    garble(daemon.path, 0)
    until(lambda: daemon.store.status.error)
    for suffix in file.SUFFIXES:
        daemon.path.with_name(daemon.path.name + suffix).unlink(missing_ok=True)
    until(lambda: daemon.store.status.text == "ok")
    assert "a new one was made: who slept by its rows cannot wake" in caplog.text
    daemon.store.add(upserts=[sleeper(99, 99)])
    until(lambda: daemon.slept.slept[-1][1] == 99)


def test_the_file_is_read_through_for_a_bounded_share_of_the_time(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.2 s each: once in 20 s."""
    waits, ended = list[float](), daemon.store._ended
    here = threading.current_thread()

    class Ended:
        def wait(self, pause: float) -> bool:
            if threading.current_thread() is not here:  # the store's own, which looks at the same name
                return ended.wait(pause)
            waits.append(pause)
            return len(waits) > 1 or ended.is_set()

    monkeypatch.setattr(file, "check", lambda *files: ended.wait(0.2))
    daemon.store._ended = Ended()  # type: ignore[assignment]
    daemon.store._check_file()
    daemon.store._ended = ended
    assert waits[0] == module.CHECK_S
    assert waits[1] >= 20


@pytest.mark.parametrize(
    ("code", "free", "full"),
    [(sqlite3.SQLITE_FULL, 1, True), (sqlite3.SQLITE_IOERR_SHMSIZE, 1, True), (sqlite3.SQLITE_IOERR_READ, 1000, False)],
)
def test_a_disk_that_is_full_is_told_with_its_directory_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, free: int, full: bool
) -> None:
    """SQLite makes its log and its index when it opens the database, and calls that an I/O error."""
    path = tmp_path / "roost.db"
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code

    def fails(path: str, _group: int = 0) -> bool:
        raise error

    monkeypatch.setattr(file, "prepare", fails)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda of: {tmp_path: shutil._ntuple_diskusage(10**6, 0, free * 1024)}[of]
    )
    store = Store(f"sqlite:///{path}", Recorder())
    said = store.open()
    store.close()
    expected = f"disk I/O error: the disk is full, 1 KB are free in {tmp_path}; make room there, or "
    assert (said.startswith(expected)) == full, said
    assert full or said == "disk I/O error"


def modes(daemon: Daemon) -> dict[str, int]:
    found = {path.name: path.stat().st_mode & 0o777 for path in daemon.path.parent.iterdir()}
    return {"directory": daemon.path.parent.stat().st_mode & 0o777, **found}


def test_only_its_owner_reads_the_database(daemon: Daemon) -> None:
    name = daemon.path.name
    mine = {name: 0o600, f"{name}-wal": 0o600, f"{name}-shm": 0o600}
    assert modes(daemon) == {"directory": 0o700, **mine}
    daemon.store.close()
    daemon.path.chmod(0o644)  # as an earlier version made it
    daemon.path.parent.chmod(0o755)
    assert daemon.store.__class__(f"sqlite:///{daemon.path}", Recorder()).open() == ""
    assert modes(daemon) == {"directory": 0o755, **mine}, "the directory may be shared with others"


def test_nothing_is_made_for_a_path_that_was_mistyped(tmp_path: Path) -> None:
    path = tmp_path / "vra" / "lib" / "roost" / "main.db"
    store = Store(f"sqlite:///{path}", Recorder())
    with pytest.raises(StoreError, match=rf"there is no {tmp_path}/vra\. Is \[paths\] database mistyped\?"):
        store.open()
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """With roost's tables in it, all that sleeps would be closed for want of rows."""
    path = tmp_path / "roost.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE songs (title)")
    store = Store(f"sqlite:///{path}", Recorder())
    said = store.open()
    store.close()
    assert said == (
        "the database is another program's, with tables of its own (songs): put roost's back, or give [paths] database "
        "another place"
    )
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT name FROM sqlite_schema").fetchall() == [("songs",)]
