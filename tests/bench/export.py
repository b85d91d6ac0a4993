# SPDX-License-Identifier: Apache-2.0
"""How long the record takes to become Parquet, and whether an export that is killed has each row once.

Method. A daemon's store, closed, in a directory of its own; PostgreSQL is a server of the bench's, on the same disk.
Its `rows` transitions are spread over two days. `roost export` runs in a process of its own: once without interruption,
and into another directory, each time until it is killed in the midst of a chunk, `KILLS` times, and then to its end. A
chunk has a fortieth of the rows, a million at most. DuckDB reads both directories, and compares each row with what was
written: every column is a function of the row's number.

    rows_per_s          of the export without interruption, from its start to its end
    bytes_per_row       of its directory
    check_rows_per_s    of `roost export --check`, which reads all of it
    memory_mb           the most that it had resident
    resumed_share       of the rows, those that were there when the last export began: how far the killed ones had come
    lost_rows, doubled_rows, wrong_rows   of both directories
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import duckdb

from appliance.lab import wait_until
from appliance.wire import NO_ENDS
from control.core.states import Cause, State
from control.export.rows import BATCH_ROWS, CHUNK_ROWS
from control.store.schema import HISTORY, KEY, MAPPED
from control.store.store import Store
from tests.bench.direct import say
from tests.bench.figures import Report
from tests.databases import Cluster, Postgres, Sqlite

ROOT: Final = Path(__file__).parents[2]
CLIENTS: Final = 1_000_003
BEGIN_MS: Final = 1_764_000_000_000
SPAN_MS: Final = 2 * 86_400_000
PIECE: Final = 50_000
KILLS: Final = 3
COMMAND: Final = (
    "import sys; from control.export import rows; rows.CHUNK_ROWS = {chunk}; rows.BATCH_ROWS = {batch}; "
    "from control.cli.export import command; command(sys.argv[1:])"
)
PATIENCE_S: Final = 600.0
_LOCAL: Final = MAPPED + bytes((10, 255, 0, 1))

EXPECTED: Final = {
    "id": "1 + seq % {clients}",
    'epoch_ms("at")': "{begin} + seq * {step}",
    "address": "concat_ws('.', 10, (id >> 16) & 255, (id >> 8) & 255, id & 255)",
    "port": "1024 + seq % 60000",
    "service": "'web'",
    '"from"': "'STANDBY'",
    '"to"': "'IDLE'",
    "cause": "'quiet'",
    "rx_bytes": "seq % 1500",
    "tx_bytes": "seq % 900",
    "gap_ms": "seq % 70000",
    **dict.fromkeys(("server", "error", "probes", "silence_s"), "NULL"),
}
"""Of each column, by the number of the row: what `transition` makes."""

_COMPARED: Final = f"""
    SELECT count(*), count(DISTINCT seq), count(*) FILTER (WHERE seq NOT BETWEEN 1 AND {{rows}}
        OR {" OR ".join(f"{column} IS DISTINCT FROM {value}" for column, value in EXPECTED.items())})
    FROM read_parquet('{{directory}}/history/*/*/*.parquet')
