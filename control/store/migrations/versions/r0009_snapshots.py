# SPDX-License-Identifier: Apache-2.0
"""Snapshots of what there is are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """The table."""
    op.create_table(
        "snapshots",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("span_ms", sa.BigInteger, nullable=False),
        sa.Column("service", sa.Integer, nullable=False),
        sa.Column("rules", sa.Text, nullable=False),
        sa.Column("counts", sa.Text, nullable=False),
    )
    op.create_index("ix_snapshots_at", "snapshots", ["at"])
