# SPDX-License-Identifier: Apache-2.0
"""The tokens that there are, as the database had them a moment ago."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from control.core.access import Credential
from control.store.database import StoreError, reason
from control.store.tokens import TokenRow

log = logging.getLogger("roost.api")

FRESH_S: Final = 1.0
"""So long they are believed without another look: a revoked token is good for as long."""

KEPT_S: Final = 300.0
"""So long they are believed while the database cannot be read."""

READ_S: Final = 2.0
"""So long is waited for them."""

UNKNOWN_S: Final = 0.1
"""A token that is not among them may have been made since: they are read again, so long after the last time."""


class UnreadableError(Exception):
    """It is not known which tokens there are."""


class Tokens:
    """read: those of the database, all; in a thread, one at a time."""

    def __init__(self, read: Callable[[], Sequence[TokenRow]]) -> None:
        self._read = read
        self._rows: dict[str, TokenRow] = {}
        self._read_at = self._began = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._said = ""

    async def find(self, credential: Credential, may_be_new: bool = True) -> TokenRow | None:
        """The good token that this is; None: there is none. may_be_new: where it is not known, look whether it was made
        just now. Raises UnreadableError."""
        now = time.monotonic()
        if (may_be_new and credential.id not in self._rows) or now - self._read_at >= 2 * FRESH_S:
            await self._read_since(now)
        elif now - self._read_at >= FRESH_S:
            self._begin()
        if time.monotonic() - self._read_at > KEPT_S:
            raise UnreadableError(self._said)
        row = self._rows.get(credential.id)
        if row is None or not hmac.compare_digest(row.digest, credential.digest):
            return None
        return row if row.is_good(time.time_ns() // 1_000_000) else None

    async def _read_since(self, moment: float) -> None:
        """Have them as they were after that moment, if they can be read."""
        while self._read_at < moment:
            await asyncio.sleep(self._began + UNKNOWN_S - time.monotonic())
            began_before = self._began
            try:
                async with asyncio.timeout(READ_S):
                    await asyncio.shield(self._begin())
            except TimeoutError:  # the disk hangs, or PostgreSQL
                return
            if self._said and self._began > began_before:
                return

    def _begin(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._again())
        return self._reading

    async def _again(self) -> None:
        began = self._began = time.monotonic()
        try:
            rows = await asyncio.to_thread(self._read)
        except (SQLAlchemyError, StoreError) as error:
            if self._said != (said := reason(error)):
                self._said = said
                log.error("the tokens cannot be read from the database: %s", said)
            return
        self._rows, self._read_at, self._said = {row.id: row for row in rows}, began, ""
