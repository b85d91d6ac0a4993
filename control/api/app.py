# SPDX-License-Identifier: Apache-2.0
"""The application: who asks is known by a token, what it may ask for by its role, and the daemon answers.

    Authorization: Bearer roost_…

A token is never in a cookie, so that a browser page of another origin cannot ask for anything. The console's files
(static.py) are for everybody, so many a second for each source.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from control.api.access import ACCESS, EVENTS, ME, Access
from control.api.bounds import AtOnce, Rates, source_of
from control.api.static import HEADERS, PREFIX, File
from control.api.stream import Stream, read_query
from control.api.tokens import Tokens, UnreadableError
from control.api.upstream import AwayError, Upstream
from control.core.access import BODY_MAX, FROM, SERVICES, WHO, Credential, Role, read_token
from control.store.database import StoreError
from control.store.tokens import TokenRow

log = logging.getLogger("roost.api")

BODY_S: Final = 30.0
LOOK_S: Final = 1.0
"""How often it is looked whether the token of an answer that goes on is good still."""

SMALL: Final = 256 * 1024
"""Bytes of an answer that is read at once."""

BURST_S: Final = 4.0
"""So many seconds' requests at once."""

AT_ONCE: Final = 20
"""Requests of one token, among them answers that go on and on."""

LONG: Final = 32
LONG_EACH: Final = 4
"""Long answers of the daemon's, in all and of one token: each has one of the connections to it."""

SMALL_BODY: Final = 64 * 1024
"""Bytes of a request's body that is no file of rules."""

FAILURES_PER_S: Final = 0.2
FAILURES: Final = 10.0
"""Of one source, that sent no good token: on average, and at once."""

FILES_PER_S: Final = 20.0
FILES: Final = 200.0
"""Of the console's files to one source, on average, and at once: the page has fewer than 20."""

_QUERY: Final = "%!$&'()*+,;=:@/?-._~"
"""What stays as it is written: RFC 3986 3.4, and what is encoded already."""

AWAY_S: Final = 2


class Gate:
    """requests: a second by one token."""

    def __init__(self, tokens: Tokens, requests: float) -> None:
        self._tokens = tokens
        self._requests = Rates(requests, max(requests * BURST_S, 1.0))
        self._failures = Rates(FAILURES_PER_S, FAILURES)
        self._at_once = AtOnce(AT_ONCE)

    async def admit(self, request: Request, access: Access, ending: ExitStack) -> Asking:
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
                raise _too_many("too many requests without a good token came from this address", wait)
            self._failures.take(source)
            what = "the token is not good (any more)" if credential else "a token is needed: Authorization: Bearer …"
            raise HTTPException(401, what, {"WWW-Authenticate": "Bearer"})
        if wait := self._requests.wait_s(row.id):
            raise _too_many(f'the token "{row.name}" is used too often', wait)
        self._requests.take(row.id)
        if not access.allows(Role(row.role)):
            log.debug("%s, %s, refused to %s: %s %s", row.name, row.role, request.client, access.method, access.path)
            raise HTTPException(403, f'the token "{row.name}" has the role "{row.role}", which may not do this')
        if not self._at_once.begin(row.id):
            raise _too_many(f'the token "{row.name}" has {AT_ONCE} requests that are not answered yet', 0)
        ending.callback(self._at_once.end, row.id)
        return Asking(row, credential)

    async def _row(self, credential: Credential, may_be_new: bool) -> TokenRow | None:
        try:
            return await self._tokens.find(credential, may_be_new)
        except UnreadableError:
            raise HTTPException(503, "the database cannot be read, where tokens are", {"Retry-After": "5"}) from None

    async def until_bad(self, asking: Asking) -> None:
        """Until the token is revoked, or expires."""
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(UnreadableError):
                if await self._tokens.find(asking.credential) is None:
                    return


class Asking(NamedTuple):
    """Who asks."""

    row: TokenRow
    credential: Credential


def _too_many(what: str, wait_s: float) -> HTTPException:
    return HTTPException(429, what, {"Retry-After": str(int(wait_s) + 1)})


Work = Callable[[Request, Access, TokenRow, ExitStack], Awaitable["Answered"]]
"""Answers; what is to be done when the answer is over, however it ended, goes into the stack."""


def make_app(tokens: Tokens, upstream: Upstream, stream: Stream, requests: float,
             files: Mapping[str, File]) -> Starlette:  # fmt: skip
    """The application. requests: a second by one token. files: of the console, by path."""
    gate = Gate(tokens, requests)
    relay = partial(_relay, upstream, AtOnce(LONG), AtOnce(LONG_EACH))
    works: dict[str, Work] = {EVENTS: partial(_events, stream), ME: _me}
    routes = [_route(one.method, one.path, _endpoint(one, gate, works.get(one.path, relay))) for one in ACCESS]
    rates = Rates(FILES_PER_S, FILES)
    routes += [_route("GET", path, partial(_file, rates, file)) for path, file in files.items()]
    home = File(b"", {**HEADERS, "Location": PREFIX})
    routes += [_route("GET", path, partial(_file, rates, home)) for path in ("/", PREFIX.rstrip("/"))]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused, 500: _broken})
    app.router.redirect_slashes = False
    return app


