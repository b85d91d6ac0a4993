# SPDX-License-Identifier: Apache-2.0
"""The tables of the store, and the byte forms that rows have while they wait in memory.

Portable SQLAlchemy Core: SQLite by default, PostgreSQL by URL. Times are milliseconds of the wall clock, states and
causes the numbers of control/core/states.py, services the numbers of the table ``services``.
"""

from __future__ import annotations

import ipaddress
import struct
from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    cast,
    event,
    null,
)

from control.core.names import NAME_LENGTH

SCHEMA_VERSION: Final = 6
"""What `meta` says, for versions that know no revisions: they leave a database of a number that is not theirs alone."""

REVISION: Final = "0019"
"""The last of migrations/versions: what these tables are."""

_NAME: Final = String(NAME_LENGTH).with_variant(String(NAME_LENGTH, collation="C"), "postgresql")
"""Of a client, or a tag: in the order of its bytes, as SQLite has it."""

KEY: Final = struct.Struct("!16s16sHH")
"""A 4-tuple as bytes: client address, local address (IPv4-mapped), client port, local port: struct roost_key."""

KA_BYTES: Final = 36
REST_BYTES: Final = 40

HISTORY: Final = struct.Struct("=QQ36sHBBB7xQQQ24s")
"""A row of history that waits to be written: reference (Record.reference), at_ms, key, service, from, to, cause, rx,
tx, gap, ends (struct roost_ends). Packed, since a burst of 100,000 of them must cost 14 MB and not the 50 MB of tuples;
laid out as a C compiler does it, since most of them come from the engine as they are (struct roost_row of
cext/base/types.h)."""


