# SPDX-License-Identifier: Apache-2.0
"""Who asked for which change is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """The table."""
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("origin", sa.String(47), nullable=False),
        sa.Column("method", sa.String(15), nullable=False),
        sa.Column("path", sa.String(500), nullable=False),
        sa.Column("body", sa.String(1001), nullable=False),
        sa.Column("status", sa.SmallInteger, nullable=False),
        sa.Column("error", sa.String(500), nullable=False),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
