# SPDX-License-Identifier: Apache-2.0
"""Two machines with one database ([standby]): one has the connections, the other stands by.

Which of them it is to be, an address says, which keepalived or whatever else gives to one machine at a time. The one
without it reads the rows of those that sleep into a table of its own, again and again, so that little is left to be
read when the address comes. It has them once its claim to the database is committed (control/store/owner.py), and does
not claim it before the other one's lease is over or given back.

The one with the connections gives them up where the address has gone: each gets its row, as by `roost drain`. One
whose lease is over wakes and probes none (cext/base/face.h, roost_lease), and when it finds that the other one has
claimed the database, it lets go of all it has. Either then begins anew, and stands by.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EADDRNOTAVAIL
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from appliance.engine import Engine, unpin
from appliance.wire import KA, KEY
from control.channel.standing_by import serve_only
from control.config import Config
from control.core.states import State
from control.daemon import quarantine
from control.daemon.end import End
from control.daemon.error import DaemonError
from control.daemon.inventory import Inventory, record_of, tables_of
from control.daemon.manager import Manager
from control.daemon.reconcile import timestamps_ahead_ms
from control.store.database import StoreError, parse_url, reason
from control.store.owner import boot_id, lease_clock_ms
from control.store.reading import Reader
from control.store.starting import wall_offset_ms
from control.store.store import Store

log = logging.getLogger("roost.daemon")

LOOK_S: Final = 0.05
"""How often it is looked whether the address is here, while it is not."""

HELD_LOOK_S: Final = 0.2
"""The same while it is."""

READ_S: Final = 0.5
"""How often rows that are new are read."""

RETAIN_S: Final = 60.0
"""How often slots without a row are removed."""

TOLD_S: Final = 1.0
"""How often the service manager hears that this process lives."""

AWAY_S: Final = 1.0
"""An address that comes back within this time has not gone."""

NO_ROOM_S: Final = 60.0

JUMP_MS: Final = 1000
"""By so much one clock of this machine goes away from another when it is set, or the machine was suspended."""

NONLOCAL_BIND: Final = "/proc/sys/net/ipv{}/ip_nonlocal_bind"


def is_here(address: str) -> bool:
    """Whether this machine has the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            if error.errno == EADDRNOTAVAIL:
                return False
            raise
    return True


