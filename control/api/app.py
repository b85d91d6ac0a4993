# SPDX-License-Identifier: Apache-2.0
"""The application: who asks is known by a token, what it may ask for by its role, and the daemon answers.

    Authorization: Bearer roost_…

A token is never in a cookie, so that a browser page of another origin cannot ask for anything.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, aclosing
from typing import Final
from urllib.parse import quote

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from control.api.access import ACCESS, EVENTS, Access
from control.api.bounds import AtOnce, Rates, source_of
from control.api.stream import Stream, read_query
from control.api.tokens import Tokens, UnreadableError
from control.api.upstream import AwayError, Upstream
from control.core.access import BODY_MAX, FROM, SERVICES, WHO, Role, read_token
from control.store.database import StoreError
from control.store.tokens import TokenRow

log = logging.getLogger("roost.api")

BODY_S: Final = 30.0
SEND_S: Final = 30.0
"""A client that takes nothing of its answer for so long is left."""

SMALL: Final = 256 * 1024
"""Bytes of an answer that is read at once."""

BURST_S: Final = 4.0
"""So many seconds' requests at once."""

AT_ONCE: Final = 20
"""Requests of one token, among them answers that go on and on."""

FAILURES_PER_S: Final = 0.2
FAILURES: Final = 10.0
"""Of one source, that sent no good token: on average, and at once."""

_QUERY: Final = "%!$&'()*+,;=:@/?-._~"
"""What stays as it is written: RFC 3986 3.4, and what is encoded already."""

AWAY: Final = "the daemon does not run, or is starting"
AWAY_S: Final = 2


class Gate:
    """requests: a second by one token."""

    def __init__(self, tokens: Tokens, requests: float) -> None:
        self._tokens = tokens
        self._requests = Rates(requests, max(requests * BURST_S, 1.0))
        self._failures = Rates(FAILURES_PER_S, FAILURES)
        self.at_once = AtOnce(AT_ONCE)

    async def admit(self, request: Request, access: Access) -> TokenRow:
        """Who asks. Raises HTTPException."""
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        credential = read_token(text.strip()) if scheme.lower() == "bearer" else None
        try:
            row = await self._tokens.find(credential) if credential else None
        except UnreadableError:
            raise HTTPException(503, "the database cannot be read, where tokens are", {"Retry-After": "5"}) from None
        if row is None:
            source = source_of(request.client.host if request.client else "::")
            if wait := self._failures.wait_s(source):
                raise _too_many("too many requests without a good token came from this address", wait)
            self._failures.take(source)
            what = "the token is not good (any more)" if credential else "a token is needed: Authorization: Bearer …"
            raise HTTPException(401, what, {"WWW-Authenticate": "Bearer"})
        if wait := self._requests.wait_s(row.id):
            raise _too_many(f'the token "{row.name}" is used too often', wait)
        self._requests.take(row.id)
        if not access.allows(Role(row.role)):
            log.warning("%s, %s, refused to %s: %s %s", row.name, row.role, request.client, access.method, access.path)
            raise HTTPException(403, f'the token "{row.name}" has the role "{row.role}", which may not do this')
        return row


def _too_many(what: str, wait_s: float) -> HTTPException:
    return HTTPException(429, what, {"Retry-After": str(int(wait_s) + 1)})


Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(tokens: Tokens, upstream: Upstream, stream: Stream, requests: float) -> Starlette:
    """The application. requests: a second by one token."""
    gate = Gate(tokens, requests)

    def endpoint(access: Access) -> Endpoint:
        return _events(access, gate, stream) if access.path == EVENTS else _endpoint(access, gate, upstream)

    routes = [Route(one.path, endpoint(one), methods=[one.method]) for one in ACCESS]
    for route in routes:
        assert route.methods is not None
        route.methods.discard("HEAD")  # Starlette's; the daemon has none
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused, 500: _broken})
    app.router.redirect_slashes = False
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code in (404, 405):  # Starlette's own: nothing was asked of the daemon
        what = "here" if error.status_code == 404 else f"with the method {request.method}"
        return _error(error.status_code, f"nothing is served {what}; see docs/api.md", error.headers)
    return _error(error.status_code, error.detail, error.headers)


async def _broken(_request: Request, _error_of_ours: Exception) -> Response:
    """It is logged."""
    return _error(500, "an error of the API's own; its log has more")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    # What was not read of the request must not be taken for the next one, nor waited for.
    told = {**(headers or {}), "Connection": "close"}
    return Response(json.dumps({"error": message}), status, told, "application/json")


def _endpoint(access: Access, gate: Gate, upstream: Upstream) -> Endpoint:
    async def answer(request: Request) -> Response:
        row = await gate.admit(request, access)
        if not gate.at_once.begin(row.id):
            raise _too_many(f'the token "{row.name}" has {AT_ONCE} requests that are not answered yet', 0)
        with ExitStack() as ending:
            ending.callback(gate.at_once.end, row.id)
            body = await _body(request)
            try:
                answered = await upstream.ask(request.method, _target(request, access), _headers(request, row), body)
                ending.callback(answered.close)
                if int(answered.headers.get("Content-Length", SMALL + 1)) <= SMALL:
                    return Response(await answered.whole(), answered.status, answered.headers)
            except AwayError:
                raise HTTPException(503, AWAY, {"Retry-After": str(AWAY_S)}) from None
            return Relayed(answered.status, answered.headers, answered.parts(), ending.pop_all())

    return answer


def _events(access: Access, gate: Gate, stream: Stream) -> Endpoint:
    async def answer(request: Request) -> Response:
        row = await gate.admit(request, access)
        if not gate.at_once.begin(row.id):
            raise _too_many(f'the token "{row.name}" has {AT_ONCE} requests that are not answered yet', 0)
        with ExitStack() as ending:
            ending.callback(gate.at_once.end, row.id)
            try:
                newest = await stream.last_row()
            except (SQLAlchemyError, StoreError):
                raise HTTPException(503, "the database cannot be read", {"Retry-After": "5"}) from None
            after, wanted = read_query(request.query_params, request.headers.get("Last-Event-ID"), newest, row.services)
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
            return Relayed(200, headers, stream.follow(after, newest, wanted), ending.pop_all())

    return answer


async def _body(request: Request) -> bytes:
    """Raises HTTPException."""
    told = request.headers.get("Content-Length", "0")
    too_much = HTTPException(413, f"a request has {BODY_MAX:,} bytes at most")
    if told.isdecimal() and int(told) > BODY_MAX:
        raise too_much
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_MAX:
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
    assert request.client is not None
    told = {WHO: quote(row.name), FROM: quote(request.client.host)}
    if row.services is not None:
        told[SERVICES] = ",".join(quote(name, safe="") for name in row.services)
    if "Content-Type" in request.headers:
        told["Content-Type"] = request.headers["Content-Type"]
    return told


class Relayed(Response):
    """An answer as it comes. ending: what is done when it is over, however it ended."""

    def __init__(self, status: int, headers: Mapping[str, str], parts: AsyncGenerator[bytes],
                 ending: ExitStack) -> None:  # fmt: skip
        super().__init__(status_code=status, headers=dict(headers))
        if "Content-Length" not in headers:
            del self.headers["Content-Length"]  # Starlette's, of no body at all
        self._parts = parts
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_has_left(receive))
        with self._ending:
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.wait({sending, leaving})

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._parts) as parts:
            async for part in parts:
                async with asyncio.timeout(SEND_S):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _has_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
