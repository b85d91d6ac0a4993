# SPDX-License-Identifier: Apache-2.0
"""A database has one owner. Versions that know of none find another number of the schema, and leave it alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """The table, with no owner yet."""
    op.create_table(
        "owner",
        sa.Column("one", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("instance", sa.String(63), nullable=False),
        sa.Column("pins", sa.Text, nullable=False),
        sa.Column("machine", sa.String(64), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("boot_id", sa.String(36), nullable=False),
        sa.Column("pid_namespace", sa.BigInteger, nullable=False),
        sa.Column("pid", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("lease_until", sa.BigInteger, nullable=False),
    )
    meta = sa.table("meta", sa.column("key"), sa.column("value"))
    op.execute(sa.delete(meta).where(meta.c.key == "schema"))
    op.execute(sa.insert(meta).values(key="schema", value=6))
