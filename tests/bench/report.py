# SPDX-License-Identifier: Apache-2.0
"""How long a report takes, and DuckDB for the same sums, one after the other.

Method. An export of `rows` transitions over thirty days, made for the bench: connections that live for `LIFE`
transitions each, in services and networks of different sizes, an attach for each hundredth, and snapshots by minute.
`roost report` in this process, with `MEMORY` and as many threads as there are processors; then DuckDB, with as many and
as much, on the same files: stays by a window, durations, what ended them, and steps by hour. A tenth of the rows before
that, in the same way.

    minutes                  the whole report, from reading the export to its tables
    rows_per_s, rows_per_s_vs_tenth
    duckdb_ratio             the report's time over DuckDB's, which does not read the files for their SHA-256
    peak_heap_gb             of Java: the sum of the peaks of its pools
    peak_disk_gb             of what is kept meanwhile: stays, and what Spark sorts
    wrong                    of the sums that both have, how many differ
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from control.export.chunk import Chunk, File
from control.export.chunks import HOUR_MS
from control.export.columns import ATTACHES, HISTORY, RULES, RUNS, SNAPSHOTS, VERSION
from control.export.files import digest_of, write_json, write_table
from spark import session
from spark.reading import Export
from spark.report import Report as Made
from spark.stage import Stage
from tests.bench.direct import say
from tests.bench.figures import Report, Target

TURNS: Final = 100
LIFE: Final = 20
SPAN_MS: Final = 30 * 86_400_000
BEGIN_MS: Final = 1_790_000_000_000 // HOUR_MS * HOUR_MS
MEMORY: Final = "8g"
MINUTES: Final = Target(at_most=15)
VS_TENTH: Final = Target(at_least=0.8)

_TURN: Final = """
SELECT {first} + row_number() OVER (ORDER BY at_ms, id) - 1 AS seq, id, at_ms,
       '10.' || (i % 997) % 200 || '.' || i // 256 % 256 || '.' || i % 256 AS address,
       (1024 + i % 60000)::INTEGER AS port,
       CASE WHEN i % 10 < 7 THEN 'meter' ELSE 'alarm' END AS service, '{source}' AS "from", '{target}' AS "to",
       '{cause}' AS cause, hash(i) % 1000 AS rx_bytes, hash(i, 1) % 1000 AS tx_bytes, hash(i, 2) % 100000 AS gap_ms,
       NULL AS server, NULL AS error, NULL AS probes, hash(i, 3) % 3000 AS silence_s
FROM (
    SELECT i, 1 + i + {life} * {clients} AS id, {begin} + (hash(i, {turn}) % {length})::BIGINT AS at_ms
    FROM range({clients}) AS clients(i)
) ORDER BY seq
"""
_ATTACHES: Final = """
SELECT row_number() OVER (ORDER BY at_ms, n) AS seq, at_ms, 'connect' AS way, '192.0.2.1:7000' AS server,
       '10.0.0.1:40000' AS target, NULL AS step, 1 + hash(n, 1) % {ids} AS id,
       '10.' || hash(n, 2) % 200 || '.0.1' AS address, 40000 AS port,
       CASE WHEN n % 10 < 7 THEN 'meter' ELSE 'alarm' END AS service,
       CASE WHEN n % 3 = 0 THEN 'IDLE' ELSE 'SLEEP' END AS found, CASE WHEN n % 50 = 0 THEN 'EBUSY' END AS error,
       hash(n, 3) % 40 AS answer_ms, CASE WHEN n % 50 > 1 THEN hash(n, 4) % 900 + 40 END AS first_ms
