# SPDX-License-Identifier: Apache-2.0
"""What the daemon is asked for, and answers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from appliance.bounds import AtOnce
from control.api.access import Access
from control.api.answers import Answered, too_many
from control.api.upstream import AwayError, Upstream
from control.core.access import BODY_MAX, FROM, SERVICES, WHO, Role
from control.store.tokens import TokenRow

log = logging.getLogger("roost.api")


BODY_S: Final = 30.0
SMALL: Final = 256 * 1024
"""Bytes of an answer that is read at once."""

LONG: Final = 32
LONG_EACH: Final = 4
"""Long answers of the daemon's, in all and of one token: each has one of the connections to it."""

SMALL_BODY: Final = 64 * 1024
"""Bytes of a request's body, but for where files of rules are sent (BODY_MAX), and jobs."""

JOB_BODY: Final = 3 << 20
"""The same of a job: 10,000 names of 300 characters, in quotes and on lines of their own (control/channel/jobs.py)."""

_QUERY: Final = "%!$&'()*+,;=:@/?-._~"
"""What stays as it is written: RFC 3986 3.4, and what is encoded already."""

_KEPT: Final = ("Content-Type", "If-Match")
"""Headers of a request that the daemon is told."""


async def relay(upstream: Upstream, long: AtOnce, long_each: AtOnce, request: Request, access: Access, row: TokenRow,
                 ending: ExitStack) -> Answered:  # fmt: skip
    """What the daemon answers. long: answers that go on, of all, and of a token."""
    body = await body_of(request, _body_max(access.path))
    try:
        answer = await upstream.ask(request.method, target_of(request, access), headers_of(request, row), body, ending)
        ending.callback(answer.close)
        if int(answer.headers.get("Content-Length", SMALL + 1)) <= SMALL:
            return Answered(answer.status, answer.headers, await answer.whole())
    except AwayError as error:
        raise HTTPException(503, str(error)) from None
    for most, key in ((long, ""), (long_each, row.id)):
        if not most.begin(key):
            raise too_many("there are as many long answers at once as may be: lists take less in pages", 0)
        ending.callback(most.end, key)
    return Answered(answer.status, answer.headers, answer.parts())


def _body_max(path: str) -> int:
    return JOB_BODY if path == "/v1/jobs" else BODY_MAX if path.startswith("/v1/policy/") else SMALL_BODY


async def body_of(request: Request, most: int) -> bytes:
    """Raises HTTPException."""
    told = request.headers.get("Content-Length", "0")
    too_much = HTTPException(413, f"this request has {most:,} bytes at most")
    if told.isdecimal() and int(told) > most:
        raise too_much
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_much
    except TimeoutError:
        raise HTTPException(408, f"the request did not come within {BODY_S:.0f} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the request broke off") from None
    return bytes(body)


def target_of(request: Request, access: Access) -> str:
    """Path and query for the daemon: the path is made anew, so that it is of this very route there, too. Raises
    HTTPException."""
    names = request.path_params
    if {".", ".."} & set(names.values()):  # RFC 3986 5.2.4: of another route, for some
        raise HTTPException(404)
    path = access.path.format(**{key: quote(value, safe="") for key, value in names.items()})
    query = request.scope["query_string"].decode("latin-1")
    return f"{path}?{quote(query, safe=_QUERY)}" if query else path


def headers_of(request: Request, row: TokenRow) -> dict[str, str]:
    assert request.client is not None  # Gate.admit has looked
    told = {WHO: quote(row.name), FROM: quote(request.client.host)}
    if row.services is not None or row.role == Role.SERVER:
        told[SERVICES] = ",".join(quote(name, safe="") for name in row.services or ())
    return told | {name: request.headers[name] for name in _KEPT if name in request.headers}
