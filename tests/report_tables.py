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
SCHEMAS: Final = {
    "dwell_by_service": pa.schema([SERVICE, STATE, *_LENGTHS]),
    "dwell_by_network": pa.schema([SERVICE, ("network", pa.string()), STATE, *_LENGTHS]),
    "transitions": pa.schema([SERVICE, STATE, ("next", pa.string()), ("cause", pa.string()), ("count", pa.int64()),
                              ("mean_s", pa.float64()), ("share", pa.float64())]),
    "hours": pa.schema([SERVICE, ("hour", pa.timestamp("us", tz="UTC")), STATE, ("connections", pa.float64()),
                        ("began", pa.int64())]),
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
    return {"dwell_by_service": dwell, "dwell_by_network": networks, "transitions": steps, "hours": hours}
