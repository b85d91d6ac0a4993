# SPDX-License-Identifier: Apache-2.0
"""What a report finds of a simulated fleet whose truth is known (spark/simulate).

Method. A fleet of `DAYS` days, with as many clients as make about `rows` transitions; a report of its export; its
tables beside the truth.

    rows, simulated_per_s
    timeouts           networks that have a time-out between the shortest and the longest probe, and NEAR probes, of
                       clients behind it, after silences from half of it to twice as long
    timeouts_right     the share of them that are found within 10 %
    intervals_hold     the share of them whose stated interval of 95 % has the time-out in it
    claimed_falsely    networks for which a time-out is claimed that no probe can have met
    quiet_over_best    by how much the intervals that were found cost more than the best fixed ones of the days held out
    fleets             networks that flapped for a time
    fleets_missed      flapping networks that are not named, nor most of their clients that flapped
    false_alarms       the share of the other clients that are named, of all
    outages            times at which a network's connections were all reset, where 80 and more of a /16 ended
    outages_missed     of these, those that are not told
    failures_false     networks that are said to have failed, though neither they had an outage nor the daemon an end,
                       and no fleet in them flapped
    forecast_better    the share of forecasts that were better, on held-out weeks, than the week before
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow.parquet as pq

from spark import session
from spark.estimating import BETWEEN, FOUND
from spark.jobs.churn import LEAST_ENDS
from spark.reading import Export
from spark.report import Report as Made
from spark.simulate.fleet import Fleet
from spark.simulate.writing import simulate
from spark.stage import Stage
from tests.bench.direct import say
from tests.bench.figures import Report, Target

DAYS: Final = 56
OUTAGES, FLAPPING = 20, 8
A_DAY: Final = 50
"""Transitions of a client."""
NEAR: Final = 1000
ENDED: Final = 4 * LEAST_ENDS
"""Within the four minutes in which an outage's resets are recorded: a minute of them has LEAST_ENDS."""
MARGIN_MS: Final = 120_000
"""Around what happened: the appliance's clock was set back by a minute."""
MEMORY: Final = "8g"

Rows = list[dict[str, Any]]


def _timeouts(truth: dict[str, Any], told: Rows, classes: Rows) -> tuple[int, int, int, int]:
    """How many there are, are found, are in their interval, and are claimed though no probe can have met them."""
    by_rule = {row["rules"]: row for row in told}
    known = right = held = falsely = 0
    for network in truth["networks"]:
        found, timeout = by_rule.get(network["rule"]), network["timeout_s"]
        if not network["identifiable"]:
            falsely += found is not None and found["known"] in (FOUND, BETWEEN)
            continue
        near = sum(row["answered"] + row["lost"] for row in classes
                   if row["rules"] == network["rule"] and timeout / 2 <= row["from_s"] <= 2 * timeout)  # fmt: skip
        if near * network["share"] < NEAR:
            continue
        known += 1
        if found is None or found["known"] != FOUND:
            say(f"{network['rule']}: {timeout:,.0f} s is not found: {found}")
            continue
        right += abs(found["timeout_s"] - timeout) <= 0.1 * timeout
        held += found["timeout_low_s"] <= timeout <= found["timeout_high_s"]
    return known, right, held, falsely


def _flapping(truth: dict[str, Any], clients: Rows, networks: Rows) -> tuple[int, int]:
    """Fleets that are not named; clients of others that are."""
    missed, ours = 0, set[str]()
    for fleet in truth["flapping"]:
        network = truth["networks"][fleet["network"]]
        address, _, bits = network["network"].partition("/")
        first, second = (int(octet) for octet in address.split(".")[:2])
        prefixes = [f"{first}.{second + block}." for block in range(1 << (16 - int(bits)))]
        ours.update(prefixes)
        named = sum(any(row["address"].startswith(one) for one in prefixes) for row in clients)
        is_named = any(row["network"].startswith(one) for row in networks for one in prefixes)
        missed += not is_named and named < network["clients"] / 4
    return missed, sum(not row["address"].startswith(tuple(ours)) for row in clients)


