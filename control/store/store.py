# SPDX-License-Identifier: Apache-2.0
"""Writing the store while connections come and go.

One thread writes. It takes a batch of what waits (queues.py), writes it in one transaction, and only after the commit
hands the keys of the upserts to ``on_slept``: nothing counts as SLEEP before its row is committed. When a write fails
the batch goes back, the error stands in the status, and the writer tries again with back-off; SLEEP stops by itself,
since ``on_slept`` is not called, and ``sleep_allowed`` tells the dispatcher to queue no more.

Every transaction renews the lease of this daemon (owner.py); one whose database another has taken over writes nothing
any more. With SQLite a commit counts only while the path still names the file that it went to (file.py).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from appliance.wire import NO_ENDS
from control.core.states import Cause, State
from control.store import appended, file, policies, sleeping, starting, tagging, tokens
from control.store.database import (
    StoreError,
    begin_writing,
    get_meta,
    may_be_idle,
    open_engine,
    parse_url,
    reason,
    set_meta,
    without_secrets,
)
from control.store.history import History
from control.store.history_rows import with_numbers
from control.store.latest import Latest
from control.store.migrate import prepare_tables
from control.store.owner import LEASE_S, FencedError, LeaseRunsError, OwnedError, Owner, Ownership, lease_clock_ms
from control.store.queues import APPENDED_BOUND, Batch, Queues
from control.store.rules_file import RulesFile
from control.store.schema import HISTORY, Keyed, references_of, successors
from control.store.statements import write_keyed

log = logging.getLogger("roost.store")

GATHER_S: Final = 0.02
"""How long the writer waits for more before it takes a batch: a commit costs an fsync, whatever it carries."""

RELAXED_GATHER_S: Final = 0.25
"""The same while no caller waits for the commit. Each commit takes the processor from the clients that are waking just
then, some milliseconds long, so there should be few (`roost bench wake`)."""

BACKOFF_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
LOCK_S: Final = 2.0
"""How long a batch waits for a lock of another process's; then it is tried again."""

IDLE_S: Final = 15.0
"""How long a transaction may wait for its next statement before PostgreSQL ends it. One of a pair has its lease for it:
the other machine waits for the row of `owner`."""

SLEEP_BOUND: Final = 50_000
"""Records that wait to be put to sleep; what comes then stays IDLE until there is room (13 MB is what they cost)."""

WATCH_S: Final = 1.0
"""How often the path of a database is looked at, at least."""

CHECK_S: Final = 10.0
CHECK_SHARE: Final = 0.01
"""How often SQLite's file is read through, at most, and at most which share of the time."""

LEASE_POLL_S: Final = 0.2

PRUNE_EVERY_S: Final = 3600.0
PRUNE_AGAIN_S: Final = 60.0
"""The same while a reader holds up a part that is to go."""

PRUNE_ROWS: Final = 5000
ID_GAP: Final = 100_000
"""Left between the numbers of two runs of the daemon: a killed one may have given numbers that were never written."""

CLOSED_ROWS: Final = 10_000
"""Of a page of sleepers that are let go."""


