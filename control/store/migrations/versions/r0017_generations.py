# SPDX-License-Identifier: Apache-2.0
"""With PostgreSQL the rows that are new are found without reading all of them."""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """An index."""
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("ix_sleeping_generation", "sleeping", ["generation"], postgresql_using="brin",
                        postgresql_with={"pages_per_range": 16, "autosummarize": "on"})  # fmt: skip
