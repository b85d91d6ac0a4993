# SPDX-License-Identifier: Apache-2.0
"""Names are found by their connection's number."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """An index of each of the two tables."""
    for table in ("names", "agents"):
        op.create_index(f"ix_{table}_id", table, ["id"])
