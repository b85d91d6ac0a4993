# SPDX-License-Identifier: Apache-2.0
"""A simulated fleet is an export like others, and reports find in it what was put into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from control.core.states import LEGAL, Cause
from control.export.chunk import CHUNK
from control.export.columns import ATTACHES, HISTORY, RUNS, SNAPSHOTS
from control.export.files import digest_of
from spark import stays
from spark.estimating import BETWEEN, FOUND
from spark.reading import Export
from spark.report import Report
from spark.simulate import cycles
from spark.simulate.fleet import HOUR_MS, Fleet, plan
from spark.simulate.writing import TRUTH, simulate
from spark.stage import Stage
from spark.stays import CAUSES, STATES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak  # a minute of both processors

FLEET: Final = Fleet(
    clients=600, days=1, seed=57, networks=6, skew=3, timeout_s=(150, 900), off_per_day=0.1, outages=1, outage_s=1800,
    flapping=1, flap_s=1800, drop_s=300, doubled=0.001, chunk_rows=5000,
)  # fmt: skip
CALM: Final = replace(FLEET, clients=20, networks=2, outages=0, flapping=0, restarts=0, drops=0, doubled=0, steps=0,
                      silent=0)  # fmt: skip


class Made(NamedTuple):
    directory: Path
    truth: dict[str, Any]
    history: list[dict[str, Any]]


def rows_of(directory: Path, name: str) -> list[dict[str, Any]]:
    """In order of seq, with times in ms."""
    files = sorted((directory / name).glob("date=*/hour=*/*.parquet"))
    table = pa.concat_tables([pq.ParquetFile(file).read() for file in files]).sort_by("seq")
    at = table.schema.get_field_index("at")
    found: list[dict[str, Any]] = table.set_column(at, "at", table["at"].cast(pa.int64())).to_pylist()
    return found


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("fleet")
    truth = simulate(spark, directory, FLEET)
    return Made(directory, truth, rows_of(directory, "history"))


def lives(history: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in history:
        found.setdefault(row["id"], []).append(row)
    return found


def test_the_files_are_those_of_an_export(made: Made) -> None:
    for name, schema in (("history", HISTORY), ("attaches", ATTACHES), ("snapshots", SNAPSHOTS)):
        chunks = [CHUNK.validate_json(path.read_bytes(), strict=True)
                  for path in sorted((made.directory / name / "_chunks").glob("*.json"))]  # fmt: skip
        assert len(chunks) == 1 or name == "history"
        last = 0
        for chunk in chunks:
            assert chunk.first == last + 1
            last = chunk.last
            assert chunk.rows == sum(file.rows for file in chunk.files) >= chunk.last - chunk.first + 1
            for file in chunk.files:
                path = made.directory / file.path
                assert (path.name, digest_of(path)) == (f"{chunk.name}.parquet", file.sha256)
                table = pq.ParquetFile(path).read()
                assert [(one.name, one.type) for one in table.schema] == [(one.name, one.type) for one in schema]
                assert table["seq"].to_pylist() == sorted(table["seq"].to_pylist())
                place = pc.strftime(table["at"], "date=%Y-%m-%d/hour=%H").unique().to_pylist()
                assert place == [str(path.parent.relative_to(made.directory / name))]
        assert {row["seq"] for row in rows_of(made.directory, name)} == set(range(1, last + 1)), "there is no gap"
    assert len(list((made.directory / "history" / "_chunks").iterdir())) > 1
    assert sorted(one.name for one in made.directory.iterdir()) == [
        "_export.json", "attaches", "history", "rules", "runs", "snapshots", TRUTH,
    ]  # fmt: skip


def test_every_transition_is_legal_and_follows_from_the_one_before(made: Made) -> None:
    history = [row for row, after in zip(made.history, [*made.history[1:], None], strict=True)
               if after is None or after["seq"] != row["seq"]]  # fmt: skip
    assert (len(history), len(made.history) - len(history)) == (made.truth["rows"], made.truth["doubled"])
    assert made.truth["doubled"] > 0
    steps = {(STATES.index(row["from"]), STATES.index(row["to"]), CAUSES.index(row["cause"])) for row in history}
    assert steps <= LEGAL
    broken = 0
    for life in lives(history).values():
        assert len({(row["address"], row["port"], row["service"]) for row in life}) == 1
        states = ["NONE", *(row["to"] for row in life)]
        broken += sum(row["from"] != state for row, state in zip(life, states, strict=False))
    assert 0 < broken <= made.truth["dropped"]
    (step,) = made.truth["steps"]
    back = [(row["seq"], one["at"]) for one, row in pairwise(history) if row["at"] < one["at"]]
    assert len(back) == 1, "the clock went back once"
    assert back[0][1] < step["begin_ms"]


def test_networks_are_lost_at_their_time_outs_and_never_before(made: Made) -> None:
    networks = {one["network"].removesuffix("0.0/16"): one for one in made.truth["networks"]}
    lost = [row for row in made.history if row["cause"] == "probe-timeout"]
    early = [row for row in lost
             if row["silence_s"] - 40 + 1 < (networks[".".join(row["address"].split(".")[:2]) + "."]["timeout_s"]
                                             or 1e9)]  # fmt: skip
    assert len(lost) > 500
    assert len(early) < 0.03 * len(lost), "but for those that were switched off"
    assert {row["probes"] for row in lost} == {4}


def test_an_outage_ends_all_connections_of_its_network_within_two_minutes(made: Made) -> None:
    (out,) = made.truth["outages"]
    block = made.truth["networks"][out["network"]]["network"].removesuffix("0.0/16")
    behind = sum(FLEET.step_s * 1000 for step in made.truth["steps"] if step["begin_ms"] <= out["begin_ms"])
    begin, end = out["begin_ms"] - behind, out["end_ms"] - behind
    of_it = [life for life in lives(made.history).values() if life[0]["address"].startswith(block)]
    there = [
        life for life in of_it if life[0]["at"] < begin and (life[-1]["at"] >= begin or life[-1]["to"] != "CLOSED")
    ]
    within = [life for life in there if begin <= life[-1]["at"] <= begin + 120_000 and life[-1]["to"] == "CLOSED"]
    assert len(there) > 5
    assert len(within) >= 0.8 * len(there), "others ended unrecorded, before"
    assert not [life for life in of_it if begin + 1 < life[0]["at"] < end and life[0]["from"] == "NONE"]


def test_a_flapping_fleet_connects_again_each_20_to_60_seconds(made: Made) -> None:
    (flap,) = made.truth["flapping"]
    block = made.truth["networks"][flap["network"]]["network"].removesuffix("0.0/16")
    behind = sum(FLEET.step_s * 1000 for step in made.truth["steps"] if step["begin_ms"] <= flap["begin_ms"])
    times: dict[str, list[int]] = {}
    for row in made.history:
        if row["address"].startswith(block) and row["from"] == "NONE" and (
                flap["begin_ms"] <= row["at"] + behind < flap["end_ms"]):  # fmt: skip
            times.setdefault(row["address"], []).append(row["at"])
    flappers = [of for of in times.values() if len(of) >= 30]
    clients = made.truth["networks"][flap["network"]]["clients"]
    assert 0.25 * clients < len(flappers) < 0.75 * clients
    gaps = sorted(after - at for of in flappers for at, after in pairwise(of))
    assert gaps[len(gaps) // 20] >= 20_000
    assert gaps[-len(gaps) // 20] <= 60_000


def test_restarts_end_runs_and_find_those_that_were_awake(made: Made) -> None:
    runs = pq.read_table(made.directory / "runs" / "runs.parquet")
    assert runs.schema.equals(RUNS)
    found = runs.to_pylist()
    assert [one["ended"] is None for one in found] == [False, True, True], "the second run was killed"
    assert sum(one["dropped"] for one in found) == made.truth["dropped"] > 0
    by_seq = {row["seq"]: row for row in made.history}
    for run in found[1:]:
        assert by_seq[run["first"]]["at"] >= run["started"].timestamp() * 1000 > by_seq[run["first"] - 1]["at"]
    restored = [row for row in made.history if row["cause"] == "restore"]
    assert all(row["seq"] >= found[2]["first"] and row["to"] == "CLOSED" for row in restored)


def test_a_report_finds_the_truth(made: Made, spark: SparkSession, tmp_path: Path) -> None:
    export = Export(spark, str(made.directory))
    with Stage(spark, str(tmp_path)) as stage:
        outcome = Report(export, tmp_path, stage, None, None, lambda _: None).run()
    assert dict(outcome.aside.counts) == {"doubled": made.truth["doubled"]}
    assert (outcome.rows, outcome.dropped) == (len(made.history), made.truth["dropped"])
    assert outcome.unknown.keys() <= {stays.LOST, stays.CLOCK, stays.RESTART}
    assert outcome.unknown[stays.LOST] <= made.truth["dropped"]
    told = {one["rules"]: one for one in pq.read_table(tmp_path / "timeouts.parquet").to_pylist()}
    classes = pq.read_table(tmp_path / "loss_by_silence.parquet").to_pylist()
    right, known = 0, 0
    for network in made.truth["networks"]:
        found, timeout = told[network["rule"]], network["timeout_s"]
        if not network["identifiable"]:
            assert found["known"] not in (FOUND, BETWEEN), network
            continue
        near = sum(one["answered"] + one["lost"] for one in classes
                   if one["rules"] == network["rule"] and timeout / 2 <= one["from_s"] <= 2 * timeout)  # fmt: skip
        if near >= 1000 and network["share"] == 1:
            known += 1
            right += found["known"] == FOUND and abs(found["timeout_s"] - timeout) <= 0.1 * timeout
    assert known >= 2
    assert right == known


def test_snapshots_count_what_history_has_and_who_was_there(made: Made) -> None:
    snapshots = rows_of(made.directory, "snapshots")
    assert len(snapshots) == FLEET.days * 24 * (FLEET.networks + 1)
    sums: dict[str, int] = {}
    for row in snapshots:
        for name, count in row["counts"]:
            if row["service"] is not None:
                sums[name] = sums.get(name, 0) + count
    counted: dict[str, int] = {}
    for row in {row["seq"]: row for row in made.history}.values():
        name = f"{row['from']} {row['to']} {row['cause']}"
        counted[name] = counted.get(name, 0) + 1
    kinds = {name: count for name, count in sums.items() if name.count(" ") == 2 and "after" not in name}
    assert sum(kinds.values()) == made.truth["rows"] + made.truth["dropped"]
    assert all(count <= kinds[name] for name, count in counted.items())
    lost = sum(count for name, count in sums.items() if name.startswith("lost after"))
    given_up = sum(count for name, count in kinds.items() if name.endswith("CLOSED probe-timeout"))
    assert 0 <= lost - given_up <= 10, "some were to be given up when the record had ended"
    answered = sum(count for name, count in sums.items() if name.startswith("answered after"))
    assert sums["probes"] == answered + 4 * lost
    last = [dict(row["counts"]) for row in snapshots[-1 - FLEET.networks :]]
    there = sum(row.get(state, 0) for row in last for state in ("ACTIVE", "STANDBY", "IDLE", "SLEEP", "born"))
    until = FLEET.until_ms - 1000 * FLEET.step_s
    ms = 0
    for life in lives(made.history).values():
        ended = life[-1]["at"] if life[-1]["to"] == "CLOSED" else until
        ms += max(ended - max(life[0]["at"], until - HOUR_MS), 0)
    assert there == pytest.approx(ms / HOUR_MS, rel=0.1), "on average, and rounded"


def test_the_same_seed_gives_the_same_cycles_however_they_are_divided(spark: SparkSession) -> None:
    def of(fleet: Fleet, parts: int) -> list[Any]:
        spark.conf.set("spark.sql.shuffle.partitions", parts)
        try:
            return sorted(cycles.made(spark, fleet, plan(fleet)).collect(), key=lambda row: (row["client"], row["s"]))
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", 1)

    first = of(CALM, 1)
    assert first == of(CALM, 3)
    assert first != of(replace(CALM, seed=8), 1)
    assert plan(CALM) != plan(replace(CALM, seed=8))
    causes = {row["end"]["cause"] for row in first if row["end"]}
    assert causes <= {Cause.CLIENT_CLOSE, Cause.PROBE_TIMEOUT, Cause.WRITE_TIMEOUT, Cause.CLIENT_CONNECT}
    assert {row["down"] for row in first} == {Cause.QUIET}


def test_a_directory_that_has_something_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    with pytest.raises(FileExistsError, match="not empty"):
        simulate(spark, tmp_path, CALM)
    assert [one.name for one in tmp_path.iterdir()] == ["kept"]


def test_a_fleet_that_cannot_be_is_refused() -> None:
    for wrong in ({"clients": 3}, {"begin_ms": 1}, {"daily": 0.9}, {"days": 0}, {"quiet_s": (10, 100, 600)}):
        with pytest.raises(ValueError, match=r"a fleet|daily"):
            replace(FLEET, **wrong)