def _route(method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    route = Route(path, endpoint, methods=[method])
    assert route.methods is not None
    route.methods.discard("HEAD")  # Starlette's; the daemon has none
    return route


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = error.detail
    if what == HTTPStatus(error.status_code).phrase:  # Starlette's own
        how = f" with the method {request.method}" if error.status_code == 405 else " here"
        what = f"nothing is served{how}; see docs/api.md"
    return _error(error.status_code, what, error.headers)


async def _broken(_request: Request, _error_of_ours: Exception) -> Response:
    """It is logged."""
    return _error(500, "an error of the API's own; its log has more")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    # What was not read of the request must not be taken for the next one, nor waited for.
    told = {**(headers or {}), "Connection": "close"}
    return Response(json.dumps({"error": message}), status, told, "application/json")


def _endpoint(access: Access, gate: Gate, work: Work) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        with ExitStack() as ending:
            asking = await gate.admit(request, access, ending)
            status, headers, body = await work(request, access, asking.row, ending)
            if isinstance(body, bytes):
                return Response(body, status, headers)
            return Relayed(status, headers, body, gate.until_bad(asking), ending.pop_all())

    return answer


class Answered(NamedTuple):
    """body: as it comes, where it is not there as a whole."""

    status: int
    headers: dict[str, str]
    body: bytes | AsyncGenerator[bytes]


async def _relay(upstream: Upstream, long: AtOnce, long_each: AtOnce, request: Request, access: Access, row: TokenRow,
                 ending: ExitStack) -> Answered:  # fmt: skip
    """What the daemon answers. long: answers that go on, of all, and of a token."""
    body = await _body(request, BODY_MAX if access.path.startswith("/v1/policy/") else SMALL_BODY)
    try:
        answer = await upstream.ask(request.method, _target(request, access), _headers(request, row), body)
        ending.callback(answer.close)
        if int(answer.headers.get("Content-Length", SMALL + 1)) <= SMALL:
            return Answered(answer.status, answer.headers, await answer.whole())
    except AwayError as error:
        raise HTTPException(503, str(error), {"Retry-After": str(AWAY_S)}) from None
    for most, key in ((long, ""), (long_each, row.id)):
        if not most.begin(key):
            raise _too_many("there are as many long answers at once as may be: lists take less in pages", 0)
        ending.callback(most.end, key)
    return Answered(answer.status, answer.headers, answer.parts())


async def _events(stream: Stream, request: Request, _access: Access, row: TokenRow, _ending: ExitStack) -> Answered:
    try:
        newest = await stream.last_row()
    except (SQLAlchemyError, StoreError):
        raise HTTPException(503, "the database cannot be read", {"Retry-After": "5"}) from None
    after, wanted = read_query(
        request.query_params,
        request.headers.get("Last-Event-ID"),
        newest,
        row.services or (() if row.role == Role.SERVER else None),
    )
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    return Answered(200, headers, stream.follow(after, newest, wanted))


async def _me(_request: Request, _access: Access, row: TokenRow, _ending: ExitStack) -> Answered:
    services = list(row.services) if row.services is not None else None
    told = {"name": row.name, "role": row.role, "services": services, "expires_at_ms": row.expires_at}
    return Answered(200, {"Content-Type": "application/json"}, json.dumps(told).encode())


async def _file(rates: Rates, file: File, request: Request) -> Response:
    """One of the console's, or where it is. Raises HTTPException."""
    if request.client is None:
        raise HTTPException(400, "the connection is gone")
    source = source_of(request.client.host)
    if wait := rates.wait_s(source):
        raise _too_many("the console's files were asked for too often from this address", wait)
    rates.take(source)
    if "Location" in file.headers:
        return Response(file.body, 307, file.headers)
    if file.headers["ETag"] in request.headers.get("If-None-Match", ""):
        return Response(None, 304, file.headers)
    return Response(file.body, 200, file.headers)


async def _body(request: Request, most: int) -> bytes:
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


def _target(request: Request, access: Access) -> str:
    """Path and query for the daemon: the path is made anew, so that it is of this very route there, too. Raises
    HTTPException."""
    names = request.path_params
    if {".", ".."} & set(names.values()):  # RFC 3986 5.2.4: of another route, for some
        raise HTTPException(404)
    path = access.path.format(**{key: quote(value, safe="") for key, value in names.items()})
    query = request.scope["query_string"].decode("latin-1")
    return f"{path}?{quote(query, safe=_QUERY)}" if query else path


def _headers(request: Request, row: TokenRow) -> dict[str, str]:
    assert request.client is not None  # Gate.admit has looked
    told = {WHO: quote(row.name), FROM: quote(request.client.host)}
    if row.services is not None or row.role == Role.SERVER:
        told[SERVICES] = ",".join(quote(name, safe="") for name in row.services or ())
    if "Content-Type" in request.headers:
        told["Content-Type"] = request.headers["Content-Type"]
    return told


class Relayed(Response):
    """An answer as it comes, to its end, or until whoever asked has left, or `over`, or the daemon ends. ending: what
    is done then."""

    def __init__(self, status: int, headers: Mapping[str, str], parts: AsyncGenerator[bytes],
                 over: Coroutine[Any, Any, None], ending: ExitStack) -> None:  # fmt: skip
        super().__init__(status_code=status, headers=dict(headers))
        if "Content-Length" not in headers:
            del self.headers["Content-Length"]  # Starlette's, of no body at all
        self._parts = parts
        self._over = over
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        with self._ending:
            tasks = [asyncio.ensure_future(one) for one in (self._send(send), _has_left(receive), self._over)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            if not tasks[0].cancelled() and (error := tasks[0].exception()) is not None:
                log.warning("%s: the answer to %s broke off: %s", scope["path"], scope["client"], error)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._parts) as parts:
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _has_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