def _failures(truth: dict[str, Any], told: Rows, history: str) -> tuple[int, int, int]:
    """Outages of networks by which ENDED connections of a /16 ended and more; how many of these are not told; and
    failures that are told though there was nothing. history: its files."""
    first = {network["number"]: network["block"] for network in truth["networks"]}
    last = {network["number"]: network["block"] + (1 << 16 - network["bits"]) - 1 for network in truth["networks"]}

    def is_of(row: dict[str, Any], event: dict[str, Any], until_ms: int) -> bool:
        at, network = row["began"].timestamp() * 1000, event["network"]
        there: bool = network < 0 or first[network] <= _block(row["network"]) <= last[network]
        return there and bool(event["begin_ms"] - MARGIN_MS <= at <= until_ms + MARGIN_MS)

    def ended(event: dict[str, Any]) -> int:
        """Of the /16 with most of them."""
        found = duckdb.execute(
            """SELECT address, count(*) FROM read_parquet(?) WHERE "to" = 'CLOSED' AND epoch_ms("at") BETWEEN ? AND ?
               GROUP BY address""",
            [history, event["begin_ms"] - MARGIN_MS // 2, event["begin_ms"] + MARGIN_MS],
        ).fetchall()
        blocks = Counter[int]()
        for address, count in found:
            blocks[_block(address)] += count
        return max((count for block, count in blocks.items()
                    if first[event["network"]] <= block <= last[event["network"]]), default=0)  # fmt: skip

    outages = [one for one in truth["outages"] if ended(one) >= ENDED]
    missed = sum(not any(is_of(row, one, one["begin_ms"]) for row in told) for one in outages)
    causes = [(one, one["end_ms"]) for name in ("outages", "flapping", "restarts") for one in truth[name]]
    false = [row for row in told if not any(is_of(row, *cause) for cause in causes)]
    for row in false:
        say(f"nothing failed, but it is told: {row}")
    return len(outages), missed, len(false)


def _block(address: str) -> int:
    """Its /16, as the simulator numbers them."""
    octets = address.split(".")
    return (int(octets[0]) - 10) * 256 + int(octets[1])


def run(rows: int = 20_000_000, seed: int = 1) -> Report:
    """Of about so many transitions."""
    fleet = Fleet(
        clients=max(rows // (A_DAY * DAYS), Fleet.networks), days=DAYS, seed=seed, outages=OUTAGES, flapping=FLAPPING
    )
    report = Report("truth", f"{fleet.clients:,} clients, {DAYS} days, seed {seed}")
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as name:
        root = Path(name)
        spark = session.start(memory=MEMORY, directory=name)
        try:
            began = time.monotonic()
            truth = simulate(spark, root / "data", fleet, say)
            speed = truth["rows"] / (time.monotonic() - began)
            say(f"{truth['rows']:,} transitions are made, {speed:,.0f} a second")
            with Stage(spark, name) as stage:
                Made(Export(spark, str(root / "data")), root / "out", stage, None, None, say).run()
        finally:
            spark.stop()

        def table(name: str) -> Rows:
            path = root / "out" / f"{name}.parquet"
            return pq.read_table(path).to_pylist() if path.exists() else []

        known, right, held, falsely = _timeouts(truth, table("timeouts"), table("loss_by_silence"))
        missed, false = _flapping(truth, table("flapping_clients"), table("flapping_networks"))
        outages, outages_missed, failures_false = _failures(
            truth, table("failures"), str(root / "data" / "history" / "*" / "*" / "*.parquet")
        )
        over = [row["cost_held_out_optimum"] / row["cost_held_out_best"] - 1 for row in table("quiet_costs")]
        better = [row["mae"] < row["mae_naive"] for row in table("forecast_quality") if row["mae"] is not None]
    report.add("rows", truth["rows"], "")
    report.add("simulated_per_s", speed, "/s")
    report.add("timeouts", known, "")
    if known:
        report.add("timeouts_right", right / known, "", Target(at_least=0.95))
        report.add("intervals_hold", held / known, "", Target(at_least=0.9))
    report.add_zero("claimed_falsely", falsely, "networks")
    if over:
        report.add("quiet_over_best", max(over), "", Target(at_most=0.05))
    report.add("fleets", len(truth["flapping"]), "")
    report.add_zero("fleets_missed", missed, "fleets")
    report.add("false_alarms", false / fleet.clients, "", Target(at_most=0.01))
    report.add("outages", outages, "")
    report.add_zero("outages_missed", outages_missed, "outages")
    report.add_zero("failures_false", failures_false, "failures")
    if better:
        report.add("forecast_better", sum(better) / len(better), "", Target(at_least=0.9))
    return report
