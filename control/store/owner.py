# SPDX-License-Identifier: Apache-2.0
"""Whose a database is: two daemons on one would take each other's sleepers for connections that are gone.

One row names the owner: an instance on a machine with its pins, and its process. Whoever claims it raises the epoch,
and every transaction of the store begins by renewing the lease of its own epoch: an owner that was replaced meanwhile
finds no such row, and writes nothing.

    claimed by             while it lives  after its death                                        after a drain
    the same instance      refused         at once                                                at once
    any other              refused         only when it was asked for (`roost up --take-over`)    at once

The row of an owner that was drained names no machine: the database is nobody's. It stays for its epoch, since an epoch
that was given twice would let a daemon that was fenced earlier renew the lease of the one that has it now.

Whether a process of this boot lives, the kernel says. Of one in another boot or another pid namespace the lease alone
speaks: it is waited for until it is renewed, or its time is over by our own clock.

Of a pair ([standby]) either takes over as soon as the other's lease is over, whether that one lives or not: who has no
lease any more leaves the connections alone (roost_lease, cext/base/face.h).
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from control.store.database import StoreError, now_ms
from control.store.schema import owner

LEASE_S: Final = 15.0
"""How long a daemon that is not heard of counts as alive, where nothing else can be known."""

RENEWALS: Final = 4
"""So many within a lease."""


class OwnedError(StoreError):
    """The database belongs to another daemon, and may not be taken."""


class FencedError(StoreError):
    """Another daemon has taken the database over: this one may not write any more, ever."""


class LeaseRunsError(StoreError):
    """Nothing but its lease says whether the owner lives; `lease` differs when it was renewed."""

    def __init__(self, message: str, lease: tuple[int, int]) -> None:
        super().__init__(message)
        self.lease = lease


def boot_id() -> str:
    """The kernel's name for this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def lease_clock_ms() -> int:
    """The clock by which a daemon judges its own lease: it goes on while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def started(pid: int) -> int:
    """When a process of this pid namespace started, clock ticks after boot; 0: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _machine() -> str:
    try:
        found = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        found = ""
    return found or os.uname().nodename[:64]


@dataclass(frozen=True, slots=True)
class Owner:
    """A daemon: columns of the table `owner`."""

    instance: str
    pins: str
    machine: str
    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    started: int

    @classmethod
    def here(cls, instance: str = "main", pins: str = "") -> Owner:
        """This process."""
        uname, pid = os.uname(), os.getpid()
        namespace = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
        return cls(instance, pins, _machine(), uname.nodename[:255], boot_id(), namespace, pid, started(pid))

    def is_instance(self, row: Row[Any]) -> bool:
        """Whether the row names this instance, in whichever process."""
        return (row.instance, row.pins, row.machine) == (self.instance, self.pins, self.machine)

    def knows_alive(self, row: Row[Any]) -> bool | None:
        """Whether the process of the row lives; None: it cannot be known from here. This process itself does not
        count: it has no second daemon."""
        if (row.boot_id, row.pid_namespace) != (self.boot_id, self.pid_namespace):
            return None
        return bool(row.pid != self.pid and started(row.pid) == row.started)


