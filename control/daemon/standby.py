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
from itertools import groupby
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
from control.daemon.inventory import Inventory
from control.daemon.manager import Manager
from control.daemon.reconcile import timestamps_ahead_ms
from control.store.database import StoreError, parse_url, reason
from control.store.owner import boot_id
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

GONE_S: Final = 1.0
"""An address that comes back within this time has not gone."""

NO_ROOM_S: Final = 60.0


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
    """The rows of those that sleep, in the table of an engine that was not started. For one thread."""

    def __init__(self, engine: Engine, reader: Reader) -> None:
        self.engine = engine
        self.shifts: dict[int, tuple[int, int]] = {}
        """By the number of a clock: how far this boot's clocks are ahead (starting.put_back)."""
        self._reader = reader
        self._owner: sa.Row[Any] | None = None
        self._clocks: dict[int, sa.Row[Any]] = {}
        self._generation = -1
        self._left: list[int] = []
        """Numbers of rows that are not in the table."""
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
        if owner.epoch != before or any(clocks.get(number) != row for number, row in self._clocks.items()):
            # Generations begin anew, or times have another meaning.
            self._generation, self.shifts, self._left = -1, {}, []
        self._owner, self._clocks = owner, clocks
        for number, row in clocks.items():
            self.shifts.setdefault(number, _shift(row, alive))
        for keys, kas, numbers, of, generation in self._reader.rows_newer(self._generation):
            at = 0
            for clock, run in groupby(of):
                first, at = at, at + sum(1 for _ in run)
                if clock not in clocks:
                    return  # it was set in between: the next time
                self._put(keys[first * KEY.size : at * KEY.size], kas[first * KA.size : at * KA.size],
                          numbers[first:at], clock)  # fmt: skip
            self._generation = generation

    def _put(self, keys: bytes, kas: bytes, numbers: array[int], clock: int) -> None:
        """Pairs, and those that may need no slot, are left out: they are put back one by one when the daemon serves."""
        of, (ms, timestamps_ms) = self._clocks[clock], self.shifts[clock]
        deadline = time.monotonic() + (0 if self._is_full else NO_ROOM_S)
        while numbers:
            done, errors = self.engine.put_back(keys, kas, numbers, of.shift_ms + ms, of.timestamps_ms + timestamps_ms)
            if any(errors):
                self._left += [number for number, error in zip(numbers, errors, strict=False) if error]
            keys, kas, numbers = keys[done * KEY.size :], kas[done * KA.size :], numbers[done:]
            if done:
                deadline = time.monotonic() + NO_ROOM_S
            elif time.monotonic() > deadline:
                if not self._is_full:
                    log.error("the table of this standby is full; give more room in [table]: %d rows and more are left "
                              "to be put back when it takes over", len(numbers))  # fmt: skip
                self._is_full = True
                self._left += numbers
                return
            else:
                time.sleep(0.01)  # the table grows

    def taken_over(self) -> Inventory:
        """What there is, when the database is this machine's and nothing moves yet. Raises as `refresh`."""
        self.refresh(claimed=True)
        numbers = self.retain()
        left = array("Q", sorted(frozenset(self._left).intersection(numbers)) if self._left else ())
        found = Inventory(sleep_ids=numbers, left=left, shifts=self.shifts)
        found.states[State.SLEEP] = self.engine.slots_in_sleep()
        found.other_boot = len(found.sleep_ids)
        self._reader.close_readers()
        return found

    def retain(self) -> array[int]:
        """Remove what has no row any more; the numbers of all rows. Raises as `refresh`."""
        numbers = self._reader.numbers()
        self.engine.retain(numbers)
        return numbers


def _shift(clock: sa.Row[Any], alive: dict[str, int]) -> tuple[int, int]:
    if clock.boot_id == boot_id():
        return 0, 0
    by_wall_ms = clock.wall_offset_ms - wall_offset_ms()
    now_ms = time.monotonic_ns() // 1_000_000
    return by_wall_ms, timestamps_ahead_ms(by_wall_ms, alive.get(clock.boot_id), now_ms)


class StandingBy:
    """Until the address is here, or the end. make: an engine with an empty table."""

    def __init__(self, config: Config, control: socket.socket, manager: Manager, make: Callable[[], Engine]) -> None:
        self._config = config
        self._control = control
        self._manager = manager
        self._make = make
        self._signal = 0
        self._problem = ""
        self._read_at = 0.0

    def is_wanted(self) -> bool:
        """Whether this machine is to have the connections."""
        return not self._signal and is_here(self._config.standby.address)

    @property
    def ended_by(self) -> int:
        """SIGTERM or SIGINT; SIGHUP: the configuration is to be read again; 0: by no signal."""
        return self._signal

    def told(self) -> str:
        """A sentence for people."""
        mirror = self._mirror
        other = mirror.host or "no machine yet"
        problem = ""
        if self._problem:
            problem = f"; the database could not be read for {time.monotonic() - self._read_at:.0f} s: {self._problem}"
        return (f"this machine stands by: {other} has the connections, {mirror.count} connections are in its table, "
                f"and it takes over when it has the address {self._config.standby.address}{problem}")  # fmt: skip

    def run(self) -> Mirror | None:
        """What it has read when the address is here; None: the end."""
        unpin(self._config.pin_dir)  # of rows that are old by now
        reader = Reader(parse_url(self._config.database_url))
        mirror = self._mirror = Mirror(self._make(), reader)
        handlers = {number: signal.signal(number, self._on_signal)
                    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}  # fmt: skip
        taken = False
        try:
            with _answering(self._control, self.told):
                self._manager.ready(self.told())
                log.info("%s", self.told())
                self._wait(mirror)
            taken = not self._signal
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if not taken:
                mirror.engine.close()
                quarantine.end(self._config.instance)
        return mirror if taken else None

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number

    def _wait(self, mirror: Mirror) -> None:
        reads = retains = tells = muted = 0.0
        while not self._signal and not is_here(self._config.standby.address):
            now = time.monotonic()
            if now >= muted:  # it must hold already when the address comes
                quarantine.begin(self._config)
                muted = now + quarantine.MOST_S / 2
            if now >= reads:
                self._read(mirror, now >= retains)
                retains = now + RETAIN_S if now >= retains else retains
                reads = time.monotonic() + READ_S
            if now >= tells:
                self._manager.lives()
                tells = now + TOLD_S
            time.sleep(LOOK_S)

    def _read(self, mirror: Mirror, retain: bool) -> None:
        try:
            mirror.refresh()
            if retain:
                mirror.retain()
        except (StoreError, SQLAlchemyError) as error:
            if not self._problem:
                log.error("the database cannot be read: %s", reason(error))
            self._problem = reason(error)
            return
        if self._problem:
            log.info("the database can be read again")
        self._problem, self._read_at = "", time.monotonic()


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
        while self._address and not self._end.has_come:
            await asyncio.sleep(HELD_LOOK_S)
            now = time.monotonic()
            if self._store.fenced:
                log.error("another machine has taken the connections over: all that this one has is let go of")
                self._end.come()
            elif is_here(self._address):
                here = now
            elif now - here > GONE_S:
                log.warning("the address %s has gone: every connection gets its row, for the machine that has it now",
                            self._address)  # fmt: skip
                self._end.drain(anew=True)
