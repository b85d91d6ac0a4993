# SPDX-License-Identifier: Apache-2.0
"""What a reboot leaves of the store, without one."""

from __future__ import annotations

from typing import Any, Protocol


class _Executes(Protocol):
    def execute(self, statement: str, /) -> Any: ...


def age(database: _Executes, which: str = "TRUE") -> None:
    """Let the rows of `sleeping` for which the condition holds be of an earlier boot."""
    database.execute(f"UPDATE sleeping SET boot_id = 'the boot before' WHERE {which}")
    database.execute("DELETE FROM meta WHERE key = 'boot'")  # by which it is known that there are none of another
