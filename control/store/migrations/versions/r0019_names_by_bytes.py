# SPDX-License-Identifier: Apache-2.0
"""Names and tags are in the order of their bytes, whatever the database's collation is."""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"

COLUMNS = {"names": ("name",), "in_band_names": ("name",), "tags": ("tag", "name"), "agents": ("name",)}


def upgrade() -> None:
    """Their columns in PostgreSQL; SQLite compares bytes by itself."""
    if op.get_bind().dialect.name == "postgresql":
        for table, columns in COLUMNS.items():
            changes = ", ".join(f'ALTER {column} TYPE VARCHAR(63) COLLATE "C"' for column in columns)
            op.execute(f"ALTER TABLE {table} {changes}")
            op.execute(f"ANALYZE {table}")
