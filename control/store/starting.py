# SPDX-License-Identifier: Apache-2.0
"""What a daemon asks of its database when it starts, and leaves there for the next one, within a transaction."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from appliance import __version__
from control.store.database import StoreError, get_meta, set_meta
from control.store.owner import Owner
from control.store.schema import clocks, meta, runs, services, sleeping

OTHER_TABLES: Final = "other tables"
"""In place of the name of a boot, of rows that were written for tables that are gone."""

ALIVE: Final = "alive-"
"""In front of the name of a boot, in `meta`: until when a daemon is known to have run, on that boot's CLOCK_MONOTONIC,
ms."""


LEFT_OPEN: Final = "left open"
"""In `meta`: what `left_open` is of the last run that ended in good order."""

CAUGHT_UP: Final = "caught up"
"""In `meta`: the last row of the runs of which the history has what became of each connection (`note_caught_up`)."""

COOKIE_SECRET: Final = ("cookies-1", "cookies-2")
"""In `meta`: a secret that machines with the same database share."""


def wall_offset_ms() -> int:
    """Wall clock minus CLOCK_MONOTONIC, milliseconds."""
    return (time.time_ns() - time.monotonic_ns()) // 1_000_000


def cookie_secret(connection: Connection) -> tuple[int, int]:
    """Store.cookie_secret: the same for whoever asks."""
    found = []
    for key in COOKIE_SECRET:
        if (value := get_meta(connection, key)) is None:
            value = secrets.randbits(64) - (1 << 63)
            set_meta(connection, key, value)
        found.append(value % (1 << 64))
    first, second = found
    return first, second


def known_services(connection: Connection) -> dict[str, int]:
    """The number of each service by its name."""
    return {row.name: row[1] for row in connection.execute(sa.select(services))}


def numbered(names: Sequence[str], known: Mapping[str, int]) -> dict[str, int]:
    """A number for each of these services: the one that it has, or the next one."""
    numbers = dict(known)
    for name in names:
        numbers.setdefault(name, max(numbers.values(), default=0) + 1)
    return {name: numbers[name] for name in names}


def agree_on_services(connection: Connection, wanted: Mapping[str, int]) -> None:
    """Keep these numbers. Raises StoreError when the database has others."""
    known = known_services(connection)
    by_index = {index: name for name, index in known.items()}
    for name, index in wanted.items():
        if known.get(name, index) != index or by_index.get(index, name) != name:
            raise StoreError(
                f'the database came back and numbers the service "{name}" otherwise than this run; '
                "restart the daemon to let connections SLEEP again"
            )
        if name not in known:
            connection.execute(sa.insert(services).values({"name": name, "index": index}))


def begin_run(connection: Connection, owner: Owner, started: int, last: int) -> tuple[int, int]:
    """(number of this run, first row of history of the one before it, or of those of which it has not caught up with
    the history; 0: there was none). last: the last row before."""
    before = connection.execute(sa.select(runs.c.run, runs.c.first).order_by(runs.c.run.desc()).limit(1)).first()
    number, first = (before.run + 1, before.first) if before else (1, 0)
    if before is None:
        note_caught_up(connection, last)
    elif (caught_up := get_meta(connection, CAUGHT_UP)) is not None:
        first = min(first, caught_up + 1)
    else:
        note_caught_up(connection, first - 1)
    connection.execute(
        sa.insert(runs).values(run=number, instance=owner.instance, host=owner.host, version=__version__,
                               started=started, first=last + 1, dropped=0)
    )  # fmt: skip
    return number, first


def find_run(connection: Connection, started: int) -> int | None:
    """The number of the run that began at that time, if this database knows of it."""
    return connection.scalar(sa.select(runs.c.run).where(runs.c.started == started))


def put_last(connection: Connection, most: int) -> list[int]:
    """The connections whose rows the run before the last one has put, the newest at most so many; none where it ended
    in good order."""
    by_age = sa.select(runs.c.started, runs.c.ended).order_by(runs.c.run.desc())
    before = connection.execute(by_age.limit(1).offset(1)).first()
    if before is None or before.ended is not None:
        return []
    of = sleeping.c
    since = before.started * 1_000_000  # see Store: generations count on from the time of its start
    newest = sa.select(of.id).where(of.generation >= since).order_by(of.generation.desc()).limit(most)
    return list(connection.scalars(newest))


def note_dropped(connection: Connection, number: int, dropped: int) -> None:
    """So many rows of history found no room so far."""
    connection.execute(sa.update(runs).where(runs.c.run == number).values(dropped=dropped))


def end_run(connection: Connection, number: int, dropped: int, left_open: int) -> None:
    """It ends in good order. left_open: what `left_open` is to say of it."""
    ended = time.time_ns() // 1_000_000
    connection.execute(sa.update(runs).where(runs.c.run == number).values(ended=ended, dropped=dropped))
    set_meta(connection, LEFT_OPEN, left_open)


def left_open(connection: Connection) -> int:
    """How many connections are awake or in IDLE by the history of the run before the last one; -1: it may lack rows,
    for the run was killed, or had not caught up with the one before it, or there was no room for them."""
    query = sa.select(runs.c.first, runs.c.ended, runs.c.dropped).order_by(runs.c.run.desc())
    before = connection.execute(query.limit(1).offset(1)).first()
    if before is None or before.ended is None or before.dropped:
        return -1
    caught_up, known = (get_meta(connection, key) for key in (CAUGHT_UP, LEFT_OPEN))
    return -1 if known is None or (caught_up or 0) + 1 < before.first else known


def note_caught_up(connection: Connection, last: int) -> None:
    """The history as far as this row has what became of each connection."""
    set_meta(connection, CAUGHT_UP, last)


def has_rows_of_another_boot(connection: Connection, boot: str) -> bool:
    """Whether there are such. Once there are none, no more can come during this boot."""
    number = int.from_bytes(hashlib.sha256(boot.encode()).digest()[:7])
    if get_meta(connection, "boot") == number:
        return False
    others = list(connection.scalars(sa.select(clocks.c.clock).where(clocks.c.boot_id != boot)))
    theirs = sa.select(sleeping.c.id).where(sleeping.c.clock.in_(others)).limit(1)
    if others and connection.execute(theirs).first() is not None:
        return True
    connection.execute(sa.delete(meta).where(meta.c.key.startswith(ALIVE), meta.c.key != f"{ALIVE}{boot}"))
    set_meta(connection, "boot", number)
    return False


def keep_alive(connection: Connection, boot: str) -> None:
    """A daemon runs now."""
    set_meta(connection, f"{ALIVE}{boot}", time.monotonic_ns() // 1_000_000)


def alive_ms(connection: Connection) -> dict[str, int]:
    """Until when a daemon is known to have run, ms of CLOCK_MONOTONIC, by the name of the boot."""
    found = connection.execute(sa.select(meta).where(meta.c.key.startswith(ALIVE)))
    return {row.key.removeprefix(ALIVE): row.value for row in found}


def adopt_tables(connection: Connection, tables: int, boot: str) -> int:
    """These are the tables of those that sleep; tables: a number that no others had. Where they are not those that the
    rows of this boot were written for, somebody has removed the pins, or another owned the database: the rows become
    rows of another boot, from which all are put back. Returns how many."""
    known = get_meta(connection, "tables")
    if known == tables:
        return 0
    set_meta(connection, "tables", tables)
    if known is None:
        return 0
    connection.execute(sa.delete(meta).where(meta.c.key == "boot"))
    of_this = clocks.c.boot_id == boot
    theirs = sa.select(sa.func.count()).where(sleeping.c.clock.in_(sa.select(clocks.c.clock).where(of_this)))
    count = connection.scalar(theirs) or 0
    connection.execute(sa.update(clocks).where(of_this).values(boot_id=OTHER_TABLES, wall_offset_ms=wall_offset_ms()))
    return count


def all_clocks(connection: Connection) -> dict[int, sa.Row[Any]]:
    """The rows of `clocks`, by their number."""
    return {row.clock: row for row in connection.execute(sa.select(clocks))}


def other_clocks(connection: Connection, boot: str) -> dict[int, sa.Row[Any]]:
    """Those of other boots."""
    return {number: row for number, row in all_clocks(connection).items() if row.boot_id != boot}


def put_back(connection: Connection, boot: str, shifts: Mapping[int, tuple[int, int]]) -> None:
    """The rows of these clocks are this boot's: their times are off by so much more (shift_ms, timestamps_ms)."""
    offset = wall_offset_ms()
    for clock, (ms, timestamps_ms) in shifts.items():
        of = clocks.c
        connection.execute(
            sa.update(clocks).where(of.clock == clock, of.boot_id != boot).values(
                boot_id=boot, wall_offset_ms=offset, shift_ms=of.shift_ms + ms,
                timestamps_ms=of.timestamps_ms + timestamps_ms)
        )  # fmt: skip