class Store(Latest):
    """The database of one daemon. `add`, `status` and the reads may be called from any thread, `read` from one only."""

    def __init__(
        self,
        url: str,
        on_slept: Callable[[list[sleeping.Committed]], None],
        *,
        keep_days: float = 30.0,
        keep_bytes: int = 0,
        batch: int = 5000,
        history_bound: int = 200_000,
        owner: Owner | None = None,
        take_over: bool = False,
        paired_lease_s: float | None = None,
    ) -> None:
        """paired_lease_s: it is one of two machines that have the database in turn, for so long at a time; None: it
        has a database of its own."""
        self._url = parse_url(url)
        self._readers = 0
        owner = owner or Owner.here()
        super().__init__(self._url, History(keep_days, keep_bytes), Queues(history_bound), owner.boot_id)
        self._owner = owner
        self._run_started = time.time_ns() // 1_000_000
        self._run_number: int | None = None
        self._run_dropped = 0  # as the database has it
        self._paired = paired_lease_s is not None
        self._ownership = Ownership(owner, take_over, paired_lease_s or LEASE_S, self._paired)
        self._tell_lease: Callable[[int], None] = lambda _until_ms: None
        self._lease_until_ms = 0
        self.fenced = False
        """Another daemon has taken the database over."""
        self.left_to_others = False
        """Another daemon may have it, without being told to take it over."""
        self._on_slept = on_slept
        self._keep_days = keep_days
        self._keep_bytes = keep_bytes
        self._batch = batch
        self._generation = time.time_ns()
        self._gathering = False  # the writer waits for more
        self._closing = False
        self._prepared = self._awaited = False
        self._doubtful: Batch | None = None  # whether it is committed is not known
        self._wanted_services: dict[str, int] = {}
        self.cookie_secret = (0, 0)
        """Of SYN cookies: two numbers of 64 bits, which both machines of a pair have."""
        self._max_id = 0
        self._next_prune = time.monotonic() + 60.0
        # A machine that stands still in a transaction has the row of `owner` locked, and its server does not know.
        self._writer_engine = open_engine(self._url, LOCK_S, writer=True, idle_s=paired_lease_s or IDLE_S)
        self._path = (self._url.database or "") if self._url.get_backend_name() == "sqlite" else ""
        self._opened: file.Identity = ()
        if self._path:
            file.note_files(self._writer_engine, self._path)
            file.refuse_others(self._reader_engine, self._path, lambda: self._opened)
        self._checking = threading.Lock()
        self._ended = threading.Event()

    # -- life ---------------------------------------------------------------------------------------------------------

    @property
    def rules_file(self) -> RulesFile:
        """The rules, beside the database or, of one on another machine, where SQLite's is by default."""
        path = f"{self._path}.rules" if self._path else file.DEFAULT_DIRECTORY / f"{self._owner.instance}.rules"
        return RulesFile(Path(path), without_secrets(self._url))

    @property
    def exists(self) -> bool:
        """Whether there is a database, as far as a look at its path tells."""
        return not self._path or Path(self._path).exists()

    def take(self) -> str:
        """Of one of a pair: have the database; returns "" or why it has it not yet. Raises FencedError: the other one
        has claimed it since, and this one can only begin anew."""
        try:
            self._prepare()
        except FencedError:
            raise
        except LeaseRunsError as error:
            return str(error)
        except Exception as error:
            self._note_failure(error)
        return self._status.error

    def open(self, awaited: bool = False) -> str:
        """Make or check the tables; returns "" or why it failed. Either way the store may be used: it tries again.
        awaited: connections sleep by its rows, so that no file of SQLite's is made where there is none. Raises
        StoreError when it must not be: the database is another daemon's, or its path leads nowhere."""
        self._awaited = awaited
        if self._path and (problem := file.problem_of_directory(self._path)):
            raise StoreError(problem)
        first: tuple[int, int] | None = None
        until = time.monotonic() + LEASE_S
        while True:
            try:
                self._prepare()
            except OwnedError:
                self._writer_engine.dispose()
                raise
            except LeaseRunsError as error:
                if first is None:
                    first = error.lease
                    log.warning("store: waiting whether its owner is alive, %g s at most: %s", LEASE_S, error)
                if error.lease != first:
                    raise OwnedError(f"{error}, and renews its lease: it is running") from None
                if time.monotonic() >= until:
                    self._ownership.dead = first
                time.sleep(LEASE_POLL_S)
                continue
            except Exception as error:
                self._note_failure(error)
            return self._status.error

    def watch_lease(self, tell: Callable[[int], None]) -> None:
        """tell: is told until when this daemon has the connections, ms of CLOCK_BOOTTIME, now and each time that the
        lease is renewed. For one of a pair."""
        self._tell_lease = tell
        tell(self._lease_until_ms)

    def share(self, group: int) -> None:
        """Let the members of this group read SQLite's file from now on; 0: nobody. Raises OSError."""
        self._readers = group
        if self._path:
            file.share(self._path, group)

    def start(self) -> None:
        """Start the writer; once."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._run, name="roost-store", daemon=True)
        self._thread.start()
        if self._path:
            threading.Thread(target=self._check_file, name="roost-store-check", daemon=True).start()

    def close(
        self, timeout_s: float = 10.0, give_back: bool = False, drained: bool = False, left_open: int = -1
    ) -> int:
        """Write what is pending and stop; returns how many rows could not be written. give_back: the daemon could not
        start, and the database is whose it was. drained: every connection has its row, and another machine may have
        the database without being told to take it over (`left_to_others` afterwards); of a pair it may
        anyway. left_open: starting.left_open."""
        self.release_history()
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._wake:
            queues = self._queues
            left = len(queues.ops) + len(queues.gone) + len(queues.rows) + len(queues.keyed) + len(queues.appended)
        if left and not give_back:  # the next start finds them, too
            log.error("store: %d rows could not be written before the end: %s", left, self._status.error or "no time")
        self._ended.set()
        leaves = drained and not left and not self._paired
        if self._prepared and not (self._thread is not None and self._thread.is_alive()):
            with contextlib.suppress(SQLAlchemyError, StoreError):
                with self._writing() as connection:
                    if give_back:
                        self._ownership.give_back(connection)
                    else:
                        self._ownership.release(connection, leaves)
                        if self._run_number is not None:
                            dropped = self._status.dropped_history
                            starting.end_run(connection, self._run_number, dropped, -1 if left else left_open)
                self.left_to_others = leaves
        self.left_to_others |= drained and not left and self._paired
        if drained and not self.left_to_others:
            log.error("store: the database is still this instance's; another one begins by roost up --take-over")
        self.close_readers()
        self._writer_engine.dispose()
        return left

    def _prepare(self) -> None:
        if self._path:
            if self._awaited and not self.exists:
                raise StoreError(
                    f"there is no {self._path}, by whose rows connections sleep: put it back (is its disk mounted?) or "
                    "let them go: stop the daemon, then roost unpin"
                )
            self._awaited = False
            if self._damage is not None:
                file.check(self._path)
                self._damage = None
            if file.is_another(self._path, self._opened):
                self.close_readers()  # of what the path does not name any more
            if file.prepare(self._path, self._readers) and self._ownership.held:
                log.error("store: %s is gone, and a new one was made: who slept by its rows cannot wake", self._path)
        began_ms = lease_clock_ms()
        with self._writer_engine.connect() as connection:
            with connection.begin():
                begin_writing(connection)
                may_be_idle(connection, IDLE_S)  # tables are made, perhaps
                prepare_tables(connection, self._ownership.refuse_another)
                self._ownership.claim(connection)
                if self._paired:
                    self.cookie_secret = starting.cookie_secret(connection)
                self._max_id = max(self._max_id, get_meta(connection, "max_id") or 0)
                self._epochs.reload()
                self._history.load(connection)
                self._run_number = starting.find_run(connection, self._run_started)
                starting.agree_on_services(connection, self._wanted_services)
            self._opened = connection.info.get("files", ())
        self._has_lease_from(began_ms)
        with self._wake:
            self._history.settle()
        self._prepared = True
        self._status.error = ""

    @contextlib.contextmanager
    def _writing(self, synchronous: str = "FULL") -> Iterator[Connection]:
        """A transaction, of the owner of the database alone."""
        began_ms = lease_clock_ms()
        with self._writer_engine.connect() as connection:
            if self._path:  # outside of a transaction, where SQLite allows it
                connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
                connection.commit()
            with connection.begin():
                begin_writing(connection)
                self._ownership.renew(connection)
                yield connection
        self._has_lease_from(began_ms)

    def _has_lease_from(self, began_ms: int) -> None:
        """The transaction that renewed it began then, and is committed."""
        if self._paired:
            self._lease_until_ms = began_ms + self._ownership.lease_ms
            self._tell_lease(self._lease_until_ms)

    # -- SQLite's file ------------------------------------------------------------------------------------------------

    def _keep_file(self) -> None:
        """Have the path name the file that is open: another daemon, or the next one, would find nothing there. Raises
        what keeps that from being done."""
        if not self._path:
            return
        with self._writer_engine.connect() as connection:
            opened: file.Identity = connection.info["files"]
            now = file.identity(self._path)
            if now == opened:
                return
            if now[0] not in (None, opened[0]) and now[1] != opened[1]:  # with our log it is of no running daemon
                self._refuse_file_of_another()

            def let_go() -> None:
                self.close_readers()
                connection.invalidate()
                self._writer_engine.dispose()

            source = connection.connection.driver_connection
            assert isinstance(source, sqlite3.Connection)
            try:
                with self._checking:
                    aside = file.rescue(self._path, opened, source, let_go)
            except (OSError, sqlite3.Error) as error:
                raise StoreError(
                    f"{self._path} was removed or replaced while it was in use, and what it held, which is still open, "
                    f"cannot be written there: {reason(error)}"
                ) from error
        self._status.rescued += 1
        kept = f"; what was there is {' and '.join(aside)} now" if aside else ""
        log.error("store: %s was removed or replaced while it was in use: all that it held was written to a new file%s",
                  self._path, kept)  # fmt: skip
        self._prepare()

    def _refuse_file_of_another(self) -> None:
        other = open_engine(self._url, timeout_s=0.25, writer=False)
        try:
            with other.connect() as connection:
                self._ownership.refuse_another(connection)
        except (SQLAlchemyError, sqlite3.Error):
            pass  # it is no database of a daemon's
        finally:
            other.dispose()

    def _check_file(self) -> None:
        """For a thread of its own: a large file takes seconds, and a reader keeps no writer waiting."""
        pause = CHECK_S
        while not self._ended.wait(pause):
            began = time.monotonic()
            try:
                with self._checking:
                    file.check(self._path, self._opened)
            except file.DamagedError as error:
                with self._wake:
                    self._damage = error
                    self._wake.notify_all()
            pause = max(CHECK_S, (time.monotonic() - began) / CHECK_SHARE)

    # -- services -----------------------------------------------------------------------------------------------------

    def service_indexes(self, names: Sequence[str]) -> dict[str, int]:
        """A number for each service name, the same one in every run: sleeping records carry it.

        Without the database the order of the configuration decides, and SLEEP stays off until the database is back and
        agrees: rows must not be tied to another service than the one that wrote them."""
        self._wanted_services = starting.numbered(names, {})
        if self._prepared:
            try:
                with self._writing() as connection:
                    self._wanted_services = starting.numbered(names, starting.known_services(connection))
                    starting.agree_on_services(connection, self._wanted_services)
            except (SQLAlchemyError, StoreError) as error:
                self._note_failure(error)
        return self._wanted_services

    def number_services(self, names: Sequence[str]) -> dict[str, int]:
        """The same for services that come while the daemon runs. Raises StoreError, SQLAlchemyError: they have none."""
        if not self._prepared:
            raise StoreError(self._status.error)
        with self._writing() as connection:
            numbers = starting.numbered(names, starting.known_services(connection) | self._wanted_services)
            starting.agree_on_services(connection, numbers)
        self._wanted_services = self._wanted_services | numbers
        return numbers

    # -- what the daemon must know at start ---------------------------------------------------------------------------

    def next_id(self) -> int:
        """A number larger than any connection's that this store has seen; from the clock when it cannot say."""
        if not self._prepared:
            return time.time_ns() // 1000  # us since 1970: past every number that counting ever gave
        with self._reading() as connection:
            last = max(self._max_id, sleeping.last_number(connection))
        return last + (ID_GAP if last else 1)

    def begin_run(self) -> tuple[int, int]:
        """(first, last) row number of the predecessor's history, last 0: there is none; this run's begins behind it."""
        with self._writing() as connection:
            return self._begin_run(connection), self._history.next_row - 1

    def _begin_run(self, connection: Connection) -> int:
        self._run_number, first = starting.begin_run(
            connection, self._owner, self._run_started, self._history.next_row - 1
        )
        return first

    def note_caught_up(self, last: int) -> None:
        """starting.note_caught_up. Raises StoreError."""
        with self._changing() as connection:
            starting.note_caught_up(connection, last)

    def has_rows_of_another_boot(self, boot: str) -> bool:
        """starting.has_rows_of_another_boot. Raises StoreError."""
        with self._changing() as connection:
            return starting.has_rows_of_another_boot(connection, boot)

    def alive_ms(self) -> dict[str, int]:
        """starting.alive_ms. Raises StoreError."""
        with self._changing() as connection:
            return starting.alive_ms(connection)

    def other_clocks(self) -> dict[int, sa.Row[Any]]:
        """starting.other_clocks. Raises StoreError."""
        with self._changing() as connection:
            return starting.other_clocks(connection, self._boot_id)

    def put_back(self, shifts: Mapping[int, tuple[int, int]]) -> None:
        """starting.put_back. Raises StoreError."""
        with self._changing() as connection:
            starting.put_back(connection, self._boot_id, shifts)

    def tables(self) -> int:
        """Those that the rows were written for last: a number of adopt_tables; 0: it was never said."""
        with self._reading() as connection:
            return get_meta(connection, "tables") or 0

    def adopt_tables(self, tables: int) -> int:
        """starting.adopt_tables. For before `start`."""
        with self._writing() as connection:
            return starting.adopt_tables(connection, tables, self._boot_id)

    def change_rules(self, contents: Mapping[str, str | None], who: str, why: str, seen: int) -> list[policies.RuleRow]:
        """policies.write."""
        with self._changing() as connection:
            return policies.write(connection, contents, who, why, seen)

    def write_groups(self, wanted: Mapping[frozenset[str], int]) -> None:
        """policies.write_groups."""
        with self._changing() as connection:
            policies.write_groups(connection, wanted)

    def change_tags(self, name: str, add: Sequence[str], remove: Sequence[str]) -> list[str]:
        """tagging.change."""
        with self._changing() as connection:
            return tagging.change(connection, name, add, remove)

    def add_token(self, row: tokens.TokenRow) -> None:
        """tokens.add."""
        with self._changing() as connection:
            tokens.add(connection, row)

    def revoke_token(self, which: str) -> tokens.TokenRow:
        """tokens.revoke."""
        with self._changing() as connection:
            return tokens.revoke(connection, which, time.time_ns() // 1_000_000)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Connection]:
        """A transaction that an operator waits for: it is committed afterwards. Raises StoreError, and then nothing has
        changed."""
        if self._status.error or not self._prepared:
            raise StoreError(self._status.error or "the database is not open")
        if self._path and file.is_another(self._path, self._opened):
            raise StoreError(f"{self._path} was removed or replaced while it was in use")
        try:
            with self._writing() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(reason(error)) from error

    def let_go(self) -> int:
        """Who sleeps is CLOSED from now on, by command; how many. For while no daemon runs."""
        now, closed, before = time.time_ns() // 1_000_000, 0, sleeping.LAST_NUMBER
        self._history.begin()
        with self._writing() as connection:
            while page := sleeping.page_before(connection, before, CLOSED_ROWS):
                said = State.SLEEP, State.CLOSED, Cause.COMMAND, 0, 0, 0, NO_ENDS
                rows = (HISTORY.pack(row.id, now, row.key, row.service, *said) for row in page)
                self._write_history(connection, b"".join(rows))
                closed, before = closed + len(page), page[-1].id
            sleeping.forget_all(connection)
        self._history.settle()
        return closed

    # -- writing ------------------------------------------------------------------------------------------------------

    @property
    def sleep_allowed(self) -> bool:
        """False while the database cannot be written, or not as fast as connections want to sleep."""
        return not self._status.error and len(self._queues.ops) < SLEEP_BOUND

    def add(
        self,
        rows: Sequence[bytes] = (),
        upserts: Iterable[tuple[bytes, bytes]] = (),
        deletes: Iterable[tuple[bytes, int]] = (),
        stale: Iterable[tuple[bytes, int, int]] = (),
        keyed: Mapping[Keyed, bytes | None] = MappingProxyType({}),
        first: bool = False,
    ) -> None:
        """Queue history rows (schema.HISTORY, one or more in a piece), records to be put to sleep (key, ka + rest) and
        records to be forgotten (key, reference). Both of one connection: it woke and is to sleep again. stale (key,
        number, generation): rows that were committed in vain; rows of another generation stay. keyed: what stands in
        these rows from now on (schema.KEYED), None: nothing. first: the history rows come before all others that wait.
        Never blocks on the database; `flush` does."""
        with self._wake:
            dropped = self._queues.add(rows, upserts, deletes, stale, keyed, first)
            if dropped and not self._status.dropped_history:
                log.error("store: history is full (%d rows wait); rows are being dropped", len(self._queues.rows))
            self._status.dropped_history += dropped
            if not self._gathering or self._pause(0) < RELAXED_GATHER_S:
                self._wake.notify()

    def hold_history(self) -> None:
        """Write no history until `release_history`, unless half of what may wait does."""
        with self._wake:
            self._queues.held = True

    def release_history(self) -> None:
        """Write it."""
        with self._wake:
            self._queues.held = False
            self._wake.notify()

    def append(self, row: appended.Row) -> None:
        """Queue a row of one of appended.TABLES. Never blocks on the database."""
        with self._wake:
            if not self._queues.append(row):
                table = appended.TABLES[type(row)].name
                name = f"dropped_{table}"
                if not getattr(self._status, name):
                    log.error("store: %d rows of %s wait; more are being dropped", APPENDED_BOUND, table)
                setattr(self._status, name, getattr(self._status, name) + 1)
            elif not self._gathering:
                self._wake.notify()

    def is_writing(self, keys: Iterable[bytes]) -> bool:
        """Whether a row of one of these connections is to be written, or is and `on_slept` was not called for it."""
        with self._wake:
            ops = self._queues.ops, self._being_written.ops
            return any(key in self._unheard or any(isinstance(of.get(key), bytes) for of in ops) for key in keys)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._wake:
                to_prune = time.monotonic() >= self._next_prune
                if not (self._queues.waiting or self._closing or self._status.error or to_prune):
                    self._wake.wait(min(WATCH_S, self._ownership.due_in_s))
                closing = self._closing
                # Plain waits would end at every add(): gathering and backing off are about time, not about work.
                began = time.monotonic()
                self._gathering = True
                while not self._closing and (left := began + self._pause(failures) - time.monotonic()) > 0:
                    self._wake.wait(left)
                self._gathering = False
                batch = self._being_written = self._doubtful or self._queues.take(self._batch)
            try:
                if not self._prepared:
                    self._prepare()
                elif self._damage is not None:
                    raise self._damage
                self._keep_file()
                # After an error even an empty batch is written: only a commit proves that the database is back.
                if batch or self._status.error or self._ownership.due:
                    if self._doubtful is None or not self._is_committed(batch):
                        self._write(batch)
                    self._doubtful = None
                    self._unheard.update((one[0], one) for one in batch.slept)
                    self._settle(batch)
                    batch = Batch()
                    self._keep_file()
                if time.monotonic() >= self._next_prune:
                    self._prune()
            except Exception as error:
                # Not only SQLAlchemyError: whatever a driver raises, the rows must not be lost and must be tried again.
                with self._wake:
                    if self._doubtful is None or closing or isinstance(error, FencedError):
                        self._queues.put_back(batch)
                        self._being_written = Batch()
                self._note_failure(error)
                failures += 1
                self.fenced = isinstance(error, FencedError)
                if closing or isinstance(error, FencedError):
                    return
                continue
            if failures:
                log.warning("store: writing again")
            failures = 0
            if self._unheard:  # which `asleep` calls unsettled: the engine hears of them before it is told of a row
                self._on_slept(list(self._unheard.values()))
                self._unheard = {}
            with self._wake:
                self._status.error = ""
                self._being_written = Batch()
                self._committed.notify_all()
                done = self._closing and not self._queues.waiting
            if done:
                return

    def _settle(self, batch: Batch) -> None:
        """What is committed is not written again."""
        with self._wake:
            self._status.written_history += len(batch.rows)
            self._settled_rows += len(batch.rows) + len(batch.appended)
            self._settled_keyed += batch.queued_keyed
            if self._history.settle():
                self._next_prune = 0.0
            batch.settled = True
            self._committed.notify_all()

    def _pause(self, failures: int) -> float:
        """How long to wait before the next batch, seconds; the caller holds the lock."""
        if failures and self._paired:
            return BACKOFF_S[0]  # the other machine waits for no longer than the lease
        if failures:
            return BACKOFF_S[min(failures, len(BACKOFF_S)) - 1]
        if self._paired and self._ownership.due:
            return 0.0
        full = self._queues.writable_rows >= self._batch or len(self._queues.ops) >= self._batch
        return 0.0 if full else GATHER_S if self._queues.urgent else RELAXED_GATHER_S

    def _is_committed(self, batch: Batch) -> bool:
        """Of one whose commit was not answered."""
        with self._writer_engine.connect() as connection:
            return get_meta(connection, "batch") == batch.mark

    def _write(self, batch: Batch) -> None:
        """One transaction; batch.slept are the rows that are committed in `sleeping` then."""
        self._doubtful = None
        began = time.monotonic()
        slept: list[sleeping.Committed] = []
        gone = list(batch.gone)
        for key, op in batch.ops.items():
            if isinstance(op, bytes):
                self._generation += 1
                slept.append((key, sleeping.number_of(op), self._generation, op))
            else:
                gone.append((key, op))
        # A lost row of history is a gap in a report; a lost row of `sleeping` is a client that cannot be woken, so the
        # log is synced before SLEEP is believed. And an answer to a name says that it lasts.
        self._history.begin()
        dropped = self._status.dropped_history
        with self._writing("FULL" if slept or batch.keyed else "NORMAL") as connection:
            if self._run_number is None:  # the database was away when it began
                self._begin_run(connection)
            packed = batch.rows.packed()
            if batch.rows.any_unnumbered():
                packed = with_numbers(connection, self._epochs, packed)
            self._write_history(connection, packed)
            if batch.stale:
                sleeping.forget_stale(connection, batch.stale)
            sleeping.forget(connection, self._epochs, gone)
            if slept:  # last: what is forgotten may be of the same connection
                clock = sleeping.clock(connection, self._boot_id, starting.wall_offset_ms())
                at = time.time_ns() // 1_000_000
                queued, slept = len(slept), sleeping.put(connection, self._epochs, slept, at, clock)
                self._max_id = max([self._max_id, *(number for _, number, _, _ in slept)])
                if len(slept) < queued:
                    log.error("store: %d connections stay IDLE: the database, which was another instance's, has other "
                              "connections with their numbers", queued - len(slept))  # fmt: skip
            write_keyed(connection, batch.keyed)
            if batch.appended:
                appended.write(connection, batch.appended)
            set_meta(connection, "max_id", self._max_id)
            set_meta(connection, "batch", batch.mark)
            starting.keep_alive(connection, self._boot_id)
            if dropped != self._run_dropped and self._run_number is not None:
                starting.note_dropped(connection, self._run_number, dropped)
            batch.slept, self._doubtful = slept, batch or None
        self._run_dropped = dropped
        self._status.last_commit_ms = (time.monotonic() - began) * 1000

    def _write_history(self, connection: Connection, packed: bytes) -> None:
        self._max_id = max(self._max_id, max(references_of(packed), default=0))
        self._history.write(connection, packed)

    def _prune(self) -> None:
        """Remove history past its days or bytes, a part a transaction: waiting SLEEP rows must get in between."""
        cutoff = int((time.time() - self._keep_days * 86400) * 1000) if self._keep_days else 0
        self._history.begin()
        with self._writing("NORMAL") as connection:
            more = appended.prune(connection, cutoff, self._keep_bytes, PRUNE_ROWS)
            more |= self._history.prune(connection, PRUNE_ROWS)
            # The oldest are found first, since numbers ascend: only where there are few the whole table is looked at.
            begins_ms = self._history.begins_ms(connection)
            old = sa.select(successors.c.id).where(successors.c.at < begins_ms).order_by(successors.c.id)
            some = sa.delete(successors).where(successors.c.id.in_(old.limit(PRUNE_ROWS)))
            more |= connection.execute(some).rowcount == PRUNE_ROWS
        with self._wake:
            self._history.settle()
        if not more:
            self._next_prune = time.monotonic() + (PRUNE_AGAIN_S if self._history.held else PRUNE_EVERY_S)

    def _note_failure(self, error: Exception) -> None:
        if self._path:
            error = file.explained(error, self._path)
        if isinstance(error, file.DamagedError):
            self._damage = error
        said = reason(error)
        with self._wake:
            if self._status.error != said:
                log.error("store: %s: %s", without_secrets(self._url), said)
            self._status.error = said
            self._committed.notify_all()
        replaced = bool(self._path) and self._prepared and file.identity(self._path) != self._opened
        if replaced and self._damage is None and self._writer_engine.pool.checkedin():  # type: ignore[attr-defined]
            return  # what is open is all that there is, and is written to a new file at the next attempt
        # The file may be replaced, the server restarted: the next attempt begins with a new connection and looks at
        # the tables again.
        self._prepared = False
        self._writer_engine.dispose()
