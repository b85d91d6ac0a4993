# SPDX-License-Identifier: Apache-2.0
"""Rows of sleepers are found by their numbers. Those that are there already are found by their keys as before: the
slots in memory that an earlier version has made do not know the numbers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_CLOCKS = """
INSERT INTO clocks
SELECT row_number() OVER (ORDER BY boot_id, tenths), boot_id, wall_offset_ms
FROM (SELECT boot_id, wall_offset_ms / 100 AS tenths, min(wall_offset_ms) AS wall_offset_ms
      FROM sleeping_before GROUP BY boot_id, wall_offset_ms / 100) AS each
"""
"""Two readings of the same clock differ by a millisecond or two."""

_ROWS = """
INSERT INTO sleeping
SELECT id, key, 1, generation, slept_at, clock, ka, rest
FROM sleeping_before AS old
CROSS JOIN clocks  -- in this order
WHERE clocks.boot_id = old.boot_id AND clocks.wall_offset_ms / 100 = old.wall_offset_ms / 100
  AND NOT EXISTS (SELECT 1 FROM sleeping_before AS newer WHERE newer.id = old.id AND newer.generation > old.generation)
ORDER BY id
"""


def upgrade() -> None:
    """The rows as they were, in another order."""
    op.rename_table("sleeping", "sleeping_before")
    op.create_table(
        "clocks",
        sa.Column("clock", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("boot_id", sa.String(36), nullable=False),
        sa.Column("wall_offset_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "sleeping",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("key", sa.LargeBinary(36), nullable=False),
        sa.Column("by_key", sa.SmallInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("slept_at", sa.BigInteger, nullable=False),
        sa.Column("clock", sa.Integer, nullable=False),
        sa.Column("ka", sa.LargeBinary(36), nullable=False),
        sa.Column("rest", sa.LargeBinary, nullable=False),
    )
    op.execute(_CLOCKS)
    op.execute(_ROWS)
    op.drop_table("sleeping_before")
    by_key = sa.text("by_key = 1")
    op.create_index("ix_sleeping_key", "sleeping", ["key"], sqlite_where=by_key, postgresql_where=by_key)
