# SPDX-License-Identifier: Apache-2.0
"""The local API over HTTP on a unix socket: a thin face of Operations.

    GET  /v1/status
    GET  /v1/connections?state=&client=&network=&service=&name=&tag=&quiet=&silence=&rule=&limit=
                                                    one JSON object a line (NDJSON), streamed
    GET  /v1/connections?after=first&limit=&...     a page of them, {"connections": [...], "next": the `after` of the
                                                    page that follows, or null}
    GET  /v1/connections?key=CLIENT,NEAR&key=...    those of these 4-tuples, 200 at most
    GET  /v1/connections/{id}                       id: number, client-address:port, or name.domain
    GET  /v1/connections/{id}/explain               why it is not asleep, or does not wake
    POST /v1/connections/{id}/{action}              standby idle sleep wake close
    POST /v1/connections/{id}/attach                where to connect to reach it; {"ticket": true}: with one
                                                    (control/reach/tickets.py)
    PUT  /v1/connections/{id}/name                  {"name": "thermostat-17"}: servers reach it by that name from now on
    DELETE /v1/connections/{id}/name                its name is forgotten
    GET  /v1/agents                                 the clients that agents speak for
    GET  /v1/dialled                                the clients that were dialled in vain, and which are to stay
    DELETE /v1/names/{name}                         the name is forgotten, whether or not its connection lives
    GET  /v1/names/{name}/tags                      its tags: labels, which stay with its client
    PUT  /v1/names/{name}/tags                      {"add": [...], "remove": [...]}
    GET  /v1/tags?after=&limit=                     tags in their order, and how many names have each
    GET  /v1/events?last=                           server-sent events: transitions as they happen
    GET  /v1/history?limit=                         the last transitions
    GET  /v1/attaches?limit=&failed=                the last servers that asked for a client
    GET  /v1/audit?limit=&who=&refused=             the last changes that were asked for (audit.py)
    GET  /v1/snapshots?limit=                       what was counted at the last moments, a minute apart;
                                                    10,000 rows at most
    .../policy                                      rules of the policy: policy.py
    .../jobs                                        an action for many connections: jobs.py
    .../tokens                                      of those who ask by the network: tokens.py

Who asks may say so in headers: asker.py.

Errors are ``{"error": "a sentence"}`` with a status of the 4xx or 5xx kind. Who may open the socket may do everything:
its file permissions are the access control.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import uvicorn
from fastapi import Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from appliance.wire import Event, Key
from control.channel.asker import WHO_LENGTH, AskedBy, Scoped
from control.channel.audit import Audited
from control.channel.jobs import job_routes
from control.channel.operations import Operations
from control.channel.policy import policy_routes
from control.channel.tokens import token_routes
from control.clients.view import Wanted
from control.config import parse_endpoint
from control.core.access import BODY_MAX
from control.core.errors import OperationError
from control.core.ports import TransitionsPort
from control.core.states import State
from control.store.database import reason

log = logging.getLogger("roost.channel")

EVENTS_BOUND: Final = 20_000
"""Transitions that wait for a slow reader of /v1/events; what comes then is dropped for that reader, and it is told."""

HEARTBEAT_S: Final = 5.0

PAGE_ROWS: Final = 100
PAGE_ROWS_MAX: Final = 10_000
"""Connections in a page: where it is not said, and at most."""

KEYS_MAX: Final = 200

SECRET: Final = frozenset({"snd_nxt", "rcv_nxt", "ts_offset", "ts_recent"})
"""Of a sleeping connection: not told by the network."""

Seconds = Annotated[int, Query(ge=0, le=2**32 - 1)]
StateName = Literal["ACTIVE", "STANDBY", "IDLE", "SLEEP"]
Action = Literal["standby", "idle", "sleep", "wake", "close"]


class TagEdit(BaseModel):
    """Of a name."""

    model_config = ConfigDict(extra="forbid")

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def make_app(operations: Operations, source: TransitionsPort) -> FastAPI:
    """The application; it holds no state of its own."""
    app = FastAPI(title="Roost", docs_url=None, redoc_url=None, redirect_slashes=False, max_body_size=BODY_MAX)

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

    app.include_router(policy_routes(operations.ruling, operations.giving))
    app.include_router(token_routes(operations.tokens))
    app.include_router(job_routes(operations.jobs))

    @app.get("/v1/status")
    def status() -> Response:
        return _json(operations.status.read())

    @app.get("/v1/connections")
    def connections(
        state: StateName | None = None, client: str = "", network: str = "", service: str = "", name: str = "",
        tag: str = "", quiet: Seconds = 0, silence: Seconds = 0, rule: str = "",
        limit: Annotated[int | None, Query(ge=0)] = None,
        after: Annotated[str | None, Query(max_length=200)] = None,
        key: Annotated[Sequence[str], Query(max_length=KEYS_MAX)] = (),
    ) -> Response:  # fmt: skip
        if key:
            return StreamingResponse(
                _ndjson(operations.view.at(list(map(_key, key)))), media_type="application/x-ndjson"
            )
        in_state = State[state] if state else None
        wanted = Wanted(in_state, client, network, service, name.lower(), tag.lower(), quiet, silence, rule)
        if after is not None:
            return _json(operations.view.page(wanted, after, min(limit or PAGE_ROWS, PAGE_ROWS_MAX)))
        chunks = operations.view.connections(wanted, limit)
        return StreamingResponse(_ndjson(_begun(chunks)), media_type="application/x-ndjson")

    @app.get("/v1/connections/{name}")
    def show(name: str, asker: AskedBy) -> Response:
        shown = operations.view.show(name)
        if asker.by_token and "keep_alive" in shown:  # they suffice to forge segments
            shown["keep_alive"] = {key: value for key, value in shown["keep_alive"].items() if key not in SECRET}
        return _json(shown)

    @app.get("/v1/connections/{name}/explain")
    def explain(name: str) -> Response:
        return _json(operations.explainer.explain(name))

    @app.post("/v1/connections/{name}/attach")
    async def attach(name: str, ticket: Annotated[bool, Body(embed=True)] = False) -> Response:
        return _json(await operations.offer(name, ticket))

    @app.post("/v1/connections/{name}/{action}")
    async def act(name: str, action: Action) -> Response:
        return _json(await operations.moving.act(name, action))

    @app.put("/v1/connections/{connection}/name")
    def give_name(connection: str, name: Annotated[str, Body(embed=True)]) -> Response:
        return _json(operations.naming.give(connection, name))

    @app.delete("/v1/connections/{connection}/name")
    def take_name(connection: str) -> Response:
        return _json(operations.naming.take(connection))

    @app.delete("/v1/names/{name}")
    def forget_name(name: str) -> Response:
        return _json(operations.naming.forget(name))

    @app.get("/v1/names/{name}/tags")
    def tags_of(name: str) -> Response:
        return _json(operations.naming.tags_of(name))

    @app.put("/v1/names/{name}/tags")
    def tag(name: str, edit: TagEdit) -> Response:
        return _json(operations.naming.tag(name, edit.add, edit.remove))

    @app.get("/v1/tags")
    def tags(after: str = "", limit: Annotated[int, Query(ge=0, le=PAGE_ROWS_MAX)] = 1000) -> Response:
        return _json(operations.naming.tags(after, limit))

    @app.get("/v1/agents")
    def agents() -> Response:
        return _json(operations.agents())

    @app.get("/v1/dialled")
    async def dialled() -> Response:
        return _json(operations.dialled())

    @app.get("/v1/history")
    def recent(limit: Annotated[int, Query(ge=0, le=100_000)] = 100) -> Response:
        return _json(operations.view.recent(limit))

    @app.get("/v1/attaches")
    def attaches(limit: Annotated[int, Query(ge=0, le=10_000)] = 100, failed: bool = False) -> Response:
        return _json(operations.view.attaches(limit, failed))

    @app.get("/v1/audit")
    def audit(
        limit: Annotated[int, Query(ge=0, le=10_000)] = 100, who: Annotated[str, Query(max_length=WHO_LENGTH)] = "",
        refused: bool = False,
    ) -> Response:  # fmt: skip
        return _json(operations.view.audit(limit, who, refused))

    @app.get("/v1/snapshots")
    def snapshots(limit: Annotated[int, Query(ge=0, le=1440)] = 60) -> Response:
        return _json(operations.view.snapshots(limit))

    @app.get("/v1/events")
    async def events(last: Annotated[int, Query(ge=0, le=10_000)] = 0) -> StreamingResponse:
        past = await asyncio.to_thread(operations.view.recent, last) if last else []
        return StreamingResponse(_live(operations, source, past), media_type="text/event-stream")

    return app


def _key(text: str) -> Key:
    client, _, local = text.partition(",")
    try:
        return Key.of(*parse_endpoint(client), *parse_endpoint(local))
    except ValueError:
        raise OperationError(400, f'key="{text[:200]}" is no client-address:port,near-address:port') from None


def _json(data: Any) -> Response:
    """FastAPI would look at each value first, which takes longer than all the rest of a page."""
    return Response(json.dumps(data), media_type="application/json")


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


def _sse(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


async def _live(operations: Operations, source: TransitionsPort, past: list[dict[str, Any]]) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    waiting: list[Event] = []
    dropped = 0
    ready = asyncio.Event()

    def take(batch: list[Event]) -> None:
        nonlocal dropped
        room = max(EVENTS_BOUND - len(waiting), 0)
        waiting.extend(batch[:room])
        dropped += max(len(batch) - room, 0)
        ready.set()

    def hear(transitions: Iterable[Event]) -> None:  # in the dispatcher's thread
        # RuntimeError: the loop is closed; the daemon is at its end and the listener is removed right after.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(take, list(transitions))

    end = source.listen(hear)
    try:
        yield b": roost transitions\n\n" + b"".join(_sse("transition", row) for row in past)
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):  # wait_for() loses a cancellation that comes with an event
                    await ready.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            ready.clear()
            batch, waiting[:] = list(waiting), []
            yield b"".join(_sse("transition", operations.view.transition_event(event)) for event in batch)
            if dropped:
                yield _sse("dropped", {"count": dropped})
                dropped = 0
    finally:
        end()


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


def make_server(app: FastAPI) -> uvicorn.Server:
    """A server to be run in the daemon's event loop: ``await server.serve(sockets=[...])``."""
    settings = uvicorn.Config(
        app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    return _ApiServer(settings)