class Mirror:
    """The rows of those that sleep, in the table of an engine that was not started. For one thread. ends: whether it is
    time to stop, whatever is not read yet."""

    def __init__(self, engine: Engine, reader: Reader, ends: Callable[[], bool] = lambda: False) -> None:
        self.engine = engine
        self.shifts: dict[int, tuple[int, int]] = {}
        """By the number of a clock: how far this boot's clocks are ahead (starting.put_back)."""
        self._reader = reader
        self._owner: sa.Row[Any] | None = None
        self._clocks: dict[int, sa.Row[Any]] = {}
        self._generation = -1
        self._left: set[int] = set()
        """Numbers of rows that are not in the table, or were not once."""
        self._ends = ends
        self._offsets = _offsets()
        self._is_full = False

    @property
    def host(self) -> str:
        """Of the machine that has the connections; empty: none had them yet."""
        return self._owner.host if self._owner is not None else ""

    @property
    def count(self) -> int:
        """How many connections are in the table."""
        stats = self.engine.stats()
        return stats["table_ipv4"] + stats["table_ipv6"]

    def refresh(self, claimed: bool = False) -> None:
        """Take in what was written since the last time. claimed: the database is this machine's now. Raises StoreError,
        SQLAlchemyError."""
        owner = self._reader.owner()
        if owner is None:
            return
        clocks, alive = self._reader.clocks()
        before = self._owner.epoch + claimed if self._owner is not None else -1
        offsets = _offsets()
        jumped = any(abs(now - then) > JUMP_MS for now, then in zip(offsets, self._offsets, strict=True))
        if owner.epoch != before or any(clocks.get(n) != row for n, row in self._clocks.items()) or jumped:
            # Generations begin anew, or times have another meaning.
            self._generation, self.shifts, self._left, self._offsets = -1, {}, set(), offsets
        self._owner, self._clocks = owner, clocks
        for number, row in clocks.items():
            self.shifts.setdefault(number, _shift(row, alive))
        for keys, kas, numbers, of, generation in self._reader.rows_newer(self._generation):
            if not clocks.keys() >= set(of):
                return  # it was set in between: the next time
            self._put(keys, kas, numbers, of)
            self._generation = generation

    def _put(self, keys: bytes, kas: bytes, numbers: array[int], clocks: array[int]) -> None:
        """Pairs, and those that may need no slot, are left out: they are put back one by one when the daemon serves."""
        shifts = {clock: (row.shift_ms + self.shifts[clock][0], row.timestamps_ms + self.shifts[clock][1])
                  for clock, row in self._clocks.items()}  # fmt: skip
        deadline = time.monotonic() + (0 if self._is_full else NO_ROOM_S)
        while numbers:
            done, errors = self.engine.put_back(keys, kas, numbers, clocks, shifts)
            if any(errors):
                self._left.update(number for number, error in zip(numbers, errors, strict=False) if error)
            keys, kas, numbers, clocks = keys[done * KEY.size :], kas[done * KA.size :], numbers[done:], clocks[done:]
            if self._ends():
                return
            if done:
                deadline, self._is_full = time.monotonic() + NO_ROOM_S, False
            elif time.monotonic() > deadline:
                if not self._is_full:
                    log.error("the table of this standby is full; give more room in [table]: %d rows and more are left "
                              "to be put back when it takes over", len(numbers))  # fmt: skip
                self._is_full = True
                self._left.update(numbers)
                return
            else:
                time.sleep(0.01)  # the table grows

    def taken_over(self) -> Inventory:
        """What there is, when the database is this machine's and nothing moves yet. Raises as `refresh`."""
        self.refresh(claimed=True)
        numbers = self.retain(but_left=True)
        found = Inventory(sleep_ids=numbers, left=array("Q", sorted(self._left)), shifts=self.shifts)
        for row in self._reader.rows_numbered(found.left or ()):
            if (peer := record_of(row).peer) is not None:
                found.ports.add(peer.key.local_port)
        found.states[State.SLEEP] = self.engine.slots_in_sleep()
        found.other_boot = len(found.sleep_ids)
        self._reader.close_readers()
        return found

    def retain(self, but_left: bool = False) -> array[int]:
        """Remove what has no row any more; the numbers of all rows. but_left: also what was not in the table once, of
        which it may have an earlier row. Raises as `refresh`."""
        numbers = self._reader.numbers()
        if self._left:
            self._left.intersection_update(numbers)
        of = array("Q", (n for n in numbers if n not in self._left)) if but_left and self._left else numbers
        self.engine.retain(of)
        return numbers


def _offsets() -> tuple[int, int]:
    """How far the wall clock and CLOCK_BOOTTIME are from CLOCK_MONOTONIC, ms: they change where one is set, and where
    the machine was suspended."""
    return wall_offset_ms(), lease_clock_ms() - time.monotonic_ns() // 1_000_000


def _shift(clock: sa.Row[Any], alive: dict[str, int]) -> tuple[int, int]:
    if clock.boot_id == boot_id():
        return 0, 0
    by_wall_ms = clock.wall_offset_ms - wall_offset_ms()
    now_ms = time.monotonic_ns() // 1_000_000
    return by_wall_ms, timestamps_ahead_ms(by_wall_ms, alive.get(clock.boot_id), now_ms)


