# SPDX-License-Identifier: Apache-2.0
"""History is kept in tables that are removed whole."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """What there is becomes the first of them, whatever its size."""
    parts = op.create_table(
        "history_parts",
        sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("first_at", sa.BigInteger, nullable=False),
        sa.Column("last", sa.BigInteger),
        sa.Column("last_at", sa.BigInteger),
    )
    history = sa.table("history", *(sa.column(name) for name in ("seq", "at", "id")))
    connection = op.get_bind()
    ends = sa.select(history.c.seq, history.c.at).limit(1)
    oldest = connection.execute(ends.order_by(history.c.seq)).first()
    newest = connection.execute(ends.order_by(history.c.seq.desc())).first()
    if oldest is None or newest is None:
        op.drop_table("history")
        return
    # A run numbers its connections beyond those of all before it.
    meta = sa.table("meta", sa.column("key"), sa.column("value"))
    known = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "max_id"))
    found = connection.scalar(sa.select(sa.func.max(history.c.id)))
    if known is None:
        connection.execute(sa.insert(meta).values(key="max_id", value=found))
    op.rename_table("history", f"history_{oldest.seq}")
    op.bulk_insert(parts, [{"first": oldest.seq, "first_at": oldest.at, "last": newest.seq, "last_at": newest.at}])
