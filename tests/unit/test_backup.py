# SPDX-License-Identifier: Apache-2.0
"""`roost backup` and `roost restore`: what is refused, what a killed one leaves, and that rows are of one moment."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any
from unittest.mock import Mock

import click
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from sqlalchemy.schema import CreateTable

from control.cli import main, restore
from control.store import archive, backup, history
from control.store.archive import Archive, ArchiveError
from control.store.database import StoreError
from control.store.owner import LEASE_S
from control.store.schema import REVISION, history_part
from control.store.store import Store
from tests.databases import Postgres, Sqlite, written
from tests.disk import small_disk
from tests.mutants import ROOT
from tests.unit.test_owner import SLEEPERS, another_daemon
from tests.unit.test_store import Recorder, sleeper

BPFFS = Path("/sys/fs/bpf")
SERVICE = '[[service]]\nname = "a"\nlisten = "127.0.0.1:7000"\nserver = "127.0.0.1:7001"\n'
KEY = b"-----BEGIN PRIVATE KEY-----\nit is none\n"


class Box:
    """A configuration, and what it names."""

    def __init__(self, directory: Path, database: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.database = Path(database)
        self.pins = BPFFS / f"roost-test-{os.getpid()}"
        self.config = directory / "roost.toml"
        self.config.write_text(
            f'instance = "box"\n[paths]\ndatabase = "{database}"\ncontrol_socket = "{directory}/socket"\n'
            f'pin_dir = "{self.pins}"\n[agents]\ncertificate = "{directory}/agents.pem"\n'
            f'private_key = "{directory}/keys/agents.pem"\n{SERVICE}'
        )
        (directory / "agents.pem").write_bytes(b"certificate")
        (directory / "keys").mkdir()
        (directory / "keys" / "agents.pem").write_bytes(KEY)

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(self.directory.rglob("*"))
                if path.is_file() and not path.name.endswith(("-shm", "-wal"))}  # fmt: skip

    def by_hand(self) -> None:
        """The configuration says where things are, and nothing else."""
        paths = self.config.read_text().partition("[agents]")[0]
        self.config.write_text(paths)

    def numbers(self) -> list[int]:
        with closing(sqlite3.connect(self.database)) as rows:
            return [number for (number,) in rows.execute("SELECT id FROM sleeping ORDER BY id")]


def slept(path: Path, *numbers: int, owned: bool = False) -> None:
    """A daemon put them to sleep, and ended. owned: in a process that lives on, which is this one."""
    store = Store(f"sqlite:///{path}", Recorder())
    assert store.open() == ""
    store.start()
    store.add(upserts=[sleeper(number, number) for number in numbers])
    assert written(store)
    store.close()
    if not owned:
        with closing(sqlite3.connect(path)) as rows, rows:
            rows.execute("DELETE FROM owner")


def at(file: Path) -> Any:
    """The database in this file."""
    made = Sqlite(file.parent)
    made.file, made.url = file, f"sqlite:///{file}"
    return made


def roost(*words: object) -> Result:
    return CliRunner().invoke(main.cli, [str(word) for word in words])


def refused(done: Result) -> str:
    """What it says."""
    assert done.exit_code == 1, done.output
    assert not isinstance(done.exception, AssertionError)
    return done.output + (main.explain(done.exception) or "" if done.exception is not None else "")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    made = Box(tmp_path / "box", f"{tmp_path}/box/roost.db")
    slept(made.database, 1, 2, 3)
    return made


@pytest.fixture
def of_roost(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is what /etc/roost is elsewhere."""
    monkeypatch.setattr(restore, "CONFIG", str(box.config))


@pytest.fixture
def saved(box: Box, tmp_path: Path) -> Path:
    """A backup of it."""
    done = roost("backup", tmp_path / "saved", "-c", box.config)
    assert done.exit_code == 0, done.output
    return tmp_path / "saved"


