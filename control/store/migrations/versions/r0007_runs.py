# SPDX-License-Identifier: Apache-2.0
"""The daemon's starts and ends are kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """The table, with the last run, of which its first row of history is known."""
    runs = op.create_table(
        "runs",
        sa.Column("run", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("instance", sa.String(63), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("version", sa.String(63), nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("dropped", sa.BigInteger, nullable=False),
    )
    meta = sa.table("meta", sa.column("key"), sa.column("value"))
    owner = sa.table("owner", *(sa.column(name) for name in ("instance", "host", "since")))
    connection = op.get_bind()
    first = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "run_first"))
    if first is None:
        return
    last = connection.execute(sa.select(owner)).first()
    instance, host, since = tuple(last) if last else ("", "", 0)
    op.bulk_insert(
        runs,
        [{"run": 1, "instance": instance, "host": host, "version": "", "started": since, "first": first, "dropped": 0}],
    )
    op.execute(sa.delete(meta).where(meta.c.key == "run_first"))