"""


def transition(seq: int, step: int) -> bytes:
    number = 1 + seq % CLIENTS
    client = MAPPED + bytes((10, number >> 16 & 255, number >> 8 & 255, number & 255))
    key = KEY.pack(client, _LOCAL, 1024 + seq % 60_000, 7000)
    said = State.STANDBY, State.IDLE, Cause.QUIET, seq % 1500, seq % 900, seq % 70_000
    return HISTORY.pack(number, BEGIN_MS + seq * step, key, 1, *said, NO_ENDS)


def fill(database: Sqlite | Postgres, rows: int, step: int) -> None:
    store = Store(database.url, lambda _: None, history_bound=2 * PIECE, keep_days=0.0)
    if problem := store.open():
        raise RuntimeError(problem)
    assert store.service_indexes(["web"]) == {"web": 1}
    store.start()
    for first in range(1, rows + 1, PIECE):
        store.add([transition(seq, step) for seq in range(first, min(first + PIECE, rows + 1))])
        if not store.flush(PATIENCE_S):
            raise RuntimeError(f"history is not written: {store.status.text}")
    store.close()


class Exporting:
    """Of one database, by the command."""

    def __init__(self, database: Sqlite | Postgres, scratch: Path, rows: int) -> None:
        self.rows, self.step = rows, max(SPAN_MS // rows, 1)
        self.chunk = min(rows // 40, CHUNK_ROWS)
        self._config = scratch / "roost.toml"
        place = f'database = "{database.url}"'
        self._config.write_text(f'[paths]\n{place}\n[[service]]\nname = "web"\nlisten = "127.0.0.1:80"\n'
                                'server = "127.0.0.1:81"\n')  # fmt: skip

    def begin(self, directory: Path, *options: str) -> subprocess.Popen[bytes]:
        argv = [
            sys.executable,
            "-P",
            "-c",
            COMMAND.format(chunk=self.chunk, batch=min(self.chunk, BATCH_ROWS)),
            str(directory),
            "-c",
            str(self._config),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen([*argv, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)

    def whole(self, directory: Path, *options: str) -> tuple[float, float]:
        """Seconds, and MB that it had resident at most."""
        began = time.monotonic()
        with self.begin(directory, *options) as process:
            assert process.stderr is not None
            told = process.stderr.read().decode()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"the export ended with {process.returncode}: {told}")
        return time.monotonic() - began, used.ru_maxrss / 1024

    def killed(self, directory: Path, after_s: float) -> None:
        """So long after it has made a chunk."""
        there = counted(directory)
        with self.begin(directory) as process:
            wait_until(lambda: counted(directory) > there or process.poll() is not None, PATIENCE_S, "a chunk", 0.001)
            time.sleep(after_s)
            process.send_signal(signal.SIGKILL)
            process.communicate()

    def compared(self, directory: Path) -> tuple[int, int, int]:
        """Rows that are lost, doubled and wrong."""
        said = _COMPARED.format(rows=self.rows, clients=CLIENTS, begin=BEGIN_MS, step=self.step, directory=directory)
        with duckdb.connect() as database:
            database.execute("SET TimeZone = 'UTC'")
            (count, distinct, wrong) = database.execute(said).fetchall()[0]
        return self.rows - distinct, count - distinct, wrong


def counted(directory: Path) -> int:
    """Rows of the chunks that count: FIRST-LAST.json."""
    chunks = (file.stem.split("-") for file in directory.glob("history/_chunks/*.json"))
    return sum(int(last) - int(first) + 1 for first, last in chunks)


def run(rows: int) -> Report:
    """rows: transitions."""
    report = Report("export", f"{rows:,} transitions of SQLite and of PostgreSQL as Parquet; each export killed "
                              f"{KILLS} times, and gone on with")  # fmt: skip
    with ExitStack() as stack:
        cluster = Cluster({"listen_addresses": "127.0.0.1", "shared_buffers": "512MB", "max_wal_size": "4GB"})
        stack.callback(cluster.close)
        for kind in ("", "postgresql_"):
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roost-bench-")))
            database = Postgres(cluster) if kind else Sqlite(scratch)
            for name, value in _measured(database, scratch, rows, random.Random(rows)).items():
                if name == "resumed_share" and not 0 < value < 1:
                    report.problems.append(f"{value:.0%} of the rows were there when the last export began")
                if name.endswith("_rows"):
                    report.add_zero(kind + name, value, "rows")
                else:
                    report.add(kind + name, value, UNITS[name])
            database.close()
    return report


UNITS: Final = {
    "rows_per_s": "/s",
    "bytes_per_row": "bytes",
    "check_rows_per_s": "/s",
    "memory_mb": "MB",
    "resumed_share": "",
}


def _measured(database: Sqlite | Postgres, scratch: Path, rows: int, luck: random.Random) -> dict[str, Any]:
    exporting = Exporting(database, scratch, rows)
    say(f"{rows:,} rows are written to {database.url.partition(':')[0]}")
    fill(database, rows, exporting.step)
    whole, resumed = scratch / "whole", scratch / "resumed"
    seconds, memory = exporting.whole(whole)
    say(f"exported in {seconds:.0f} s")
    size = sum(file.stat().st_size for file in whole.rglob("*") if file.is_file())
    check_s, _ = exporting.whole(whole, "--check")
    half_a_chunk_s = max(seconds - check_s, 0.0) / (rows / exporting.chunk) / 2  # without what it takes to begin
    for _ in range(KILLS):
        exporting.killed(resumed, luck.uniform(0.0, half_a_chunk_s))
    there = counted(resumed)
    exporting.whole(resumed)
    exporting.whole(resumed, "--check")
    lost, doubled, wrong = map(sum, zip(exporting.compared(whole), exporting.compared(resumed), strict=True))
    return {
        "rows_per_s": rows / seconds,
        "bytes_per_row": size / rows,
        "check_rows_per_s": rows / check_s,
        "memory_mb": memory,
        "resumed_share": there / rows,
        "lost_rows": lost,
        "doubled_rows": doubled,
        "wrong_rows": wrong,
    }