# -- what is in it, and back again -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("of_roost")
def test_a_lost_box_comes_back_from_one_file(box: Box, saved: Path) -> None:
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    before = {path: data for path, data in box.files().items() if not path.endswith(".db")}
    box.by_hand()
    paths = box.config.read_bytes()
    shutil.rmtree(box.directory)
    box.directory.mkdir()
    box.config.write_bytes(paths)
    box.config.chmod(0o600)
    done = roost("restore", saved, "-c", box.config, "--with-config", "--force", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["sleeping"] == 3
    after = {path: data for path, data in box.files().items() if not path.endswith(".db")}
    assert after == before
    assert stat.S_IMODE((box.directory / "keys" / "agents.pem").stat().st_mode) == 0o600
    assert box.numbers() == [1, 2, 3]
    with closing(sqlite3.connect(box.database)) as rows:
        assert rows.execute("SELECT count(*) FROM owner").fetchone() == (0,), "no other machine's, to be taken over"


def test_tokens_that_were_revoked_since_are_told(box: Box, tmp_path: Path) -> None:
    columns, values = "id, name, role, digest, made_at, made_by", "'0000000a', 'a', 'viewer', 'x', 1, 'b'"
    with closing(sqlite3.connect(box.database)) as rows, rows:
        rows.execute(f"INSERT INTO tokens ({columns}) VALUES ({values})")
    assert roost("backup", tmp_path / "file", "-c", box.config).exit_code == 0
    with closing(sqlite3.connect(box.database)) as rows, rows:
        rows.execute("UPDATE tokens SET revoked_at = 2")
    done = roost("restore", tmp_path / "file", "-c", box.config, "--force")
    assert done.exit_code == 0, done.output
    assert "1 API tokens are good as they were then, also those that were revoked since" in done.output


def test_it_is_a_tar_that_other_programs_read(saved: Path) -> None:
    with tarfile.open(saved) as tar:
        names = tar.getnames()
        manifest = json.loads(tar.extractfile("roost.json").read())  # type: ignore[union-attr]
    assert names == ["roost.json", "roost.toml", "agents.certificate", "agents.private_key", "roost.db"]
    assert (manifest["instance"], manifest["revision"], manifest["sleeping"]) == ("box", REVISION, 3)


def test_the_standard_output_takes_it(box: Box, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "control.cli.main", "backup", "-", "-c", str(box.config)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=True)
    assert [part.name for part, data in Archive(io.BytesIO(done.stdout)).parts() if list(data)][-1] == "roost.db"
    assert b"3 sleeping connections" in done.stderr
    assert "leave out --json" in roost("backup", "-", "-c", box.config, "--json").output


def test_it_says_that_what_has_no_row_is_not_in_it(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no daemon says how many (no daemon answers at" in roost("backup", tmp_path / "a", "-c", box.config).output
    with monkeypatch.context() as patch:
        patch.setattr("control.cli.backup.Client.get", Mock(side_effect=click.ClickException("it stands by")))
        assert "(it stands by)" in roost("backup", tmp_path / "a", "-c", box.config, "--force").output
    status = {"connections": {"IDLE": 7, "SLEEP": 3}, "awake": 2}
    monkeypatch.setattr("control.cli.backup.Client.get", lambda *_: status)
    done = roost("backup", tmp_path / "b", "-c", box.config)
    assert "7 connections in IDLE, 2 awake" in done.output
    assert "roost job start sleep --state idle" in done.output
    told = json.loads(roost("backup", tmp_path / "c", "-c", box.config, "--json").output)
    assert (told["not_held"], told["sleeping"]) == ({"idle": 7, "awake": 2}, 3)
    assert told["bytes"] == (tmp_path / "c").stat().st_size


def test_postgresql_is_left_to_its_own_programs(postgres: Postgres, tmp_path: Path) -> None:
    box = Box(tmp_path / "box", postgres.url.replace("roost@", "roost:secret@") + "&sslpassword=secret")
    done = roost("backup", tmp_path / "saved", "-c", box.config)
    assert done.exit_code == 0, done.output
    assert f"pg_dump --format=custom --file={tmp_path}/saved.dump --dbname='postgresql://roost@/" in done.output
    assert "secret" not in done.output
    assert "pg_restore" in refused(roost("restore", tmp_path / "saved", "-c", box.config))
    config = box.config.read_bytes()
    box.by_hand()
    done = roost("restore", tmp_path / "saved", "-c", box.config, "--with-config", "--force")
    assert (done.exit_code, box.config.read_bytes()) == (0, config)


def test_a_database_of_sqlite_goes_elsewhere_when_told(saved: Path, tmp_path: Path, postgres: Postgres) -> None:
    other = Box(tmp_path / "other", postgres.url)
    assert "--database says where" in refused(roost("restore", saved, "-c", other.config))
    (tmp_path / "there").mkdir()
    done = roost("restore", saved, "--database", tmp_path / "there" / "x.db")
    assert done.exit_code == 0, done.output
    with closing(sqlite3.connect(tmp_path / "there" / "x.db")) as rows:
        assert rows.execute("SELECT count(*) FROM sleeping").fetchone() == (3,)
    assert "mistyped" in refused(roost("restore", saved, "--database", tmp_path / "no" / "where" / "x.db"))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_backup_replaces_nothing_that_it_is_not_told_to(box: Box, saved: Path, tmp_path: Path) -> None:
    before = saved.read_bytes()
    assert "--force" in refused(roost("backup", saved, "-c", box.config))
    assert saved.read_bytes() == before
    slept(box.database, 9)
    assert roost("backup", saved, "-c", box.config, "--force").exit_code == 0
    assert Archive(io.BytesIO(saved.read_bytes())).manifest.sleeping == 4
    assert "is a directory" in refused(roost("backup", tmp_path, "-c", box.config, "--force"))
    assert "No such file" in refused(roost("backup", tmp_path / "no" / "where", "-c", box.config))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["box", "saved"]


def test_a_backup_without_a_database_or_a_key_is_none(box: Box, tmp_path: Path) -> None:
    (box.directory / "keys" / "agents.pem").unlink()
    assert "keys/agents.pem: No such file" in refused(roost("backup", tmp_path / "x", "-c", box.config))
    box.database.unlink()
    assert "there is no database" in refused(roost("backup", tmp_path / "x", "-c", box.config))
    box.database.write_bytes(b"no database" * 1000)
    assert "cannot be copied" in refused(roost("backup", tmp_path / "x", "-c", box.config))
    assert [path.name for path in tmp_path.iterdir()] == ["box"]


def test_a_damaged_database_is_told_before_it_is_all_that_there_is(box: Box, tmp_path: Path) -> None:
    slept(box.database, *range(100, 3000))
    with box.database.open("r+b") as file:
        file.seek(box.database.stat().st_size // 2)
        file.write(b"\xff" * 8192)
    assert "damaged" in refused(roost("backup", tmp_path / "x", "-c", box.config))
    assert not (tmp_path / "x").exists()


def test_two_backups_to_one_file_do_not_mix(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    whole = archive.write

    def write(*arguments: Any) -> None:
        said.append(refused(roost("backup", tmp_path / "x", "-c", box.config)))
        whole(*arguments)

    monkeypatch.setattr(archive, "write", write)
    assert roost("backup", tmp_path / "x", "-c", box.config).exit_code == 0
    assert len(said) == 1
    assert "another backup" in said[0]
    assert Archive(io.BytesIO((tmp_path / "x").read_bytes())).manifest.sleeping == 3


@pytest.mark.parametrize("what", ["open to others", "another user's", "not empty", "a file", "a link"])
def test_a_backup_is_made_where_no_other_looks(box: Box, tmp_path: Path, what: str) -> None:
    """In a directory that all may write to, another user may have made its place."""
    part, other = tmp_path / "x.part", tmp_path / "other"
    other.mkdir(mode=0o700)
    if what == "a file":
        part.write_bytes(b"mine")
    elif what == "a link":
        part.symlink_to(other)
    else:
        part.mkdir(mode=0o700)
    if what == "open to others":
        part.chmod(0o777)
    elif what == "another user's":
        os.chown(part, 65534, 65534)
    elif what == "not empty":
        (part / "mine").write_bytes(b"mine")
    assert "x.part" in refused(roost("backup", tmp_path / "x", "-c", box.config))
    assert part.exists()
    assert list(other.iterdir()) == []
    assert not (tmp_path / "x").exists()


def test_a_restore_replaces_nothing_that_it_is_not_told_to(box: Box, saved: Path) -> None:
    slept(box.database, 4)
    before = box.files()
    assert "roost.db is there already" in refused(roost("restore", saved, "-c", box.config))
    assert box.files() == before
    box.config.write_text(box.config.read_text() + "# changed\n")
    changed = box.files()
    box.database.rename(box.directory / "away.db")
    said = refused(roost("restore", saved, "-c", box.config, "--with-config"))
    assert "roost.toml is there already" in said
    (box.directory / "away.db").rename(box.database)
    assert box.files() == changed
    done = roost("restore", saved, "-c", box.config, "--with-config", "--force")
    assert done.exit_code == 0, done.output
    assert box.numbers() == [1, 2, 3]
    (aside,) = box.directory.glob("roost.db.replaced-*")
    with closing(sqlite3.connect(aside)) as rows:
        assert rows.execute("SELECT count(*) FROM sleeping").fetchone() == (4,)


def test_no_restore_while_a_daemon_runs(tmp_path: Path, saved: Path) -> None:
    """By the lock of the instance, and by the owner of the database."""
    running = at(tmp_path / "running.db")
    with another_daemon(running) as process:
        said = refused(roost("restore", saved, "--database", running.file, "--force"))
        assert f"pid {process.pid}" in said
        assert "is running" in said
        other = Box(tmp_path / "other", str(tmp_path / "other" / "x.db"))
        from control.config import load
        from control.daemon.lock import InstanceLock

        lock = InstanceLock(load(other.config))
        try:
            assert "is running already" in refused(roost("restore", saved, "-c", other.config))
        finally:
            lock.release()
        assert len(running.execute("SELECT id FROM sleeping")) == SLEEPERS
    done = roost("restore", saved, "--database", running.file, "--force")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("where", ["a table", "the log"])
def test_a_damaged_database_is_replaced_while_its_daemon_waits_for_that(
    tmp_path: Path, saved: Path, where: str
) -> None:
    """Whose it is can be read. What was there is kept as it was."""
    running = at(tmp_path / "running.db")
    with another_daemon(running):
        if where == "the log":
            damaged = Path(f"{running.file}-wal")
        else:
            damaged = running.file
            with closing(sqlite3.connect(running.file)) as rows:
                rows.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                (root,) = rows.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'sleeping'").fetchone()
                (size,) = rows.execute("PRAGMA page_size").fetchone()
        with damaged.open("r+b") as raw:
            raw.seek(32 if where == "the log" else (root - 1) * size)
            raw.write(b"\xff" * (damaged.stat().st_size - 32 if where == "the log" else size))
        bytes_then = damaged.read_bytes()
        done = roost("restore", saved, "--database", running.file, "--force")
        assert done.exit_code == 0, f"{done.output} {done.exception}"
        assert len(running.execute("SELECT id FROM sleeping")) == 3
        (aside,) = tmp_path.glob(f"running.db.replaced-*{'-wal' if where == 'the log' else '[0-9]'}")
        assert aside.read_bytes() == bytes_then


def test_an_owner_of_another_machine_is_believed_until_its_lease_is_over(box: Box, saved: Path) -> None:
    slept(box.database, 4, owned=True)
    with closing(sqlite3.connect(box.database)) as rows, rows:
        now = int(time.time() * 1000)
        rows.execute("UPDATE owner SET boot_id = 'another', machine = 'another', lease_until = ?", (now + 10_000,))
    assert f"wait {LEASE_S:g} s" in refused(roost("restore", saved, "-c", box.config, "--force"))
    with closing(sqlite3.connect(box.database)) as rows, rows:
        rows.execute("UPDATE owner SET lease_until = 1")
    assert roost("restore", saved, "-c", box.config, "--force").exit_code == 0


def test_what_sleeps_in_pins_is_let_go_first(box: Box, saved: Path) -> None:
    """Its slots have newer sequence numbers than the rows, or other ones."""
    pinned = box.pins / "something"
    pinned.mkdir(parents=True)
    try:
        assert "roost unpin" in refused(roost("restore", saved, "-c", box.config, "--force"))
    finally:
        pinned.rmdir()
    assert roost("restore", saved, "-c", box.config, "--force").exit_code == 0
    assert not box.pins.exists()


def test_a_damaged_database_is_replaced_and_kept(box: Box, saved: Path) -> None:
    box.database.write_bytes(b"no database" * 1000)
    Path(f"{box.database}-wal").write_bytes(b"no log")
    done = roost("restore", saved, "-c", box.config, "--force")
    assert done.exit_code == 0, done.output
    assert box.numbers() == [1, 2, 3]
    assert len(list(box.directory.glob("roost.db.replaced-*"))) == 1


def test_the_log_of_the_old_database_is_not_taken_for_the_new_ones(box: Box, saved: Path) -> None:
    """It was killed, and what it wrote last is in the log alone."""
    with another_daemon(at(box.database)) as process:
        process.kill()
        process.wait()
    assert Path(f"{box.database}-wal").stat().st_size > 0
    done = roost("restore", saved, "-c", box.config, "--force")
    assert done.exit_code == 0, done.output
    assert box.numbers() == [1, 2, 3]
    (aside,) = box.directory.glob("roost.db.replaced-*")
    with closing(sqlite3.connect(aside)) as rows:
        assert rows.execute("SELECT count(*) FROM sleeping").fetchone() == (SLEEPERS,)


# -- hostile archives --------------------------------------------------------------------------------------------------


def remade(saved: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None], sums: bool = True) -> io.BytesIO:
    """The backup with another content. sums: with the checksums and sizes of that."""
    with tarfile.open(saved) as tar:
        parts = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    manifest = json.loads(parts.pop("roost.json"))
    change(manifest, parts)
    if sums:
        known = {part["name"]: part for part in manifest["parts"]}
        for name in known.keys() & parts.keys():
            made = archive.part_of("roost.db", "", io.BytesIO(parts[name]))
            known[name].update(size=made.size, sha256=made.sha256)
    return tar_of({"roost.json": json.dumps(manifest).encode(), **parts})


def tar_of(parts: dict[str, bytes], **options: Any) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", format=tarfile.GNU_FORMAT, compresslevel=1) as tar:
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for key, value in options.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(data))
    made.seek(0)
    return made


def set_part(part_name: str, /, **values: Any) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    def change(manifest: dict[str, Any], _parts: dict[str, bytes]) -> None:
        next(part for part in manifest["parts"] if part["name"] == part_name).update(values)

    return change


def set_manifest(**values: Any) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    return lambda manifest, _parts: manifest.update(values)


def renamed(manifest: dict[str, Any], parts: dict[str, bytes]) -> None:
    set_part("agents.certificate", name="../../evil")(manifest, parts)
    parts["../../evil"] = parts.pop("agents.certificate")


def doubled(manifest: dict[str, Any], _parts: dict[str, bytes]) -> None:
    manifest["parts"].insert(1, dict(manifest["parts"][0]))


def flip(name: str) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    def change(_manifest: dict[str, Any], parts: dict[str, bytes]) -> None:
        parts[name] = parts[name][:-1] + bytes([parts[name][-1] ^ 1])

    return change


def sql(statement: str) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    def change(_manifest: dict[str, Any], parts: dict[str, bytes]) -> None:
        with closing(sqlite3.connect(":memory:")) as database:
            database.deserialize(parts["roost.db"])
            database.executescript(statement)
            parts["roost.db"] = database.serialize()

    return change


def more(_manifest: dict[str, Any], parts: dict[str, bytes]) -> None:
    parts["more"] = b"x"


HOSTILE: dict[str, tuple[Callable[[dict[str, Any], dict[str, bytes]], None], bool, str]] = {
    "a later revision": (set_manifest(revision="0999"), True, "install that one, or a later one"),
    "a later format": (set_manifest(format=2), True, "a later Roost wrote it"),
    "another key": (set_manifest(evil=1), True, "cannot be read"),
    "a number as text": (set_manifest(sleeping="3"), True, "announces what no backup has"),
    "a negative number": (set_manifest(at_ms=-1), True, "announces what no backup has"),
    "an escape sequence": (set_manifest(host="\x1b]0;evil\x07"), True, "announces what no backup has"),
    "a path for a name": (renamed, True, "announces what no backup has"),
    "one name twice": (doubled, True, "announces what no backup has"),
    "a large file": (set_part("roost.toml", size=1 << 40), False, "announces what no backup has"),
    "a larger database than it has": (set_part("roost.db", size=1 << 60), False, "should have 1,152,921,504,606,"),
    "another size": (set_part("agents.certificate", size=10), False, "has 11 bytes, and may have 10"),
    "a size that is too large": (set_part("agents.certificate", size=12), False, "has 11 bytes, and should have 12"),
    "a changed key": (flip("agents.private_key"), False, "agents.private_key is damaged"),
    "a changed database": (flip("roost.db"), False, "roost.db is damaged"),
    "something behind it": (more, True, "something behind its last part"),
    "another revision within": (sql("UPDATE alembic_version SET version_num = '0001'"), True, "another revision"),
    "a trigger": (
        sql("CREATE TRIGGER evil AFTER INSERT ON sleeping BEGIN DELETE FROM sleeping; END"), True, "triggers or virtual"
    ),
    "a view for a table": (
        sql(f"DROP TABLE alembic_version; CREATE VIEW alembic_version AS SELECT '{REVISION}' AS version_num"), True,
        "has views"
    ),
    "a view for a table that is not looked at": (
        sql("DROP TABLE runs; CREATE VIEW runs AS SELECT 1 AS run, 1 AS instance"), True, "has views"
    ),
    "a view of the history that may never end": (
        sql("DROP VIEW IF EXISTS history; CREATE VIEW history AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + "
            "1 FROM c) SELECT max(x) FROM c"), True, "has views"
    ),
    "another program's database": (sql("DROP TABLE owner"), True, "no such table"),
    "no database": (lambda _, parts: parts.update({"roost.db": b"x" * 5000}), True, "file is not a database"),
}  # fmt: skip


def test_the_view_of_the_history_comes_along(box: Box, tmp_path: Path) -> None:
    """With columns that parts of an earlier layout do not have."""
    with closing(sqlite3.connect(box.database)) as rows, rows:
        older, part = sa.Table("history_9", sa.MetaData(), sa.Column("seq")), history_part(7)
        rows.execute(str(CreateTable(part)))
        rows.execute("CREATE TABLE history_9 (seq BIGINT)")
        rows.execute("DROP VIEW IF EXISTS history")
        rows.execute(f"CREATE VIEW history AS {history._all_columns(part)} UNION ALL {history._all_columns(older)}")
    assert roost("backup", tmp_path / "saved", "-c", box.config).exit_code == 0
    done = roost("restore", tmp_path / "saved", "-c", box.config, "--force")
    assert done.exit_code == 0, done.output
    with closing(sqlite3.connect(box.database)) as rows:
        assert rows.execute("SELECT count(*) FROM history").fetchone() == (0,)


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_a_hostile_archive_changes_nothing(kind: str, box: Box, saved: Path, tmp_path: Path) -> None:
    change, sums, said = HOSTILE[kind]
    evil = tmp_path / "evil"
    evil.write_bytes(remade(saved, change, sums).read())
    before = box.files()
    done = refused(roost("restore", evil, "-c", box.config, "--force", "--with-config"))
    assert said in done
    assert "nothing was changed" in done
    assert box.files() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["box", "evil", "saved"]


@pytest.mark.parametrize(
    "member", [{"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, {"type": tarfile.LNKTYPE, "linkname": "x"},
               {"type": tarfile.DIRTYPE}, {"type": tarfile.CHRTYPE}, {"type": tarfile.XHDTYPE},
               {"type": tarfile.GNUTYPE_LONGNAME}, {"type": tarfile.GNUTYPE_SPARSE}],
)  # fmt: skip
def test_a_member_that_is_no_file_is_refused(member: dict[str, Any]) -> None:
    with pytest.raises(ArchiveError, match=r"in the place of roost\.json it has something else"):
        Archive(_members_of("roost.json", member))


def _members_of(name: str, member: dict[str, Any]) -> io.BytesIO:
    header = tarfile.TarInfo(name)
    for key, value in member.items():
        setattr(header, key, value)
    block = header.tobuf(tarfile.GNU_FORMAT)
    return io.BytesIO(gzip.compress(block[-512:] + bytes(1024)))


def test_a_bomb_is_not_unpacked() -> None:
    """A header that announces a gigabyte, of zeros: what tarfile would read into memory, this does not."""
    header = tarfile.TarInfo("roost.json")
    header.size = 1 << 30
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(64):
            file.write(bytes(1 << 20))
    packed.seek(0)
    with pytest.raises(ArchiveError, match="has 1,073,741,824 bytes, and may have 65,536"):
        Archive(packed)
    assert packed.tell() < len(packed.getvalue()), "the rest is not read"


@pytest.mark.parametrize("content", [b"", b"x" * 2000, gzip.compress(b""), gzip.compress(b"x" * 2000),
                                     gzip.compress(bytes(10_240)), b"\x1f\x8b\x08\0" + b"x" * 100],
                         ids=["nothing", "text", "nothing packed", "text packed", "zeros packed", "torn"])  # fmt: skip
def test_what_is_no_archive_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "evil").write_bytes(content)
    said = refused(roost("restore", tmp_path / "evil", "--database", tmp_path / "x.db"))
    assert "it is no backup of Roost" in said
    assert [path.name for path in tmp_path.iterdir()] == ["evil"]


def read(file: IO[bytes]) -> None:
    for _, content in Archive(file).parts():
        list(content)


def test_wherever_it_is_cut_off_it_is_refused(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    for size in (*range(1, 600, 7), *range(600, len(whole) - 1, 997), len(whole) - 9):
        with pytest.raises(ArchiveError):
            read(io.BytesIO(whole[:size]))


@pytest.mark.parametrize("told", ['{"format": 1}', "[]", "[" * 60_000, '{"format": 1, "parts": 3}', "{"])
def test_a_manifest_that_is_none_is_told(told: str) -> None:
    with pytest.raises(ArchiveError, match="cannot be read"):
        Archive(tar_of({"roost.json": told.encode()}))


OWNED = r"\u001b]0;owned\u0007"
"""In TOML: it sets a terminal's title."""


def evil_of(saved: Path, old: str, new: str) -> Path:
    """Another backup, with this in its configuration."""

    def change(_manifest: dict[str, Any], parts: dict[str, bytes]) -> None:
        text = parts["roost.toml"].decode()
        assert old in text
        parts["roost.toml"] = text.replace(old, new).encode()

    made = saved.with_name("evil")
    made.write_bytes(remade(saved, change).read())
    return made


@pytest.mark.parametrize("key", ["database", "control_socket", "pin_dir", "bpf_dir"])
def test_a_backup_does_not_say_where_root_writes(key: str, box: Box, saved: Path, tmp_path: Path) -> None:
    """Not the database, a text of which may be a key in authorized_keys; nor the lock, which would empty a file."""
    (home := tmp_path / "home").mkdir()
    (home / "poetry.lock").write_text("mine\n")
    before = box.files()
    there = f"{home}/{'poetry' if key == 'control_socket' else '.ssh/authorized_keys'}"
    for name in (there, f"{home}/{OWNED}"):
        old = next((line for line in box.config.read_text().splitlines() if line.startswith(f"{key} = ")), "[paths]")
        new = f'[paths]\n{key} = "{name}"' if old == "[paths]" else f'{key} = "{name}"'
        said = refused(roost("restore", evil_of(saved, old, new), "-c", box.config, "--with-config", "--force"))
        assert f"its configuration has [paths] {key} at {name.replace('u001b', 'x1b').replace('u0007', 'x07')}" in said
        assert f"write [paths] {key} in {box.config} by hand first" in said
        assert ("--database" in said) == (key == "database")
        assert "nothing was changed" in said
    assert box.files() == before
    assert [path.name for path in home.iterdir()] == ["poetry.lock"]
    assert (home / "poetry.lock").read_text() == "mine\n"


def test_the_usual_places_are_believed_and_what_is_said_here(box: Box, saved: Path, tmp_path: Path) -> None:
    from control.config import parse

    usual = parse(f'instance = "box"\n{SERVICE}')
    restore._refuse_foreign(usual, None, "roost.toml", None)
    for path in ("/var/lib/roost/../../../root/.profile", "/var/lib/roost", "sqlite:////root/.profile"):
        with pytest.raises(ArchiveError, match="name it by --database, or write"):
            restore._refuse_foreign(parse(f'[paths]\ndatabase = "{path}"\n'), usual, "roost.toml", "/srv/x.db")
    elsewhere = parse('[paths]\ndatabase = "/srv/x.db"\n')
    restore._refuse_foreign(elsewhere, usual, "roost.toml", "/srv/x.db")
    restore._refuse_foreign(elsewhere, elsewhere, "roost.toml", None)


@pytest.mark.parametrize("named", [True, False])
def test_in_a_home_no_file_of_a_backup_is_put_but_those_that_are_named_there(
    named: bool, box: Box, saved: Path
) -> None:
    backup = saved if named else evil_of(saved, "agents.pem", f"{OWNED}.pem")
    for path in (box.directory / "agents.pem", box.directory / "keys" / "agents.pem"):
        path.unlink()
    done = roost("restore", backup, "-c", box.config, "--with-config", "--force")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    if named:
        assert len(list(box.directory.rglob("*.pem"))) == 2
    else:
        assert list(box.directory.rglob("*.pem")) == []
        assert "not put, for it is neither beside a configuration in /etc/roost, nor named" in done.output
        assert f": {box.directory}/\\x1b]0;owned\\x07.pem (tar -xzOf" in done.output


@pytest.mark.usefixtures("of_roost")
@pytest.mark.parametrize("name", [".profile", ".ssh/authorized_keys", "keys/.netrc"])
def test_no_hidden_file_of_a_backup_is_put(name: str, box: Box, saved: Path) -> None:
    evil = evil_of(saved, f"{box.directory}/agents.pem", f"{box.directory}/{name}")
    done = roost("restore", evil, "-c", box.config, "--with-config", "--force")
    assert done.exit_code == 0, done.output
    assert f"{box.directory}/{name} (tar -xzOf" in done.output
    assert not (box.directory / name).exists()


def test_a_mistake_in_a_backups_configuration_is_shown_as_text(box: Box, saved: Path) -> None:
    said = refused(roost("restore", evil_of(saved, "[paths]", f'"{OWNED}" = 1\n[paths]'), "-c", box.config,
                         "--with-config"))  # fmt: skip
    assert r"unknown key `\x1b]0;owned\x07`" in said


@pytest.mark.usefixtures("of_roost")
def test_a_file_that_does_not_belong_beside_the_configuration_is_not_put(box: Box, saved: Path, tmp_path: Path) -> None:
    """A configuration may name any path, and a link may lead anywhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (box.directory / "link").symlink_to(elsewhere)

    def change(_manifest: dict[str, Any], parts: dict[str, bytes]) -> None:
        text = parts["roost.toml"].decode()
        text = text.replace(f"{box.directory}/agents.pem", f"{box.directory}/../elsewhere/a.pem")
        parts["roost.toml"] = text.replace(f"{box.directory}/keys", f"{box.directory}/link").encode()

    (tmp_path / "evil").write_bytes(remade(saved, change).read())
    done = roost("restore", tmp_path / "evil", "-c", box.config, "--force", "--with-config")
    assert done.exit_code == 0, done.output
    assert list(elsewhere.iterdir()) == []
    assert "not put, for it is neither beside a configuration in" in done.output
    assert f"tar -xzOf {tmp_path}/evil agents.private_key" in done.output


# -- killed, and without room ------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from control.cli import backup, main, restore
from control.daemon import lock
from control import config
import control.store.backup
FILES = tuple(sys.argv[1].split())
def run(count):
    def line(frame, event, argument):
        nonlocal count
        if event == "line":
            count -= 1
            if count == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return line
    sys.settrace(lambda frame, event, argument: line if frame.f_code.co_filename.endswith(FILES) else None)
    main.cli.main(sys.argv[2:])
for count in range(1, 100_000, 3):
    if (child := os.fork()) == 0:
        os.dup2(2, 1)
        run(count)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.stdin.readline()
"""


def killed(files: str, *words: object) -> Iterator[None]:
    """Each time that it was killed, three lines of these files later than the time before; at last it is done."""
    argv = [sys.executable, "-c", KILLED, files, *map(str, words)]
    with subprocess.Popen(argv, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while (status := int(process.stdout.readline())) == -signal.SIGKILL:
                yield
                process.stdin.write("\n")
                process.stdin.flush()
            assert status == 0
        finally:
            process.kill()


def test_a_restore_that_is_killed_leaves_the_old_state_or_the_new_one(box: Box, saved: Path) -> None:
    slept(box.database, 4)
    old = box.numbers()
    seen = []
    for _ in killed("cli/restore.py store/backup.py", "restore", saved, "-c", box.config, "--force"):
        now = box.numbers()
        assert now in (old, [1, 2, 3])
        seen.append(len(now))
        if now != old:
            slept(box.database, 4)
    assert box.numbers() == [1, 2, 3]
    assert len(seen) > 30
    assert set(seen) == {3, 4}
    assert not list(box.directory.glob("*.restore*")), "what the killed ones left is gone"


def test_a_backup_that_is_killed_leaves_no_file_by_its_name_or_a_whole_one(box: Box, tmp_path: Path) -> None:
    seen = []
    for _ in killed("cli/backup.py store/backup.py store/archive.py", "backup", tmp_path / "x", "-c", box.config):
        seen.append((tmp_path / "x").exists())
        if seen[-1]:
            read(io.BytesIO((tmp_path / "x").read_bytes()))
            (tmp_path / "x").unlink()
    assert len(seen) > 30
    assert set(seen) == {False, True}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["box", "x"]


def test_a_full_disk_is_told_and_nothing_is_left(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept(box.database, *range(100, 6000))
    size = box.database.stat().st_size
    with small_disk(tmp_path / "small", f"{size // 2048}k") as small:
        said = refused(roost("backup", small / "x", "-c", box.config))
        assert f"takes up to {2 * size:,} bytes" in said
        monkeypatch.setattr("control.cli.backup._look_for_room", lambda *_: None)
        said = refused(roost("backup", small / "x", "-c", box.config))
        assert "there is no room for a backup; nothing was kept" in said
        assert list(small.iterdir()) == []
        (small / "filler").write_bytes(bytes(1 << 16))
        monkeypatch.undo()
    assert roost("backup", tmp_path / "x", "-c", box.config).exit_code == 0
    with small_disk(tmp_path / "less", f"{size // 2048}k") as less:
        said = refused(roost("restore", tmp_path / "x", "--database", less / "roost.db"))
        assert "are free in" in said
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 50, 0, 1 << 50))
        said = refused(roost("restore", tmp_path / "x", "--database", less / "roost.db"))
        assert "No space left on device" in said
        assert list(less.iterdir()) == []


# -- a database that is written all the time ---------------------------------------------------------------------------


def test_the_rows_of_a_backup_are_of_one_moment(tmp_path: Path) -> None:
    """Each transaction writes two numbers that belong together, and takes away two others."""
    path = tmp_path / "roost.db"
    store = Store(f"sqlite:///{path}", Recorder())
    assert store.open() == ""
    store.close()
    over = threading.Event()
    written_since = [0]

    def write() -> None:
        with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as rows:
            rows.execute("PRAGMA synchronous=NORMAL")
            number = 0
            while not over.is_set():
                number += 2
                rows.execute("BEGIN IMMEDIATE")
                for one in (number, number + 1):
                    rows.execute("INSERT INTO sleeping VALUES (?, zeroblob(36), 0, 1, 1, 1, zeroblob(36), "
                                 "zeroblob(400))", (one,))  # fmt: skip
                rows.execute("DELETE FROM sleeping WHERE id < ?", (number - 5000,))
                rows.execute("COMMIT")
                written_since[0] = number

    thread = threading.Thread(target=write)
    thread.start()
    found = set()
    try:
        while written_since[0] < 6000:
            time.sleep(0.01)
        for nth in range(10):
            before = written_since[0]
            _, count = backup.copy(str(path), str(tmp_path / f"{nth}.db"))
            after = written_since[0] + 2
            with closing(sqlite3.connect(tmp_path / f"{nth}.db")) as copied:
                numbers = [number for (number,) in copied.execute("SELECT id FROM sleeping ORDER BY id")]
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), "all that was between"
            assert (numbers[0] % 2, numbers[-1] % 2, len(numbers)) == (0, 1, count)
            assert before <= numbers[-1] - 1 <= after
            found.add(numbers[-1])
    finally:
        over.set()
        thread.join()
    assert len(found) > 1, "it was written meanwhile"


def test_a_reader_of_the_old_database_is_not_left_with_its_log(
    box: Box, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "WAIT_S", 0.1)
    with closing(sqlite3.connect(box.database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sleeping").fetchone()
        with closing(sqlite3.connect(box.database)) as writer, writer:
            writer.execute("DELETE FROM sleeping WHERE id = 1")
        assert "End it first" in refused(roost("restore", saved, "-c", box.config, "--force"))
    assert box.numbers() == [2, 3]
    with pytest.raises(StoreError, match="there is no database"):
        backup.copy(str(box.directory / "none.db"), str(box.directory / "x.db"))
