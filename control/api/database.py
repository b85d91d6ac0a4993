# SPDX-License-Identifier: Apache-2.0
"""What the API's process reads of the database itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from control.store.file import identity
from control.store.reading import Reader
from control.store.tokens import TokenRow


class Database(Reader):
    """Of SQLite, the file that the path names now: the daemon may have made another one (control/store/file.py). From
    any thread."""

    def __init__(self, url: sa.URL) -> None:
        super().__init__(url)
        self._path = (url.database or "") if url.get_backend_name() == "sqlite" else ""
        self._file = identity(self._path)[:1]
        self._looking = threading.Lock()

    def _look(self) -> None:
        if not self._path:
            return
        with self._looking:
            if (file := identity(self._path)[:1]) != self._file:
                self.close_readers()
                self._file = file

    def good_tokens(self) -> list[TokenRow]:
        """Reader.tokens, of now."""
        self._look()
        return self.tokens(time.time_ns() // 1_000_000)

    def last_row(self) -> int:
        """Reader.last_row."""
        self._look()
        return super().last_row()

    def rows_after(self, seq: int, most: int) -> list[Sequence[Any]]:
        """Reader.rows_after."""
        self._look()
        return super().rows_after(seq, most)
