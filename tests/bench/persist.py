# SPDX-License-Identifier: Apache-2.0
"""What the database takes: transitions, sleepers and wakes a second, in SQLite and in PostgreSQL.

Method. The store of a daemon (control/store), in a directory of its own; PostgreSQL is a server of the bench's, on the
same disk, that syncs. Each figure of `..._per_s` is what was queued in one go until all of it is committed.

    history_rows_per_s      transitions of `sleepers` connections at random, `PIECE` at a time
    history_get_ms_p99      the last 100 transitions of one connection, while `RATE` are written a second
    sleep_rows_per_s        records of connections that fall asleep for the first time, on top of none and, `_full`, of
                            `sleepers`; sleep_ratio: the latter over the former. `_again`: of any of `sleepers` at
                            random, whose rows were removed when they woke
    put_back_per_s          rows of all sleepers that an engine has in a table that was empty, as after a reboot
    wake_reads_per_s        the record of one of `sleepers` at random, one after the other, as a client that wakes
    ..._bytes_per_row       growth of the files (SQLite), of the tables and their indexes (PostgreSQL), for each row
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from appliance.lab import Lab
from appliance.wire import KA, LOW_BITS, NO_ENDS, REST, ROW_BITS
from control.core.states import Cause, State
from control.daemon.daemon import SWITCH_INTERVAL_S
from control.store.schema import HISTORY, KEY, MAPPED
from control.store.store import Store
from tests.bench.direct import running_engine, say
from tests.bench.figures import Report, Target, percentile
from tests.databases import Cluster, Postgres, Sqlite

HISTORY_ROWS: Final = Target(at_least=100_000)
SLEEP_ROWS: Final = Target(at_least=200_000)
PUT_BACK: Final = Target(at_least=10_000_000 / 60)
WAKE_READS: Final = Target(at_least=20_000)
GET_MS: Final = Target(at_most=5.0)
PIECE: Final = 50_000
RATE: Final = 50_000
READS: Final = 20_000
GETS_S: Final = 5.0
PATIENCE_S: Final = 600.0
MIXER: Final = 0x9E3779B1  # odd: each number has another address
_LOCAL: Final = MAPPED + bytes((10, 255, 0, 1))


def key(number: int) -> bytes:
    """Of a client with an IPv4 address of its own, at random: the order of keys is not that of numbers."""
    return KEY.pack(MAPPED + (number * MIXER % 2**32).to_bytes(4), _LOCAL, 40_000, 7000)


def record(number: int) -> bytes:
    """ka and rest, as the engine hands them over."""
    ka = KA.pack(State.IDLE, number, 2000, 0, 0, 0, 512, 0, 1 << ROW_BITS | number, 1, 0)
    return ka + REST.pack(number, 0, 65535, 65535, 0, 1460, 0, 0, 0)


def transition(number: int, at: int) -> bytes:
    return HISTORY.pack(number, at, key(number), 1, State.STANDBY, State.IDLE, Cause.QUIET, 10, 20, 30, NO_ENDS)


class Bench:
    """One database, filled step by step."""

    def __init__(self, database: Sqlite | Postgres, sleepers: int, luck: random.Random) -> None:
        self._database = database
        self._sleepers = sleepers
        self._luck = luck
        self._slept = 0
        self._store = Store(database.url, self._hear, history_bound=2 * PIECE)

    def _hear(self, slept: list[Any]) -> None:
        self._slept += len(slept)

    @contextmanager
    def started(self) -> Iterator[None]:
        if problem := self._store.open():
            raise RuntimeError(problem)
        self._store.start()
        try:
            yield
        finally:
            self._store.close()

    def bytes(self) -> int:
        """What all tables take."""
        if isinstance(self._database, Postgres):
            return int(self._database.execute("SELECT pg_database_size(current_database())")[0][0])
        return int(
            self._database.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")[0][0]
        )

    def history(self, rows: int) -> float:
        """Rows a second."""
        now = time.time_ns() // 1_000_000
        batch = [transition(self._luck.randrange(1, self._sleepers + 1), now) for _ in range(PIECE)]
        began = time.monotonic()
        for at in range(0, rows, PIECE):
            self._store.add(batch[: rows - at])
            if not self._store.flush(PATIENCE_S):
                raise RuntimeError(f"history is not written: {self._store.status.text}")
        return rows / (time.monotonic() - began)

    def gets(self) -> list[float]:
        """ms of each look at one connection's history, while rows are written."""
        ended, found = threading.Event(), list[float]()

        def write() -> None:
            due = time.monotonic()
            while not ended.is_set():
                now = time.time_ns() // 1_000_000
                count = RATE // 100
                self._store.add([transition(self._luck.randrange(1, self._sleepers + 1), now) for _ in range(count)])
                due += count / RATE
                ended.wait(max(due - time.monotonic(), 0))

        writer = threading.Thread(target=write)
        writer.start()
        until = time.monotonic() + GETS_S
        while time.monotonic() < until:
            number = random.randrange(1, self._sleepers + 1)
            began = time.monotonic()
            self._store.history_of(number)
            found.append((time.monotonic() - began) * 1000)
            time.sleep(0.005)
        ended.set()
        writer.join()
        self._store.flush(PATIENCE_S)
        return found

    def sleep(self, first: int, count: int) -> float:
        """Rows a second of connections first.. that fall asleep."""
        return self._sleep(range(first, first + count))

    def _sleep(self, numbers: Sequence[int]) -> float:
        rows, count = [(key(number), record(number)) for number in numbers], len(numbers)
        heard = self._slept + count
        began = time.monotonic()
        for at in range(0, count, PIECE):
            self._store.add(upserts=rows[at : at + PIECE])
            while self._slept < min(heard, heard - count + at + PIECE):
                if self._store.status.error:
                    raise RuntimeError(f"nobody sleeps: {self._store.status.error}")
                time.sleep(0.001)
        return count / (time.monotonic() - began)

    def again(self, count: int) -> float:
        """Records a second of connections at random that have slept before."""
        numbers = self._luck.sample(range(1, self._sleepers + 1), count)
        self._store.add(deletes=[(key(number), number) for number in numbers])
        self._store.add([transition(1, 1)])
        self._store.flush(PATIENCE_S)
        return self._sleep(numbers)

    def put_back(self) -> float:
        """Rows a second."""
        with Lab(clients=1) as lab, running_engine(lab, [], self._sleepers * 100 // 90 + 1000, 100) as engine:
            began, count = time.monotonic(), 0
            for keys, kas, numbers, clocks in self._store.sleeping_parts(descending=True):
                done, errors = engine.put_back(keys, kas, numbers, clocks, dict.fromkeys(clocks, (-1000, -1000)))
                if done < len(numbers) or any(errors):
                    raise RuntimeError(f"{done} of {len(numbers)} went back, with errors {set(errors)}")
                count += done
            took = time.monotonic() - began
            if engine.stats()["table_ipv4"] != self._sleepers or count != self._sleepers:
                raise RuntimeError(f"{count} of {self._sleepers} are back")
        return count / took

    def wakes(self) -> float:
        """Reads a second."""
        numbers = [self._luck.randrange(1, self._sleepers + 1) for _ in range(min(READS, 10 * self._sleepers))]
        began = time.monotonic()
        for number in numbers:
            if not self._store.read({key(number): LOW_BITS | number}):
                raise RuntimeError(f"the record of connection {number} is not there")
        return len(numbers) / (time.monotonic() - began)


def run(rows: int, sleepers: int, runs: int) -> Report:
    """rows of history; sleepers; runs: of each figure, on a database of its own."""
    report = Report("persist", f"{rows:,} transitions and {sleepers:,} sleepers in SQLite and PostgreSQL")
    figures: dict[str, list[float]] = {}
    with ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        cluster = Cluster({"listen_addresses": "", "shared_buffers": "512MB", "max_wal_size": "4GB"})
        stack.callback(cluster.close)
        for number in range(runs):
            for kind in ("", "postgresql_"):
                say(f"run {number + 1} of {runs}, {'PostgreSQL' if kind else 'SQLite'}")
                with tempfile.TemporaryDirectory(prefix="roost-bench-") as directory:
                    database = Postgres(cluster) if kind else Sqlite(Path(directory))
                    for name, value in _measured(database, rows, sleepers, random.Random(number)).items():
                        figures.setdefault(kind + name, []).append(value)
                    database.close()
    for name, values in figures.items():
        report.add(name, values, UNITS[name.removeprefix("postgresql_")], TARGETS.get(name))
    return report


UNITS: Final = {
    "history_rows_per_s": "/s",
    "history_bytes_per_row": "bytes",
    "history_get_ms_p99": "ms",
    "sleep_rows_per_s": "/s",
    "sleep_full_rows_per_s": "/s",
    "sleep_ratio": "",
    "sleep_again_rows_per_s": "/s",
    "sleep_bytes_per_row": "bytes",
    "put_back_per_s": "/s",
    "wake_reads_per_s": "/s",
}
TARGETS: Final = {
    "history_rows_per_s": HISTORY_ROWS,
    "history_get_ms_p99": GET_MS,
    "sleep_rows_per_s": SLEEP_ROWS,
    "sleep_full_rows_per_s": SLEEP_ROWS,
    "put_back_per_s": PUT_BACK,
    "wake_reads_per_s": WAKE_READS,
}


def _measured(database: Sqlite | Postgres, rows: int, sleepers: int, luck: random.Random) -> dict[str, float]:
    found: dict[str, float] = {}
    bench = Bench(database, sleepers, luck)
    with bench.started():
        empty = bench.bytes()
        found["history_rows_per_s"] = bench.history(rows)
        filled = bench.bytes()
        found["history_bytes_per_row"] = (filled - empty) / rows
        found["history_get_ms_p99"] = percentile(bench.gets(), 99)
        piece = max(min(sleepers // 2, 2 * PIECE), 1)
        found["sleep_rows_per_s"] = bench.sleep(1, piece)
        before = bench.bytes()
        bench.sleep(piece + 1, max(sleepers - 2 * piece, 0))
        found["sleep_full_rows_per_s"] = bench.sleep(sleepers - piece + 1, piece)
        found["sleep_ratio"] = found["sleep_full_rows_per_s"] / found["sleep_rows_per_s"]
        found["sleep_bytes_per_row"] = (bench.bytes() - before) / max(sleepers - piece, 1)
        found["put_back_per_s"] = bench.put_back()
        found["wake_reads_per_s"] = bench.wakes()
        found["sleep_again_rows_per_s"] = bench.again(piece)
    return found