class Ownership:
    """A daemon's claim to its database. Every call is within a transaction of the writer's. paired: it is one of two
    machines, and the other one may have it."""

    def __init__(self, me: Owner, take_over: bool, lease_s: float = LEASE_S, paired: bool = False) -> None:
        self._me = me
        self._take_over = take_over
        self._paired = paired
        self._renew_s = lease_s / RENEWALS
        self.lease_ms = round(lease_s * 1000)
        self._epoch = 0
        self._before: dict[str, Any] | None = None
        self._renewed = 0.0
        self.dead: tuple[int, int] | None = None
        """A lease (LeaseRunsError) that was waited for in vain: its owner is dead."""

    @property
    def held(self) -> bool:
        """Whether there was a claim, of this process."""
        return self._epoch > 0

    @property
    def due(self) -> bool:
        """Whether it is time to renew the lease."""
        return not self.due_in_s

    @property
    def due_in_s(self) -> float:
        """How long until then."""
        return max(self._renewed + self._renew_s - time.monotonic(), 0.0)

    def claim(self, connection: Connection) -> None:
        """Own the database. Raises OwnedError, FencedError, LeaseRunsError."""
        row = self._found(connection)
        if row is not None and self._epoch:
            if row.epoch > self._epoch:
                raise FencedError(_fenced(row))
            if all(getattr(row, name) == value for name, value in asdict(self._me).items()):
                self.renew(connection)
                return
        if row is not None:
            self._judge(row)
            self._before = {column.name: row._mapping[column.name] for column in owner.columns}
        epoch = max(self._epoch, row.epoch if row is not None else 0) + 1
        now = now_ms(connection.dialect.name)
        connection.execute(sa.delete(owner))
        connection.execute(
            sa.insert(owner).values(**asdict(self._me), one=1, epoch=epoch, since=now, lease_until=now + self.lease_ms)
        )
        self._epoch, self._renewed = epoch, time.monotonic()

    def _judge(self, row: Row[Any]) -> None:
        if not row.machine:
            return
        ours = self._me.is_instance(row)
        alive = self._me.knows_alive(row)
        lease = row.epoch, row.lease_until
        runs = row.lease_until > row.now and lease != self.dead
        if self._paired:
            if runs and alive is not False and not (ours and row.boot_id == self._me.boot_id):
                raise LeaseRunsError(f'instance "{row.instance}" of host {row.host} has the connections', lease)
            return
        if alive is None:
            alive = None if runs else False
        who = f'the database belongs to instance "{row.instance}" of host {row.host} (pid {row.pid}, pins {row.pins})'
        if alive:
            raise OwnedError(f"{who}, which is running: give this instance a database of its own, or stop that one")
        if not ours and not self._take_over:
            state = "which does not run" if alive is False else "which may be running"
            if alive is False and Path(row.pins).is_dir():  # a process of this boot: its pins are of this machine
                state += "; its connections are asleep in those pins: start it again"
            raise OwnedError(f"{who}, {state}; give this instance a database of its own; or, if that one will not "
                             "come back and this one is to have its connections: roost up --take-over")  # fmt: skip
        if alive is None:
            raise LeaseRunsError(f"{who}, which was heard of within {LEASE_S:g} s", lease)

    def refuse_another(self, connection: Connection) -> None:
        """Before it is claimed: raises OwnedError, LeaseRunsError when the database is another daemon's."""
        if (row := self._found(connection)) is not None:
            self._judge(row)

    @staticmethod
    def _found(connection: Connection) -> Row[Any] | None:
        """Whose the database is, and the database's clock as `now`; nobody renews it before the transaction ends."""
        if connection.dialect.name != "sqlite":
            connection.execute(sa.select(owner.c.one).with_for_update())
        return connection.execute(sa.select(owner, now_ms(connection.dialect.name).label("now"))).first()

    def renew(self, connection: Connection) -> None:
        """Fence this transaction: nobody else owns the database before it ends. Raises FencedError."""
        values = {"mine": self._epoch, "lease_ms": self.lease_ms}
        if connection.execute(_renewing(connection.dialect.name), values).rowcount != 1:
            raise FencedError(_fenced(connection.execute(sa.select(owner)).first()))
        self._renewed = time.monotonic()

    def give_back(self, connection: Connection) -> None:
        """The daemon could not start: the database is whose it was before the claim."""
        if connection.execute(sa.delete(owner).where(owner.c.epoch == self._epoch)).rowcount and self._before:
            connection.execute(sa.insert(owner).values(**self._before))

    def release(self, connection: Connection, drained: bool = False) -> None:
        """The daemon ends: its lease need not be waited for. drained: nor is the database anybody's, from now on."""
        values: dict[str, Any] = {"lease_until": 0}
        if drained:
            values["machine"] = ""
        connection.execute(sa.update(owner).where(owner.c.one == 1, owner.c.epoch == self._epoch).values(values))


@lru_cache
def _renewing(database: str) -> sa.Update:
    """Made once: SQLAlchemy takes a millisecond to make it, and each transaction has it."""
    mine = sa.update(owner).where(owner.c.one == 1, owner.c.epoch == sa.bindparam("mine"))
    return mine.values(lease_until=now_ms(database) + sa.bindparam("lease_ms", type_=sa.BigInteger))


def _fenced(row: Row[Any] | None) -> str:
    by = f'by instance "{row.instance}" of host {row.host} (pid {row.pid})' if row is not None else "from this one"
    return (f"the database was taken over {by}: this daemon writes nothing any more, nothing goes to SLEEP, and those "
            "asleep in it are the other's; end it")  # fmt: skip
