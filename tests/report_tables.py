# SPDX-License-Identifier: Apache-2.0
"""A report's directory as `roost report` writes it, by hand: what its page is made of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

BEGIN: Final = datetime(2026, 11, 2, tzinfo=UTC)
MARKUP: Final = "<script>alert('$x$')</script>&_"
"""A service, as somebody may call it."""

SERVICE, STATE = ("service", pa.string()), ("state", pa.string())
_LENGTHS: Final = (
    ("stays", pa.int64()), ("censored", pa.int64()), ("total_s", pa.float64()), ("mean_s", pa.float64()),
    ("p50_s", pa.float64()), ("p90_s", pa.float64()), ("p99_s", pa.float64()),
)  # fmt: skip
NETWORK, TIME = ("network", pa.string()), pa.timestamp("us", tz="UTC")
HELD_OUT: Final = ("now", "optimum", "ski_rental", "best", "offline")
_FLAPPING: Final = (
    *((name, pa.int64()) for name in ("begun", "ended", "most_per_hour")),
    *((name, pa.float64()) for name in ("held", "times_usual", "median_life_s")), ("likely_cause", pa.string()),
    ("score", pa.float64()),
)  # fmt: skip
_SERVED: Final = (
    *((name, pa.int64()) for name in ("requests", "linked", "refused")),
    ("linked_share", pa.float64()),
    *((name, pa.int64()) for name in ("no_first_byte", "gone")),
    *((f"{what}_p{share}_ms", pa.int64()) for what in ("answer", "first") for share in (50, 90, 99)),
)
_RULES: Final = ("rules", pa.string())
_STEP: Final = (("next", pa.string()), ("cause", pa.string()), ("count", pa.int64()))
SCHEMAS: Final = {
    "dwell_by_service": pa.schema([SERVICE, STATE, *_LENGTHS]),
    "dwell_by_network": pa.schema([SERVICE, NETWORK, STATE, *_LENGTHS]),
    "dwell_by_tag": pa.schema([("tag", pa.string()), STATE, *_LENGTHS]),
    "dwell_by_rules": pa.schema([SERVICE, _RULES, STATE, ("total_s", pa.float64()), ("ended", pa.int64()),
                                 ("mean_s", pa.float64())]),
    "transitions_by_tag": pa.schema([("tag", pa.string()), STATE, *_STEP, ("mean_s", pa.float64()),
                                     ("share", pa.float64())]),
    "transitions_by_rules": pa.schema([SERVICE, _RULES, STATE, *_STEP, ("share", pa.float64())]),
    "lost_by_network": pa.schema([SERVICE, NETWORK, ("lost", pa.int64()), *((name, pa.float64()) for name in (
        "hours", "lost_per_1000_h", "times_others"))]),
    "transitions": pa.schema([SERVICE, STATE, ("next", pa.string()), ("cause", pa.string()), ("count", pa.int64()),
                              ("mean_s", pa.float64()), ("share", pa.float64())]),
    "hours": pa.schema([SERVICE, ("hour", TIME), STATE, ("connections", pa.float64()),
                        ("began", pa.int64())]),
    "quiet_intervals": pa.schema([
        SERVICE, ("interval", pa.string()), ("steps", pa.int64()), ("in_force_s", pa.float64()),
        ("optimum_s", pa.float64()), ("recommended_s", pa.float64()), ("bound", pa.string()),
        ("ski_rental_s", pa.float64()),
        *((f"{what}_per_day_{which}", pa.float64()) for which in ("now", "optimum") for what in ("byte_s", "wakes")),
    ]),
    "quiet_costs": pa.schema([
        SERVICE, ("persistent", pa.bool_()), *((name, pa.int64()) for name in ("gaps", "woke", "closed", "censored")),
        ("truncated_s", pa.float64()), ("seen_s", pa.float64()), ("recommended", pa.bool_()), ("reason", pa.string()),
        *((f"cost_{which}", pa.float64()) for which in ("now", "optimum", "ski_rental", "offline")),
        ("held_out_gaps", pa.int64()), *((f"cost_held_out_{which}", pa.float64()) for which in HELD_OUT),
    ]),
    "gap_distribution": pa.schema([
        SERVICE, *((name, pa.float64()) for name in ("from_s", "to_s", "at_risk")),
        *((name, pa.int64()) for name in ("woke", "closed", "censored")), ("silent", pa.float64()),
        ("woken", pa.float64()),
    ]),
    "flapping_clients": pa.schema([SERVICE, ("address", pa.string()), *_FLAPPING]),
    "flapping_networks": pa.schema([SERVICE, NETWORK, *_FLAPPING]),
    "failures": pa.schema([
        SERVICE, NETWORK, ("began", TIME), *((name, pa.int64()) for name in ("minutes", "ended", "addresses")),
        ("usual_per_minute", pa.float64()), ("connected_share", pa.float64()), ("likely_cause", pa.string()),
        ("cause_share", pa.float64()),
    ]),
    "silent_deaths": pa.schema([
        SERVICE, NETWORK, ("ended", pa.int64()), ("of_ends", pa.float64()),
        *((name, pa.int64()) for name in ("by_probes", "by_timeout", "known", "p50_s", "p90_s", "p99_s", "most_s")),
    ]),
    "sources": pa.schema([
        SERVICE, *((name, pa.string()) for name in ("prefix", "source", "what")), ("most", pa.int64()),
        ("asked", pa.int64()), ("flapping", pa.bool_()),
    ]),
    "limits": pa.schema([
        SERVICE, ("prefix", pa.string()), ("what", pa.string()),
        *((name, pa.int64()) for name in ("sources", "p50", "p99", "most")), ("most_of", pa.string()),
        *((name, pa.int64()) for name in ("asked", "limit", "flapping", "flapping_over", "asked_by_flapping",
                                          "refused_of_flapping")),
    ]),
    "limits_tried": pa.schema([
        SERVICE, ("prefix", pa.string()), ("what", pa.string()),
        *((name, pa.int64()) for name in ("limit", "over", "flapping_over", "refused", "refused_of_flapping")),
    ]),
    "attaches": pa.schema([SERVICE, ("way", pa.string()), ("found", pa.string()), *_SERVED]),
    "attaches_by_network": pa.schema([SERVICE, NETWORK, *_SERVED]),
    "attaches_by_hour": pa.schema([SERVICE, ("hour", TIME), *_SERVED]),
    "attach_refusals": pa.schema([SERVICE, *((name, pa.string()) for name in ("way", "step", "error")),
                                  ("count", pa.int64()), ("share", pa.float64())]),
}  # fmt: skip

TOLD: Final[dict[str, Any]] = {
    "from": "2026-11-02T00:00:00.000+00:00", "to": "2026-11-09T00:00:00.001+00:00", "rows": 1_234_567,
    "unknown": {"lost": 12}, "dropped": 40, "set_aside": {"missing": 1, "impossible": 3},
    "reasons": {"missing": ["history/date=2026-11-03/hour=04/1-9.parquet is not there <b>"],
                "impossible": ["3 rows of the history: impossible"]}, "tables": list(SCHEMAS),
}  # fmt: skip

Rows = Sequence[Mapping[str, Any]]


def write(directory: Path, tables: Mapping[str, Rows], told: Mapping[str, Any] = TOLD) -> Path:
    """These tables, with times as Spark writes them, and report.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(told))
    for name, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(list(rows), SCHEMAS.get(name)), directory / f"{name}.parquet",
                       use_deprecated_int96_timestamps=True)  # fmt: skip
    return directory


