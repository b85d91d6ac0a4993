# SPDX-License-Identifier: Apache-2.0
"""The history as Parquet: each row once, whatever happens to an export; and what is refused."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from errno import ECONNRESET, errorcode
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from appliance.wire import ENDS, NO_ENDS, Key, pack_address
from control.cli.export import command
from control.core.states import Cause, State
from control.export import files
from control.export import rows as export_rows
from control.export.columns import ATTACHES
from control.export.columns import HISTORY as COLUMNS
from control.export.export import Export
from control.export.files import ExportError
from control.store import history
from control.store.appended import Attach
from control.store.schema import HISTORY, NAMED, SUCCESSOR
from control.store.store import Store
from tests.databases import Database, Sqlite, written
from tests.mutants import ROOT
from tests.unit.fake_engine import key
from tests.unit.test_history import prune_until
from tests.unit.test_store import row

HOUR_MS = 3_600_000
BEGIN_MS = 1_795_000_000_000 // HOUR_MS * HOUR_MS


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PART_ROWS", 40)
    monkeypatch.setattr(history, "LOADED_ROWS", 20)
    monkeypatch.setattr(export_rows, "CHUNK_ROWS", 60)
    monkeypatch.setattr(export_rows, "BATCH_ROWS", 25)


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    made = Store(database.url, lambda slept: None)
    assert made.open() == ""
    made.service_indexes(["web", "line"])
    made.start()
    yield made
    made.close()


def add(store: Store, first: int, count: int, step_ms: int = HOUR_MS // 50) -> None:
    store.add([row(n % 200, n, at=BEGIN_MS + n * step_ms) for n in range(first, first + count)])
    assert written(store)


def quiet(_table: str, _rows: int) -> None:
    """In place of what tells how far an export is."""


def exported(directory: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        ds.dataset(directory / "history", format="parquet").to_table().select(COLUMNS.names).to_pylist()
    )
    return sorted(found, key=lambda one: int(one["seq"]))


def expected(store: Store, limit: int = 100_000) -> list[dict[str, Any]]:
    rows = []
    for one in store.recent_history(limit):
        address, _, port = one["client"].rpartition(":")
        rows.append({
            "seq": one["seq"], "id": one["id"], "at": datetime.fromtimestamp(one["at"] / 1000, UTC),
            "address": address.strip("[]"), "port": int(port), "service": {1: "web", 2: "line"}.get(one["service"]),
            "from": State(one["from"]).name, "to": State(one["to"]).name, "cause": Cause(one["cause"]).label,
            "rx_bytes": one["rx_bytes"], "tx_bytes": one["tx_bytes"], "gap_ms": one["gap_ms"],
            "server": one["server"], "error": one["error"] and errorcode[one["error"]], "probes": one["probes"],
            "silence_s": one["silence_s"],
        })  # fmt: skip
    return rows


def test_what_is_exported_is_what_the_history_has(store: Store, database: Database, tmp_path: Path) -> None:
    add(store, 1, 150)
    six = Key.of("2001:db8::7", 443, "2001:db8::1", 7000).pack()
    ends = ENDS.pack(pack_address("2001:db8::2"), 443, ECONNRESET, 15, 2**20)
    fields = (2**52, BEGIN_MS, six, 2, State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT, 2**40, 2**41, 2**42, ends)
    store.add([HISTORY.pack(*fields), HISTORY.pack(7, BEGIN_MS, six, 9, *fields[4:])])
    assert written(store)
    outcome = Export(tmp_path / "out").add(database.url, None, None, quiet)["history"]
    assert (outcome.rows, outcome.missed, outcome.last) == (152, 0, 152)
    assert exported(tmp_path / "out") == expected(store)
    last = exported(tmp_path / "out")[-1]
    assert last["service"] is None, "of a service that nobody knows"
    told = ("[2001:db8::2]:443", "ECONNRESET", 15, 2**20)
    assert tuple(last[name] for name in ("server", "error", "probes", "silence_s")) == told
    hours = {path.parent.name for path in (tmp_path / "out" / "history").glob("date=*/hour=*/*.parquet")}
    begins = {datetime.fromtimestamp(one["at"] / 1000, UTC).hour for one in store.recent_history(1000)}
    assert hours == {f"hour={hour:02}" for hour in begins}
    assert Export(tmp_path / "out").check() == []
    (run,) = pq.read_table(tmp_path / "out" / "runs" / "runs.parquet").to_pylist()
    assert (run["run"], run["instance"], run["first"], run["ended"], run["dropped"]) == (1, "main", 1, None, 0)


def test_clients_with_tags_have_a_row_for_each_of_their_connections(
    store: Store, database: Database, tmp_path: Path
) -> None:
    named = {("names", name): NAMED.pack(key(number).pack(), number, 7)
             for name, number in (("pump", 50), ("lamp", 3), ("line", 61))}  # fmt: skip
    followed = {7: 20, 20: 50, 8: 50, 9: 10, 60: 61, 61: 60}  # the last two in a circle
    store.add([], keyed=named | {("successors", old): SUCCESSOR.pack(new, 9) for old, new in followed.items()})
    assert written(store)
    for name, tags in (("pump", ["north", "old"]), ("line", ["north"])):
        store.change_tags(name, tags, [])
    Export(tmp_path / "out").add(database.url, None, None, quiet)
    path = tmp_path / "out" / "tags" / "tags.parquet"
    of_tags = [("north", "line", 60), ("north", "line", 61), *(("north", "pump", one) for one in (7, 8, 20, 50)),
               *(("old", "pump", one) for one in (7, 8, 20, 50))]  # fmt: skip
    assert [tuple(row.values()) for row in pq.read_table(path).to_pylist()] == of_tags
    store.change_tags("pump", [], ["north", "old"])
    Export(tmp_path / "out").add(database.url, None, None, quiet)
    assert [tuple(row.values()) for row in pq.read_table(path).to_pylist()] == of_tags[:2]


def test_the_next_export_adds_what_is_new(store: Store, database: Database, tmp_path: Path) -> None:
    total = 0
    for count in (10, 0, 130, 1, 45, 0):
        add(store, total + 1, count)
        total += count
        export = Export(tmp_path / "out")
        before = set((tmp_path / "out").rglob("*"))
        assert export.add(database.url, None, None, quiet)["history"].rows == count
        assert count or set((tmp_path / "out").rglob("*")) == before
        assert export.rows == {"history": total, "attaches": 0, "snapshots": 0, "audit": 0}
        assert exported(tmp_path / "out") == expected(store)
    assert export.check() == []


def test_attaches_are_exported_beside_the_history_and_go_on_by_themselves(
    store: Store, database: Database, tmp_path: Path
) -> None:
    linked = Attach(BEGIN_MS, "connect", "10.20.0.1:4711", "meter.roost:80", "agent", 7, "[2001:db8::7]:443", 2,
                    State.SLEEP, 0, 12, 30)  # fmt: skip
    refused = Attach(BEGIN_MS + HOUR_MS, "address", "", "192.0.2.1:9", "", 0, "", 0, 0, errno.ETIMEDOUT, 5000, None)
    add(store, 1, 10)
    for n in range(70):
        store.append(refused if n % 2 else linked)
    assert written(store)
    out = tmp_path / "out"
    outcome = Export(out).add(database.url, None, None, quiet)["attaches"]
    assert (outcome.rows, outcome.missed, outcome.last) == (70, 0, 70)
    store.append(linked)
    assert written(store)
    assert {name: one.rows for name, one in Export(out).add(database.url, None, None, quiet).items()} == {
        "history": 0, "attaches": 1, "snapshots": 0, "audit": 0}  # fmt: skip
    rows = ds.dataset(out / "attaches", format="parquet").to_table().select(ATTACHES.names).sort_by("seq").to_pylist()
    assert [one.pop("seq") for one in rows] == list(range(1, 72))
    assert rows[0] == rows[70] == {
        "at": datetime.fromtimestamp(BEGIN_MS / 1000, UTC), "way": "connect", "server": "10.20.0.1:4711",
        "target": "meter.roost:80", "step": "agent", "id": 7, "address": "2001:db8::7", "port": 443, "service": "line",
        "found": "SLEEP", "error": None, "answer_ms": 12, "first_ms": 30,
    }  # fmt: skip
    nothing = dict.fromkeys(("server", "step", "id", "address", "port", "service", "found", "first_ms"))
    assert rows[1] == {
        "at": datetime.fromtimestamp((BEGIN_MS + HOUR_MS) / 1000, UTC), "way": "address", "target": "192.0.2.1:9",
        "error": "ETIMEDOUT", "answer_ms": 5000, **nothing,
    }  # fmt: skip
    assert Export(out).check() == []
    next((out / "attaches").glob("date=*/hour=*/*")).unlink()
    assert [problem.startswith("attaches/") for problem in Export(out).check()] == [True]


@pytest.mark.parametrize("survived", range(14))
def test_an_export_that_breaks_off_anywhere_is_gone_on_with(
    store: Store, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """The disk is full when it has written so many files, before or after the last of them has its name."""
    add(store, 1, 150)
    settle, calls = files.settle, [0]

    def until_full(temporary: Path, path: Path) -> None:
        calls[0] += 1
        if calls[0] > survived // 2:
            if survived % 2:
                settle(temporary, path)
            raise OSError(28, "No space left on device", str(path))
        settle(temporary, path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "settle", until_full)
        with pytest.raises(OSError, match="No space"):
            Export(tmp_path / "out").add(database.url, None, None, quiet)
    add(store, 151, 30)
    Export(tmp_path / "out").add(database.url, None, None, quiet)
    assert exported(tmp_path / "out") == expected(store)
    assert Export(tmp_path / "out").check() == []
    assert list((tmp_path / "out").rglob("*.tmp")) == []


def test_an_export_that_is_killed_again_and_again_has_each_row_once(sqlite: Sqlite, tmp_path: Path) -> None:
    store = Store(sqlite.url, lambda slept: None)
    assert store.open() == ""
    store.start()
    add(store, 1, 4000, step_ms=20_000)
    config = tmp_path / "roost.toml"
    config.write_text(f'[paths]\ndatabase = "{sqlite.file}"\n[[service]]\nname = "web"\nlisten = "127.0.0.1:80"\n'
                      'server = "127.0.0.1:81"\n')  # fmt: skip
    code = ("import sys; from control.export import rows; rows.CHUNK_ROWS = 200; rows.BATCH_ROWS = 70\n"
            "from control.cli.export import command; command(sys.argv[1:])")  # fmt: skip
    argv = [sys.executable, "-c", code, str(tmp_path / "out"), "-c", str(config)]
    kills = 0
    for _ in range(200):
        with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            begun = process.stderr.readline()  # a chunk is written, and the next one begun
            time.sleep(0.003 * (kills % 7))
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            if not begun:
                break
    assert kills > 2
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "4,000 of history, 0 of attaches, 0 of snapshots, 0 of audit\n" in done.stdout
    assert [one["seq"] for one in exported(tmp_path / "out")] == list(range(1, 4001))
    assert Export(tmp_path / "out").check() == []
    store.close()


def test_rows_of_some_times_are_exported_and_of_no_others_to_the_same_directory(
    store: Store, database: Database, tmp_path: Path
) -> None:
    add(store, 1, 150)
    since, until = BEGIN_MS + HOUR_MS, BEGIN_MS + 2 * HOUR_MS
    assert Export(tmp_path / "out").add(database.url, since, until, quiet)["history"].last == 150
    wanted = [one for one in expected(store) if since <= one["at"].timestamp() * 1000 < until]
    assert exported(tmp_path / "out") == wanted
    assert 0 < len(wanted) < 150
    with pytest.raises(ExportError, match=r"has the record from .*Z to .*Z, and the record of all times was asked"):
        Export(tmp_path / "out").add(database.url, None, None, quiet)


def test_what_was_removed_before_it_was_exported_is_counted(store: Store, database: Database, tmp_path: Path) -> None:
    add(store, 1, 10)
    Export(tmp_path / "out").add(database.url, None, None, quiet)
    add(store, 11, 100)
    store._history._keep_rows = 50
    add(store, 111, 1)
    prune_until(store, lambda: store.status.kept_history <= 50)
    outcome = Export(tmp_path / "out").add(database.url, None, None, quiet)["history"]
    assert (outcome.missed, outcome.rows) == (70, 31)
    assert Export(tmp_path / "out").check() == []


def test_a_part_that_is_removed_meanwhile_is_left_out(
    store: Store, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, 1, 130)
    find = export_rows.parts_after

    def slowly(connection: Any, after: int) -> list[sa.Table]:
        found = find(connection, after)
        if after == 1 and database.execute("SELECT count(*) FROM history_parts WHERE first = 41") == [(1,)]:
            with store._writing() as writer:
                part = next(part for part in store._history._parts if part.first == 41)
                store._history._remove(writer, part)
            store._history.settle()
        return found

    monkeypatch.setattr(export_rows, "parts_after", slowly)
    outcome = Export(tmp_path / "out").add(database.url, None, None, quiet)["history"]
    assert [one["seq"] for one in exported(tmp_path / "out")] == [*range(1, 41), *range(81, 131)]
    assert (outcome.rows, outcome.missed) == (90, 40)


def test_a_part_can_be_removed_while_the_export_writes_what_it_has_read(
    store: Store, database: Database, tmp_path: Path
) -> None:
    add(store, 1, 130)

    def removing(_table: str, rows: int) -> None:
        if rows == 65:  # the first chunk: of parts 1 and 41
            store._history._keep_rows = 60
            prune_until(store, lambda: store.status.kept_history <= 60)
            assert database.execute("SELECT min(first) FROM history_parts") == [(81,)]

    outcome = Export(tmp_path / "out").add(database.url, None, None, removing)["history"]
    assert (outcome.rows, outcome.missed) == (115, 15)
    assert [one["seq"] for one in exported(tmp_path / "out")] == [*range(1, 66), *range(81, 131)]


def test_a_service_that_comes_while_an_export_is_made_has_its_name(
    store: Store, database: Database, tmp_path: Path
) -> None:
    add(store, 1, 70)  # the second part has room for ten more

    def adding(_table: str, rows: int) -> None:
        if rows == 65:  # the first chunk
            assert store.number_services(["late"]) == {"late": 3}
            step = State.NONE, State.ACTIVE, Cause.CLIENT_CONNECT, 0, 0, 0, NO_ENDS
            store.add([HISTORY.pack(9, BEGIN_MS, key(9).pack(), 3, *step)] * 10)
            assert written(store)

    Export(tmp_path / "out").add(database.url, None, None, adding)
    assert [one["service"] for one in exported(tmp_path / "out")] == ["web"] * 70 + ["late"] * 10


def test_directories_that_are_something_else_are_refused_and_left_as_they_are(
    store: Store, database: Database, tmp_path: Path
) -> None:
    add(store, 1, 10)
    export = Export(tmp_path / "out")

    def refused(match: str, there: Export = export) -> None:
        files = (
            path for place in ("file", "full", "out") for path in [tmp_path / place, *(tmp_path / place).rglob("*")]
        )
        before = {path: path.read_bytes() for path in files if path.is_file()}
        with pytest.raises(ExportError, match=match):
            there.add(database.url, None, None, quiet)
        assert before == {path: path.read_bytes() for path in before}

    (tmp_path / "file").write_text("x")
    refused("is no directory", Export(tmp_path / "file"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    refused("has files, and none of them is an export's", Export(tmp_path / "full"))
    with pytest.raises(ExportError, match="has no export"):
        Export(tmp_path / "full").check()

    export.add(database.url, None, None, quiet)
    held = os.open(tmp_path / "out" / "_lock", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    refused("another export to .* is at work")
    os.close(held)

    index = tmp_path / "out" / "_export.json"
    good = index.read_text()
    index.write_text(good.replace('"version": 2', '"version": 99'))
    refused("has version 99 of the columns, this roost writes 2")
    index.write_text("[" * 100_000)
    refused("is not as an export writes it")
    index.write_text(good)

    (chunk,) = (tmp_path / "out" / "history" / "_chunks").iterdir()
    good = chunk.read_text()
    changed = [
        good.replace('"rows"', '"ruins"'),
        good.replace('"rows": 10', '"rows": "10"'),
        good.replace('"last_row": [', '"last_row": [1, '),
        good.replace('"path": "', '"path": 7, "way": "'),
    ]
    for wrong in ("", "[]", "{}", "[" * 100_000, *changed, good[:-5]):
        assert wrong != good
        chunk.write_text(wrong)
        refused("is not as an export writes it")
    content = json.loads(good)
    chunk.write_text(json.dumps({**content, "last_row": [content["last"], 4711, 1]}))
    refused("has the history of another database: row 10 is another there; export to another directory")


@pytest.mark.parametrize("name", ["history", "attaches"])
def test_a_database_that_does_not_have_the_last_row_yet_is_refused(
    store: Store, database: Database, tmp_path: Path, name: str
) -> None:
    """It was restored from an older copy, or is a new one."""
    add(store, 1, 10)
    for _ in range(10):
        store.append(Attach(BEGIN_MS, "api", "", "a:1", "", 7, "", 0, 0, 0, 0, None))
    assert written(store)
    out = tmp_path / "out"
    Export(out).add(database.url, None, None, quiet)
    (chunk,) = (out / name / "_chunks").iterdir()
    content = json.loads(chunk.read_text())
    chunk.write_text(json.dumps({**content, "last": 11, "last_row": [11, *content["last_row"][1:]]}))
    said = (f"{out} has {name} up to row 11, and the database up to row 10: it is another one, or was restored from an "
            "older copy; export to another directory")  # fmt: skip
    with pytest.raises(ExportError, match=f"^{re.escape(said)}$"):
        Export(out).add(database.url, None, None, quiet)


def test_a_directory_goes_on_when_all_that_it_has_was_removed(store: Store, database: Database, tmp_path: Path) -> None:
    add(store, 1, 10)
    Export(tmp_path / "out").add(database.url, None, None, quiet)
    store._history._keep_ms = 1
    prune_until(store, lambda: store.status.kept_history == 0)
    outcome = Export(tmp_path / "out").add(database.url, None, None, quiet)["history"]
    assert (outcome.rows, outcome.missed, outcome.last) == (0, 0, 10)


def test_a_check_finds_what_is_changed_missing_or_too_much(store: Store, database: Database, tmp_path: Path) -> None:
    add(store, 1, 150)
    Export(tmp_path / "out").add(database.url, None, None, quiet)
    first, second, third = sorted((tmp_path / "out" / "history").glob("date=*/hour=*/*.parquet"))[:3]
    shutil.copy(first, first.with_name(f"{7:018d}-{8:018d}.parquet"))
    shutil.copy(first, first.with_name("copy.parquet"))
    first.write_bytes(second.read_bytes())
    third.unlink()
    problems = Export(tmp_path / "out").check()
    assert [problem.partition("parquet")[2] for problem in problems] == [
        " was changed since it was written", " is missing", " is of no chunk: the next export removes it",
        " is nothing that an export writes: remove it"]  # fmt: skip


def test_an_export_is_for_its_owner_and_group_and_its_lock_for_its_owner(
    store: Store, database: Database, tmp_path: Path
) -> None:
    add(store, 1, 10)
    out, before = tmp_path / "new" / "out", os.umask(0o022)
    try:
        Export(out).add(database.url, None, None, quiet)
        there = [tmp_path / "new", out, *out.rglob("*")]
        modes = {path.name: path.stat().st_mode & 0o777 for path in there if path.is_file()}
        assert modes.pop("_lock") == 0o600
        assert set(modes.values()) == {0o640}
        assert {path.stat().st_mode & 0o777 for path in there if path.is_dir()} == {0o750}
        readable = os.open(out, os.O_RDONLY)
        fcntl.flock(readable, fcntl.LOCK_EX)  # a reader of the directory
        victim = tmp_path / "victim"
        victim.write_text("precious")
        (out / "runs" / "runs.tmp").symlink_to(victim)
        Export(out).add(database.url, None, None, quiet)
        assert victim.read_text() == "precious"
        os.close(readable)
    finally:
        os.umask(before)


@pytest.fixture
def checked(sqlite: Sqlite, tmp_path: Path) -> Path:
    """An export of ten rows in one chunk."""
    store = Store(sqlite.url, lambda slept: None)
    assert store.open() == ""
    store.start()
    add(store, 1, 10)
    Export(tmp_path / "out").add(sqlite.url, None, None, quiet)
    store.close()
    return tmp_path / "out"


def test_a_check_opens_what_an_export_writes_and_nothing_else(checked: Path, tmp_path: Path) -> None:
    (chunk,) = (checked / "history" / "_chunks").iterdir()
    good = json.loads(chunk.read_text())
    outside = tmp_path / f"{1:018d}-{10:018d}.parquet"
    outside.write_text("outside")
    hour = "history/date=2026-11-25/hour=13"
    for path in ("../outside", "/etc/shadow", "/dev/zero", f"{hour}/../../../../{outside.name}", f"{hour}/x.parquet",
                 f"{hour}/{outside.name}\n", f"../{hour}/{outside.name}", "history/\x1b]0;title\x07"):  # fmt: skip
        chunk.write_text(json.dumps({**good, "files": [{**good["files"][0], "path": path}]}))
        with pytest.raises(ExportError, match="names a file that no export writes"):
            Export(checked).check()
    chunk.write_text(json.dumps(good))
    file = checked / good["files"][0]["path"]
    content = file.read_bytes()
    for make, said in (
        (lambda: os.mkfifo(file), "cannot be read: it is no regular file"),
        (lambda: file.symlink_to("/dev/zero"), "cannot be read: Too many levels of symbolic links"),
        (file.mkdir, "cannot be read: it is no regular file"),
    ):
        file.unlink()
        make()
        assert Export(checked).check()[0] == f"{good['files'][0]['path']} {said}"
    file.rmdir()
    file.write_text("no Parquet")
    digest = files.digest_of(file)
    chunk.write_text(json.dumps({**good, "files": [{**good["files"][0], "sha256": digest}]}))
    assert " is no Parquet: " in Export(checked).check()[0]
    file.write_bytes(content)
    chunk.unlink()
    os.mkfifo(chunk)
    assert "it is no regular file" in run(checked, "--check").output


@pytest.mark.parametrize("name", ["runs", "rules", "tags"])
def test_a_check_reads_the_tables_that_are_written_anew_each_time(checked: Path, name: str) -> None:
    assert Export(checked).check() == []
    path = checked / name / f"{name}.parquet"
    pq.write_table(pq.read_table(path), path, compression="none")
    assert Export(checked).check() == [f"{name}/{name}.parquet was changed since it was written"]
    path.unlink()
    assert Export(checked).check() == [f"{name}/{name}.parquet is missing"]


def test_an_export_of_an_earlier_roost_is_checked_as_far_as_it_tells(checked: Path) -> None:
    (checked / "_whole.json").unlink()
    done = run(checked, "--check")
    assert done.exit_code == 0
    assert "whether runs, rules, tags are as they were written is not known" in done.output
    assert "all as they were written" in done.output


def test_nothing_is_removed_but_what_an_export_writes_in_its_own_directory(
    store: Store, database: Database, tmp_path: Path
) -> None:
    add(store, 1, 10)
    out, name = tmp_path / "out", f"{7:018d}-{8:018d}"
    Export(out).add(database.url, None, None, quiet)
    (hour,) = (out / "history").glob("date=*/hour=*")
    elsewhere = tmp_path / "elsewhere"
    for place in (elsewhere, elsewhere / "hour=00", elsewhere / "date=2026-11-25" / "hour=00", hour, out):
        place.mkdir(parents=True, exist_ok=True)
        for one in (f"{name}.parquet", f"{name}.tmp", f"{name}.json.tmp", "roost.db", "shadow.tmp"):
            (place / one).write_text("precious")
    (out / "history" / "date=0").mkdir()
    (out / "history" / "date=0" / "hour=0").symlink_to(elsewhere)
    (hour.parent / "hour=77").symlink_to(elsewhere)
    (out / "history" / "date=2026-11-24").symlink_to(elsewhere)
    (out / "attaches").symlink_to(elsewhere)
    problems = "\n".join(Export(out).check())
    assert "hour=77 is nothing that an export writes" in problems
    assert "history/date=2026-11-24 is nothing that an export writes" in problems
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    Export(out).add(database.url, None, None, quiet)
    assert before - set(tmp_path.rglob("*")) == {hour / f"{name}.parquet", hour / f"{name}.tmp"}


@pytest.mark.parametrize("linked", ["history", "history/_chunks", "history/date=*"])
def test_nothing_is_written_where_a_link_in_the_directory_leads(
    store: Store, database: Database, tmp_path: Path, linked: str
) -> None:
    add(store, 1, 10)
    real, out, elsewhere = tmp_path / "real", tmp_path / "out", tmp_path / "elsewhere"
    for path in (real, elsewhere):
        path.mkdir()
    out.symlink_to(real)
    Export(out).add(database.url, None, None, quiet)
    add(store, 11, 20)
    (place,) = real.glob(linked)
    place.rename(tmp_path / "moved")
    place.symlink_to(elsewhere)
    with pytest.raises(ExportError, match=f"{real}/history.* leads by a symbolic link to {elsewhere}"):
        Export(out).add(database.url, None, None, quiet)
    assert list(elsewhere.iterdir()) == []


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], env={"ROOST_CONFIG": None})


def test_the_command_says_what_is_wrong(sqlite: Sqlite, tmp_path: Path) -> None:
    config = tmp_path / "roost.toml"
    config.write_text(f'[paths]\ndatabase = "{sqlite.file}"\n[[service]]\nname = "web"\nlisten = "127.0.0.1:80"\n'
                      'server = "127.0.0.1:81"\n')  # fmt: skip
    done = run(tmp_path / "out", "-c", config)
    assert done.exit_code == 1
    assert f"cannot read the history in sqlite:///{sqlite.file}: unable to open database file" in done.output
    assert "noon is no time; write 2026-11-25" in run(tmp_path / "out", "-c", config, "--from", "noon").output
    assert run(tmp_path / "nowhere", "--check").output == f"Error: {tmp_path}/nowhere has no export\n"

    store = Store(sqlite.url, lambda slept: None)
    assert store.open() == ""
    store.start()
    add(store, 1, 70)
    done = run(tmp_path / "out", "-c", config, "--json")
    assert json.loads(done.stdout.splitlines()[-1])["history"] == {"rows": 70, "missed": 0, "last": 70}
    assert (
        run(tmp_path / "out", "--check").output
        == "70 of history, 0 of attaches, 0 of snapshots, 0 of audit: all as they were written\n"
    )
    next(iter((tmp_path / "out" / "history").glob("date=*/hour=*/*"))).write_bytes(b"")
    done = run(tmp_path / "out", "--check", "--json")
    assert done.exit_code == 1
    assert len(json.loads(done.stdout.splitlines()[0])["problems"]) == 1
    store.close()


def test_a_time_without_a_zone_is_this_machines() -> None:
    parameter = next(one for one in command.params if one.name == "since_ms")
    convert = parameter.type.convert
    assert convert("2026-11-25T13:00:00Z", parameter, None) == 1_795_611_600_000
    assert convert("2026-11-25T13:00", parameter, None) == round(datetime(2026, 11, 25, 13).timestamp() * 1000)
