# SPDX-License-Identifier: Apache-2.0
"""A database that is read by JDBC has what an export of it has; and what is said where none can be read."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from errno import ECONNRESET, ETIMEDOUT
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from sqlalchemy.dialects import postgresql

from appliance.wire import ENDS, NO_ENDS, Key, pack_address
from control.cli import report as cli
from control.export.export import Export
from control.store import history as history_module
from control.store.appended import Attach, Audit, Row, Snapshot
from control.store.schema import HISTORY, NAMED, SUCCESSOR, Keyed, history_part
from control.store.store import Store
from spark import database, reading, session
from spark.columns import struct_of
from tests.databases import OPTIONS, Cluster, Database, Postgres, written
from tests.unit.fake_engine import key
from tests.unit.spark.given import BEGIN_MS, HOUR_MS, C, S
from tests.unit.test_history import as_of_layout_1
from tests.unit.test_store import row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES: Final = {**reading.CHUNKED, **reading.WHOLE}
PART: Final = 40
UNNAMED: Final = 41
"""An errno that has no name."""


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    """One that Java reaches."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = Cluster({**OPTIONS, "listen_addresses": "127.0.0.1", "port": str(port)})
    made.execute("GRANT pg_read_all_data TO careful")
    yield made
    made.close()


@pytest.fixture
def empty(server: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(history_module, "PART_ROWS", PART)
    monkeypatch.setattr(history_module, "LOADED_ROWS", PART // 2)
    monkeypatch.setattr(database, "LEAST_ROWS", 10)
    monkeypatch.setattr(database, "RANGE_ROWS", 30)
    monkeypatch.setattr(database, "PARTS", 3)
    made: Any = Postgres(server)
    yield made
    made.close()


def tcp(server: Cluster, login: str = "careful:right", name: str = "postgres") -> str:
    return f"postgresql://{login}@127.0.0.1:{server.port}/{name}"


@pytest.fixture
def url(server: Cluster) -> str:
    return tcp(server)


def opened(postgres: Database) -> Store:
    store = Store(postgres.url, lambda slept: None)
    assert store.open() == ""
    store.service_indexes(["web", "line"])
    store.begin_run()
    store.start()
    return store


def transition(number: int, at_ms: int, **others: Any) -> bytes:
    given: dict[str, Any] = {
        "client": Key.of("2001:db8::7", 443, "2001:db8::1", 7000), "service": 2, "from": S.NONE, "to": S.ACTIVE,
        "cause": C.CLIENT_CONNECT, "counts": (2**40, 2**41, 2**42), "ends": NO_ENDS,
    } | others  # fmt: skip
    client, service, source, target, cause, counts, ends = given.values()
    return HISTORY.pack(number, at_ms, client.pack(), service, source, target, cause, *counts, ends)


def ends(error: int, probes: int = 15) -> bytes:
    return ENDS.pack(pack_address("2001:db8::2"), 443, error, probes, 2**20)


@pytest.fixture
def filled(empty: Database) -> Iterator[Store]:
    """Five parts of the history, three of them of layout 1; two runs; and something in each other table."""
    store = opened(empty)
    store.add([row(n % 200, n, at=BEGIN_MS + n * HOUR_MS // 60) for n in range(1, 2 * PART + 8)])
    store.add([transition(2**52, BEGIN_MS + 999)])
    assert written(store)
    store.close()
    as_of_layout_1(empty, 1, PART + 1, 2 * PART + 1)
    store = opened(empty)
    at = BEGIN_MS + 2 * HOUR_MS
    store.add([row(n % 200, n, at=at + n * HOUR_MS // 60) for n in range(1, PART + 1)])
    store.add([
        transition(0, at, service=9), transition(7, 1, service=0), transition(8, at + 1, ends=ends(ECONNRESET)),
        transition(8, at + 2, ends=ends(UNNAMED)), transition(8, at + 3, ends=ends(0, 0)),
        *(transition(9, at, **{"from": source, "to": target, "cause": cause})
          for source in S for target in S for cause in list(C)[:2]),
    ])  # fmt: skip
    linked = Attach(at, "connect", "10.20.0.1:4711", "meter.roost:80", "agent", 7, "[2001:db8::7]:443", 2, S.SLEEP, 0,
                    12, 30)  # fmt: skip
    others: list[Row] = [
        linked, linked._replace(found=S.IDLE, client="192.0.2.1:65535", service=77, first_ms=None),
        Attach(at, "address", "", "192.0.2.1:9", "", 0, "", 0, 0, ETIMEDOUT, 5000, None),
        linked._replace(error=4711, found=0), linked._replace(error=-2, found=0),
        Snapshot(at, 60_000, 0, "", '{"rss_bytes": 60000000, "a \\"b\\" é": -1}'),
        Snapshot(at, 60_000, 1, "one, two", '{"SLEEP ACTIVE client-data": 7, "rx_bytes": 9007199254740993}'),
        Snapshot(at, 60_000, 9, "one", "{}"),
        Audit(at, "ann", "local", "PUT", "/v1/policy/rules/cellular", '{"a": "é"}', 200, ""),
        Audit(at, "bob", "10.0.0.1", "POST", "/v1/x", "", 409, "it is: another's"),
    ]  # fmt: skip
    for one in others:
        store.append(one)
    store.change_rules({"a": '{"name": "a"}', "b": '{"name": "b"}'}, "ann", "first", 0)
    store.change_rules({"a": None}, "bob", "", 1)
    pump: dict[Keyed, bytes] = {
        ("names", "pump"): NAMED.pack(key(50).pack(), 50, 7),
        ("successors", 7): SUCCESSOR.pack(50, at),
    }
    store.add([], keyed=pump)
    assert written(store)
    store.change_tags("pump", ["north", "old"], [])
    yield store
    store.close()


def exported(postgres: Database, out: Path) -> Path:
    Export(out).add(postgres.url, None, None, lambda _table, _rows: None)
    return out


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


def same(spark: SparkSession, export: Path, url: str) -> dict[str, int]:
    """How many rows each table has."""
    there, here = reading.Export(spark, str(export)), database.Database(spark, url)
    counts = {}
    for name, schema in TABLES.items():
        wanted, found = there.table(name), here.table(name)
        assert found.schema == wanted.schema == struct_of(schema)
        assert rows_of(found) == rows_of(wanted), name
        counts[name] = found.count()
    assert here.aside.counts == there.aside.counts == {}
    return counts


# -- what is read ------------------------------------------------------------------------------------------------------


def test_each_table_is_as_an_export_has_it(
    spark: SparkSession, filled: Store, empty: Database, url: str, tmp_path: Path
) -> None:
    layouts = [layout for (layout,) in empty.execute("SELECT layout FROM history_parts ORDER BY first")]
    assert layouts[:4] == [1, 1, 1, 2]
    assert len(layouts) > 2 * database.PARTS - 1
    counts = same(spark, exported(empty, tmp_path / "out"), url)
    rows = 2 * PART + 8 + PART + 5 + 2 * len(S) ** 2
    assert counts == {"history": rows, "attaches": 5, "snapshots": 3, "audit": 2, "runs": 2, "rules": 3, "tags": 4}


def test_what_is_in_the_columns(spark: SparkSession, filled: Store, url: str) -> None:
    found = database.Database(spark, url)
    history = found.table("history").where("id = 8").orderBy("seq").collect()
    assert [(one["address"], one["port"], one["service"], one["from"], one["cause"]) for one in history if one["probes"]
            ] == [("2001:db8::7", 443, "line", "NONE", "client-connect")] * 2  # fmt: skip
    assert [one["error"] for one in history][-3:] == ["ECONNRESET", str(UNNAMED), None]
    assert {one["service"] for one in found.table("history").where("id = 0 OR at < '1971-01-01'").collect()} == {None}
    assert [one["counts"] for one in found.table("snapshots").orderBy("seq").collect()][1] == {
        "SLEEP ACTIVE client-data": 7, "rx_bytes": 2**53 + 1}  # fmt: skip


def test_a_database_without_rows_has_its_tables(spark: SparkSession, empty: Database, url: str, tmp_path: Path) -> None:
    store = Store(empty.url, lambda slept: None)
    assert store.open() == ""
    store.close()
    assert same(spark, exported(empty, tmp_path / "out"), url) == dict.fromkeys(TABLES, 0)


def test_rows_are_read_in_parts_each_of_them_once(spark: SparkSession, filled: Store, url: str) -> None:
    last = filled.recent_history(1)[0]["seq"]
    for most, least, partitions in ((30, 10, 7), (1000, 10, 3), (1000, 1000, 2), (7, 1, 30)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "RANGE_ROWS", most)
            patch.setattr(database, "LEAST_ROWS", least)
            found = database.Database(spark, url).table("history")
        assert found.rdd.getNumPartitions() == partitions
        assert [one["seq"] for one in found.orderBy("seq").collect()] == list(range(1, last + 1))


def test_what_is_written_meanwhile_is_left_out(spark: SparkSession, filled: Store, url: str) -> None:
    found = database.Database(spark, url)
    last = filled.recent_history(1)[0]["seq"]
    filled.add([row(n, n, at=BEGIN_MS) for n in range(1, 200)])
    filled.append(Audit(BEGIN_MS, "ann", "local", "PUT", "/v1/x", "", 200, ""))
    assert written(filled)
    assert found.table("history").agg({"seq": "max"}).collect()[0][0] == last
    assert found.table("audit").count() == 2


@pytest.mark.parametrize("layout", [1, 2])
def test_names_that_sql_has_for_itself_are_quoted(layout: int) -> None:
    told = str(sa.select(history_part(1, layout)).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
    assert 'history_1."from"' in told
    assert 'history_1."to"' in told


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def report(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr(session, "start", lambda **_: spark)
    monkeypatch.setattr(session, "end", lambda _: None)

    def run(data: object, *options: object) -> Result:
        argv = [str(data), "--out", tmp_path / "report", "--scratch", tmp_path, *options]
        return CliRunner().invoke(cli.command, [str(one) for one in argv])

    return run


def test_the_command_makes_the_same_tables_of_both(
    report: Callable[..., Result], filled: Store, empty: Database, url: str, tmp_path: Path
) -> None:
    made = list[dict[str, Any]]()
    for name, data in (("one", exported(empty, tmp_path / "out")), ("two", url)):
        times = ("--from", "2026-11-18T11:20:00Z", "--to", "2026-11-18T13:30:00Z")
        done = report(data, "--out", tmp_path / name, *times)
        assert done.exit_code == 0, done.output
        assert "right" not in done.output
        made.append({path.name: pq.read_table(path).to_pylist() for path in (tmp_path / name).glob("*.parquet")})
        made[-1]["told"] = json.loads((tmp_path / name / "report.json").read_text())
    assert made[0] == made[1]
    assert 0 < made[0]["told"]["rows"] < filled.recent_history(1)[0]["seq"]
    assert len(made[0]) > 10
    assert not list(tmp_path.glob("roost-report-*"))


def test_a_part_that_is_removed_meanwhile_is_told(
    report: Callable[..., Result], filled: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = database.Database.__init__

    def slowly(self: database.Database, spark: SparkSession, of: str) -> None:
        begin(self, spark, of)
        with filled._writing() as connection:
            filled._history._remove(connection, filled._history._parts[0])
        filled._history.settle()

    monkeypatch.setattr(database.Database, "__init__", slowly)
    done = report(url)
    assert (done.exit_code, done.exception.__class__) == (1, SystemExit)
    assert done.output.splitlines()[-1] == f"Error: {database.REMOVED}"


def test_no_secret_is_in_a_plan(
    spark: SparkSession, filled: Store, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = database.Database(spark, url + "?sslmode=disable&sslpassword=right").table("history")
    found.explain(True)
    told = capfd.readouterr().out
    assert "JDBCRelation" in told
    assert not re.search("right|careful", told)


@pytest.mark.parametrize(("url", "says"), [
    ("postgresql://careful:right@/postgres", "Java reaches PostgreSQL by TCP alone"),
    ("postgresql+psycopg:///postgres?host=/run/postgresql", "write postgresql://user:password@host:5432/name"),
    ("postgresql://careful:right@127.0.0.1/postgres?host=/run/postgresql", "by TCP alone"),
    ("sqlite:////var/lib/roost/main.db", "let roost export write it to a directory"),
    ("postgresql+asyncpg://careful:right@127.0.0.1/postgres", "by psycopg"),
    ("postgresql://careful:right@127.0.0.1:x/postgres", "URL cannot be read"),
    ("postgresql://careful:right@127.0.0.1:1/postgres", "Connection refused"),
])  # fmt: skip
def test_what_cannot_be_a_database_is_said(report: Callable[..., Result], url: str, says: str) -> None:
    refused(report(url), says)


@pytest.mark.parametrize(("login", "name", "says"), [
    ("careful:wrong", "postgres", "password authentication failed"),
    ("careful:right", "nowhere", 'database "nowhere" does not exist'),
    ("careful:right", "template1", "has no tables of roost's"),
])  # fmt: skip
def test_what_cannot_be_read_is_said(
    report: Callable[..., Result], server: Cluster, login: str, name: str, says: str
) -> None:
    done = report(tcp(server, login, name))
    refused(done, says)
    assert f"Error: postgresql://127.0.0.1:{server.port}/{name} " in done.output


def test_another_revision_is_refused(report: Callable[..., Result], filled: Store, empty: Database, url: str) -> None:
    empty.execute("UPDATE alembic_version SET version_num = '0001'")
    refused(report(url), "the database has revision 0001, this roost reads")


def refused(done: Result, says: str) -> None:
    assert (done.exit_code, done.exception.__class__) == (1, SystemExit)
    (line,) = done.output.splitlines()
    assert line.startswith("Error: ")
    assert says in line
    assert not re.search("right|wrong", line)


def test_a_driver_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "DRIVER", tmp_path / "none.jar")
    done = CliRunner().invoke(cli.command, ["postgresql://careful:right@127.0.0.1/postgres"])
    refused(done, "needs PostgreSQL's driver for Java: apt-get install libpostgresql-jdbc-java")
