# SPDX-License-Identifier: Apache-2.0
"""What became of each server that asked for a client is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """The table."""
    op.create_table(
        "attaches",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("way", sa.String(7), nullable=False),
        sa.Column("server", sa.String(47), nullable=False),
        sa.Column("target", sa.String(262), nullable=False),
        sa.Column("step", sa.String(5), nullable=False),
        sa.Column("id", sa.BigInteger, nullable=False),
        sa.Column("client", sa.String(47), nullable=False),
        sa.Column("service", sa.Integer, nullable=False),
        sa.Column("found", sa.SmallInteger, nullable=False),
        sa.Column("error", sa.Integer, nullable=False),
        sa.Column("answer_ms", sa.BigInteger, nullable=False),
        sa.Column("first_ms", sa.BigInteger),
    )
    op.create_index("ix_attaches_at", "attaches", ["at"])