FROM (SELECT n, {begin} + (hash(n) % {length})::BIGINT AS at_ms FROM range({count}) AS made(n)) ORDER BY seq
"""
_SNAPSHOTS: Final = """
SELECT 1 + n AS seq, {begin} + 60000 * (n // 3 + 1) - 1 AS at_ms, 60000 AS span_ms, NULL AS rules,
       [NULL, 'meter', 'alarm'][n % 3 + 1] AS service,
       CASE WHEN n % 3 = 0 THEN MAP {{'rss_bytes': 60000000 + hash(n) % 1000000, 'memory_permille': 100}}
            ELSE MAP {{'ACTIVE': {clients} // 20, 'IDLE': {clients} // 10, 'SLEEP': {clients} // 5 + hash(n) % 100,
                       'probes': {clients} // 20, 'answered after 128': {clients} // 40,
                       'answered after 512': {clients} // 80, 'lost after 512': 1 + hash(n) % 9,
                       'SLEEP ACTIVE client-data': {clients} // 100}} END AS counts
FROM range(3 * {count}) AS made(n) ORDER BY seq
"""
_CYCLE: Final = [("ACTIVE", "STANDBY", "quiet"), ("STANDBY", "IDLE", "quiet"), ("IDLE", "SLEEP", "quiet"),
                 ("SLEEP", "ACTIVE", "client-data")]  # fmt: skip

_STAYS: Final = """
CREATE TABLE stays AS
SELECT service, address, "to" AS state, epoch_ms("at") AS began,
       coalesce(epoch_ms(lead("at") OVER one), {until}) AS ended,
       lead("to") OVER one AS next, lead(cause) OVER one AS "by", lead("at") OVER one IS NOT NULL AS seen
FROM '{files}' WINDOW one AS (PARTITION BY id ORDER BY seq)
"""
_SUMS: Final = """
SELECT service, state, count(*), count(*) FILTER (NOT seen) FROM stays WHERE state <> 'CLOSED' GROUP BY ALL ORDER BY ALL
"""
_OTHERS: Final = (
    """SELECT service, split_part(address, '.', 2), state, floor(log2(greatest(ended - began, 1)) * 8), count(*),
              sum(ended - began) FROM stays GROUP BY ALL""",
    'SELECT service, state, next, "by", count(*), avg(ended - began) FROM stays WHERE seen GROUP BY ALL',
    "SELECT service, state, began // 3600000, count(*), sum(began % 3600000) FROM stays GROUP BY ALL",
    "SELECT service, state, ended // 3600000, count(*), sum(ended % 3600000) FROM stays GROUP BY ALL",
)


def _step(turn: int) -> tuple[str, str, str]:
    """From, to and cause of a connection's transition of this number."""
    if turn == 0:
        return "NONE", "ACTIVE", "client-connect"
    source, target, cause = _CYCLE[(turn - 1) % 4]
    return (source, "CLOSED", "client-close") if turn == LIFE - 1 else (source, target, cause)


def _chunk(root: Path, name: str, schema: pa.Schema, found: pa.Table) -> None:
    """Rows of a table as one chunk, in files of an hour each. found: its columns in order of seq, and at_ms."""
    at = found["at_ms"]
    table = pa.table([(at if field.name == "at" else found[field.name]).cast(field.type) for field in schema], schema)
    first, last = (table["seq"][place].as_py() for place in (0, -1))
    hours, files = pc.divide(at, HOUR_MS), list[File]()
    chunk = Chunk(first, last, table.num_rows, (first, 0, 0), files)
    for hour in sorted(pc.unique(hours).to_pylist()):
        begins = datetime.fromtimestamp(hour * HOUR_MS / 1000, UTC)
        path = root / name / f"date={begins:%Y-%m-%d}" / f"hour={begins:%H}" / f"{chunk.name}.parquet"
        some = table.filter(pc.equal(hours, hour))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(some, path, compression="zstd")  # write_table() would wait for the disk 800 times
        files.append(File(str(path.relative_to(root)), some.num_rows, digest_of(path)))
    write_json(root / name / "_chunks" / f"{chunk.name}.json", asdict(chunk))


def make(root: Path, rows: int) -> int:
    """An export of about so many transitions, a hundredth of attaches, and snapshots; how many transitions it has."""
    clients, length = max(rows // TURNS, 1), SPAN_MS // TURNS
    database = duckdb.connect()
    for turn in range(TURNS):
        source, target, cause = _step(turn % LIFE)
        first = 1 + turn * clients
        _chunk(root, "history", HISTORY, database.sql(_TURN.format(
            first=first, source=source, target=target, cause=cause, life=turn // LIFE, clients=clients, turn=turn,
            begin=BEGIN_MS + turn * length, length=length,
        )).to_arrow_table())  # fmt: skip
    _chunk(root, "attaches", ATTACHES, database.sql(_ATTACHES.format(
        count=TURNS * clients // 100, begin=BEGIN_MS, length=SPAN_MS, ids=clients * -(-TURNS // LIFE),
    )).to_arrow_table())  # fmt: skip
    _chunk(root, "snapshots", SNAPSHOTS, database.sql(_SNAPSHOTS.format(
        count=SPAN_MS // 60_000, begin=BEGIN_MS, clients=clients,
    )).to_arrow_table())  # fmt: skip
    for whole, schema in (("runs", RUNS), ("rules", RULES)):
        write_table(root / whole / f"{whole}.parquet", schema.empty_table())
    write_json(root / "_export.json", {"version": VERSION, "since_ms": None, "until_ms": None})
    return TURNS * clients


def _size(root: Path) -> int:
    """Bytes of its files; some go meanwhile."""
    found = 0
    for directory, _, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):
                found += Path(directory, name).stat().st_size
    return found


def by_spark(data: Path, out: Path, scratch: Path) -> tuple[float, float, float]:
    """Seconds, without the start of Java; GB of its heap; GB of the disk."""
    spark = session.start(memory=MEMORY, directory=str(scratch))
    sizes, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(1):
            sizes.append(_size(scratch))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        began = time.monotonic()
        with Stage(spark, str(scratch)) as stage:
            Made(Export(spark, str(data)), out, stage, None, None, say).run()
        took = time.monotonic() - began
        pools: Any = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()  # type: ignore[union-attr]
        heap = [pool for pool in pools if pool.getType().name() == "HEAP"]
        return took, sum(pool.getPeakUsage().getUsed() for pool in heap) / 2**30, max(sizes) / 1e9
    finally:
        ended.set()
        watcher.join()
        spark.stop()


def by_duckdb(data: Path, scratch: Path, until_ms: int) -> tuple[float, list[tuple[Any, ...]]]:
    """Seconds; (service, state, stays, of them censored)."""
    database = duckdb.connect(str(scratch / "duckdb"))
    database.execute(
        f"SET threads = {os.cpu_count()}; SET memory_limit = '8GB'; SET temp_directory = '{scratch}/spilt'"
    )
    began = time.monotonic()
    database.execute(_STAYS.format(files=f"{data}/history/*/*/*.parquet", until=until_ms))
    sums = database.execute(_SUMS).fetchall()
    for statement in _OTHERS:
        database.execute(statement).fetchall()
    return time.monotonic() - began, sums


def run(rows: int = 100_000_000) -> Report:
    """Report on `rows` transitions, and on a tenth of them."""
    report = Report("report", f"{rows:,} transitions, and a tenth of them before; {MEMORY} of heap")
    seconds, heap, disk, wrong, speeds = 0.0, 0.0, 0.0, 0, list[float]()
    for wanted in (rows // 10, rows):
        with tempfile.TemporaryDirectory(prefix="roost-bench-") as name:
            root = Path(name)
            scratch = root / "scratch"
            scratch.mkdir()
            count = make(root / "data", wanted)
            say(f"{count:,} transitions are made")
            seconds, heap, disk = by_spark(root / "data", root / "out", scratch)
            speeds.append(count / seconds)
            say(
                f"the report took {seconds:,.0f} s, {speeds[-1]:,.0f} transitions a second, {heap:.1f} GB of heap, "
                f"{disk:.1f} GB of disk"
            )
            table = pq.read_table(root / "out" / "dwell_by_service.parquet").to_pylist()
            told = sorted((one["service"], one["state"], one["stays"], one["censored"]) for one in table)
            newest = max(
                pc.max(pq.read_table(path, columns=["at"])["at"].cast(pa.int64())).as_py()
                for path in sorted((root / "data" / "history").glob("*/*/*.parquet"))[-4:]
            )
            duckdb_s, sums = by_duckdb(root / "data", scratch, int(newest) + 1)
            say(f"DuckDB took {duckdb_s:,.0f} s")
            wrong += len(set(told) ^ set(sums))
    report.add_zero("wrong", wrong, "sums")
    report.add("minutes", seconds / 60, "min", MINUTES)
    report.add("rows_per_s", speeds[1], "/s")
    report.add("rows_per_s_vs_tenth", speeds[1] / speeds[0], "", VS_TENTH)
    report.add("duckdb_ratio", seconds / duckdb_s, "")
    report.add("peak_heap_gb", heap, "GB")
    report.add("peak_disk_gb", disk, "GB")
    return report
