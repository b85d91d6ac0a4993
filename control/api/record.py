# SPDX-License-Identifier: Apache-2.0
"""Changes that were refused here are in the daemon's record of changes, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request

from appliance.bounds import Rates, source_of
from control.api.access import Access
from control.api.gate import FAILURES, FAILURES_PER_S, ForbiddenError
from control.api.upstream import AwayError, Upstream
from control.core.access import FROM, REFUSED, WHO

log = logging.getLogger("roost.api")


RECORDED_AT_ONCE: Final = 8
RECORD_S: Final = 10.0
"""Refusals that the daemon is being told of, and for how long it is tried."""

NO_TOKEN: Final = "(no token)"
"""Who asked, in the record; no token has such a name."""


class Record:
    """Changes that were refused are in the record of changes, too; not that a token is used too often, which may be any
    number of times."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._rates = Rates(FAILURES_PER_S, FAILURES)
        self._tasks = set[asyncio.Task[None]]()

    def note(self, request: Request, access: Access, refusal: HTTPException) -> None:
        """In the background: whoever was refused waits for nothing."""
        if access.method == "GET" or refusal.status_code not in (401, 403) or request.client is None:
            return
        who = refusal.who if isinstance(refusal, ForbiddenError) else NO_TOKEN
        source = f"{who} {source_of(request.client.host)}"
        if self._rates.wait_s(source) or len(self._tasks) >= RECORDED_AT_ONCE:
            log.warning("%s, refused to %s of %s, is not in the record: too many are", access.path, who, source)
            return
        self._rates.take(source)
        told = f"{refusal.status_code} {quote(refusal.detail)}"
        headers = {WHO: quote(who), FROM: quote(request.client.host), REFUSED: told}
        path = quote(request.url.path, safe="/%")
        task = asyncio.ensure_future(self._tell(request.method, path, headers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(RECORD_S):
                (await self._upstream.ask(method, path, headers, b"", ExitStack())).close()
        except (AwayError, TimeoutError) as error:
            log.warning("%s %s, which was refused, is not in the record: %s", method, path, error)
