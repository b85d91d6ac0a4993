# SPDX-License-Identifier: Apache-2.0
"""History has more columns from now on. What there is stays as it is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Parts tell which columns they have."""
    op.add_column("history_parts", sa.Column("layout", sa.SmallInteger, nullable=False, server_default="1"))
