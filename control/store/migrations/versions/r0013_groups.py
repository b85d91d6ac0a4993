# SPDX-License-Identifier: Apache-2.0
"""Rules by name and by tag: which of them a group of connections has."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """The table."""
    op.create_table(
        "groups",
        sa.Column("number", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("rules", sa.Text, nullable=False),
    )
