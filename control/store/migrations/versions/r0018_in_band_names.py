# SPDX-License-Identifier: Apache-2.0
"""Names that were given in band are forgotten in time; of those that there are it is not known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """The table."""
    op.create_table(
        "in_band_names",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("kept", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