def references_of(packed: bytes) -> array[int]:
    """What rows of HISTORY begin with, one after the other."""
    return array("Q", memoryview(packed).cast("Q")[:: HISTORY.size // 8].tobytes())


NAMED: Final = struct.Struct("=36sQQ")
"""What a name stands for: key, id, since (wall clock, ms). Packed, since the collector of cycles walks no bytes."""

AGENT: Final = struct.Struct("=68sQQH")
"""A client of an agent: key, id and since of the agent's control connection, and the number of the service by which the
client connects by itself, 0 when the agent opens data connections for it. Behind the key is the SHA-256 of the token
that the agent said; nothing in rows of a roost that kept none."""

DIALLED: Final = struct.Struct("=IBQ")
"""What became of dialling a client: failures in a row, whether it is to stay connected (Stay), the last attempt (wall
clock, ms)."""

OVERRIDES_BYTES: Final = 20
OVERRIDDEN: Final = struct.Struct(f"=Q{OVERRIDES_BYTES}s")
"""A connection's number, and what it set in band."""

IN_BAND_NAME: Final = struct.Struct("=QQ")
"""Of a name that was given in band: how long it is kept without its connection, and until when it is, both in ms."""

SUCCESSOR: Final = struct.Struct("=QQ")
"""The connection by which the client of a closed one came back, and when (wall clock, ms)."""


metadata = MetaData()

# SQLite numbers rows by itself only in a column of the exact type INTEGER.
_ROW_NUMBER = BigInteger().with_variant(Integer, "sqlite")

sleeping = Table(
    "sleeping",
    metadata,
    Column("id", _ROW_NUMBER, primary_key=True, autoincrement=False, comment="the connection's number"),
    Column("key", LargeBinary(KEY.size), nullable=False),
    Column("by_key", SmallInteger, nullable=False, comment="1: its number is not in memory; it is found by its key"),
    Column("generation", BigInteger, nullable=False, comment="differs each time a row is written"),
    Column("slept_at", BigInteger, nullable=False, comment="wall clock, ms"),
    Column("clock", Integer, nullable=False, comment="of clocks: that of the record's times"),
    Column("ka", LargeBinary(KA_BYTES), nullable=False, comment="struct roost_ka of shared/record.h and its service"),
    Column("rest", LargeBinary, nullable=False, comment="struct roost_rest of ebpf/shared/record.h; see records.py"),
)
"""Numbers ascend, so that rows are appended: a key is at random, and one more row by key costs a page of the log."""


@event.listens_for(sleeping, "after_create")
def _make_indexes(_table: Table, connection: Connection, **_: Any) -> None:
    """By text: an Index with what is PostgreSQL's alone imports all that SQLAlchemy has for it, 2.4 MB of a daemon that
    has SQLite."""
    connection.exec_driver_sql('CREATE INDEX ix_sleeping_key ON sleeping ("key") WHERE by_key = 1')
    if connection.dialect.name == "postgresql":
        # By which the other machine of a pair reads what is new ([standby]): of blocks, since new rows lie together.
        connection.exec_driver_sql("CREATE INDEX ix_sleeping_generation ON sleeping USING brin (generation) "
                                   "WITH (pages_per_range = 16, autosummarize = on)")  # fmt: skip


clocks = Table(
    "clocks",
    metadata,
    Column("clock", Integer, primary_key=True, autoincrement=False),
    Column("boot_id", String(36), nullable=False, comment="of the machine when rows were written by it"),
    Column("wall_offset_ms", BigInteger, nullable=False, comment="wall clock minus CLOCK_MONOTONIC at that time, ms"),
    Column("shift_ms", BigInteger, nullable=False, server_default="0",
           comment="how far the boot's CLOCK_MONOTONIC is ahead of the records': of rows that were put back"),
    Column("timestamps_ms", BigInteger, nullable=False, server_default="0", comment="the same of the clock of TSvals"),
)  # fmt: skip

history_parts = Table(
    "history_parts",
    metadata,
    Column("first", BigInteger, primary_key=True, autoincrement=False, comment="row of the part; it names its table"),
    Column("first_at", BigInteger, nullable=False, comment="wall clock, ms"),
    Column("last", BigInteger, comment="row of the part; NULL: it is being written"),
    Column("last_at", BigInteger, comment="wall clock, ms"),
    Column("layout", SmallInteger, nullable=False, server_default="1", comment="which columns it has"),
)

HISTORY_COLUMNS: Final = {1: 11, 2: 15}
"""How many columns parts of a layout have: later ones have more behind. Earlier ones are read as they are: they may be
thousands of tables."""
HISTORY_LAYOUT: Final = max(HISTORY_COLUMNS)


def history_part(first: int, layout: int = HISTORY_LAYOUT) -> Table:
    """The table of the part of the history that begins with this row."""
    columns: list[Column[Any]] = [
        Column("seq", _ROW_NUMBER, primary_key=True, autoincrement=False),
        Column("id", BigInteger, nullable=False),
        Column("at", BigInteger, nullable=False, comment="wall clock, ms"),
        Column("client", String(47), nullable=False),
        Column("service", Integer, nullable=False),
        Column("from", SmallInteger, nullable=False),
        Column("to", SmallInteger, nullable=False),
        Column("cause", SmallInteger, nullable=False),
        Column("rx_bytes", BigInteger, nullable=False, comment="from the client since its last transition"),
        Column("tx_bytes", BigInteger, nullable=False, comment="to the client since its last transition"),
        Column("gap_ms", BigInteger, nullable=False, comment="since the last payload byte"),
        Column("server", String(47), comment="address:port to which an ACTIVE one was linked, or was to be"),
        Column("error", SmallInteger, comment="errno of the end whose fault the cause tells; NULL: FIN, or no end"),
        Column("probes", SmallInteger, comment="of a client that was not awake: it did not answer them, in a row"),
        Column("silence_s", Integer, comment="since the client was heard, where it was not awake or answers no more"),
    ]
    return Table(f"history_{first}", MetaData(), *columns[: HISTORY_COLUMNS[layout]])


def columns_of_part(part: Table) -> list[ColumnElement[Any]]:
    """Those of the last layout: what this one lacks is NULL."""
    lacking = {column.name: cast(null(), column.type).label(column.name) for column in history_part(0).columns}
    return [part.c.get(name, absent) for name, absent in lacking.items()]


runs = Table(
    "runs",
    metadata,
    Column("run", BigInteger, primary_key=True, autoincrement=False),
    Column("instance", String(63), nullable=False),
    Column("host", String(255), nullable=False),
    Column("version", String(63), nullable=False, comment="of Roost"),
    Column("started", BigInteger, nullable=False, comment="wall clock, ms"),
    Column("first", BigInteger, nullable=False, comment="its first row of history"),
    Column("ended", BigInteger, comment="wall clock, ms; NULL: it runs, or it was killed"),
    Column("dropped", BigInteger, nullable=False, comment="rows of history that there was no room for"),
)
"""The daemon's starts and ends."""

attaches = Table(
    "attaches",
    metadata,
    Column("seq", _ROW_NUMBER, primary_key=True, autoincrement=False, comment="from 1 on, without a gap"),
    Column("at", BigInteger, nullable=False, index=True, comment="when the server asked: wall clock, ms"),
    Column(
        "way", String(7), nullable=False, comment="by which it asked: connect, socks5, api or address (by a router)"
    ),
    Column("server", String(47), nullable=False, comment="address:port"),
    Column("target", String(262), nullable=False, comment="what it asked for: address:port, or a name and a port"),
    Column("step", String(5), nullable=False, comment="of [absent], by which the client came: agent, dial, wait"),
    Column("id", BigInteger, nullable=False, comment="of the connection; 0: none was found"),
    Column("client", String(47), nullable=False, comment="address:port; empty: none was found"),
    Column("service", Integer, nullable=False, comment="by which the client came in; 0: not known"),
    Column("found", SmallInteger, nullable=False, comment="state of the client until it was linked; 0: it was not"),
    Column("error", Integer, nullable=False, comment="errno; 0: it was linked"),
    Column("answer_ms", BigInteger, nullable=False, comment="from being asked to the answer"),
    Column("first_ms", BigInteger, comment="from being asked to the client's first byte; NULL: there was none"),
)
"""What became of each server that asked for a client."""

snapshots = Table(
    "snapshots",
    metadata,
    Column("seq", _ROW_NUMBER, primary_key=True, autoincrement=False, comment="from 1 on, without a gap"),
    Column("at", BigInteger, nullable=False, index=True, comment="wall clock, ms"),
    Column("span_ms", BigInteger, nullable=False, comment="since the snapshot before: what is counted happened then"),
    Column("service", Integer, nullable=False, comment="0: of the appliance"),
    Column("rules", Text, nullable=False, comment="that give these connections their class; empty: none"),
    Column("counts", Text, nullable=False, comment="JSON: whole numbers by name, without those that are 0"),
)
"""How much there is of what, and what happened, once a minute: of the appliance, and of connections by class."""

audit = Table(
    "audit",
    metadata,
    Column("seq", _ROW_NUMBER, primary_key=True, autoincrement=False, comment="from 1 on, without a gap"),
    Column("at", BigInteger, nullable=False, index=True, comment="when it was asked for: wall clock, ms"),
    Column("who", String(255), nullable=False),
    Column("origin", String(47), nullable=False, comment="from where: local"),
    Column("method", String(15), nullable=False, comment="of HTTP"),
    Column("path", String(500), nullable=False),
    Column("body", String(1001), nullable=False, comment="how it begins"),
    Column("status", SmallInteger, nullable=False, comment="of HTTP: what came of it"),
    Column("error", String(500), nullable=False, comment="a sentence; empty: it was done"),
)
"""Each change that was asked for."""

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(8), primary_key=True),
    Column("name", String(NAME_LENGTH), nullable=False, comment="no two good ones have the same"),
    Column("role", String(15), nullable=False),
    Column("services", Text, comment="JSON: names of services; NULL: all"),
    Column("digest", LargeBinary(32), nullable=False, comment="SHA-256 of its secret"),
    Column("made_at", BigInteger, nullable=False, comment="wall clock, ms; so are the others"),
    Column("made_by", String(255), nullable=False),
    Column("expires_at", BigInteger, comment="NULL: never"),
    Column("revoked_at", BigInteger, comment="NULL: it was not"),
)
"""By which it is known who asks by the API."""