class StandingBy:
    """Until this machine of two has the connections, or the end. make: an engine with an empty table. store: to be
    taken. let_go: of what a daemon before this one has handed over, which is the other machine's now."""

    def __init__(self, config: Config, control: socket.socket, manager: Manager, make: Callable[[], Engine],
                 store: Store, let_go: Callable[[], None]) -> None:  # fmt: skip
        if Path(NONLOCAL_BIND.format(6 if ":" in config.standby.address else 4)).read_text(encoding="ascii") != "0\n":
            raise DaemonError("[standby] this machine cannot tell which addresses it has while "
                              "net.ipv4.ip_nonlocal_bind (or that of ipv6) is not 0: set it to 0")  # fmt: skip
        self._config = config
        self._control = control
        self._manager = manager
        self._make = make
        self._store = store
        self._let_go = let_go
        self._signal = 0
        self._unread = ""
        self._untaken = ""
        self._read_at = time.monotonic()
        self.mirror: Mirror | None = None
        """What it has read, where it did not have the address at once."""

    @property
    def ended_by(self) -> int:
        """SIGTERM or SIGINT; SIGHUP: the configuration is to be read again; 0: by no signal."""
        return self._signal

    def told(self) -> str:
        """A sentence for people."""
        address = self._config.standby.address
        if self._untaken:
            return f"this machine has the address {address}, and not yet the connections: {self._untaken}"
        other, count = (self.mirror.host, self.mirror.count) if self.mirror is not None else ("", 0)
        problem = ""
        if self._unread:
            problem = f"; the database could not be read for {time.monotonic() - self._read_at:.0f} s: {self._unread}"
        return (f"this machine stands by: {other or 'no machine yet'} has the connections, {count} connections are in "
                f"its table, and it takes over when it has the address {address}{problem}")  # fmt: skip

    def run(self) -> bool:
        """Whether it has the database now; False: the end. Raises FencedError: it can only begin anew."""
        handlers = {number: signal.signal(number, self._on_signal)
                    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}  # fmt: skip
        taken = False
        try:
            with _answering(self._control, self.told), self._manager.living():
                taken = self._wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if not taken:
                if self.mirror is not None:
                    self.mirror.engine.close()
                if not is_here(self._config.standby.address):  # else the kernel would reset its clients
                    quarantine.end(self._config.instance)
        return taken

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number

    def _wait(self) -> bool:
        tells = muted = 0.0
        while not self._signal:
            now = time.monotonic()
            if now >= muted:  # it must hold already when the address comes
                quarantine.begin(self._config)
                muted = now + quarantine.MOST_S / 2
            if is_here(self._config.standby.address):
                if self._take():
                    return True
            else:
                self._untaken = ""
                self._mirror()
            if now >= tells:
                self._manager.ready(self.told())
                tells = now + TOLD_S
            time.sleep(LOOK_S)
        return False

    def _take(self) -> bool:
        why = self._store.take()
        if why and not self._untaken:
            log.warning("this machine has the address %s, and waits: %s", self._config.standby.address, why)
        self._untaken = why
        return not why

    def _mirror(self) -> None:
        """Read what is new, when it is time."""
        if self.mirror is None:
            if tables_of(self._config.pin_dir):
                log.warning("what sleeps in the tables of this machine and has no row is let go of: it does not have "
                            "the address %s", self._config.standby.address)  # fmt: skip
            self._let_go()
            unpin(self._config.pin_dir)
            self.mirror = Mirror(self._make(), Reader(parse_url(self._config.database_url)), lambda: bool(self._signal))
            self._reads = self._retains = 0.0
            log.info("%s", self.told())
        if (now := time.monotonic()) < self._reads:
            return
        try:
            self.mirror.refresh()
            if now >= self._retains:
                self.mirror.retain()
                self._retains = now + RETAIN_S
        except (StoreError, SQLAlchemyError) as error:
            if not self._unread:
                log.error("the database cannot be read: %s", reason(error))
            self._unread = reason(error)
        else:
            if self._unread:
                log.info("the database can be read again")
            self._unread, self._read_at = "", time.monotonic()
        self._reads = time.monotonic() + READ_S


@contextmanager
def _answering(control: socket.socket, tell: Callable[[], str]) -> Iterator[None]:
    """Whoever asks by the control socket is told that this machine stands by."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve_only(control.dup(), tell, stop)), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


class Holding:
    """While this machine has the connections: what ends that."""

    def __init__(self, config: Config, store: Store, end: End) -> None:
        self._address = config.standby.address
        self._store = store
        self._end = end

    async def run(self) -> None:
        """Until the end, or for as long as there is none."""
        here = time.monotonic()
        while not self._end.has_come:
            await asyncio.sleep(HELD_LOOK_S)
            now = time.monotonic()
            if self._store.fenced:
                log.error("another machine has taken the connections over: all that this one has is let go of")
                self._end.anew = True
                self._end.come()
            elif is_here(self._address):
                here = now
            elif now - here > AWAY_S:
                log.warning("the address %s has gone: every connection gets its row, for the machine that has it now",
                            self._address)  # fmt: skip
                self._end.drain(anew=True)
