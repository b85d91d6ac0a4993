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
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from control.api.access import ACCESS, ATTACH, CONTROL, EVENTS, ME, METRICS, Access
from control.api.bounds import AtOnce, Rates, source_of
from control.api.control import Control
from control.api.metrics import Counted, Metrics
from control.api.static import HEADERS, PREFIX, File
from control.api.stream import Stream, read_query
from control.api.tokens import Tokens, UnreadableError
from control.api.upgrade import EXTENSION, SWITCHING, RefusedError, Upgrading, attached, relay
from control.api.upstream import AwayError, Upstream
from control.core.access import BODY_MAX, FROM, REFUSED, SERVICES, WHO, Credential, Role, read_token
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
_LARGE_BODIES: Final = ("/v1/policy/", "/v1/jobs")
"""Bytes of a request's body, but for where files of rules are sent, and lists of connections."""

ATTACHED_EACH: Final = 1000
"""Clients of one token, whose byte streams are here."""

FAILURES_PER_S: Final = 0.2
FAILURES: Final = 10.0
"""Of one source, that sent no good token: on average, and at once."""

FILES_PER_S: Final = 20.0
FILES: Final = 200.0
"""Of the console's files to one source, on average, and at once: the page has fewer than 20."""

_QUERY: Final = "%!$&'()*+,;=:@/?-._~"
"""What stays as it is written: RFC 3986 3.4, and what is encoded already."""

RECORDED_AT_ONCE: Final = 8
RECORD_S: Final = 10.0
"""Refusals that the daemon is being told of, and for how long it is tried."""

NO_TOKEN: Final = "(no token)"
"""Who asked, in the record; no token has such a name."""

AWAY_S: Final = 2


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
                raise _too_many("too many requests without a good token came from this address", wait)
            self._failures.take(source)
            what = "the token is not good (any more)" if credential else "a token is needed: Authorization: Bearer …"
            raise HTTPException(401, what, {"WWW-Authenticate": "Bearer"})
        if wait := self._requests.wait_s(row.id):
            raise _too_many(f'the token "{row.name}" is used too often', wait)
        self._requests.take(row.id)
        if not access.allows(Role(row.role)):
            raise ForbiddenError(row)
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


Endpoint = Callable[[Request], Awaitable[Response]]

Work = Callable[[Request, Access, TokenRow, ExitStack], Awaitable["Answered"]]
"""Answers; what is to be done when the answer is over, however it ended, goes into the stack."""


def make_app(tokens: Tokens, upstream: Upstream, stream: Stream, requests: float,
             files: Mapping[str, File]) -> Starlette:  # fmt: skip
    """The application. requests: a second by one token. files: of the console, by path."""
    gate = Gate(tokens, requests)
    relayed = partial(_relay, upstream, AtOnce(LONG), AtOnce(LONG_EACH))
    metrics, record = Metrics(stream.counts), Record(upstream)
    own: dict[str, Work] = {
        EVENTS: partial(_events, stream),
        ME: _me,
        METRICS: partial(_metrics, metrics, upstream),
        ATTACH: partial(_attach, upstream, AtOnce(ATTACHED_EACH), relayed),
    }
    of_path: dict[str, dict[str, Endpoint]] = {}
    for access in ACCESS:
        endpoint = _endpoint(access, gate, record, own.get(access.path, relayed))
        of_path.setdefault(access.path, {})[access.method] = endpoint
    routes: list[BaseRoute] = [_route(path, endpoints) for path, endpoints in of_path.items()]
    routes.append(WebSocketRoute(CONTROL.path, _control(gate, lambda: app)))
    rates = Rates(FILES_PER_S, FILES)
    routes += [_route(path, {"GET": partial(_file, rates, file)}) for path, file in files.items()]
    home = File(b"", {**HEADERS, "Location": PREFIX})
    routes += [_route(path, {"GET": partial(_file, rates, home)}) for path in ("/", PREFIX.rstrip("/"))]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused, 500: _broken})
    app.add_middleware(Counted, metrics=metrics)
    app.router.redirect_slashes = False
    return app


def _route(path: str, endpoints: Mapping[str, Endpoint]) -> Route:
    """One for all methods of a path: what it says with 405, `Allow`, is of all of them."""

    async def answer(request: Request) -> Response:
        return await endpoints[request.method](request)

    route = Route(path, answer, methods=list(endpoints))
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
                (await self._upstream.ask(method, path, headers, b"")).close()
        except (AwayError, TimeoutError) as error:
            log.warning("%s %s, which was refused, is not in the record: %s", method, path, error)


def _endpoint(access: Access, gate: Gate, record: Record, work: Work) -> Endpoint:
    async def answer(request: Request) -> Response:
        with ExitStack() as ending:
            try:
                asking = await gate.admit(request, access, ending)
            except HTTPException as refusal:
                record.note(request, access, refusal)
                raise
            status, headers, body = await work(request, access, asking.row, ending)
            if isinstance(body, bytes):
                return Response(body, status, headers)
            if isinstance(body, Switch):
                return Switched(body, partial(gate.until_bad, asking), ending.pop_all())
            return Relayed(status, headers, body, gate.until_bad(asking), ending.pop_all())

    return answer


