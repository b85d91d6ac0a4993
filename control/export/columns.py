# SPDX-License-Identifier: Apache-2.0
"""The columns of an export's tables: what is written (rows.py), and what reads it expects (spark/)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

VERSION: Final = 2
"""Of all columns."""

HISTORY: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("id", pa.int64()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("address", pa.string()),
        ("port", pa.int32()),
        ("service", pa.string()),
        ("from", pa.string()),
        ("to", pa.string()),
        ("cause", pa.string()),
        ("rx_bytes", pa.int64()),
        ("tx_bytes", pa.int64()),
        ("gap_ms", pa.int64()),
        ("server", pa.string()),
        ("error", pa.string()),
        ("probes", pa.int32()),
        ("silence_s", pa.int64()),
    ]
)

ATTACHES: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("way", pa.string()),
        ("server", pa.string()),
        ("target", pa.string()),
        ("step", pa.string()),
        ("id", pa.int64()),
        ("address", pa.string()),
        ("port", pa.int32()),
        ("service", pa.string()),
        ("found", pa.string()),
        ("error", pa.string()),
        ("answer_ms", pa.int64()),
        ("first_ms", pa.int64()),
    ]
)

SNAPSHOTS: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("span_ms", pa.int64()),
        ("service", pa.string()),
        ("rules", pa.string()),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)

AUDIT: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("who", pa.string()),
        ("origin", pa.string()),
        ("method", pa.string()),
        ("path", pa.string()),
        ("body", pa.string()),
        ("status", pa.int32()),
        ("error", pa.string()),
    ]
)

RUNS: Final = pa.schema(
    [
        ("run", pa.int64()),
        ("instance", pa.string()),
        ("host", pa.string()),
        ("version", pa.string()),
        ("started", pa.timestamp("ms", tz="UTC")),
        ("first", pa.int64()),
        ("ended", pa.timestamp("ms", tz="UTC")),
        ("dropped", pa.int64()),
    ]
)

RULES: Final = pa.schema(
    [
        ("version", pa.int64()),
        ("rule", pa.string()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("who", pa.string()),
        ("why", pa.string()),
        ("content", pa.string()),
    ]
)

TAGS: Final = pa.schema([("tag", pa.string()), ("name", pa.string()), ("id", pa.int64())])


def silence_end_s(begin_s: int) -> int:
    """Up to where a class of silences reaches that begins there: of `answered after` and `lost after` in a snapshot's
    counts, eight in an octave from 16 s on."""
    return begin_s + (1 << begin_s.bit_length() - 4 if begin_s >= 16 else 2)
