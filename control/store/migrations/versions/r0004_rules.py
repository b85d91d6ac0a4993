# SPDX-License-Identifier: Apache-2.0
"""The rules of the policy, with every change of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """The table, empty."""
    op.create_table(
        "rules",
        sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("rule", sa.String(63), primary_key=True, index=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("who", sa.String(255), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("content", sa.Text),
    )