def lengths(service: str | None, state: str, stays: int, censored: int, quantiles: Sequence[float | None],
            **more: Any) -> dict[str, Any]:  # fmt: skip
    """A row of dwell_by_service."""
    p50, p90, p99 = quantiles
    mean = None if stays == censored else (p50 or 1) * 1.5
    return {"service": service, "state": state, "stays": stays, "censored": censored, "total_s": stays * (mean or 1.0),
            "mean_s": mean, "p50_s": p50, "p90_s": p90, "p99_s": p99} | more  # fmt: skip


def step(service: str | None, state: str, after: str, cause: str, count: int, share: float) -> dict[str, Any]:
    """A row of transitions."""
    return {"service": service, "state": state, "next": after, "cause": cause, "count": count, "share": share,
            "mean_s": 45.0}  # fmt: skip


def a_week(services: Sequence[str | None], days: int = 7) -> dict[str, list[dict[str, Any]]]:
    """Tables of these services, the first of which has most connections."""
    dwell: list[dict[str, Any]] = []
    networks, steps, hours = list(dwell), list(dwell), list(dwell)
    for at, service in enumerate(services):
        many = round(120_000 / (at + 1) ** 1.5)
        of_states = (
            lengths(service, "ACTIVE", many * 10, many // 100, [4.0, 27.0, 95.0]),
            lengths(service, "STANDBY", many * 10, many // 90, [30.0, 30.0, 32.0]),
            lengths(service, "IDLE", many * 8, many // 10, [40.0, 600.0, 700.0]),
            lengths(service, "SLEEP", many * 5, many * 2, [5200.0, 39_000.0, None]),
        )
        dwell += of_states
        networks += [row | {"network": f"100.{64 + number}.0.0/16", "stays": row["stays"] // (number + 2)}
                     for number in range(6) for row in of_states]  # fmt: skip
        steps += [
            step(service, "ACTIVE", "STANDBY", "quiet", many * 9, 0.9),
            step(service, "ACTIVE", "CLOSED", "client-close", many, 0.1),
            step(service, "STANDBY", "IDLE", "quiet", many * 8, 0.8),
            step(service, "STANDBY", "ACTIVE", "client-data", many * 2, 0.2),
            step(service, "IDLE", "SLEEP", "quiet", many * 5, 0.625),
            step(service, "IDLE", "ACTIVE", "client-data", many * 3, 0.375),
            step(service, "SLEEP", "ACTIVE", "client-data", round(many * 2.4), 0.8),
            step(service, "SLEEP", "ACTIVE", "server-attach", round(many * 0.5), 0.1667),
            step(service, "SLEEP", "CLOSED", "probe-timeout", many // 10, 0.0333),
        ]
        for hour in range(24 * days):
            day = 1 + 0.4 * math.sin((hour % 24 - 9) / 24 * 2 * math.pi) - (0.2 if hour // 24 % 7 > 4 else 0)
            for state, share in (("ACTIVE", 0.06 * day), ("STANDBY", 0.05 * day), ("IDLE", 0.2 * day),
                                 ("SLEEP", 0.9 - 0.25 * day)):  # fmt: skip
                hours.append({"service": service, "state": state, "hour": BEGIN + timedelta(hours=hour),
                              "connections": many * share, "began": round(many * share)})  # fmt: skip
    of_rules = [{"service": row["service"], "rules": "a, b", "state": row["state"], "total_s": row["total_s"],
                 "ended": row["stays"] - row["censored"], "mean_s": row["mean_s"]} for row in dwell]  # fmt: skip
    rates = (("100.64.0.0/10", 40, 9000.0, 0.1), ("198.51.100.0/24", 90, 100.0, 202.5))
    lost = [{"service": service, "network": network, "lost": count, "hours": hours,
             "lost_per_1000_h": 1000 * count / hours, "times_others": times}
            for service in services for network, count, hours, times in rates]  # fmt: skip
    return {
        "dwell_by_service": dwell, "dwell_by_network": networks, "transitions": steps, "hours": hours,
        "dwell_by_tag": [_without(row, "service") | {"tag": "north"} for row in dwell], "dwell_by_rules": of_rules,
        "transitions_by_tag": [_without(row, "service") | {"tag": "north"} for row in steps],
        "transitions_by_rules": [_without(row, "mean_s") | {"rules": None} for row in steps],
        "lost_by_network": lost,
    }  # fmt: skip


def _without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def interval(service: str | None, name: str, in_force_s: float | None, recommended_s: float | None,
             **more: Any) -> dict[str, Any]:  # fmt: skip
    """A row of quiet_intervals."""
    return {"service": service, "interval": name, "steps": 75_000, "in_force_s": in_force_s,
            "optimum_s": recommended_s or in_force_s, "recommended_s": recommended_s, "bound": None,
            "ski_rental_s": 115.7, "byte_s_per_day_now": 8.64e9, "wakes_per_day_now": 20_000.0,
            "byte_s_per_day_optimum": 4.32e9, "wakes_per_day_optimum": 26_000.0} | more  # fmt: skip


def cost(service: str | None, gaps: int, optimum: float, reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A row of quiet_costs. optimum: cost of the days held out, over what it is now; with hindsight it is half."""
    costs = {"now": 2e6, "optimum": 2e6 * optimum, "ski_rental": 2.5e6, "best": 1.9e6 * optimum, "offline": 1e6}
    return {"service": service, "persistent": False, "gaps": gaps, "woke": gaps * 4 // 5, "closed": gaps // 5,
            "censored": gaps // 20, "truncated_s": 5.0, "seen_s": 60_000.0, "recommended": reason is None,
            "reason": reason, "held_out_gaps": gaps * 3 // 10,
            **{f"cost_{name}": costs[name] for name in ("now", "optimum", "ski_rental", "offline")},
            **{f"cost_held_out_{name}": costs[name] for name in HELD_OUT}} | more  # fmt: skip


def ages(service: str | None, mean_s: float, from_s: float = 5.0, until_s: float = 60_000.0) -> list[dict[str, Any]]:
    """Rows of gap_distribution: of silences of an exponential length, of which four of five end by waking."""
    rows = []
    while from_s < until_s:
        to_s = from_s * 2 ** (1 / 16)
        silent = math.exp((5 - to_s) / mean_s)
        rows.append({"service": service, "from_s": from_s, "to_s": to_s, "at_risk": 1e5 * silent, "woke": 80,
                     "closed": 20, "censored": 5, "silent": silent, "woken": 0.8 * (1 - silent)})  # fmt: skip
        from_s = to_s
    return rows


def flapping(service: str | None, score: float, cause: str | None, **more: Any) -> dict[str, Any]:
    """A row of flapping_clients or flapping_networks, which has `address` or `network`."""
    return {"service": service, "begun": 4000, "ended": 4000, "most_per_hour": 120, "held": 1.4,
            "times_usual": 40.0, "median_life_s": 12.0, "likely_cause": cause, "score": score} | more  # fmt: skip


def failure(service: str | None, network: str, at_h: float, ended: int, cause: str, **more: Any) -> dict[str, Any]:
    """A row of failures. at_h: hours since BEGIN."""
    return {"service": service, "network": network, "began": BEGIN + timedelta(hours=at_h), "minutes": 2,
            "ended": ended, "addresses": ended, "usual_per_minute": 1.0, "connected_share": 0.4,
            "likely_cause": cause, "cause_share": 0.9} | more  # fmt: skip


def deaths(service: str | None, network: str, ended: int, p50_s: int | None, p99_s: int | None) -> dict[str, Any]:
    """A row of silent_deaths."""
    return {"service": service, "network": network, "ended": ended, "of_ends": 0.02, "by_probes": ended - ended // 5,
            "by_timeout": ended // 5, "known": 0 if p50_s is None else ended, "p50_s": p50_s, "p90_s": p50_s,
            "p99_s": p99_s, "most_s": p99_s}  # fmt: skip


def limit(service: str | None, prefix: str, what: str, most: int, refused: int | None, **more: Any) -> dict[str, Any]:
    """A row of limits."""
    return {"service": service, "prefix": prefix, "what": what, "sources": 900, "p50": 1, "p99": max(most // 2, 1),
            "most": most, "most_of": f"100.64.9.7{'/32' if prefix == 'address' else '.0/24'}", "asked": 100_000,
            "limit": None if refused is None else 2 * most, "flapping": 3, "flapping_over": refused and 2,
            "asked_by_flapping": 20_000, "refused_of_flapping": refused} | more  # fmt: skip


def served(service: str | None, linked: int, refused: int, answer_ms: int | None = 2, **more: Any) -> dict[str, Any]:
    """A row of attaches and the like, which have `way` and `found`, `network`, or `hour`."""
    times = [answer_ms, answer_ms and answer_ms * 4, answer_ms and answer_ms * 20]
    first = [one and one * 3 for one in times]
    return {"service": service, "requests": linked + refused, "linked": linked, "refused": refused,
            "linked_share": linked / (linked + refused) if linked + refused else None, "no_first_byte": linked // 50,
            "gone": linked // 200,
            **{f"{what}_p{share}_ms": value for what, values in (("answer", times), ("first", first))
               for share, value in zip((50, 90, 99), values, strict=True)}} | more  # fmt: skip


def refusal(service: str | None, way: str, error: str, count: int, step: str | None = None) -> dict[str, Any]:
    """A row of attach_refusals."""
    return {"service": service, "way": way, "step": step, "error": error, "count": count, "share": count / 100_000}


def of_jobs(services: Sequence[str | None], days: int = 7) -> dict[str, list[dict[str, Any]]]:
    """Tables of quiet, churn, limits and attaches, of these services, the first of which has most connections."""
    found: dict[str, list[dict[str, Any]]] = {
        name: [] for name in (
            "quiet_intervals", "quiet_costs", "gap_distribution", "flapping_clients", "flapping_networks", "failures",
            "silent_deaths", "sources", "limits", "limits_tried", "attaches", "attaches_by_network",
            "attaches_by_hour", "attach_refusals",
        )
    }  # fmt: skip
    causes = ("server", "network", "client reset", "client close", "client came anew", "appliance", "operator")
    for at, service in enumerate(services):
        many = round(120_000 / (at + 1) ** 1.5)
        advised = at % 3 != 2
        short = [5.0 + at, 12.0 + 5 * at, 900.0] if advised else [None] * 3
        found["quiet_intervals"] += [
            interval(service, name, before, after, bound="lower" if after == 5 else None)
            for name, before, after in zip(("active_quiet", "standby_quiet", "idle_quiet"), (49.0, 49.0, 300.0), short,
                                           strict=True)
        ]  # fmt: skip
        found["quiet_costs"].append(
            cost(service, many, 0.6 + at / 20)
            if advised
            else cost(service, many, 0.98, "the cost of the days held out falls by less than 5%")
        )
        found["gap_distribution"] += ages(service, 40.0 * 10 ** (at % 3))
        networks = [f"100.{64 + number}.0.0/16" for number in range(3)]
        found["flapping_clients"].append(flapping(service, 300.0 / (at + 1), "client-close ECONNRESET",
                                                  address=f"100.64.{at}.7"))  # fmt: skip
        found["flapping_networks"].append(flapping(service, 20.0, "probe-timeout", network=networks[0]))
        found["failures"] += [
            failure(service, network, 24 * days * (number * 7 + at + 1) / 30, max(many // (20 * (number + 1)), 20),
                    causes[(at + number) % len(causes)])
            for number in range(3) for network in networks
        ]  # fmt: skip
        found["silent_deaths"] += [deaths(service, network, many // 40 // (number + 1), 300 * (number + 1), 7200)
                                   for number, network in enumerate(networks)]  # fmt: skip
        for prefix in ("address", "network"):
            for what in ("connections", "connects", "births", "wakes", "attaches"):
                found["limits"].append(limit(service, prefix, what, 100 + at, 9000 * (at % 2)))
                found["sources"].append({"service": service, "prefix": prefix, "source": "100.64.9.7/32", "what": what,
                                         "most": 100 + at, "asked": 100_000, "flapping": bool(at % 2)})  # fmt: skip
                found["limits_tried"] += [
                    {"service": service, "prefix": prefix, "what": what, "limit": value, "over": 200 // value,
                     "flapping_over": 3, "refused": 5000 // value, "refused_of_flapping": 20_000 // value}
                    for value in (1, 2, 5, 10, 20, 50)
                ]  # fmt: skip
        found["attaches"] += [served(service, many // (number + 1), 0, 2 * (number + 1), way="connect", found=state)
                              for number, state in enumerate(("STANDBY", "IDLE", "SLEEP"))]  # fmt: skip
        found["attaches_by_network"] += [served(service, many // (number + 2), many // 100, network=network)
                                         for number, network in enumerate(networks)]  # fmt: skip
        found["attaches_by_hour"] += [
            served(service, round(many / 100 * (1 + 0.5 * math.sin(hour / 24 * 2 * math.pi))), many // 2000,
                   2 + (60 if hour == 40 else hour % 3), hour=BEGIN + timedelta(hours=hour))
            for hour in range(24 * days)
        ]  # fmt: skip
        found["attach_refusals"] += [refusal(service, "connect", error, many // 100 // (number + 1), "agent")
                                     for number, error in enumerate(("ETIMEDOUT", "EBUSY", "ECANCELED"))]  # fmt: skip
        found["attaches"].append(served(service, 0, sum(many // 100 // number for number in (1, 2, 3)), None,
                                        way="connect", found=None))  # fmt: skip
    found["attaches"].append(served(None, 0, 9000, None, way="connect", found=None))
    found["attach_refusals"].append(refusal(None, "connect", "ENOENT", 9000))
    return found