successors = Table(
    "successors",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False, comment="of a closed connection"),
    Column("successor", BigInteger, nullable=False, index=True, comment="by which its client came back"),
    Column("at", BigInteger, nullable=False, comment="wall clock, ms; removed with the history"),
)

services = Table(
    "services",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("index", Integer, nullable=False, unique=True),
)

names = Table(
    "names",
    metadata,
    Column("name", _NAME, primary_key=True, comment="lower case, without the domain"),
    Column("key", LargeBinary(KEY.size), nullable=False),
    Column("id", BigInteger, nullable=False, index=True, comment="of the connection; it may be closed by now"),
    Column("since", BigInteger, nullable=False, comment="wall clock, ms"),
    sqlite_with_rowid=False,
)

in_band_names = Table(
    "in_band_names",
    metadata,
    Column("name", _NAME, primary_key=True, comment="one of names that was given in band"),
    Column("kept", BigInteger, nullable=False, comment="without its connection, ms"),
    Column("until", BigInteger, nullable=False, comment="it is kept: wall clock, ms; later while its connection lives"),
    sqlite_with_rowid=False,
)

tags = Table(
    "tags",
    metadata,
    Column("tag", _NAME, primary_key=True),
    Column("name", _NAME, primary_key=True, index=True, comment="of `names`"),
    sqlite_with_rowid=False,
)