class Switch(NamedTuple):
    """A connection is to become the byte stream to a client, by the daemon's ticket. ending: what is done afterwards."""

    ticket: Mapping[str, Any]
    connection: Upgrading
    ending: ExitStack


class Answered(NamedTuple):
    """body: as it comes, where it is not there as a whole."""

    status: int
    headers: dict[str, str]
    body: bytes | AsyncGenerator[bytes] | Switch


async def _relay(upstream: Upstream, long: AtOnce, long_each: AtOnce, request: Request, access: Access, row: TokenRow,
                 ending: ExitStack) -> Answered:  # fmt: skip
    """What the daemon answers. long: answers that go on, of all, and of a token."""
    body = await _body(request, BODY_MAX if access.path.startswith(_LARGE_BODIES) else SMALL_BODY)
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


async def _attach(upstream: Upstream, each: AtOnce, otherwise: Work, request: Request, access: Access, row: TokenRow,
                  ending: ExitStack) -> Answered:  # fmt: skip
    """A client, where the request wants to become the byte stream to it. each: of a token, at once."""
    connection: Upgrading | None = request.scope.get("extensions", {}).get(EXTENSION)
    if connection is None:
        return await otherwise(request, access, row, ending)
    try:
        answer = await upstream.ask("POST", f"{_target(request, access)}/ticket", _headers(request, row), b"")
        ending.callback(answer.close)
        offered = await answer.whole()
    except AwayError as error:
        raise HTTPException(503, str(error), {"Retry-After": str(AWAY_S)}) from None
    if answer.status != 200:
        return Answered(answer.status, answer.headers, offered)
    if not each.begin(row.id):
        raise _too_many(f'the token "{row.name}" has {ATTACHED_EACH} clients by the API at once', 0)
    attached_ending = ExitStack()
    attached_ending.callback(each.end, row.id)
    return Answered(101, {}, Switch(json.loads(offered), connection, attached_ending))


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


async def _metrics(metrics: Metrics, upstream: Upstream, request: Request, _access: Access, row: TokenRow,
                   _ending: ExitStack) -> Answered:  # fmt: skip
    for key in request.query_params:
        raise HTTPException(422, f"{key}: there is no such parameter; there are: none")

    async def read() -> bytes | None:
        try:
            answer = await upstream.ask("GET", "/v1/status", _headers(request, row), b"")
            try:
                return await answer.whole() if answer.status == HTTPStatus.OK else None
            finally:
                answer.close()
        except AwayError:
            return None

    kind, page = await metrics.page(request.headers.get("Accept", ""), read)
    return Answered(200, {"Content-Type": kind}, page)


def _control(gate: Gate, app: Callable[[], Starlette]) -> Callable[[WebSocket], Awaitable[None]]:
    """The control connection. app: what answers its requests."""

    async def serve(socket: WebSocket) -> None:
        try:
            with ExitStack() as ending:
                asking = await gate.admit(socket, CONTROL, ending)
        except HTTPException as error:
            await socket.send_denial_response(_error(error.status_code, error.detail, error.headers))
            return
        await socket.accept()
        serving = asyncio.ensure_future(Control(app(), socket).run())
        await _until_any(serving, gate.until_bad(asking))
        reason = (1008, "the token is not good any more")
        if not serving.cancelled():
            if (failed := serving.exception()) is None:
                return  # it has ended, or was closed
            log.error("the control connection of %s failed", asking.row.name, exc_info=failed)
            reason = (1011, "an error of the API's own; its log has more")
        with suppress(RuntimeError, WebSocketDisconnect):  # it has ended
            await socket.close(*reason)

    return serve


async def _until_any(*work: Awaitable[None]) -> None:
    """Until one has ended; then none goes on."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


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


class Switched(Response):
    """The byte stream to a client, until it ends, or `over` does; or an error. ending: of what goes before it."""

    def __init__(self, switch: Switch, over: Callable[[], Coroutine[Any, Any, None]], ending: ExitStack) -> None:
        super().__init__(status_code=101)
        self._switch = switch
        self._over = over
        self._ending = ending
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it, but for the success, which is behind its back."""
        connection = self._switch.connection
        stream = asyncio.ensure_future(self._stream())
        with self._ending, self._switch.ending:
            try:
                await asyncio.wait({stream, connection.lost}, return_when=asyncio.FIRST_COMPLETED)
                if self._begun:  # it has the connection, and ends with it
                    await asyncio.wait({stream})
            finally:
                if stream.cancel():
                    await asyncio.wait({stream})
            failed = None if stream.cancelled() else stream.exception()
            if isinstance(failed, RefusedError):
                await _error(failed.status, str(failed))(scope, receive, send)
            elif failed is not None and not isinstance(failed, OSError):
                raise failed

    async def _stream(self) -> None:
        async with attached(self._switch.ticket) as server, self._switch.connection.take_over() as client:
            self._begun = True
            self._ending.close()
            client[1].write(SWITCHING)
            await _until_any(relay(client, server), self._over())


async def _has_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
