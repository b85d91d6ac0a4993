# SPDX-License-Identifier: Apache-2.0
"""History links a connection to the one by which its client came back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """The table, empty."""
    op.create_table(
        "successors",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("successor", sa.BigInteger, nullable=False, index=True),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
