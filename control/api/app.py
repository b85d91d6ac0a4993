# SPDX-License-Identifier: Apache-2.0
"""The application: who asks is known by a token, what it may ask for by its role, and the daemon answers.

    Authorization: Bearer roost_…

A token is never in a cookie, so that a browser page of another origin cannot ask for anything. The console's files
(static.py) are for everybody, so many a second for each source.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from appliance.bounds import AtOnce, Rates
from control.api.access import ACCESS, ATTACH, CONTROL, EVENTS, ME, METRICS, Access
from control.api.answers import RETRY, Relayed, Switch, Switched, Work, refusal_of
from control.api.gate import Gate
from control.api.metrics import Counted, Metrics
from control.api.own import ATTACHED_EACH, FILES, FILES_PER_S, attach, control, events, file_of, me, metrics_page
from control.api.record import Record
from control.api.relay import LONG, LONG_EACH, relay
from control.api.static import HEADERS, PREFIX, File
from control.api.stream import Stream
from control.api.tokens import Tokens
from control.api.upstream import Upstream

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(tokens: Tokens, upstream: Upstream, stream: Stream, requests: float,
             files: Mapping[str, File]) -> Starlette:  # fmt: skip
    """The application. requests: a second by one token. files: of the console, by path."""
    gate = Gate(tokens, requests)
    relayed = partial(relay, upstream, AtOnce(LONG), AtOnce(LONG_EACH))
    metrics, record = Metrics(stream.counts), Record(upstream)
    own: dict[str, Work] = {
        EVENTS: partial(events, stream),
        ME: me,
        METRICS: partial(metrics_page, metrics, upstream),
        ATTACH: partial(attach, upstream, AtOnce(ATTACHED_EACH), relayed),
    }
    of_path: dict[str, dict[str, Endpoint]] = {}
    for access in ACCESS:
        endpoint = _endpoint(access, gate, record, own.get(access.path, relayed))
        of_path.setdefault(access.path, {})[access.method] = endpoint
    routes: list[BaseRoute] = [_route(path, endpoints) for path, endpoints in of_path.items()]
    routes.append(WebSocketRoute(CONTROL.path, control(gate, lambda: app)))
    rates = Rates(FILES_PER_S, FILES)
    routes += [_route(path, {"GET": partial(file_of, rates, file)}) for path, file in files.items()]
    home = File(b"", {**HEADERS, "Location": PREFIX})
    routes += [_route(path, {"GET": partial(file_of, rates, home)}) for path in ("/", PREFIX.rstrip("/"))]
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
    return refusal_of(error.status_code, what, error.headers)


async def _broken(_request: Request, _error_of_ours: Exception) -> Response:
    """It is logged."""
    return refusal_of(500, "an error of the API's own; its log has more")


def _endpoint(access: Access, gate: Gate, record: Record, work: Work) -> Endpoint:
    async def answer(request: Request) -> Response:
        with ExitStack() as ending:
            try:
                asking = await gate.admit(request, access, ending)
            except HTTPException as refusal:
                record.note(request, access, refusal)
                raise
            status, headers, body = await work(request, access, asking.row, ending)
            headers = {**RETRY.get(status, {}), **headers}
            if isinstance(body, bytes):
                return Response(body, status, headers)
            if isinstance(body, Switch):
                return Switched(body, gate.until_bad(asking), ending.pop_all())
            return Relayed(status, headers, body, gate.until_bad(asking), ending.pop_all())

    return answer
