# SPDX-License-Identifier: Apache-2.0
"""Rows that are put back after a reboot stay as they are: their clock says by how much their times are off."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Two columns."""
    for name in ("shift_ms", "timestamps_ms"):
        op.add_column("clocks", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
