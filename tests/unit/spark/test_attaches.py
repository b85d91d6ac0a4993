# SPDX-License-Identifier: Apache-2.0
"""How servers that asked for a client were served: by hand, and by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from control.core.states import Cause, State
from spark.jobs import attaches
from tests.unit.spark.given import BEGIN_MS, HOUR_MS, UNTIL_MS, history, ms, step, table, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

S, C = State, Cause


def asked(seq: int, at_s: float, number: int | None = 7, **others: Any) -> dict[str, Any]:
    """A row of an export: linked after 5 ms, first byte after 30 ms."""
    given = {
        "seq": seq, "at": ms(at_s), "way": "connect", "server": "10.9.0.1:5000", "target": "10.1.7.7:40000",
        "step": None, "id": number, "address": "10.1.7.7", "port": 40_000, "service": "web", "found": "SLEEP",
        "error": None, "answer_ms": 5, "first_ms": 30,
    }  # fmt: skip
    return given | others


NOT_FOUND: dict[str, Any] = {
    "address": None, "port": None, "service": None, "found": None, "error": "ENOENT", "first_ms": None,
}  # fmt: skip


def frame(spark: SparkSession, tmp_path: Path, rows: Sequence[dict[str, Any]]) -> DataFrame:
    return table(spark, tmp_path, "attaches", rows)


def test_servers_are_counted_by_what_they_were_told(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *(asked(seq, seq, answer_ms=seq, first_ms=10 * seq) for seq in range(1, 11)),
        asked(11, 3600, found="IDLE", way="socks5", first_ms=None),
        asked(12, 3600, found="IDLE", way="socks5", error="EBUSY", answer_ms=900, first_ms=None),
        asked(13, 3600, None, step="wait", answer_ms=0, **NOT_FOUND),
        asked(14, 3601, None, **NOT_FOUND),
        asked(15, 7200, service=None, address="2001:db8:7::1"),  # of a service that is gone
    ]
    checked = attaches.checked(frame(spark, tmp_path, rows), UNTIL_MS)
    found = attaches.with_hour(attaches.with_gone(checked, history(spark, tmp_path, []))).cache()
    counts = ("requests", "linked", "refused", "no_first_byte", "gone")
    by_way = attaches.served(found, ["service", "way", "found"])
    quantiles = [f"{name}_p{share}_ms" for name in ("answer", "first") for share in (50, 90, 99)]
    assert told(by_way, "service", "way", "found", *counts, "linked_share", *quantiles) == [
        ("web", "connect", "SLEEP", 10, 10, 0, 0, 0, 1.0, 5, 9, 10, 50, 90, 100),
        ("web", "socks5", "IDLE", 2, 1, 1, 1, 0, 0.5, 5, 5, 5, None, None, None),
        (None, "connect", "SLEEP", 1, 1, 0, 0, 0, 1.0, 5, 5, 5, 30, 30, 30),
        (None, "connect", None, 2, 0, 2, 0, 0, 0.0, None, None, None, None, None, None),
    ]
    by_network = attaches.served(found, ["service", "network"])
    assert told(by_network, "service", "network", *counts) == [
        ("web", "10.1.0.0/16", 12, 11, 1, 1, 0),
        (None, "2001:db8:7::/48", 1, 1, 0, 0, 0),
        (None, None, 2, 0, 2, 0, 0),
    ]
    by_hour = attaches.served(found, ["service", "hour"]).selectExpr(
        f"(unix_millis(hour) - {BEGIN_MS}) / {HOUR_MS} AS nth", "*"
    )
    assert told(by_hour, "nth", "service", *counts) == [
        (0.0, "web", 10, 10, 0, 0, 0), (1.0, "web", 2, 1, 1, 1, 0), (1.0, None, 2, 0, 2, 0, 0),
        (2.0, None, 1, 1, 0, 0, 0),
    ]  # fmt: skip
    assert told(attaches.refusals(found), "service", "way", "step", "error", "count", "share") == [
        ("web", "socks5", None, "EBUSY", 1, 1 / 2),
        (None, "connect", "wait", "ENOENT", 1, 1 / 13),
        (None, "connect", None, "ENOENT", 1, 1 / 13),
    ]


def test_a_server_was_told_yes_though_its_client_was_gone(spark: SparkSession, tmp_path: Path) -> None:
    """A case a connection: how it ended after the server was linked at 100 s, and whether the client was gone."""
    cases: list[tuple[bool, float, Cause, dict[str, Any]]] = [
        (True, 160, C.CLIENT_CLOSE, {"error": "ECONNRESET"}),
        (True, 160, C.PROBE_TIMEOUT, {"error": "ETIMEDOUT", "silence_s": 300}),
        (True, 160, C.WRITE_TIMEOUT, {}),
        (True, 101, C.CLIENT_CONNECT, {}),
        (True, 1100, C.CLIENT_CLOSE, {"error": "ETIMEDOUT", "silence_s": 1000}),
        (False, 160, C.CLIENT_CLOSE, {}),  # by FIN
        (False, 160, C.SERVER_CLOSE, {"error": "ECONNRESET"}),
        (False, 160, C.RESTORE, {}),
        (False, 1101, C.CLIENT_CLOSE, {"error": "ETIMEDOUT"}),  # long after
        (False, 99, C.CLIENT_CLOSE, {"error": "ECONNRESET"}),  # before: the clock was set back
        (False, 300, C.PROBE_TIMEOUT, {"silence_s": 120}),  # it was heard in between
    ]
    ends = [
        step(seq, 100 + seq, at_s, S.ACTIVE, S.CLOSED, cause, **others)
        for seq, (_, at_s, cause, others) in enumerate(cases, 1)
    ]
    rows = [asked(seq, 100, 100 + seq, answer_ms=0, first_ms=None) for seq, _ in enumerate(cases, 1)]
    last = len(rows)
    rows += [
        asked(last + 1, 100, 101),  # it had spoken, then died
        asked(last + 2, 100, 101, error="ETIMEDOUT", first_ms=None),
        asked(last + 3, 100, None, first_ms=None),  # of no known connection
        asked(last + 4, 120, 101, first_ms=None),  # the same connection again
    ]
    checked = attaches.checked(frame(spark, tmp_path, rows), UNTIL_MS)
    found = attaches.with_gone(checked, history(spark, tmp_path, [*ends, ends[0]])).cache()
    assert found.count() == len(rows)
    wanted = [seq for seq, case in enumerate(cases, 1) if case[0]]
    assert told(found.where("gone"), "seq") == sorted(((seq,) for seq in (*wanted, last + 4)), key=repr)


def test_rows_that_cannot_be_are_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        asked(1, 0, found="<b>AWAKE</b>"),
        asked(2, 0, answer_ms=-1),
        asked(3, 0, answer_ms=None),
        asked(4, 0, first_ms=-1),
        asked(5, 0, way=None),
        asked(6, 0, at=None),
        asked(7, 0, at=UNTIL_MS + 86_400_001),
        asked(8, 0),
        asked(8, 0),
        asked(9, 0, service="=1+1<b>", found=None, step="agent"),
    ]
    checked = attaches.checked(frame(spark, tmp_path, rows), UNTIL_MS).cache()
    assert told(attaches.aside(checked), "why", "rows") == [("doubled", 1), ("impossible", 5), ("no time", 2)]
    found = attaches.with_gone(checked, history(spark, tmp_path, []))
    assert told(attaches.served(found, ["service"]), "service", "requests") == [("=1+1<b>", 1), ("web", 1)]


def test_of_no_attaches_the_tables_are_empty(spark: SparkSession, tmp_path: Path) -> None:
    none = attaches.checked(frame(spark, tmp_path, []), UNTIL_MS)
    found = attaches.with_gone(none, history(spark, tmp_path, []))
    assert attaches.served(found, ["service"]).unionByName(
        attaches.refusals(found), allowMissingColumns=True
    ).collect() == []  # fmt: skip
