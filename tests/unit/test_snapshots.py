# SPDX-License-Identifier: Apache-2.0
"""Snapshots: what is counted, whose it is, and what the store, the API, the command and an export make of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from appliance.box.shortage import Shortage
from appliance.wire import SILENCES_S, Census, Silences, Tally
from control.cli import snapshots as shown
from control.cli.client import Client
from control.core.states import Cause, State
from control.dispatch.snapshots import Snapshots, Whose
from control.export.export import Export
from control.store import appended, queues
from control.store import store as store_module
from control.store.appended import ROW_BYTES, Snapshot
from control.store.store import Store
from tests.databases import Database, written
from tests.unit.fake_engine import FakeEngine, key
from tests.unit.test_attaches import row as attach
from tests.unit.test_history import prune_until
from tests.unit.test_policy_operations import Box, box  # noqa: F401
from tests.unit.test_store import sleeper, until

DAY_MS = 86_400_000
SHORT = Shortage(memory=0.5, descriptors=0.0004, memory_stall=None, cpu_stall=0.021)
NOTHING = Shortage(None, None, None, None)


class Taken(list[Snapshot]):
    """What was taken, and by which engine."""

    def __init__(self, rules: dict[int, str] | None = None, read: Shortage = NOTHING) -> None:
        super().__init__()
        self.engine = FakeEngine(counted={"probes_sent": 100})
        self.snapshots = Snapshots(self.engine, self.append, rules or {}, lambda: read)

    def now(self) -> dict[Whose, dict[str, int]]:
        """What is taken now."""
        self.clear()
        self.snapshots.take()
        assert len({one.at for one in self}) <= 1
        return {(one.service, one.rules): json.loads(one.counts) for one in self}


def wake(number: int, count: int, cause: Cause = Cause.CLIENT_DATA, service: int = 1) -> Tally:
    return Tally(number, service, State.SLEEP, State.ACTIVE, cause, count, 10 * count, count)


def test_counters_are_told_by_what_they_grew_and_gauges_as_they_are() -> None:
    taken = Taken(read=SHORT)
    taken.engine.without_slot = {key(1): 1}
    taken.engine.counted["probes_sent"] += 5
    first = taken.now()[0, ""]
    assert first["probes_sent"] == 5, "not what was counted before the daemon began"
    assert (first["filter_members"], first["maps_bytes"]) == (1, 160_000)
    assert (first["memory_permille"], first["cpu_stall_permille"]) == (500, 21)
    assert "memory_stall_permille" not in first, "this kernel does not tell"
    assert "descriptors_permille" not in first, "it is 0"
    assert first["rss_bytes"] > 1 << 20
    second = taken.now()[0, ""]
    assert "probes_sent" not in second
    assert second["filter_members"] == 1


def test_what_connections_did_is_told_by_service_and_rules() -> None:
    taken = Taken({1024: "cheap, slow", 1025: "cheap, slow", 1026: "fast"})
    taken.engine.tallied = [
        wake(1, 2), wake(1, 3, Cause.SERVER_ATTACH), wake(1024, 4, service=2), wake(1025, 1, service=2), wake(1026, 6),
        Tally(1, 1, State.SLEEP, State.SLEEP, Cause.NONE, 7, 0, 0),
        Tally(1, 1, State.IDLE, State.IDLE, Cause.NONE, 1, 0, 0),
        Tally(1, 1, State.SLEEP, State.CLOSED, Cause.PROBE_TIMEOUT, 1, 0, 0),
        wake(1999, 1, service=3),
    ]  # fmt: skip
    found = taken.now()
    del found[0, ""]
    assert found == {
        (1, ""): {"SLEEP ACTIVE client-data": 2, "SLEEP ACTIVE server-attach": 3, "rx_bytes": 50, "tx_bytes": 5,
                  "SLEEP CLOSED probe-timeout": 1, "probes": 8},
        (1, "fast"): {"SLEEP ACTIVE client-data": 6, "rx_bytes": 60, "tx_bytes": 6},
        (2, "cheap, slow"): {"SLEEP ACTIVE client-data": 5, "rx_bytes": 50, "tx_bytes": 5},
        (3, ""): {"SLEEP ACTIVE client-data": 1, "rx_bytes": 10, "tx_bytes": 1},
    }  # fmt: skip
    assert set(taken.now()) == {(0, "")}, "nothing happened since, and there are none"


def test_connections_are_counted_by_state(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken()
    for number, state in enumerate((State.ACTIVE, State.SLEEP, State.SLEEP)):
        taken.engine.add(key(number), number + 1, state)
    assert taken.now()[1, ""] == {"ACTIVE": 1, "SLEEP": 2}
    monkeypatch.setattr(taken.engine, "census", lambda: {1: Census(1, (0, 0, 0, 4, 0, 0), 9)})
    assert taken.now()[1, ""] == {"IDLE": 4, "born": 9}


def silent(**places: int) -> Silences:
    """spoke_3=7: seven said something after the fourth number of seconds of SILENCES_S."""
    found = {how: [0] * len(seconds) for how, seconds in SILENCES_S.items()}
    for place, count in places.items():
        how, _, number = place.partition("_")
        found[how][int(number)] = count
    return Silences(1, *(tuple(found[how]) for how in SILENCES_S))


def test_silences_are_told_by_what_has_come_and_by_service_and_rules() -> None:
    taken = Taken({1024: "cheap"})
    taken.engine.silent = {1: silent(spoke_0=2**32 - 1, lost_119=2), 1024: silent(answered_33=5)}
    found = taken.now()
    assert found[1, ""] == {"spoke after 0": 2**32 - 1, "lost after 245760": 2}
    assert found[1, "cheap"] == {"answered after 144": 5}
    taken.engine.silent = {1: silent(spoke_0=1, lost_119=3), 1024: silent(answered_33=5)}
    found = taken.now()
    assert found[1, ""] == {"spoke after 0": 2, "lost after 245760": 1}, "its numbers have wrapped"
    assert (1, "cheap") not in found


def test_connections_whose_service_is_not_known_are_the_appliances() -> None:
    taken = Taken()
    taken.engine.tallied = [wake(0, 2, service=0)]
    assert taken.now()[0, ""]["SLEEP ACTIVE client-data"] == 2


@pytest.mark.parametrize("broken_call", ["census", "silences"])
def test_what_could_not_be_counted_is_in_the_next_one(
    broken_call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken = Taken()
    taken.engine.tallied = [wake(1, 2)]
    taken.engine.counted["probes_sent"] += 5

    def fails() -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(taken.engine, broken_call, fails)
        assert taken.now() == {}
    assert "could not be counted" in caplog.text
    found = taken.now()
    assert found[0, ""]["probes_sent"] == 5
    assert found[1, ""]["SLEEP ACTIVE client-data"] == 2


def test_each_says_how_long_it_is_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    taken = Taken()
    for seconds in (0.0, 60.0, 61.25):
        now[0] += seconds
        taken.now()
        assert [one.span_ms for one in taken] == [round(seconds * 1000)]


def test_one_is_taken_each_minute_and_more_seldom_where_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    took = iter([0.5, 0.7, 3.0, 0.1])

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 4:
            raise asyncio.CancelledError

    taken = Taken()
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(taken.snapshots, "take", lambda: next(took))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(taken.snapshots.run())
    assert pauses == pytest.approx([60, 60, 70, 300, 60])


def test_rules_name_the_classes_that_they_give(box: Box) -> None:  # noqa: F811
    box.set("slow", network="10.1.0.0/16", idle_quiet="1h")
    box.set("cheap", network="10.1.2.0/24", service="web", sleep_keepalive="answer", probe_interval="100s")
    assert set(box.rules.classes.values()) == {"slow", "cheap, slow"}
    box.set("same", network="10.2.0.0/16", idle_quiet="1h")
    assert set(box.rules.classes.values()) == {"same, slow", "cheap, slow"}, "one class, by either"
    for number in range(10):
        box.set(f"same-{number}", network=f"10.{number + 10}.0.0/16", idle_quiet="1h")
    assert "same, same-0, same-1, same-2, same-3, and 7 more" in box.rules.classes.values()


# The store


def snapshot(number: int, at: int = 10**12, service: int = 1, **counts: int) -> Snapshot:
    return Snapshot(at, 60_000, service, "slow" if number % 2 else "", json.dumps({"SLEEP": number, **counts}))


def numbers(database: Database) -> list[int]:
    return [row[0] for row in database.execute("SELECT seq FROM snapshots ORDER BY seq")]


def test_the_last_moments_are_given_back_as_they_were(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make()
    rows = [snapshot(number, 10**12 + number // 3) for number in range(12)]
    for row in rows:
        store.append(row)
    assert store.recent_snapshots(2) == rows[-6:]
    assert store.recent_snapshots(100) == rows
    assert store.recent_snapshots(0) == []
    assert numbers(database) == list(range(1, 13))
    monkeypatch.setattr(appended, "SNAPSHOTS", 5)
    assert store.recent_snapshots(100) == rows[-5:]


def test_what_waits_while_the_database_is_away_is_written_later(make: Callable[..., Store], database: Database) -> None:
    store = make()
    with database.locked():
        store.add(upserts=[sleeper(1, 1)])
        for number in range(5):
            store.append(snapshot(number))
        until(lambda: "lock" in store.status.error)
    until(lambda: store.status.text == "ok")
    assert len(store.recent_snapshots(1)) == 5


def test_rows_past_the_bound_are_dropped_counted_and_said(
    make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "APPENDED_BOUND", 10)
    store = make()
    database.take_away()
    store.add(upserts=[sleeper(1, 1)])
    until(lambda: store.status.error)
    for number in range(13):
        store.append(snapshot(number))
    store.append(attach(1))
    assert (store.status.dropped_snapshots, store.status.dropped_attaches) == (3, 0), "each has its own room"
    database.give_back()
    until(lambda: store.status.text == "ok")
    for number in range(10):
        store.append(snapshot(number))
    assert written(store)
    assert store.status.dropped_snapshots == 3, "there is room again"


@pytest.mark.parametrize("limit", [{"keep_days": 1}, {"keep_bytes": 10 * ROW_BYTES[Snapshot]}], ids=str)
def test_old_ones_are_removed(
    limit: dict[str, int], make: Callable[..., Store], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PRUNE_ROWS", 7)
    store = make(**limit)
    now = time.time_ns() // 1_000_000
    for number in range(1, 31):
        store.append(snapshot(number, now - 2 * DAY_MS if number <= 20 else now))
    assert written(store)
    prune_until(store, lambda: numbers(database) == list(range(21, 31)))


# What is made of them


def test_an_export_has_them_with_their_counts(make: Callable[..., Store], database: Database, tmp_path: Path) -> None:
    store = make()
    store.service_indexes(["line"])
    store.append(snapshot(1, born=2))
    store.append(Snapshot(10**12, 60_000, 0, "", json.dumps({"rss_bytes": 2**40})))
    assert written(store)
    out = tmp_path / "out"
    outcome = Export(out).add(database.url, None, None, lambda _table, _rows: None)
    assert outcome["snapshots"].rows == 2
    (file,) = (out / "snapshots").glob("date=*/hour=*/*.parquet")
    first, second = pq.ParquetFile(file).read().to_pylist(maps_as_pydicts="strict")
    assert (first["service"], first["rules"], first["counts"]) == ("line", "slow", {"SLEEP": 1, "born": 2})
    assert (second["service"], second["rules"], second["counts"]) == (None, None, {"rss_bytes": 2**40})
    assert second["at"].timestamp() == 10**9
    assert Export(out).add(database.url, None, None, lambda _table, _rows: None)["snapshots"].rows == 0
    assert Export(out).check() == []


def run(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(Client, "get", lambda *_, **__: rows)
    done = CliRunner().invoke(shown.command, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_shows_connections_and_what_became_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {
        "ACTIVE": 1, "SLEEP": 23_456, "born": 3, "probes": 4, "SLEEP ACTIVE client-data": 5,
        "IDLE ACTIVE client-data": 6, "IDLE STANDBY server-attach": 7,
        "STANDBY ACTIVE client-data": 100, "SLEEP CLOSED probe-timeout": 8,
        "ACTIVE CLOSED client-close": 9, "rx_bytes": 10,
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"at_ms": 10**12, "span_ms": 1, "service": None, "rules": None, "counts": {"rss_bytes": 77_777}},
        {"at_ms": 10**12, "span_ms": 1, "service": "web", "rules": "slow", "counts": counts},
    ]
    lines = run(rows, monkeypatch).splitlines()
    assert len(lines) == 2
    assert lines[1].split()[2:] == ["web", "slow", "1", "0", "0", "23,456", "3", "18", "17", "4"]
    assert json.loads(run(rows, monkeypatch, "--json")) == rows
    assert run([], monkeypatch).startswith("none yet: ")
    assert json.loads(run([], monkeypatch, "--json")) == []
