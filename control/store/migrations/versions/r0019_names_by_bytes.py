# SPDX-License-Identifier: Apache-2.0
"""Names and tags are in the order of their bytes, whatever the database's collation is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

COLUMNS = (("names", "name"), ("in_band_names", "name"), ("tags", "tag"), ("tags", "name"), ("agents", "name"))


def upgrade() -> None:
    """Their columns in PostgreSQL; SQLite compares bytes by itself."""
    if op.get_bind().dialect.name == "postgresql":
        for table, column in COLUMNS:
            op.alter_column(table, column, type_=sa.String(63, collation="C"))
