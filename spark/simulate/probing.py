# SPDX-License-Identifier: Apache-2.0
"""The silences of a cycle, one probe after the other, of many cycles at once.

By NumPy, not by Spark's functions: an array that grows by one each time is copied each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark.simulate.fleet import HOUR_MS, Fleet

ANSWERED, LOST, SPOKE = 0, 1, 2
LONGEST_S: Final = (1 << 18) - 1
GIVEN: Final = ("client", "k", "length", "b", "probe", "most", "keepalive", "behind", "timeout", "off")

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


def _mixed(z: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """SplitMix64's output function (Steele, Lea and Flood, 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def probed(fleet: Fleet) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For DataFrame.mapInArrow: rows with GIVEN, and then

    cum      s from b to when the client was heard last
    lost     the silence, s, whose probe was not answered, by which the client was given up; negative: it was not
    heard    as cum, to t3
    packs    what each silence came to (see cycles.py)"""

    def all_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = _of(fleet, {name: _numbers(batch.column(name)) for name in GIVEN})
            yield pa.RecordBatch.from_arrays([*batch.columns, *found.values()], [*batch.schema.names, *found])

    return all_of


def _numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    """Null is NaN."""
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _of(fleet: Fleet, of: dict[str, np.ndarray[Any, Any]]) -> dict[str, pa.Array]:
    count, gave_up = len(of["client"]), fleet.retry_s * fleet.retries
    cum, heard, lost = np.zeros(count), np.zeros(count), np.full(count, -1.0)
    keepalive, timeout = of["keepalive"].astype(float), of["timeout"].astype(float)
    timeout = np.where(of["behind"].astype(bool), timeout, math.nan)
    ratio = np.log(of["most"] / of["probe"])
    with np.errstate(over="ignore"):
        seed = _mixed(of["client"].astype(np.uint64) + np.uint64(fleet.seed) * _GOLDEN)
        seed = _mixed(seed + of["k"].astype(np.int64).astype(np.uint64) * _GOLDEN)
    rows, packs = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    at, number = np.arange(count), 0
    while at.size:
        number += 1
        with np.errstate(over="ignore"):
            bits = _mixed(seed[at] + np.uint64(number) * _GOLDEN)
        chance = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53
        silence = of["probe"][at] * np.exp(ratio[at] * chance)
        spoke = keepalive[at] < silence
        silence = np.where(spoke, keepalive[at], silence)
        then = cum[at] + silence
        is_off = then >= of["off"][at]
        is_lost = ~spoke & (is_off | (silence >= timeout[at]))
        ends = (then >= of["length"][at]) | (is_off & spoke) | (is_lost & (then + gave_up >= of["length"][at]))
        is_lost &= ~ends
        goes_on = ~ends & ~is_lost
        lost[at[is_lost]] = silence[is_lost]
        cum[at[goes_on]] = then[goes_on]
        early = goes_on & (then <= fleet.quiet_s[2])
        heard[at[early]] = then[early]
        kind = np.where(spoke, SPOKE, np.where(is_lost, LOST, ANSWERED))
        hour = np.floor((of["b"][at] + then * 1000) / HOUR_MS).astype(np.int64)
        pack = (hour << 20) + (kind << 18) + np.minimum(silence, LONGEST_S).astype(np.int64)
        rows.append(at[~ends])
        packs.append(pack[~ends])
        at = at[goes_on]
    places = np.concatenate(rows)
    order = np.argsort(places, kind="stable")
    ends_at = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=count))]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends_at), pa.array(np.concatenate(packs)[order]))
    return {"cum": pa.array(cum), "lost": pa.array(lost), "heard": pa.array(heard), "packs": lists}
