# SPDX-License-Identifier: Apache-2.0
"""A report: the record is read, its stays are made once, and each job makes tables of them, or of the snapshots."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark import recommending, stays
from spark.estimating import Gaps
from spark.jobs import attaches, capacity, churn, classes, dwell, limits, networks, quiet, timeouts
from spark.page import page
from spark.reading import Aside, Record
from spark.recommending import Cell, Network
from spark.stage import Stage

NAME: Final = "report.json"
"""What the report is about, and what was set aside."""

TABLES: Final = (
    "dwell_by_service", "dwell_by_network", "dwell_by_tag", "dwell_by_rules", "transitions", "transitions_by_tag",
    "transitions_by_rules", "hours", "lost_by_network", *quiet.SCHEMAS, "timeouts", "loss_by_silence", "probes_by_day",
    "expected", "attaches", "attaches_by_network", "attaches_by_hour", "attach_refusals", "flapping_clients",
    "flapping_networks", "failures", "silent_deaths", "sources", "limits", "limits_tried", "capacity", "forecast",
    "forecast_quality", "full",
)  # fmt: skip
FORMS: Final = ("parquet", "csv")

CHURN: Final = {"clients": churn.CLIENTS, "networks": churn.NETWORKS}
"""Of what flaps."""

RECOMMENDATIONS: Final = "recommendations.json"
EXPERIMENTS: Final = "experiments.json"
"""Files of rules (spark/recommending.py)."""

LOSS: Final = 0.01
"""Of the connections that a probe is sent to, so many may be lost beside those that are lost anyway."""

PLACES: Final = 200
"""Networks of a service, at most, that an experiment may choose from."""

LAST_MS: Final = 2**53
FORMULA: Final = re.compile(r"[=+\-@\t\r]")
"""How a cell begins that a spreadsheet would compute."""


@dataclass
class Outcome:
    """first_ms, until_ms: of the rows that the report is about; None: there are none. rows: how many. unknown: stays
    that lasted for nobody knows how long, by `end` (stays.py). dropped: transitions that daemons had no room for."""

    rows: int
    first_ms: int | None
    until_ms: int | None
    aside: Aside
    unknown: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    tables: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    """Files of rules (spark/recommending.py)."""

    @property
    def files(self) -> list[str]:
        return [*self.rules, *(f"{name}.csv" for name in self.tables)]


class Report:
    """since_ms, until_ms: of the rows that are of interest; out: a directory, which need not be there. told: what is
    being done, a sentence each time."""

    def __init__(self, export: Record, out: Path, stage: Stage, since_ms: int | None, until_ms: int | None,
                 told: Callable[[str], None]) -> None:  # fmt: skip
        self._export = export
        self._out = out
        self._stage = stage
        self._since_ms = since_ms if since_ms is not None else 0
        self._until_ms = until_ms if until_ms is not None else LAST_MS
        self._told = told
        self._now_ms = round(datetime.now(UTC).timestamp() * 1000)
        self._places: list[Network] = []

    def run(self) -> Outcome:
        """Raises OSError."""
        self._out.mkdir(parents=True, exist_ok=True)
        for name in (
            NAME,
            page.NAME,
            RECOMMENDATIONS,
            EXPERIMENTS,
            *(f"{table}.{form}" for table in TABLES for form in FORMS),
        ):
            (self._out / name).unlink(missing_ok=True)
        self._told("reading the record")
        history = self._export.table("history")
        at = F.unix_millis("at")
        is_time = stays.is_time(at, self._now_ms + stays.DAY_MS)
        history = history.where(~is_time | ((at >= self._since_ms) & (at < self._until_ms)))
        known = F.when(is_time, at)
        rows, first_ms, last_ms = history.select(F.count("*"), F.min(known), F.max(known)).collect()[0]
        self._stage.check(rows)
        if self._export.once:
            history = self._stage.keep(history, "history")
        outcome = Outcome(rows, first_ms, None, self._export.aside)
        asked = self._asked(outcome)
        if rows and last_ms is not None:
            outcome.until_ms = last_ms + 1
            runs = self._runs(history.select("seq", known.alias("at")), outcome)
            self._jobs(history, asked, runs, outcome, first_ms, last_ms + 1)
        self._attaches(asked, history, outcome)
        snapshots = self._stage.keep(self._within("snapshots"), "snapshots")
        once = snapshots.dropDuplicates(["seq"])
        self._classes(once, outcome)
        self._timeouts(once, outcome)
        self._capacity(snapshots, outcome)
        (self._out / NAME).write_text(json.dumps(_told(outcome), indent=2) + "\n")
        self._told("drawing")
        page.write(self._out)
        return outcome

    def _within(self, name: str) -> DataFrame:
        """A table's rows that are of interest."""
        at = F.unix_millis("at")
        return self._export.table(name).where((at >= self._since_ms) & (at < self._until_ms))

    def _jobs(self, history: DataFrame, asked: DataFrame, runs: Sequence[stays.Run], outcome: Outcome, first_ms: int,
              until_ms: int) -> None:  # fmt: skip
        """asked: by servers, see `_asked`."""
        self._told(f"{outcome.rows:,} transitions: finding how long each connection stayed in each state")
        everything = self._stage.keep(stays.of(history, runs, until_ms), "stays")
        for why, rows in stays.aside(everything).collect():
            outcome.aside.add(why, f"{rows:,} rows of the history: {why}", rows)
        good = stays.good(everything)
        outcome.unknown = {row["end"]: row["stays"] for row in stays.unknown(good).collect()}
        self._told("counting how long they stay")
        by = ["service", "network"]
        counted = self._stage.keep(dwell.durations(dwell.with_network(good), by), "durations")
        places = self._stage.keep(networks.by_place(good), "places")
        self._write(outcome, "lost_by_network", networks.lost_by_network(places))
        self._places = [Network(*row) for row in networks.candidates(places, PLACES).collect()]
        self._write(outcome, "dwell_by_service", dwell.dwell(counted, by[:1]).orderBy(*by[:1], "state"))
        self._write(outcome, "dwell_by_network", dwell.dwell(counted, by).orderBy(*by, "state"))
        self._told("counting what ends their stays")
        self._write(outcome, "transitions", _most_first(dwell.transitions(good, ["service"]), "service"))
        self._tags(good, outcome)
        self._told("counting them hour by hour")
        there = good.unionByName(stays.unfinished(everything, first_ms), allowMissingColumns=True)
        hours = dwell.hourly(there, ["service"], first_ms, until_ms)
        self._write(outcome, "hours", hours.orderBy("service", "state", "hour"))
        events, flapping = self._churn(history, everything, outcome, first_ms, until_ms)
        self._limits(good, events, asked, flapping, outcome)
        self._told("weighing memory against wake-ups")
        for name, table in quiet.tables(good, first_ms, until_ms).items():
            self._write(outcome, name, table)

    def _tags(self, good: DataFrame, outcome: Outcome) -> None:
        tags = self._export.table("tags").select("id", "tag").distinct()
        if tags.isEmpty():
            return
        self._told("counting both by tag")
        tagged = self._stage.keep(good.join(tags, "id"), "tagged")
        lengths = dwell.dwell(dwell.durations(tagged, ["tag"]), ["tag"])
        self._write(outcome, "dwell_by_tag", lengths.orderBy("tag", "state"))
        self._write(outcome, "transitions_by_tag", _most_first(dwell.transitions(tagged, ["tag"]), "tag"))

    def _classes(self, snapshots: DataFrame, outcome: Outcome) -> None:
        self._told("counting both by rules")
        counts = self._stage.keep(classes.counted(snapshots), "classes")
        if not counts.isEmpty():
            self._write(outcome, "dwell_by_rules", classes.dwell(counts).orderBy(*timeouts.CELL, "state"))
            steps = _most_first(classes.transitions(counts), *timeouts.CELL)
            self._write(outcome, "transitions_by_rules", steps)

    def _churn(self, history: DataFrame, everything: DataFrame, outcome: Outcome, first_ms: int,
               until_ms: int) -> tuple[DataFrame, DataFrame]:  # fmt: skip
        """When connections began and ended, and which clients flap."""
        self._told("looking for what flaps, and what failed together")
        times = first_ms, until_ms
        if outcome.aside.counts["doubled"]:
            history = history.dropDuplicates(["id", "seq"])
        found = self._stage.keep(churn.events(history, everything, *times), "events")
        keep = self._stage.keep
        hours = {name: keep(churn.hours(found, by, *times), f"hours_of_{name}") for name, by in CHURN.items()}
        totals = {name: keep(churn.totals(hours[name], by, *times), f"totals_of_{name}") for name, by in CHURN.items()}
        usually = keep(churn.usual(totals["clients"], *times), "usual")
        flapping = {
            name: keep(churn.flapping(found, totals[name], usually, by, *times), f"flapping_{name}")
            for name, by in CHURN.items()
        }
        for name, by in CHURN.items():
            self._write(outcome, f"flapping_{name}", flapping[name].orderBy(F.desc("score"), *by))
        by = CHURN["networks"]
        self._write(outcome, "failures", churn.failures(found, hours["networks"], by, *times).orderBy("began", *by))
        self._write(outcome, "silent_deaths", churn.silent_deaths(found, by).orderBy(F.desc("ended"), *by))
        return found, flapping["clients"]

    def _limits(self, good: DataFrame, events: DataFrame, asked: DataFrame, flapping: DataFrame,
                outcome: Outcome) -> None:  # fmt: skip
        self._told("trying limits by source")
        used = {"address": self._stage.keep(limits.uses(good, events, asked), "uses_of_addresses")}
        used["network"] = self._stage.keep(limits.of_networks(used["address"]), "uses_of_networks")
        named, judged, tried = list[DataFrame](), list[dict[str, Any]](), list[dict[str, Any]]()
        for prefix in limits.PREFIXES:
            sources = self._stage.keep(limits.of_sources(used[prefix], flapping, prefix), f"sources_of_{prefix}")
            peaks = self._stage.keep(limits.most(sources), f"peaks_of_{prefix}")
            named.append(limits.named(peaks, prefix))
            levels, seconds = (
                [row.asDict() for row in frame.collect()] for frame in (limits.levels(peaks), limits.seconds(sources))
            )
            for table, rows in zip((judged, tried), limits.judged(prefix, levels, seconds), strict=True):
                table += rows
        self._write(outcome, "sources", reduce(DataFrame.unionByName, named))
        self._write_rows(outcome, "limits", judged, limits.LIMITS)
        self._write_rows(outcome, "limits_tried", tried, limits.TRIED)

    def _asked(self, outcome: Outcome) -> DataFrame:
        """By servers, for clients, without what is set aside."""
        checked = self._stage.keep(attaches.checked(self._within("attaches"), self._now_ms), "attaches")
        for why, rows in attaches.aside(checked).collect():
            outcome.aside.add(f"attach, {why}", f"{rows:,} attaches: {why}", rows)
        return checked

    def _attaches(self, asked: DataFrame, history: DataFrame, outcome: Outcome) -> None:
        self._told("counting how servers were served")
        rows = self._stage.keep(attaches.with_hour(attaches.with_gone(asked, history)), "attaches_with_gone")
        if not rows.isEmpty():
            for name, by in (("attaches", ["service", "way", "found"]), ("attaches_by_network", ["service", "network"]),
                             ("attaches_by_hour", ["service", "hour"])):  # fmt: skip
                self._write(outcome, name, attaches.served(rows, by).orderBy(*by))
            refused = attaches.refusals(rows).orderBy(F.desc("count"), "service", "way", "step", "error")
            self._write(outcome, "attach_refusals", refused)

    def _timeouts(self, snapshots: DataFrame, outcome: Outcome) -> None:
        self._told("estimating how long the networks bear silence")
        days = timeouts.by_day(snapshots)
        watched = days.groupBy(*timeouts.CELL).agg(F.sum("days"), F.sum("probes")).collect()
        seen = {(service, rules): (days, probes) for service, rules, days, probes in watched}
        rows: dict[tuple[str, str | None], list[tuple[int, int, int]]] = {}
        for service, rules, *row in timeouts.silences(snapshots).collect():
            rows.setdefault((service, rules), []).append((row[0], row[1], row[2]))
        cells = [Cell(*of, Gaps.of(gaps), *seen[of]) for of, gaps in rows.items()]
        if len(cells) > recommending.CELLS_MAX:
            cells.sort(key=lambda cell: cell.gaps.probes.sum())
            left = len(cells) - recommending.CELLS_MAX
            sentence = f"the time-outs of {left:,} services and rules, those with the fewest probes, are not estimated"
            outcome.aside.add("too many", sentence, left)
        found = [recommending.judged(cell, LOSS) for cell in cells[-recommending.CELLS_MAX :]]
        found.sort(key=lambda one: (one.cell.service, one.cell.rules or ""))
        if not found:
            return
        self._write(outcome, "probes_by_day", days.orderBy(*timeouts.CELL, "day"))
        self._write_rows(outcome, "timeouts", [one.row() for one in found], recommending.TIMEOUTS)
        self._write_rows(
            outcome, "loss_by_silence", [row for one in found for row in one.losses()], recommending.LOSSES
        )
        changes = [row.asDict() for row in self._export.table("rules").collect()]
        if expected := recommending.outcomes(changes, (row.asDict() for row in days.collect())):
            self._write_rows(outcome, "expected", expected, recommending.EXPECTED)
        version, rules = recommending.rules_of(changes)
        about = f"{_time(outcome.first_ms) or '-'} to {_time(outcome.until_ms) or '-'}"
        for name, content in (
            (RECOMMENDATIONS, recommending.recommendations(found, rules, version, about)),
            (EXPERIMENTS, recommending.experiments(found, rules, self._places, version, about)),
        ):
            (self._out / name).write_text(json.dumps(content, indent=2) + "\n")
            outcome.rules.append(name)

    def _capacity(self, snapshots: DataFrame, outcome: Outcome) -> None:
        self._told("forecasting what there will be")
        for why, rows in capacity.aside(snapshots, self._now_ms).collect():
            outcome.aside.add(f"snapshot, {why}", f"{rows:,} snapshots: {why}", rows)
        hours = self._stage.keep(capacity.hourly(snapshots, self._now_ms), "hours")
        if hours.isEmpty():
            return
        self._write(outcome, "capacity", hours.orderBy("service", "hour"))
        told = capacity.tell(hours)
        for name, table in (("forecast", told.forecast), ("forecast_quality", told.quality), ("full", told.full)):
            if table.num_rows:
                self._write_table(outcome, name, table)

    def _runs(self, rows: DataFrame, outcome: Outcome) -> list[stays.Run]:
        """Of the daemon; one that was killed was heard of last when it wrote its last row. rows: seq, at."""
        found = self._export.table("runs").orderBy("run").selectExpr(
            "first", "unix_millis(started) AS started", "unix_millis(ended) AS ended", "dropped"
        ).collect()  # fmt: skip
        if not found:
            return []
        outcome.dropped = sum(row["dropped"] for row in found)
        number = stays.run_of([row["first"] for row in found], F.col("seq"))
        last = {row[0]: row[1] for row in rows.groupBy(number).agg(F.max("at")).collect()}
        ends = ((row["ended"], last.get(at), row["started"]) for at, row in enumerate(found, 1))
        return [stays.Run(row["first"], next(ms for ms in times if ms is not None))
                for row, times in zip(found, ends, strict=True)]  # fmt: skip

    def _write(self, outcome: Outcome, name: str, frame: DataFrame) -> None:
        """As Parquet and as CSV. Tables grow with services, networks and hours, and not with connections."""
        self._write_table(outcome, name, frame.toArrow())

    def _write_rows(self, outcome: Outcome, name: str, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
        self._write_table(outcome, name, pa.Table.from_pylist(rows, schema=schema))

    def _write_table(self, outcome: Outcome, name: str, table: pa.Table) -> None:
        pq.write_table(table, self._out / f"{name}.parquet")
        with (self._out / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table.column_names)
            for batch in table.to_batches(10_000):
                writer.writerows([plain(value) for value in row.values()] for row in batch.to_pylist())
        outcome.tables.append(name)


def plain(value: object) -> object:
    """For CSV. A text that a spreadsheet would take for a formula begins with an apostrophe, which keeps it a text."""
    if isinstance(value, datetime):
        return value.isoformat()
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def _most_first(steps: DataFrame, *by: str) -> DataFrame:
    """Transitions: of each state the most frequent ones first."""
    return steps.orderBy(*by, "state", F.desc("count"), "next", "cause")


def _time(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _told(outcome: Outcome) -> dict[str, Any]:
    return {
        "from": _time(outcome.first_ms),
        "to": _time(outcome.until_ms),
        "rows": outcome.rows,
        "unknown": outcome.unknown,
        "dropped": outcome.dropped,
        "set_aside": dict(outcome.aside.counts),
        "reasons": outcome.aside.told,
        "tables": outcome.tables,
    }
