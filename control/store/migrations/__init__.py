# SPDX-License-Identifier: Apache-2.0
"""How a database of an earlier version becomes one of this: alembic's revisions, in the wheel beside the store.

A change of control/store/schema.py comes with a revision, which says its predecessor's name, and schema.REVISION names
the last. A revision spells the tables out as they were then, and imports nothing of the store: that goes on changing.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.engine import Connection


def upgrade(connection: Connection) -> None:
    """All revisions that this database lacks, in the transaction that is open. Raises CommandError."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    command.upgrade(config, "head")


__all__ = ["CommandError", "upgrade"]
