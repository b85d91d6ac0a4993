# SPDX-License-Identifier: Apache-2.0
"""A report: its tables, what it says of itself, and what is said where none can be made."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from appliance.lab import wait_until
from control.cli.report import command
from control.export.chunk import Chunk, File
from control.export.columns import HISTORY, RUNS, TAGS, VERSION
from control.export.files import digest_of, write_json, write_table
from spark import reading, session, stage, stays
from spark.report import Outcome, Report, plain
from spark.stage import Stage
from tests.mutants import ROOT
from tests.unit.spark.given import BEGIN_MS, HOUR_MS, UNTIL_MS, C, S, files, ms, step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# -- a report ----------------------------------------------------------------------------------------------------------


def fake_export(root: Path, rows: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> Path:
    """An export of these rows, in one file."""
    path = root / "history" / "date=2026-11-18" / "hour=00" / "1-9.parquet"
    for directory in (path.parent, root / "history" / "_chunks", root / "runs"):
        directory.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=HISTORY), path)
    pq.write_table(pa.Table.from_pylist(list(runs), schema=RUNS), root / "runs" / "runs.parquet")
    listed = [File(str(path.relative_to(root)), len(rows), digest_of(path))]
    chunk = Chunk(1, len(rows), len(rows), (len(rows), 1, 1), listed)
    write_json(root / "history" / "_chunks" / "1-9.json", asdict(chunk))
    write_json(root / "_export.json", {"version": VERSION})
    return root


def report(
    spark: SparkSession, data: Path, out: Path, since_ms: int | None = None, until_ms: int | None = None
) -> Outcome:
    with Stage(spark, str(out.parent)) as stage:
        return Report(reading.Export(spark, str(data)), out, stage, since_ms, until_ms, lambda _: None).run()


def test_a_report_has_its_tables_and_says_what_it_is_about(spark: SparkSession, exported: Path, tmp_path: Path) -> None:
    rows = pq.read_metadata(files(exported)[0]).num_rows
    files(exported)[0].unlink()
    (exported / "runs" / "runs.parquet").unlink()
    outcome = report(spark, exported, tmp_path / "report")
    told_of = json.loads((tmp_path / "report" / "report.json").read_text())
    assert told_of["rows"] == outcome.rows == 300 - rows
    assert told_of["set_aside"] == outcome.aside.counts == {"missing": rows + 1}
    assert (
        told_of["to"]
        == f"{datetime.fromtimestamp((BEGIN_MS + 300 * HOUR_MS // 60) / 1000, UTC):%Y-%m-%dT%H:%M:%S}.001+00:00"
    )
    some = {"lost_by_network", "dwell_by_service", "dwell_by_network", "hours", "quiet_intervals", "quiet_costs",
            "gap_distribution", "sources", "limits"}  # fmt: skip
    none = {"transitions", "flapping_clients", "flapping_networks", "failures", "silent_deaths", "limits_tried"}
    assert outcome.tables == told_of["tables"]
    assert set(outcome.tables) == some | none
    for name in outcome.tables:
        rows = pq.read_table(tmp_path / "report" / f"{name}.parquet").num_rows
        assert rows > 0 or name in none
        with (tmp_path / "report" / f"{name}.csv").open(newline="") as file:
            assert len(list(csv.DictReader(file))) == rows
    assert not list((tmp_path / "report").glob(".*")), "nothing of Spark's is left"
    report(spark, exported, tmp_path / "report", UNTIL_MS)  # again, into the same directory
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["report.html", "report.json"], (
        "tables of other times are gone"
    )


def test_a_report_says_what_is_not_known(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        step(1, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(2, 1, 50, S.IDLE, S.SLEEP, C.QUIET),  # rows between were dropped
        step(3, 2, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(4, 2, -5, S.ACTIVE, S.STANDBY, C.QUIET),
        step(5, 3, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT) | {"at": 60_000},
        step(6, 4, 60, S.NONE, S.ACTIVE, C.CLIENT_CONNECT),
        step(7, 4, 7200, S.ACTIVE, S.CLOSED, C.RESTORE),
        step(8, 5, 60, S.SLEEP, S.CLOSED, C.PROBE_TIMEOUT, silence_s=60),
        step(8, 5, 60, S.SLEEP, S.CLOSED, C.PROBE_TIMEOUT, silence_s=60),
    ]
    runs = [
        {
            "run": 1,
            "instance": "main",
            "host": "h",
            "version": "1",
            "started": ms(-10),
            "first": 1,
            "ended": None,
            "dropped": 3,
        },
        {
            "run": 2,
            "instance": "main",
            "host": "h",
            "version": "1",
            "started": ms(7200),
            "first": 7,
            "ended": None,
            "dropped": 0,
        },
    ]
    made = fake_export(tmp_path / "export", rows, runs)
    report(spark, made, tmp_path / "report")
    found = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (found["unknown"], found["dropped"], found["set_aside"]) == (
        {"clock": 1, "lost": 1}, 3, {"no time": 1, "doubled": 1},
    )  # fmt: skip
    (died,) = pq.read_table(tmp_path / "report" / "silent_deaths.parquet").to_pylist()
    assert (died["ended"], died["known"]) == (1, 1), "what is there twice happened once"
    assert found["from"].startswith(f"{datetime.fromtimestamp(ms(-5) / 1000, UTC):%Y-%m-%dT%H:%M:%S}")
    (active,) = [one for one in pq.read_table(tmp_path / "report" / "dwell_by_service.parquet").to_pylist()
                 if one["state"] == "ACTIVE"]  # fmt: skip
    assert (active["stays"], active["censored"], active["total_s"]) == (1, 1, 0.0), "killed when it last wrote a row"


def test_stays_are_counted_by_tag(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        step(1, 1, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT), step(2, 1, 10, S.ACTIVE, S.STANDBY, C.QUIET),
        step(3, 2, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT), step(4, 2, 30, S.ACTIVE, S.CLOSED, C.CLIENT_CLOSE),
        step(5, 3, 0, S.NONE, S.ACTIVE, C.CLIENT_CONNECT), step(6, 3, 90, S.ACTIVE, S.STANDBY, C.QUIET),
    ]  # fmt: skip
    made = fake_export(tmp_path / "export", rows, [])
    tags = [("a", "pump", 1), ("a", "pump", 2), ("a", "pump", 2), ("b", "pump", 2), ("b", "line", 77)]
    table = pa.Table.from_pylist([dict(zip(TAGS.names, tag, strict=True)) for tag in tags], schema=TAGS)
    write_table(made / "tags" / "tags.parquet", table)
    report(spark, made, tmp_path / "report")
    found = pq.read_table(tmp_path / "report" / "dwell_by_tag.parquet").to_pylist()
    assert [(row["tag"], row["state"], row["stays"], row["censored"], row["total_s"]) for row in found] == [
        ("a", "ACTIVE", 2, 0, 40.0), ("a", "STANDBY", 1, 1, 80.001), ("b", "ACTIVE", 1, 0, 30.0),
    ]  # fmt: skip
    found = pq.read_table(tmp_path / "report" / "transitions_by_tag.parquet").to_pylist()
    assert [(row["tag"], row["next"], row["count"], row["share"]) for row in found] == [
        ("a", "CLOSED", 1, 0.5), ("a", "STANDBY", 1, 0.5), ("b", "CLOSED", 1, 1.0),
    ]  # fmt: skip


def test_a_report_of_times_without_a_row_says_so(spark: SparkSession, exported: Path, tmp_path: Path) -> None:
    outcome = report(spark, exported, tmp_path / "report", UNTIL_MS, UNTIL_MS + 1)
    assert (outcome.rows, outcome.tables, outcome.until_ms) == (0, [], None)
    assert json.loads((tmp_path / "report" / "report.json").read_text())["rows"] == 0


@pytest.mark.parametrize(("memory", "says"), [
    ("8x", "8x is no amount of memory"), ("-1g", "no amount"), ("511m", "Spark needs 512m at least"),
    ("0g", "at least"), ("999999g", "more memory than this machine has"), ("9" * 99 + "g", "no amount"),
])  # fmt: skip
def test_too_little_and_too_much_memory_is_refused(memory: str, says: str) -> None:
    with pytest.raises(session.SparkError, match=says):
        session.start(memory=memory)
    if "machine" in says:
        session.check_memory(memory, is_local=False)


def test_a_formula_stays_text_in_csv() -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\tx", "a=1", "", None, "<b>", -1]
    assert [plain(text) for text in texts] == ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "a=1", "", None, "<b>", -1]


@pytest.mark.parametrize(("options", "says"), [
    (["--out", "/proc/report"], "/proc/report: No such file or directory"),
    (["--scratch", "/nowhere"], "/nowhere: there is no such directory"),
    (["--master", "spark://127.0.0.1:9"], "a cluster needs --scratch"),
])  # fmt: skip
def test_what_cannot_be_is_said_in_a_sentence_before_anything_long(
    exported: Path, options: list[str], says: str
) -> None:
    done = subprocess.run([sys.executable, "-m", "control.cli.main", "report", str(exported), *options],
                          capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)  # fmt: skip
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "finding how long" not in done.stderr


def test_what_is_kept_meanwhile_is_as_it_was_and_gone_afterwards(spark: SparkSession, tmp_path: Path) -> None:
    columns = "id byte, name string, counts map<string,long>"
    frame = spark.createDataFrame([(1, None, {"a": 2}), (2, "x", None)], columns)
    with Stage(spark, str(tmp_path)) as stage:
        kept = stage.keep(frame, "some")
        assert kept.schema == frame.schema
        assert sorted(kept.collect()) == sorted(frame.collect())
        (there,) = tmp_path.iterdir()
        assert list(there.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_told_before_anything_long(
    spark: SparkSession, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "start", lambda **_: spark)
    monkeypatch.setattr(session, "end", lambda _: None)
    monkeypatch.setattr(stage, "ROW_BYTES", 2**60)
    result = CliRunner().invoke(command, [str(exported), "--out", str(tmp_path / "report"), "--scratch", str(tmp_path)])
    assert result.exit_code == 1
    assert re.search(rf"{tmp_path}/roost-report-\w+: a report of 300 transitions takes", result.output)
    assert "finding how long" not in result.output
    with Stage(spark, f"file://{tmp_path}") as of_a_url:
        of_a_url.check(300)


@pytest.mark.soak  # a Java of its own
def test_a_report_that_is_interrupted_says_so_in_a_word_and_leaves_nothing(exported: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    argv = [sys.executable, "-m", "control.cli.main", "report", str(exported), "--out", str(tmp_path / "report"),
            "--scratch", str(scratch), "--memory", "1g"]  # fmt: skip
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            wait_until(lambda: list(scratch.glob("*/*/*/_temporary")), 120, "Java writes, and Python waits", 0.001)
            modes = [one.stat().st_mode & 0o777 for one in scratch.iterdir()]
            process.send_signal(signal.SIGINT)
            _, _, told = process.communicate(timeout=60)[1].partition("reading the record")
        finally:
            process.kill()
    assert modes == [0o700], "its owner's alone"
    *steps, last = told.splitlines()[1:]
    assert last == "Aborted!"
    assert [line for line in steps if line and not re.match(r" *\d+\.\d s  ", line)] == []
    assert process.returncode == 1
    assert list(scratch.iterdir()) == []


def test_what_spark_says_is_one_line(
    spark: SparkSession, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, for instance."""
    monkeypatch.setattr(session, "start", lambda **_: spark)
    monkeypatch.setattr(session, "end", lambda _: None)
    broken = "seq < raise_error('no space left\\nat org.apache')"
    monkeypatch.setattr(stays, "good", lambda frame: frame.where(broken))
    argv = [str(exported), "--out", str(tmp_path / "report"), "--scratch", str(tmp_path)]
    result = CliRunner().invoke(command, argv)
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    assert not list(tmp_path.glob("roost-report-*"))
    assert "no space left" in result.output
    assert "at org.apache" not in result.output


# -- where there is no Spark -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "says"), [
    (None, "a report needs Java 17 or later: apt-get install default-jre-headless"),
    ('echo \'openjdk version "11.0.2"\' >&2', 'says openjdk version "11.0.2"; a report needs Java 17'),
    ("exit 3", "does not run"),
    ("echo nonsense >&2", "says nonsense; a report needs"),
])  # fmt: skip
def test_without_java_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, says: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "java").chmod(0o755)
    result = CliRunner().invoke(command, ["somewhere"])
    assert result.exit_code == 1
    assert says in result.output


@pytest.mark.parametrize("package", ["matplotlib", "pyspark.sql"])
def test_what_is_not_installed_is_said_before_anything_is_read(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(session.SparkError, match=r"needs pyspark and .*: pip install pyspark pyarrow matplotlib"):
        session.start()


def test_python_of_sparks_workers_is_this_one(spark: SparkSession) -> None:
    def executable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"path": sys.executable}])

    assert {row["path"] for row in spark.range(1).mapInArrow(executable, "path string").collect()} == {sys.executable}
