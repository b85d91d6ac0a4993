# SPDX-License-Identifier: Apache-2.0
"""What a reboot leaves of the store, without one."""

from __future__ import annotations

from typing import Any, Protocol


class _Executes(Protocol):
    def execute(self, statement: str, /) -> Any: ...


def age(database: _Executes, which: str = "TRUE") -> None:
    """Let the rows of `sleeping` for which the condition holds be of an earlier boot."""
    of = f"clock = (SELECT max(clock) FROM sleeping WHERE {which})"
    columns = "(SELECT max(clock) + 1 FROM clocks), 'the boot before', wall_offset_ms, shift_ms, timestamps_ms"
    database.execute(f"INSERT INTO clocks SELECT {columns} FROM clocks WHERE {of}")
    database.execute(f"UPDATE sleeping SET clock = (SELECT max(clock) FROM clocks) WHERE {which}")
    database.execute("UPDATE meta SET key = 'alive-the boot before' WHERE key LIKE 'alive-%'")
    database.execute("DELETE FROM meta WHERE key = 'boot'")  # by which it is known that there are none of another
