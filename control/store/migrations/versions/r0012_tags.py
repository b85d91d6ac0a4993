# SPDX-License-Identifier: Apache-2.0
"""Names may have tags."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """The table."""
    op.create_table(
        "tags",
        sa.Column("tag", sa.String(63), primary_key=True),
        sa.Column("name", sa.String(63), primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_tags_name", "tags", ["name"])
