# SPDX-License-Identifier: Apache-2.0
"""Schema 5, the last one without revisions, of whatever schema the database has.

1 had no `names`, 2 no `agents` and no `dialled`, 3 no `overrides`; 4 and those before wrote records otherwise.
"""

from __future__ import annotations

import struct
from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_CHUNK: Final = 500
_KA: Final = struct.Struct("=IIIIIIHHIHH")
"""ctl, snd_nxt, rcv_nxt, ts_offset, ts_recent, heard (20 bits of seconds, 12 of probes), window, probe_interval_s,
rest, service, 0: 36 bytes."""

_KA_4: Final = struct.Struct("=IIIIIIHHHBBI")
"""Of schema 4: ctl, snd_nxt, rcv_nxt, ts_offset, ts_recent, heard_s, window, service, probe_interval_s, probe_sent,
challenge_tick, rest."""

_KEY: Final = 36
_REST: Final = 40

_TABLES: Final = sa.MetaData()
_NAME: Final = sa.String(63)
_SLEEPING: Final = sa.Table(
    "sleeping",
    _TABLES,
    sa.Column("key", sa.LargeBinary(_KEY), primary_key=True),
    sa.Column("id", sa.BigInteger, nullable=False, index=True),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("client", sa.String(47), nullable=False),
    sa.Column("local", sa.String(47), nullable=False),
    sa.Column("service", sa.Integer, nullable=False),
    sa.Column("slept_at", sa.BigInteger, nullable=False),
    sa.Column("boot_id", sa.String(36), nullable=False),
    sa.Column("wall_offset_ms", sa.BigInteger, nullable=False),
    sa.Column("ka", sa.LargeBinary(36), nullable=False),
    sa.Column("rest", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)
sa.Table(
    "history",
    _TABLES,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("id", sa.BigInteger, nullable=False, index=True),
    sa.Column("at", sa.BigInteger, nullable=False, index=True),
    sa.Column("client", sa.String(47), nullable=False),
    sa.Column("service", sa.Integer, nullable=False),
    sa.Column("from", sa.SmallInteger, nullable=False),
    sa.Column("to", sa.SmallInteger, nullable=False),
    sa.Column("cause", sa.SmallInteger, nullable=False),
    sa.Column("rx_bytes", sa.BigInteger, nullable=False),
    sa.Column("tx_bytes", sa.BigInteger, nullable=False),
    sa.Column("gap_ms", sa.BigInteger, nullable=False),
)
sa.Table(
    "services",
    _TABLES,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("index", sa.Integer, nullable=False, unique=True),
)
sa.Table(
    "names",
    _TABLES,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("key", sa.LargeBinary(_KEY), nullable=False),
    sa.Column("id", sa.BigInteger, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
sa.Table(
    "agents",
    _TABLES,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("key", sa.LargeBinary(_KEY), nullable=False),
    sa.Column("id", sa.BigInteger, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("service", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)
sa.Table(
    "dialled",
    _TABLES,
    sa.Column("client", _NAME, primary_key=True),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("stay", sa.SmallInteger, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
sa.Table(
    "overrides",
    _TABLES,
    sa.Column("key", sa.LargeBinary(_KEY), primary_key=True),
    sa.Column("id", sa.BigInteger, nullable=False),
    sa.Column("overrides", sa.LargeBinary(20), nullable=False),
    sqlite_with_rowid=False,
)
_META: Final = sa.Table(
    "meta", _TABLES, sa.Column("key", _NAME, primary_key=True), sa.Column("value", sa.BigInteger, nullable=False)
)


def upgrade() -> None:
    """The tables that are missing, and records in their form of schema 5."""
    connection = op.get_bind()
    _TABLES.create_all(connection)
    if (connection.scalar(sa.select(_META.c.value).where(_META.c.key == "schema")) or 0) < 5:
        _rewrite_records(connection)


def _rewrite_records(connection: sa.Connection) -> None:
    update = (
        sa.update(_SLEEPING)
        .where(_SLEEPING.c.key == sa.bindparam("of"))
        .values(ka=sa.bindparam("k"), rest=sa.bindparam("r"))
    )
    found = connection.execute(
        sa.select(_SLEEPING.c.key, _SLEEPING.c.ka, _SLEEPING.c.rest), execution_options={"yield_per": _CHUNK}
    )
    for rows in found.partitions():
        changed = [(key, *from_schema_4(ka, rest)) for key, ka, rest in rows]
        connection.execute(update, [{"of": key, "k": ka, "r": rest} for key, ka, rest in changed])


def from_schema_4(ka: bytes, rest: bytes) -> tuple[bytes, bytes]:
    """The two columns of a row that schema 4 or an earlier one wrote, as schema 5 has them. Behind the rest of a pair
    stands its server's leg: key, ka, rest."""
    other = rest[_REST:]
    if len(other) == _KEY + _KA_4.size + _REST:
        leg = _ka_from_schema_4(other[_KEY : _KEY + _KA_4.size])
        rest = rest[:_REST] + other[:_KEY] + leg + other[_KEY + _KA_4.size :]
    return _ka_from_schema_4(ka), rest


def _ka_from_schema_4(ka: bytes) -> bytes:
    *numbers, heard_s, window, service, probe_interval_s, _, _, rest = _KA_4.unpack(ka)
    return _KA.pack(*numbers, heard_s << 12 & 0xFFFFFFFF, window, probe_interval_s, rest, service, 0)