agents = Table(
    "agents",
    metadata,
    Column("name", _NAME, primary_key=True, comment="of the client, lower case, without the domain"),
    Column("key", LargeBinary, nullable=False, comment="of the agent's control connection, then its token's SHA-256"),
    Column("id", BigInteger, nullable=False, index=True, comment="of that connection; it may be closed by now"),
    Column("since", BigInteger, nullable=False, comment="wall clock, ms"),
    Column("service", Integer, nullable=False, comment="by which the client connects by itself; 0: it accepts"),
    sqlite_with_rowid=False,
)

dialled = Table(
    "dialled",
    metadata,
    Column("client", String(NAME_LENGTH), primary_key=True, comment="its name without the domain, or its address"),
    Column("failures", Integer, nullable=False, comment="in a row"),
    Column("stay", SmallInteger, nullable=False, comment="0 it need not; 1 it is to be told to stay; 2 it was told"),
    Column("at", BigInteger, nullable=False, comment="the last attempt: wall clock, ms"),
    sqlite_with_rowid=False,
)

overrides = Table(
    "overrides",
    metadata,
    Column("key", LargeBinary(KEY.size), primary_key=True),
    Column("id", BigInteger, nullable=False),
    Column(
        "overrides", LargeBinary(OVERRIDES_BYTES), nullable=False, comment="struct roost_overrides of cext/base/types.h"
    ),
    sqlite_with_rowid=False,
)

rules = Table(
    "rules",
    metadata,
    Column("version", BigInteger, primary_key=True, autoincrement=False, comment="of all rules: one more each change"),
    Column("rule", String(NAME_LENGTH), primary_key=True, index=True),
    Column("at", BigInteger, nullable=False, comment="wall clock, ms"),
    Column("who", String(255), nullable=False),
    Column("why", Text, nullable=False),
    Column("content", Text, comment="the rule from this version on, JSON; NULL: it was removed"),
)

groups = Table(
    "groups",
    metadata,
    Column("number", SmallInteger, primary_key=True, autoincrement=False, comment="struct roost_overrides, group"),
    Column("rules", Text, nullable=False, comment="a JSON array: those by name or tag that are for its connections"),
)

meta = Table(
    "meta",
    metadata,
    Column("key", String(63), primary_key=True),
    Column("value", BigInteger, nullable=False),
)

owner = Table(
    "owner",
    metadata,
    Column("one", SmallInteger, primary_key=True, autoincrement=False, comment="1: there is one owner"),
    Column("epoch", BigInteger, nullable=False, comment="how many owners there have been"),
    Column("instance", String(63), nullable=False),
    Column("pins", Text, nullable=False, comment="its directory of pins"),
    Column("machine", String(64), nullable=False, comment="of /etc/machine-id, else the name of the host"),
    Column("host", String(255), nullable=False, comment="its name, for people"),
    Column("boot_id", String(36), nullable=False),
    Column("pid_namespace", BigInteger, nullable=False, comment="that pid is a number of"),
    Column("pid", BigInteger, nullable=False),
    Column("started", BigInteger, nullable=False, comment="the process: clock ticks after boot"),
    Column("since", BigInteger, nullable=False, comment="the database's clock, ms"),
    Column("lease_until", BigInteger, nullable=False, comment="the database's clock, ms; 0: it ended in good order"),
)

revisions = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))
"""alembic's own; here, so that a new database needs no alembic, which is 12 MB of memory."""

KEYED: Final[Mapping[str, tuple[Table, struct.Struct]]] = MappingProxyType(
    {
        "names": (names, NAMED),
        "agents": (agents, AGENT),
        "in_band_names": (in_band_names, IN_BAND_NAME),
        "dialled": (dialled, DIALLED),
        "overrides": (overrides, OVERRIDDEN),
        "successors": (successors, SUCCESSOR),
    }
)
"""The tables whose rows are found by their first column, a text, a 4-tuple or a number, and the packed form of the
others, in their order."""

Keyed = tuple[str, str | bytes | int]
"""One of these tables and the text, 4-tuple or number by which a row of it is found."""

MAPPED: Final = b"\0" * 10 + b"\xff\xff"
"""What an IPv4 address begins with when it stands in 16 bytes (RFC 4291 2.5.5.2)."""


def address_text(address: bytes, port: int) -> str:
    """``192.0.2.7:40123`` or ``[2001:db8::1]:443``."""
    if address.startswith(MAPPED):
        a, b, c, d = address[12:]
        return f"{a}.{b}.{c}.{d}:{port}"
    return f"[{ipaddress.IPv6Address(address)}]:{port}"
