# SPDX-License-Identifier: Apache-2.0
"""Whoever asks has a good token, and none asks too often, or for too much at once."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from appliance.bounds import AtOnce, Rates, source_of
from control.api.access import Access
from control.api.answers import NOT_GOOD, too_many
from control.api.tokens import Tokens, UnreadableError
from control.core.access import Credential, Role, read_token
from control.core.logs import about
from control.store.tokens import TokenRow

log = logging.getLogger("roost.api")


LOOK_S: Final = 1.0
"""How often it is looked whether the token of an answer that goes on is good still."""

BURST_S: Final = 4.0
"""So many seconds' requests at once."""

AT_ONCE: Final = 20
"""Requests of one token, among them answers that go on and on."""

FAILURES_PER_S: Final = 0.2
FAILURES: Final = 10.0
"""Of one source, that sent no good token: on average, and at once."""


class ForbiddenError(HTTPException):
    """The role of a token does not do."""

    def __init__(self, row: TokenRow) -> None:
        super().__init__(403, f'the token "{row.name}" has the role "{row.role}", which may not do this')
        self.who = row.name


class Gate:
    """requests: a second by one token."""

    def __init__(self, tokens: Tokens, requests: float) -> None:
        self._tokens = tokens
        self._requests = Rates(requests, max(requests * BURST_S, 1.0))
        self._failures = Rates(FAILURES_PER_S, FAILURES)
        self._at_once = AtOnce(AT_ONCE)

    async def admit(self, request: HTTPConnection, access: Access, ending: ExitStack) -> Asking:
        """Who asks; until the end one request more of its token goes on. Raises HTTPException."""
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        credential = read_token(text.strip()) if scheme.lower() == "bearer" else None
        if request.client is None:
            raise HTTPException(400, "the connection is gone")
        source = source_of(request.client.host)
        wait = self._failures.wait_s(source)
        row = await self._row(credential, not wait) if credential else None
        if row is None or credential is None:
            if wait:
                raise too_many("too many requests without a good token came from this address", wait)
            self._failures.take(source)
            what = NOT_GOOD if credential else "a token is needed: Authorization: Bearer …"
            raise HTTPException(401, what, {"WWW-Authenticate": "Bearer"})
        if wait := self._requests.wait_s(row.id):
            raise too_many(f'the token "{row.name}" is used too often', wait)
        self._requests.take(row.id)
        if not access.allows(Role(row.role)):
            log.debug("%s, %s, refused to %s: %s %s", row.name, row.role, request.client, access.method, access.path,
                      extra=about(token=row.name))  # fmt: skip
            raise ForbiddenError(row)
        if not self._at_once.begin(row.id):
            raise too_many(f'the token "{row.name}" has {AT_ONCE} requests that are not answered yet', 0)
        ending.callback(self._at_once.end, row.id)
        return Asking(row, credential)

    async def _row(self, credential: Credential, may_be_new: bool) -> TokenRow | None:
        try:
            return await self._tokens.find(credential, may_be_new)
        except UnreadableError:
            raise HTTPException(503, "the database cannot be read, where tokens are") from None

    async def until_bad(self, asking: Asking) -> None:
        """Until the token is revoked, or expires: that also while the database cannot be read."""
        while asking.row.is_good(time.time_ns() // 1_000_000):
            await asyncio.sleep(LOOK_S)
            with suppress(UnreadableError):
                if await self._tokens.find(asking.credential) is None:
                    return


class Asking(NamedTuple):
    """Who asks."""

    row: TokenRow
    credential: Credential
