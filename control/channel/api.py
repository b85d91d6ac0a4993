# SPDX-License-Identifier: Apache-2.0
"""The local API over HTTP on a unix socket: a thin face of Operations.

    GET  /v1/status
    GET  /v1/connections?state=&client=&network=&service=&name=&tag=&quiet=&silence=&rule=&limit=
                                                    one JSON object a line (NDJSON), streamed
    GET  /v1/connections?after=first&limit=&...     a page of them, {"connections": [...], "next": the `after` of the
                                                    page that follows, or null}
    GET  /v1/connections?keys=CLIENT,NEAR;...       those of these 4-tuples, 100 at most
    GET  /v1/connections/{id}                       id: number, client-address:port, or name.domain
    GET  /v1/connections/{id}/explain               why it is not asleep, or does not wake
    POST /v1/connections/{id}/{action}              standby idle sleep wake close
    POST /v1/connections/{id}/attach                where to connect to reach it
    POST /v1/connections/{id}/attach/ticket         one for this machine (control/reach/tickets.py); not by the network
    PUT  /v1/connections/{id}/name                  {"name": "thermostat-17"}: servers reach it by that name from now on
    DELETE /v1/connections/{id}/name                its name is forgotten
    GET  /v1/agents                                 the clients that agents speak for
    GET  /v1/dialled                                the clients that were dialled in vain, and which are to stay
    DELETE /v1/names/{name}                         the name is forgotten, whether or not its connection lives
    GET  /v1/names/{name}/tags                      its tags: labels, which stay with its client
    PUT  /v1/names/{name}/tags                      {"add": [...], "remove": [...]}
    GET  /v1/tags?after=&limit=                     tags in their order, and how many names have each
    GET  /v1/events?last=                           server-sent events: transitions as they happen
    GET  /v1/history?limit=&id=                     the last transitions, of all or of one, which may have ended
    GET  /v1/attaches?limit=&failed=                the last servers that asked for a client
    GET  /v1/audit?limit=&who=&refused=             the last changes that were asked for (audit.py)
    GET  /v1/openapi.json                           what all of these take and answer (control/api/document.py)
    GET  /v1/snapshots?limit=                       what was counted at the last moments, a minute apart;
                                                    10,000 rows at most
    .../policy                                      rules of the policy: policy.py
    .../jobs                                        an action for many connections: jobs.py
    .../tokens                                      of those who ask by the network: tokens.py

Who asks may say so in headers: asker.py.

What a route does not know is refused (strict.py). Errors are ``{"error": "a sentence"}`` with a status of the 4xx or
5xx kind. Who may open the socket may do everything: its file permissions are the access control.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from pydantic_core import to_json
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from appliance.wire import Key
from control.channel import parameters as par
from control.channel.asker import AskedBy, Scoped
from control.channel.audit import Audited
from control.channel.jobs import job_routes
from control.channel.live import live
from control.channel.operations import Operations
from control.channel.policy import policy_routes
from control.channel.strict import BODY, StrictRoute
from control.channel.tokens import token_routes
from control.clients.view import Wanted
from control.config import parse_endpoint
from control.core.access import BODY_MAX
from control.core.errors import OperationError
from control.core.ports import TransitionsPort
from control.core.states import State
from control.store.database import reason

log = logging.getLogger("roost.channel")

SECRET: Final = frozenset({"snd_nxt", "rcv_nxt", "ts_offset", "ts_recent"})
"""Of a sleeping connection: not told by the network."""


class NewName(BaseModel):
    """Of a connection."""

    model_config = BODY

    name: str = Field(description="without the domain", examples=["thermostat-17"], json_schema_extra=par.NAME)


class TagEdit(BaseModel):
    """Of a name."""

    model_config = BODY

    add: list[par.Tag] = Field([], description="tags that it is to have")
    remove: list[par.Tag] = Field([], description="tags that it is to have no more")


def make_app(operations: Operations, source: TransitionsPort) -> FastAPI:
    """The application; it holds no state of its own."""
    app = FastAPI(openapi_url=None, redirect_slashes=False, max_body_size=BODY_MAX)
    app.router.route_class = StrictRoute

    app.add_middleware(Scoped)
    app.add_middleware(Audited, record=operations.record)

    @app.exception_handler(OperationError)
    async def _cannot(_request: Request, error: OperationError) -> Response:
        return _error(error.status, str(error))

    @app.exception_handler(RequestValidationError)
    async def _unreadable(_request: Request, error: RequestValidationError) -> Response:
        wrong = (
            f"{'.'.join(each for each in one['loc'] if isinstance(each, str))}: {one['msg']}" for one in error.errors()
        )
        return _error(422, "; ".join(wrong))

    @app.exception_handler(HTTPException)
    async def _none_such(_request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, error.detail, error.headers)

    @app.exception_handler(SQLAlchemyError)
    async def _no_store(_request: Request, error: SQLAlchemyError) -> Response:
        return _error(503, f"store: {reason(error)}")

    @app.exception_handler(Exception)
    async def _broken(_request: Request, _error_of_ours: Exception) -> Response:
        """It is logged, too."""
        return _error(500, "an error of the daemon's own; its log has more")

    @app.get("/v1/status")
    def status() -> Response:
        return _json(operations.status.read())

    @app.get("/v1/openapi.json")
    async def document() -> Response:
        return Response(await operations.document(), media_type="application/json")

    @app.get("/v1/connections")
    def connections(
        state: par.StateName = None, client: par.OfClient = "", network: par.OfNetwork = "",
        service: par.OfService = "", name: par.OfName = "", tag: par.OfTag = "", quiet: par.Quiet = 0,
        silence: par.Silence = 0, rule: par.OfRule = "", limit: par.Most = None, after: par.Page = None,
        keys: par.OfKeys = "",
    ) -> Response:  # fmt: skip
        if keys:
            return StreamingResponse(_ndjson(operations.view.at(_keys(keys))), media_type="application/x-ndjson")
        in_state = State[state] if state else None
        wanted = Wanted(in_state, client, network, service, name.lower(), tag.lower(), quiet, silence, rule)
        if after is not None:
            return _json(operations.view.page(wanted, after, min(limit or par.PAGE_ROWS, par.PAGE_ROWS_MAX)))
        chunks = operations.view.connections(wanted, limit)
        return StreamingResponse(_ndjson(_begun(chunks)), media_type="application/x-ndjson")

    @app.get("/v1/connections/{name}")
    def show(name: par.ConnectionId, asker: AskedBy) -> Response:
        shown = operations.view.show(name)
        if asker.by_token and "keep_alive" in shown:  # they suffice to forge segments
            shown["keep_alive"] = {key: value for key, value in shown["keep_alive"].items() if key not in SECRET}
        return _json(shown)

    @app.get("/v1/connections/{name}/explain")
    def explain(name: par.ConnectionId) -> Response:
        return _json(operations.explainer.explain(name))

    @app.post("/v1/connections/{name}/attach")
    async def attach(name: par.ConnectionId) -> Response:
        return _json(await operations.offer(name))

    @app.post("/v1/connections/{name}/attach/ticket")
    async def ticket(name: par.ConnectionId, asker: AskedBy) -> Response:
        return _json(await operations.ticket(name, asker.who))

    def moving(action: str) -> Callable[[str], Awaitable[Response]]:
        async def act(name: par.ConnectionId) -> Response:
            return _json(await operations.moving.act(name, action))

        return act

    for action in par.ACTIONS:
        app.post(f"/v1/connections/{{name}}/{action}")(moving(action))

    @app.put("/v1/connections/{connection}/name")
    def give_name(connection: par.ConnectionId, wanted: NewName) -> Response:
        return _json(operations.naming.give(connection, wanted.name))

    @app.delete("/v1/connections/{connection}/name")
    def take_name(connection: par.ConnectionId) -> Response:
        return _json(operations.naming.take(connection))

    @app.delete("/v1/names/{name}")
    def forget_name(name: par.ClientName) -> Response:
        return _json(operations.naming.forget(name))

    @app.get("/v1/names/{name}/tags")
    def tags_of(name: par.ClientName) -> Response:
        return _json(operations.naming.tags_of(name))

    @app.put("/v1/names/{name}/tags")
    def tag(name: par.ClientName, edit: TagEdit) -> Response:
        return _json(operations.naming.tag(name, edit.add, edit.remove))

    @app.get("/v1/tags")
    def tags(after: par.AfterTag = "", limit: par.Tags = 1000) -> Response:
        return _json(operations.naming.tags(after, limit))

    @app.get("/v1/agents")
    def agents() -> Response:
        return _json(operations.agents())

    @app.get("/v1/dialled")
    def dialled() -> Response:
        return _json(operations.dialled())

    @app.get("/v1/history")
    def recent(limit: par.Last100000 = 100, id: par.OfOneId = None) -> Response:
        return _json(operations.view.recent(limit, id))

    @app.get("/v1/attaches")
    def attaches(limit: par.Last10000 = 100, failed: par.Refused = False) -> Response:
        return _json(operations.view.attaches(limit, failed))

    @app.get("/v1/audit")
    def audit(limit: par.Last10000 = 100, who: par.Who = "", refused: par.Refused = False) -> Response:
        return _json(operations.view.audit(limit, who, refused))

    @app.get("/v1/snapshots")
    def snapshots(limit: par.Moments = 60) -> Response:
        return _json(operations.view.snapshots(limit))

    @app.get("/v1/events")
    async def events(last: par.Last10000 = 0) -> StreamingResponse:
        parts = live(operations.view, source, last)
        return StreamingResponse(_behind(await anext(parts), parts), media_type="text/event-stream")

    # Behind the others: for each request the routes are tried in their order.
    app.include_router(policy_routes(operations.ruling, operations.giving))
    app.include_router(token_routes(operations.tokens))
    app.include_router(job_routes(operations.jobs))
    return app


def _keys(text: str) -> list[Key]:
    told = [one.partition(",") for one in text.split(";")]
    if len(told) > par.KEYS_MAX:
        raise OperationError(422, f"keys: {par.KEYS_MAX} at most")
    try:
        return [Key.of(*parse_endpoint(client), *parse_endpoint(near)) for client, _, near in told]
    except ValueError:
        raise OperationError(400, "keys: each is client-address:port,near-address:port, with a ; between two") from None


def _json(data: Any) -> Response:
    """FastAPI would look at each value first, which takes longer than all the rest of a page, and json twice as long as
    its serializer for a connection's transitions."""
    return Response(to_json(data), media_type="application/json")


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """In ASCII: what was asked may be quoted in it, half of a surrogate pair included, which is no UTF-8."""
    body = json.dumps({"error": message})
    return Response(body, status, media_type="application/json", headers=dict(headers or {}))


def _begun(chunks: Iterator[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    """What is wrong with the request is said before the answer begins."""
    return itertools.chain([next(chunks, [])], chunks)


def _ndjson(chunks: Iterator[list[dict[str, Any]]]) -> Iterator[bytes]:
    for chunk in chunks:
        yield b"".join(json.dumps(row).encode() + b"\n" for row in chunk)


async def _behind(first: bytes, others: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with contextlib.aclosing(others):
        yield first
        async for part in others:
            yield part


class _ApiServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The daemon's signals are the daemon's: SIGTERM freezes connections first."""
        yield


def bind_unix(path: str) -> socket.socket:
    """A listening unix socket that root alone may open. The daemon holds the instance's lock, which stands in the same
    directory: so a file that is in the way was left by a dead one."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(128)
    return listener


def make_server(app: Starlette) -> uvicorn.Server:
    """A server to be run in the daemon's event loop: ``await server.serve(sockets=[...])``."""
    settings = uvicorn.Config(
        app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=1, proxy_headers=False,
    )  # fmt: skip
    return _ApiServer(settings)
